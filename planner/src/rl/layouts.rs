//! The layouts that are tried.

use super::RlQuestion;
use trainwright_lower::memory::plan_memory;
use trainwright_sim::serving::memory;
use trainwright_spec::cluster::Cluster;
use trainwright_spec::job::Job;
use trainwright_spec::mesh::Mesh;
use trainwright_spec::model::{Mlp, Model};
use trainwright_spec::plan::{Plan, Recompute, StageBlocks};
use trainwright_spec::serving::ServingPlan;

/// Recomputation of all blocks of a plan.
const RECOMPUTE: [Recompute; 2] = [Recompute::None, Recompute::Full];

/// So many GPUs of a cluster: a part of one node, or whole nodes.
pub(super) fn part_of(cluster: &Cluster, gpus: usize) -> Option<Cluster> {
    let node = cluster.node.gpus.value;
    if gpus.is_multiple_of(node) {
        return (gpus / node <= cluster.nodes).then(|| cluster.with_fewer_nodes(gpus / node)).flatten();
    }
    let mut part = cluster.with_fewer_nodes(1)?;
    part.node.gpus.value = gpus;
    (gpus < node && gpus > 0).then_some(part)
}

/// Layouts of training on all GPUs of a cluster: powers of two of tensor, pipeline and expert ranks, the rest data ranks; optimizer
/// state over data ranks, or all state if the stack can; everything recomputed or nothing. Those whose state alone does not fit
/// are left out.
pub(super) fn trainings(question: &RlQuestion, cluster: &Cluster) -> Vec<Plan> {
    let gpus = cluster.gpus();
    let node = cluster.node.gpus.value;
    let powers = |most: usize| (0..).map(|power| 1usize << power).take_while(move |ranks| *ranks <= most);
    let wanted = |pin: Option<usize>, ranks: usize| pin.is_none_or(|pin| pin == ranks);
    let experts = expert_count(&question.model);
    let pins = &question.pins;
    let mut plans = Vec::new();
    for tensor in powers(node.min(gpus)).filter(|ranks| wanted(pins.tensor, *ranks)) {
        for pipeline in powers(gpus / tensor).filter(|ranks| wanted(pins.pipeline, *ranks)) {
            if !gpus.is_multiple_of(tensor * pipeline) || pipeline > question.model.layers() {
                continue;
            }
            let data = gpus / tensor / pipeline;
            let spread = experts.unwrap_or(1).min(tensor * data);
            for expert in powers(spread).filter(|ranks| wanted(pins.expert, *ranks)) {
                for sharding in shardings(question, data, pipeline) {
                    for recompute in RECOMPUTE {
                        let mesh = Mesh {
                            expert,
                            expert_tensor: (expert > 1).then_some(1),
                            ..Mesh::new(tensor, pipeline, data)
                        };
                        plans.extend(training(question, cluster, mesh, &sharding, recompute));
                    }
                }
            }
        }
    }
    plans
}

/// How data ranks share state.
fn shardings(question: &RlQuestion, data: usize, pipeline: usize) -> Vec<String> {
    if data == 1 {
        return vec!["none".into()];
    }
    let mut known = Vec::new();
    if question.stack.sharded_optimizer {
        known.push("zero1".into());
    }
    for whole in ["fsdp", "zero3"] {
        if question.stack.has_data_scheme(whole) && pipeline == 1 && known.len() < 2 {
            known.push(whole.into());
        }
    }
    if known.is_empty() {
        known.push("none".into());
    }
    known
}

fn training(
    question: &RlQuestion,
    cluster: &Cluster,
    mesh: Mesh,
    sharding: &str,
    recompute: Recompute,
) -> Option<Plan> {
    let model = question.model.clone();
    let layers = model.layers();
    let of_stage = |stage: usize| layers / mesh.pipeline + usize::from(stage < layers % mesh.pipeline);
    let stages = (0..mesh.pipeline).map(|stage| StageBlocks(vec![recompute; of_stage(stage)])).collect();
    let sequence = question.pack.next_multiple_of(2 * mesh.tensor.max(8));
    let job = Job::new(sequence, mesh.data * mesh.pipeline, question.precision);
    let mut plan = Plan {
        mesh,
        stages,
        sequence_parallel: mesh.tensor > 1 && question.stack.sequence_parallel,
        data_sharding: sharding.into(),
        ..Plan::plain(model, question.stack.clone(), cluster.clone(), job)
    };
    if let Some(calibration) = &question.calibration {
        calibration.apply(&mut plan.cluster, &mut plan.stack);
    }
    plan.check("").ok()?;
    let state = plan_memory(&plan).into_iter().map(|rank| rank.weights + rank.gradients + rank.optimizer);
    let most = 2.0 * cluster.node.gpu.memory.value;
    // What is far beyond a GPU is not worth a forecast; what is a little beyond says why nothing fits.
    state.into_iter().all(|bytes| bytes <= most).then_some(plan)
}

/// Instances of the engine on a cluster: powers of two of tensor ranks whose instances fill it. Experts are over the same ranks.
pub(super) fn engines(question: &RlQuestion, cluster: &Cluster, alone: bool) -> Vec<ServingPlan> {
    let gpus = cluster.gpus();
    let model = &question.model;
    let mut engine = question.engine.clone();
    if !alone {
        engine.batching.memory_share.value = question.colocated_share;
    }
    let [weights, expert_weights] = question.weights.clone();
    let log_probs = question.controller.returns_log_probs;
    let plain = ServingPlan { weights, expert_weights, log_probs, ..ServingPlan::new(engine) };
    let largest = cluster.node.gpus.value.max(model_spread(question, cluster));
    let tensors = (0..).map(|power| 1usize << power).take_while(|tensor| *tensor <= gpus.min(largest));
    let wanted = |tensor: &usize| question.pins.engine_tensor.is_none_or(|pin| pin == *tensor);
    let plan = |tensor: usize| plain.clone().with_tensor(tensor);
    let room =
        |plan: &ServingPlan| memory(model, plan, cluster, 1, 1).is_ok_and(|memory| memory.capacity() > 0);
    let all: Vec<ServingPlan> =
        tensors.filter(|tensor| gpus.is_multiple_of(*tensor)).filter(wanted).map(plan).collect();
    let fit: Vec<ServingPlan> = all.iter().filter(|plan| room(plan)).cloned().collect();
    if fit.is_empty() { all } else { fit }
}

/// Tensor ranks over several nodes, if a node does not hold the weights.
fn model_spread(question: &RlQuestion, cluster: &Cluster) -> usize {
    let bytes = 2.0 * question.model.parameters() as f64;
    let of_gpu = 0.5 * cluster.node.gpu.memory.value.get();
    ((bytes / of_gpu).ceil() as usize).next_power_of_two()
}

fn expert_count(model: &Model) -> Option<usize> {
    model.blocks.iter().find_map(|run| match &run.block.mlp {
        Mlp::Experts(experts) => Some(experts.count),
        Mlp::Dense(_) => None,
    })
}
