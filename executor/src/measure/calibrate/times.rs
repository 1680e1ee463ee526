//! What ops took in short runs: samples in, rows of a profile out.

use super::robust::{Refused, kept, median, sweep};
use std::collections::BTreeMap;
use trainwright_spec::cluster::{MeasuredExchange, MeasuredKernel, MeasuredOp, MeasuredTime};
use trainwright_spec::collective::CollectiveKind;
use trainwright_spec::program::Kernel;
use trainwright_spec::units::{Bytes, Seconds};

/// How many parts the distribution of ops' times has.
const PARTS: usize = 64;

/// An exchange: op, collective, ranks of its group. Its sizes are in bytes.
type Exchange = (String, CollectiveKind, usize);

/// Of each op kind and shape, the seconds of each of its runs.
#[derive(Default)]
pub(crate) struct Times {
    ops: BTreeMap<(String, String), (Kernel, Vec<f64>)>,
    exchanges: BTreeMap<Exchange, BTreeMap<u64, Vec<f64>>>,
    /// Seconds of steps of ranks that outnumber cores, what they would be if each rank took as long as one with a core to
    /// itself, and threads a core.
    pub crowded: Vec<[f64; 3]>,
}

impl Times {
    /// Adds a run of an op that computes.
    pub fn add_op(&mut self, op: String, kernel: Kernel, seconds: f64) {
        let key = (op, format!("{kernel:?}"));
        self.ops.entry(key).or_insert((kernel, Vec::new())).1.push(seconds);
    }

    /// Adds a run of a collective.
    pub fn add_exchange(&mut self, exchange: Exchange, bytes: Bytes, seconds: f64) {
        let sizes = self.exchanges.entry(exchange).or_default();
        sizes.entry(bytes.get() as u64).or_default().push(seconds);
    }

    /// Takes out the samples that other programs disturbed, and says which.
    pub fn refuse(&mut self) -> Vec<Refused> {
        let mut refused = Vec::new();
        let mut keep = |samples: &mut Vec<f64>, what: &dyn Fn() -> String| {
            let (left, lost) = kept(std::mem::take(samples), what);
            *samples = left;
            refused.extend(lost);
        };
        for ((op, _), (_, samples)) in &mut self.ops {
            keep(samples, &|| format!("`{op}`"));
        }
        for ((op, collective, ranks), sizes) in &mut self.exchanges {
            for (bytes, samples) in sizes {
                let bytes = Bytes::new(*bytes as f64);
                keep(samples, &|| format!("the {collective} `{op}` of {bytes} by {ranks} ranks"));
            }
        }
        refused
    }

    /// The mean of each op: the sum of means is that of a typical step, which a sum of medians is not where some runs of
    /// ops are disturbed.
    pub fn ops(&self) -> Vec<MeasuredOp> {
        let row = |((op, _), (kernel, seconds)): (&(String, String), &(Kernel, Vec<f64>))| MeasuredOp {
            op: op.clone(),
            measured: MeasuredKernel { kernel: *kernel, time: mean(seconds) },
        };
        self.ops.iter().map(row).collect()
    }

    /// The median of each exchange and size, none longer than that of a larger size.
    pub fn exchanges(&self) -> Vec<MeasuredExchange> {
        let rows = self.exchanges.iter().flat_map(|((op, collective, ranks), sizes)| {
            let medians = sizes.iter().map(|(bytes, seconds)| (*bytes as f64, median(seconds.clone())));
            let medians: Vec<(f64, f64)> = medians.collect();
            let times = sweep(&medians).into_iter().zip(medians);
            times.map(move |(time, (bytes, _))| {
                let measured = MeasuredTime { bytes: Bytes::new(bytes), time: Seconds::new(time) };
                MeasuredExchange { op: op.clone(), collective: *collective, ranks: *ranks, measured }
            })
        });
        rows.collect()
    }

    /// k = med (T_i − T'_i) / T'_i (w_i − 1): T_i and T'_i the times with and without others on the cores, w_i > 1 threads
    /// a core; at least −1 / w of the largest w.
    ///
    /// It is less than nothing where other programs are busy too, of which more ranks leave less; but w ranks that share a
    /// core take at least as long as one that has it to itself: T ≥ T' / w.
    pub fn crowding(&self) -> f64 {
        let crowded = self.crowded.iter().filter(|[_, fair, threads]| *fair > 0.0 && *threads > 1.0);
        let found = crowded.map(|[time, fair, threads]| (time - fair) / (fair * (threads - 1.0)));
        let most = self.crowded.iter().map(|[.., threads]| *threads).fold(1.0, f64::max);
        median(found.collect()).max(-1.0 / most)
    }

    /// Parts of their means that runs of ops took: of all runs, each as likely as its op's mean is long, the means of
    /// equal shares, so that what is short but often disturbed does not speak for what is long.
    pub fn jitter(&self) -> Vec<f64> {
        let runs = self.ops.values().flat_map(|(_, seconds)| {
            let mean = mean(seconds).get();
            seconds.iter().map(move |time| (time / mean, mean))
        });
        shares(runs.collect(), PARTS)
    }
}

/// No op takes less than a nanosecond, the unit in which they are timed.
fn mean(seconds: &[f64]) -> Seconds {
    Seconds::new((seconds.iter().sum::<f64>() / seconds.len().max(1) as f64).max(1e-9))
}

/// The means of `count` shares of equal weight of values with weights, the smallest first; empty for no values.
fn shares(mut values: Vec<(f64, f64)>, count: usize) -> Vec<f64> {
    values.sort_by(|one, other| one.0.total_cmp(&other.0));
    let share = values.iter().map(|(_, weight)| weight).sum::<f64>() / count as f64;
    if share <= 0.0 {
        return Vec::new();
    }
    let (mut sums, mut at, mut room) = (vec![0.0; count], 0, share);
    for (value, mut weight) in values {
        while weight > 0.0 {
            // What rounding leaves over belongs to the last share.
            let taken = if at + 1 == count { weight } else { weight.min(room) };
            sums[at] += taken * value;
            weight -= taken;
            room -= taken;
            if room <= 0.0 && at + 1 < count {
                (at, room) = (at + 1, share);
            }
        }
    }
    sums.into_iter().map(|sum| sum / share).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use trainwright_spec::program::Access;

    const KERNEL: Kernel =
        Kernel::Streaming { access: Access::Elementwise, read: Bytes::ZERO, written: Bytes::ZERO };

    #[test]
    fn crowding_is_what_taking_turns_costs() {
        let found = |crowded| Times { crowded, ..Times::default() }.crowding();
        // 2 s more than 20 where two threads share a core: 10 %. 4 s more than 40 where five do: 2.5 % for each of four.
        assert!((found(vec![[22.0, 20.0, 2.0], [44.0, 40.0, 5.0]]) - 0.0625).abs() < 1e-12);
        // One of three that was held up for an hour says nothing.
        assert!((found(vec![[22.0, 20.0, 2.0], [21.0, 20.0, 2.0], [3600.0, 20.0, 2.0]]) - 0.1).abs() < 1e-12);
        assert_eq!(found(vec![[1.0, 20.0, 4.0]]), -0.25, "four ranks on a core in less time than one");
        assert_eq!(found(Vec::new()), 0.0);
    }

    #[test]
    fn shares_weigh_the_same_and_keep_the_mean() {
        // Weights 1, 1 and 2 in two shares of 2: the two small values, and the large one.
        assert_eq!(shares(vec![(3.0, 2.0), (1.0, 1.0), (2.0, 1.0)], 2), [1.5, 3.0]);
        // One value is in all shares.
        assert_eq!(shares(vec![(1.0, 5.0)], 4), [1.0; 4]);
        assert!(shares(Vec::new(), 4).is_empty());
        let mut unsteady = Times::default();
        for seconds in [1.0, 3.0] {
            unsteady.add_op("qkv forward".into(), KERNEL, seconds);
        }
        let parts = unsteady.jitter();
        // Half of the runs took half of the mean, the others one and a half.
        assert_eq!((parts.len(), parts[0], parts[PARTS - 1]), (PARTS, 0.5, 1.5));
    }

    /// 40 runs of an op of 20 µs and of an exchange of two sizes, every fifth one `factor` times as long.
    fn disturbed(factor: f64) -> Times {
        let mut times = Times::default();
        for run in 0..40 {
            let factor = if run % 5 == 0 { factor } else { 1.0 };
            times.add_op("qkv forward".into(), KERNEL, 20e-6 * factor);
            for (bytes, seconds) in [(4.0, 10e-6), (4e6, 2e-3)] {
                let exchange = ("reduce norm update".into(), CollectiveKind::AllReduce, 2);
                times.add_exchange(exchange, Bytes::new(bytes), seconds * factor);
            }
        }
        times
    }

    #[test]
    fn runs_that_were_put_off_are_refused_and_named() {
        let mut times = disturbed(10_000.0);
        let refused = times.refuse();
        let names: Vec<&str> = refused.iter().map(|one| one.what.as_str()).collect();
        assert_eq!(
            names,
            [
                "`qkv forward`",
                "the all-reduce `reduce norm update` of 4 B by 2 ranks",
                "the all-reduce `reduce norm update` of 3.81 MiB by 2 ranks"
            ]
        );
        assert!(refused.iter().all(|one| (one.count, one.of) == (8, 40)), "{refused:?}");
        assert!((times.ops()[0].measured.time.get() / 20e-6 - 1.0).abs() < 1e-9);
        let found: Vec<f64> = times.exchanges().iter().map(|row| row.measured.time.get()).collect();
        assert_eq!(found, [10e-6, 2e-3]);
        assert!(times.jitter().iter().all(|part| (part - 1.0).abs() < 1e-9));
    }

    /// What is too little to be refused moves a mean by a factor below 2.6 = 0.8 + 0.2 · 9, and no median.
    #[test]
    fn runs_that_were_held_up_a_little_are_part_of_the_mean() {
        let mut times = disturbed(9.0);
        assert_eq!(times.refuse(), []);
        assert!((times.ops()[0].measured.time.get() / 52e-6 - 1.0).abs() < 1e-9);
        assert_eq!(times.exchanges()[0].measured.time.get(), 10e-6);
    }

    #[test]
    fn a_small_exchange_takes_no_longer_than_a_large_one() {
        let mut times = Times::default();
        for (bytes, seconds) in [(4.0, 0.5), (4e6, 2e-3)] {
            let exchange = ("reduce norm update".into(), CollectiveKind::AllReduce, 2);
            times.add_exchange(exchange, Bytes::new(bytes), seconds);
        }
        let found: Vec<f64> = times.exchanges().iter().map(|row| row.measured.time.get()).collect();
        assert_eq!(found, [2e-3, 2e-3]);
    }
}
