//! A schedule of one's own: action lists for one shape.

use super::{Action, ActionLists, PipelineShape, Schedule, ScheduleFault, validate};

/// Action lists that somebody wrote, or that `list` made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Custom {
    lists: ActionLists,
    shape: PipelineShape,
    copies: usize,
    rank_of: Vec<usize>,
}

impl Custom {
    /// Lists for `shape`. Which rank holds a stage, and how many copies of the stages there are, follow from them.
    ///
    /// # Errors
    /// The first fault of the lists.
    pub fn new(lists: ActionLists, shape: PipelineShape) -> Result<Self, ScheduleFault> {
        let numbers = lists.ranks.iter().flatten().map(|action| action.stage + 1).max().unwrap_or(0);
        let copies = numbers.div_ceil(shape.stages()).max(1);
        // A number far beyond the stages is a slip of the pen; `validate` names it.
        let copies = if copies > shape.ranks.max(2) { 1 } else { copies };
        let mut rank_of = vec![None; copies * shape.stages()];
        for (rank, actions) in lists.ranks.iter().enumerate() {
            for action in actions.iter().filter(|action| action.stage < copies * shape.stages()) {
                rank_of[action.stage].get_or_insert(rank);
            }
        }
        let rank_of: Vec<usize> = rank_of.into_iter().map(Option::unwrap_or_default).collect();
        validate(&lists, shape, copies, |stage| rank_of[stage])?;
        Ok(Custom { lists, shape, copies, rank_of })
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

    fn actions(&self, rank: usize, _: PipelineShape) -> Vec<Action> {
        self.lists.ranks[rank].clone()
    }

    fn lists(&self, _: PipelineShape) -> ActionLists {
        self.lists.clone()
    }

    /// Of the ideal run.
    fn bubble_over_work(&self, shape: PipelineShape) -> f64 {
        super::ideal::bubble_over_work(self, shape)
    }
}
