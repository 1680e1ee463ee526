//! Random numbers by counter: the i-th number of a stream is a function of seed, stream and i, so that every rank can make
//! its part of a weight alone.

pub(crate) use trainwright_kernels::dropout::mix;

/// A stream of random numbers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stream(u64);

impl Stream {
    /// The stream of that number.
    pub fn new(seed: u64, stream: u64) -> Self {
        Self(mix(mix(seed) ^ stream))
    }

    /// The number at a place.
    pub fn bits(self, place: u64) -> u64 {
        mix(self.0 ^ mix(place))
    }

    /// Below `limit`.
    pub fn below(self, place: u64, limit: u64) -> u64 {
        ((u128::from(self.bits(place)) * u128::from(limit)) >> 64) as u64
    }

    /// From a normal distribution of mean 0 and variance 1 (Box & Muller 1958).
    pub fn normal(self, place: u64) -> f64 {
        let unit = |bits: u64| ((bits >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
        let (radius, angle) = (unit(self.bits(2 * place)), unit(self.bits(2 * place + 1)));
        (-2.0 * radius.ln()).sqrt() * (std::f64::consts::TAU * angle).cos()
    }

    /// 0..`count` in random order (Fisher & Yates).
    pub fn permutation(self, count: usize) -> Vec<u32> {
        let mut order: Vec<u32> = (0..count as u32).collect();
        for last in (1..count).rev() {
            order.swap(last, self.below(last as u64, last as u64 + 1) as usize);
        }
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normal_numbers_have_their_moments() {
        let stream = Stream::new(1, 2);
        let numbers: Vec<f64> = (0..20_000).map(|place| stream.normal(place)).collect();
        let mean = numbers.iter().sum::<f64>() / 20_000.0;
        let variance = numbers.iter().map(|x| x * x).sum::<f64>() / 20_000.0;
        // Four standard errors: 1/√20000 = 0.007 of the mean, √2 times that of the variance.
        assert!(mean.abs() < 0.03 && (variance - 1.0).abs() < 0.04, "{mean} {variance}");
    }

    #[test]
    fn a_permutation_has_every_number_once() {
        let mut order = Stream::new(3, 4).permutation(100);
        assert_ne!(order, (0..100).collect::<Vec<u32>>());
        order.sort_unstable();
        assert_eq!(order, (0..100).collect::<Vec<u32>>());
    }
}
