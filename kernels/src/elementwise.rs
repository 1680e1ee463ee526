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

/// `x` = the elementwise maximum of `x` and `other`.
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

/// Rounds each element to the nearest bf16, ties to even.
pub fn round_to_bf16(x: &mut [f32]) {
    wide(|| {
        for x in x.iter_mut() {
            let bits = x.to_bits();
            let rounded = bits.wrapping_add(0x7FFF + ((bits >> 16) & 1)) & 0xFFFF_0000;
            // A NaN must not become infinite.
            *x = f32::from_bits(if x.is_nan() { bits | 0x0040_0000 } else { rounded });
        }
    });
}

/// Whether all elements are bf16 values.
pub fn is_bf16(x: &[f32]) -> bool {
    wide(|| x.iter().fold(0, |bits, x| bits | x.to_bits())) & 0xFFFF == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bf16_has_eight_bits_of_significand() {
        // Between 1 and 2 they are 2⁻⁷ apart; half way the even one is taken.
        let step = 1.0 / 128.0;
        let mut x =
            [1.0, 1.0 + 0.4 * step, 1.0 + 0.5 * step, 1.0 + 1.5 * step, -3.0e38, f32::INFINITY, f32::NAN];
        assert!(!is_bf16(&x));
        round_to_bf16(&mut x);
        assert_eq!(x[..4], [1.0, 1.0, 1.0, 1.0 + 2.0 * step]);
        assert!((x[4] / -3.0e38 - 1.0).abs() < 0.004 && x[5] == f32::INFINITY && x[6].is_nan());
        assert!(is_bf16(&x[..6]));
    }
}
