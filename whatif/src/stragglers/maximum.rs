//! The largest of several jitters, and sums of these.

use std::f64::consts::PI;

/// Mean and variance of the largest of n factors e^(σ z).
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Moments {
    mean: f64,
    variance: f64,
}

/// Normal densities are summed from −REACH to REACH in steps of 1 / STEPS.
const REACH: f64 = 12.0;
const STEPS: usize = 512;

impl Moments {
    /// Of the largest of `count` independent factors.
    ///
    /// E[Mᵏ] = ∫ e^(k σ z) n φ(z) Φ(z)ⁿ⁻¹ dz
    ///
    /// φ and Φ density and distribution of the standard normal. Summed by the trapezoidal rule; n = 1 gives
    /// E = e^(σ²/2), which tests check.
    pub fn of_largest(sigma: f64, count: usize) -> Moments {
        if sigma == 0.0 {
            return Moments { mean: 1.0, variance: 0.0 };
        }
        let (mut below, mut before) = (0.0, 0.0);
        let mut sums = [0.0; 2];
        let step = 1.0 / STEPS as f64;
        let points = (2.0 * REACH) as usize * STEPS;
        for point in 0..=points {
            let z = point as f64 * step - REACH;
            let density = libm::exp(-0.5 * z * z) / (2.0 * PI).sqrt();
            below += 0.5 * step * (before + density);
            before = density;
            let of_largest = count as f64 * density * below.min(1.0).powi(count as i32 - 1);
            for (sum, power) in sums.iter_mut().zip([1.0, 2.0]) {
                *sum += step * of_largest * libm::exp(power * sigma * z);
            }
        }
        let [mean, square] = sums;
        Moments { mean, variance: (square - mean * mean).max(0.0) }
    }

    /// Whether nothing is drawn.
    pub fn is_one(&self) -> bool {
        self.variance == 0.0
    }

    /// Location and scale of the lognormal distribution with mean and variance of a sum of ops, each with a separate
    /// factor, over the sum without factors.
    ///
    /// v = V Σ t² / (Σ t)², s² = ln(1 + v / E²), m = ln E − s² / 2
    ///
    /// t the ops' times, E and V mean and variance of a factor. One op alone of one GPU gets m = 0, s = σ back. That
    /// the sum of many is lognormal too is assumed (Fenton 1960, IRE Transactions on Communications Systems 8(1),
    /// 57–67).
    pub fn of_sum(&self, evenness: f64) -> (f64, f64) {
        let variance = self.variance * evenness * evenness;
        let square = libm::log(1.0 + variance / (self.mean * self.mean));
        (libm::log(self.mean) - 0.5 * square, square.sqrt())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_factor_has_the_moments_of_the_lognormal_distribution() {
        for sigma in [0.0, 0.05, 0.5] {
            let Moments { mean, variance } = Moments::of_largest(sigma, 1);
            let square = sigma * sigma;
            assert!((mean - libm::exp(square / 2.0)).abs() < 1e-6, "{sigma}: {mean}");
            assert!(
                (variance - (libm::exp(square) - 1.0) * libm::exp(square)).abs() < 1e-6,
                "{sigma}: {variance}"
            );
            let (location, scale) = Moments::of_largest(sigma, 1).of_sum(1.0);
            assert!(location.abs() < 1e-6 && (scale - sigma).abs() < 1e-5, "{sigma}: {location} {scale}");
        }
    }

    #[test]
    fn the_largest_of_two_is_known_in_closed_form() {
        // E[max(e^(σ z₁), e^(σ z₂))] = 2 e^(σ²/2) Φ(σ / √2); for σ = 0.1, Φ(0.0707107) = 0.5281860.
        let expected = 2.0 * libm::exp(0.005) * 0.528_186_0;
        assert!((Moments::of_largest(0.1, 2).mean - expected).abs() < 1e-6);
    }

    #[test]
    fn many_even_ops_hardly_differ_together() {
        // 100 equal ops: √(100 t²) / (100 t) = 0.1.
        let (location, scale) = Moments::of_largest(0.1, 1).of_sum(0.1);
        assert!((scale - 0.01).abs() < 1e-4, "{scale}");
        // The mean of the sum is the mean of one.
        assert!((location + scale * scale / 2.0 - 0.005).abs() < 1e-6);
    }
}
