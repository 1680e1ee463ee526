//! Finds what is wrong with the actions of a schedule.

use super::ideal::{PassTimes, Times, run};
use super::{Action, ActionKind, ActionLists, PipelineShape};
use std::collections::BTreeSet;
use thiserror::Error;

/// The first thing that is wrong with a schedule.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ScheduleFault {
    /// The number of lists is not that of the ranks.
    #[error("the actions are for {given} ranks, not for {needed}")]
    Ranks {
        /// Lists given.
        given: usize,
        /// Ranks of the pipeline.
        needed: usize,
    },
    /// Each rank holds as many stages.
    #[error("{stages} stages do not divide over {ranks} ranks")]
    Uneven {
        /// Stages that the first microbatch passes.
        stages: usize,
        /// Ranks of the pipeline.
        ranks: usize,
    },
    /// A stage or a microbatch that does not exist.
    #[error("rank {rank}: {action} is not one of {stages} stages and {microbatches} microbatches")]
    Unknown {
        /// The rank that would do it.
        rank: usize,
        /// The action.
        action: Action,
        /// Stages there are, copies counted.
        stages: usize,
        /// Microbatches there are.
        microbatches: usize,
    },
    /// A pass on a rank that does not hold its stage.
    #[error("rank {rank}: {action} belongs on rank {holder}")]
    WrongRank {
        /// The rank that would do it.
        rank: usize,
        /// The action.
        action: Action,
        /// The rank that holds the stage.
        holder: usize,
    },
    /// A pass that is run more than once, on one copy of its stage or on two.
    #[error("rank {rank}: {action} has been run before")]
    Twice {
        /// The rank that would do it.
        rank: usize,
        /// The action.
        action: Action,
    },
    /// A pass before one of the same stage that it needs.
    #[error("rank {rank}: {action} comes before {needs}")]
    Early {
        /// The rank that would do it.
        rank: usize,
        /// The action.
        action: Action,
        /// The action that must come first.
        needs: Action,
    },
    /// A pass that nobody runs.
    #[error("{action} is missing")]
    Missing {
        /// The action.
        action: Action,
    },
    /// Ranks that wait for each other.
    #[error("rank {rank}: {action} never starts: it waits for {needs}")]
    Deadlock {
        /// The first rank that is stuck.
        rank: usize,
        /// Where.
        action: Action,
        /// The action that it waits for.
        needs: Action,
    },
}

/// Whether every F and every B, or I and W, of each stage and microbatch is there once, in order, on its rank, and all
/// of them can be run.
///
/// `rank_of` gives the rank of a stage, copies counted; `copies` is how many copies of the stages there are.
///
/// # Errors
/// The first fault, rank by rank.
pub fn validate(
    lists: &ActionLists,
    shape: PipelineShape,
    copies: usize,
    rank_of: impl Fn(usize) -> usize,
) -> Result<(), ScheduleFault> {
    let (stages, microbatches) = (shape.stages(), shape.microbatches);
    if lists.ranks.len() != shape.ranks {
        return Err(ScheduleFault::Ranks { given: lists.ranks.len(), needed: shape.ranks });
    }
    // Passes by stage without copies: a microbatch runs through one copy only.
    let mut done = BTreeSet::new();
    for (rank, list) in lists.ranks.iter().enumerate() {
        let mut here = BTreeSet::new();
        for &action in list {
            if action.stage >= copies * stages || action.microbatch >= microbatches {
                let stages = copies * stages;
                return Err(ScheduleFault::Unknown { rank, action, stages, microbatches });
            }
            let holder = rank_of(action.stage);
            if holder != rank {
                return Err(ScheduleFault::WrongRank { rank, action, holder });
            }
            let needs = match action.kind {
                ActionKind::Forward => None,
                ActionKind::Backward | ActionKind::Input => Some(ActionKind::Forward),
                ActionKind::Weight => Some(ActionKind::Input),
            };
            if let Some(needs) = needs.map(|kind| Action { kind, ..action })
                && !here.contains(&needs)
            {
                return Err(ScheduleFault::Early { rank, action, needs });
            }
            for kind in halves(action.kind) {
                here.insert(Action { kind: *kind, ..action });
                if !done.insert((action.stage % stages, action.microbatch, *kind)) {
                    return Err(ScheduleFault::Twice { rank, action });
                }
            }
        }
    }
    for stage in 0..stages {
        for microbatch in 0..microbatches {
            for kind in [ActionKind::Forward, ActionKind::Input, ActionKind::Weight] {
                if !done.contains(&(stage, microbatch, kind)) {
                    return Err(ScheduleFault::Missing { action: Action { stage, kind, microbatch } });
                }
            }
        }
    }
    run(lists, &Times::equal(shape, PassTimes::unit())).map(drop)
}

/// The halves that a pass of this kind consists of.
fn halves(kind: ActionKind) -> &'static [ActionKind] {
    match kind {
        ActionKind::Forward => &[ActionKind::Forward],
        ActionKind::Input => &[ActionKind::Input],
        ActionKind::Weight => &[ActionKind::Weight],
        ActionKind::Backward => &[ActionKind::Input, ActionKind::Weight],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_fault_is_found_and_named() {
        let shape = PipelineShape { ranks: 2, virtual_stages: 1, microbatches: 2 };
        let check = |ranks: &[&str], expected: &str| {
            let parse = |rank: &&str| rank.split(' ').map(|action| action.parse().unwrap()).collect();
            let lists: ActionLists = ranks.iter().map(parse).collect();
            let found = validate(&lists, shape, 1, |stage| stage % 2);
            assert_eq!(found.map_or_else(|fault| fault.to_string(), |()| "sound".into()), expected);
        };
        let one = "1F0 1B0 1F1 1B1";
        check(&["0F0 0F1 0B0 0B1", one], "sound");
        check(&["0F0 0F1 0I0 0B1 0W0", one], "sound");
        check(&["0F0 0F1 0B0 0B1"], "the actions are for 1 ranks, not for 2");
        check(&["0F0 0F2 0B0 0B1", one], "rank 0: 0F2 is not one of 2 stages and 2 microbatches");
        check(&["0F0 2F1 0B0 0B1", one], "rank 0: 2F1 is not one of 2 stages and 2 microbatches");
        check(&["0F0 1F1 0B0 0B1", one], "rank 0: 1F1 belongs on rank 1");
        check(&["0F0 0F0 0B0 0B1", one], "rank 0: 0F0 has been run before");
        check(&["0F0 0B0 0I0 0B1", one], "rank 0: 0I0 has been run before");
        check(&["0F0 0B0 0B1 0F1", one], "rank 0: 0B1 comes before 0F1");
        check(&["0F0 0F1 0W0 0I0", one], "rank 0: 0W0 comes before 0I0");
        check(&["0F0 0F1 0B0 0I1", one], "0W1 is missing");
        check(&["0F0 0F1 0B0 0B1", "1F1 1B1 1F0 1B0"], "sound");
        check(&["0F0 0B0 0F1 0B1", "1F1 1F0 1B0 1B1"], "rank 0: 0B0 never starts: it waits for 1I0");
    }

    #[test]
    fn a_microbatch_runs_through_one_copy() {
        // Two copies of two stages, the second from rank 1 to rank 0.
        let shape = PipelineShape { ranks: 2, virtual_stages: 1, microbatches: 2 };
        let rank_of = |stage: usize| [0, 1, 1, 0][stage];
        let check = |ranks: [&str; 2], expected: Result<(), &str>| {
            let parse = |rank: &str| rank.split(' ').map(|action| action.parse().unwrap()).collect();
            let lists: ActionLists = ranks.into_iter().map(parse).collect();
            let found = validate(&lists, shape, 2, rank_of).map_err(|fault| fault.to_string());
            assert_eq!(found, expected.map_err(str::to_string));
        };
        check(["0F0 3F1 3B1 0B0", "2F1 1F0 1B0 2B1"], Ok(()));
        check(["0F0 3F1 3B1 0B0", "1F1 1F0 1B0 1B1"], Err("rank 1: 1F1 has been run before"));
    }
}
