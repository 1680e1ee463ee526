//! What an op does with the tensors of a model. Whoever times an op needs its sizes only; whoever runs it needs this.

use super::Layer;

/// What an op does with which tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Task {
    /// Its work says all: messages between stages, joins. Or there is no word for it yet, and no executor runs it.
    #[default]
    None,
    /// A step of a module of the op's layer.
    Module(ModuleStep),
    /// Moves the weights of layers of the stage, or what their gradients are.
    Layers(State, LayerSpan),
    /// A step of the end of a training step, over all layers of the rank.
    Update(UpdateStep),
    /// What layers of the stage of that number keep from forward to backward leaves the memory of the GPU, or comes back.
    Kept(LayerSpan),
    /// New weights and moments of layers of a stage, whose state is not in the memory of the GPU.
    UpdateOffloaded {
        /// The stage's number in actions.
        stage: usize,
        /// Its layers.
        layers: LayerSpan,
    },
    /// Carries what is where its reader finds it already, if the memory of GPU and host is one.
    Carry,
}

/// A step of one run of a module, forward, recomputed or backward, with what the run keeps and releases.
///
/// Tensors that live from forward to backward belong to the module that reads them in backward. A recomputed module makes them
/// a second time, and its output is again the input of the module after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ModuleStep {
    /// The module.
    pub module: Module,
    /// What the step makes.
    pub does: Does,
    /// Whether it is the run's first step.
    pub first: bool,
    /// Whether it is the run's last step.
    pub last: bool,
    /// Whether the run keeps what the module's backward reads beside the input: forward does unless the module is
    /// recomputed, and a recomputing run does always.
    pub keeps: bool,
    /// Whether forward keeps the module's input: unless the module before it is recomputed in time.
    pub keeps_input: bool,
    /// In a recomputing run, the module of the same layer that reads the output as its input.
    pub refills: Option<Module>,
    /// Whether nothing that is kept for the module is needed after this step.
    pub releases: bool,
}

/// A part of a layer, named as papers draw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Module {
    /// One that has no name here.
    #[default]
    Unnamed,
    /// The look-up of tokens in their embedding.
    LookUp,
    /// The addition of positions to it.
    Positions,
    /// The norm before the sublayer of that index.
    Norm(usize),
    /// The product that makes queries, keys and values.
    Qkv,
    /// The rotation of queries and keys by position.
    Rotary,
    /// From queries, keys and values to the heads' outputs.
    Attention,
    /// The product that joins the heads' outputs.
    Projection,
    /// The first product of a feed-forward layer; a gated one's is two side by side.
    Fc1,
    /// The nonlinearity between the products, with its gate.
    Activation,
    /// The last product of a feed-forward layer.
    Fc2,
    /// The product that scores the experts for each token.
    Router,
    /// The choice of each token's experts, and how much each counts.
    TopK,
    /// Tokens on their way to their experts.
    Dispatch,
    /// The first product of each expert.
    ExpertFc1,
    /// The nonlinearity between an expert's products.
    ExpertActivation,
    /// The last product of each expert.
    ExpertFc2,
    /// The experts' outputs on their way back, weighed and summed.
    Combine,
    /// The end of the sublayer of that index: bias, and what came past it.
    Residual(usize),
    /// The norm after the last block.
    FinalNorm,
    /// The product with the output embedding.
    Logits,
    /// Cross entropy.
    Loss,
}

impl Module {
    /// The layer of a module that is in no block.
    pub(super) fn layer_outside_blocks(self) -> Layer {
        match self {
            Module::LookUp | Module::Positions => Layer::Embedding,
            _ => Layer::Head,
        }
    }
}

/// What an op does of a module's forward or backward pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Does {
    /// The output from the input; in backward the input's gradient from the output's.
    #[default]
    Run,
    /// The gradient of the weight, added to what earlier microbatches left.
    WeightGradient,
    /// The gradient of the bias or gain: a sum over tokens.
    VectorGradient,
    /// Copies what was made into another layout: nothing where it was written in that layout at once.
    Arrange,
    /// Makes operands of products in a narrower format.
    Quantise,
    /// A collective over one of the module's tensors.
    Move(Value),
    /// A step of attention that the ranks of a context axis share.
    Share(Share),
    /// A collective on the way of tokens to their experts or back.
    Route,
    /// A step on a grid of tensor ranks.
    Grid(Grid),
}

/// A step of a module whose tensors lie in blocks on a grid of ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Grid {
    /// A rank's block goes to its row, or to its column.
    Broadcast,
    /// The product of two blocks.
    Multiply,
    /// The summands of a block come together.
    Reduce,
    /// The sums over a rank's columns that a norm needs of each token.
    Statistics,
    /// Adds those up.
    SumStatistics,
}

/// A step of attention that several ranks share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Share {
    /// Something travels between the ranks.
    Exchange(Travels),
    /// Attention of the queries that are there to the keys that are next.
    Attend,
    /// What that made is added to what was made before.
    Add,
}

/// What ranks that share attention send each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Travels {
    /// Queries.
    Queries,
    /// Keys.
    Keys,
    /// Values.
    Values,
    /// Keys and values.
    KeysAndValues,
    /// Keys and values, and the gradients of those that came before them.
    KeysValuesAndGradients,
    /// Outputs.
    Outputs,
    /// Gradients of outputs.
    OutputGradients,
    /// Gradients of queries.
    QueryGradients,
    /// Gradients of keys.
    KeyGradients,
    /// Gradients of values.
    ValueGradients,
    /// Gradients of keys and values.
    KeyAndValueGradients,
}

/// A tensor of a module.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Value {
    /// What it reads.
    Input,
    /// What it makes.
    Output,
    /// The loss's gradient by what it reads.
    InputGradient,
    /// The loss's gradient by what it makes.
    OutputGradient,
    /// The loss's gradient by its weight.
    WeightGradient,
    /// One number per token: maximum, sum of exponentials, the target's logit, in this order.
    Statistic,
}

/// Which of a layer's tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// Weights.
    Weights,
    /// Gradients.
    Gradients,
}

/// Neighbouring layers of a stage in the order of forward: the embedding if it has one, its blocks, the head if it has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LayerSpan {
    /// The first of them.
    pub first: usize,
    /// How many.
    pub count: usize,
}

impl LayerSpan {
    /// The layers `first..end` of a pass that counts them in the order of forward, or from the last one.
    pub fn of_pass(pass: super::Pass, first: usize, end: usize, layers: usize) -> Self {
        let count = end - first;
        match pass {
            super::Pass::Backward => Self { first: layers - end, count },
            _ => Self { first, count },
        }
    }
}

/// A step between the last backward and the next forward.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum UpdateStep {
    /// Sums gradients over the ranks with the same weights.
    ReduceGradients,
    /// Sums the gradients of weights that each tensor rank holds in full and saw a part of the tokens with.
    SumReplicated,
    /// Sums the gradients of both copies of the stages.
    SumCopies,
    /// Sums the gradients of the tied embedding's two copies.
    SumEmbedding,
    /// The sum of the squares of this rank's gradients.
    SquareNorm,
    /// Adds those up over an axis.
    SumNorm,
    /// Scales gradients so that their norm is at most its bound.
    Clip,
    /// Adds up the squares that the ratios of layer-wise optimizers are made of: of each tensor and of its update.
    SumRatios,
    /// Pieces the momenta of matrices together.
    GatherMomenta,
    /// The products of an optimizer of matrices.
    MultiplyMatrices,
    /// New weights and moments.
    Optimize,
    /// Pieces updated weights together.
    GatherWeights,
    /// Makes operands of products in a narrower format of the updated weights.
    QuantiseWeights,
}
