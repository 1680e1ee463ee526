//! The stages of a program: which layers each has, which ranks run it, and how activations and gradients pass between them.

use super::{Channel, Program, RankProgram};
use crate::schedule::{Action, ActionKind};
use std::fmt;

/// A part of a model with weights: the unit in which state is gathered, reduced and updated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Layer {
    /// Everything before the first block.
    Embedding,
    /// The block of that index in the model.
    Block(usize),
    /// Everything after the last block.
    Head,
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Layer::Embedding => f.write_str("embedding"),
            Layer::Block(index) => write!(f, "block {index}"),
            Layer::Head => f.write_str("head"),
        }
    }
}

/// A stage of a pipeline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProgramStage {
    /// The pipeline rank that runs it.
    pub pipeline_rank: usize,
    /// Its layers in the order of forward; a `LayerSpan` counts in this list.
    pub layers: Vec<Layer>,
}

impl ProgramStage {
    /// Whether forward begins with it.
    pub fn is_first(&self) -> bool {
        self.layers.first() == Some(&Layer::Embedding)
    }

    /// Whether forward ends with it.
    pub fn is_last(&self) -> bool {
        self.layers.last() == Some(&Layer::Head)
    }
}

/// An end of the path that activations take through a stage forward, and their gradients backward.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StageEnd {
    /// The end of the model: forward starts from tokens and ends with the loss, backward starts from the loss.
    Model,
    /// Another stage on the same rank. The call of one stage leaves the tensor for the call of the other with the same
    /// microbatch; no op moves it.
    SameRank(Channel),
    /// Another stage on another rank: an op of the segment sends or receives the tensor.
    OtherRank(Channel),
}

impl Program {
    /// Where the tensor comes from that flows through an action; `None` for the half of backward that only makes the
    /// gradients of weights.
    pub fn source(&self, action: Action) -> Option<StageEnd> {
        let stage = action.stage;
        match action.kind {
            ActionKind::Forward if self.stages[stage].is_first() => Some(StageEnd::Model),
            ActionKind::Forward => Some(self.stage_end(stage, stage - 1, Channel::Activation(stage - 1))),
            ActionKind::Backward | ActionKind::Input if self.stages[stage].is_last() => Some(StageEnd::Model),
            ActionKind::Backward | ActionKind::Input => {
                Some(self.stage_end(stage, stage + 1, Channel::Gradient(stage + 1)))
            }
            ActionKind::Weight => None,
        }
    }

    /// Where the tensor goes that an action makes; `None` as in `source`.
    pub fn destination(&self, action: Action) -> Option<StageEnd> {
        let stage = action.stage;
        match action.kind {
            ActionKind::Forward if self.stages[stage].is_last() => Some(StageEnd::Model),
            ActionKind::Forward => Some(self.stage_end(stage, stage + 1, Channel::Activation(stage))),
            ActionKind::Backward | ActionKind::Input if self.stages[stage].is_first() => {
                Some(StageEnd::Model)
            }
            ActionKind::Backward | ActionKind::Input => {
                Some(self.stage_end(stage, stage - 1, Channel::Gradient(stage)))
            }
            ActionKind::Weight => None,
        }
    }

    fn stage_end(&self, stage: usize, other: usize, channel: Channel) -> StageEnd {
        match self.stages[stage].pipeline_rank == self.stages[other].pipeline_rank {
            true => StageEnd::SameRank(channel),
            false => StageEnd::OtherRank(channel),
        }
    }

    /// The layers whose weights a rank holds, each once, in the order of the model.
    pub fn layers_of(&self, rank: &RankProgram) -> Vec<Layer> {
        let stages = self.stages.iter().filter(|stage| stage.pipeline_rank == rank.pipeline_rank);
        let mut layers: Vec<Layer> = stages.flat_map(|stage| stage.layers.iter().copied()).collect();
        layers.sort_unstable();
        layers.dedup();
        layers
    }
}
