//! The result of vLLM's serving benchmark: the JSON of `vllm bench serve --save-result`, and of `benchmark_serving.py` before it.
//!
//! ```
//! use trainwright_formats::vllm_bench::BenchResult;
//! let text = r#"{"completed": 200, "total_input_tokens": 204800, "total_output_tokens": 25600, "request_rate": "inf",
//!     "max_concurrency": 16, "mean_ttft_ms": 120.5, "p99_tpot_ms": 31.0}"#;
//! let result = BenchResult::read(text).unwrap();
//! assert_eq!((result.clients, result.lengths[0], result.lengths.len()), (Some(16), [1024, 128], 200));
//! assert_eq!(result.figure("mean_ttft_ms"), Some(120.5));
//! ```

use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;
use thiserror::Error;

/// The figures that are read, with their units.
pub const FIGURES: [&str; 14] = [
    "mean_ttft_ms",
    "median_ttft_ms",
    "p90_ttft_ms",
    "p99_ttft_ms",
    "mean_tpot_ms",
    "median_tpot_ms",
    "p90_tpot_ms",
    "p99_tpot_ms",
    "mean_e2el_ms",
    "median_e2el_ms",
    "p99_e2el_ms",
    "request_throughput",
    "output_throughput",
    "total_token_throughput",
];

/// No count is larger.
const MOST: u64 = 1 << 32;

/// No result has more requests: each is simulated.
const MOST_REQUESTS: u64 = 10_000_000;

/// A benchmark's load, and what it measured.
#[derive(Debug, Clone, PartialEq)]
pub struct BenchResult {
    /// Requests a second; `None` if all came at once, or as clients were free.
    pub rate: Option<f64>,
    /// Requests that were there at once at most; `None` if that was not limited.
    pub clients: Option<usize>,
    /// Tokens of prompt and answer of each request; their means if the file does not list them.
    pub lengths: Vec<[usize; 2]>,
    /// Whether the lengths are means.
    pub mean_lengths: bool,
    figures: BTreeMap<&'static str, f64>,
}

/// Why a file is no such result.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NoResult {
    /// It is not JSON with the keys of a result.
    #[error("it is no result of `vllm bench serve --save-result`: {0}")]
    Json(String),
    /// A key has a value that makes no sense.
    #[error("`{key}` is {value}: {allowed}")]
    Value {
        /// The key.
        key: &'static str,
        /// Its value.
        value: String,
        /// What is allowed.
        allowed: &'static str,
    },
}

#[derive(Deserialize)]
struct File {
    completed: u64,
    total_input_tokens: u64,
    total_output_tokens: u64,
    #[serde(default)]
    request_rate: Option<Value>,
    #[serde(default)]
    max_concurrency: Option<u64>,
    #[serde(default)]
    input_lens: Vec<u64>,
    #[serde(default)]
    output_lens: Vec<u64>,
    #[serde(flatten)]
    others: BTreeMap<String, Value>,
}

impl BenchResult {
    /// Reads a result.
    ///
    /// # Errors
    /// `NoResult`.
    pub fn read(text: &str) -> Result<Self, NoResult> {
        let file: File = serde_json::from_str(text).map_err(|error| NoResult::Json(error.to_string()))?;
        let count = |key, value: u64, most| match (1..=most).contains(&value) {
            true => Ok(value as usize),
            false => Err(NoResult::Value { key, value: value.to_string(), allowed: "it should be above 0" }),
        };
        let completed = count("completed", file.completed, MOST_REQUESTS)?;
        let mean =
            |key, total| Ok::<_, NoResult>((count(key, total, u64::MAX)? as f64 / completed as f64).round());
        let means = [
            mean("total_input_tokens", file.total_input_tokens)?,
            mean("total_output_tokens", file.total_output_tokens)?,
        ];
        let listed = file.input_lens.len() == file.output_lens.len() && !file.input_lens.is_empty();
        // A request that failed has an answer of no token.
        let pairs = file.input_lens.iter().zip(&file.output_lens);
        let lengths: Vec<[usize; 2]> = match listed {
            true => pairs
                .filter(|(input, output)| (1..=MOST).contains(*input) && (1..=MOST).contains(*output))
                .map(|(input, output)| [*input as usize, *output as usize])
                .collect(),
            false => vec![means.map(|mean| mean.max(1.0) as usize); completed],
        };
        if lengths.is_empty() {
            let allowed = "no request has a prompt and an answer";
            return Err(NoResult::Value { key: "output_lens", value: "a list".into(), allowed });
        }
        let clients =
            file.max_concurrency.map(|clients| count("max_concurrency", clients, MOST)).transpose()?;
        let figure = |key: &'static str| {
            let value = file.others.get(key)?.as_f64()?;
            (value > 0.0 && value.is_finite()).then_some((key, value))
        };
        Ok(Self {
            rate: rate(file.request_rate.as_ref())?,
            clients,
            lengths,
            mean_lengths: !listed,
            figures: FIGURES.into_iter().filter_map(figure).collect(),
        })
    }

    /// A measured figure; `None` if the file lacks it.
    pub fn figure(&self, key: &str) -> Option<f64> {
        self.figures.get(key).copied()
    }
}

/// Requests a second: a number, or `inf` in quotes, as Python writes it where JSON has no such number.
fn rate(value: Option<&Value>) -> Result<Option<f64>, NoResult> {
    let allowed = "it should be a number above 0 or \"inf\"";
    match value {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) if text == "inf" => Ok(None),
        Some(value) => match value.as_f64() {
            Some(rate) if rate > 0.0 => Ok(Some(rate)),
            _ => Err(NoResult::Value { key: "request_rate", value: value.to_string(), allowed }),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_of_requests_come_before_their_means() {
        let text = r#"{"completed": 2, "total_input_tokens": 300, "total_output_tokens": 30, "request_rate": 4.5,
            "input_lens": [100, 200, 50], "output_lens": [10, 20, 0], "mean_ttft_ms": 0.0, "p99_ttft_ms": 9.5}"#;
        let result = BenchResult::read(text).unwrap();
        assert_eq!((result.rate, result.clients, result.mean_lengths), (Some(4.5), None, false));
        // The third failed.
        assert_eq!(result.lengths, [[100, 10], [200, 20]]);
        // A figure of 0 says that nothing was measured.
        assert_eq!((result.figure("mean_ttft_ms"), result.figure("p99_ttft_ms")), (None, Some(9.5)));
    }

    #[test]
    fn nonsense_is_refused_in_a_line() {
        let check = |text: &str, expected: &str| {
            let error = BenchResult::read(text).unwrap_err().to_string();
            assert!(error.contains(expected) && !error.contains('\n'), "{error}");
        };
        check("{}", "no result of `vllm bench serve --save-result`: missing field `completed`");
        check("[", "no result of");
        let with = |completed: &str, more: &str| {
            format!(
                r#"{{"completed": {completed}, "total_input_tokens": 5, "total_output_tokens": 5{more}}}"#
            )
        };
        check(&with("0", ""), "`completed` is 0");
        check(&with("1000000000000", ""), "`completed` is 1000000000000");
        check(&with("1", r#", "request_rate": -1"#), "`request_rate` is -1: it should be a number above 0");
        check(&with("1", r#", "max_concurrency": 0"#), "`max_concurrency` is 0");
        check(&with("1", r#", "input_lens": [5], "output_lens": [0]"#), "no request has");
    }
}
