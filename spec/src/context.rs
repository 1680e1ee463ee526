//! How ranks that each hold a part of every sequence compute attention together.
//!
//! ```text
//! SharedAttention ─► a ContextScheme of CONTEXT_SCHEMES ─► Steps forward and backward, what is kept, what is sent
//! ```
//!
//! All but attention sees each token by itself: norms, products and the loss run on the tokens that a rank has. In
//! attention every query needs the keys of other ranks; a scheme says which of queries, keys and values travel, and
//! which tiles of the scores each rank computes. A scheme is data: nothing here knows kernels, bytes, links or time.
//!
//! Ring attention among four ranks, forward. While a rank computes with the keys and values that it has, the next
//! come from its neighbour:
//!
//! ```
//! use trainwright_spec::context::{SharedAttention, Step, context_scheme};
//! use trainwright_spec::model::Mask;
//! let layer = SharedAttention {
//!     batch: 1, sequence: 64, heads: 2, kv_heads: 1, head_dim: 8, value_head_dim: 8, mask: Mask::Full, ranks: 4, inner: 1,
//! };
//! let steps = context_scheme("ring")?.forward(&layer);
//! let sent: usize = steps.iter().map(|step| step.sent(&layer)).sum();
//! assert_eq!(sent, 3 * 16 * (8 + 8)); // three times the keys and values of 16 tokens
//! # Ok::<(), trainwright_spec::error::SpecError>(())
//! ```

mod all_gather;
mod heads;
mod hybrid;
mod ring;
mod ring_self_attention;
mod ulysses;

use crate::catalog::nearest;
use crate::collective::CollectiveKind;
use crate::error::SpecError;
use crate::mesh::Mesh;
use crate::model::{Attention, Mask};
use crate::program::{Axis, Travels};
use crate::stack::AttentionKernel;
use crate::tensor::Parts;
use std::fmt;
use std::ops::Range;

/// An attention layer as one rank of the tensor axis has it, and how many ranks share its sequences.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedAttention {
    /// Sequences.
    pub batch: usize,
    /// Tokens of each, over all ranks that share it.
    pub sequence: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Width of a query or key head.
    pub head_dim: usize,
    /// Width of a value head.
    pub value_head_dim: usize,
    /// Which keys a query sees.
    pub mask: Mask,
    /// Ranks that share each sequence.
    pub ranks: usize,
    /// Neighbouring ones of them that exchange heads, in hybrids.
    pub inner: usize,
}

impl SharedAttention {
    /// An attention layer of a mesh whose tensor axis cuts what is on a rank in some parts.
    pub fn of(
        attention: &Attention,
        parts: &Parts,
        mesh: &Mesh,
        [batch, sequence]: [usize; 2],
    ) -> SharedAttention {
        SharedAttention {
            batch,
            sequence,
            heads: attention.heads.div_ceil(parts.width),
            kv_heads: attention.kv_heads.div_ceil(parts.width),
            head_dim: attention.head_dim,
            value_head_dim: attention.value_head_dim,
            mask: attention.mask,
            ranks: mesh.context,
            inner: mesh.context_inner,
        }
    }
}

/// One thing a rank does between having its queries, keys and values and having its outputs; in backward,
/// between having its outputs' gradients and having the others'.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Something travels.
    Exchange(Exchange),
    /// Attention of some queries to some keys, from scores to values: forward, or all of its backward.
    Attend(Tile),
    /// A product for each sequence and head, (m × k) · (k × n), for schemes that store the scores.
    Product {
        /// The operand that is multiplied with the scores: `keys` or `values`.
        with: &'static str,
        /// m, n, k.
        size: [usize; 3],
        /// Elements of buffers held meanwhile.
        held: usize,
    },
    /// All between the two products: scaling, mask, softmax, dropout.
    Softmax {
        /// Queries of each sequence.
        queries: usize,
        /// Keys of each sequence.
        keys: usize,
    },
    /// A partial result is added to what other steps have added up.
    Add {
        /// Elements of the result.
        elements: usize,
    },
    /// Elements are brought into the order in which they travel or are used.
    Reorder {
        /// How many.
        elements: usize,
    },
}

/// A collective over some context ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exchange {
    /// The name of the op.
    pub what: &'static str,
    /// The tensors that travel.
    pub travels: Travels,
    /// Which collective.
    pub kind: CollectiveKind,
    /// Over which ranks.
    pub axis: Axis,
    /// Elements of the full tensor, as `CollectiveKind` counts them.
    pub elements: usize,
    /// Whether it overlaps the next step.
    pub beside_next: bool,
}

/// A part of the scores: some queries of each sequence against some keys, for some heads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tile {
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Queries of each sequence.
    pub queries: usize,
    /// Keys of each sequence.
    pub keys: usize,
    /// Which of them a query sees.
    pub mask: Mask,
    /// Elements of buffers held meanwhile, without its operands and results.
    pub held: usize,
}

/// Elements that each rank sends for one layer and microbatch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Volume {
    /// In forward.
    pub forward: usize,
    /// In backward.
    pub backward: usize,
}

/// Why a scheme cannot share a layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The plan's key with the wrong value.
    pub key: &'static str,
    /// The allowed values.
    pub allowed: String,
}

/// A way to share attention.
pub trait ContextScheme: fmt::Debug + Sync {
    /// The name in plans and arguments.
    fn name(&self) -> &'static str;

    /// One line for `show context-schemes`.
    fn summary(&self) -> &'static str;

    /// Where it is from.
    fn source(&self) -> &'static str;

    /// The elements that each rank sends, in symbols: for `show context-schemes`.
    fn formula(&self) -> &'static str;

    /// Whether the scheme can share this layer, computed with this kernel.
    ///
    /// # Errors
    /// The plan's key that is wrong and what is allowed.
    fn check(&self, layer: &SharedAttention, kernel: AttentionKernel) -> Result<(), Refusal>;

    /// From a rank's queries, keys and values to its outputs. `layer` has passed `check`.
    fn forward(&self, layer: &SharedAttention) -> Vec<Step>;

    /// From the gradient of a rank's outputs to those of its queries, keys and values.
    fn backward(&self, layer: &SharedAttention) -> Vec<Step>;

    /// The positions of each sequence that a rank has, ascending. `layer` has passed `check`.
    fn positions(&self, layer: &SharedAttention, rank: usize) -> Vec<Range<usize>> {
        layer.dealt(layer.ranks / layer.inner, rank)
    }

    /// Elements that forward keeps for backward, without the scores or their statistics and a rank's outputs.
    fn kept(&self, layer: &SharedAttention) -> usize {
        layer.inputs()
    }

    /// The elements that a rank sends, in closed form.
    fn volume(&self, layer: &SharedAttention) -> Volume;
}

/// Every scheme. A new one is a file in `context/` and a line here.
pub static CONTEXT_SCHEMES: &[&dyn ContextScheme] = &[
    &ring::Ring,
    &all_gather::AllGather,
    &ulysses::Ulysses,
    &hybrid::RING,
    &hybrid::ALL_GATHER,
    &ring_self_attention::RingSelfAttention,
];

/// The scheme of that name.
///
/// # Errors
/// `UnknownName` with the nearest names.
pub fn context_scheme(name: &str) -> Result<&'static dyn ContextScheme, SpecError> {
    CONTEXT_SCHEMES.iter().copied().find(|scheme| scheme.name() == name).ok_or_else(|| {
        SpecError::UnknownName {
            kind: "context-scheme",
            name: name.into(),
            nearest: nearest(name, CONTEXT_SCHEMES.iter().map(|scheme| scheme.name())),
        }
    })
}

impl SharedAttention {
    /// Tokens of each sequence that a rank has.
    pub fn local_sequence(&self) -> usize {
        self.sequence / self.ranks
    }

    /// Elements of a rank's queries.
    pub fn query(&self) -> usize {
        self.batch * self.local_sequence() * self.heads * self.head_dim
    }

    /// Elements of a rank's keys.
    pub fn key(&self) -> usize {
        self.batch * self.local_sequence() * self.kv_heads * self.head_dim
    }

    /// Elements of a rank's values.
    pub fn value(&self) -> usize {
        self.batch * self.local_sequence() * self.kv_heads * self.value_head_dim
    }

    /// Elements of a rank's outputs.
    pub fn output(&self) -> usize {
        self.batch * self.local_sequence() * self.heads * self.value_head_dim
    }

    /// Elements of a rank's queries, keys and values.
    pub fn inputs(&self) -> usize {
        self.query() + self.key() + self.value()
    }

    /// Scores of all heads of a rank, masked-out ones too: the same under every scheme.
    pub fn scores(&self) -> usize {
        self.batch * self.heads * self.local_sequence() * self.sequence
    }

    /// Queries of all heads of a rank: the same under every scheme.
    pub fn rows(&self) -> usize {
        self.batch * self.heads * self.local_sequence()
    }

    /// Ranks of a context axis.
    pub fn ranks_of(&self, axis: Axis) -> usize {
        match axis {
            Axis::ContextInner => self.inner,
            Axis::ContextOuter => self.ranks / self.inner,
            _ => self.ranks,
        }
    }

    /// The positions of each sequence that a rank has if `sets` sets of neighbouring ranks have equal parts: with a causal mask and
    /// several sets the i-th part from the beginning and the i-th from the end. Each rank of a set has an equal slice
    /// of each of its parts.
    fn dealt(&self, sets: usize, rank: usize) -> Vec<Range<usize>> {
        let inner = self.ranks / sets;
        let (set, place) = (rank / inner, rank % inner);
        let balanced = sets > 1 && self.mask != Mask::Full;
        let parts = if balanced { 2 * sets } else { sets };
        let parts_of_set = std::iter::once(set).chain(balanced.then(|| parts - 1 - set));
        let (length, slice) = (self.sequence / parts, self.sequence / parts / inner);
        parts_of_set.map(|part| part * length + place * slice).map(|first| first..first + slice).collect()
    }

    /// Whether the ranks can have equal parts of each sequence: with a causal mask two each, the i-th from the
    /// beginning and the i-th from the end, so that all see the same number of keys.
    fn divides_sequence(&self) -> Result<(), Refusal> {
        let (parts, what) = match self.mask {
            Mask::Causal | Mask::Window(_) if self.ranks > 1 => {
                (2 * self.ranks, "the sequence into two parts a rank")
            }
            _ => (self.ranks, "the sequence"),
        };
        match self.sequence.is_multiple_of(parts) {
            true => Ok(()),
            false => Err(Refusal {
                key: "mesh.context",
                allowed: format!("it must divide {what}: {} tokens by {parts}", self.sequence),
            }),
        }
    }

    /// For schemes without an inner axis.
    fn has_no_inner(&self, name: &str) -> Result<(), Refusal> {
        match self.inner {
            1 => Ok(()),
            _ => Err(Refusal {
                key: "mesh.context_inner",
                allowed: format!("context scheme `{name}` has 1: `hybrid` and `hybrid-all-gather` have more"),
            }),
        }
    }
}

impl Step {
    /// Elements that a rank sends in this step.
    ///
    /// Of n elements among p ranks: n for a send-receive, (p − 1)/p n for an all-gather, a reduce-scatter or an
    /// all-to-all, 2 (p − 1)/p n for an all-reduce. `SharedAttention` that passed `check` divides.
    pub fn sent(&self, layer: &SharedAttention) -> usize {
        match self {
            Step::Exchange(exchange) => {
                let ranks = layer.ranks_of(exchange.axis);
                (exchange.kind.bus_factor(ranks) * exchange.elements as f64).round() as usize
            }
            _ => 0,
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Step::Exchange(Exchange { what, kind, axis, elements, beside_next, .. }) => {
                let beside = if *beside_next { ", beside the next step" } else { "" };
                write!(f, "{kind} over {}: {what}, {elements} elements{beside}", axis.name())
            }
            Step::Attend(Tile { heads, queries, keys, mask, .. }) => {
                let mask = match mask {
                    Mask::Full => String::new(),
                    Mask::Causal => ", causal".into(),
                    Mask::Window(window) => format!(", window of {window}"),
                };
                write!(f, "attention of {heads} heads: {queries} queries, {keys} keys{mask}")
            }
            Step::Product { with, size: [m, n, k], .. } => {
                write!(f, "product with {with}: {m} x {n} x {k} a head")
            }
            Step::Softmax { queries, keys } => write!(f, "softmax: {queries} queries, {keys} keys"),
            Step::Add { elements } => write!(f, "add partial results: {elements} elements"),
            Step::Reorder { elements } => write!(f, "reorder: {elements} elements"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYER: SharedAttention = SharedAttention {
        batch: 2,
        sequence: 1024,
        heads: 16,
        kv_heads: 4,
        head_dim: 8,
        value_head_dim: 8,
        mask: Mask::Causal,
        ranks: 8,
        inner: 1,
    };

    #[test]
    fn steps_send_what_the_closed_form_says() {
        let sent = |steps: Vec<Step>, layer: &SharedAttention| -> usize {
            steps.iter().map(|step| step.sent(layer)).sum()
        };
        let mut tried = 0;
        for scheme in CONTEXT_SCHEMES {
            for (ranks, inner) in
                [(1, 1), (2, 1), (4, 1), (8, 1), (2, 2), (4, 2), (8, 2), (8, 4), (16, 8), (16, 16)]
            {
                for mask in [Mask::Full, Mask::Causal, Mask::Window(100)] {
                    for (kv_heads, value_head_dim) in [(16, 8), (16, 12), (4, 8), (1, 8)] {
                        let layer = SharedAttention { ranks, inner, mask, kv_heads, value_head_dim, ..LAYER };
                        if scheme.check(&layer, AttentionKernel::Flash).is_err() {
                            continue;
                        }
                        let Volume { forward, backward } = scheme.volume(&layer);
                        let case = format!("{} of {layer:?}", scheme.name());
                        assert_eq!(sent(scheme.forward(&layer), &layer), forward, "{case}");
                        assert_eq!(sent(scheme.backward(&layer), &layer), backward, "{case}");
                        assert_eq!(forward == 0, ranks == 1, "{case}");
                        tried += 1;
                    }
                }
            }
        }
        assert!(tried > 150, "{tried}");
    }

    #[test]
    fn every_scheme_computes_every_score_once() {
        // Causal: s² / 2 for each head and sequence, all ranks and all their heads together; full: s².
        for scheme in CONTEXT_SCHEMES {
            for (mask, part) in [(Mask::Causal, 0.5), (Mask::Full, 1.0)] {
                let layer = SharedAttention { mask, kv_heads: 16, ..LAYER };
                let hybrid = SharedAttention { inner: 2, ..layer };
                let layer =
                    if scheme.check(&hybrid, AttentionKernel::Flash).is_ok() { hybrid } else { layer };
                let visible = |step: &Step| match *step {
                    Step::Attend(tile) => {
                        tile.heads as f64 * tile.mask.visible_pairs(tile.queries, tile.keys)
                    }
                    Step::Softmax { queries, keys } => 16.0 * mask.visible_pairs(queries, keys),
                    _ => 0.0,
                };
                for steps in [scheme.forward(&layer), scheme.backward(&layer)] {
                    let of_rank: f64 = steps.iter().map(visible).sum();
                    assert_eq!(8.0 * of_rank, part * 16.0 * 1024.0 * 1024.0, "{} {mask:?}", scheme.name());
                }
            }
        }
    }

    /// A ring of three, of which each rank has n elements of keys and values, and q of queries: beside its own a rank holds the
    /// neighbour's that it uses, the next one's that come, and what it adds up. In backward that are gradients of queries, and of
    /// keys and values twice: those that go and those that come.
    #[test]
    fn a_ring_holds_what_it_uses_and_what_comes() {
        let layer = SharedAttention { ranks: 3, sequence: 1026, mask: Mask::Full, ..LAYER };
        let ring = CONTEXT_SCHEMES.iter().find(|scheme| scheme.name() == "ring").unwrap();
        let held = |steps: Vec<Step>| -> Vec<usize> {
            let of = |step: &Step| if let Step::Attend(tile) = step { Some(tile.held) } else { None };
            steps.iter().filter_map(of).collect()
        };
        // 2 sequences of 342 tokens, with 16 heads of queries and 4 of keys and values, of 8.
        let (n, q) = (2 * 342 * (4 + 4) * 8, 2 * 342 * 16 * 8);
        assert_eq!(held(ring.forward(&layer)), [n, 2 * n + q, n + q]);
        assert_eq!(held(ring.backward(&layer)), [n, 2 * n + q + 2 * n, n + q + 2 * n]);
    }

    #[test]
    fn every_position_is_on_one_rank() {
        let check = |name: &str, inner: usize, rank: usize, expected: &[Range<usize>]| {
            let layer = SharedAttention { ranks: 4, inner, sequence: 64, ..LAYER };
            let scheme = context_scheme(name).unwrap();
            assert_eq!(scheme.positions(&layer, rank), expected, "{name}");
            let mut all: Vec<usize> =
                (0..4).flat_map(|rank| scheme.positions(&layer, rank)).flatten().collect();
            all.sort_unstable();
            assert_eq!(all, (0..64).collect::<Vec<usize>>(), "{name}");
        };
        check("ring", 1, 1, &[8..16, 48..56]);
        check("all-gather", 1, 3, &[24..32, 32..40]);
        check("ulysses", 1, 1, &[16..32, 0..0][..1]);
        // Set 0 has 0..16 and 48..64, its second rank the second half of each.
        check("hybrid", 2, 1, &[8..16, 56..64]);
        check("ring-self-attention", 1, 3, &[48..64, 0..0][..1]);
    }

    #[test]
    fn a_layer_that_cannot_be_shared_is_refused() {
        let check = |name: &str, layer: SharedAttention, kernel, key: &str, part: &str| {
            let refusal = context_scheme(name).unwrap().check(&layer, kernel).unwrap_err();
            assert_eq!(refusal.key, key, "{name}");
            assert!(refusal.allowed.contains(part), "{name}: {}", refusal.allowed);
        };
        let flash = AttentionKernel::Flash;
        let odd = SharedAttention { sequence: 1016, ..LAYER };
        check("ring", odd, flash, "mesh.context", "1016 tokens by 16");
        check("all-gather", odd, flash, "mesh.context", "1016 tokens by 16");
        check(
            "ring-self-attention",
            SharedAttention { sequence: 1020, ..LAYER },
            flash,
            "mesh.context",
            "1020 tokens by 8",
        );
        check(
            "ulysses",
            SharedAttention { sequence: 1020, ..LAYER },
            flash,
            "mesh.context",
            "1020 tokens by 8",
        );
        check("ulysses", SharedAttention { ranks: 32, ..LAYER }, flash, "mesh.context", "16 query heads");
        check(
            "ulysses",
            SharedAttention { kv_heads: 3, ..LAYER },
            flash,
            "mesh.context",
            "3 key-value heads",
        );
        check(
            "hybrid",
            SharedAttention { inner: 8, heads: 4, ..LAYER },
            flash,
            "mesh.context_inner",
            "4 query heads",
        );
        check("ring", SharedAttention { inner: 2, ..LAYER }, flash, "mesh.context_inner", "`ring` has 1");
        check("ring", LAYER, AttentionKernel::Unfused, "context_scheme", "never stores the scores");
        check("hybrid", LAYER, AttentionKernel::FusedSoftmax, "context_scheme", "never stores the scores");
        let window = SharedAttention { mask: Mask::Window(128), ..LAYER };
        check("ring", window, flash, "context_scheme", "sliding window");
        check("hybrid", window, flash, "context_scheme", "sliding window");
        assert_eq!(
            context_scheme("ulises").unwrap_err().to_string(),
            "unknown context-scheme `ulises` (nearest: ulysses); `trainwright show context-schemes` lists all",
        );
    }
}
