//! Quantities as types, so that seconds cannot be added to bytes.
//!
//! Every quantity is a newtype over `f64` in SI base units; `Picoseconds` is the engine's integer clock.
//! GB (10⁹) and GiB (2³⁰) differ only where text is read or printed.
//!
//! ```
//! use trainwright_spec::units::{Bytes, BytesPerSecond, Seconds};
//! let time: Seconds = Bytes::new(1e9) / BytesPerSecond::new(25e9);
//! assert_eq!(time, Seconds::new(0.04));
//! ```
//!
//! ```compile_fail
//! use trainwright_spec::units::{Bytes, Seconds};
//! let nonsense = Seconds::new(1.0) + Bytes::new(1.0);
//! ```

use serde::{Deserialize, Serialize};
use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Div, Mul, Sub, SubAssign};

macro_rules! quantity {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Default, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(f64);

        impl $name {
            /// Nothing of it.
            pub const ZERO: Self = Self(0.0);

            /// A quantity from its value in SI base units.
            pub const fn new(value: f64) -> Self {
                Self(value)
            }

            /// The value in SI base units.
            pub const fn get(self) -> f64 {
                self.0
            }

            /// The larger of two.
            pub fn max(self, other: Self) -> Self {
                Self(self.0.max(other.0))
            }

            /// The smaller of two.
            pub fn min(self, other: Self) -> Self {
                Self(self.0.min(other.0))
            }
        }

        impl Add for $name {
            type Output = Self;
            fn add(self, other: Self) -> Self {
                Self(self.0 + other.0)
            }
        }

        impl Sub for $name {
            type Output = Self;
            fn sub(self, other: Self) -> Self {
                Self(self.0 - other.0)
            }
        }

        impl AddAssign for $name {
            fn add_assign(&mut self, other: Self) {
                self.0 += other.0;
            }
        }

        impl SubAssign for $name {
            fn sub_assign(&mut self, other: Self) {
                self.0 -= other.0;
            }
        }

        impl Mul<f64> for $name {
            type Output = Self;
            fn mul(self, factor: f64) -> Self {
                Self(self.0 * factor)
            }
        }

        impl Mul<$name> for f64 {
            type Output = $name;
            fn mul(self, quantity: $name) -> $name {
                $name(self * quantity.0)
            }
        }

        impl Div<f64> for $name {
            type Output = Self;
            fn div(self, divisor: f64) -> Self {
                Self(self.0 / divisor)
            }
        }

        impl Div for $name {
            type Output = f64;
            fn div(self, other: Self) -> f64 {
                self.0 / other.0
            }
        }

        impl Sum for $name {
            fn sum<I: Iterator<Item = Self>>(values: I) -> Self {
                values.fold(Self::ZERO, Add::add)
            }
        }
    };
}

quantity!(
    /// A duration.
    Seconds
);
quantity!(
    /// An amount of data.
    Bytes
);
quantity!(
    /// A count of floating-point operations; a multiply-add counts two.
    Flops
);
quantity!(
    /// A rate of computing.
    FlopsPerSecond
);
quantity!(
    /// A bandwidth, in one direction.
    BytesPerSecond
);
quantity!(
    /// A rate of using energy.
    Watts
);
quantity!(
    /// Energy.
    Joules
);
quantity!(
    /// Money, in US dollars.
    Dollars
);
quantity!(
    /// A price, in US dollars for an hour.
    DollarsPerHour
);

impl Mul<Seconds> for Watts {
    type Output = Joules;
    fn mul(self, time: Seconds) -> Joules {
        Joules(self.0 * time.0)
    }
}

impl Mul<Seconds> for DollarsPerHour {
    type Output = Dollars;
    fn mul(self, time: Seconds) -> Dollars {
        Dollars(self.0 * time.as_hours())
    }
}

impl Seconds {
    /// How many hours this is.
    pub fn as_hours(self) -> f64 {
        self.0 / 3_600.0
    }

    /// How many days of 24 hours this is.
    pub fn as_days(self) -> f64 {
        self.0 / 86_400.0
    }

    /// A number of days of 24 hours.
    pub const fn of_days(days: f64) -> Seconds {
        Seconds(days * 86_400.0)
    }
}

impl Joules {
    /// How many megawatt-hours this is.
    pub fn as_mwh(self) -> f64 {
        self.0 / 3.6e9
    }
}

impl Div<BytesPerSecond> for Bytes {
    type Output = Seconds;
    fn div(self, bandwidth: BytesPerSecond) -> Seconds {
        Seconds(self.0 / bandwidth.0)
    }
}

impl Div<Seconds> for Bytes {
    type Output = BytesPerSecond;
    fn div(self, time: Seconds) -> BytesPerSecond {
        BytesPerSecond(self.0 / time.0)
    }
}

impl Div<FlopsPerSecond> for Flops {
    type Output = Seconds;
    fn div(self, rate: FlopsPerSecond) -> Seconds {
        Seconds(self.0 / rate.0)
    }
}

impl Div<Seconds> for Flops {
    type Output = FlopsPerSecond;
    fn div(self, time: Seconds) -> FlopsPerSecond {
        FlopsPerSecond(self.0 / time.0)
    }
}

impl Bytes {
    /// One GiB, 2³⁰ bytes.
    pub const GIB: Bytes = Bytes(1_073_741_824.0);

    /// How many GiB (2³⁰ bytes) this is.
    pub fn as_gib(self) -> f64 {
        self.0 / Self::GIB.0
    }
}

/// The engine's clock: an integer count of picoseconds, so that runs are bit-identical.
///
/// Holds 213 days, far longer than any step; sums stop there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Picoseconds(pub u64);

impl Picoseconds {
    /// The start of every run.
    pub const ZERO: Self = Self(0);
}

impl From<Seconds> for Picoseconds {
    /// Rounds to the nearest picosecond. The one place that rounds time, and so the one that every simulated time passes.
    ///
    /// # Panics
    ///
    /// Panics at a time that is no number or less than nothing: a fault of a cost function, which must not become a forecast.
    fn from(time: Seconds) -> Self {
        let picoseconds = (time.0 * 1e12).round();
        assert!(picoseconds >= 0.0, "a duration of {} s", time.0);
        Self(picoseconds as u64)
    }
}

impl From<Picoseconds> for Seconds {
    fn from(time: Picoseconds) -> Self {
        Seconds(time.0 as f64 * 1e-12)
    }
}

impl Add for Picoseconds {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl Sub for Picoseconds {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self(self.0 - other.0)
    }
}

impl AddAssign for Picoseconds {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sum for Picoseconds {
    fn sum<I: Iterator<Item = Self>>(values: I) -> Self {
        values.fold(Self::ZERO, Add::add)
    }
}

impl fmt::Display for Seconds {
    /// Three or four digits with the unit that suits: `13.42 s`, `431 ms`, `12.5 µs`.
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let (value, unit) = match self.0.abs() {
            t if t >= 1.0 || t == 0.0 => (self.0, "s"),
            t if t >= 1e-3 => (self.0 * 1e3, "ms"),
            _ => (self.0 * 1e6, "µs"),
        };
        write_scaled(f, value, unit)
    }
}

impl fmt::Display for Bytes {
    /// In GiB, MiB, KiB or B (powers of 1024).
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let (value, unit) = match self.0.abs() {
            b if b >= 1024f64.powi(4) => (self.0 / 1024f64.powi(4), "TiB"),
            b if b >= 1024f64.powi(3) => (self.0 / 1024f64.powi(3), "GiB"),
            b if b >= 1024f64.powi(2) => (self.0 / 1024f64.powi(2), "MiB"),
            b if b >= 1024.0 => (self.0 / 1024.0, "KiB"),
            _ => return f.pad(&format!("{:.0} B", self.0)),
        };
        write_scaled(f, value, unit)
    }
}

impl fmt::Display for Flops {
    /// In the SI multiple that suits: `4.50 EFLOP`.
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let (value, prefix) = si(self.0);
        write_scaled(f, value, &format!("{prefix}FLOP"))
    }
}

impl fmt::Display for FlopsPerSecond {
    /// In the SI multiple that suits: `989 TFLOP/s`.
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let (value, prefix) = si(self.0);
        write_scaled(f, value, &format!("{prefix}FLOP/s"))
    }
}

impl fmt::Display for BytesPerSecond {
    /// In the SI multiple that suits: `450 GB/s`.
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let (value, prefix) = si(self.0);
        write_scaled(f, value, &format!("{prefix}B/s"))
    }
}

impl fmt::Display for Picoseconds {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        Seconds::from(*self).fmt(f)
    }
}

fn si(value: f64) -> (f64, &'static str) {
    const PREFIXES: [(f64, &str); 7] =
        [(1e21, "Z"), (1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")];
    for (scale, prefix) in PREFIXES {
        if value.abs() >= scale {
            return (value / scale, prefix);
        }
    }
    (value, "")
}

fn write_scaled(f: &mut fmt::Formatter, value: f64, unit: &str) -> fmt::Result {
    let decimals = match value.abs() {
        v if v >= 100.0 => 0,
        v if v >= 10.0 => 1,
        _ => 2,
    };
    f.pad(&format!("{value:.decimals$} {unit}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_print_in_the_unit_that_suits() {
        let cases = [
            (Seconds::new(13.42).to_string(), "13.4 s"),
            (Seconds::new(0.4312).to_string(), "431 ms"),
            (Seconds::new(12.5e-6).to_string(), "12.5 µs"),
            (Bytes::new(80.0 * 1024f64.powi(3)).to_string(), "80.0 GiB"),
            (Bytes::new(12.0).to_string(), "12 B"),
            (Flops::new(4.5e18).to_string(), "4.50 EFLOP"),
            (FlopsPerSecond::new(989e12).to_string(), "989 TFLOP/s"),
        ];
        for (printed, expected) in cases {
            assert_eq!(printed, expected);
        }
    }

    #[test]
    fn the_clock_rounds_to_the_nearest_picosecond() {
        assert_eq!(Picoseconds::from(Seconds::new(1.4e-12)), Picoseconds(1));
        assert_eq!(Picoseconds::from(Seconds::new(1.6e-12)), Picoseconds(2));
        // A rounding error is none of the cost function.
        assert_eq!(Picoseconds::from(Seconds::new(-1e-15)), Picoseconds(0));
        assert_eq!(Seconds::from(Picoseconds(2_000_000_000_000)), Seconds::new(2.0));
    }

    #[test]
    fn the_clock_takes_no_time_that_is_none() {
        for value in [f64::NAN, -1.0, f64::NEG_INFINITY] {
            let clock = std::panic::catch_unwind(|| Picoseconds::from(Seconds::new(value)));
            assert!(clock.is_err(), "{value}");
        }
    }

    #[test]
    fn the_clock_stops_at_its_end() {
        let long = Picoseconds::from(Seconds::new(1.2e7));
        assert!(long < Picoseconds(u64::MAX));
        assert_eq!(long + long, Picoseconds(u64::MAX));
        assert_eq!(Picoseconds::from(Seconds::new(f64::INFINITY)), Picoseconds(u64::MAX));
    }
}
