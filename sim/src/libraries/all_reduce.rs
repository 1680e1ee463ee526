//! Sums over the GPUs of a node in one kernel: each GPU reads its peers' memory over the switch.

use super::parts::{Coefficient, Family, Parts, latency, us};
use super::{AllReduce, Chip};

/// All-reduces of kilobytes to megabytes.
pub(super) static FAMILY: Family = Family {
    name: "all-reduce",
    title: "all-reduce in one kernel",
    coefficients: &[
        latency(5.0),
        Coefficient {
            name: "barrier",
            start: 1.0,
            low: 0.001,
            high: 40.0,
            meaning: "us for each doubling of the GPUs",
        },
        Coefficient {
            name: "links",
            start: 0.6,
            low: 0.01,
            high: 1.0,
            meaning: "part of the links' bandwidth that large messages reach",
        },
        Coefficient {
            name: "second",
            start: 3.0,
            low: 0.05,
            high: 60.0,
            meaning: "us of the second step of two",
        },
        Coefficient {
            name: "one",
            start: 0.6,
            low: 0.01,
            high: 1.0,
            meaning: "part of the links' bandwidth that one step reaches, in which every GPU reads all of every other",
        },
    ],
};

/// The parts of its time, in one step or two, whichever is faster.
///
/// T₁ = L + κ log₂ p + (p − 1) n / (φ₁ β)
/// T₂ = L + κ log₂ p + τ + 2 (p − 1) / p n / (φ β)
///
/// p GPUs, n bytes, β bandwidth of a GPU's links in one direction, κ `barrier`, τ `second`, φ `links`, φ₁ `one`.
/// Source of the form: the one-shot and two-shot kernels of vLLM (csrc/custom_all_reduce.cuh) and TensorRT-LLM.
pub(super) fn parts(call: &AllReduce, chip: &Chip, coefficients: &[f64]) -> Option<Parts> {
    let &[latency, barrier, links, second, one] = coefficients else { return None };
    let link = chip.link?;
    let others = call.gpus.saturating_sub(1) as f64;
    let part = others / call.gpus.max(1) as f64;
    let start = us(latency + barrier * libm::log2(call.gpus.max(1) as f64));
    let at_once = Parts { latency: start, links: others * call.message / (link * one), ..Parts::default() };
    let in_two = Parts {
        latency: start + us(second),
        links: 2.0 * part * call.message / (link * links),
        ..Parts::default()
    };
    Some(if at_once.total() <= in_two.total() { at_once } else { in_two })
}
