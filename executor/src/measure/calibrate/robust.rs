//! Times from samples that other programs disturbed: numbers in, numbers out.
//!
//! ```text
//! samples of one size ─► kept: what is longer than 10 medians is refused ─► their median
//! medians by size ─► line: T = α + n b by repeated medians ─► sweep: what is off the line by 10, or longer than a larger
//!                                                              size, is replaced
//! ```
//!
//! A disturbance only ever lengthens a sample. Nothing here knows what was timed, nor reads a clock.

use std::fmt;
use trainwright_spec::units::Seconds;

/// A sample is refused if it took more than this many times the median of its kind; a size of a sweep is replaced if it
/// is off the line through the others by more than this factor.
pub(crate) const OUTLIER: f64 = 10.0;

/// Samples of one kind that were refused.
#[derive(Debug, Clone, PartialEq)]
pub struct Refused {
    /// What was timed: `all-gather step of 256 B`.
    pub what: String,
    /// How many samples were refused.
    pub count: usize,
    /// How many there were.
    pub of: usize,
    /// The longest of them.
    pub longest: Seconds,
    /// The median of all.
    pub median: Seconds,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let Self { what, count, of, longest, median } = self;
        write!(f, "{count} of {of} of {what} (up to {longest}, median {median})")
    }
}

impl Refused {
    /// One line about all of them, those with the longest sample over its median first; `None` if there are none.
    pub fn line(all: &[Refused]) -> Option<String> {
        const NAMED: usize = 3;
        let over = |one: &Refused| one.longest / one.median;
        let mut sorted: Vec<&Refused> = all.iter().collect();
        sorted.sort_by(|one, other| over(other).total_cmp(&over(one)));
        let (count, of) = all.iter().fold((0, 0), |(count, of), one| (count + one.count, of + one.of));
        let named: Vec<String> = sorted.iter().take(NAMED).map(ToString::to_string).collect();
        let more = sorted.len().saturating_sub(NAMED);
        let more = if more > 0 { format!(", and of {more} more") } else { String::new() };
        (count > 0).then(|| {
            format!(
                "refused {count} of {of} samples, which took more than {OUTLIER} x their median as other programs \
                 used the machine: {}{more}",
                named.join(", ")
            )
        })
    }
}

/// The median, of an even count the mean of the two in the middle; 0 of nothing.
pub(crate) fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    match (numbers.len(), numbers.len() / 2) {
        (0, _) => 0.0,
        (count, middle) if count % 2 == 0 => 0.5 * (numbers[middle - 1] + numbers[middle]),
        (_, middle) => numbers[middle],
    }
}

/// The samples up to `OUTLIER` medians, in their order, and what was refused; `None` if nothing was.
pub(crate) fn kept(samples: Vec<f64>, what: impl FnOnce() -> String) -> (Vec<f64>, Option<Refused>) {
    let middle = median(samples.clone());
    let of = samples.len();
    let longest = samples.iter().copied().fold(0.0, f64::max);
    let kept: Vec<f64> = samples.into_iter().filter(|sample| *sample <= OUTLIER * middle).collect();
    let count = of - kept.len();
    let refused = (count > 0).then(|| Refused {
        what: what(),
        count,
        of,
        longest: Seconds::new(longest),
        median: Seconds::new(middle),
    });
    (kept, refused)
}

/// T = α + n b: what nothing takes, and what each byte adds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Line {
    /// α in seconds, at least 0.
    pub latency: f64,
    /// b in seconds, at least 0: one over the bandwidth.
    pub per_byte: f64,
}

impl Line {
    /// Through points of bytes and seconds, of different bytes, by repeated medians, which up to half of the points
    /// cannot spoil:
    ///
    /// b = med_i med_j≠i (T_j − T_i) / (n_j − n_i), α = med_i (T_i − b n_i), each at least 0
    ///
    /// Source: Siegel 1982, Robust regression using repeated medians, Biometrika 69(1), 242–244.
    pub fn fit(points: &[(f64, f64)]) -> Line {
        let slope = |(index, (bytes, time)): (usize, &(f64, f64))| {
            let others = points.iter().enumerate().filter(|(other, _)| *other != index);
            median(others.map(|(_, (other, others))| (others - time) / (other - bytes)).collect())
        };
        let per_byte = median(points.iter().enumerate().map(slope).collect()).max(0.0);
        let rest = points.iter().map(|(bytes, time)| time - per_byte * bytes);
        Line { latency: median(rest.collect()).max(0.0), per_byte }
    }

    /// Seconds for `bytes` bytes.
    pub fn at(self, bytes: f64) -> f64 {
        self.latency + self.per_byte * bytes
    }
}

/// Sizes from which on a line says whether one of them is off.
const LINE: usize = 4;

/// Seconds of each size, the smallest first, from the medians of their samples.
///
/// What is off the line through all of them by more than `OUTLIER` is the line's; no size takes longer than a larger one,
/// because it was disturbed if it did; nothing takes less than a nanosecond, the clock's unit.
pub(crate) fn sweep(medians: &[(f64, f64)]) -> Vec<f64> {
    let line = (medians.len() >= LINE).then(|| Line::fit(medians));
    let near = |(bytes, time): &(f64, f64)| match line.map(|line| line.at(*bytes)) {
        Some(line) if line > 0.0 && !(line / OUTLIER..=line * OUTLIER).contains(time) => line,
        _ => *time,
    };
    let mut times: Vec<f64> = medians.iter().map(near).collect();
    let mut least = f64::INFINITY;
    for time in times.iter_mut().rev() {
        least = least.min(*time);
        *time = least.max(1e-9);
    }
    times
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: [f64; 8] = [256.0, 4096.0, 16384.0, 65536.0, 262144.0, 1048576.0, 4194304.0, 16777216.0];

    /// 8 µs and 5 GB/s.
    const TRUTH: Line = Line { latency: 8e-6, per_byte: 0.2e-9 };

    /// 24 samples of each size, within 5 % of the truth, on which something is done.
    fn samples(disturb: impl Fn(usize, usize, f64) -> f64) -> Vec<(f64, Vec<f64>)> {
        let of_size = |(size, bytes): (usize, f64)| {
            let sample = |index: usize| {
                let noise = 1.0 + 0.05 * ((index * 7 + size * 3) % 11) as f64 / 11.0;
                disturb(size, index, noise * TRUTH.at(bytes))
            };
            (bytes, (0..24).map(sample).collect())
        };
        SIZES.into_iter().enumerate().map(of_size).collect()
    }

    /// As the steps of collectives are measured: samples in, times by size and how many were refused out.
    fn measured(samples: Vec<(f64, Vec<f64>)>) -> (Vec<f64>, Vec<(f64, f64)>, usize) {
        let mut refused = 0;
        let medians = samples.into_iter().map(|(bytes, samples)| {
            let (kept, lost) = kept(samples, String::new);
            refused += lost.map_or(0, |lost| lost.count);
            (bytes, median(kept))
        });
        let medians: Vec<(f64, f64)> = medians.collect();
        (sweep(&medians), medians, refused)
    }

    /// Whether each size, and both constants of the line, are within a factor of the truth.
    fn check(case: &str, samples: Vec<(f64, Vec<f64>)>, factor: f64, refused: usize) {
        let (times, medians, count) = measured(samples);
        assert_eq!(count, refused, "{case}");
        let near = |found: f64, truth: f64| found <= truth * factor && found >= truth / factor;
        for (bytes, time) in SIZES.iter().zip(&times) {
            assert!(near(*time, TRUTH.at(*bytes)), "{case}: {bytes} bytes took {time}");
        }
        let exact: Vec<(f64, f64)> = SIZES.iter().copied().zip(times).collect();
        for line in [Line::fit(&medians), Line::fit(&exact)] {
            assert!(near(line.per_byte, TRUTH.per_byte), "{case}: {line:?}");
            assert!(near(line.latency, TRUTH.latency), "{case}: {line:?}");
        }
    }

    #[test]
    fn constants_are_found_in_clean_and_in_disturbed_samples() {
        check("clean", samples(|_, _, time| time), 1.1, 0);
        // Of every size, then of the smallest alone.
        let one = |of: fn(usize) -> bool| {
            samples(move |size, index, time| if of(size) && index == 5 { 1e4 * time } else { time })
        };
        check("one sample of each size 10,000 x too long", one(|_| true), 1.1, 8);
        check("one sample 10,000 x too long", one(|size| size == 0), 1.1, 1);
        let fifth = samples(|_, index, time| if index % 5 == 0 { 50.0 * time } else { time });
        check("a fifth of the samples 50 x too long", fifth, 1.1, 8 * 5);
        // Too short of a refusal: the median alone holds.
        let slower = samples(|_, index, time| if index % 5 == 0 { 9.0 * time } else { time });
        check("a fifth of the samples 9 x too long", slower, 1.1, 0);
    }

    #[test]
    fn a_size_that_was_disturbed_all_the_time_is_told_by_the_others() {
        for size in 0..SIZES.len() {
            let found = measured(samples(|index, _, time| if index == size { 100.0 * time } else { time })).0;
            for (index, (bytes, time)) in SIZES.iter().zip(found).enumerate() {
                let ratio = time / TRUTH.at(*bytes);
                assert!((0.9..2.0).contains(&ratio), "size {size} disturbed, {index} off by {ratio}");
            }
        }
    }

    #[test]
    fn a_line_has_no_negative_constants() {
        let equal: Vec<(f64, f64)> = SIZES.map(|bytes| (bytes, 3e-6)).into();
        assert_eq!(Line::fit(&equal), Line { latency: 3e-6, per_byte: 0.0 });
        assert_eq!(sweep(&equal), [3e-6; 8]);
        // Shorter the larger: all sizes take what the largest does.
        let falling: Vec<(f64, f64)> =
            (1..).zip(SIZES).map(|(n, bytes)| (bytes, 9e-6 / f64::from(n))).collect();
        let line = Line::fit(&falling);
        assert!(line.per_byte == 0.0 && (9e-6 / 8.0..=9e-6).contains(&line.latency), "{line:?}");
        assert_eq!(sweep(&falling), [9e-6 / 8.0; 8]);
        // Steeper than a line through nothing: no size is faster than no bytes at all.
        assert_eq!(Line::fit(&[(1.0, 1.0), (2.0, 3.0), (3.0, 5.0)]), Line { latency: 0.0, per_byte: 2.0 });
        assert_eq!(sweep(&[]), [0.0; 0]);
        assert_eq!(sweep(&[(8.0, 0.0)]), [1e-9], "nothing takes no time");
    }

    #[test]
    fn medians_of_even_counts_lie_between() {
        assert_eq!([median(vec![]), median(vec![5.0]), median(vec![4.0, 1.0, 2.0, 9.0])], [0.0, 5.0, 3.0]);
    }

    #[test]
    fn what_was_refused_is_one_line_with_the_worst_first() {
        let one = |what: &str, count, longest| Refused {
            what: what.into(),
            count,
            of: 24,
            longest: Seconds::new(longest),
            median: Seconds::new(1e-5),
        };
        assert_eq!(Refused::line(&[]), None);
        let all = [one("a", 1, 2e-3), one("b", 3, 9e-3), one("c", 1, 1e-3), one("d", 2, 5e-4)];
        assert_eq!(
            Refused::line(&all).unwrap(),
            "refused 7 of 96 samples, which took more than 10 x their median as other programs used the machine: \
             3 of 24 of b (up to 9.00 ms, median 10.0 µs), 1 of 24 of a (up to 2.00 ms, median 10.0 µs), \
             1 of 24 of c (up to 1.00 ms, median 10.0 µs), and of 1 more"
        );
    }
}
