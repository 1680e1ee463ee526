//! Which elements of a microbatch are dropped out: a function of seed, step, layer and of an element's place in the whole tensor, so
//! that every plan has the same masks and backward makes them again.

use crate::random::mix;
use crate::train::parameters::Layer;
use trainwright_kernels::dropout::Dropout;
use trainwright_spec::model::DropoutRates;

/// The dropout masks of a microbatch.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Masks {
    /// Of seed and step.
    key: u64,
    /// The first sequence of the microbatch among those of the step.
    pub first_sequence: usize,
    /// Whether nothing is dropped: in validation.
    is_off: bool,
}

/// Where elements are dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dropped {
    /// What goes into the first block.
    Embedding,
    /// Attention's probabilities.
    Probabilities,
    /// What a block's sublayer of that number adds to the residual stream.
    Sublayer(usize),
}

impl Masks {
    /// Those of a step and the sequences from one on.
    pub fn new(seed: u64, step: usize, first_sequence: usize) -> Self {
        Self { key: mix(mix(seed ^ STREAM) ^ step as u64), first_sequence, is_off: false }
    }

    /// Those that drop nothing.
    pub fn off() -> Self {
        Self { is_off: true, ..Self::default() }
    }

    /// The dropout at a site of a layer; `None` if its rate is 0.
    pub fn of(&self, rates: DropoutRates, layer: Layer, dropped: Dropped) -> Option<Dropout> {
        let (rate, site) = match dropped {
            Dropped::Embedding => (rates.embedding, 0),
            Dropped::Probabilities => (rates.attention, 1),
            Dropped::Sublayer(index) => (rates.residual, 2 + index),
        };
        let block = match layer {
            Layer::Block(index) => index,
            _ => 0,
        };
        let key = mix(mix(self.key ^ site as u64) ^ block as u64);
        (rate > 0.0 && !self.is_off).then_some(Dropout { rate, key })
    }
}

/// Distinguishes these numbers from those of weights and of the order of the data.
const STREAM: u64 = 1 << 61;
