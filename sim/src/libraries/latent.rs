//! Multi-head latent attention of one new token of each sequence, with the up-projections absorbed into the queries.

use super::parts::{CACHE, COMPUTE, Coefficient, Family, MEMORY, Parts, latency, us};
use super::{Chip, Latent};
use trainwright_spec::precision::Precision;
use trainwright_spec::units::Seconds;

/// Decode attention over latents.
pub(super) static FAMILY: Family = Family {
    name: "latent-decode",
    title: "latent attention of one token over a history",
    coefficients: &[
        latency(10.0),
        COMPUTE,
        MEMORY,
        Coefficient {
            name: "row",
            start: 1.5,
            low: 0.01,
            high: 60.0,
            meaning: "us of a multiprocessor for each sequence and 64 heads",
        },
        Coefficient {
            name: "doubling",
            start: 0.5,
            low: 0.001,
            high: 20.0,
            meaning: "us for each doubling of the history beyond 128 tokens",
        },
        CACHE,
    ],
};

/// Width of a cached latent and its rotary part, and of the latent alone (DeepSeek-AI 2024, arXiv 2405.04434, section 2.1).
const WIDTHS: [f64; 2] = [576.0, 512.0];

/// Heads that a multiprocessor works on at a time.
const HEADS: usize = 64;

/// The parts of its time.
///
/// T = L + √(A² + M²) + O
/// M = (b h w c + 2 b a (w + v)) / (φ_m β), A = 2 b a′ h (w + v) / (φ R), O = σ log₂(1 + h / 128) + ρ b ⌈a / 64⌉ / P
///
/// b sequences, a heads, a′ these in whole tiles of 16 rows, h tokens in the cache, w = 576 and v = 512 widths of a cached token
/// and of its latent, c bytes of a cached element: all heads read the same latents. R peak of the cache's format.
/// Source of the form: DeepSeek-AI 2024, arXiv 2405.04434, section 2.1 (absorbed up-projections).
pub(super) fn parts(call: &Latent, chip: &Chip, coefficients: &[f64]) -> Option<Parts> {
    let &[latency, compute, memory, row, doubling, cache] = coefficients else { return None };
    let [width, values] = WIDTHS;
    let (batch, history) = (call.batch as f64, call.history as f64);
    let padded = (call.heads.div_ceil(16) * 16) as f64;
    let bytes = batch * history * width * call.cache.weight.get()
        + 2.0 * batch * call.heads as f64 * (width + values);
    let units = chip.peak(call.cache.units).or_else(|| chip.peak(Precision::Bf16))?;
    let rows = batch * call.heads.div_ceil(HEADS) as f64;
    Some(Parts {
        latency: us(latency),
        arithmetic: Seconds::new(2.0 * batch * padded * history * (width + values) / (units.get() * compute)),
        memory: Seconds::new(chip.memory_time(bytes, memory, cache)),
        overhead: us(doubling * libm::log2(1.0 + history / 128.0) + row * rows / chip.multiprocessors()),
        ..Parts::default()
    })
}
