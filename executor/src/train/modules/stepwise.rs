//! Modules whose forward and backward the program lists step by step, with what travels between ranks among the steps.

use super::operator::Step;
use crate::comm::collective::Communicator;
use crate::comm::members::Members;
use crate::error::Fault;
use trainwright_spec::collective::CollectiveKind;
use trainwright_spec::program::{Axis, Does, Module, Pass};

/// A collective of a module's step, as one rank takes part in it.
pub(crate) struct Among<'a, 'c> {
    pub kind: CollectiveKind,
    pub axis: Axis,
    pub members: &'a Members,
    pub communicator: &'a mut Communicator<'c>,
}

/// A module that runs in steps: what flows is taken before the first and put back after the last.
pub(crate) trait Stepwise: Sync {
    /// Before the first step.
    fn begin(&self, step: &mut Step, pass: Pass);

    /// One of them.
    fn run(&self, step: &mut Step, pass: Pass, does: Does, among: Option<Among>) -> Result<(), Fault>;

    /// After the last one.
    fn end(&self, step: &mut Step, pass: Pass);
}

/// Whether a module with such a step runs in steps.
pub(crate) fn is_stepwise(module: Module, does: Does) -> bool {
    matches!(does, Does::Share(_) | Does::Grid(_)) || matches!(module, Module::Dispatch | Module::Combine)
}
