//! What software adds to the kernels of a pass, where the stack says how much: the work of a rank's process beside
//! its GPU, and passes over memory.

use crate::emit::Emitter;
use trainwright_spec::plan::Plan;
use trainwright_spec::program::{Axis, Kernel, Op, Pass, Segment, Stream, Work};
use trainwright_spec::stack::HostTimes;
use trainwright_spec::units::Seconds;

/// Launches the ops of a pass, which ends when all are launched and done.
///
/// T = φ (n l + g ε + c t (κ + (k − 1) ν) + μ): φ how much longer the node's processors take; n ops of the pass so far, l the
/// time to launch one; g products in groups, ε the time of each in its precision; if the pipeline crosses nodes, c collectives of a
/// tensor group of t ranks on k nodes, κ what one more rank adds, ν what it adds more for each further node; in a forward pass μ,
/// the other work for a microbatch. It runs ahead of the GPU from pass to pass unless it waits for the pass's message; where it waits
/// for each op, the pass takes T longer.
pub(crate) fn launch(plan: &Plan, pass: Pass, emitter: &mut Emitter) {
    let Some(host) = &plan.stack.host else { return };
    let message = emitter.ops.iter().position(|op| matches!(op.work, Work::Receive { .. }));
    let after = message.filter(|_| host.waits_for_messages).into_iter().collect();
    let ops = emitter.ops.len() as f64 * host.launch.value;
    let microbatch = host.microbatch.as_ref().filter(|_| pass == Pass::Forward);
    let microbatch = microbatch.map_or(Seconds::ZERO, |time| time.value);
    let work = ops + grouped(host, &emitter.ops) + collectives(plan, host, &emitter.ops) + microbatch;
    let work = Work::Process(process_time(plan) * work);
    if host.waits_for_ops {
        emitter.in_line("launch", pass, work);
        return;
    }
    let launched = emitter.push("launch", pass, Stream::Host, work, after);
    emitter.wait_for(launched);
    emitter.in_line("launched", pass, Work::Join);
}

/// Time of a process's work on the processors of the cluster's nodes over that on those of the stack's host times.
fn process_time(plan: &Plan) -> f64 {
    let processors = plan.cluster.node.processors.as_ref();
    processors.and_then(|processors| processors.process_time.as_ref()).map_or(1.0, |ratio| ratio.value)
}

/// What the products of groups take on the host one by one: g ε.
fn grouped(host: &HostTimes, ops: &[Op]) -> Seconds {
    let of_op = |op: &Op| match op.work {
        Work::Compute(Kernel::Gemm { count, precision, .. }) if count > 1 => {
            host.grouped.get(&precision).map(|time| count as f64 * time.value)
        }
        _ => None,
    };
    ops.iter().filter_map(of_op).sum()
}

/// What launching the tensor group's collectives takes longer beside a pipeline's messages over the network.
fn collectives(plan: &Plan, host: &HostTimes, ops: &[Op]) -> Seconds {
    let crosses_nodes = plan.mesh.pipeline > 1 && plan.mesh.ranks() > plan.cluster.node.gpus.value;
    let Some(of_a_rank) = host.collective.as_ref().filter(|_| crosses_nodes) else { return Seconds::ZERO };
    let of_tensor = |op: &&Op| matches!(op.work, Work::Collective { axis: Axis::Tensor, .. });
    let further_nodes = plan.mesh.tensor.div_ceil(plan.cluster.node.gpus.value) - 1;
    let of_a_node = host.collective_node.as_ref().map_or(Seconds::ZERO, |time| time.value);
    let of_a_rank = of_a_rank.value + further_nodes as f64 * of_a_node;
    (ops.iter().filter(of_tensor).count() * plan.mesh.tensor) as f64 * of_a_rank
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
    in_line(plan, pass, "prepare message", |host| host.message.value, emitter);
}

/// Closes a step.
pub(crate) fn close_step(plan: &Plan, emitter: &mut Emitter) {
    in_line(plan, Pass::Update, "close step", |host| host.step.value, emitter);
}

fn in_line(
    plan: &Plan,
    pass: Pass,
    module: &'static str,
    work: fn(&HostTimes) -> Seconds,
    emitter: &mut Emitter,
) {
    if let Some(host) = &plan.stack.host {
        emitter.in_line(module, pass, Work::Process(process_time(plan) * work(host)));
    }
}
