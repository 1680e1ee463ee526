//! Lengths of answers: a distribution with a long tail, cut at the most tokens that an answer may have.

/// Standard deviation of the logarithm of an answer's length before it is cut, if nothing else is said. Assumed: lengths of
/// reinforcement learning are not published sample by sample. With it the longest of 2,048 answers has twenty times the mean.
pub const SPREAD: f64 = 1.0;

/// Answers whose lengths are log-normal, cut at `most`: those that would be longer have that length.
///
/// E[min(X, M)] = e^(μ + σ²/2) Φ((ln M − μ − σ²) / σ) + M (1 − Φ((ln M − μ) / σ))
///
/// M the most, σ the spread; μ follows from the mean.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ResponseLengths {
    /// Tokens in the mean, cut ones included.
    pub mean: f64,
    /// Tokens at most.
    pub most: usize,
    /// Standard deviation of the logarithm before the cut.
    pub spread: f64,
}

impl ResponseLengths {
    /// Lengths with the usual spread. A mean of `most` or more means that all answers have this length.
    pub fn new(mean: f64, most: usize) -> Self {
        Self { mean: mean.clamp(1.0, most as f64), most: most.max(1), spread: SPREAD }
    }

    /// So many answers: the quantiles (i + ½) / n, in an order without a trend. The same in every run.
    pub fn drawn(&self, answers: usize) -> Vec<usize> {
        let place = self.location();
        let length = |index: usize| {
            let quantile = (index as f64 + 0.5) / answers as f64;
            let free = libm::exp(place + self.spread * normal_quantile(quantile));
            (free.round().max(1.0) as usize).min(self.most)
        };
        let mut order: Vec<(f64, usize)> =
            (0..answers).map(|index| ((index as f64 * 0.618_033_988_749_895).fract(), index)).collect();
        order.sort_by(|one, other| one.0.total_cmp(&other.0));
        order.into_iter().map(|(_, index)| length(index)).collect()
    }

    /// μ, by bisection: the mean grows with it.
    fn location(&self) -> f64 {
        let (mut low, mut high) = (-20.0, libm::log(self.most as f64) + 12.0 * self.spread + 20.0);
        for _ in 0..100 {
            let middle = 0.5 * (low + high);
            if self.mean_at(middle) < self.mean { low = middle } else { high = middle }
        }
        0.5 * (low + high)
    }

    fn mean_at(&self, place: f64) -> f64 {
        let (spread, most) = (self.spread, self.most as f64);
        let cut = (libm::log(most) - place) / spread;
        libm::exp(place + 0.5 * spread * spread) * normal(cut - spread) + most * (1.0 - normal(cut))
    }
}

/// Φ, by the complementary error function of Numerical Recipes (relative error below 1.2e-7).
fn normal(x: f64) -> f64 {
    let z = x.abs() / std::f64::consts::SQRT_2;
    let t = 1.0 / (1.0 + 0.5 * z);
    let coefficients = [
        -1.265_512_23,
        1.000_023_68,
        0.374_091_96,
        0.096_784_18,
        -0.186_288_06,
        0.278_868_07,
        -1.135_203_98,
        1.488_515_87,
        -0.822_152_23,
        0.170_872_77,
    ];
    let series = coefficients.iter().rev().fold(0.0, |sum, coefficient| sum * t + coefficient);
    let complement = 0.5 * t * libm::exp(series - z * z);
    if x >= 0.0 { 1.0 - complement } else { complement }
}

/// The inverse of Φ, by bisection.
fn normal_quantile(part: f64) -> f64 {
    let (mut low, mut high) = (-9.0, 9.0);
    for _ in 0..60 {
        let middle = 0.5 * (low + high);
        if normal(middle) < part { low = middle } else { high = middle }
    }
    0.5 * (low + high)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drawn_answers_have_the_mean_and_a_tail_that_is_cut() {
        let check = |mean: f64, most: usize, answers: usize| {
            let drawn = ResponseLengths::new(mean, most).drawn(answers);
            let sum: usize = drawn.iter().sum();
            let longest = *drawn.iter().max().unwrap();
            let off = sum as f64 / answers as f64 / mean - 1.0;
            assert!(off.abs() < 0.02, "mean {mean} of at most {most}: {off:+.3}");
            assert!(longest <= most && longest as f64 >= mean, "{longest}");
            (longest, drawn)
        };
        // A tenth of the limit: the longest of two thousand reaches it; nine tenths: most answers are cut.
        assert_eq!(check(400.0, 4096, 2048).0, 4096);
        let (_, drawn) = check(3700.0, 4096, 2048);
        let cut = drawn.iter().filter(|length| **length == 4096).count();
        assert!(cut > 1024, "{cut}");
        check(100.0, 100_000, 512);
        assert_eq!(ResponseLengths::new(9e9, 64).drawn(3), [64; 3]);
        assert!((normal(1.959_964) - 0.975).abs() < 1e-6 && normal(0.0) > 0.499_999);
        assert!((normal_quantile(0.9) - 1.281_552).abs() < 1e-5);
    }

    #[test]
    fn the_order_has_no_trend() {
        let drawn = ResponseLengths::new(1000.0, 8192).drawn(4096);
        let mean = |part: &[usize]| part.iter().sum::<usize>() as f64 / part.len() as f64;
        let parts: Vec<f64> = drawn.chunks(512).map(mean).collect();
        assert!(parts.iter().all(|part| (part / 1000.0 - 1.0).abs() < 0.1), "{parts:?}");
    }
}
