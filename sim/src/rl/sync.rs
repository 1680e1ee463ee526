//! Weights to the engine, and state to the host and back.

use crate::host::copy_time;
use crate::network::collective_time;
use trainwright_lower::memory::{RankMemory, plan_memory};
use trainwright_spec::cluster::{Cluster, Shape};
use trainwright_spec::collective::CollectiveKind;
use trainwright_spec::model::weights::Weight;
use trainwright_spec::plan::Plan;
use trainwright_spec::program::{CopyDirection, Place};
use trainwright_spec::rl::{Controller, RlPlan, SyncMethod};
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
/// GPUs of its own, beside the next bucket's a broadcast from one training rank to them; or the host's work for each of the tensors,
/// four launches or what the controller takes.
///
/// Expert parts: the same of all but experts, and their parts as in reshard; the host's work is that for all tensors.
pub fn sync_time(plan: &RlPlan) -> Seconds {
    let [training, generation] = [plan.actor.cluster.gpus(), plan.generation.gpus()];
    let both = match plan.mode.splits_gpus() {
        true => together(plan),
        false => plan.actor.cluster.clone(),
    };
    let tensors = tensors(plan);
    let launch = plan.engine.engine.host.launch.value;
    let each = plan.controller.tensor.as_ref().map_or(LAUNCHES * launch, |time| time.value);
    let on_host = tensors.iter().map(|tensor| tensor.count).sum::<f64>() * each;
    let in_parts = |tensor: &&Tensors| plan.sync == SyncMethod::ExpertParts && tensor.routed;
    let whole: Bytes = tensors.iter().filter(|tensor| !in_parts(tensor)).map(|tensor| tensor.whole).sum();
    let parts = |wanted: &dyn Fn(&Tensors) -> bool| {
        let wanted: Vec<&Tensors> = tensors.iter().filter(|tensor| wanted(tensor)).collect();
        let received: Bytes = wanted.iter().map(|tensor| tensor.on_rank).sum();
        let pieces: f64 = wanted.iter().map(|tensor| tensor.pieces).sum();
        let copies = (plan.replicas() * plan.engine.gpus()) as f64;
        let busiest = received.max(received * (copies / training as f64));
        let peer = if plan.mode.splits_gpus() { training } else { other_rank(plan) };
        let message = |bytes: Bytes| match peer {
            0 => Seconds::ZERO,
            to => collective_time(CollectiveKind::SendReceive, bytes, &[0, to], &both),
        };
        pieces * (message(busiest / pieces.max(1.0)) + LAUNCHES * launch)
    };
    match plan.sync {
        SyncMethod::Reshard => parts(&|_| true),
        SyncMethod::Broadcast | SyncMethod::ExpertParts => {
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
            let of_parts = match plan.sync {
                SyncMethod::ExpertParts => parts(&|tensor| tensor.routed),
                _ => Seconds::ZERO,
            };
            (buckets * gather.max(spread) + gather.min(spread) + of_parts).max(on_host)
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
fn together(plan: &RlPlan) -> Cluster {
    let mut all = plan.actor.cluster.clone();
    let node = all.node.gpus.value;
    all.nodes += plan.generation.gpus().div_ceil(node);
    if let Shape::Torus(torus) = &mut all.fabric.shape {
        *torus = torus.of_nodes(all.nodes, node);
    }
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
    /// Whether they are experts'.
    routed: bool,
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
            routed: weight.routed,
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

/// Time of copies between a GPU and the host, in and out.
pub(super) struct HostTimes {
    /// Weights, gradients and optimizer state of the fullest rank.
    pub(super) state: Seconds,
    /// Its weights alone.
    pub(super) weights: Seconds,
}

/// The time in which the fullest rank's state comes from the host's memory, and goes back: at the rate of pinned copies, or, where
/// the controller allocates the host's memory anew, T = n / ρ on the way out, ρ the rate at which fresh pages are written.
pub(super) fn host_times(plan: &Plan, controller: &Controller) -> HostTimes {
    let memory = plan_memory(plan);
    let most = |of: &dyn Fn(&RankMemory) -> Bytes| memory.iter().map(of).fold(Bytes::ZERO, Bytes::max);
    let both_ways = |bytes: Bytes| {
        let [from, to] = [CopyDirection::FromHost, CopyDirection::ToHost]
            .map(|direction| copy_time(direction, Place::Host, bytes, &plan.cluster.node));
        let fresh = controller.to_host.as_ref().map_or(Seconds::ZERO, |rate| bytes / rate.value);
        from + to.max(fresh)
    };
    HostTimes {
        state: both_ways(most(&|rank| rank.weights + rank.optimizer)),
        weights: both_ways(most(&|rank| rank.weights)),
    }
}
