//! Additions: residuals, biases, and the sums over rows that are a bias's gradient.

use crate::lanes::wide;
use crate::real::Real;

/// `x` += `other`.
pub fn add<T: Real>(x: &mut [T], other: &[T]) {
    wide(|| x.iter_mut().zip(other).for_each(|(x, other)| *x += *other));
}

/// `x` *= `factor`.
pub fn scale<T: Real>(x: &mut [T], factor: T) {
    wide(|| x.iter_mut().for_each(|x| *x *= factor));
}

/// Each number becomes the larger one of itself and the other.
pub fn maximum<T: Real>(x: &mut [T], other: &[T]) {
    wide(|| x.iter_mut().zip(other).for_each(|(x, other)| *x = x.larger(*other)));
}

/// Adds `bias` to each row of `x`.
pub fn add_bias<T: Real>(x: &mut [T], bias: &[T]) {
    wide(|| {
        for row in x.chunks_exact_mut(bias.len()) {
            row.iter_mut().zip(bias).for_each(|(x, bias)| *x += *bias);
        }
    });
}

/// Adds the sum of the rows of `gradient` to `bias`.
pub fn bias_gradient<T: Real>(gradient: &[T], bias: &mut [T]) {
    wide(|| {
        for row in gradient.chunks_exact(bias.len()) {
            bias.iter_mut().zip(row).for_each(|(bias, gradient)| *bias += *gradient);
        }
    });
}

/// Whether all of them are numbers.
pub fn all_finite(x: &[f32]) -> bool {
    // x · 0 is 0 for every number and NaN for the rest.
    wide(|| crate::lanes::sum(x, |x| x * 0.0)) == 0.0
}
