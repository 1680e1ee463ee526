//! Attention of the tokens of prompts, over themselves and what is in the cache already.

use super::parts::{COMPUTE, Coefficient, Family, MEMORY, Parts, latency, us};
use super::{Chip, Prefill};
use trainwright_spec::units::Seconds;

/// Prefill attention.
pub(super) static FAMILY: Family = Family {
    name: "prefill",
    title: "attention of prompts",
    coefficients: &[
        latency(10.0),
        COMPUTE,
        MEMORY,
        Coefficient {
            name: "exponential",
            start: 30.0,
            low: 0.1,
            high: 1000.0,
            meaning: "ps of a multiprocessor for the exponential of a score, which the matrix units do not hide",
        },
        Coefficient {
            name: "block",
            start: 1.5,
            low: 0.01,
            high: 60.0,
            meaning: "us of a multiprocessor to start and end a block of queries",
        },
        Coefficient {
            name: "cached",
            start: 1.0,
            low: 0.2,
            high: 8.0,
            meaning: "time for a key of the cache, over one of the prompt",
        },
    ],
};

/// Queries that a multiprocessor works on at a time.
const BLOCK: usize = 128;

/// The parts of its time.
///
/// T = L + √(A² + M²) + O
/// A = max(N / P K̄ τ + ½ min(1, N / P) K τ, K τ), τ = B (2 (d + d_v) / (φ R) + x)
/// O = σ max(N / P, 1)
/// M = (queries, results, keys and values once) / (φ_m β)
///
/// N = b a ⌈q / B⌉ blocks of B = 128 queries on P multiprocessors; K̄ keys of a block in the mean, K the most, where a key of
/// the cache counts as κ = `cached` ones; R peak of a multiprocessor, φ `compute`, x `exponential`, σ `block`.
/// Source of the form: as of fused attention in `compute`.
pub(super) fn parts(prefill: &Prefill, chip: &Chip, coefficients: &[f64]) -> Option<Parts> {
    let &[latency, compute, memory, exponential, block, cached] = coefficients else { return None };
    let multiprocessors = chip.multiprocessors();
    let rate = chip.peak(prefill.math)?.get() / multiprocessors * compute;
    let widths = (prefill.head_dim + prefill.value_head_dim) as f64;
    let side = BLOCK as f64;
    let key = side * (2.0 * widths / rate + exponential * 1e-12);
    let blocks = (prefill.batch * prefill.heads * prefill.queries.div_ceil(BLOCK)) as f64;
    let (mean, most) = keys(prefill, cached);
    let waves = blocks / multiprocessors;
    let shared = waves * mean * key + 0.5 * waves.min(1.0) * most * key;
    let seen = prefill.window.map_or(prefill.history, |window| window.min(prefill.history)) as f64;
    let rows = prefill.batch as f64
        * widths
        * (2.0 * (prefill.heads * prefill.queries) as f64
            + prefill.kv_heads as f64 * (2.0 * prefill.queries as f64 + seen * prefill.cache.weight.get()));
    Some(Parts {
        latency: us(latency),
        arithmetic: Seconds::new(shared.max(most * key)),
        memory: Seconds::new(chip.memory_time(rows, memory, 1.0)),
        overhead: us(block * waves.max(1.0)),
        ..Parts::default()
    })
}

/// Keys that a block of queries computes scores of, whole blocks on the edge of the mask: mean over the blocks, and the
/// most; a key of the cache counts as `cached` ones.
fn keys(prefill: &Prefill, cached: f64) -> (f64, f64) {
    let (queries, history, side) = (prefill.queries as f64, prefill.history as f64, BLOCK as f64);
    let own = |limit: f64| {
        // Of a causal mask the mean of a block's keys grows to half of the prompt, plus half a block on the diagonal.
        let mean = if limit < queries { limit - limit * limit / (2.0 * queries) } else { queries / 2.0 };
        ((mean + side / 2.0).min(queries.max(side)), (limit.min(queries) + side).min(queries.max(side)))
    };
    match prefill.window {
        Some(window) => {
            let (mean, most) = own(window as f64);
            let before = history.min(window as f64) * cached;
            // Only the first `window` queries see what was cached before.
            (mean + before * (window as f64 / queries).min(1.0) / 2.0, most.max(before))
        }
        None => {
            let (mean, most) = own(f64::INFINITY);
            (mean + history * cached, most + history * cached)
        }
    }
}
