//! What a stage holds of one microbatch: the value that flows through it, and what forward leaves for backward.

use crate::device::tensor::Tensor;
use crate::device::{Numbers, Words};
use crate::train::masks::Masks;
use crate::train::modules::{Blocks, Choices, InWork, Routing};
use crate::train::offload_store::Away;
use crate::train::parameters::{Layer, ParameterName};
use std::collections::BTreeMap;
use std::rc::Rc;
use trainwright_spec::program::Module;

/// A module of a layer.
pub(crate) type Place = (Layer, Module);

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
    /// The value between two modules.
    pub flow: Option<Tensor>,
    /// What went into the norm before the sublayer, until it is added again.
    pub past: Option<Tensor>,
    /// What is still to be added to `flow`, which the norm behind does.
    pub addition: Option<Addition>,
    /// The loss's gradient by `flow`.
    pub gradient: Option<Tensor>,
    /// The gradient that goes past the sublayer.
    pub past_gradient: Option<Tensor>,
    kept: BTreeMap<Place, Kept>,
}

/// What a sublayer's end adds.
#[derive(Debug)]
pub(crate) struct Addition {
    /// What went past the sublayer.
    pub past: Tensor,
    /// The bias of the sublayer's last product, if it has one.
    pub bias: (Layer, ParameterName),
}

/// What is kept for a module.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    /// What it read.
    pub input: Option<Tensor>,
    /// The same from all tensor ranks.
    pub gathered: Option<Tensor>,
    /// What it made, if backward reads that.
    pub output: Option<Tensor>,
    /// What its kernel left for backward: the logarithms of attention's sums, means and deviations of a norm's rows.
    pub left: Numbers,
    /// The three numbers of each token's loss.
    pub losses: Numbers,
    /// How many of those have been put together over the tensor axis.
    pub exchanged: usize,
    /// The gradient of its input, if it was made together with those of its vectors.
    pub input_gradient: Option<Tensor>,
    /// The gradient of its output, for its weights'.
    pub output_gradient: Option<Tensor>,
    /// The tensors above while they are elsewhere.
    pub away: Vec<(usize, Away)>,
    /// A product on a grid.
    pub blocks: Option<Box<Blocks>>,
    /// Sums over the columns of each token.
    pub sums: Vec<f32>,
    /// Attention that several ranks share.
    pub shared: Option<Box<InWork>>,
    /// The ways of tokens to their experts.
    pub routing: Option<Box<Routing>>,
    /// Which experts tokens visit.
    pub choices: Option<Rc<Choices>>,
    /// Where each expert's rows begin, and where the last one's end.
    pub groups: Vec<usize>,
    /// Scores of the experts for each token, or their gradients.
    pub scores: Option<Tensor>,
}

impl Kept {
    /// The tensors that can be elsewhere for a while.
    pub fn tensors(&mut self) -> [&mut Option<Tensor>; 4] {
        [&mut self.input, &mut self.gathered, &mut self.output, &mut self.output_gradient]
    }
}

impl Frame {
    /// A new one.
    pub fn new(tokens: Option<MicrobatchTokens>) -> Self {
        Self {
            tokens,
            masks: Masks::default(),
            flow: None,
            past: None,
            addition: None,
            gradient: None,
            past_gradient: None,
            kept: BTreeMap::new(),
        }
    }

    /// What is kept for a module.
    pub fn kept(&mut self, place: Place) -> &mut Kept {
        self.kept.entry(place).or_default()
    }

    /// What is kept for each module of a layer.
    pub fn kept_of(&mut self, layer: Layer) -> impl Iterator<Item = &mut Kept> {
        self.kept.iter_mut().filter(move |(place, _)| place.0 == layer).map(|(_, kept)| kept)
    }

    /// Gives up what is kept for a module.
    pub fn give_up(&mut self, place: Place) {
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
    pub fn output_gradient(&mut self, place: Place) -> Tensor {
        let kept = self.kept.get(&place).and_then(|kept| kept.output_gradient.clone());
        kept.or_else(|| self.gradient.clone()).expect("a module's vectors see the gradient of its output")
    }
}
