//! A schedule from a file: action lists for one shape.

use super::{ActionLists, PipelineShape, Schedule, ScheduleFault, validate};
use std::collections::BTreeSet;

/// Action lists that somebody wrote, or that `list` made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Custom {
    lists: ActionLists,
    shape: PipelineShape,
    copies: usize,
    rank_of: Vec<usize>,
}

impl Custom {
    /// A schedule of these lists.
    ///
    /// All else follows from them. The stages that the first microbatch passes are those of one copy; which rank holds
    /// a stage, which its actions are on.
    ///
    /// # Errors
    /// The first fault of the lists.
    pub fn new(lists: ActionLists) -> Result<Self, ScheduleFault> {
        let all = || lists.ranks.iter().flatten();
        let first: BTreeSet<usize> =
            all().filter(|action| action.microbatch == 0).map(|action| action.stage).collect();
        let (ranks, stages) = (lists.ranks.len(), first.len());
        if stages == 0 || !stages.is_multiple_of(ranks) {
            return Err(ScheduleFault::Uneven { stages, ranks });
        }
        let shape = PipelineShape {
            ranks,
            virtual_stages: stages / ranks,
            microbatches: all().map(|action| action.microbatch + 1).max().unwrap_or(0),
        };
        let numbers = all().map(|action| action.stage + 1).max().unwrap_or(0);
        // A number far beyond the stages is a typing error; `validate` names it.
        let copies = if numbers > 2 * stages { 1 } else { numbers.div_ceil(stages) };
        let mut rank_of = vec![0; copies * stages];
        for (rank, actions) in lists.ranks.iter().enumerate().rev() {
            let known = actions.iter().filter(|action| action.stage < copies * stages);
            known.for_each(|action| rank_of[action.stage] = rank);
        }
        validate(&lists, shape, copies, |stage| rank_of[stage])?;
        Ok(Custom { lists, shape, copies, rank_of })
    }

    /// The sizes that it is for.
    pub fn shape(&self) -> PipelineShape {
        self.shape
    }

    /// The actions of every rank.
    pub fn own_lists(&self) -> &ActionLists {
        &self.lists
    }
}

impl Schedule for Custom {
    fn name(&self) -> &str {
        "custom"
    }

    fn summary(&self) -> &str {
        "the actions of each rank, as given"
    }

    fn bubble(&self) -> &str {
        "as the actions have it"
    }

    fn source(&self) -> &str {
        "whoever wrote the actions"
    }

    fn check(&self, shape: PipelineShape) -> Result<(), String> {
        let sizes = |shape: PipelineShape| {
            let PipelineShape { ranks, virtual_stages, microbatches } = shape;
            format!("{ranks} ranks, {virtual_stages} virtual stages and {microbatches} microbatches")
        };
        match shape == self.shape {
            true => Ok(()),
            false => Err(format!("the actions are for {}, not for {}", sizes(self.shape), sizes(shape))),
        }
    }

    fn copies(&self) -> usize {
        self.copies
    }

    fn rank_of(&self, stage: usize, _: PipelineShape) -> usize {
        self.rank_of[stage]
    }

    fn lists(&self, _: PipelineShape) -> ActionLists {
        self.lists.clone()
    }

    /// Of the ideal run.
    fn bubble_over_work(&self, shape: PipelineShape) -> f64 {
        super::ideal::bubble_over_work(self, shape)
    }
}
