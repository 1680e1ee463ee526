//! Which ranks of a plan do the same at the same times, so that one of them stands for all.

use trainwright_spec::mesh::{RankOrder, Stride};
use trainwright_spec::plan::Plan;
use trainwright_spec::program::Axis;

/// One rank of each class of ranks that do the same at the same times, ascending.
///
/// With g GPUs in a node, s from a rank of a group to the next and n ranks in it, S ranks in a stage:
///
/// - The groups of an axis lie alike in the nodes if s divides g or g divides s (so do those that begin at
///   neighbouring ranks), and s·n divides g or g divides s·n, or is S (so do those further on).
/// - Messages between stages are alike if the next stage, S ranks further, is in another node for all of them or for
///   none: S ≥ g, or S divides g.
/// - Where pipelines are numbered before data, B = T · C ranks of a stage are neighbours: the next stage is B ranks further, and
///   messages are alike if B divides by g, or g by B · P, so that all of a pipeline lies in a node; so are then groups over
///   several such blocks, each of which lies like the next in its nodes.
/// - Where these hold for all axes, one rank speaks for a stage. Otherwise the places of the groups in the nodes
///   repeat after a number of ranks that g and all s·n divide, and ranks are alike again.
pub(crate) fn representatives(plan: &Plan) -> Vec<usize> {
    let mesh = &plan.mesh;
    let (tensor_ranks, copies) = distinct(plan);
    let speaks = |rank: &usize| {
        let within = mesh.within_stage(*rank);
        within % mesh.tensor < tensor_ranks && within / mesh.tensor < copies
    };
    (0..mesh.ranks()).filter(speaks).collect()
}

/// How many ranks of a plan are simulated: one of each class of ranks that do the same at the same times.
pub fn simulated_ranks(plan: &Plan) -> usize {
    let (tensor_ranks, copies) = distinct(plan);
    plan.mesh.pipeline * tensor_ranks * copies
}

/// How many ranks of a tensor group, and how many tensor groups of a stage, differ from each other.
fn distinct(plan: &Plan) -> (usize, usize) {
    let mesh = &plan.mesh;
    let gpus = plan.cluster.node.gpus.value;
    let stage = mesh.stage_ranks();
    let divides = |one: usize, other: usize| one.is_multiple_of(other) || other.is_multiple_of(one);
    let inside = |axis: &Axis| !matches!(axis, Axis::Pipeline | Axis::Embedding | Axis::Mirror);
    let axes = || Axis::ALL.into_iter().filter(inside).filter(|axis| mesh.size(*axis) > 1);
    let blocks = || axes().filter_map(|axis| mesh.stride(axis));
    let (next_stage, end, messages_alike) = match mesh.order {
        RankOrder::PipelineLast => (stage, stage, stage >= gpus || gpus.is_multiple_of(stage)),
        RankOrder::DataLast => {
            let block = mesh.tensor * mesh.context;
            let alike = block.is_multiple_of(gpus) || gpus.is_multiple_of(block * mesh.pipeline);
            (block, mesh.ranks(), alike || mesh.pipeline == 1)
        }
    };
    let tensor_alike = divides(gpus, mesh.tensor);
    let all_alike = tensor_alike
        && messages_alike
        && blocks().all(|Stride { stride, count }| {
            divides(gpus, stride) && (stride * count == end || divides(gpus, stride * count))
        });
    // Only their tensor group distinguishes the ranks of a tensor group.
    let tensor_undivided = mesh.tensor_rows == 1 && mesh.expert_tensor() == mesh.tensor;
    let repeat = blocks()
        .map(|groups| groups.stride * groups.count)
        .filter(|block| *block < stage)
        .fold(least_common_multiple(gpus, mesh.tensor), least_common_multiple)
        / mesh.tensor;
    let tensor_ranks = if all_alike || tensor_alike && tensor_undivided { 1 } else { mesh.tensor };
    let copies = match (all_alike, mesh.weight_copies()) {
        (true, _) => 1,
        (false, copies) if copies.is_multiple_of(repeat) && next_stage == stage => repeat,
        (false, copies) => copies,
    };
    (tensor_ranks, copies)
}

fn least_common_multiple(one: usize, other: usize) -> usize {
    let (mut a, mut b) = (one, other);
    while b > 0 {
        (a, b) = (b, a % b);
    }
    one / a * other
}
