//! Weights to the engine, and state to the host and back.

use crate::host::copy_time;
use crate::network::collective_time;
use trainwright_lower::memory::plan_memory;
use trainwright_spec::collective::CollectiveKind;
use trainwright_spec::model::weights::Weight;
use trainwright_spec::plan::Plan;
use trainwright_spec::program::{CopyDirection, Place};
use trainwright_spec::rl::{RlPlan, SyncMethod};
use trainwright_spec::units::{Bytes, Seconds};

/// Launches of a part of a tensor: cut, send, receive, put in place.
const LAUNCHES: f64 = 4.0;

/// Bytes of tensors that are made whole at once (verl's and NeMo-RL's buckets have 0.5 to 4 GiB; the time hardly depends on it).
const BUCKET: Bytes = Bytes::new(1024.0 * 1024.0 * 1024.0);

/// The time to hand the actor's weights over.
///
/// Reshard: T = n (τ(B / n) + 4 λ), n the tensors of which an engine's rank holds B bytes, τ(b) the time of a message of b bytes
/// from a training rank while the other GPUs of the nodes have theirs, λ a launch of the engine; or, if that is more, the same of
/// what a training rank sends to all instances.
///
/// Broadcast: for each bucket of the whole model an all-gather over the ranks that share the weights and, where the engine has
/// GPUs of its own, beside the next bucket's a broadcast from one training rank to them; or the launches, n of the whole model.
pub fn sync_time(plan: &RlPlan) -> Seconds {
    let [training, generation] = [plan.actor.cluster.gpus(), plan.generation.gpus()];
    let both = match plan.mode.splits_gpus() {
        true => together(plan),
        false => plan.actor.cluster.clone(),
    };
    let tensors = tensors(plan);
    let whole: Bytes = tensors.iter().map(|tensor| tensor.whole).sum();
    match plan.sync {
        SyncMethod::Reshard => {
            let received: Bytes = tensors.iter().map(|tensor| tensor.on_rank).sum();
            let pieces: f64 = tensors.iter().map(|tensor| tensor.pieces).sum();
            let copies = (plan.replicas() * plan.engine.gpus()) as f64;
            let busiest = received.max(received * (copies / training as f64));
            let peer = if plan.mode.splits_gpus() { training } else { other_rank(plan) };
            let message = |bytes: Bytes| match peer {
                0 => Seconds::ZERO,
                to => collective_time(CollectiveKind::SendReceive, bytes, &[0, to], &both),
            };
            pieces * (message(busiest / pieces.max(1.0)) + LAUNCHES * plan.engine.engine.host.launch.value)
        }
        SyncMethod::Broadcast => {
            let mesh = &plan.actor.mesh;
            let replica = training / (mesh.data.max(1) / shards(&plan.actor)).max(1);
            let shared: Vec<usize> = (0..replica.clamp(1, training)).collect();
            let mut ranks = vec![0];
            ranks.extend((0..generation).map(|rank| training + rank));
            let buckets = (whole / BUCKET).ceil().max(1.0);
            let bucket = whole / buckets;
            let gather = collective_time(CollectiveKind::AllGather, bucket, &shared, &both);
            let spread = match plan.mode.splits_gpus() {
                true => collective_time(CollectiveKind::Broadcast, bucket, &ranks, &both),
                false => Seconds::ZERO,
            };
            let launches: f64 = tensors.iter().map(|tensor| tensor.count).sum();
            let launches = launches * LAUNCHES * plan.engine.engine.host.launch.value;
            (buckets * gather.max(spread) + gather.min(spread)).max(launches)
        }
    }
}

/// Data ranks that hold different weights: those of divided weights, or of experts.
fn shards(plan: &Plan) -> usize {
    let divided = plan.divides(trainwright_spec::data::Divided::Weights);
    let divided = if divided { plan.mesh.shard() } else { 1 };
    divided.max(plan.mesh.expert.min(plan.mesh.data)).max(1)
}

/// Another rank of the same GPUs, over the network if there are several nodes; 0 if there is none.
fn other_rank(plan: &RlPlan) -> usize {
    let gpus = plan.actor.cluster.gpus();
    let node = plan.actor.cluster.node.gpus.value;
    if gpus > node { node } else { gpus - 1 }
}

/// The GPUs of training, and behind them those of generation.
fn together(plan: &RlPlan) -> trainwright_spec::cluster::Cluster {
    let mut all = plan.actor.cluster.clone();
    let node = all.node.gpus.value;
    all.nodes += plan.generation.gpus().div_ceil(node);
    all
}

/// A kind of tensor of the model.
struct Tensors {
    /// All of them, in 16 bits.
    whole: Bytes,
    /// What an engine's rank holds of them.
    on_rank: Bytes,
    /// How many it has a part of.
    pieces: f64,
    /// How many there are.
    count: f64,
}

fn tensors(plan: &RlPlan) -> Vec<Tensors> {
    let (model, engine) = (&plan.actor.model, &plan.engine);
    let bytes = Bytes::new(2.0);
    let of = |weight: &Weight, blocks: f64| {
        let on_rank = match weight.routed {
            true => weight.routed_on_rank(engine.expert, engine.expert_tensor()),
            false => weight.elements_on_rank(engine.tensor),
        };
        let spread = if weight.routed { engine.expert.max(1) as f64 } else { 1.0 };
        Tensors {
            whole: blocks * weight.total() as f64 * bytes,
            on_rank: blocks / engine.pipeline as f64 * on_rank as f64 * bytes,
            pieces: blocks / engine.pipeline as f64 * weight.copies as f64 / spread,
            count: blocks * weight.copies as f64,
        }
    };
    let mut all = Vec::new();
    for run in &model.blocks {
        all.extend(run.block.weights(model.hidden).iter().map(|weight| of(weight, run.count as f64)));
    }
    let ends = model.embedding_weights(model.vocab).into_iter().chain(model.final_weights());
    all.extend(ends.chain(model.head_weights(model.vocab)).map(|weight| of(&weight, 1.0)));
    all
}

/// The time in which the fullest rank's weights, gradients and optimizer state come from the host's memory, and go back.
pub(super) fn host_time(plan: &Plan) -> [Seconds; 2] {
    let memory = plan_memory(plan);
    let moved = memory.iter().map(|rank| rank.weights + rank.optimizer);
    let moved = moved.fold(Bytes::ZERO, Bytes::max);
    [CopyDirection::FromHost, CopyDirection::ToHost]
        .map(|direction| copy_time(direction, Place::Host, moved, &plan.cluster.node))
}
