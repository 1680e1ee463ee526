//! Matrix products: their shapes, where their matrices are, and what can be done to a result before it is written.

use super::launch::{Address, Number};

/// How f32 inputs are multiplied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Compute {
    /// As they are.
    Full,
    /// Rounded to tf32 on tensor cores.
    Tf32,
}

/// What is done to a result.
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
    /// The same, and its sum over rows, the gradient of the bias, into `bias`.
    GeluBiasGradient,
    /// The sums of `left` over the inner dimension, a number per row of the result, into `bias`: the gradient of a bias
    /// beside that of its weight.
    BiasGradient,
}

/// out (rows × columns) = left (rows × inner) · right (inner × columns), all of them row after row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Product {
    /// Of the result.
    pub rows: usize,
    /// Of the result.
    pub columns: usize,
    /// What is summed over.
    pub inner: usize,
    /// Whether `left` lies as inner × rows.
    pub left_transposed: bool,
    /// Whether `right` lies as columns × inner.
    pub right_transposed: bool,
    /// Of both inputs.
    pub inputs: Number,
    /// Of the result.
    pub output: Number,
    /// How f32 is multiplied.
    pub compute: Compute,
    /// Whether the result is added to what is there.
    pub accumulate: bool,
    /// What else is done.
    pub epilogue: Epilogue,
}

impl Product {
    /// Operations: a multiplication and an addition for each triple.
    pub fn flops(&self) -> f64 {
        2.0 * self.rows as f64 * self.columns as f64 * self.inner as f64
    }

    /// What numbers a bias or its gradient is in: the result's.
    pub fn bias_number(&self) -> Number {
        self.output
    }
}

/// Where the matrices are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Operands {
    /// rows × inner.
    pub left: Address,
    /// inner × columns.
    pub right: Address,
    /// rows × columns.
    pub out: Address,
    /// What the epilogue needs, or nothing.
    pub bias: Address,
    /// rows × columns; the epilogue's.
    pub aux: Address,
}
