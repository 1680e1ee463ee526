//! Ranges of forecasts of serving runs: how far measured runs of an engine were from their forecasts.

use crate::catalog;
use crate::error::SpecError;
use serde::{Deserialize, Serialize};
use std::sync::LazyLock;

/// Measured over forecast, below which a tenth of the measured runs lie and above which another tenth.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServingRange {
    /// The figure: `ttft`, `tpot`, `latency`, `throughput`, `memory` or `capacity`.
    pub figure: String,
    /// The engine; `any` for all of them.
    pub engine: String,
    /// Measured runs.
    pub rows: usize,
    /// Of how many sources.
    pub sources: usize,
    /// The tenth.
    pub low: f64,
    /// The ninth tenth.
    pub high: f64,
}

/// The ranges of the catalog.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServingRanges {
    /// Where the measured runs are from.
    pub source: String,
    /// By figure and engine.
    #[serde(rename = "range")]
    pub ranges: Vec<ServingRange>,
}

impl ServingRanges {
    /// Those of the catalog.
    pub fn of_catalog() -> &'static ServingRanges {
        static RANGES: LazyLock<ServingRanges> = LazyLock::new(|| {
            ServingRanges::from_toml(catalog::file("serving-ranges.toml"), "serving-ranges.toml")
                .expect("the catalog can be read")
        });
        &RANGES
    }

    /// Reads a file as the catalog has it; `origin` names it in messages.
    ///
    /// # Errors
    /// `Syntax` for a fault of the file.
    pub fn from_toml(text: &str, origin: &str) -> Result<Self, SpecError> {
        toml::from_str(text).map_err(|error| SpecError::Syntax {
            origin: origin.into(),
            message: error.message().replace('\n', " "),
        })
    }

    /// As the catalog has it.
    pub fn to_toml(&self) -> String {
        let text = toml::to_string(self).expect("names and numbers can be written");
        format!("# Written by `trainwright fit --inference`.\n{text}")
    }

    /// The ends of the range of a latency. An engine without a range of it has those of its parts: the time to the first token, and
    /// the rest at the pace of its tokens. `None` if these have none.
    pub fn of_latency(&self, engine: &str, [ttft, latency]: [f64; 2]) -> Option<[f64; 2]> {
        let own = self.ranges.iter().find(|range| range.figure == "latency" && range.engine == engine);
        if let Some(range) = own {
            return Some([latency * range.low, latency * range.high]);
        }
        let (first, later) = (self.of("ttft", engine)?, self.of("tpot", engine)?);
        let rest = (latency - ttft).max(0.0);
        Some([ttft * first.low + rest * later.low, ttft * first.high + rest * later.high])
    }

    /// The range of a figure for an engine, else for all of them; `None` if the figure has none.
    pub fn of(&self, figure: &str, engine: &str) -> Option<&ServingRange> {
        let of =
            |engine: &str| self.ranges.iter().find(|range| range.figure == figure && range.engine == engine);
        of(engine).or_else(|| of("any"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_without_a_range_has_that_of_all() {
        let ranges = ServingRanges::of_catalog();
        let any = ranges.of("tpot", "any").unwrap();
        assert_eq!(ranges.of("tpot", "z9"), Some(any));
        assert!(any.low < 1.0 && any.high > 1.0, "{any:?}");
        assert_eq!(ranges.of("colour", "any"), None);
        let (first, later) = (ranges.of("ttft", "z9").unwrap(), ranges.of("tpot", "z9").unwrap());
        let [low, high] = ranges.of_latency("z9", [10.0, 110.0]).unwrap();
        assert!((low - (10.0 * first.low + 100.0 * later.low)).abs() < 1e-9);
        assert!((high - (10.0 * first.high + 100.0 * later.high)).abs() < 1e-9);
        assert_eq!(&ServingRanges::from_toml(&ranges.to_toml(), "written").unwrap(), ranges);
    }
}
