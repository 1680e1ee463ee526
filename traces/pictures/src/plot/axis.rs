//! Logarithmic axes: where they start and end, and which values they name.

use trainwright_spec::units::{Bytes, Seconds};

/// What an axis counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unit {
    /// Bytes, in powers of two.
    Size,
    /// GB/s, in powers of ten.
    Bandwidth,
    /// Seconds, in powers of ten.
    Time,
    /// Things, in powers of two.
    Count,
    /// Plain numbers, in powers of ten.
    Number,
}

/// A logarithmic axis.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Axis {
    unit: Unit,
    /// Ends, both above zero, the first below the second.
    low: f64,
    high: f64,
    /// The values that are named.
    pub ticks: Vec<f64>,
}

/// The most values that are named: names of sizes stand beside each other, the others below.
const MOST_SIZES: usize = 6;
const MOST_VALUES: usize = 8;

impl Axis {
    /// An axis on which all `values` have a place.
    pub fn new(unit: Unit, values: impl Iterator<Item = f64>) -> Self {
        let values: Vec<f64> = values.filter(|value| *value > 0.0 && value.is_finite()).collect();
        let low = values.iter().copied().fold(f64::INFINITY, f64::min);
        let high = values.iter().copied().fold(0.0, f64::max);
        let (low, high) = if values.is_empty() { (1.0, 10.0) } else { (low, high) };
        match unit {
            // Sizes are doubled: half a step beside the first and the last.
            Unit::Size | Unit::Count => {
                let (low, high) = (low / 2f64.sqrt(), high * 2f64.sqrt());
                let ticks = [1, 2, 5, 10, 20].map(|step| powers(low, high, step));
                Self { unit, low, high, ticks: few(ticks, MOST_SIZES) }
            }
            Unit::Bandwidth | Unit::Time | Unit::Number => {
                let (low, high) = (round(low / 1.05, false), round(high * 1.05, true));
                let ticks =
                    [&[1.0, 2.0, 5.0][..], &[1.0, 3.0], &[1.0]].map(|steps| decades(low, high, steps));
                Self { unit, low, high, ticks: few(ticks, MOST_VALUES) }
            }
        }
    }

    /// Where a value is between the ends, from 0 to 1.
    pub fn place(&self, value: f64) -> f64 {
        (value / self.low).ln() / (self.high / self.low).ln()
    }

    /// What a tick is called.
    pub fn name(&self, tick: f64) -> String {
        match self.unit {
            Unit::Size => compact(&Bytes::new(tick).to_string()),
            Unit::Bandwidth | Unit::Count => tick.to_string(),
            Unit::Number => scaled(tick),
            Unit::Time => compact(&Seconds::new(tick).to_string()),
        }
    }

    /// What stands beside the axis after its name.
    pub fn unit(&self) -> &'static str {
        match self.unit {
            Unit::Size | Unit::Time | Unit::Count | Unit::Number => "",
            Unit::Bandwidth => " (GB/s)",
        }
    }
}

/// `20k`, `5M`, `0.3`.
fn scaled(value: f64) -> String {
    let scales = [(1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")];
    match scales.iter().find(|(scale, _)| value >= *scale) {
        Some((scale, name)) => format!("{}{name}", value / scale),
        None => value.to_string(),
    }
}

/// The first list that is short enough; each is sparser than the one before, and only the last ones are empty.
fn few<const N: usize>(lists: [Vec<f64>; N], most: usize) -> Vec<f64> {
    let short = lists.iter().find(|list| (1..=most).contains(&list.len()));
    short.or(lists.iter().rfind(|list| !list.is_empty())).cloned().unwrap_or_default()
}

/// Powers of two between the ends, those whose exponents are multiples of `step`.
fn powers(low: f64, high: f64, step: i32) -> Vec<f64> {
    let exponents = (low.log2().ceil() as i32..=high.log2().floor() as i32).filter(|e| e % step == 0);
    exponents.map(|exponent| 2f64.powi(exponent)).collect()
}

/// Powers of ten times `steps` between the ends.
fn decades(low: f64, high: f64, steps: &[f64]) -> Vec<f64> {
    let exponents = low.log10().floor() as i32..=high.log10().ceil() as i32;
    let all = exponents.flat_map(|exponent| steps.iter().map(move |step| decimal(*step, exponent)));
    all.filter(|value| (low * 0.999..=high * 1.001).contains(value)).collect()
}

/// The next 1, 2 or 5 times a power of ten, downwards or upwards.
fn round(value: f64, up: bool) -> f64 {
    let exponent = value.log10().floor() as i32;
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
    fn ticks_are_few_and_round() {
        let check = |unit: Unit, low: f64, high: f64, expected: &str| {
            let axis = Axis::new(unit, [low, high].into_iter());
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
        let axis = Axis::new(Unit::Bandwidth, [30.0, 400.0].into_iter());
        // 30 / 1.05 is above 20, 400 · 1.05 below 500.
        assert_eq!((axis.place(20.0), axis.place(500.0)), (0.0, 1.0));
        assert!((axis.place(100.0) - 0.5).abs() < 1e-12, "√(20 · 500) = 100");
    }
}
