//! The weight tensors of one block: norms, attention, feed-forward layer or experts.

use super::{Split, Weight, norm_weights, sum};
use crate::model::{Attention, Block, Experts, FeedForward, Indexer, Latent, Mlp, Recurrence, Rule};

impl Block {
    /// The weights of one block of a model whose residual stream is `hidden` wide.
    pub fn weights(&self, hidden: usize) -> Vec<Weight> {
        let mut weights = norm_weights(self.norm, hidden, self.norms);
        attention_weights(&self.attention, hidden, &SELF_ATTENTION, &mut weights);
        if let Some(cross) = &self.cross_attention {
            attention_weights(cross, hidden, &CROSS_ATTENTION, &mut weights);
        }
        match &self.mlp {
            Mlp::Dense(mlp) => feed_forward_weights(mlp, hidden, &DENSE, &mut weights),
            Mlp::Experts(experts) => expert_weights(experts, hidden, &mut weights),
        }
        weights
    }

    /// Parameters of one block that take part in the forward pass of one token: all but the experts it skips.
    pub(super) fn active_parameters(&self, hidden: usize) -> u64 {
        let visited = match &self.mlp {
            Mlp::Dense(_) => 1,
            Mlp::Experts(experts) => experts.per_token as u64,
        };
        let active = |weight: &Weight| Weight { copies: visited, ..*weight }.total();
        sum(self
            .weights(hidden)
            .iter()
            .map(|weight| if weight.routed { active(weight) } else { weight.total() }))
    }
}

/// Names of the weights of an attention.
struct AttentionNames {
    query: &'static str,
    query_bias: &'static str,
    key_value: &'static str,
    key_value_bias: &'static str,
    qk_norm: &'static str,
    output: &'static str,
    output_bias: &'static str,
}

const SELF_ATTENTION: AttentionNames = AttentionNames {
    query: "query",
    query_bias: "query bias",
    key_value: "key and value",
    key_value_bias: "key and value bias",
    qk_norm: "query and key norm",
    output: "attention output",
    output_bias: "attention output bias",
};

const CROSS_ATTENTION: AttentionNames = AttentionNames {
    query: "cross query",
    query_bias: "cross query bias",
    key_value: "cross key and value",
    key_value_bias: "cross key and value bias",
    qk_norm: "cross query and key norm",
    output: "cross attention output",
    output_bias: "cross attention output bias",
};

fn attention_weights(a: &Attention, hidden: usize, names: &AttentionNames, weights: &mut Vec<Weight>) {
    if let Some(recurrence) = &a.recurrence {
        return recurrent_weights(a, recurrence, hidden, weights);
    }
    match &a.latent {
        Some(latent) => latent_weights(a, latent, hidden, weights),
        None => {
            let gated = if a.output_gate { 2 } else { 1 };
            let queries = a.heads.saturating_mul(a.head_dim).saturating_mul(gated);
            let keys_values = a.kv_heads.saturating_mul(a.head_dim.saturating_add(a.value_head_dim));
            let by_head = Split::KeyValue { heads: a.kv_heads };
            weights.push(Weight::new(names.query, &[hidden, queries], Split::Tensor));
            weights.push(Weight::new(names.key_value, &[hidden, keys_values], by_head));
            if a.qkv_bias {
                weights.push(Weight::new(names.query_bias, &[queries], Split::Tensor));
                weights.push(Weight::new(names.key_value_bias, &[keys_values], by_head));
            }
        }
    }
    if let Some(indexer) = &a.indexer {
        let from = a.latent.as_ref().and_then(|latent| latent.query_rank).unwrap_or(hidden);
        indexer_weights(indexer, from, hidden, weights);
    }
    if a.qk_norm {
        let gain = Weight::new(names.qk_norm, &[a.head_dim], Split::Replicated);
        weights.push(Weight { copies: 2, ..gain });
    }
    let values = a.heads.saturating_mul(a.value_head_dim);
    weights.push(Weight::new(names.output, &[values, hidden], Split::Tensor));
    if a.output_bias {
        weights.push(Weight::new(names.output_bias, &[hidden], Split::Replicated));
    }
}

/// A mixer with a state: projections of queries, keys, values, an output gate and the gates of the state; a convolution over
/// time; a decay and an offset for each head, Mamba-2 also a factor of the input; a norm of the output, of each head with a
/// gain for all heads (gated delta rule) or of all columns (Mamba-2); the output projection. The norm's gain over all columns
/// is divided as they are.
fn recurrent_weights(a: &Attention, recurrence: &Recurrence, hidden: usize, weights: &mut Vec<Weight>) {
    use Split::{Replicated, Tensor};
    let by_head = Split::KeyValue { heads: a.kv_heads };
    let (keys, values) = (a.key_columns(), a.value_columns());
    weights.push(Weight::new("query and key", &[2, hidden, keys], by_head));
    weights.push(Weight::new("value and gate", &[2, hidden, values], Tensor));
    weights.push(Weight::new("state gates", &[recurrence.rule.gates(), hidden, a.heads], Tensor));
    weights.push(Weight::new("key convolution", &[2, keys, recurrence.convolution], by_head));
    weights.push(Weight::new("value convolution", &[values, recurrence.convolution], Tensor));
    if recurrence.convolution_bias {
        weights.push(Weight::new("key convolution bias", &[2, keys], by_head));
        weights.push(Weight::new("value convolution bias", &[values], Tensor));
    }
    weights.push(Weight::new("state decay", &[a.heads], Tensor));
    weights.push(Weight::new("state step bias", &[a.heads], Tensor));
    match recurrence.rule {
        Rule::GatedDelta => weights.push(Weight::new("state norm gain", &[a.value_head_dim], Replicated)),
        Rule::Mamba2 => {
            weights.push(Weight::new("state input gain", &[a.heads], Tensor));
            weights.push(Weight::new("state norm gain", &[values], Tensor));
        }
    }
    if a.qkv_bias {
        weights.push(Weight::new("query and key bias", &[2, keys], by_head));
        weights.push(Weight::new("value and gate bias", &[2, values], Tensor));
        weights.push(Weight::new("state gates bias", &[recurrence.rule.gates(), a.heads], Tensor));
    }
    weights.push(Weight::new("attention output", &[values, hidden], Tensor));
    if a.output_bias {
        weights.push(Weight::new("attention output bias", &[hidden], Replicated));
    }
}

/// The indexer of sparse attention, on every tensor rank: queries from the latent query, a key with a norm with gain and bias,
/// a weight for each head.
fn indexer_weights(indexer: &Indexer, from: usize, hidden: usize, weights: &mut Vec<Weight>) {
    use Split::Replicated;
    let Indexer { heads, head_dim, .. } = *indexer;
    weights.push(Weight::new("indexer query", &[from, heads.saturating_mul(head_dim)], Replicated));
    weights.push(Weight::new("indexer key", &[hidden, head_dim], Replicated));
    weights.push(Weight::new("indexer key norm", &[2, head_dim], Replicated));
    weights.push(Weight::new("indexer head weight", &[hidden, heads], Replicated));
}

/// Multi-head latent attention up to its output projection (arXiv 2405.04434, section 2.1 and appendix C): the
/// projections down to the ranks are on every tensor rank, those up to the heads are divided.
fn latent_weights(a: &Attention, latent: &Latent, hidden: usize, weights: &mut Vec<Weight>) {
    use Split::{Replicated, Tensor};
    let queries = a.heads.saturating_mul(a.head_dim);
    match latent.query_rank {
        Some(rank) => {
            weights.push(Weight::new("query down", &[hidden, rank], Replicated));
            weights.push(Weight::new("query rank norm", &[rank], Replicated));
            weights.push(Weight::new("query up", &[rank, queries], Tensor));
            if a.qkv_bias {
                weights.push(Weight::new("query down bias", &[rank], Replicated));
            }
        }
        None => weights.push(Weight::new("query", &[hidden, queries], Tensor)),
    }
    let compressed = latent.kv_rank.saturating_add(latent.rotary_head_dim);
    let expanded = a.head_dim.saturating_sub(latent.rotary_head_dim).saturating_add(a.value_head_dim);
    weights.push(Weight::new("key and value down", &[hidden, compressed], Replicated));
    weights.push(Weight::new("key and value rank norm", &[latent.kv_rank], Replicated));
    weights.push(Weight::new(
        "key and value up",
        &[latent.kv_rank, a.heads.saturating_mul(expanded)],
        Tensor,
    ));
    if a.qkv_bias {
        weights.push(Weight::new("key and value down bias", &[compressed], Replicated));
    }
}

/// Names of the weights of a feed-forward layer.
struct FeedForwardNames {
    first: &'static str,
    first_bias: &'static str,
    second: &'static str,
    second_bias: &'static str,
}

const DENSE: FeedForwardNames =
    FeedForwardNames { first: "fc1", first_bias: "fc1 bias", second: "fc2", second_bias: "fc2 bias" };

const EXPERT: FeedForwardNames = FeedForwardNames {
    first: "expert fc1",
    first_bias: "expert fc1 bias",
    second: "expert fc2",
    second_bias: "expert fc2 bias",
};

const SHARED_EXPERT: FeedForwardNames = FeedForwardNames {
    first: "shared expert fc1",
    first_bias: "shared expert fc1 bias",
    second: "shared expert fc2",
    second_bias: "shared expert fc2 bias",
};

fn feed_forward_weights(
    mlp: &FeedForward,
    hidden: usize,
    names: &FeedForwardNames,
    weights: &mut Vec<Weight>,
) {
    let inputs = if mlp.gated { 2 } else { 1 };
    weights.push(Weight::new(names.first, &[inputs, hidden, mlp.width], Split::Tensor));
    if mlp.bias {
        weights.push(Weight::new(names.first_bias, &[inputs, mlp.width], Split::Tensor));
    }
    weights.push(Weight::new(names.second, &[mlp.width, hidden], Split::Tensor));
    if mlp.bias {
        weights.push(Weight::new(names.second_bias, &[hidden], Split::Replicated));
    }
}

fn expert_weights(experts: &Experts, hidden: usize, weights: &mut Vec<Weight>) {
    weights.push(Weight::new("router", &[hidden, experts.count], Split::Replicated));
    if experts.router_bias {
        weights.push(Weight::new("router bias", &[experts.count], Split::Replicated));
    }
    let mut routed = Vec::new();
    feed_forward_weights(&experts.expert, hidden, &EXPERT, &mut routed);
    weights.extend(routed.iter().map(|w| Weight { copies: experts.count as u64, routed: true, ..*w }));
    if let Some(shared) = &experts.shared {
        feed_forward_weights(shared, hidden, &SHARED_EXPERT, weights);
    }
    if experts.shared_gate {
        weights.push(Weight::new("shared expert gate", &[hidden], Split::Replicated));
    }
}
