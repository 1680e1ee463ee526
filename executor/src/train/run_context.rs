//! What all ranks of a run share.

use crate::comm::transport::Transport;
use crate::train::optimizer::Optimizer;
use crate::train::settings::Settings;
use trainwright_spec::plan::Plan;
use trainwright_spec::program::Program;

/// What all ranks of a run share.
pub(crate) struct RunContext<'a> {
    pub plan: &'a Plan,
    pub program: &'a Program,
    pub settings: &'a Settings,
    pub optimizer: Optimizer,
    pub transport: &'a dyn Transport,
}
