//! The table of dimensions, in the order in which drafts are extended: a new one is a row here.
//!
//! A dimension whose rules need more than that is another file, with a line here.

use super::dimension::{Dimension, Given, Named, Number, divisors};
use super::hybrid_shard::HybridShard;
use super::offload_kinds;
use super::rank_order::OrderOfRanks;
use super::tensor_grid::TensorGrid;
use super::virtual_stages::VirtualStages;
use crate::candidate::Candidate;
use crate::question::Question;
use trainwright_spec::context::CONTEXT_SCHEMES;
use trainwright_spec::data::{DATA_SCHEMES, Exchange, data_scheme};
use trainwright_spec::experts::{AllGather, ByNode, DISPATCHERS, Dispatcher, dispatcher};
use trainwright_spec::model::{Mlp, Model};
use trainwright_spec::plan::pipeline_allowed;
use trainwright_spec::precision::Precision;
use trainwright_spec::schedule::{SCHEDULES, schedule};

/// How a rank runs its layers.
pub(super) static LAYOUT: &[&dyn Dimension] = &[
    // That of the job, unless pins name several.
    &Named {
        key: "precision",
        summary: "number format of the matrix products; the job's if none is pinned",
        known: || Precision::ALL.map(Precision::name).to_vec(),
        possible: |_, _, _| true,
        tried: |given, _, name| given.question.job.precision.name() == name,
        set: |_, draft, name| {
            let named = Precision::ALL.into_iter().find(|precision| precision.name() == name);
            draft.precision = named.expect("the names are those of all precisions");
        },
        get: |candidate| candidate.precision.name(),
    },
    // A tensor group lies in one node or fills whole ones: where some groups straddle a node's end, all wait for them.
    &Number {
        key: "tensor",
        summary: "GPUs that share each layer",
        possible: |given, _| divisors(given.question.cluster.gpus()),
        tried: |given, _, tensor| {
            let node = given.question.cluster.node.gpus.value;
            let aligned = node.is_multiple_of(tensor) || tensor.is_multiple_of(node);
            aligned && tensor <= given.question.job.sequence
        },
        set: |draft, tensor| draft.mesh.tensor = tensor,
        get: |candidate| candidate.mesh.tensor,
    },
    &TensorGrid,
    // With and without, where there is a tensor axis without a grid.
    &Named {
        key: "sequence-parallel",
        summary: "whether norms and dropouts are split along the sequence",
        known: || vec!["true", "false"],
        possible: |given, draft, on| {
            let splits = draft.mesh.tensor > 1 && draft.mesh.tensor_rows == 1;
            on == "false" || splits && given.question.stack.sequence_parallel
        },
        tried: |_, _, _| true,
        set: |_, draft, on| draft.sequence_parallel = on == "true",
        get: |candidate| if candidate.sequence_parallel { "true" } else { "false" },
    },
    // As many as leave each rank enough tokens, beyond the core of the space; in the one that suits the model if its sequences
    // are long.
    &Number {
        key: "context",
        summary: "GPUs that share each sequence",
        possible: |given, draft| divisors(given.question.cluster.gpus() / draft.mesh.tensor),
        tried: |given, _, context| {
            let sequence = given.question.job.sequence;
            let enough = sequence.is_multiple_of(context) && sequence / context >= FEWEST_TOKENS;
            let wanted = !given.is_core() && (!given.is_auto() || is_long(given.question));
            context == 1 || wanted && enough
        },
        set: |draft, context| draft.mesh.context = context,
        get: |candidate| candidate.mesh.context,
    },
    // Every division of the context axis, but that all exchange heads is another scheme; none in the space that suits the model.
    &Number {
        key: "context-inner",
        summary: "neighbouring ones of them that exchange heads, in hybrids",
        possible: |_, draft| divisors(draft.mesh.context),
        tried: |given, draft, inner| match given.is_auto() {
            true => inner == 1,
            false => inner < draft.mesh.context || draft.mesh.context == 1,
        },
        set: |draft, inner| draft.mesh.context_inner = inner,
        get: |candidate| candidate.mesh.context_inner,
    },
    // Every scheme, where there is a context axis; those of two levels where it has two.
    &Named {
        key: "context-scheme",
        summary: "how they share attention",
        known: || CONTEXT_SCHEMES.iter().map(|scheme| scheme.name()).collect(),
        possible: |_, _, _| true,
        tried: |_, draft, name| match draft.mesh.context {
            1 => name == draft.context_scheme,
            _ => draft.mesh.context_inner > 1 || !HYBRIDS.contains(&name),
        },
        set: |_, draft, name| draft.context_scheme = name,
        get: |candidate| candidate.context_scheme,
    },
    // As many as the model has blocks for; one where the software has no pipelines.
    &Number {
        key: "pipeline",
        summary: "pipeline ranks, which hold successive layers",
        possible: |given, draft| {
            let Question { cluster, model, .. } = given.question;
            let allowed = |pipeline: &usize| pipeline_allowed(model, *pipeline).is_ok();
            divisors(cluster.gpus() / draft.mesh.stage_ranks()).into_iter().filter(allowed).collect()
        },
        tried: |given, _, pipeline| pipeline == 1 || given.question.stack.has_pipelines(),
        set: |draft, pipeline| draft.mesh.pipeline = pipeline,
        get: |candidate| candidate.mesh.pipeline,
    },
    // The GPUs that the other axes leave, if their number divides the batch.
    &Number {
        key: "data",
        summary: "copies of the model, each with its part of the batch",
        possible: |given, draft| {
            let data = given.question.cluster.gpus() / draft.mesh.ranks();
            if given.question.job.global_batch.is_multiple_of(data) { vec![data] } else { Vec::new() }
        },
        tried: |_, _, _| true,
        set: |draft, data| draft.mesh.data = data,
        get: |candidate| candidate.mesh.data,
    },
    &OrderOfRanks,
    // Every division of the experts over the ranks of a stage.
    &Number {
        key: "expert",
        summary: "GPUs that share the experts of a layer",
        possible: |given, draft| {
            let ranks = draft.mesh.stage_ranks();
            let experts = divisors(given.question.model.fewest_experts().unwrap_or(1));
            experts.into_iter().filter(|expert| ranks.is_multiple_of(*expert)).collect()
        },
        tried: |given, _, expert| expert == 1 || !given.is_core(),
        set: |draft, expert| draft.mesh.expert = expert,
        get: |candidate| candidate.mesh.expert,
    },
    // The ranks of the tensor axis, or each expert on one rank; only this, where experts are shared out and it is possible, in
    // the space that suits the model.
    &Number {
        key: "expert-tensor",
        summary: "GPUs that share each expert",
        possible: |given, draft| {
            let (mesh, ranks) = (draft.mesh, draft.mesh.stage_ranks());
            let fits = |degree: &usize| ranks.is_multiple_of(degree * mesh.expert);
            match given.question.model.fewest_experts() {
                Some(_) => divisors(ranks).into_iter().filter(fits).collect(),
                None => vec![mesh.tensor],
            }
        },
        tried: |given, draft, degree| {
            let on_one = draft.sequence_parallel && draft.mesh.expert > 1 && given.is_auto();
            degree == draft.mesh.tensor && !on_one || degree == 1 && draft.sequence_parallel
        },
        set: |draft, degree| draft.mesh.expert_tensor = (degree != draft.mesh.tensor).then_some(degree),
        get: |candidate| candidate.mesh.expert_tensor(),
    },
    // Every dispatcher where experts lie on several ranks. In the space that suits the model `all-gather` only where most
    // ranks get each token, and `by-node` only without kernels that forward. Those that need kernels if the stack has
    // them, and those that tell nodes apart where experts are on several nodes.
    &Named {
        key: "dispatcher",
        summary: "how tokens come to their experts",
        known: || DISPATCHERS.iter().map(|dispatcher| dispatcher.name()).collect(),
        possible: |given, draft, name| {
            let (expert, in_node) = (draft.mesh.expert, expert_ranks_in_node(given, draft));
            let over_nodes = expert > in_node && expert.is_multiple_of(in_node);
            dispatcher(name).is_ok_and(|each| {
                (has_kernels(given) || !each.needs_kernels()) && (over_nodes || !each.tells_nodes())
            })
        },
        tried: |given, draft, name| {
            let visited = fewest_visited(&given.question.model);
            let suits = !given.is_auto()
                || (name != AllGather.name() || draft.mesh.expert <= visited)
                    && (name != ByNode.name() || !has_kernels(given));
            draft.mesh.expert > 1 && suits || name == draft.dispatcher
        },
        set: |given, draft, name| {
            let tells_nodes = dispatcher(name).is_ok_and(|each| each.tells_nodes());
            draft.mesh.expert_inner = if tells_nodes { expert_ranks_in_node(given, draft) } else { 1 };
            draft.dispatcher = name;
        },
        get: |candidate| candidate.dispatcher,
    },
    // Every division of a data rank's sequences.
    &Number {
        key: "micro-batch",
        summary: "sequences in a microbatch",
        possible: |given, draft| divisors(given.question.job.global_batch / draft.mesh.data),
        tried: |given, _, micro_batch| {
            micro_batch == 1 || micro_batch.saturating_mul(given.question.job.sequence) <= MOST_TOKENS
        },
        set: |draft, micro_batch| draft.micro_batch = micro_batch,
        get: |candidate| candidate.micro_batch,
    },
];

/// In which order the layers run.
pub(super) static PIPELINE: &[&dyn Dimension] = &[
    // The usual schedules, or every one after whose steps all weights are up to date, that the software has; others train another
    // way and must be pinned. Without a pipeline all schedules are the same but for the memory they take: 1F1B takes the least.
    &Named {
        key: "schedule",
        summary: "pipeline schedule",
        known: || SCHEDULES.iter().map(|schedule| schedule.name()).collect(),
        possible: |_, _, _| true,
        tried: |given, draft, name| match draft.mesh.pipeline {
            1 => name == "1f1b",
            _ => schedule(name).is_ok_and(|schedule| {
                let stack = &given.question.stack;
                let of_stack = stack.schedules.is_some();
                let suits =
                    if given.is_whole() || of_stack { schedule.flushes() } else { schedule.searched() };
                suits && stack.has_schedule(name)
            }),
        },
        set: |_, draft, name| draft.schedule = name,
        get: |candidate| candidate.schedule,
    },
    &VirtualStages,
];

/// Where the training state is.
pub(super) static STATE: &[&dyn Dimension] = &[
    // Every scheme that the software has, but for servers and fusion buffers, which ranks with the same network never
    // need; in the core of the space nothing or the optimizer.
    &Named {
        key: "data-sharding",
        summary: "what data-parallel ranks split",
        known: || DATA_SCHEMES.iter().map(|scheme| scheme.name()).collect(),
        possible: |given, draft, name| {
            given.question.stack.has_data_scheme(name) && (draft.mesh.weight_copies() > 1 || name == "none")
        },
        tried: |given, _, name| {
            let in_core = ["none", "zero1"].contains(&name);
            let usual = data_scheme(name)
                .is_ok_and(|scheme| scheme.fusion().is_none() && scheme.exchange() == Exchange::Collectives);
            usual && (in_core || !given.is_core())
        },
        set: |_, draft, name| draft.data_sharding = name,
        get: |candidate| candidate.data_sharding,
    },
    &HybridShard,
    // Nothing, unless nothing else fits in the space that suits the model; in the whole space the optimizer, its gradients too, or activations as well, where nodes have figures of
    // their processors. More of it, and drives, must be pinned.
    &Named {
        key: offload_kinds::OFFLOAD,
        summary: "what lives beside the GPUs",
        known: offload_kinds::names,
        possible: |given, _, name| {
            let by_matrices = given.question.job.optimizer().of_matrices().is_some();
            !(by_matrices && offload_kinds::offload(name).optimizer.is_some())
        },
        tried: |given, _, name| {
            let has_host = given.question.cluster.node.processors.is_some();
            name == "none" || has_host && given.is_whole() && offload_kinds::is_tried(name)
        },
        set: |_, draft, name| draft.offload = offload_kinds::offload(name),
        get: |candidate| offload_kinds::name(&candidate.offload),
    },
];

/// Every dimension.
pub(super) fn all() -> impl Iterator<Item = &'static dyn Dimension> {
    LAYOUT.iter().chain(PIPELINE).chain(STATE).copied()
}

/// `drafts` with every combination of what `dimensions` can be, as far as the pins allow.
pub(super) fn extended(
    question: &Question,
    dimensions: &[&dyn Dimension],
    drafts: Vec<Candidate>,
) -> Vec<Candidate> {
    dimensions.iter().fold(drafts, |drafts, dimension| {
        let pinned = question.pins.pinned(dimension.key());
        let given = Given { question, pinned: pinned.clone() };
        let free = pinned.is_none() && !question.pins.forbids_some(dimension.key());
        let allowed = |candidate: &Candidate| {
            free || question.pins.allows(dimension.key(), &dimension.value(candidate))
        };
        let options = |draft: &Candidate| dimension.options(&given, draft);
        drafts.iter().flat_map(options).filter(allowed).collect()
    })
}

/// The fewest tokens of a sequence that are worth a rank: fewer do not fill its kernels.
const FEWEST_TOKENS: usize = 2048;

/// The most tokens of a microbatch that are tried: more than fill any GPU's kernels.
const MOST_TOKENS: usize = 1 << 18;

/// Sequences that are long on any GPU.
const LONG: usize = 1 << 15;

/// Whether sequences are worth sharing: those of `LONG` tokens, those whose blocks' inputs alone take half of the memory of
/// GPUs if a node's GPUs share each layer, and those of a batch that does not have one for each node.
fn is_long(question: &Question) -> bool {
    let Question { model, cluster, job, .. } = question;
    let inputs = job.precision.storage_bytes() * (job.sequence * model.hidden * model.layers()) as f64;
    job.sequence >= LONG
        || inputs / cluster.node.gpus.value as f64 > cluster.mean_memory() * 0.5
        || job.global_batch <= cluster.nodes && cluster.nodes > 1
}

/// Context schemes of two levels. Without an inner axis each does what a scheme of one level does.
const HYBRIDS: [&str; 2] = ["hybrid", "hybrid-all-gather"];

/// The fewest experts that a token visits in a block that has some; 0 in a dense model.
fn fewest_visited(model: &Model) -> usize {
    let visited = model.blocks.iter().filter_map(|run| match &run.block.mlp {
        Mlp::Experts(experts) => Some(experts.per_token),
        Mlp::Dense(_) => None,
    });
    visited.min().unwrap_or(0)
}

/// Whether the software has kernels that send a token to each rank once.
fn has_kernels(given: &Given) -> bool {
    given.question.stack.dispatch_multiprocessors.is_some()
}

/// Ranks of a node with different experts.
fn expert_ranks_in_node(given: &Given, draft: &Candidate) -> usize {
    (given.question.cluster.node.gpus.value / draft.mesh.expert_tensor()).max(1)
}
