//! Attention: projections, and DeepSeek's latent form of them, around the core.

use crate::attention_core::core;
use crate::elementwise::norm;
use crate::indexer::indexer;
use crate::linear::{column, replicated, replicated_of_kept_input, row};
use crate::mixer::mixer;
use crate::part::{Part, Role};
use crate::shape::Shape;
use crate::step::Step;
use trainwright_spec::model::{Attention, Latent, Mask};
use trainwright_spec::plan::Piece;
use trainwright_spec::program::Module;
use trainwright_spec::tensor::Input;
use trainwright_spec::units::Bytes;

/// What one rank holds of an attention layer.
struct RankShare {
    heads: usize,
    kv_heads: usize,
    query: usize,
    key: usize,
    value: usize,
}

impl RankShare {
    /// Heads are dealt to the tensor ranks; with fewer key-value heads than ranks, several ranks hold the same one.
    fn of(shape: &Shape, attention: &Attention) -> Self {
        let heads = shape.share(attention.heads);
        let kv_heads = shape.share(attention.kv_heads);
        let key = kv_heads * attention.head_dim;
        let value = kv_heads * attention.value_head_dim;
        RankShare { heads, kv_heads, query: heads * attention.head_dim, key, value }
    }
}

/// All parts of an attention layer, from its norm's output to its output. `leaves` as for `row`.
pub(crate) fn attention(shape: &Shape, attention: &Attention, input: Input, leaves: bool) -> Vec<Part> {
    if let Some(recurrence) = &attention.recurrence {
        return mixer(shape, attention, recurrence, input, leaves);
    }
    let share = RankShare::of(shape, attention);
    let gate = if attention.output_gate { share.query } else { 0 };
    let mut parts = match &attention.latent {
        None => vec![
            column(
                shape,
                "qkv",
                input,
                [shape.hidden, share.query + gate + share.key + share.value],
                attention.qkv_bias,
            )
            .named(Module::Qkv),
        ],
        Some(latent) => latent_projections(shape, attention, latent, &share),
    };
    let normed = shape.activations(shape.tokens() * (share.query + share.key));
    if attention.qk_norm {
        parts.push(Part {
            forward: vec![Step::reduction("qk norm", normed, normed)],
            backward: vec![Step::reduction("qk norm", 2.0 * normed, normed)],
            kept: normed,
            ..Part::default()
        });
    }
    if attention.rotary {
        let rotated = shape.activations(shape.tokens() * rotated_width(attention, &share));
        let rotate = vec![Step::streaming("rotary", rotated, rotated)];
        let mut part = Part { forward: rotate.clone(), backward: rotate, ..Part::default() };
        if attention.latent.is_some() {
            part.join(Piece::UpProjection, Role::Runs, Bytes::ZERO);
        }
        parts.push(part.named(Module::Rotary));
    }
    if let Some(picks) = &attention.indexer {
        parts.extend(indexer(shape, attention, picks));
    }
    // Picked keys take as many products as a window of as many.
    let mask = attention.indexer.as_ref().map_or(attention.mask, |picks| Mask::Window(picks.keys));
    let mut core = core(shape, &Attention { mask, ..attention.clone() });
    if attention.latent.is_some() {
        core.join(Piece::UpProjection, Role::Reads, core_inputs(shape, &share));
    }
    parts.push(core);
    let width = share.heads * attention.value_head_dim;
    if attention.output_gate {
        // What it multiplies is kept, and the gate before its sigmoid.
        let size = shape.activations(shape.tokens() * width);
        parts.push(Part {
            forward: vec![Step::streaming("output gate", 2.0 * size, size)],
            backward: vec![Step::streaming("output gate", 3.0 * size, 2.0 * size)],
            kept: 2.0 * size,
            ..Part::default()
        });
    }
    let mut joined = row(shape, "projection", leaves, width, shape.hidden);
    if let Some(element) = &shape.stack.kept_attention_output_element
        && shape.precision.quantisation().is_some()
    {
        joined.kept = element.value * (shape.tokens() * width) as f64;
    }
    parts.push(joined.named(Module::Projection));
    parts
}

/// Columns of queries and keys that are rotated by position.
///
/// (a + k) r, with a query and k key heads on this rank and r rotated columns of each. With latent attention the keys
/// have one rotary part for all heads, which every rank has: (a + 1) r (arXiv 2405.04434, section 2.1.3).
fn rotated_width(attention: &Attention, share: &RankShare) -> usize {
    match &attention.latent {
        Some(latent) => (share.heads + 1) * latent.rotary_head_dim,
        None => (share.heads + share.kv_heads) * attention.rotary_head_dim.unwrap_or(attention.head_dim),
    }
}

/// Queries, keys and values of this rank's heads.
fn core_inputs(shape: &Shape, share: &RankShare) -> Bytes {
    shape.activations(shape.tokens() * (share.query + share.key + share.value))
}

/// Queries through a low rank if there is one, keys and values through another; the down-projections are on every
/// rank (DeepSeek-V2, arXiv 2405.04434, section 2.1).
fn latent_projections(shape: &Shape, attention: &Attention, latent: &Latent, share: &RankShare) -> Vec<Part> {
    let tokens = shape.local_tokens();
    let mut parts = Vec::new();
    match latent.query_rank {
        Some(rank) => {
            parts.push(replicated(shape, "q down", shape.hidden, rank));
            parts.push(norm(shape, tokens, rank));
            let mut up = column(shape, "q up", Input::Region, [rank, share.query], false);
            up.join(Piece::UpProjection, Role::First, Bytes::ZERO);
            parts.push(up);
        }
        None => parts.push(column(shape, "q", Input::Region, [shape.hidden, share.query], false)),
    }
    let width = share.heads * (attention.head_dim - latent.rotary_head_dim + attention.value_head_dim);
    // Its input is that of the queries' projection, which keeps it.
    let compressed = latent.kv_rank + latent.rotary_head_dim;
    let mut down = replicated_of_kept_input(shape, "kv down", shape.hidden, compressed);
    down.join(Piece::Norm, Role::Reads, Bytes::ZERO);
    parts.push(down);
    parts.push(norm(shape, tokens, latent.kv_rank));
    let mut up = column(shape, "kv up", Input::Region, [latent.kv_rank, width], false);
    let role = if latent.query_rank.is_some() { Role::Runs } else { Role::First };
    up.join(Piece::UpProjection, role, Bytes::ZERO);
    parts.push(up);
    parts
}
