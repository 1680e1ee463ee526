//! Attention: projections, and DeepSeek's latent form of them, around the core.

use super::attention_core::core;
use super::elementwise::norm;
use super::part::{Input, Part, Shape, Step, column, replicated, row};
use crate::model::{Attention, Latent};

/// What one rank holds of an attention layer.
struct Own {
    heads: usize,
    query: usize,
    key: usize,
    value: usize,
}

impl Own {
    /// Heads are dealt to the tensor ranks; with fewer key-value heads than ranks, several ranks hold the same one.
    fn of(shape: &Shape, attention: &Attention) -> Self {
        let heads = shape.share(attention.heads);
        let kv_heads = shape.share(attention.kv_heads);
        let key = kv_heads * attention.head_dim;
        Own { heads, query: heads * attention.head_dim, key, value: kv_heads * attention.value_head_dim }
    }
}

/// All parts of an attention layer, from its norm's output to its output. `leaves` as for `row`.
pub(crate) fn attention(shape: &Shape, attention: &Attention, input: Input, leaves: bool) -> Vec<Part> {
    let own = Own::of(shape, attention);
    let mut parts = match &attention.latent {
        None => vec![column(
            shape,
            "qkv",
            input,
            [shape.hidden, own.query + own.key + own.value],
            attention.qkv_bias,
        )],
        Some(latent) => latent_projections(shape, attention, latent, &own),
    };
    let rotated = shape.activations(shape.tokens() * (own.query + own.key));
    if attention.qk_norm {
        parts.push(Part {
            forward: vec![Step::reduction("qk norm", rotated, rotated)],
            backward: vec![Step::reduction("qk norm", 2.0 * rotated, rotated)],
            kept: rotated,
            core: None,
        });
    }
    if attention.rotary {
        let rotate = vec![Step::streaming("rotary", rotated, rotated)];
        parts.push(Part { forward: rotate.clone(), backward: rotate, ..Part::default() });
    }
    parts.push(core(shape, attention));
    parts.push(row(shape, "projection", leaves, own.heads * attention.value_head_dim, shape.hidden));
    parts
}

/// Queries through a low rank if there is one, keys and values through another; the down-projections are on every
/// rank (DeepSeek-V2, arXiv 2405.04434, section 2.1).
fn latent_projections(shape: &Shape, attention: &Attention, latent: &Latent, own: &Own) -> Vec<Part> {
    let tokens = shape.own_tokens();
    let mut parts = Vec::new();
    match latent.query_rank {
        Some(rank) => {
            parts.push(replicated(shape, "q down", shape.hidden, rank));
            parts.push(norm(shape, tokens, rank));
            parts.push(column(shape, "q up", Input::Region, [rank, own.query], false));
        }
        None => parts.push(column(shape, "q", Input::Region, [shape.hidden, own.query], false)),
    }
    let up = own.heads * (attention.head_dim - latent.rotary_head_dim + attention.value_head_dim);
    parts.push(replicated(shape, "kv down", shape.hidden, latent.kv_rank + latent.rotary_head_dim));
    parts.push(norm(shape, tokens, latent.kv_rank));
    parts.push(column(shape, "kv up", Input::Region, [latent.kv_rank, up], false));
    parts
}
