//! What one GPU of an instance holds, and how many tokens its cache has room for.

use super::formats::Formats;
use crate::libraries::Unknown;
use trainwright_spec::cluster::Cluster;
use trainwright_spec::model::weights::Weight;
use trainwright_spec::model::{Attention, Model};
use trainwright_spec::serving::ServingPlan;
use trainwright_spec::units::Bytes;

/// What the driver and the libraries take of a GPU before anything is loaded.
const CONTEXT: Bytes = Bytes::new(0.6e9);

/// The memory of the fullest GPU.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MemoryUse {
    /// Weights.
    pub weights: Bytes,
    /// Activations of the largest step, logits, driver and libraries.
    pub working: Bytes,
    /// A token of a sequence in the cache.
    pub token: Bytes,
    /// What a sequence holds whatever its length: states of linear attention and Mamba-2, and their convolutions' last tokens.
    pub sequence: Bytes,
    /// What the cache may fill.
    pub cache: Bytes,
}

impl MemoryUse {
    /// Tokens that the cache has room for, a million million at most: a model of states alone keeps nothing of a token.
    pub fn capacity(&self) -> usize {
        ((self.cache.get() / self.token.get().max(1e-9)) as usize).min(1_000_000_000_000)
    }
}

/// The memory of a plan's fullest GPU, for steps of at most `tokens` tokens and `sequences` sequences of an attention-data
/// group. The cache is empty if
/// weights and activations fill the engine's share.
///
/// # Errors
/// `Unknown::Format`.
pub fn memory(
    model: &Model,
    plan: &ServingPlan,
    cluster: &Cluster,
    tokens: usize,
    sequences: usize,
) -> Result<MemoryUse, Unknown> {
    let formats = Formats::of(plan)?;
    let [dense, experts, cache, base] =
        [formats.weights, formats.experts, formats.cache, formats.base].map(|format| format.weight);
    let on_rank = |weight: &Weight| match weight.routed {
        true => weight.routed_on_rank(plan.expert, plan.expert_tensor()) as f64 * experts,
        false => weight.elements_on_rank(plan.tensor) as f64 * if weight.is_vector() { base } else { dense },
    };
    let (mut blocks, mut token, mut sequence) = (Bytes::ZERO, Bytes::ZERO, Bytes::ZERO);
    for run in &model.blocks {
        let weights: Bytes = run.block.weights(model.hidden).iter().map(on_rank).sum();
        blocks += run.count as f64 * weights;
        let count = run.count as f64;
        token += count * cached(&run.block.attention, plan.tensor, cache);
        sequence += count * state(&run.block.attention, plan.tensor);
    }
    let whole = |weights: Vec<Weight>| -> Bytes {
        weights.iter().map(|weight| weight.elements_on_rank(plan.tensor) as f64 * base).sum()
    };
    let embedding = whole(model.embedding_weights(model.vocab));
    let head = whole(model.final_weights()) + whole(model.head_weights(model.vocab));
    let stages = plan.pipeline as f64;
    let ends = if plan.pipeline == 1 { embedding + head } else { embedding.max(head) };
    let weights = blocks / stages + ends;
    let logits = Bytes::new((sequences * model.vocab) as f64 * 4.0);
    let activations = Bytes::new(tokens as f64 * widest(model, plan.tensor) as f64 * 2.0);
    let working = CONTEXT + logits + activations;
    let share = cluster.node.gpu.memory.value * plan.engine.batching.memory_share.value;
    let sequence = sequence / stages;
    // Tokens and states share the rest; what is left for tokens is after the states of all sequences of a step.
    let left = share.get() - (weights + working + sequences as f64 * sequence).get();
    Ok(MemoryUse { weights, working, token: token / stages, sequence, cache: Bytes::new(left.max(0.0)) })
}

/// What a token leaves in the cache of one block, on one rank, with `element` bytes for each element. Latent keys and values
/// are on every rank, and so are an indexer's keys, in 8 bits with a scale of 4 bytes for 128 (arXiv 2512.02556, section 2.1).
/// A state does not grow.
fn cached(attention: &Attention, tensor: usize, element: Bytes) -> Bytes {
    let indexed =
        attention.indexer.as_ref().map_or(0.0, |indexer| indexer.head_dim as f64 * (1.0 + 4.0 / 128.0));
    let elements = match (&attention.recurrence, &attention.latent) {
        (Some(_), _) => 0,
        (None, Some(latent)) => latent.kv_rank + latent.rotary_head_dim,
        (None, None) => attention.kv_heads.div_ceil(tensor) * (attention.head_dim + attention.value_head_dim),
    };
    elements as f64 * element + Bytes::new(indexed)
}

/// What a sequence holds in one block, on one rank: a state of 4 bytes an element for each head, and the tokens before the
/// last that the convolution still sees, in 16 bits.
fn state(attention: &Attention, tensor: usize) -> Bytes {
    let Some(recurrence) = &attention.recurrence else { return Bytes::ZERO };
    let heads = attention.heads.div_ceil(tensor);
    let keys = attention.kv_heads.div_ceil(tensor) * attention.head_dim;
    let states = 4.0 * (heads * attention.head_dim * attention.value_head_dim) as f64;
    let convolved = (2 * keys + heads * attention.value_head_dim) * recurrence.convolution.saturating_sub(1);
    Bytes::new(states + 2.0 * convolved as f64)
}

/// Elements of the activations of a token that live at once: the residual stream twice, and the widest layer's input and output.
fn widest(model: &Model, tensor: usize) -> usize {
    use trainwright_spec::model::Mlp;
    let inner = model.blocks.iter().map(|run| match &run.block.mlp {
        Mlp::Dense(mlp) => mlp.width * if mlp.gated { 3 } else { 2 } / tensor,
        Mlp::Experts(experts) => experts.per_token * (experts.expert.width * 3 / tensor + model.hidden),
    });
    2 * model.hidden + inner.max().unwrap_or(0)
}
