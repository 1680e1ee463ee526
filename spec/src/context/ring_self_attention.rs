//! Colossal-AI's sequence parallelism: the keys go round, then the values, and the scores are stored.

use super::{ContextScheme, Exchange, Refusal, SharedAttention, Step, Volume};
use crate::collective::CollectiveKind;
use crate::model::Mask;
use crate::program::{Axis, Travels};
use crate::stack::AttentionKernel;
use std::ops::Range;

/// Ring Self-Attention.
///
/// Forward: keys go round until each rank has the s/c × s scores of its queries; softmax; values go round. Backward:
/// the gradients of all values, then of all keys, are made from the rank's queries and added by an all-reduce; values,
/// then keys, go round again for the gradients of scores and queries. Nothing overlaps a product.
///
/// Forward sends (c − 1)/c · b s (k + v), backward three times that: 8 (c − 1)/c b s h in all where k = v = h.
///
/// c ranks, b sequences of s tokens, k and v the widths of all key and all value heads. The parts of the sequence are
/// in order, and masked-out scores are computed too. As the authors' code does, each part of the scores is copied into
/// the whole, and each part of a gradient or an output added to what was zero before, also where there is but one.
#[derive(Debug)]
pub(super) struct RingSelfAttention;

impl ContextScheme for RingSelfAttention {
    fn name(&self) -> &'static str {
        "ring-self-attention"
    }

    fn summary(&self) -> &'static str {
        "Colossal-AI's: keys go round, then values; scores are stored; key and value gradients are all-reduced"
    }

    fn source(&self) -> &'static str {
        "Li et al. 2021, Sequence Parallelism: Long Sequence Training from System Perspective, arXiv 2105.13120, section 3"
    }

    fn formula(&self) -> &'static str {
        "forward (c - 1)/c b s (k + v), backward 3 (c - 1)/c b s (k + v)"
    }

    fn check(&self, layer: &SharedAttention, _: AttentionKernel) -> Result<(), Refusal> {
        layer.has_no_inner(self.name())?;
        SharedAttention { mask: Mask::Full, ..*layer }.divides_sequence()
    }

    fn forward(&self, layer: &SharedAttention) -> Vec<Step> {
        let part = layer.local_sequence();
        let (d, dv) = (layer.head_dim, layer.value_head_dim);
        let place = Step::Reorder { elements: layer.scores() / layer.ranks };
        let mut steps = round(layer, "keys", layer.key(), [part, part, d], place);
        steps.push(Step::Softmax { queries: part, keys: layer.sequence });
        steps.extend(round(
            layer,
            "values",
            layer.value(),
            [part, dv, part],
            Step::Add { elements: layer.output() },
        ));
        steps
    }

    fn backward(&self, layer: &SharedAttention) -> Vec<Step> {
        let (part, all) = (layer.local_sequence(), layer.sequence);
        let (d, dv) = (layer.head_dim, layer.value_head_dim);
        let mut steps = reduced(layer, "values", layer.value(), [all, dv, part]);
        let add = |elements| Step::Add { elements };
        let scores = layer.scores() / layer.ranks;
        steps.extend(round(layer, "values", layer.value(), [part, part, dv], add(scores)));
        steps.push(Step::Softmax { queries: part, keys: all });
        steps.extend(reduced(layer, "keys", layer.key(), [all, d, part]));
        steps.extend(round(layer, "keys", layer.key(), [part, d, part], add(layer.query())));
        steps
    }

    fn positions(&self, layer: &SharedAttention, rank: usize) -> Vec<Range<usize>> {
        SharedAttention { mask: Mask::Full, ..*layer }.dealt(layer.ranks, rank)
    }

    fn volume(&self, layer: &SharedAttention) -> Volume {
        let rings = (layer.ranks - 1) * (layer.key() + layer.value());
        Volume { forward: rings, backward: rings + 2 * rings }
    }
}

/// A product with the part that a rank has, then with each that comes; what becomes of its result is `then`.
fn round(
    layer: &SharedAttention,
    with: &'static str,
    part: usize,
    size: [usize; 3],
    then: Step,
) -> Vec<Step> {
    let pass_on = Exchange {
        what: with,
        travels: travelling(with),
        kind: CollectiveKind::SendReceive,
        axis: Axis::Context,
        elements: part,
        beside_next: false,
    };
    let mut steps = Vec::new();
    for step in 0..layer.ranks {
        if step > 0 {
            steps.push(Step::Exchange(pass_on));
        }
        let added_up = if let Step::Add { elements } = then { elements } else { 0 };
        let received = if step > 0 { part } else { 0 };
        steps.extend([Step::Product { with, size, held: received + added_up }, then]);
    }
    steps
}

/// The product that makes a rank's summand of all keys' or values' gradients, and the sum over the ranks.
fn reduced(layer: &SharedAttention, with: &'static str, part: usize, size: [usize; 3]) -> Vec<Step> {
    let sum = Exchange {
        travels: if with == "keys" { Travels::KeyGradients } else { Travels::ValueGradients },
        what: if with == "keys" { "reduce key gradients" } else { "reduce value gradients" },
        kind: CollectiveKind::AllReduce,
        axis: Axis::Context,
        elements: layer.ranks * part,
        beside_next: false,
    };
    let product = Step::Product { with, size, held: 0 };
    std::iter::once(product).chain((layer.ranks > 1).then_some(Step::Exchange(sum))).collect()
}

fn travelling(what: &str) -> Travels {
    if what == "keys" { Travels::Keys } else { Travels::Values }
}
