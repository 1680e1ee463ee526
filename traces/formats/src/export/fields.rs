//! Every choice that a plan makes, each with its meaning as text.

use serde::Serialize;
use std::fmt;
use trainwright_spec::cluster::Node;
use trainwright_spec::model::Mask;
use trainwright_spec::plan::{Plan, Recompute, ScheduleChoice, StageBlocks};
use trainwright_spec::precision::Precision;
use trainwright_spec::schedule::text;
use trainwright_spec::stack::PipelineOverlap;

/// A choice of a plan.
pub struct Field {
    /// Its key in the plan's file, or the group of keys that it is about.
    pub key: &'static str,
    /// Its value; `None` if it is the default, or changes nothing. Two plans with equal values of all fields run alike.
    pub value: fn(&Plan) -> Option<String>,
}

/// Choices that a tool's files cannot express, for one reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Omission {
    /// Their keys with their values in the plan.
    pub fields: Vec<(&'static str, String)>,
    /// Why not.
    pub why: String,
    /// What that changes.
    pub effect: Effect,
}

/// What a choice changes that the files do not express, the gravest last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effect {
    /// Nothing: a launcher, a script or a recipe says it.
    Elsewhere,
    /// Speed or memory alone.
    Speed,
    /// What is trained, or whether it runs.
    Training,
}

/// What is said of an omission that changes the training.
pub const CHANGES: &str = " (this changes the training)";

/// What another value of a field changes.
pub fn effect(key: &str) -> Effect {
    let trains = ["job.", "model."].iter().any(|group| key.starts_with(group))
        || ["experts.gate", "experts.capacity_factor", "offload.delayed_update", "stack.base_blocks"]
            .contains(&key);
    if trains { Effect::Training } else { Effect::Speed }
}

/// The longest value that is printed.
const LONGEST: usize = 40;

/// The most fields that are printed with their values.
const MOST_NAMED: usize = 4;

impl fmt::Display for Omission {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let shown = |(key, value): &(&str, String)| match value.len() <= LONGEST && !value.contains('\n') {
            true => format!("{key} = {value}"),
            false => key.to_string(),
        };
        let fields: Vec<String> = match self.fields.as_slice() {
            few if few.len() <= MOST_NAMED => few.iter().map(shown).collect(),
            many => many.iter().map(|(key, _)| key.to_string()).collect(),
        };
        write!(f, "{}: {}", fields.join(", "), self.why)?;
        f.write_str(if self.effect == Effect::Training { CHANGES } else { "" })
    }
}

/// Every choice. The machine and the costs of the software are part of a plan, but not choices.
pub static FIELDS: &[Field] = &[
    Field { key: "cluster", value: |plan| Some(cluster(plan)) },
    Field { key: "job.sequence", value: |plan| text_of(plan.job.sequence) },
    Field { key: "job.global_batch", value: |plan| text_of(plan.job.global_batch) },
    Field { key: "job.precision", value: |plan| text_of(plan.job.precision) },
    Field { key: "job.optimizer", value: |plan| text_of(&plan.job.optimizer) },
    Field { key: "job.gradient_clipping", value: |plan| text_of(plan.job.gradient_clipping) },
    Field { key: "job.adapters", value: |plan| plan.job.adapters.as_ref().and_then(text_of) },
    Field { key: "micro_batch", value: |plan| text_of(plan.micro_batch) },
    Field { key: "mesh.tensor", value: |plan| text_of(plan.mesh.tensor) },
    Field { key: "mesh.pipeline", value: |plan| text_of(plan.mesh.pipeline) },
    Field { key: "mesh.data", value: |plan| text_of(plan.mesh.data) },
    Field { key: "mesh.context", value: |plan| more_than_one(plan.mesh.context) },
    Field { key: "mesh.context_inner", value: |plan| more_than_one(plan.mesh.context_inner) },
    Field { key: "mesh.expert", value: |plan| more_than_one(plan.mesh.expert) },
    Field { key: "mesh.expert_inner", value: |plan| more_than_one(plan.mesh.expert_inner) },
    Field {
        key: "mesh.expert_tensor",
        value: |plan| given(plan.mesh.expert_tensor() != plan.mesh.tensor, plan.mesh.expert_tensor()),
    },
    Field { key: "mesh.tensor_rows", value: |plan| more_than_one(plan.mesh.tensor_rows) },
    Field {
        key: "mesh.shard",
        value: |plan| given(plan.mesh.shard() != plan.mesh.weight_copies(), plan.mesh.shard()),
    },
    Field { key: "mesh.order", value: |plan| given(!plan.mesh.order.is_default(), plan.mesh.order.name()) },
    Field { key: "tensor_scheme", value: |plan| given(plan.tensor_scheme != "1d", &plan.tensor_scheme) },
    Field { key: "sequence_parallel", value: |plan| given(plan.mesh.tensor > 1, plan.sequence_parallel) },
    Field { key: "context_scheme", value: |plan| given(plan.mesh.context > 1, &plan.context_scheme) },
    Field { key: "schedule", value: |plan| Some(schedule(plan)) },
    Field { key: "virtual_stages", value: |plan| more_than_one(plan.virtual_stages) },
    Field { key: "stages", value: |plan| Some(blocks(plan)) },
    Field { key: "stages.recompute", value: recompute },
    Field { key: "data_sharding", value: |plan| given(plan.mesh.weight_copies() > 1, &plan.data_sharding) },
    Field { key: "data.reshard", value: |plan| json(&plan.data.reshard) },
    Field { key: "data.prefetch", value: |plan| json(&plan.data.prefetch) },
    Field { key: "data.reduce", value: |plan| json(&plan.data.reduce) },
    Field { key: "data.servers", value: |plan| json(&plan.data.servers) },
    Field { key: "experts.dispatcher", value: |plan| given(plan.mesh.expert > 1, &plan.experts.dispatcher) },
    Field { key: "experts.gate", value: |plan| changed(&plan.experts.gate) },
    Field { key: "experts.capacity_factor", value: |plan| plan.experts.capacity_factor.and_then(text_of) },
    Field { key: "experts.load", value: |plan| changed(&plan.experts.load) },
    Field { key: "state.gradients", value: |plan| text_of(gradients(plan)) },
    Field { key: "state.moments", value: |plan| changed(&plan.state.moments) },
    Field {
        key: "state.master_weights",
        value: |plan| {
            changed(&plan.state.master_weights).filter(|_| plan.job.precision.needs_master_weights())
        },
    },
    Field { key: "offload.optimizer", value: |plan| json(&plan.offload.optimizer) },
    Field {
        key: "offload.optimizer_fraction",
        value: |plan| given(plan.offload.optimizer_fraction != 1.0, plan.offload.optimizer_fraction),
    },
    Field {
        key: "offload.delayed_update",
        value: |plan| given(plan.offload.delayed_update, plan.offload.delayed_update),
    },
    Field { key: "offload.gradients", value: |plan| json(&plan.offload.gradients) },
    Field { key: "offload.parameters", value: |plan| json(&plan.offload.parameters) },
    Field { key: "offload.activations", value: |plan| json(&plan.offload.activations) },
    Field { key: "offload.activation_blocks", value: |plan| json(&plan.offload.activation_blocks) },
    Field { key: "stack.attention", value: |plan| json(&plan.stack.attention) },
    Field { key: "stack.fused_elementwise", value: |plan| json(&plan.stack.fused_elementwise) },
    Field { key: "stack.norms", value: |plan| json(&plan.stack.norms) },
    Field { key: "stack.cross_entropy", value: |plan| json(&plan.stack.cross_entropy) },
    Field { key: "stack.optimizer", value: |plan| json(&plan.stack.optimizer) },
    Field {
        key: "stack.fused_gradient_accumulation",
        value: |plan| json(&plan.stack.fused_gradient_accumulation),
    },
    Field { key: "stack.overlap_tensor_backward", value: |plan| json(&plan.stack.overlap_tensor_backward) },
    Field { key: "stack.overlap_tensor_pieces", value: |plan| json(&plan.stack.overlap_tensor_pieces) },
    Field { key: "stack.overlap_pipeline", value: |plan| json(&overlap_pipeline(plan)) },
    Field { key: "stack.scatter_gather_pipeline", value: |plan| json(&plan.stack.scatter_gather_pipeline) },
    Field {
        key: "stack.overlap_gradient_reduction",
        value: |plan| json(&plan.stack.overlap_gradient_reduction),
    },
    Field { key: "stack.overlap_weight_gather", value: |plan| json(&plan.stack.overlap_weight_gather) },
    Field { key: "stack.bucket_parameters", value: |plan| text_of(plan.bucket_parameters()) },
    Field { key: "stack.vocabulary_multiple", value: |plan| text_of(plan.stack.vocabulary_multiple.value) },
    Field {
        key: "stack.base_blocks",
        value: |plan| {
            let blocks = plan.stack.base_blocks.as_ref()?;
            Some(format!("first {}, last {}", blocks.first.value, blocks.last.value))
        },
    },
    Field {
        key: "stack.dispatch_element",
        value: |plan| plan.stack.dispatch_element.as_ref().and_then(|size| json(&size.value)),
    },
    Field {
        key: "stack.expert_gates",
        value: |plan| has_experts(plan).then(|| json(&plan.stack.expert_gates)).flatten(),
    },
    Field {
        key: "stack.kept_expert_activation_element",
        value: |plan| plan.stack.kept_expert_activation_element.as_ref().and_then(|size| json(&size.value)),
    },
    Field {
        key: "stack.kept_attention_output_element",
        value: |plan| plan.stack.kept_attention_output_element.as_ref().and_then(|size| json(&size.value)),
    },
    Field { key: "model.hidden", value: |plan| text_of(plan.model.hidden) },
    Field { key: "model.vocab", value: |plan| text_of(plan.model.vocab) },
    Field { key: "model.dropout", value: |plan| text_of(plan.model.dropout) },
    Field { key: "model.embedding", value: |plan| json(&plan.model.embedding) },
    Field { key: "model.final_norm", value: |plan| json(&plan.model.final_norm) },
    Field { key: "model.head", value: |plan| json(&plan.model.head) },
    Field { key: "model.blocks", value: model_blocks },
];

/// The precision of stored gradients.
pub(crate) fn gradients(plan: &Plan) -> Precision {
    let of_stack = plan.stack.gradient_precision(plan.job.precision);
    plan.state.gradients.unwrap_or(of_stack).base()
}

/// Whether some block has experts.
pub(crate) fn has_experts(plan: &Plan) -> bool {
    plan.model.blocks.iter().any(|run| matches!(run.block.mlp, trainwright_spec::model::Mlp::Experts(_)))
}

/// With one stage on each rank `Interleaved` has no other work to overlap with.
pub(crate) fn overlap_pipeline(plan: &Plan) -> PipelineOverlap {
    match plan.stack.overlap_pipeline {
        PipelineOverlap::Interleaved if plan.virtual_stages == 1 => PipelineOverlap::Never,
        other => other,
    }
}

fn cluster(plan: &Plan) -> String {
    let kind = |(nodes, node): (usize, &Node)| format!("{nodes} x {} {}", node.gpus.value, node.gpu.name);
    plan.cluster.kinds().map(kind).collect::<Vec<_>>().join(" + ")
}

fn schedule(plan: &Plan) -> String {
    match &plan.schedule {
        ScheduleChoice::Named(name) => name.clone(),
        ScheduleChoice::Actions(custom) => text::write(custom.action_lists()),
    }
}

/// How many blocks each stage has.
fn blocks(plan: &Plan) -> String {
    let counts: Vec<String> = plan.stages.iter().map(|stage| stage.0.len().to_string()).collect();
    counts.join(" ")
}

/// The recomputation of each block, regardless of its stage.
fn recompute(plan: &Plan) -> Option<String> {
    let blocks = StageBlocks(plan.stages.iter().flat_map(|stage| stage.0.clone()).collect());
    given(blocks.0.iter().any(|choice| *choice != Recompute::None), blocks)
}

/// The model's blocks. A window that holds the whole sequence changes nothing.
fn model_blocks(plan: &Plan) -> Option<String> {
    let mut blocks = plan.model.blocks.clone();
    for mask in blocks.iter_mut().map(|run| &mut run.block.attention.mask) {
        if matches!(mask, Mask::Window(window) if *window >= plan.job.sequence) {
            *mask = Mask::Causal;
        }
    }
    json(&blocks)
}

fn text_of(value: impl ToString) -> Option<String> {
    Some(value.to_string())
}

fn more_than_one(ranks: usize) -> Option<String> {
    given(ranks > 1, ranks)
}

fn given(holds: bool, value: impl ToString) -> Option<String> {
    holds.then(|| value.to_string())
}

/// The value as in files; `None` if it is not given.
fn json(value: &impl Serialize) -> Option<String> {
    let text = serde_json::to_string(value).expect("the fields of a plan have only text keys");
    (text != "null").then(|| text.trim_matches('"').to_string())
}

fn changed<T: Serialize + Default + PartialEq>(value: &T) -> Option<String> {
    json(value).filter(|_| *value != T::default())
}
