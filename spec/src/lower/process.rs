//! What software adds to the kernels of a pass, where the stack says how much: the work of a rank's own process beside
//! its GPU, and passes over memory.

use super::emit::Emitter;
use crate::plan::Plan;
use crate::program::{Kernel, Pass, Segment, Stream, Work};
use crate::stack::HostTimes;

/// Launches the ops of a pass, which ends when all are launched and done.
///
/// T = n l: n ops of the pass so far, l the time to launch one. It runs ahead of the GPU from pass to pass unless it
/// waits for the pass's message.
pub(crate) fn launch(plan: &Plan, pass: Pass, emitter: &mut Emitter) {
    let Some(host) = &plan.stack.host else { return };
    let message = emitter.ops.iter().position(|op| matches!(op.work, Work::Receive { .. }));
    let after = message.filter(|_| host.waits_for_messages).into_iter().collect();
    let work = Work::Process(emitter.ops.len() as f64 * host.launch.value);
    let launched = emitter.push("launch", pass, Stream::Host, work, after);
    emitter.wait_for(launched);
    emitter.in_line("launched", pass, Work::Join);
}

/// Makes streaming kernels move what the software moves beside what they must.
pub(crate) fn add_traffic(plan: &Plan, segment: &mut Segment) {
    let Some(traffic) = &plan.stack.traffic else { return };
    for op in &mut segment.ops {
        if let Work::Compute(Kernel::Streaming { read, written, .. }) = &mut op.work {
            *read = traffic.value * *read;
            *written = traffic.value * *written;
        }
    }
}

/// Prepares a message between stages.
pub(crate) fn message(plan: &Plan, pass: Pass, emitter: &mut Emitter) {
    in_line(plan, pass, "prepare message", |host| Work::Process(host.message.value), emitter);
}

/// Closes a step.
pub(crate) fn close_step(plan: &Plan, emitter: &mut Emitter) {
    in_line(plan, Pass::Update, "close step", |host| Work::Process(host.step.value), emitter);
}

fn in_line(
    plan: &Plan,
    pass: Pass,
    module: &'static str,
    work: fn(&HostTimes) -> Work,
    emitter: &mut Emitter,
) {
    if let Some(host) = &plan.stack.host {
        emitter.in_line(module, pass, work(host));
    }
}
