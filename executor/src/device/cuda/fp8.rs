//! Products in fp8: both operands are converted first, into memory that is freed behind the product.

use super::super::{DeviceSlice, Matrix, Numbers, Product};
use super::Cuda;
use super::structs::{address, int, shape};
use trainwright_kernels::Onto;
use trainwright_kernels::cuda::Address;
use trainwright_kernels::cuda::fp8::{CastFp8, Fp8Operands, Fp8Product};
use trainwright_kernels::fp8::Fp8;

/// A side of a product: codes of 8 bits, and their scale.
struct Side {
    codes: (Numbers, Address),
    scale: (Numbers, Address),
}

impl Cuda {
    pub(super) fn multiply_fp8(&self, out: DeviceSlice, product: Product, [of_left, of_right]: [Fp8; 2]) {
        let Product { left, right, onto, bias, .. } = product;
        let (([rows, inner], left_turned), ([_, columns], right_turned)) = (shape(&left), shape(&right));
        // What is summed over has to lie in one piece on both sides.
        let left_side = self.side(&left, of_left, left_turned);
        let right_side = self.side(&right, of_right, !right_turned);
        let product = Fp8Product {
            rows,
            columns,
            inner,
            left: of_left,
            right: of_right,
            output: out.number,
            accumulate: onto == Onto::Add,
            bias: bias.is_some(),
        };
        let at = Fp8Operands {
            left: left_side.codes.1,
            left_scale: left_side.scale.1,
            right: right_side.codes.1,
            right_scale: right_side.scale.1,
            out: out.at,
            bias: address(bias),
        };
        self.run(|memory| memory.device.multiply_fp8(product, at));
    }

    /// A matrix in fp8, row after row as it lies or column after column.
    fn side(&self, matrix: &Matrix, to: Fp8, by_columns: bool) -> Side {
        let x = matrix.data.device();
        let side = Side { codes: self.scratch(x.length.div_ceil(4)), scale: self.scratch(1) };
        let at = side.codes.1;
        let [out, transposed] = if by_columns { [Address::NULL, at] } else { [at, Address::NULL] };
        let kernel = CastFp8 {
            x: x.at,
            scale: side.scale.1,
            out,
            transposed,
            rows: int(x.length / matrix.width),
            width: int(matrix.width),
            ..CastFp8::default()
        };
        let (_largest, largest) = self.scratch(kernel.blocks(self.gpu) as usize);
        let launches = CastFp8 { largest, ..kernel }.launches(x.number, to, self.gpu);
        launches.iter().for_each(|launch| self.launch(launch));
        side
    }
}
