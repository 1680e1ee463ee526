//! What the update at the end of a step takes at least, as lowering emits it.

use crate::cost::Parameters;
use trainwright_lower::memory::divisor;
use trainwright_lower::{LayerParameters, update_segment};
use trainwright_sim::costs::{Costs, Query, QueryWork};
use trainwright_spec::plan::Plan;
use trainwright_spec::program::{Axis, Op, Segment, Work};
use trainwright_spec::units::Seconds;

/// How much the size of an update grows from one look at its time to the next, where times are measured.
const GROWTH: f64 = 1.2;

/// The least time of what follows the last backward on some rank, given the parameters of all pipeline ranks.
///
/// A step ends at the earliest when the rank with the most parameters, at least the mean, has run what follows the last collective of
/// all pipeline ranks: before that it may wait for others, which have less to do. Without that collective a rank may update while
/// others still run, and nothing is certain.
pub(crate) fn update_bound(plan: &Plan, parameters: Parameters, costs: &impl Costs) -> Seconds {
    let schedule = plan.schedule();
    if !schedule.flushes() {
        return Seconds::ZERO;
    }
    let share = schedule.copies() as f64 / plan.mesh.pipeline as f64;
    let time = |more: f64| {
        let of_rank = |parameters: f64| (parameters * share * more) as u64;
        let fullest = LayerParameters {
            dense: of_rank(parameters.dense),
            routed: of_rank(parameters.routed),
            matrices: parameters.matrices.map(of_rank),
            ..Default::default()
        };
        update_time(plan, &update_segment(plan, fullest), costs)
    };
    // Times that were measured need not grow with the size: of all sizes that the fullest rank may have, the least.
    let measured = plan.cluster.kinds().any(|(_, node)| node.gpu.profile.is_some());
    let most = if measured { plan.mesh.pipeline as f64 } else { 1.0 };
    let sizes = std::iter::successors(Some(1.0), |more| Some(more * GROWTH)).take_while(|more| *more <= most);
    let others = sizes.map(time).reduce(Seconds::min).unwrap_or(Seconds::ZERO);
    let products = products_of_mean_rank(plan, parameters) * share;
    // Of several pipeline ranks the one with the most products need not be the one with the most of the rest.
    match plan.mesh.pipeline {
        1 => others + products,
        _ if others > Seconds::ZERO => others.max(products),
        _ => others,
    }
}

/// The products of an optimizer of matrices on a rank of a pipeline of one, in the mean of the ranks that divide the state: each
/// matrix is on one of them at least. The rank that is simulated has the most FLOPs, which need not take the longest, but as
/// long as the fastest of them at least.
fn products_of_mean_rank(plan: &Plan, parameters: Parameters) -> Seconds {
    let products = parameters.products;
    let axes = [Axis::Data, Axis::ExpertData].into_iter().zip(products.flops);
    let on_rank = |(axis, flops): (Axis, f64)| match flops > 0.0 && plan.shards_optimizer() {
        true => flops / divisor(plan, axis) as f64,
        false => flops,
    };
    let flops: f64 = axes.map(on_rank).sum();
    if flops > 0.0 { products.of_flop * flops } else { Seconds::ZERO }
}

/// The work of the GPU, or of its processors if that is more, behind the last collective of the pipeline axis.
fn update_time(plan: &Plan, segment: &Segment, costs: &impl Costs) -> Seconds {
    let waits = |op: &Op| matches!(op.work, Work::Collective { axis: Axis::Pipeline, .. });
    let first = match (plan.mesh.pipeline, segment.ops.iter().rposition(waits)) {
        (1, _) => 0,
        (_, Some(last)) => last + 1,
        (_, None) => return Seconds::ZERO,
    };
    let firsts = || (0..=plan.cluster.others.len()).map(|kind| plan.cluster.first_of(kind));
    let (mut gpu, mut host) = (Seconds::ZERO, Seconds::ZERO);
    for op in &segment.ops[first..] {
        let (work, sum) = match &op.work {
            Work::Compute(kernel) => (QueryWork::Kernel(kernel), &mut gpu),
            Work::HostUpdate(update) => (QueryWork::HostUpdate(update), &mut host),
            Work::Process(time) => (QueryWork::Process(*time), &mut gpu),
            _ => continue,
        };
        let on = |rank| costs.cost(&Query { rank, op: Some((op.module, op.pass)), work }).time;
        *sum += firsts().map(on).reduce(Seconds::min).unwrap_or(Seconds::ZERO);
    }
    gpu.max(host)
}
