//! Attention of one new token of each sequence over its history.

use super::parts::{CACHE, Coefficient, Family, MEMORY, Parts, latency, us};
use super::{Chip, Decode};
use trainwright_spec::precision::Precision;
use trainwright_spec::units::Seconds;

/// Decode attention.
pub(super) static FAMILY: Family = Family {
    name: "decode",
    title: "attention of one token over a history",
    coefficients: &[
        latency(10.0),
        MEMORY,
        Coefficient {
            name: "compute",
            start: 0.5,
            low: 0.002,
            high: 1.0,
            meaning: "part of the peak in 16 bits that scores reach; small where vector units compute them head by head",
        },
        Coefficient {
            name: "doubling",
            start: 0.5,
            low: 0.001,
            high: 10.0,
            meaning: "us for each doubling of the history beyond 128 tokens",
        },
        Coefficient {
            name: "row",
            start: 1.5,
            low: 0.01,
            high: 20.0,
            meaning: "us of a multiprocessor for each sequence and key-value head",
        },
        CACHE,
    ],
};

/// The parts of its time.
///
/// T = L + √(A² + M²) + O
/// M = (2 b g d h c + 4 b a d) / (φ_m β), in the cache faster (`Chip::memory_time`)
/// A = 4 b a d h / (φ R)
/// O = σ log₂(1 + h / 128) + ρ b g / P
///
/// b sequences, a query heads, g key-value heads of width d, h keys that a query sees, c bytes of a cached element; R peak in
/// 16 bits of P multiprocessors together; σ `doubling`: a history is split over multiprocessors and its parts are joined; ρ
/// `row`.
/// Source of the form: Dao et al. 2023, Flash-Decoding for long-context inference (split over the history).
pub(super) fn parts(decode: &Decode, chip: &Chip, coefficients: &[f64]) -> Option<Parts> {
    let &[latency, memory, compute, doubling, row, cache] = coefficients else { return None };
    let keys = decode.window.map_or(decode.history, |window| window.min(decode.history)) as f64;
    let rows = (decode.batch * decode.kv_heads) as f64;
    let queries = (decode.batch * decode.heads * decode.head_dim) as f64;
    let width = decode.head_dim as f64;
    let bytes = 2.0 * rows * width * keys * decode.cache.weight.get() + 4.0 * queries;
    let rate = chip.peak(Precision::Bf16)?.get() * compute;
    Some(Parts {
        latency: us(latency),
        arithmetic: Seconds::new(4.0 * queries * keys / rate),
        memory: Seconds::new(chip.memory_time(bytes, memory, cache)),
        overhead: us(doubling * libm::log2(1.0 + keys / 128.0) + row * rows / chip.multiprocessors()),
        ..Parts::default()
    })
}
