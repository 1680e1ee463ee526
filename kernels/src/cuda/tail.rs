//! Operations on the result of a layer's product, by an epilogue of cublasLt or by separate launches.
//!
//! Nobody has measured yet which is faster for which shape. `Tail::version` makes either, so that both can be checked and timed;
//! `Tail::method` alone decides what training does.

use super::activation::{Activation, Direction, Function, Residual};
use super::device::Device;
use super::error::DeviceError;
use super::launch::{Address, Launch, Multiprocessors, Number};
use super::product::{Epilogue, Operands, Product};
use super::reduce::ColumnSum;

/// An operation on a product's result that cublasLt has an epilogue for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tail {
    /// The bias of a layer's output.
    Bias,
    /// The bias and the nonlinearity of a feed-forward layer's first product; x + bias is kept.
    GeluBias,
    /// The gradient of the nonlinearity's input, from the product, which is the gradient of its output.
    GeluGradient,
    /// As `GeluGradient`, and the gradient of the bias before the nonlinearity.
    GeluBiasGradient,
    /// The gradient of a bias, together with the gradient of its weight.
    BiasGradient,
}

/// The implementation of a tail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// cublasLt, before it writes the result.
    Epilogue,
    /// Our kernels, after the product.
    Launches,
}

impl Method {
    /// Both.
    pub const ALL: [Method; 2] = [Method::Epilogue, Method::Launches];
}

/// Addresses of a product with a tail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TailOperands {
    /// The product's operands, as for its epilogue. The launches add gradients of biases to `bias`, in f32.
    pub product: Operands,
    /// f32 for the launches' sums of columns: as many rows as `ColumnSum::shares` says.
    pub partial: Address,
}

/// A step of a version.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// The product.
    Multiply(Product, Operands),
    /// A kernel after it.
    Launch(Launch),
}

impl Step {
    /// Runs it on a device.
    ///
    /// # Errors
    /// Those of the device.
    pub fn run(&self, device: &mut dyn Device) -> Result<(), DeviceError> {
        match self {
            Step::Multiply(product, at) => device.multiply(*product, *at),
            Step::Launch(launch) => device.launch(launch),
        }
    }
}

impl Tail {
    /// All of them.
    pub const ALL: [Tail; 5] =
        [Tail::Bias, Tail::GeluBias, Tail::GeluGradient, Tail::GeluBiasGradient, Tail::BiasGradient];

    /// Its epilogue.
    pub fn epilogue(self) -> Epilogue {
        match self {
            Tail::Bias => Epilogue::Bias,
            Tail::GeluBias => Epilogue::GeluBias,
            Tail::GeluGradient => Epilogue::GeluGradient,
            Tail::GeluBiasGradient => Epilogue::GeluBiasGradient,
            Tail::BiasGradient => Epilogue::BiasGradient,
        }
    }

    /// The implementation that training uses: epilogues for biases, launches for the rest. A measurement that says otherwise for some
    /// shapes belongs here. The executor asks for biases only; the other launches are separate ops there.
    pub fn method(self, _product: &Product) -> Method {
        match self {
            Tail::Bias => Method::Epilogue,
            Tail::GeluBias | Tail::GeluGradient | Tail::GeluBiasGradient | Tail::BiasGradient => {
                Method::Launches
            }
        }
    }

    /// Whether training uses products with this epilogue.
    pub fn is_in_training(product: &Product) -> bool {
        let tail = Tail::ALL.into_iter().find(|tail| tail.epilogue() == product.epilogue);
        tail.is_none_or(|tail| tail.method(product) == Method::Epilogue)
    }

    /// The steps of a product with this tail. `product.epilogue` is ignored.
    pub fn version(
        self,
        method: Method,
        product: Product,
        at: TailOperands,
        gpu: Multiprocessors,
    ) -> Vec<Step> {
        let multiply = |epilogue, at| Step::Multiply(Product { epilogue, ..product }, at);
        if method == Method::Epilogue {
            return vec![multiply(self.epilogue(), at.product)];
        }
        let (Operands { left, out, bias, aux, .. }, number) = (at.product, product.output);
        let [rows, columns, inner] = [product.rows, product.columns, product.inner].map(|size| size as i32);
        let sums = |x: Address, number: Number, [rows, width]: [i32; 2]| {
            let sum = ColumnSum { x, out: bias, rows, width, add: 1 };
            sum.launches(number, at.partial, gpu).into_iter().map(Step::Launch)
        };
        let gelu = Activation { x: aux, out, rows, width: columns, ..Activation::default() };
        let back = || {
            let back = Activation { out_gradient: out, ..gelu };
            let back = back.launch(Function::Gelu, Direction::Backward, number, gpu);
            vec![multiply(Epilogue::None, at.product), Step::Launch(back)]
        };
        match self {
            Tail::Bias => {
                let bias = Residual { x: out, bias, residual: Address::NULL, out, rows, width: columns };
                vec![multiply(Epilogue::None, at.product), Step::Launch(bias.launch(number, gpu))]
            }
            Tail::GeluBias => {
                let before = Operands { out: aux, ..at.product };
                let gelu = gelu.launch(Function::Gelu, Direction::Forward, number, gpu);
                vec![multiply(Epilogue::Bias, before), Step::Launch(gelu)]
            }
            Tail::GeluGradient => back(),
            Tail::GeluBiasGradient => back().into_iter().chain(sums(out, number, [rows, columns])).collect(),
            Tail::BiasGradient => {
                // `left` is stored as inner × rows: the row-major gradient of the output.
                assert!(product.left_transposed, "a weight's gradient reads that of the output by columns");
                let bias_sums = sums(left, product.inputs, [inner, rows]);
                std::iter::once(multiply(Epilogue::None, at.product)).chain(bias_sums).collect()
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
