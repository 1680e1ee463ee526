//! A module that runs in one piece, forward and backward.

use crate::device::tensor::Tensor;
use crate::device::{Device, Slice};
use crate::train::frame::{Frame, Kept, ModulePlace};
use crate::train::parameters::{Layer, ParameterName, block};
use crate::train::sizes::Sizes;
use crate::train::state::State;
use trainwright_spec::model::{Block, Experts, Mlp, Model};
use trainwright_spec::program::Module;

/// The mathematics of a module.
pub(crate) trait Operator: Sync {
    /// The output from the input.
    fn forward(&self, step: &mut Step, input: Tensor) -> Tensor;

    /// The gradient of the input from that of the output; `None` if the input has none.
    fn backward(&self, step: &mut Step, gradient: Tensor) -> Option<Tensor>;

    /// Whether backward reads the input.
    fn reads_input(&self) -> bool {
        true
    }

    /// Adds the gradient of the matrix.
    fn weight_gradient(&self, step: &mut Step) {
        unreachable!("{:?} has no matrix", step.place);
    }

    /// Adds the gradients of what is added to each token or scales it.
    fn vector_gradient(&self, step: &mut Step) {
        unreachable!("{:?} has no vector", step.place);
    }
}

/// What a module's step works on.
pub(crate) struct Step<'r> {
    pub sizes: &'r Sizes,
    pub model: &'r Model,
    pub state: &'r mut State,
    pub frame: &'r mut Frame,
    pub place: ModulePlace,
    /// Whether this run keeps what the module's backward reads beside its input.
    pub keeps: bool,
    /// Whether the norm behind may do its addition.
    pub adds_in_norm: bool,
    pub device: &'r dyn Device,
}

impl Step<'_> {
    /// What is kept for this module.
    pub fn kept(&mut self) -> &mut Kept {
        self.frame.kept(self.place)
    }

    /// The input that forward kept.
    pub fn kept_input(&mut self) -> Tensor {
        self.kept().input.clone().expect("backward of a module finds the input that forward kept")
    }

    /// The block it belongs to.
    pub fn block(&self) -> &Block {
        match self.place.0 {
            Layer::Block(index) => block(self.model, index),
            layer => unreachable!("{layer} is no block"),
        }
    }

    /// The block's mixture of experts.
    pub fn experts(&self) -> &Experts {
        match &self.block().mlp {
            Mlp::Experts(experts) => experts,
            Mlp::Dense(_) => unreachable!("a dense layer has no experts"),
        }
    }

    /// The weights of a parameter of its layer, if it has it.
    pub fn read(&self, name: ParameterName) -> Option<Slice<'_>> {
        self.state.layer(self.place.0).read(name)
    }
}

/// Whether backward of a module reads the input of forward.
pub(crate) fn reads_input(module: Module) -> bool {
    super::operator(module).is_some_and(Operator::reads_input)
}
