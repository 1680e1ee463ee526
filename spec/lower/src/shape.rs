//! The sizes of one microbatch on one rank.

use trainwright_spec::adapters::{Adapter, Adapters};
use trainwright_spec::context::ContextScheme;
use trainwright_spec::experts::Routing;
use trainwright_spec::mesh::Mesh;
use trainwright_spec::plan::Plan;
use trainwright_spec::precision::Precision;
use trainwright_spec::stack::Stack;
use trainwright_spec::tensor::{Parts, TensorGrid, TensorScheme};
use trainwright_spec::units::Bytes;

/// The sizes for which parts are made: one microbatch on one rank.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape<'a> {
    /// Sequences on a rank.
    pub batch: usize,
    /// Tokens in each, over all ranks of the context axis.
    pub sequence: usize,
    /// Ranks of the context axis.
    pub context: usize,
    /// How they share attention.
    pub context_scheme: &'static dyn ContextScheme,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Ranks of the tensor axis.
    pub tensor: usize,
    /// How they share a layer.
    pub scheme: &'static dyn TensorScheme,
    /// In which grid.
    pub grid: TensorGrid,
    /// In how many parts that cuts what is on a rank.
    pub parts: Parts,
    /// All axes.
    pub mesh: &'a Mesh,
    /// How tokens come to their experts.
    pub routing: &'a Routing,
    /// Index of the block that is lowered.
    pub layer: usize,
    /// Whether norms and dropouts work on 1/t of the tokens.
    pub sequence_parallel: bool,
    /// Precision of matrix products.
    pub precision: Precision,
    /// Whether activations are dropped out.
    pub dropout: bool,
    /// Bytes of one accumulated gradient element.
    pub gradient: Bytes,
    /// What is trained instead of the model, if its weights are frozen.
    pub adapters: Option<&'a Adapters>,
    /// The adapters of the layer that is lowered.
    pub beside: &'a [Adapter],
    /// Whether the optimizer updates the matrices of blocks as such.
    pub matrices: bool,
    /// The software.
    pub stack: &'a Stack,
}

impl<'a> Shape<'a> {
    /// The sizes of one microbatch of `plan`.
    pub fn of(plan: &'a Plan) -> Self {
        let (scheme, grid) = (plan.tensor_scheme(), plan.tensor_grid());
        let parts = scheme.parts(&grid);
        Self {
            batch: plan.micro_batch / parts.batch,
            sequence: plan.job.sequence,
            context: plan.mesh.context,
            context_scheme: plan.context_scheme(),
            hidden: plan.model.hidden,
            tensor: plan.mesh.tensor,
            scheme,
            grid,
            parts,
            mesh: &plan.mesh,
            routing: &plan.experts,
            layer: 0,
            sequence_parallel: plan.sequence_parallel && plan.mesh.tensor > 1,
            precision: plan.job.precision,
            dropout: plan.model.dropout && !plan.stack.dropout_in_kernels,
            gradient: plan.state_bytes().gradient,
            adapters: plan.job.adapters.as_ref(),
            beside: &[],
            matrices: plan.job.optimizer().of_matrices().is_some(),
            stack: &plan.stack,
        }
    }

    /// Tokens of a microbatch that this rank's context axis does not give to others.
    pub fn tokens(&self) -> usize {
        self.batch * self.sequence / self.context
    }

    /// Tokens that this rank's norms and dropouts see.
    pub fn local_tokens(&self) -> usize {
        if self.sequence_parallel { self.tokens().div_ceil(self.tensor) } else { self.tokens() }
    }

    /// Width of the activations that norms and dropouts see.
    pub fn local_hidden(&self) -> usize {
        self.hidden / self.parts.hidden
    }

    /// Whether every rank of the tensor axis holds all activations between layers.
    pub fn replicates_activations(&self) -> bool {
        self.parts.batch * self.parts.sequence * self.parts.hidden == 1
    }

    /// Tokens of a microbatch on all ranks of the tensor axis.
    pub fn all_tokens(&self) -> usize {
        self.tokens() * self.parts.batch
    }

    /// The sizes for modules that are not computed below 16 bits.
    pub fn base(&self) -> Self {
        Self { precision: self.precision.base(), ..*self }
    }

    /// Size of `elements` activations as an operand of a product, which is how the product keeps them.
    pub fn operands(&self, elements: usize) -> Bytes {
        self.precision.operand_bytes() * elements as f64
    }

    /// Size of `elements` activations.
    pub fn activations(&self, elements: usize) -> Bytes {
        self.precision.storage_bytes() * elements as f64
    }

    /// Memory that an element of a gathered tensor takes beside the kernel that reads it, if it has `element` bytes: nothing
    /// where the software gathers into buffers that stay allocated.
    pub fn gathered_beside(&self, element: Bytes) -> Bytes {
        if self.stack.gather_buffers.is_some() { Bytes::ZERO } else { element }
    }

    /// Bytes of one accumulated gradient element.
    pub fn gradient_bytes(&self) -> Bytes {
        self.gradient
    }

    /// This rank's share of `count` columns or rows of a weight.
    pub fn share(&self, count: usize) -> usize {
        count.div_ceil(self.parts.width)
    }
}
