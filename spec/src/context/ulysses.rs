//! DeepSpeed-Ulysses: all-to-all exchanges of heads for parts of the sequence.

use super::heads::Heads;
use super::{ContextScheme, Refusal, SharedAttention, Step, Tile, Volume};
use crate::model::Mask;
use crate::program::Axis;
use crate::stack::AttentionKernel;
use std::ops::Range;

/// Each rank computes the attention of 1/c of the heads over all positions.
///
/// Forward sends (c − 1)/c · b s/c (2 h + k + v) elements, backward the same.
///
/// c ranks, b sequences of s tokens, h the width of all query heads, which the outputs have too (q + o where value
/// heads have another width), k and v of all key and value heads; with fewer key-value heads than ranks, of c heads.
#[derive(Debug)]
pub(super) struct Ulysses;

impl Ulysses {
    fn heads(layer: &SharedAttention) -> Heads {
        Heads { axis: Axis::Context, degree: layer.ranks }
    }
}

impl ContextScheme for Ulysses {
    fn name(&self) -> &'static str {
        "ulysses"
    }

    fn summary(&self) -> &'static str {
        "all-to-all exchanges before and after attention: each rank has some heads of whole sequences"
    }

    fn source(&self) -> &'static str {
        "Jacobs et al. 2023, DeepSpeed Ulysses, arXiv 2309.14509, section 3"
    }

    fn formula(&self) -> &'static str {
        "forward (c - 1)/c b s/c (2 h + k + v), backward the same; k, v of c heads where there are fewer"
    }

    fn check(&self, layer: &SharedAttention, _: AttentionKernel) -> Result<(), Refusal> {
        layer.has_no_inner(self.name())?;
        SharedAttention { mask: Mask::Full, ..*layer }.divides_sequence()?;
        Ulysses::heads(layer).check(layer, "mesh.context")
    }

    fn forward(&self, layer: &SharedAttention) -> Vec<Step> {
        let heads = Ulysses::heads(layer);
        heads.forward(layer, vec![full_sequences(&heads.share(layer))])
    }

    fn backward(&self, layer: &SharedAttention) -> Vec<Step> {
        let heads = Ulysses::heads(layer);
        heads.backward(layer, vec![full_sequences(&heads.share(layer))])
    }

    fn kept(&self, layer: &SharedAttention) -> usize {
        Ulysses::heads(layer).kept(layer)
    }

    fn positions(&self, layer: &SharedAttention, rank: usize) -> Vec<Range<usize>> {
        layer.dealt(1, rank)
    }

    fn volume(&self, layer: &SharedAttention) -> Volume {
        let sent = Ulysses::heads(layer).sent(layer);
        Volume { forward: sent, backward: sent }
    }
}

/// Attention over full sequences.
fn full_sequences(layer: &SharedAttention) -> Step {
    Step::Attend(Tile {
        heads: layer.heads,
        kv_heads: layer.kv_heads,
        queries: layer.sequence,
        keys: layer.sequence,
        mask: layer.mask,
        held: 0,
    })
}
