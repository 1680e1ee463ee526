//! The instances that are tried: layouts, formats, and budgets of a step.

use super::ServingQuestion;
use trainwright_sim::serving::{MemoryUse, memory, policy};
use trainwright_spec::cluster::Cluster;
use trainwright_spec::model::Model;
use trainwright_spec::serving::ServingPlan;

/// Tokens of a step that are tried beside the engine's own: fewer cut prompts into more chunks, which lets single tokens wait less.
const BUDGETS: [usize; 2] = [512, 2048];

/// What the instances of a pool do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Whole requests.
    Whole,
    /// Prompts and first tokens; keys and values go to another pool.
    Prefill,
    /// Tokens after the first.
    Decode,
}

impl Role {
    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Role::Whole => "whole",
            Role::Prefill => "prefill",
            Role::Decode => "decode",
        }
    }
}

/// An instance that may serve.
#[derive(Debug, Clone, PartialEq)]
pub struct ServingOption {
    /// The kind of nodes, by its place in the question.
    pub kind: usize,
    /// What it does.
    pub role: Role,
    /// The instance.
    pub plan: ServingPlan,
}

/// Every option of a question, smaller instances first.
pub(super) fn options(question: &ServingQuestion) -> Vec<ServingOption> {
    let roles: &[Role] =
        if question.apart { &[Role::Whole, Role::Prefill, Role::Decode] } else { &[Role::Whole] };
    let mut options = Vec::new();
    for (kind, nodes) in question.kinds.iter().enumerate() {
        for plan in layouts(question, &nodes.cluster) {
            for role in roles {
                for budget in budgets(&plan, *role) {
                    let mut plan = plan.clone();
                    plan.engine.batching.max_tokens.value = budget;
                    options.push(ServingOption { kind, role: *role, plan });
                }
            }
        }
    }
    options.sort_by_key(|option| option.plan.gpus());
    options
}

/// Tokens of a step that are tried. Where no step has both, a budget decides nothing that is worth a try.
fn budgets(plan: &ServingPlan, role: Role) -> Vec<usize> {
    let batching = &plan.engine.batching;
    let own = batching.max_tokens.value;
    let mixes = role == Role::Whole && policy(&batching.policy).is_some_and(|policy| policy.mixes());
    let mut budgets: Vec<usize> = if mixes { BUDGETS.to_vec() } else { Vec::new() };
    budgets.push(own);
    budgets.sort_unstable();
    budgets.dedup();
    budgets
}

/// Layouts of instances on a cluster whose weights and one sequence fit.
fn layouts(question: &ServingQuestion, cluster: &Cluster) -> Vec<ServingPlan> {
    let model = &question.model;
    let mut plans = Vec::new();
    for engine in &question.engines {
        for formats in &question.formats {
            let plan = ServingPlan {
                weights: formats.weights.clone(),
                expert_weights: formats.expert_weights.clone(),
                cache: formats.cache.clone(),
                ..ServingPlan::new(engine.clone())
            };
            let all = sizes(cluster).into_iter().flat_map(|gpus| degrees(model, cluster, gpus));
            let all = all.map(|[tensor, pipeline, attention_data, expert]| ServingPlan {
                tensor,
                pipeline,
                attention_data,
                expert,
                ..plan.clone()
            });
            let (whole, in_stages): (Vec<_>, Vec<_>) = all.partition(|plan| plan.pipeline == 1);
            let fits = |plan: &ServingPlan| {
                let longest = question.traffic.longest();
                memory_alone(model, plan, cluster, longest).is_some_and(|memory| memory.capacity() >= longest)
            };
            // Published runs have pipeline stages where nothing else fits; elsewhere microbatches are less even than the model of a
            // step has them, so that stages would look better than they are.
            let needs_stages = !whole.iter().any(fits);
            plans.extend(whole);
            plans.extend(in_stages.into_iter().filter(|_| needs_stages));
        }
    }
    plans
}

/// Sizes of instances: powers of two that divide a node, and powers of two of nodes. Each divides the next, so that instances of
/// any mix of sizes pack into nodes without a gap.
fn sizes(cluster: &Cluster) -> Vec<usize> {
    let of_node = cluster.node.gpus.value;
    let in_node = (0..).map(|power| 1 << power).take_while(|size| of_node.is_multiple_of(*size));
    let nodes = (0..).map(|power| of_node << power).take_while(|size| *size <= cluster.gpus());
    let mut sizes: Vec<usize> = in_node.chain(nodes).collect();
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

/// Tensor, pipeline, attention-data and expert ranks of an instance of this number of GPUs.
fn degrees(model: &Model, cluster: &Cluster, gpus: usize) -> Vec<[usize; 4]> {
    let of_node = cluster.node.gpus.value;
    let experts = model.fewest_experts();
    let mut found = Vec::new();
    let divisors = |of: usize| (1..=of).filter(move |divisor| of.is_multiple_of(*divisor));
    for tensor in divisors(gpus).filter(|tensor| *tensor <= of_node && model.shares_heads(*tensor)) {
        for attention_data in divisors(gpus / tensor).filter(|data| *data == 1 || experts.is_some()) {
            let pipeline = gpus / tensor / attention_data;
            if pipeline > model.layers() {
                continue;
            }
            let ranks = tensor * attention_data;
            found.push([tensor, pipeline, attention_data, 1]);
            if ranks > 1 && experts.is_some_and(|count| count.is_multiple_of(ranks)) {
                found.push([tensor, pipeline, attention_data, ranks]);
            }
        }
    }
    found
}

/// The memory of an instance while it computes one sequence of so many tokens; `None` for formats that are not known.
pub(super) fn memory_alone(
    model: &Model,
    plan: &ServingPlan,
    cluster: &Cluster,
    tokens: usize,
) -> Option<MemoryUse> {
    let step = plan.engine.batching.max_tokens.value.min(tokens);
    memory(model, plan, cluster, step, 1).ok()
}
