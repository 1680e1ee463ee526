//! Attention: projections, the core in one kernel or several, and DeepSeek's latent form.

use super::elementwise::norm;
use super::part::{Again, Input, Part, Role, Shape, Step, column, replicated, replicated_beside, row};
use crate::model::{Attention, Latent, Mask};
use crate::plan::Piece;
use crate::program::{Direction, FlashVersion, Kernel};
use crate::stack::AttentionKernel;
use crate::units::Bytes;

/// What one rank holds of an attention layer.
struct Own {
    heads: usize,
    kv_heads: usize,
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
        Own {
            heads,
            kv_heads,
            query: heads * attention.head_dim,
            key,
            value: kv_heads * attention.value_head_dim,
        }
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
    let normed = shape.activations(shape.tokens() * (own.query + own.key));
    if attention.qk_norm {
        parts.push(Part {
            forward: vec![Step::reduction("qk norm", normed, normed)],
            backward: vec![Step::reduction("qk norm", 2.0 * normed, normed)],
            kept: normed,
            ..Part::default()
        });
    }
    if attention.rotary {
        let rotated = shape.activations(shape.tokens() * rotated_width(attention, &own));
        let rotate = vec![Step::streaming("rotary", rotated, rotated)];
        let mut part = Part { forward: rotate.clone(), backward: rotate, ..Part::default() };
        if attention.latent.is_some() {
            part.join(Piece::UpProjection, Role::Runs, Bytes::ZERO);
        }
        parts.push(part);
    }
    let mut core = match shape.stack.attention.version() {
        Some(version) => fused_core(shape, attention, &own, version),
        None => unfused_core(shape, attention, &own),
    };
    if attention.latent.is_some() {
        core.join(Piece::UpProjection, Role::Reads, core_inputs(shape, &own));
    }
    parts.push(core);
    parts.push(row(shape, "projection", leaves, own.heads * attention.value_head_dim, shape.hidden));
    parts
}

/// Columns of queries and keys that are rotated by position.
///
/// (a + k) r, with a query and k key heads on this rank and r rotated columns of each. With latent attention the keys
/// have one rotary part for all heads, which every rank has: (a + 1) r (arXiv 2405.04434, section 2.1.3).
fn rotated_width(attention: &Attention, own: &Own) -> usize {
    match &attention.latent {
        Some(latent) => (own.heads + 1) * latent.rotary_head_dim,
        None => (own.heads + own.kv_heads) * attention.rotary_head_dim.unwrap_or(attention.head_dim),
    }
}

/// Queries, keys and values of this rank's heads.
fn core_inputs(shape: &Shape, own: &Own) -> Bytes {
    shape.activations(shape.tokens() * (own.query + own.key + own.value))
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
            let mut up = column(shape, "q up", Input::Region, [rank, own.query], false);
            up.join(Piece::UpProjection, Role::First, Bytes::ZERO);
            parts.push(up);
        }
        None => parts.push(column(shape, "q", Input::Region, [shape.hidden, own.query], false)),
    }
    let width = own.heads * (attention.head_dim - latent.rotary_head_dim + attention.value_head_dim);
    // Its input is that of the queries' projection, which keeps it.
    let compressed = latent.kv_rank + latent.rotary_head_dim;
    let mut down = replicated_beside(shape, "kv down", shape.hidden, compressed);
    down.join(Piece::Norm, Role::Reads, Bytes::ZERO);
    parts.push(down);
    parts.push(norm(shape, tokens, latent.kv_rank));
    let mut up = column(shape, "kv up", Input::Region, [latent.kv_rank, width], false);
    let role = if latent.query_rank.is_some() { Role::Runs } else { Role::First };
    up.join(Piece::UpProjection, role, Bytes::ZERO);
    parts.push(up);
    parts
}

/// One kernel forward, one backward; keeps queries, keys, values and fp32 softmax statistics. Its output is the
/// projection's input and kept there.
fn fused_core(shape: &Shape, attention: &Attention, own: &Own, version: FlashVersion) -> Part {
    let call = |direction| Kernel::FusedAttention {
        direction,
        batch: shape.batch,
        heads: own.heads,
        kv_heads: own.kv_heads,
        queries: shape.sequence,
        keys: shape.sequence,
        head_dim: attention.head_dim,
        value_head_dim: attention.value_head_dim,
        mask: attention.mask,
        precision: shape.precision.base(),
        version,
    };
    let output = shape.activations(shape.tokens() * own.heads * attention.value_head_dim);
    let inputs = core_inputs(shape, own);
    let statistics = Bytes::new(4.0 * (shape.tokens() * own.heads) as f64);
    // The projection keeps the output only quantised.
    let unquantised = if shape.precision.quantisation().is_some() { output } else { Bytes::ZERO };
    let inner = statistics + unquantised;
    let step = |direction, working| Step::Kernel { module: "attention", kernel: call(direction), working };
    Part {
        forward: vec![step(Direction::Forward, output)],
        backward: vec![step(Direction::Backward, inputs), join_gradients(inputs)],
        kept: inputs + inner,
        again: vec![core(inner)],
        ..Part::default()
    }
}

/// Scores in memory: Q Kᵀ, softmax, dropout, P V; keeps queries, keys, values and the s × s tensors, which with
/// dropout are 5 a s² b bytes in 16 bits (Korthikanti et al. 2022, arXiv 2205.05198, section 4.1).
fn unfused_core(shape: &Shape, attention: &Attention, own: &Own) -> Part {
    let s = shape.sequence;
    let count = shape.batch * own.heads;
    let (d, dv) = (attention.head_dim, attention.value_head_dim);
    let gemm = |module, size| Step::gemm(module, count, size, shape.precision.base());
    let scores = shape.activations(count * s * s);
    let mask = if shape.dropout { Bytes::new((count * s * s) as f64) } else { Bytes::ZERO };
    let visible = attention.mask.visible_pairs(s, s) / (s * s) as f64;

    let mut forward = vec![gemm("scores", [s, s, d])];
    match shape.stack.attention {
        AttentionKernel::FusedSoftmax => forward.push(Step::reduction("softmax", visible * scores, scores)),
        _ => {
            forward.push(Step::streaming("scale", scores, scores));
            if attention.mask != Mask::Full {
                forward.push(Step::streaming("mask", scores, scores));
            }
            forward.push(Step::reduction("softmax", scores, scores));
        }
    }
    let mut backward = vec![gemm("values", [s, s, dv]), gemm("values", [s, dv, s])];
    if shape.dropout {
        forward.push(Step::streaming("score dropout", scores, scores + mask));
        backward.push(Step::streaming("score dropout", scores + mask, scores));
    }
    // The heads' outputs are brought into one row per token.
    let output = shape.activations(shape.tokens() * own.heads * dv);
    forward.extend([gemm("values", [s, dv, s]), Step::streaming("join heads", output, output)]);
    backward.push(Step::reduction("softmax", 2.0 * scores, scores));
    backward.extend([gemm("scores", [s, d, s]), gemm("scores", [s, d, s])]);

    let inputs = core_inputs(shape, own);
    backward.push(join_gradients(inputs));

    let dropped = if shape.dropout { scores } else { Bytes::ZERO };
    let squares = scores + dropped + mask;
    Part { forward, backward, kept: inputs + squares, again: vec![core(squares)], ..Part::default() }
}

/// What the core does not keep when it is computed again: all but queries, keys and values.
fn core(dropped: Bytes) -> Again {
    Again { piece: Piece::Core, role: Role::First, dropped }
}

/// The gradients of queries, keys and values are copied into one tensor, the output's gradient of their projection.
fn join_gradients(inputs: Bytes) -> Step {
    Step::streaming("join gradients", inputs, inputs)
}
