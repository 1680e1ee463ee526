//! Timing of work on a device, and random data for it.

use super::device::Device;
use super::error::DeviceError;
use super::launch::{Address, Number};

/// How many samples and runs a timing takes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Effort {
    /// Samples; their median counts.
    pub samples: usize,
    /// Seconds of a sample, filled by repeated runs: many times the resolution of the device's clock.
    pub sample: f64,
    /// The most runs of a sample.
    pub runs: usize,
}

impl Effort {
    /// On a GPU, whose events resolve half a microsecond.
    pub const OF_GPU: Effort = Effort { samples: 15, sample: 2e-3, runs: 1000 };

    /// To see that it can be measured at all.
    pub const LEAST: Effort = Effort { samples: 3, sample: 0.0, runs: 1 };

    /// Samples, and runs in each, for a run of `once` seconds.
    fn of(self, once: f64) -> (usize, usize) {
        let samples = if once > SLOW { self.samples.min(FEW) } else { self.samples };
        (samples, ((self.sample / once).ceil() as usize).clamp(1, self.runs))
    }
}

/// From this time of a run on, in seconds, a few samples are enough: the clock's resolution and the launch are negligible.
const SLOW: f64 = 0.05;
const FEW: usize = 5;

/// The time of a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Timed {
    /// Median seconds of a run.
    pub seconds: f64,
    /// Width of the samples' middle half, relative to the median.
    pub spread: f64,
}

impl Timed {
    /// From the seconds of some runs, at least one.
    pub fn of(mut samples: Vec<f64>) -> Self {
        samples.sort_by(f64::total_cmp);
        let count = samples.len();
        // At least a nanosecond, the unit of timings.
        let seconds = samples[count / 2].max(1e-9);
        Self { seconds, spread: (samples[3 * count / 4] - samples[count / 4]) / seconds }
    }
}

/// Runs before the samples, after the first run.
const WARM_UP: usize = 3;

/// Random numbers made by the host; larger arrays repeat them.
const DRAWN: usize = 1 << 24;

/// A device whose selected stream is timed.
pub struct Bench<'a> {
    /// The device.
    pub device: &'a mut dyn Device,
    effort: Effort,
    state: u64,
}

impl<'a> Bench<'a> {
    /// Times work on that device.
    pub fn new(device: &'a mut dyn Device, effort: Effort) -> Self {
        Self { device, effort, state: 1 }
    }

    fn draw(&mut self) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state
    }

    /// Random numbers between −1 and 1: zeros would draw less power and run faster than real data.
    ///
    /// # Errors
    /// Those of the device, as for all methods here.
    pub fn random(&mut self, number: Number, count: usize) -> Result<Address, DeviceError> {
        let drawn: Vec<f32> =
            (0..count.min(DRAWN)).map(|_| (self.draw() >> 40) as f32 / (1u64 << 23) as f32 - 1.0).collect();
        let bytes: Vec<u8> = match number {
            Number::F32 => drawn.iter().flat_map(|x| x.to_le_bytes()).collect(),
            Number::Bf16 => drawn.iter().flat_map(|x| ((x.to_bits() >> 16) as u16).to_le_bytes()).collect(),
        };
        let at = self.device.allocate(count * number.size())?;
        self.device.write(at, &bytes)?;
        for first in (DRAWN..count).step_by(DRAWN) {
            let part = DRAWN.min(count - first) * number.size();
            self.device.copy(at.after(first * number.size()), at, part)?;
        }
        Ok(at)
    }

    /// Random integers below `end`.
    ///
    /// # Errors
    /// Of the device.
    pub fn indices(&mut self, count: usize, end: u32) -> Result<Address, DeviceError> {
        let drawn: Vec<u8> =
            (0..count).flat_map(|_| (((self.draw() >> 33) % u64::from(end)) as u32).to_le_bytes()).collect();
        self.device.upload(&drawn)
    }

    /// Times the work that `work` enqueues.
    ///
    /// # Errors
    /// Of the device.
    pub fn time(
        &mut self,
        mut work: impl FnMut(&mut dyn Device) -> Result<(), DeviceError>,
    ) -> Result<Timed, DeviceError> {
        let first = self.sample(1, &mut work)?;
        let once = self.sample(if first > SLOW { 1 } else { WARM_UP }, &mut work)?;
        let (samples, runs) = self.effort.of(once);
        self.samples(samples, runs, work)
    }

    /// As `time`, with a fixed number of runs in each sample, for work that ranks do together.
    ///
    /// # Errors
    /// Of the device.
    pub fn time_runs(
        &mut self,
        runs: usize,
        work: impl FnMut(&mut dyn Device) -> Result<(), DeviceError>,
    ) -> Result<Timed, DeviceError> {
        self.samples(self.effort.samples, runs, work)
    }

    fn samples(
        &mut self,
        samples: usize,
        runs: usize,
        mut work: impl FnMut(&mut dyn Device) -> Result<(), DeviceError>,
    ) -> Result<Timed, DeviceError> {
        let samples = (0..samples).map(|_| self.sample(runs, &mut work));
        Ok(Timed::of(samples.collect::<Result<_, _>>()?))
    }

    /// Seconds of a run in the mean over some.
    fn sample(
        &mut self,
        runs: usize,
        work: &mut impl FnMut(&mut dyn Device) -> Result<(), DeviceError>,
    ) -> Result<f64, DeviceError> {
        self.device.mark()?;
        for _ in 0..runs {
            work(self.device)?;
        }
        self.device.mark()?;
        let marks = self.device.marks()?;
        Ok(marks.last().copied().unwrap_or(0.0) / runs as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_counts_and_how_far_the_middle_half_lies_apart() {
        let timed = Timed::of(vec![9.0, 1.0, 2.0, 4.0]);
        // In order 1, 2, 4, 9: the upper one of both middle ones, and from 2 to 9.
        assert_eq!(timed, Timed { seconds: 4.0, spread: 7.0 / 4.0 });
        assert_eq!(Timed::of(vec![0.0]), Timed { seconds: 1e-9, spread: 0.0 });
    }

    #[test]
    fn what_is_slow_has_few_samples_and_what_is_fast_many_runs() {
        let effort = Effort::OF_GPU;
        // Samples of 2 ms: 200 runs of 10 µs, one of 40 ms; what ends at once has no more than the most.
        assert_eq!(
            [1e-5, 0.04, 0.06, 0.0].map(|once| effort.of(once)),
            [(15, 200), (15, 1), (5, 1), (15, 1000)]
        );
        assert_eq!(Effort::LEAST.of(1.0), (3, 1));
    }
}
