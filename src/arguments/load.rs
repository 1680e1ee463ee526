//! Arguments that say which requests come, for `serve` and `serve-bench`.

use clap::{ArgGroup, Args};

/// No count of requests or tokens is larger.
const MOST: u64 = 1 << 32;

/// Which requests come.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("load").required(true).multiple(true).args(["clients", "rate", "batch", "trace"]))]
pub struct LoadArguments {
    /// Tokens of a prompt
    #[arg(long, value_name = "TOKENS", default_value = "1024", value_parser = count)]
    pub input: usize,
    /// Tokens of an answer
    #[arg(long, value_name = "TOKENS", default_value = "256", value_parser = count)]
    pub output: usize,
    /// Clients that ask again as soon as they have their answer; lengths vary by 10 %
    #[arg(long, value_name = "N", value_parser = count, conflicts_with_all = ["rate", "batch", "trace"])]
    pub clients: Option<usize>,
    /// Requests a second, at random times; with `--trace` its gaps are stretched to this rate
    #[arg(long, value_name = "N", value_parser = rate)]
    pub rate: Option<f64>,
    /// So many requests at once, and no others
    #[arg(long, value_name = "N", value_parser = count, conflicts_with_all = ["rate", "trace"])]
    pub batch: Option<usize>,
    /// A CSV with a row for each request: `arrival_s`, `input_tokens`, `output_tokens` and, if given, `cached_tokens`; with
    /// `first_token_s` and `last_token_s` of a real service, a forecast is compared with them; `-` is standard input
    #[arg(long, value_name = "FILE")]
    pub trace: Option<String>,
    /// Requests in all [default: 10 for each client, 1000 at a rate]
    #[arg(long, value_name = "N", value_parser = count, conflicts_with_all = ["batch", "trace"])]
    pub requests: Option<usize>,
}

pub(super) fn count(text: &str) -> Result<usize, String> {
    match text.parse::<u64>() {
        Ok(count) if (1..=MOST).contains(&count) => Ok(count as usize),
        _ => Err(format!("a whole number from 1 to {MOST} should stand here")),
    }
}

pub(super) fn rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if (1e-6..=1e9).contains(&rate) => Ok(rate),
        _ => Err("a number from 1e-6 to 1e9 should stand here".into()),
    }
}

pub(super) fn cached(text: &str) -> Result<usize, String> {
    match text.parse::<u64>() {
        Ok(count) if count <= MOST => Ok(count as usize),
        _ => Err(format!("a whole number from 0 to {MOST} should stand here")),
    }
}
