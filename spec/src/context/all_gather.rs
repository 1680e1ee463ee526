//! All-gather of keys and values.

use super::{ContextScheme, Exchange, Refusal, SharedAttention, Step, Tile, Volume};
use crate::collective::CollectiveKind;
use crate::program::{Axis, Travels};
use crate::stack::AttentionKernel;

/// Every rank gathers all keys and values and computes its queries' attention to them.
///
/// Forward sends (c − 1)/c · b s (k + v). Backward gathers them again instead of keeping them, and reduce-scatters
/// their gradients: twice that.
///
/// c ranks, b sequences of s tokens, k and v the widths of all key and all value heads. Under a causal mask each rank
/// has the i-th part from the beginning and the i-th from the end, so that all see the same number of keys.
#[derive(Debug)]
pub(super) struct AllGather;

impl ContextScheme for AllGather {
    fn name(&self) -> &'static str {
        "all-gather"
    }

    fn summary(&self) -> &'static str {
        "every rank gathers all keys and values before attention, again in backward"
    }

    fn source(&self) -> &'static str {
        "Grattafiori et al. 2024, The Llama 3 Herd of Models, arXiv 2407.21783, section 3.3.2; NVIDIA Transformer Engine, context parallelism by all-gather"
    }

    fn formula(&self) -> &'static str {
        "forward (c - 1)/c b s (k + v), backward 2 (c - 1)/c b s (k + v)"
    }

    fn check(&self, layer: &SharedAttention, _: AttentionKernel) -> Result<(), Refusal> {
        layer.has_no_inner(self.name())?;
        layer.divides_sequence()
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

/// The steps of all ranks of `layer`, which lie on `axis`.
pub(super) fn forward(layer: &SharedAttention, axis: Axis) -> Vec<Step> {
    let mut steps = collectives(
        layer,
        axis,
        [("gather keys", Travels::Keys), ("gather values", Travels::Values)],
        CollectiveKind::AllGather,
    );
    steps.push(Step::Attend(tile(layer)));
    steps
}

pub(super) fn backward(layer: &SharedAttention, axis: Axis) -> Vec<Step> {
    let reduce = [
        ("reduce key gradients", Travels::KeyGradients),
        ("reduce value gradients", Travels::ValueGradients),
    ];
    let mut steps = forward(layer, axis);
    steps.extend(collectives(layer, axis, reduce, CollectiveKind::ReduceScatter));
    steps
}

pub(super) fn volume(layer: &SharedAttention) -> Volume {
    let forward = (layer.ranks - 1) * (layer.key() + layer.value());
    Volume { forward, backward: 2 * forward }
}

fn collectives(
    layer: &SharedAttention,
    axis: Axis,
    [keys, values]: [(&'static str, Travels); 2],
    kind: CollectiveKind,
) -> Vec<Step> {
    if layer.ranks == 1 {
        return Vec::new();
    }
    let gathered = |(what, travels), part| {
        let elements = layer.ranks * part;
        Step::Exchange(Exchange { what, travels, kind, axis, elements, beside_next: false })
    };
    vec![gathered(keys, layer.key()), gathered(values, layer.value())]
}

/// A rank's queries against all keys, which it holds.
fn tile(layer: &SharedAttention) -> Tile {
    let gathered = if layer.ranks == 1 { 0 } else { layer.ranks * (layer.key() + layer.value()) };
    Tile {
        heads: layer.heads,
        kv_heads: layer.kv_heads,
        queries: layer.local_sequence(),
        keys: layer.sequence,
        mask: layer.mask,
        held: gathered,
    }
}
