//! Mixers with a state: chunks of prompts, single tokens, and the convolution over time before both.

use super::parts::{CACHE, COMPUTE, Coefficient, Family, MEMORY, Parts, latency, us};
use super::{Chip, Convolution, StateDecode, StatePrefill};
use trainwright_spec::model::Rule;
use trainwright_spec::precision::Precision;
use trainwright_spec::units::Seconds;

/// Bytes of an element of a state.
const STATE: f64 = 4.0;

/// Bytes of an element of everything else.
const ELEMENT: f64 = 2.0;

/// Prompts through states.
pub(super) static PREFILL: Family = Family {
    name: "state-prefill",
    title: "prompts through the states of linear attention",
    coefficients: &[
        latency(15.0),
        COMPUTE,
        MEMORY,
        Coefficient {
            name: "chunk",
            start: 2.0,
            low: 0.02,
            high: 50.0,
            meaning: "us of a multiprocessor for a chunk of a head, after the chunk before it",
        },
    ],
};

/// One token through states.
pub(super) static DECODE: Family = Family {
    name: "state-decode",
    title: "one token of each sequence through its states",
    coefficients: &[
        latency(4.0),
        MEMORY,
        Coefficient {
            name: "row",
            start: 0.5,
            low: 0.01,
            high: 20.0,
            meaning: "us of a multiprocessor for each sequence and head",
        },
        CACHE,
    ],
};

/// The convolution of prompts.
pub(super) static CONVOLUTION: Family = Family {
    name: "convolution",
    title: "convolution over the tokens of prompts",
    coefficients: &[latency(3.0), MEMORY, CACHE],
};

/// The convolution of single tokens.
pub(super) static CONVOLUTION_STEP: Family = Family {
    name: "convolution-step",
    title: "convolution at one token of each sequence",
    coefficients: &[latency(2.0), MEMORY, CACHE],
};

/// The parts of a prompt's time.
///
/// T = L + √(A² + M²) + O
/// A = s b h f / (φ R), f = 2 (3 C d + 2 C e + 3 d e) with the delta rule, 2 (C (d g / h + e) + 2 d e) with Mamba-2
/// M = (2 s b (2 g d + 2 h e) + 8 b h d e) / (φ β)
/// O = κ ⌈s / C⌉ max(1, b h / P)
///
/// b sequences of s tokens, h heads of states d × e, g heads of keys, chunks of C tokens; R peak in 16 bits, β bandwidth, P
/// multiprocessors; κ `chunk`: each head's chunks follow one another.
/// Source of the form: the chunked algorithms of arXiv 2405.21060, section 6, and 2412.06464, section 3.3.
pub(super) fn prefill(call: &StatePrefill, chip: &Chip, coefficients: &[f64]) -> Option<Parts> {
    let &[latency, compute, memory, step] = coefficients else { return None };
    let StatePrefill { batch, heads, key_heads, key_dim, value_dim, queries, chunk, rule } = *call;
    let [b, h, g, d, e] = [batch, heads, key_heads, key_dim, value_dim].map(|count| count as f64);
    let [s, c] = [queries, chunk.min(queries)].map(|count| count as f64);
    let per_token = match rule {
        Rule::GatedDelta => 2.0 * (3.0 * c * d + 2.0 * c * e + 3.0 * d * e),
        Rule::Mamba2 => 2.0 * (c * (d * g / h + e) + 2.0 * d * e),
    };
    let bytes = ELEMENT * s * b * 2.0 * (g * d + h * e) + 2.0 * STATE * b * h * d * e;
    let rate = chip.peak(Precision::Bf16)?.get() * compute;
    let waves = (b * h / chip.multiprocessors()).max(1.0);
    Some(Parts {
        latency: us(latency),
        arithmetic: Seconds::new(s * b * h * per_token / rate),
        memory: Seconds::new(chip.memory_time(bytes, memory, 1.0)),
        overhead: us(step * (s / chunk as f64).ceil() * waves),
        ..Parts::default()
    })
}

/// The parts of one token's time.
///
/// T = L + M + ρ b h / P
/// M = (8 b h d e + 2 b (2 g d + 2 h e)) / (φ β), in the cache faster
///
/// Every state is read and written; symbols as of `prefill`, ρ `row`.
pub(super) fn decode(call: &StateDecode, chip: &Chip, coefficients: &[f64]) -> Option<Parts> {
    let &[latency, memory, row, cache] = coefficients else { return None };
    let StateDecode { batch, heads, key_heads, key_dim, value_dim } = *call;
    let [b, h, g, d, e] = [batch, heads, key_heads, key_dim, value_dim].map(|count| count as f64);
    let bytes = 2.0 * STATE * b * h * d * e + ELEMENT * b * 2.0 * (g * d + h * e);
    Some(Parts {
        latency: us(latency),
        memory: Seconds::new(chip.memory_time(bytes, memory, cache)),
        overhead: us(row * b * h / chip.multiprocessors()),
        ..Parts::default()
    })
}

/// The parts of a convolution's time.
///
/// T = L + M, M = (4 n k + 4 b k w) / (φ β), in the cache faster
///
/// n tokens of b sequences, k channels, w tokens that a token sees: channels are read and written, and the last tokens of each
/// sequence too.
pub(super) fn convolution(call: &Convolution, chip: &Chip, coefficients: &[f64]) -> Option<Parts> {
    let &[latency, memory, cache] = coefficients else { return None };
    let moved = (call.tokens + call.sequences * call.width) as f64 * call.channels as f64;
    Some(Parts {
        latency: us(latency),
        memory: Seconds::new(chip.memory_time(2.0 * ELEMENT * moved, memory, cache)),
        ..Parts::default()
    })
}
