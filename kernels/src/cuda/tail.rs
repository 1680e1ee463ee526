//! What stands behind a product of a layer, and who does it: an epilogue of cublasLt, or launches of ours.
//!
//! Nobody has measured yet which is faster for which shape. `Tail::version` makes either, so that both can be checked and timed
//! side by side; `Tail::way` is the one place that decides what training does.

use super::activation::{Activation, Direction, Function, Residual};
use super::device::Device;
use super::error::DeviceError;
use super::launch::{Address, Launch, Multiprocessors, Number};
use super::product::{Epilogue, Operands, Product};
use super::reduce::ColumnSum;

/// What stands behind a product, by the epilogue that does it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tail {
    /// The bias of a layer's output.
    Bias,
    /// The bias and the nonlinearity of a feed-forward layer's first product; x + bias is kept.
    GeluBias,
    /// The way back through that nonlinearity, behind the gradient of its output.
    GeluGradient,
    /// The same and the gradient of the bias in front of it.
    GeluBiasGradient,
    /// The gradient of a bias, beside that of its weight.
    BiasGradient,
}

/// Who does it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// cublasLt, before it writes the result.
    Epilogue,
    /// Kernels of ours, behind the product.
    Launches,
}

impl Way {
    /// Both.
    pub const ALL: [Way; 2] = [Way::Epilogue, Way::Launches];
}

/// Where matrices and vectors of a product with a tail are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TailOperands {
    /// Of the product, as its epilogue has them. The launches leave gradients of biases at `bias` too, added to f32.
    pub product: Operands,
    /// f32 for the launches' sums of columns: as many rows as `ColumnSum::shares` says.
    pub partial: Address,
}

/// A part of a version.
#[derive(Debug, Clone, PartialEq)]
pub enum Part {
    /// The product.
    Multiply(Product, Operands),
    /// A kernel behind it.
    Launch(Launch),
}

impl Part {
    /// Lets a device do it.
    ///
    /// # Errors
    /// Of the device.
    pub fn run(&self, device: &mut dyn Device) -> Result<(), DeviceError> {
        match self {
            Part::Multiply(product, at) => device.multiply(*product, *at),
            Part::Launch(launch) => device.launch(launch),
        }
    }
}

impl Tail {
    /// All of them.
    pub const ALL: [Tail; 5] =
        [Tail::Bias, Tail::GeluBias, Tail::GeluGradient, Tail::GeluBiasGradient, Tail::BiasGradient];

    /// The epilogue that does it.
    pub fn epilogue(self) -> Epilogue {
        match self {
            Tail::Bias => Epilogue::Bias,
            Tail::GeluBias => Epilogue::GeluBias,
            Tail::GeluGradient => Epilogue::GeluGradient,
            Tail::GeluBiasGradient => Epilogue::GeluBiasGradient,
            Tail::BiasGradient => Epilogue::BiasGradient,
        }
    }

    /// What training does behind a product: biases by epilogues, all else by launches. A measurement that says otherwise of
    /// some shapes belongs here. The executor's layers follow it for biases; the others' launches are ops of their own there,
    /// for which it does not ask.
    pub fn way(self, _product: &Product) -> Way {
        match self {
            Tail::Bias => Way::Epilogue,
            Tail::GeluBias | Tail::GeluGradient | Tail::GeluBiasGradient | Tail::BiasGradient => {
                Way::Launches
            }
        }
    }

    /// Whether training may ask a product for its epilogue.
    pub fn is_in_training(product: &Product) -> bool {
        let tail = Tail::ALL.into_iter().find(|tail| tail.epilogue() == product.epilogue);
        tail.is_none_or(|tail| tail.way(product) == Way::Epilogue)
    }

    /// The product with what stands behind it, done so. Its own epilogue does not matter.
    pub fn version(self, way: Way, product: Product, at: TailOperands, gpu: Multiprocessors) -> Vec<Part> {
        let multiply = |epilogue, at| Part::Multiply(Product { epilogue, ..product }, at);
        if way == Way::Epilogue {
            return vec![multiply(self.epilogue(), at.product)];
        }
        let (Operands { left, out, bias, aux, .. }, number) = (at.product, product.output);
        let [rows, columns, inner] = [product.rows, product.columns, product.inner].map(|size| size as i32);
        let sums = |x: Address, number: Number, [rows, width]: [i32; 2]| {
            let sum = ColumnSum { x, out: bias, rows, width, add: 1 };
            sum.launches(number, at.partial, gpu).into_iter().map(Part::Launch)
        };
        let gelu = Activation { x: aux, out, rows, width: columns, ..Activation::default() };
        let back = || {
            let back = Activation { out_gradient: out, ..gelu };
            let back = back.launch(Function::Gelu, Direction::Backward, number, gpu);
            vec![multiply(Epilogue::None, at.product), Part::Launch(back)]
        };
        match self {
            Tail::Bias => {
                let bias = Residual { x: out, bias, residual: Address::NULL, out, rows, width: columns };
                vec![multiply(Epilogue::None, at.product), Part::Launch(bias.launch(number, gpu))]
            }
            Tail::GeluBias => {
                let before = Operands { out: aux, ..at.product };
                let gelu = gelu.launch(Function::Gelu, Direction::Forward, number, gpu);
                vec![multiply(Epilogue::Bias, before), Part::Launch(gelu)]
            }
            Tail::GeluGradient => back(),
            Tail::GeluBiasGradient => back().into_iter().chain(sums(out, number, [rows, columns])).collect(),
            Tail::BiasGradient => {
                // `left` lies as inner × rows: the gradient of the output, row after row.
                assert!(product.left_transposed, "a weight's gradient reads that of the output by columns");
                let beside = sums(left, product.inputs, [inner, rows]);
                std::iter::once(multiply(Epilogue::None, at.product)).chain(beside).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::product::Compute;

    #[test]
    fn biases_alone_are_epilogues_of_training() {
        let used = |epilogue| {
            Tail::is_in_training(&Product {
                rows: 64,
                columns: 96,
                inner: 128,
                left_transposed: false,
                right_transposed: true,
                inputs: Number::Bf16,
                output: Number::Bf16,
                compute: Compute::Full,
                accumulate: false,
                epilogue,
            })
        };
        assert!(used(Epilogue::None));
        assert_eq!(Tail::ALL.map(|tail| used(tail.epilogue())), [true, false, false, false, false]);
    }
}
