//! The number types that kernels compute in.

use std::fmt::Debug;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Div, DivAssign, Mul, MulAssign, Neg, Sub, SubAssign};

/// A kernel of the `gemm` crates: `dst` ← `alpha` · `dst` + `beta` · `a` · `b`. Its arguments are m, n and k; `dst` with the
/// stride of its columns and that of its rows, in elements, and whether it is read; `a` and `b` with theirs; `alpha` and
/// `beta`; three flags for complex numbers; how many threads.
pub(crate) type Product<T> = unsafe fn(
    usize,
    usize,
    usize,
    *mut T,
    isize,
    isize,
    bool,
    *const T,
    isize,
    isize,
    *const T,
    isize,
    isize,
    T,
    T,
    bool,
    bool,
    bool,
    gemm_common::Parallelism,
);

/// f32, or f64 for checks.
pub trait Real:
    Copy
    + Debug
    + Default
    + PartialOrd
    + Send
    + Sync
    + Sum
    + 'static
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
    + AddAssign
    + SubAssign
    + MulAssign
    + DivAssign
{
    /// 0.
    const ZERO: Self;
    /// 1.
    const ONE: Self;
    /// −∞.
    const LEAST: Self;

    /// The nearest number.
    fn of(value: f64) -> Self;

    /// As f64.
    fn wide(self) -> f64;

    /// Square root.
    fn sqrt(self) -> Self;

    /// eˣ. A loop over it runs in vectors.
    fn exp(self) -> Self;

    /// The larger one.
    fn larger(self, other: Self) -> Self;

    /// The kernel of its matrix products that is fastest on this processor.
    #[doc(hidden)]
    fn product() -> Product<Self>;

    /// tanh x = 1 − 2 / (e²ˣ + 1).
    #[inline(always)]
    fn tanh(self) -> Self {
        Self::ONE - Self::of(2.0) / ((self + self).exp() + Self::ONE)
    }

    /// σ(x) = 1 / (1 + e⁻ˣ).
    #[inline(always)]
    fn sigmoid(self) -> Self {
        Self::ONE / (Self::ONE + (-self).exp())
    }
}

impl Real for f64 {
    const ZERO: Self = 0.0;
    const ONE: Self = 1.0;
    const LEAST: Self = f64::NEG_INFINITY;

    #[inline(always)]
    fn of(value: f64) -> Self {
        value
    }

    #[inline(always)]
    fn wide(self) -> f64 {
        self
    }

    #[inline(always)]
    fn sqrt(self) -> Self {
        self.sqrt()
    }

    fn exp(self) -> Self {
        self.exp()
    }

    #[inline(always)]
    fn larger(self, other: Self) -> Self {
        if self > other { self } else { other }
    }

    fn product() -> Product<Self> {
        gemm_f64::gemm::f64::get_gemm_fn()
    }
}

impl Real for f32 {
    const ZERO: Self = 0.0;
    const ONE: Self = 1.0;
    const LEAST: Self = f32::NEG_INFINITY;

    #[inline(always)]
    fn of(value: f64) -> Self {
        value as f32
    }

    #[inline(always)]
    fn wide(self) -> f64 {
        f64::from(self)
    }

    #[inline(always)]
    fn sqrt(self) -> Self {
        self.sqrt()
    }

    /// x = n ln 2 + r with |r| ≤ ln 2 / 2; eˣ = 2ⁿ eʳ, and eʳ is its Taylor polynomial of degree 7, whose error is below
    /// |r|⁸/8! = 5·10⁻⁹. Below −87 the result is e⁻⁸⁷ = 10⁻³⁸, above 88 it is e⁸⁸. A NaN stays one.
    #[inline(always)]
    fn exp(self) -> Self {
        // Added to a number below 2²², it leaves the nearest integer in the last bits.
        const ROUND: f32 = 12_582_912.0;
        // ln 2 in two parts: the first has few enough bits for n times it to be exact.
        const LN_2_HIGH: f32 = 0.693_359_4;
        const LN_2_LOW: f32 = -2.121_944_4e-4;
        let x = self.clamp(-87.0, 88.0);
        let shifted = x * std::f32::consts::LOG2_E + ROUND;
        let n = shifted - ROUND;
        let r = (x - n * LN_2_HIGH) - n * LN_2_LOW;
        let mut power = 1.0 / 5040.0;
        for coefficient in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
            power = power * r + coefficient;
        }
        let exponent = shifted.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127) << 23;
        power * f32::from_bits(exponent)
    }

    #[inline(always)]
    fn larger(self, other: Self) -> Self {
        if self > other { self } else { other }
    }

    fn product() -> Product<Self> {
        gemm_f32::gemm::f32::get_gemm_fn()
    }
}

#[cfg(test)]
mod tests {
    use super::Real;

    #[test]
    fn exponentials_are_right_to_two_units_in_the_last_place() {
        for step in -8700..=8800 {
            let x = step as f32 / 100.0;
            let (fast, exact) = (Real::exp(x).wide(), x.wide().exp());
            assert!((fast / exact - 1.0).abs() < 2.5e-7, "{x}: {fast} {exact}");
        }
        assert!(Real::exp(f32::NAN).is_nan());
        assert_eq!(Real::exp(0.0f32), 1.0);
        assert!(Real::exp(f32::NEG_INFINITY) < 2e-38);
    }

    #[test]
    fn hyperbolic_tangent_and_logistic_function_end_at_their_limits() {
        for (x, tanh, sigmoid) in [(0.0f32, 0.0, 0.5), (60.0, 1.0, 1.0), (-60.0, -1.0, 0.0)] {
            assert!((Real::tanh(x) - tanh).abs() < 1e-6 && (x.sigmoid() - sigmoid).abs() < 1e-6, "{x}");
        }
    }
}
