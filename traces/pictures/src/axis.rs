//! Axes of pictures: where they start and end, which values they name, and how.

use trainwright_spec::units::{Bytes, Seconds};

/// What an axis counts, which also decides its scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Bytes, logarithmic, in powers of two.
    Size,
    /// GB/s, logarithmic, in powers of ten.
    Bandwidth,
    /// Seconds, logarithmic, in powers of ten.
    Time,
    /// Things, logarithmic, in powers of two.
    Count,
    /// Plain numbers, logarithmic, in powers of ten.
    Number,
    /// Plain numbers, linear, with so many decimals.
    Linear {
        /// Decimals of the names.
        decimals: usize,
    },
    /// Picoseconds since the start of a step, linear.
    Elapsed {
        /// The unit of the names: picoseconds and name.
        unit: (u64, &'static str),
        /// Decimals of the names.
        decimals: usize,
    },
}

/// An axis.
#[derive(Debug, Clone, PartialEq)]
pub struct Axis {
    unit: Unit,
    /// Ends, the first below the second; both above zero if the axis is logarithmic.
    low: f64,
    high: f64,
    /// The values that are named.
    pub ticks: Vec<f64>,
}

/// Most names of a horizontal logarithmic axis.
const MOST_ACROSS: usize = 6;
/// Most names of a vertical logarithmic axis.
const MOST_UP: usize = 8;
/// Most steps of a linear axis of times.
const MOST_STEPS: u64 = 10;
/// Most steps of another linear axis.
const MOST_LINEAR: u32 = 7;

/// Units of time with their length in picoseconds.
const UNITS: [(u64, &str); 5] =
    [(1_000_000_000_000, "s"), (1_000_000_000, "ms"), (1_000_000, "µs"), (1000, "ns"), (1, "ps")];

impl Axis {
    /// The linear axis of the time from 0 to `duration` picoseconds, which is not zero.
    pub fn elapsed(duration: u64) -> Axis {
        let unit = UNITS.into_iter().find(|&(length, _)| duration >= length).unwrap_or((1, "ps"));
        let step = tick_step(duration);
        let ticks = (0..=duration).step_by(step as usize).map(|tick| tick as f64).collect();
        let unit = Unit::Elapsed { unit, decimals: decimals(step, unit.0) };
        Axis { unit, low: 0.0, high: duration as f64, ticks }
    }

    /// A linear axis that holds all `values`, and begins and ends at a tick.
    pub fn linear(values: impl Iterator<Item = f64>) -> Axis {
        let (low, high) = values
            .filter(|value| value.is_finite())
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)));
        let (low, high) = if low <= high { (low, high) } else { (0.0, 1.0) };
        // Equal values get an axis around them.
        let span = if high > low { high - low } else { high.abs().max(1.0) / 2.0 };
        let step = [1, 2, 5].map(|steps| round(span / f64::from(MOST_LINEAR) * f64::from(steps) / 2.0, true));
        let ticks = |step: f64| {
            let first = (low / step).floor() as i64;
            first..=((high / step).ceil() as i64).max(first + 1)
        };
        let fits = |step: &f64| (2..=MOST_LINEAR as usize + 1).contains(&ticks(*step).count());
        let step = step.into_iter().find(fits).unwrap_or(step[2]);
        let decimals = (-(libm::log10(step) + 1e-9).floor()).max(0.0) as usize;
        let ticks: Vec<f64> = ticks(step).map(|tick| tick as f64 * step).collect();
        let (low, high) = (ticks[0], ticks[ticks.len() - 1]);
        Axis { unit: Unit::Linear { decimals }, low, high, ticks }
    }

    /// A logarithmic axis that holds all `values`.
    pub fn logarithmic(unit: Unit, values: impl Iterator<Item = f64>) -> Axis {
        let values: Vec<f64> = values.filter(|value| *value > 0.0 && value.is_finite()).collect();
        let low = values.iter().copied().fold(f64::INFINITY, f64::min);
        let high = values.iter().copied().fold(0.0, f64::max);
        let (low, high) = if values.is_empty() { (1.0, 10.0) } else { (low, high) };
        match unit {
            // Values are doubled: half a step before the first and after the last.
            Unit::Size | Unit::Count => {
                let (low, high) = (low / 2f64.sqrt(), high * 2f64.sqrt());
                let ticks = [1, 2, 5, 10, 20].map(|step| powers(low, high, step));
                Axis { unit, low, high, ticks: sparse(ticks, MOST_ACROSS) }
            }
            _ => {
                let (low, high) = (round(low / 1.05, false), round(high * 1.05, true));
                let ticks =
                    [&[1.0, 2.0, 5.0][..], &[1.0, 3.0], &[1.0]].map(|steps| decades(low, high, steps));
                Axis { unit, low, high, ticks: sparse(ticks, MOST_UP) }
            }
        }
    }

    /// The same with no more ticks than have room below a panel: powers of ten where there are too many.
    pub fn below(mut self) -> Axis {
        if self.ticks.len() > MOST_ACROSS {
            self.ticks.retain(|tick| (libm::log10(*tick) - libm::log10(*tick).round()).abs() < 1e-6);
        }
        self
    }

    /// Where a value is between the ends, from 0 to 1.
    pub fn place(&self, value: f64) -> f64 {
        match self.unit {
            Unit::Elapsed { .. } | Unit::Linear { .. } => (value - self.low) / (self.high - self.low),
            _ => libm::log(value / self.low) / libm::log(self.high / self.low),
        }
    }

    /// The name of a tick.
    pub fn name(&self, tick: f64) -> String {
        match self.unit {
            Unit::Size => compact(&Bytes::new(tick).to_string()),
            Unit::Bandwidth | Unit::Count => tick.to_string(),
            Unit::Number => scaled(tick),
            Unit::Linear { decimals } => format!("{tick:.decimals$}"),
            Unit::Time => compact(&Seconds::new(tick).to_string()),
            Unit::Elapsed { unit: (length, _), decimals } => format!("{:.decimals$}", tick / length as f64),
        }
    }

    /// The unit of all ticks, to be written after the name of the axis; empty if each tick names its unit.
    pub fn unit(&self) -> String {
        match self.unit {
            Unit::Size | Unit::Time | Unit::Count | Unit::Number | Unit::Linear { .. } => String::new(),
            Unit::Bandwidth => " (GB/s)".into(),
            Unit::Elapsed { unit: (_, name), .. } => format!(" ({name})"),
        }
    }
}

/// The smallest of 1, 2, 5, 10, 20, … of which at most `MOST_STEPS` fit into `duration`.
fn tick_step(duration: u64) -> u64 {
    let mut decade = 1;
    loop {
        for step in [decade, 2 * decade, 5 * decade] {
            if duration / step <= MOST_STEPS {
                return step;
            }
        }
        decade *= 10;
    }
}

/// How many decimals distinguish multiples of `step` that are written in `unit`s.
fn decimals(step: u64, unit: u64) -> usize {
    let (mut step, mut decimals) = (step, 0);
    while step < unit {
        step *= 10;
        decimals += 1;
    }
    decimals
}

/// `20k`, `5M`, `0.3`.
fn scaled(value: f64) -> String {
    let scales = [(1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")];
    match scales.iter().find(|(scale, _)| value >= *scale) {
        Some((scale, name)) => format!("{}{name}", value / scale),
        None => value.to_string(),
    }
}

/// The first list of at most `most` values; each list is sparser than the one before, and only the last ones are empty.
fn sparse<const N: usize>(lists: [Vec<f64>; N], most: usize) -> Vec<f64> {
    let short = lists.iter().find(|list| (1..=most).contains(&list.len()));
    short.or(lists.iter().rfind(|list| !list.is_empty())).cloned().unwrap_or_default()
}

/// Powers of two between the ends, those whose exponents are multiples of `step`.
fn powers(low: f64, high: f64, step: i32) -> Vec<f64> {
    let exponents =
        (libm::log2(low).ceil() as i32..=libm::log2(high).floor() as i32).filter(|e| e % step == 0);
    exponents.map(|exponent| 2f64.powi(exponent)).collect()
}

/// Powers of ten times `steps` between the ends.
fn decades(low: f64, high: f64, steps: &[f64]) -> Vec<f64> {
    let exponents = libm::log10(low).floor() as i32..=libm::log10(high).ceil() as i32;
    let all = exponents.flat_map(|exponent| steps.iter().map(move |step| decimal(*step, exponent)));
    all.filter(|value| (low * 0.999..=high * 1.001).contains(value)).collect()
}

/// The next 1, 2 or 5 times a power of ten, downwards or upwards.
fn round(value: f64, up: bool) -> f64 {
    let exponent = libm::log10(value).floor() as i32;
    let steps = [(1.0, exponent), (2.0, exponent), (5.0, exponent), (1.0, exponent + 1)];
    let steps = steps.map(|(step, exponent)| decimal(step, exponent));
    let fits = |step: &&f64| if up { **step >= value } else { **step <= value };
    let found = if up { steps.iter().find(fits) } else { steps.iter().rfind(fits) };
    found.copied().unwrap_or(value)
}

/// `step` · 10^`exponent`, as the nearest number to what one would write.
fn decimal(step: f64, exponent: i32) -> f64 {
    format!("{step}e{exponent}").parse().expect("a number with an exponent")
}

/// `1.00 KiB` as `1 KiB`: ticks are round.
fn compact(quantity: &str) -> String {
    match quantity.split_once(' ') {
        Some((number, unit)) if number.contains('.') => {
            format!("{} {unit}", number.trim_end_matches('0').trim_end_matches('.'))
        }
        _ => quantity.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_linear_axis_has_up_to_ten_round_steps() {
        for (duration, step) in
            [(1, 1), (10, 1), (11, 2), (21, 2), (22, 5), (54, 5), (55, 10), (1_230_000, 200_000)]
        {
            assert_eq!(tick_step(duration), step, "{duration}");
        }
    }

    #[test]
    fn a_linear_axis_holds_its_values_between_round_ticks() {
        let check = |values: [f64; 2], expected: &str| {
            let axis = Axis::linear(values.into_iter());
            let names: Vec<String> = axis.ticks.iter().map(|tick| axis.name(*tick)).collect();
            assert_eq!(names.join(" "), expected);
            let places = values.map(|value| axis.place(value));
            assert!(places.iter().all(|place| (0.0..=1.0).contains(place)), "{places:?}");
        };
        check([1.0, 2000.0], "0 500 1000 1500 2000");
        check([1.46, 5.55], "1 2 3 4 5 6");
        check([0.02, 0.31], "0.00 0.05 0.10 0.15 0.20 0.25 0.30 0.35");
        check([3.0, 3.0], "3.0 3.2");
        check([-2.0, 7.0], "-2 0 2 4 6 8");
    }

    #[test]
    fn elapsed_times_have_the_decimals_that_distinguish_them() {
        let check = |duration: u64, expected: &str, unit: &str| {
            let axis = Axis::elapsed(duration);
            let names: Vec<String> = axis.ticks.iter().map(|tick| axis.name(*tick)).collect();
            assert_eq!((names.join(" ").as_str(), axis.unit().as_str()), (expected, unit));
            assert_eq!((axis.place(0.0), axis.place(duration as f64)), (0.0, 1.0));
        };
        check(5, "0 1 2 3 4 5", " (ps)");
        check(10_000, "0 1 2 3 4 5 6 7 8 9 10", " (ns)");
        check(1_230_000, "0.0 0.2 0.4 0.6 0.8 1.0 1.2", " (µs)");
    }

    #[test]
    fn ticks_are_few_and_round() {
        let check = |unit: Unit, low: f64, high: f64, expected: &str| {
            let axis = Axis::logarithmic(unit, [low, high].into_iter());
            let names: Vec<String> = axis.ticks.iter().map(|tick| axis.name(*tick)).collect();
            assert_eq!(names.join(", "), expected);
        };
        let gib = 1_073_741_824.0;
        check(Unit::Size, 8.0, 8.0 * gib, "32 B, 1 KiB, 32 KiB, 1 MiB, 32 MiB, 1 GiB");
        check(Unit::Size, 1048576.0, 16777216.0, "1 MiB, 2 MiB, 4 MiB, 8 MiB, 16 MiB");
        check(Unit::Size, 1048576.0, 1048576.0, "1 MiB");
        check(Unit::Size, 3000.0, 3000.0, "4 KiB");
        check(Unit::Size, 1024.0, 4.0 * gib, "1 KiB, 32 KiB, 1 MiB, 32 MiB, 1 GiB");
        check(Unit::Bandwidth, 0.0007, 230.0, "0.001, 0.01, 0.1, 1, 10, 100");
        check(Unit::Bandwidth, 30.0, 230.0, "20, 50, 100, 200, 500");
        check(Unit::Time, 12e-6, 0.04, "10 µs, 30 µs, 100 µs, 300 µs, 1 ms, 3 ms, 10 ms, 30 ms");
        check(Unit::Time, 12e-6, 40.0, "10 µs, 100 µs, 1 ms, 10 ms, 100 ms, 1 s, 10 s");
    }

    #[test]
    fn ends_are_at_0_and_1() {
        let axis = Axis::logarithmic(Unit::Bandwidth, [30.0, 400.0].into_iter());
        // 30 / 1.05 is above 20, 400 · 1.05 below 500.
        assert_eq!((axis.place(20.0), axis.place(500.0)), (0.0, 1.0));
        assert!((axis.place(100.0) - 0.5).abs() < 1e-12, "√(20 · 500) = 100");
    }
}
