//! The grouped products of a mixture of experts, from tokens to results, on one GPU.

use super::parts::{COMPUTE, Coefficient, Family, MEMORY, Parts, latency, us};
use super::{Chip, Experts};
use trainwright_spec::units::Seconds;

/// Grouped products of experts.
pub(super) static FAMILY: Family = Family {
    name: "experts",
    title: "grouped products of experts",
    coefficients: &[
        latency(30.0),
        COMPUTE,
        MEMORY,
        Coefficient {
            name: "tile",
            start: 32.0,
            low: 2.0,
            high: 256.0,
            meaning: "rows to a multiple of which the tokens of an expert are padded",
        },
        Coefficient {
            name: "expert",
            start: 0.3,
            low: 0.001,
            high: 20.0,
            meaning: "us for each expert that has tokens",
        },
        Coefficient {
            name: "moves",
            start: 2.0,
            low: 0.01,
            high: 60.0,
            meaning: "passes through memory over the 16-bit rows of this GPU's experts: permute, quantise, activate, add",
        },
        Coefficient {
            name: "masked",
            start: 0.5,
            low: 0.001,
            high: 20.0,
            meaning: "passes through memory over the rows of all tokens in its input, those for other GPUs' experts too",
        },
        Coefficient {
            name: "skew",
            start: 1.5,
            low: 1.0,
            high: 30.0,
            meaning: "rows of the fullest GPU under skewed routing, over the mean",
        },
    ],
};

/// The parts of its time.
///
/// T = L + √(A² + M²) + O
/// A = 2 w max(r + t e / 2, t e) / (φ R), M = w b e / (φ_m β), O = ε e + 2 (H + F) (π r + μ i) / β
/// r = s k / p, e = min(E, r) if routing is balanced; else r = s k / p min(x, p), e = E (1 − (1 − 1 / E)^(r / x))
///
/// i = s k, the rows of all tokens, or r where an exchange brought only those of this GPU's experts;
/// s tokens, k experts each, p GPUs that the experts are distributed over, E experts on this GPU, of w = 3 H F weights (2 H F
/// without a gate), F the inner width over the GPUs that share an expert; e experts with tokens, r rows; b bytes of a weight,
/// t `tile`, ε `expert`, π `moves`, μ `masked`, x `skew`: the fullest GPU counts, and popular experts are chosen again.
/// Source of e: expected number of distinct experts of independent choices.
pub(super) fn parts(call: &Experts, chip: &Chip, coefficients: &[f64]) -> Option<Parts> {
    let &[latency, compute, memory, tile, expert, moves, masked, skew] = coefficients else { return None };
    let rate = chip.peak(call.operands.units)?.get() * compute;
    let gpus = call.expert_parallel as f64;
    let local = (call.experts as f64 / gpus).max(1.0);
    let choices = (call.tokens * call.chosen) as f64;
    let (rows, loaded) = match call.skewed {
        false => (choices / gpus, local.min((choices / gpus).max(1.0))),
        true => {
            let rows = choices / gpus * skew.min(gpus);
            (rows, local * (1.0 - libm::pow(1.0 - 1.0 / local, (rows / skew).max(1.0))))
        }
    };
    let matrices = if call.gated { 3.0 } else { 2.0 };
    let inner = call.inner as f64 / call.tensor_parallel as f64;
    let weights = matrices * call.hidden as f64 * inner;
    let padded = (rows + loaded * tile / 2.0).max(loaded * tile);
    let bandwidth = chip.gpu.memory_bandwidth.value.get();
    let input = if call.exchanged { rows } else { choices };
    let moved = 2.0 * (call.hidden as f64 + inner) * (moves * rows + masked * input) / bandwidth;
    Some(Parts {
        latency: us(latency),
        arithmetic: Seconds::new(2.0 * weights * padded / rate),
        memory: Seconds::new(weights * call.operands.weight.get() * loaded / (bandwidth * memory)),
        overhead: us(expert * loaded) + Seconds::new(moved),
        ..Parts::default()
    })
}
