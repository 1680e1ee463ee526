//! Two levels: neighbouring ranks exchange heads, sets of them share the sequence.

use super::heads::Heads;
use super::{ContextScheme, Refusal, SharedAttention, Step, Volume, all_gather, ring};
use crate::program::Axis;
use crate::stack::AttentionKernel;

/// Ulysses over the inner axis, another scheme over the outer one.
///
/// With u inner ranks and r = c/u outer ones, the inner exchange sends (u − 1)/u · b s/c (2 h + k + v) elements each
/// way, and the outer scheme shares a layer of h/u, k/u and v/u among r ranks. Inner ranks are neighbours: with as
/// many as a node has GPUs for the context axis, all-to-all stays in the node and only keys and values leave it.
#[derive(Debug)]
pub(super) struct Hybrid {
    name: &'static str,
    summary: &'static str,
    formula: &'static str,
    outer: &'static Outer,
}

/// The scheme of the outer axis.
#[derive(Debug)]
struct Outer {
    check: fn(&SharedAttention, AttentionKernel) -> Result<(), Refusal>,
    forward: fn(&SharedAttention, Axis) -> Vec<Step>,
    backward: fn(&SharedAttention, Axis) -> Vec<Step>,
    volume: fn(&SharedAttention) -> Volume,
}

/// A ring of sets that exchange heads.
pub(super) static RING: Hybrid = Hybrid {
    name: "hybrid",
    summary: "Ulysses among mesh.context_inner neighbours, a ring of keys and values among sets of them",
    formula: "forward (u - 1)/u b s/c (2 h + k + v) + (r - 1)/r b s/u (k + v), backward the ring's part twice",
    outer: &Outer {
        check: ring::check,
        forward: ring::forward,
        backward: ring::backward,
        volume: ring::volume,
    },
};

/// All-gather of keys and values among sets that exchange heads.
pub(super) static ALL_GATHER: Hybrid = Hybrid {
    name: "hybrid-all-gather",
    summary: "Ulysses among mesh.context_inner neighbours, all-gather of keys and values among sets of them",
    formula: "forward (u - 1)/u b s/c (2 h + k + v) + (r - 1)/r b s/u (k + v), backward the gathers' part twice",
    outer: &Outer {
        check: |_, _| Ok(()),
        forward: all_gather::forward,
        backward: all_gather::backward,
        volume: all_gather::volume,
    },
};

fn heads(layer: &SharedAttention) -> Heads {
    Heads { axis: Axis::ContextInner, degree: layer.inner }
}

impl ContextScheme for Hybrid {
    fn name(&self) -> &'static str {
        self.name
    }

    fn summary(&self) -> &'static str {
        self.summary
    }

    fn source(&self) -> &'static str {
        "Fang and Zhao 2024, USP, arXiv 2405.07719; Gu et al. 2024, LoongTrain, arXiv 2406.18485; Megatron-Core, hierarchical context parallelism"
    }

    fn formula(&self) -> &'static str {
        self.formula
    }

    fn check(&self, layer: &SharedAttention, kernel: AttentionKernel) -> Result<(), Refusal> {
        layer.divides_sequence()?;
        heads(layer).check(layer, "mesh.context_inner")?;
        (self.outer.check)(&heads(layer).share(layer), kernel)
    }

    fn forward(&self, layer: &SharedAttention) -> Vec<Step> {
        let shared = heads(layer).share(layer);
        heads(layer).forward(layer, (self.outer.forward)(&shared, Axis::ContextOuter))
    }

    fn backward(&self, layer: &SharedAttention) -> Vec<Step> {
        let shared = heads(layer).share(layer);
        heads(layer).backward(layer, (self.outer.backward)(&shared, Axis::ContextOuter))
    }

    fn kept(&self, layer: &SharedAttention) -> usize {
        heads(layer).kept(layer)
    }

    fn volume(&self, layer: &SharedAttention) -> Volume {
        let outer = (self.outer.volume)(&heads(layer).share(layer));
        let inner = heads(layer).sent(layer);
        Volume { forward: inner + outer.forward, backward: inner + outer.backward }
    }
}
