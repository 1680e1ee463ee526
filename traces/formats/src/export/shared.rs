//! Choices that several tools express, or cannot express, for the same reason.

use super::coverage::Coverage;
use trainwright_spec::model::weights::Weight;
use trainwright_spec::plan::{Plan, Recompute};
use trainwright_spec::program::Place;

/// Why a configuration has no cluster, if `torchrun` starts the ranks.
pub const LAUNCHER: &str = "the launcher says it: torchrun --nnodes --nproc-per-node";

/// Whether PyTorch's FSDP offloads its whole state to host memory, the only offload that it has.
pub fn fsdp_offload(plan: &Plan, coverage: &mut Coverage) -> bool {
    let offload = &plan.offload;
    let state = [offload.optimizer, offload.gradients, offload.parameters];
    let offloads = state.iter().all(|place| *place == Some(Place::Host)) && offload.optimizer_fraction == 1.0;
    if offloads {
        coverage.express(&["offload.optimizer", "offload.gradients", "offload.parameters"]);
    }
    coverage.omit("offload", "parameters, gradients and optimizer leave for host memory together");
    offloads
}

/// Data ranks that divide the weights, without the context ranks, which PyTorch's FSDP always adds to them.
pub fn fsdp_shard_ranks(plan: &Plan, coverage: &mut Coverage) -> usize {
    let mesh = &plan.mesh;
    if !mesh.shard().is_multiple_of(mesh.context) {
        coverage.omit("mesh.shard", "the context ranks all divide the state");
    }
    (mesh.shard() / mesh.context).max(1)
}

/// Parameters in a bucket of gradients. A stack that reduces each block's gradients alone has buckets of one parameter;
/// where no matrix of a block fits into a bucket, files have buckets of a block, as others would reduce weight by weight.
pub fn bucket(plan: &Plan, coverage: &mut Coverage) -> usize {
    // The gradients of routed experts have buckets of their own.
    let on_rank = |weight: &Weight| if weight.routed { 0 } else { weight.elements_on_rank(plan.mesh.tensor) };
    let blocks = || plan.model.blocks.iter().map(|run| run.block.weights(plan.model.hidden));
    let matrices = blocks().flatten().filter(|weight| !weight.is_vector() && !weight.routed);
    let smallest = matrices.map(|weight| on_rank(&weight) / weight.copies.max(1)).min().unwrap_or(0);
    if plan.bucket_parameters() as u64 >= smallest {
        return plan.bucket_parameters();
    }
    let largest =
        blocks().map(|weights| weights.iter().map(on_rank).sum::<u64>()).max().unwrap_or(0) as usize;
    coverage.slow("stack.bucket_parameters", format!("a block a bucket: {largest}"));
    largest
}

/// The dispatcher's inner group: tools take the ranks of a node.
pub fn dispatch_within_node(plan: &Plan, coverage: &mut Coverage) {
    let ranks_in_node = plan.cluster.node.gpus.value / plan.mesh.expert_tensor();
    let is_node = plan.mesh.expert_inner == plan.mesh.expert.min(ranks_in_node.max(1));
    coverage.express_if(is_node, "mesh.expert_inner", "the dispatcher takes the ranks of a node");
}

/// The recomputation of all blocks; `None` if blocks differ.
pub fn uniform_recompute(plan: &Plan) -> Option<Recompute> {
    let mut blocks = plan.stages.iter().flat_map(|stage| &stage.0);
    let first = *blocks.next()?;
    blocks.all(|block| *block == first).then_some(first)
}

/// The blocks of each stage; `None` if stages differ.
pub fn blocks_per_stage(plan: &Plan) -> Option<usize> {
    let first = plan.stages.first()?.0.len();
    plan.stages.iter().all(|stage| stage.0.len() == first).then_some(first)
}
