//! Token exchanges among the GPUs of a node that share experts: dispatch to the experts, combine of their results.

use super::parts::{Coefficient, Family, Parts, latency, us};
use super::{Chip, Exchange};

/// Exchanges of tokens.
pub(super) static FAMILY: Family = Family {
    name: "exchange",
    title: "token exchange of experts",
    coefficients: &[
        latency(30.0),
        Coefficient {
            name: "links",
            start: 0.4,
            low: 0.005,
            high: 1.0,
            meaning: "part of the links' bandwidth that many tokens reach",
        },
        Coefficient {
            name: "token",
            start: 0.01,
            low: 0.000_01,
            high: 5.0,
            meaning: "us for each token and expert, whatever its width",
        },
    ],
};

/// The parts of its time.
///
/// T = L + s H b q / (φ β) + τ s k, q = (p − 1) (1 − (1 − 1 / p)^k)
///
/// s tokens on each of p GPUs, k experts each, H elements of b bytes; q peers that a token goes to in the mean, at each once;
/// β bandwidth of a GPU's links in one direction, φ `links`, τ `token`.
/// Source of the form: DeepEP, README.md (a token is sent once to each rank).
pub(super) fn parts(call: &Exchange, chip: &Chip, coefficients: &[f64]) -> Option<Parts> {
    let &[latency, links, token] = coefficients else { return None };
    let link = chip.link?;
    let gpus = call.gpus.max(1) as f64;
    let peers = (gpus - 1.0) * (1.0 - (1.0 - 1.0 / gpus).powi(call.chosen as i32));
    let bytes = (call.tokens * call.hidden) as f64 * peers * call.element.activation;
    Some(Parts {
        latency: us(latency),
        links: bytes / (link * links),
        overhead: us(token * (call.tokens * call.chosen) as f64),
        ..Parts::default()
    })
}
