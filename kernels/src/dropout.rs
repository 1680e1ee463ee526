//! Dropout whose mask is a function of a key and of an element's place in the unsharded tensor: it is never stored, backward computes
//! it again, and a rank with a shard of a tensor has that shard of the mask.
//!
//! y = m ∘ x, m = 0 with probability r and 1/(1 − r) otherwise, so that the mean is that of x; backward ∂x = m ∘ ∂y.
//! Source: Srivastava et al. 2014, J. Mach. Learn. Res. 15, 1929–1958; scaled while training, as PyTorch does.

use crate::real::Real;

/// Dropout of a tensor.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Dropout {
    /// r, from 0 to 1.
    pub rate: f64,
    /// Key of the mask.
    pub key: u64,
}

/// The mask of a row.
#[derive(Debug, Clone, Copy)]
pub struct RowMask {
    key: u64,
    /// An element is dropped with probability threshold / 2²⁴.
    threshold: u64,
    factor: f64,
}

impl Dropout {
    /// The mask of a row, given its index in each of the tensor's other dimensions.
    pub fn row(&self, place: &[usize]) -> RowMask {
        let key = place.iter().fold(self.key, |key, number| mix(key ^ *number as u64));
        RowMask { key, threshold: self.threshold(), factor: self.factor() }
    }

    /// An element is dropped with probability threshold / 2²⁴.
    pub fn threshold(&self) -> u64 {
        (self.rate * (1u64 << 24) as f64) as u64
    }

    /// Factor of the elements that are kept.
    pub fn factor(&self) -> f64 {
        if self.rate < 1.0 { 1.0 / (1.0 - self.rate) } else { 0.0 }
    }

    /// Multiplies rows of that width by their masks; `places` are the rows'.
    pub fn apply<T: Real>(&self, x: &mut [T], width: usize, places: &[[usize; 2]]) {
        for (row, place) in x.chunks_exact_mut(width).zip(places) {
            let mask = self.row(place);
            row.iter_mut().enumerate().for_each(|(column, x)| *x *= mask.factor(column));
        }
    }
}

impl RowMask {
    /// m of a column's element.
    #[inline(always)]
    pub fn factor<T: Real>(&self, column: usize) -> T {
        match mix(self.key ^ column as u64) >> 40 < self.threshold {
            true => T::ZERO,
            false => T::of(self.factor),
        }
    }
}

/// The output function of SplitMix64 (Steele, Lea & Flood 2014, OOPSLA, doi 10.1145/2660193.2660195).
#[inline(always)]
pub fn mix(state: u64) -> u64 {
    let mut z = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(rows: usize) -> Vec<[usize; 2]> {
        (0..rows).map(|row| [row / 10, row % 10]).collect()
    }

    #[test]
    fn as_many_are_dropped_as_was_asked_for_and_the_mean_stays() {
        for rate in [0.0, 0.1, 0.5, 1.0] {
            let mut x = vec![1.0f64; 200 * 100];
            Dropout { rate, key: 7 }.apply(&mut x, 100, &places(200));
            let dropped = x.iter().filter(|x| **x == 0.0).count() as f64 / 20_000.0;
            // Four standard errors: √(r (1 − r) / 20000) ≤ 0.0036.
            assert!((dropped - rate).abs() < 0.015, "{rate}: {dropped}");
            let mean = x.iter().sum::<f64>() / 20_000.0;
            assert!(rate == 1.0 || (mean - 1.0).abs() < 0.03, "{rate}: {mean}");
        }
    }

    #[test]
    fn a_part_has_its_part_of_the_mask_and_other_keys_have_other_masks() {
        let made = |key, places: &[[usize; 2]]| {
            let mut x = vec![1.0f32; places.len() * 16];
            Dropout { rate: 0.5, key }.apply(&mut x, 16, places);
            x
        };
        let mask = made(1, &places(20));
        assert_eq!(made(1, &places(20)[5..9]), mask[5 * 16..9 * 16]);
        assert_ne!(made(2, &places(20)), mask);
        // Rows are unlike each other: half of 16 elements agree by chance, all of them never here.
        assert!(mask.chunks(16).skip(1).all(|row| row != &mask[..16]));
    }
}
