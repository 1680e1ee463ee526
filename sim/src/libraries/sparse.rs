//! Sparse latent attention as a whole: projections, indexer, choice of keys, attention to them, output projection. Tables measure
//! it as one module.

use super::parts::{COMPUTE, Coefficient, Family, MEMORY, Parts, latency, us};
use super::{Chip, SparseAttention};
use trainwright_spec::precision::Precision;
use trainwright_spec::units::Seconds;

/// Bytes of an element of an indexer's key: 8 bits, and a scale of 4 bytes for 128 of them.
const KEY: f64 = 1.0 + 4.0 / 128.0;

/// Bytes of a score.
const SCORE: f64 = 4.0;

const ATTENTION: Coefficient = Coefficient {
    name: "attention",
    start: 0.4,
    low: 0.01,
    high: 1.0,
    meaning: "part of the peak in 16 bits that attention to picked keys reaches",
};

const INDEXER: Coefficient = Coefficient {
    name: "indexer",
    start: 0.4,
    low: 0.01,
    high: 1.0,
    meaning: "part of the peak in 8 bits (16 where there is none) that the indexer's scores reach",
};

const ROW: Coefficient = Coefficient {
    name: "row",
    start: 2.0,
    low: 0.01,
    high: 200.0,
    meaning: "us of a multiprocessor for each token: choice of keys, norms, rotation",
};

/// Prompts are measured without captured graphs: the host's time is in it.
const PROMPT_LATENCY: Coefficient = Coefficient {
    name: "latency",
    start: 400.0,
    low: 20.0,
    high: 3000.0,
    meaning: "us of a call with nothing to do: launch, first and last steps of all its kernels",
};

/// Single tokens.
pub(super) static DECODE: Family = Family {
    name: "sparse-decode",
    title: "sparse latent attention of one token, with its projections",
    coefficients: &[latency(80.0), COMPUTE, MEMORY, ATTENTION, INDEXER, ROW],
};

/// Prompts.
pub(super) static PREFILL: Family = Family {
    name: "sparse-prefill",
    title: "sparse latent attention of prompts, with its projections",
    coefficients: &[PROMPT_LATENCY, COMPUTE, MEMORY, ATTENTION, INDEXER, ROW],
};

/// The parts of its time.
///
/// T = L + √(A² + M²) + ρ n / P
/// A = 2 n W / (φ R) + 2 n a k (2 c + r) / (α R₁₆) + 2 n s i j / (ι R₈)
/// M = (W w + b (h + q) j κ + 8 n s + n k (c + r) z) / (φ β)
/// W = u (c + r + l) + l a (p + r) + a c (p + v) + a v u + l i j + u (j + i)
///
/// n = b q new tokens of b sequences with h tokens in the cache, which see s = h + (q + 1) / 2 tokens in the mean and attend to k
/// of them; a heads, of width p without and r with positions, values of v; ranks l of queries and c of keys and values, width u of
/// the residual stream; i heads of an indexer of width j; w, κ, z bytes of elements of weights, of indexer's keys and of the cache; R, R₁₆,
/// R₈ peaks in the weights' format, in 16 and in 8 bits, P multiprocessors, β bandwidth; φ, α, ι, ρ, L coefficients.
/// The indexer's scores are left out while every key is picked. In place of n k keys no more are read than every key once for each
/// 64 tokens of a prompt.
pub(super) fn parts(call: &SparseAttention, chip: &Chip, coefficients: &[f64]) -> Option<Parts> {
    let &[latency, compute, memory, attention, indexer, row] = coefficients else { return None };
    let SparseAttention { batch, queries, history, heads, hidden, query_rank, kv_rank, .. } = *call;
    let [b, q, h, a, u, l, c] =
        [batch, queries, history, heads, hidden, query_rank, kv_rank].map(|count| count as f64);
    let SparseAttention { plain, rotary, value_head_dim, indexer_heads, indexer_dim, keys, .. } = *call;
    let [p, r, v, i, j, most] =
        [plain, rotary, value_head_dim, indexer_heads, indexer_dim, keys].map(|count| count as f64);
    let n = b * q;
    let seen = h + (q + 1.0) / 2.0;
    let picked = seen.min(most);
    let weights = u * (c + r + l) + l * a * (p + r) + a * c * (p + v) + a * v * u + l * i * j + u * (j + i);
    let scored = if h + q > most { n * seen } else { 0.0 };
    let products = 2.0 * n * weights / (chip.peak(call.operands.units)?.get() * compute);
    let attended = 2.0 * n * a * picked * (2.0 * c + r) / (chip.peak(Precision::Bf16)?.get() * attention);
    let units = chip.peak(Precision::Fp8).or_else(|| chip.peak(Precision::Bf16))?;
    let scores = 2.0 * scored * i * j / (units.get() * indexer);
    let cached = (n * picked).min(b * (h + q) * (q / 64.0).max(1.0)) * (c + r) * call.cache.weight.get();
    let indexed = if scored > 0.0 { b * (h + q) * j * KEY + 2.0 * SCORE * scored } else { 0.0 };
    let bytes = weights * call.operands.weight.get() + cached + indexed;
    Some(Parts {
        latency: us(latency),
        arithmetic: Seconds::new(products + attended + scores),
        memory: Seconds::new(chip.memory_time(bytes, memory, 1.0)),
        overhead: us(row * n / chip.multiprocessors()),
        ..Parts::default()
    })
}
