//! Matrix products, by the kernels of the `gemm` crates.

use crate::real::Real;
use crate::threads::Threads;

/// A matrix in a slice.
#[derive(Debug, Clone, Copy)]
pub struct Matrix<'a, T> {
    data: &'a [T],
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
}

/// Whether a result replaces or is added to the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Onto {
    /// The output is replaced.
    Replace,
    /// The result is added to the output.
    Add,
}

impl<'a, T: Real> Matrix<'a, T> {
    /// Rows of `columns` one after the other.
    pub fn rows(data: &'a [T], columns: usize) -> Self {
        Self::strided(data, [data.len() / columns.max(1), columns], columns)
    }

    /// `size` rows and columns, each row `stride` after the one before.
    ///
    /// # Panics
    /// If `data` is too short for that.
    pub fn strided(data: &'a [T], [rows, columns]: [usize; 2], stride: usize) -> Self {
        let end = if rows == 0 { 0 } else { (rows - 1) * stride + columns };
        assert!(end <= data.len(), "{rows} rows of {columns} every {stride} in {}", data.len());
        Self { data, rows, columns, row_stride: stride, column_stride: 1 }
    }

    /// The transposed matrix.
    pub fn transposed(self) -> Self {
        Self {
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
            ..self
        }
    }
}

/// `out` = `a` · `b` or `out` + `a` · `b`, row-major.
///
/// # Panics
/// If the sizes do not fit each other.
pub fn multiply<T: Real>(out: &mut [T], onto: Onto, a: Matrix<T>, b: Matrix<T>, threads: Threads) {
    multiply_into(out, b.columns, onto, a, b, threads);
}

/// As `multiply`, with rows of the result `stride` apart.
///
/// # Panics
/// If the sizes do not fit each other.
pub fn multiply_into<T: Real>(
    out: &mut [T],
    stride: usize,
    onto: Onto,
    a: Matrix<T>,
    b: Matrix<T>,
    threads: Threads,
) {
    let (m, n, k) = (a.rows, b.columns, a.columns);
    assert_eq!(k, b.rows, "a product of {m} x {k} and {} x {n}", b.rows);
    if m == 0 || n == 0 {
        return;
    }
    assert!(
        (m - 1) * stride + n <= out.len() && n <= stride,
        "{m} rows of {n} every {stride} in {}",
        out.len()
    );
    let kept = if onto == Onto::Add { T::ONE } else { T::ZERO };
    // The kernels prefer columns of the result whose elements lie one after the other: here that is the transposed product.
    let (m, n, out_strides, a, b) = if stride > 1 {
        (n, m, [stride, 1], b.transposed(), a.transposed())
    } else {
        (m, n, [1, stride], a, b)
    };
    let [out_column_stride, out_row_stride] = out_strides;
    // SAFETY: the three matrices lie inside their slices: `out` by the assertion above, `a` and `b` by that of
    // `Matrix::strided`, which is the only way to make one, and a transposition leaves the elements the same. `out` is
    // borrowed mutably, so it overlaps neither.
    unsafe {
        T::product()(
            m,
            n,
            k,
            out.as_mut_ptr(),
            out_column_stride as isize,
            out_row_stride as isize,
            onto == Onto::Add,
            a.data.as_ptr(),
            a.column_stride as isize,
            a.row_stride as isize,
            b.data.as_ptr(),
            b.column_stride as isize,
            b.row_stride as isize,
            kept,
            T::ONE,
            false,
            false,
            false,
            threads.parallelism(),
        );
    }
}
