//! Mixers with a state (gated delta net, Mamba-2) as parts: projection, convolution over time, products chunk by chunk, gated
//! norm, output projection. What tensor ranks share are heads, as in attention.
//!
//! The products are those of the kernels of flash-linear-attention and mamba-ssm, which run one after the other and leave
//! what they make in memory. A chunk's state follows from the state of the chunk before; that this leaves fewer products that
//! run at once is not modelled.

use crate::linear::{column, row};
use crate::part::{Again, Part, Role};
use crate::shape::Shape;
use crate::step::Step;
use trainwright_spec::model::{Attention, Recurrence, Rule};
use trainwright_spec::plan::Piece;
use trainwright_spec::program::{Does, Module};
use trainwright_spec::tensor::Input;
use trainwright_spec::units::Bytes;

/// Bytes of an element of states, decays and what solves the chunk's triangle.
const WIDE: Bytes = Bytes::new(4.0);

/// What one rank holds of a mixer.
struct RankShare {
    heads: usize,
    key_heads: usize,
    /// Columns of keys and of queries, each.
    keys: usize,
    values: usize,
}

impl RankShare {
    fn of(shape: &Shape, mixer: &Attention) -> Self {
        let (heads, key_heads) = (shape.share(mixer.heads), shape.share(mixer.kv_heads));
        Self { heads, key_heads, keys: key_heads * mixer.head_dim, values: heads * mixer.value_head_dim }
    }

    /// Channels of the convolution.
    fn convolved(&self) -> usize {
        2 * self.keys + self.values
    }
}

/// All parts of a mixer, from its norm's output to its output. `leaves` as for `row`.
pub(crate) fn mixer(
    shape: &Shape,
    mixer: &Attention,
    recurrence: &Recurrence,
    input: Input,
    leaves: bool,
) -> Vec<Part> {
    let share = RankShare::of(shape, mixer);
    let gates = recurrence.rule.gates() * share.heads;
    let width = share.convolved() + share.values + gates;
    let into = column(shape, "mixer input", input, [shape.hidden, width], mixer.qkv_bias);
    let out = row(shape, "projection", leaves, share.values, shape.hidden);
    vec![
        into.named(Module::Qkv),
        convolution(shape, &share),
        core(shape, mixer, recurrence, &share),
        gated_norm(shape, &share),
        out.named(Module::Projection),
    ]
}

/// A weighted sum of each channel over the last few tokens, and an activation; it keeps its input.
fn convolution(shape: &Shape, share: &RankShare) -> Part {
    let size = shape.activations(shape.tokens() * share.convolved());
    Part {
        forward: vec![Step::streaming("convolution", size, size)],
        backward: vec![
            Step::reduction("convolution weight gradient", 2.0 * size, Bytes::ZERO)
                .doing(Does::VectorGradient),
            Step::streaming("convolution", 2.0 * size, size),
        ],
        kept: size,
        ..Part::default()
    }
}

/// A product of the chunks, and whether backward runs it again to have the states.
struct Product {
    module: &'static str,
    count: usize,
    size: [usize; 3],
    makes_states: bool,
}

/// From queries, keys and values to the heads' outputs. It keeps its inputs, decays and, with the delta rule, each chunk's
/// solved triangle; backward makes the states again.
///
/// With C tokens in each of n chunks, h heads of d × e states, g heads of keys, products (rows, columns, summed):
///
/// ```text
/// Mamba-2       g (C, C, d) · h (d, e, C) states · h (C, e, C) and h (C, e, d) outputs
/// gated delta   h (C, C, d) · h (C, d, C) and h (C, e, C) · h (C, e, d) and h (d, e, C) states ·
///               h (C, C, d) and h (C, e, C) and h (C, e, d) outputs
/// ```
///
/// Source: arXiv 2405.21060, section 6; arXiv 2412.06464, section 3.3.
fn core(shape: &Shape, mixer: &Attention, recurrence: &Recurrence, share: &RankShare) -> Part {
    let chunk = recurrence.chunk.min(shape.sequence).max(1);
    let chunks = shape.batch * shape.sequence.div_ceil(chunk);
    let (d, e, c) = (mixer.head_dim, mixer.value_head_dim, chunk);
    let (each, by_key) = (chunks * share.heads, chunks * share.key_heads);
    let product = |module, count, size| Product { module, count, size, makes_states: false };
    let states = |count, size| Product { makes_states: true, ..product("chunk states", count, size) };
    let products = match recurrence.rule {
        Rule::Mamba2 => vec![
            product("chunk scores", by_key, [c, c, d]),
            states(each, [d, e, c]),
            product("chunk output", each, [c, e, c]),
            product("chunk output", each, [c, e, d]),
        ],
        Rule::GatedDelta => vec![
            product("chunk keys", each, [c, c, d]),
            product("chunk solution", each, [c, d, c]),
            product("chunk solution", each, [c, e, c]),
            states(each, [c, e, d]),
            states(each, [d, e, c]),
            product("chunk scores", each, [c, c, d]),
            product("chunk output", each, [c, e, c]),
            product("chunk output", each, [c, e, d]),
        ],
    };
    let precision = shape.precision.base();
    let gemm = |module, count, size| Step::gemm(module, count, size, precision);
    let state = WIDE * (each * d * e) as f64;
    let triangle = match recurrence.rule {
        Rule::GatedDelta => WIDE * (each * c * c) as f64,
        Rule::Mamba2 => Bytes::ZERO,
    };
    let decays = WIDE * (recurrence.rule.gates() * shape.tokens() * share.heads) as f64;
    let mut forward = vec![Step::reduction("decays", decays, decays)];
    let mut backward = Vec::new();
    for Product { module, count, size, makes_states } in products {
        forward.push(gemm(module, count, size));
        let [m, n, k] = size;
        if makes_states {
            backward.push(gemm(module, count, size));
        }
        backward.extend([gemm(module, count, [m, k, n]), gemm(module, count, [k, n, m])]);
    }
    if recurrence.rule == Rule::GatedDelta {
        forward.insert(2, Step::streaming("chunk triangle", triangle, triangle));
        backward.push(Step::streaming("chunk triangle", 2.0 * triangle, triangle));
    }
    let pass = Step::streaming("pass states", state, state);
    forward.push(pass);
    backward.extend([pass, pass]);
    backward.push(Step::reduction("decays", 2.0 * decays, decays));
    let inputs = shape.activations(shape.tokens() * share.convolved());
    let inner = decays + triangle;
    let again = Again { piece: Piece::Core, role: Role::First, dropped: inner };
    Part { forward, backward, kept: inputs + inner, again: vec![again], ..Part::default() }
        .named(Module::Attention)
}

/// The norm of the heads' outputs times the activation of a gate, in one kernel; it keeps both.
fn gated_norm(shape: &Shape, share: &RankShare) -> Part {
    let size = shape.activations(shape.tokens() * share.values);
    Part {
        forward: vec![Step::reduction("gated norm", 2.0 * size, size)],
        backward: vec![
            Step::reduction("norm weight gradient", 2.0 * size, Bytes::ZERO).doing(Does::VectorGradient),
            Step::reduction("gated norm", 3.0 * size, 2.0 * size),
        ],
        kept: 2.0 * size,
        ..Part::default()
    }
}
