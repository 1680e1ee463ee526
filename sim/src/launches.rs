//! The time that a rank's process needs to launch a step's work.

use trainwright_lower::lower;
use trainwright_spec::plan::Plan;
use trainwright_spec::program::{Program, Work};
use trainwright_spec::schedule::shorter_step;
use trainwright_spec::units::Seconds;

/// The time that the process of the first rank needs for a step: launches, messages, the end of the step.
///
/// Passes repeat, so a step of few microbatches is lowered and scaled.
pub(crate) fn launches(plan: &Plan) -> Seconds {
    if plan.stack.host.is_none() {
        return Seconds::ZERO;
    }
    let few = few_microbatches(plan);
    let mut shorter = plan.clone();
    shorter.job.global_batch = few * plan.micro_batch * plan.mesh.data;
    launches_of(plan, &lower(&shorter), few)
}

/// The microbatches of the step that shows what the process of the first rank does.
pub(crate) fn few_microbatches(plan: &Plan) -> usize {
    let microbatches = plan.microbatches();
    let few = shorter_step(plan.schedule(), plan.pipeline_shape()).map(|shape| shape.microbatches);
    few.filter(|few| *few < microbatches && plan.schedule().flushes()).unwrap_or(microbatches)
}

/// The time that the process of the first rank needs for a step of a plan, from the program of one with `few` microbatches.
pub(crate) fn launches_of(plan: &Plan, program: &Program, few: usize) -> Seconds {
    let rank = &program.ranks[0];
    let ops = rank.calls.iter().flat_map(|call| &program.segments[call.segment].ops);
    let times = ops.map(|op| if let Work::Process(time) = op.work { time } else { Seconds::ZERO });
    times.sum::<Seconds>() * (plan.microbatches() as f64 / few as f64)
}
