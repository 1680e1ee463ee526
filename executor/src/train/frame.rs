//! A stage's frame for one microbatch: the value that flows through it, and what forward keeps for backward.

use crate::device::Words;
use crate::device::tensor::Tensor;
use crate::train::data::documents::PackedDocuments;
use crate::train::masks::Masks;
use crate::train::offload_store::Offloaded;
use crate::train::parameters::{Layer, ParameterName};
use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;
use trainwright_kernels::attention::KeyValueCache;
use trainwright_kernels::cross_entropy::LossTerms;
use trainwright_spec::program::Module;

/// A module of a layer.
pub(crate) type ModulePlace = (Layer, Module);

/// The keys and values of a sequence's tokens so far, of each block of a rank.
#[derive(Debug, Default)]
pub(crate) struct KeyValues(BTreeMap<Layer, KeyValueCache<f32>>);

impl KeyValues {
    /// Those of a block.
    pub fn of(&mut self, block: Layer) -> &mut KeyValueCache<f32> {
        self.0.entry(block).or_default()
    }
}

/// A sequence of a pass that generates. What flows has a row for each new token, sequence after sequence.
#[derive(Debug)]
pub(crate) struct PassSequence {
    /// Its new tokens.
    pub rows: usize,
    /// Whether the logits behind the last of them are wanted.
    pub samples: bool,
    /// What the new tokens see of those before them.
    pub key_values: KeyValues,
}

/// The tokens of a microbatch that a rank reads, as in a `Batch`.
#[derive(Debug)]
pub(crate) struct MicrobatchTokens {
    pub inputs: Words,
    pub targets: Words,
}

/// One microbatch in one stage.
///
/// Forward there is one value that flows from module to module, and one that goes past the sublayer; backward their
/// gradients flow the other way.
#[derive(Debug)]
pub(crate) struct Frame {
    /// The tokens, where the stage reads them.
    pub tokens: Option<MicrobatchTokens>,
    /// What is dropped out.
    pub masks: Masks,
    /// The documents of its sequences, if they are kept apart.
    pub documents: Option<Arc<PackedDocuments>>,
    /// What the loss of a token is.
    pub loss_terms: LossTerms,
    /// The gradient of the step's loss by that of one token: 1 / targets of the step.
    pub token_weight: f32,
    /// The value between two modules.
    pub flow: Option<Tensor>,
    /// What went into the norm before the sublayer, until it is added again.
    pub past: Option<Tensor>,
    /// What is still to be added to `flow`: the norm behind adds it.
    pub addition: Option<Addition>,
    /// The loss's gradient by `flow`.
    pub gradient: Option<Tensor>,
    /// The gradient that goes past the sublayer.
    pub past_gradient: Option<Tensor>,
    /// The sequences of a pass that generates; `None` of other passes.
    pub sequences: Option<Vec<PassSequence>>,
    kept: BTreeMap<ModulePlace, Kept>,
}

/// What a sublayer's end adds.
#[derive(Debug)]
pub(crate) struct Addition {
    /// What went past the sublayer.
    pub past: Tensor,
    /// The bias of the sublayer's last product, if it has one.
    pub bias: (Layer, ParameterName),
}

/// What is kept for a module between forward and backward.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    /// Its input.
    pub input: Option<Tensor>,
    /// The inputs of all tensor ranks, gathered.
    pub gathered: Option<Tensor>,
    /// Its output, if backward reads that.
    pub output: Option<Tensor>,
    /// The gradient of its output, for the gradients of its weights.
    pub output_gradient: Option<Tensor>,
    /// The tensors above that are offloaded, by their index in `tensors`.
    pub offloaded: Vec<(usize, Offloaded)>,
    /// What only the module knows.
    module_state: Option<Box<dyn Any>>,
}

impl Kept {
    /// The tensors that can be offloaded.
    pub fn tensors(&mut self) -> [&mut Option<Tensor>; 4] {
        [&mut self.input, &mut self.gathered, &mut self.output, &mut self.output_gradient]
    }

    /// What only the module knows: each module has one type for it, and begins with its default.
    pub fn module_state<S: Default + 'static>(&mut self) -> &mut S {
        let state = self.module_state.get_or_insert_with(|| Box::<S>::default());
        state.downcast_mut().expect("a module keeps one type of state")
    }
}

impl Frame {
    /// A new one.
    pub fn new(tokens: Option<MicrobatchTokens>) -> Self {
        Self {
            tokens,
            masks: Masks::default(),
            documents: None,
            loss_terms: LossTerms::default(),
            token_weight: 0.0,
            flow: None,
            past: None,
            addition: None,
            gradient: None,
            past_gradient: None,
            sequences: None,
            kept: BTreeMap::new(),
        }
    }

    /// Whether the pass generates: nothing is kept for backward, and only last rows of sequences have logits.
    pub fn generates(&self) -> bool {
        self.sequences.is_some()
    }

    /// What is kept for a module.
    pub fn kept(&mut self, place: ModulePlace) -> &mut Kept {
        self.kept.entry(place).or_default()
    }

    /// What is kept for each module of a layer.
    pub fn kept_of(&mut self, layer: Layer) -> impl Iterator<Item = &mut Kept> {
        self.kept.iter_mut().filter(move |(place, _)| place.0 == layer).map(|(_, kept)| kept)
    }

    /// What is kept for all modules.
    pub fn all_kept(&mut self) -> impl Iterator<Item = &mut Kept> {
        self.kept.values_mut()
    }

    /// Gives up what is kept for a module.
    pub fn give_up(&mut self, place: ModulePlace) {
        self.kept.remove(&place);
    }

    /// The value that flows.
    pub fn take_flow(&mut self) -> Tensor {
        self.flow.take().expect("a module's input is there before it runs")
    }

    /// The gradient that flows.
    pub fn take_gradient(&mut self) -> Tensor {
        self.gradient.take().expect("the output's gradient is there before a module runs backward")
    }

    /// The tokens.
    pub fn tokens(&self) -> &MicrobatchTokens {
        self.tokens.as_ref().expect("the first and the last stage have tokens")
    }

    /// The gradient of a module's output: kept, or still flowing.
    pub fn output_gradient(&mut self, place: ModulePlace) -> Tensor {
        let kept = self.kept.get(&place).and_then(|kept| kept.output_gradient.clone());
        kept.or_else(|| self.gradient.clone()).expect("a module's vectors see the gradient of its output")
    }
}
