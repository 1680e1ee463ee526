//! Ring attention: queries stay, keys and values go round.

use super::{ContextScheme, Exchange, Refusal, SharedAttention, Step, Tile, Volume};
use crate::collective::CollectiveKind;
use crate::model::Mask;
use crate::program::{Axis, Travels};
use crate::stack::AttentionKernel;

/// Ring attention over the context axis.
///
/// Each rank computes with its keys and values while its neighbour's come, then with those, and so on; partial
/// outputs are added, each weighted by the softmax statistics of its step. In backward keys and values go round
/// again, and with them their gradients, to which every rank adds its part.
///
/// Forward sends (c − 1)/c · b s (k + v), backward twice that.
///
/// c ranks, b sequences of s tokens, k and v the widths of all key and all value heads. Under a causal mask rank r
/// has the r-th and the (2c − 1 − r)-th of 2c parts of the sequence: the step with its keys is a causal square, every other one
/// half a square. That is all its queries against the first half of the keys of a rank before it, or the second half
/// of its queries against all keys of a rank after it; the steps here are the first, whose partial outputs are the
/// longer ones.
///
/// Each step waits for the exchange before it, with two buffers for keys and values. Partial results are added in
/// the precision of activations; statistics, 4 bytes for a row of a head, travel with nothing and are not counted.
#[derive(Debug)]
pub(super) struct Ring;

impl ContextScheme for Ring {
    fn name(&self) -> &'static str {
        "ring"
    }

    fn summary(&self) -> &'static str {
        "keys and values go round beside the attention kernels; balanced parts of the sequence under a causal mask"
    }

    fn source(&self) -> &'static str {
        "Liu et al. 2023, arXiv 2310.01889; Brandon et al. 2023, arXiv 2311.09431; NVIDIA Transformer Engine, context parallelism by peer-to-peer messages"
    }

    fn formula(&self) -> &'static str {
        "forward (c - 1)/c b s (k + v), backward 2 (c - 1)/c b s (k + v)"
    }

    fn check(&self, layer: &SharedAttention, kernel: AttentionKernel) -> Result<(), Refusal> {
        layer.has_no_inner(self.name())?;
        check(layer, kernel)
    }

    fn forward(&self, layer: &SharedAttention) -> Vec<Step> {
        forward(layer, Axis::Context)
    }

    fn backward(&self, layer: &SharedAttention) -> Vec<Step> {
        backward(layer, Axis::Context)
    }

    fn volume(&self, layer: &SharedAttention) -> Volume {
        volume(layer)
    }
}

pub(super) fn check(layer: &SharedAttention, kernel: AttentionKernel) -> Result<(), Refusal> {
    let refuse = |allowed: &str| Err(Refusal { key: "context_scheme", allowed: allowed.into() });
    if layer.ranks > 1 && kernel.version().is_none() {
        return refuse(
            "the stack's attention kernel must be one that never stores the scores and gives their statistics: take \
             `all-gather`, `ulysses` or `ring-self-attention`, or a stack with `flash` attention",
        );
    }
    if layer.ranks > 1 && matches!(layer.mask, Mask::Window(_)) {
        return refuse(
            "with a sliding window most steps of a ring would see no key: take `all-gather` or `ulysses`",
        );
    }
    layer.divides_sequence()
}

/// The steps of a ring of all ranks of `layer`, which lie on `axis`.
pub(super) fn forward(layer: &SharedAttention, axis: Axis) -> Vec<Step> {
    let pair = layer.key() + layer.value();
    let mut steps = Vec::new();
    for step in 0..layer.ranks {
        let (first, last) = (step == 0, step + 1 == layer.ranks);
        if !last {
            steps.push(pass_on(Travels::KeysAndValues, axis, pair));
        }
        let buffers = usize::from(!first) + usize::from(!last);
        let added_up = if first { 0 } else { layer.output() };
        steps.push(Step::Attend(tile(layer, first, buffers * pair + added_up)));
        if !first {
            steps.push(Step::Add { elements: layer.output() });
        }
    }
    steps
}

/// Begins with a neighbour's keys and values, which were the last to come in forward, and ends with the rank's, so
/// that both they and their gradients are home after c − 1 exchanges.
pub(super) fn backward(layer: &SharedAttention, axis: Axis) -> Vec<Step> {
    let pair = layer.key() + layer.value();
    let mut steps = Vec::new();
    for step in 0..layer.ranks {
        let (first, last) = (step == 0, step + 1 == layer.ranks);
        match (first, last) {
            (true, true) => {}
            (true, false) => steps.push(pass_on(Travels::KeysAndValues, axis, pair)),
            (false, false) => steps.push(pass_on(Travels::KeysValuesAndGradients, axis, 2 * pair)),
            (false, true) => steps.push(pass_on(Travels::KeyAndValueGradients, axis, pair)),
        }
        let buffers = usize::from(!first) + usize::from(!last);
        // Gradients of queries so far; those of keys and values that go and those that come.
        let added_up = if first { 0 } else { layer.query() + 2 * pair };
        steps.push(Step::Attend(tile(layer, last, buffers * pair + added_up)));
        if !first {
            steps.push(Step::Add { elements: layer.query() + pair });
        }
    }
    steps
}

pub(super) fn volume(layer: &SharedAttention) -> Volume {
    let forward = (layer.ranks - 1) * (layer.key() + layer.value());
    Volume { forward, backward: 2 * forward }
}

/// A rank's queries against its keys, or those of another rank.
fn tile(layer: &SharedAttention, local_keys: bool, held: usize) -> Tile {
    let queries = layer.local_sequence();
    let (keys, mask) = match layer.mask {
        Mask::Causal if !local_keys => (queries / 2, Mask::Full),
        mask => (queries, mask),
    };
    Tile { heads: layer.heads, kv_heads: layer.kv_heads, queries, keys, mask, held }
}

/// Every rank sends to the next and receives from the one before, in backward the other way, while the next step runs.
fn pass_on(travels: Travels, axis: Axis, elements: usize) -> Step {
    let what = match travels {
        Travels::KeysAndValues => "keys and values",
        Travels::KeysValuesAndGradients => "keys, values, gradients",
        _ => "key and value gradients",
    };
    let kind = CollectiveKind::SendReceive;
    Step::Exchange(Exchange { what, travels, kind, axis, elements, beside_next: true })
}
