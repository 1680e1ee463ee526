//! The engines that are tried.

use super::RlQuestion;
use trainwright_sim::serving::memory;
use trainwright_spec::cluster::Cluster;
use trainwright_spec::serving::ServingPlan;

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
