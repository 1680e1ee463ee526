//! Products in fp8: both operands are converted first, into memory that is freed behind the product.

use super::super::{DeviceSlice, Matrix, Numbers, Product};
use super::Cuda;
use super::structs::{address, int, shape};
use trainwright_kernels::Onto;
use trainwright_kernels::cuda::Address;
use trainwright_kernels::cuda::eight::{EightOperands, EightProduct, NarrowEight};
use trainwright_kernels::eight::Eight;

/// A side of a product: codes of 8 bits, and their scale.
struct Side {
    codes: (Numbers, Address),
    scale: (Numbers, Address),
}

impl Cuda {
    pub(super) fn multiply_eight(&self, out: DeviceSlice, product: Product, [of_left, of_right]: [Eight; 2]) {
        let Product { left, right, onto, bias, .. } = product;
        let (([rows, inner], left_turned), ([_, columns], right_turned)) = (shape(&left), shape(&right));
        // What is summed over has to lie in one piece on both sides.
        let own = self.side(&left, of_left, left_turned);
        let other = self.side(&right, of_right, !right_turned);
        let product = EightProduct {
            rows,
            columns,
            inner,
            left: of_left,
            right: of_right,
            output: out.number,
            accumulate: onto == Onto::Add,
            bias: bias.is_some(),
        };
        let at = EightOperands {
            left: own.codes.1,
            left_scale: own.scale.1,
            right: other.codes.1,
            right_scale: other.scale.1,
            out: out.at,
            bias: address(bias),
        };
        self.run(|memory| memory.device.multiply_eight(product, at));
    }

    /// A matrix in fp8, row after row as it lies or column after column.
    fn side(&self, matrix: &Matrix, to: Eight, by_columns: bool) -> Side {
        let x = matrix.data.device();
        let side = Side { codes: self.scratch(x.length.div_ceil(4)), scale: self.scratch(1) };
        let at = side.codes.1;
        let [out, transposed] = if by_columns { [Address::NULL, at] } else { [at, Address::NULL] };
        let own = NarrowEight {
            x: x.at,
            scale: side.scale.1,
            out,
            transposed,
            rows: int(x.length / matrix.width),
            width: int(matrix.width),
            ..NarrowEight::default()
        };
        let (_largest, largest) = self.scratch(own.blocks(self.gpu) as usize);
        let launches = NarrowEight { largest, ..own }.launches(x.number, to, self.gpu);
        launches.iter().for_each(|launch| self.launch(launch));
        side
    }
}
