//! What kinds of mathematics there are on a device: a trait and its arguments for each.

mod attention;
mod dropout;
mod experts;
mod generation;
mod grid;
mod optimizer;
mod rows;
mod step;
mod tokens;

pub(crate) use attention::{AttentionGradient, AttentionOps, AttentionOutput, AttentionTile};
pub(crate) use dropout::DropoutOps;
pub(crate) use experts::{ExpertOps, ExpertPass, ExpertProducts, NOWHERE, Visits};
pub(crate) use generation::GenerationOps;
pub(crate) use grid::GridOps;
pub(crate) use optimizer::{OptimizerOps, OptimizerStep, Rule, Updated};
pub(crate) use rows::{NormGradient, Positions, Rotation, RowOps, Sum};
pub(crate) use step::{StepBegin, StepNumbers, StepOps, SummedLoss, each_token};
pub(crate) use tokens::{LossTokens, TokenOps};
