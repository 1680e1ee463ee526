//! A number together with where it is from, and quantities as people write them.
//!
//! ```
//! use trainwright_spec::{sourced::Sourced, units::Bytes};
//! #[derive(serde::Deserialize)]
//! struct Memory { memory: Sourced<Bytes> }
//! let read: Memory = toml::from_str(r#"memory = { value = "80 GiB", source = "datasheet" }"#).unwrap();
//! assert_eq!(read.memory.value, 80.0 * Bytes::GIB);
//! ```

use crate::units::{Bytes, BytesPerSecond, DollarsPerHour, FlopsPerSecond, Seconds, Watts};
use serde::de::{self, Deserializer, MapAccess, Visitor};
use serde::ser::{SerializeStruct, Serializer};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::marker::PhantomData;

/// A value and its source. In TOML: `{ value = "80 GiB", source = "NVIDIA A100 datasheet, 2021" }`.
///
/// A user's files may give the bare value; the catalog's tests require a source for every number.
#[derive(Debug, Clone, PartialEq)]
pub struct Sourced<T> {
    /// The value.
    pub value: T,
    /// Where it is from; empty if not stated.
    pub source: String,
    /// The value of the source, if a calibration has changed it.
    pub uncalibrated: Option<T>,
}

impl<T> Sourced<T> {
    /// A value as its source states it.
    pub fn new(value: T, source: impl Into<String>) -> Self {
        Self { value, source: source.into(), uncalibrated: None }
    }

    /// Gives it the value of its source again.
    pub fn restore(&mut self) {
        if let Some(value) = self.uncalibrated.take() {
            self.value = value;
        }
    }
}

impl<T: Clone> Sourced<T> {
    /// Changes the value and keeps that of the source.
    pub fn calibrate(&mut self, change: impl Fn(&T) -> T) {
        let stated = self.uncalibrated.take().unwrap_or_else(|| self.value.clone());
        self.value = change(&stated);
        self.uncalibrated = Some(stated);
    }
}

/// A quantity that can be written as text with a unit, or as a plain number in base units.
pub trait Quantity: Sized {
    /// Units it may carry and how many base units each is, the best for printing first.
    const UNITS: &'static [(&'static str, f64)];
    /// From a number of base units; `None` if no such quantity exists.
    fn from_base(value: f64) -> Option<Self>;
    /// The number of base units.
    fn to_base(&self) -> f64;
}

macro_rules! measured {
    ($type:ty, $units:expr) => {
        impl Quantity for $type {
            const UNITS: &'static [(&'static str, f64)] = $units;
            fn from_base(value: f64) -> Option<Self> {
                (value.is_finite() && value >= 0.0).then(|| Self::new(value))
            }
            fn to_base(&self) -> f64 {
                self.get()
            }
        }
    };
}

measured!(
    Bytes,
    &[
        ("GiB", 1_073_741_824.0),
        ("GB", 1e9),
        ("MiB", 1_048_576.0),
        ("MB", 1e6),
        ("KiB", 1024.0),
        ("kB", 1e3),
        ("TiB", 1_099_511_627_776.0),
        ("TB", 1e12),
        ("B", 1.0),
    ]
);
measured!(
    BytesPerSecond,
    &[
        ("GB/s", 1e9),
        ("TB/s", 1e12),
        ("MB/s", 1e6),
        ("Gbit/s", 1.25e8),
        ("Mbit/s", 1.25e5),
        ("Gb/s", 1.25e8),
        ("B/s", 1.0),
    ]
);
measured!(FlopsPerSecond, &[("TFLOP/s", 1e12), ("PFLOP/s", 1e15), ("GFLOP/s", 1e9), ("FLOP/s", 1.0)]);
measured!(
    Seconds,
    &[
        ("us", 1e-6),
        ("µs", 1e-6),
        ("ms", 1e-3),
        ("ns", 1e-9),
        ("s", 1.0),
        ("min", 60.0),
        ("h", 3600.0),
        ("d", 86_400.0),
    ]
);
measured!(Watts, &[("W", 1.0), ("kW", 1e3)]);
measured!(DollarsPerHour, &[("USD/h", 1.0)]);

impl Quantity for f64 {
    const UNITS: &'static [(&'static str, f64)] = &[];
    fn from_base(value: f64) -> Option<Self> {
        (value.is_finite() && value >= 0.0).then_some(value)
    }
    fn to_base(&self) -> f64 {
        *self
    }
}

impl Quantity for usize {
    const UNITS: &'static [(&'static str, f64)] = &[];
    fn from_base(value: f64) -> Option<Self> {
        (value.fract() == 0.0 && (0.0..=1e15).contains(&value)).then_some(value as usize)
    }
    fn to_base(&self) -> f64 {
        *self as f64
    }
}

/// Reads `80 GiB`, `200 Gbit/s`, `5 us`.
///
/// # Errors
/// One line with the text and the units that are allowed.
pub fn parse_quantity<T: Quantity>(text: &str) -> Result<T, String> {
    let text = text.trim();
    let digits = text
        .find(|c: char| !(c.is_ascii_digit() || matches!(c, '.' | '+' | '-' | '_')))
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let scale = T::UNITS.iter().find(|(name, _)| *name == unit.trim()).map(|(_, scale)| *scale);
    let number = number.replace('_', "").parse::<f64>().ok();
    match number.zip(scale) {
        Some((number, scale)) => T::from_base(number * scale)
            .ok_or_else(|| format!("`{text}` is out of range: neither negative nor endless is allowed")),
        None if T::UNITS.is_empty() => Err(format!("`{text}` is not a plain number")),
        None => {
            let units: Vec<&str> = T::UNITS.iter().map(|(name, _)| *name).collect();
            Err(format!("`{text}` is not a number followed by one of {}", units.join(", ")))
        }
    }
}

/// Writes a quantity so that `parse_quantity` gives the same bits back: in the first unit in which it is short.
pub fn print_quantity<T: Quantity>(quantity: &T) -> Option<String> {
    let base = quantity.to_base();
    T::UNITS
        .iter()
        .map(|(unit, scale)| (format!("{} {unit}", base / scale), base / scale * scale == base))
        .find(|(text, exact)| *exact && text.len() <= 12)
        .map(|(text, _)| text)
}

/// Serialises a quantity as text with a unit where that is short and exact, else as a number of base units.
///
/// For `#[serde(serialize_with = "sourced::serialize")]` and the like.
///
/// # Errors
/// Those of the format.
pub fn serialize<T: Quantity, S: Serializer>(quantity: &T, serializer: S) -> Result<S::Ok, S::Error> {
    match print_quantity(quantity) {
        Some(text) => serializer.serialize_str(&text),
        None if quantity.to_base().fract() == 0.0 && quantity.to_base() < 1e15 => {
            serializer.serialize_i64(quantity.to_base() as i64)
        }
        None => serializer.serialize_f64(quantity.to_base()),
    }
}

struct Written<'a, T>(&'a T);

impl<T: Quantity> Serialize for Written<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serialize(self.0, serializer)
    }
}

impl<T: Quantity> Serialize for Sourced<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut table = serializer.serialize_struct("Sourced", 3)?;
        table.serialize_field("value", &Written(&self.value))?;
        match &self.uncalibrated {
            Some(value) => table.serialize_field("uncalibrated", &Written(value))?,
            None => table.skip_field("uncalibrated")?,
        }
        table.serialize_field("source", &self.source)?;
        table.end()
    }
}

/// A quantity without a source.
struct Bare<T>(T);

impl<'de, T: Quantity> Deserialize<'de> for Bare<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Sourced::deserialize(deserializer).map(|sourced| Bare(sourced.value))
    }
}

impl<'de, T: Quantity> Deserialize<'de> for Sourced<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SourcedVisitor(PhantomData))
    }
}

struct SourcedVisitor<T>(PhantomData<T>);

impl<T: Quantity> SourcedVisitor<T> {
    fn number<E: de::Error>(value: f64) -> Result<Sourced<T>, E> {
        T::from_base(value)
            .map(|value| Sourced::new(value, String::new()))
            .ok_or_else(|| E::custom(format!("{value} is out of range")))
    }
}

impl<'de, T: Quantity> Visitor<'de> for SourcedVisitor<T> {
    type Value = Sourced<T>;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a quantity, or a table with `value` and `source`")
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Self::Value, E> {
        Self::number(value as f64)
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Self::Value, E> {
        Self::number(value as f64)
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Self::Value, E> {
        Self::number(value)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
        parse_quantity(text).map(|value| Sourced::new(value, String::new())).map_err(E::custom)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let (mut value, mut source, mut uncalibrated) = (None, String::new(), None);
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "value" => value = Some(map.next_value::<Bare<T>>()?.0),
                "uncalibrated" => uncalibrated = Some(map.next_value::<Bare<T>>()?.0),
                "source" => source = map.next_value()?,
                other => {
                    return Err(de::Error::unknown_field(other, &["value", "uncalibrated", "source"]));
                }
            }
        }
        let value = value.ok_or_else(|| de::Error::missing_field("value"))?;
        Ok(Sourced { value, source, uncalibrated })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Row {
        memory: Sourced<Bytes>,
    }

    #[test]
    fn text_numbers_and_tables_are_read_alike() {
        let gib = |n: f64| n * Bytes::GIB;
        for (text, expected) in [
            ("memory = \"80 GiB\"", gib(80.0)),
            ("memory = 1024", Bytes::new(1024.0)),
            ("memory = { value = \"80GB\", source = \"x\" }", Bytes::new(80e9)),
            ("memory = { value = 5.5, source = \"x\" }", Bytes::new(5.5)),
        ] {
            assert_eq!(toml::from_str::<Row>(text).unwrap().memory.value, expected, "{text}");
        }
    }

    #[test]
    fn bad_quantities_are_named() {
        for (text, part) in [
            ("memory = \"80 XB\"", "`80 XB` is not a number followed by one of GiB"),
            ("memory = -1", "-1 is out of range"),
            ("memory = { source = \"x\" }", "missing field `value`"),
            ("memory = { value = 1, sauce = \"x\" }", "unknown field `sauce`"),
        ] {
            let message = toml::from_str::<Row>(text).unwrap_err().to_string();
            assert!(message.contains(part), "{text}: {message}");
        }
    }

    #[test]
    fn what_is_written_is_read_back_bit_for_bit() {
        for value in [80.0 * 1_073_741_824.0, 80e9, 312.0, 1.0 / 3.0, 4_096.0, 1e15 + 0.5] {
            let row = Row { memory: Sourced::new(Bytes::new(value), "s") };
            let text = toml::to_string(&row).unwrap();
            assert_eq!(toml::from_str::<Row>(&text).unwrap(), row, "{text}");
        }
    }
}
