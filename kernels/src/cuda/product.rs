//! Matrix products: shapes, operands and epilogues.

use super::launch::{Address, Number};

/// Precision of products of f32 inputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Compute {
    /// f32.
    Full,
    /// Rounded to tf32 on tensor cores.
    Tf32,
}

/// An operation on a result before it is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Epilogue {
    /// Nothing.
    None,
    /// + bias, a number per column.
    Bias,
    /// GELU(x + bias), x + bias kept in `aux`.
    GeluBias,
    /// x GELU′(aux).
    GeluGradient,
    /// As `GeluGradient`, and the sum of the result over rows, the gradient of the bias, into `bias`.
    GeluBiasGradient,
    /// The sums of `left` over the inner dimension, a number per row of the result, into `bias`: the gradient of a bias together
    /// with the gradient of its weight.
    BiasGradient,
}

impl Epilogue {
    /// The operands with the bias and the auxiliary matrix as `NULL` where this does not use them: cublasLt refuses a product
    /// that names others (`CUBLAS_STATUS_INVALID_VALUE`, CUDA 13.0 on H200).
    pub fn used(self, at: Operands) -> Operands {
        let [bias, aux] = match self {
            Epilogue::None => [false, false],
            Epilogue::Bias | Epilogue::BiasGradient => [true, false],
            Epilogue::GeluGradient => [false, true],
            Epilogue::GeluBias | Epilogue::GeluBiasGradient => [true, true],
        };
        let if_used = |is_used, address| if is_used { address } else { Address::NULL };
        Operands { bias: if_used(bias, at.bias), aux: if_used(aux, at.aux), ..at }
    }
}

/// out (rows × columns) = left (rows × inner) · right (inner × columns), all row-major.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Product {
    /// Rows of the result.
    pub rows: usize,
    /// Columns of the result.
    pub columns: usize,
    /// The dimension that is summed over.
    pub inner: usize,
    /// Whether `left` is stored as inner × rows.
    pub left_transposed: bool,
    /// Whether `right` is stored as columns × inner.
    pub right_transposed: bool,
    /// Number type of both inputs.
    pub inputs: Number,
    /// Number type of the result.
    pub output: Number,
    /// Precision if the inputs are f32.
    pub compute: Compute,
    /// Whether the product is added to `out`.
    pub accumulate: bool,
    /// The operation on the result.
    pub epilogue: Epilogue,
}

impl Product {
    /// Floating-point operations: a multiplication and an addition for each row, column and inner index.
    pub fn flops(&self) -> f64 {
        2.0 * self.rows as f64 * self.columns as f64 * self.inner as f64
    }

    /// Number type of a bias or its gradient: the result's.
    pub fn bias_number(&self) -> Number {
        self.output
    }
}

/// Addresses of a product's matrices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Operands {
    /// rows × inner.
    pub left: Address,
    /// inner × columns.
    pub right: Address,
    /// rows × columns.
    pub out: Address,
    /// The epilogue's bias, or `NULL`.
    pub bias: Address,
    /// rows × columns; the epilogue's auxiliary matrix, or `NULL`.
    pub aux: Address,
}
