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
    /// What the cache may fill.
    pub cache: Bytes,
}

impl MemoryUse {
    /// Tokens that the cache has room for.
    pub fn capacity(&self) -> usize {
        (self.cache.get() / self.token.get().max(1e-9)) as usize
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
    let (mut blocks, mut token) = (Bytes::ZERO, Bytes::ZERO);
    for run in &model.blocks {
        let weights: Bytes = run.block.weights(model.hidden).iter().map(on_rank).sum();
        blocks += run.count as f64 * weights;
        token += run.count as f64 * cached(&run.block.attention, plan.tensor) as f64 * cache;
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
    let left = share.get() - (weights + working).get();
    Ok(MemoryUse { weights, working, token: token / stages, cache: Bytes::new(left.max(0.0)) })
}

/// Elements that a token leaves in the cache of one block, on one rank. Latent keys and values are on every rank.
fn cached(attention: &Attention, tensor: usize) -> usize {
    match &attention.latent {
        Some(latent) => latent.kv_rank + latent.rotary_head_dim,
        None => attention.kv_heads.div_ceil(tensor) * (attention.head_dim + attention.value_head_dim),
    }
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
