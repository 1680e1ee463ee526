//! Arguments that say which requests come, for `serve` and `serve-bench`.

use clap::{ArgGroup, Args};
use trainwright_spec::limits;

/// The most tokens of a prompt or an answer.
const MOST_TOKENS: u64 = limits::TOKENS.most;

/// The most requests, and clients with ten of them each: one takes 160 bytes of the simulator's memory.
const MOST_REQUESTS: u64 = limits::REQUESTS.most;
const MOST_CLIENTS: u64 = MOST_REQUESTS / 10;

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
    #[arg(long, value_name = "N", value_parser = clients, conflicts_with_all = ["rate", "batch", "trace"])]
    pub clients: Option<usize>,
    /// Requests a second, at random times; with `--trace` its gaps are stretched to this rate
    #[arg(long, value_name = "N", value_parser = rate)]
    pub rate: Option<f64>,
    /// So many requests at once, and no others
    #[arg(long, value_name = "N", value_parser = requests, conflicts_with_all = ["rate", "trace"])]
    pub batch: Option<usize>,
    /// A CSV with a row for each request: `arrival_s`, `input_tokens`, `output_tokens` and, if given, `cached_tokens`; with
    /// `first_token_s` and `last_token_s` of a real service, a forecast is compared with them; `-` is standard input
    #[arg(long, value_name = "FILE")]
    pub trace: Option<String>,
    /// Requests in all [default: 10 for each client, 1000 at a rate]
    #[arg(long, value_name = "N", value_parser = requests, conflicts_with_all = ["batch", "trace"])]
    pub requests: Option<usize>,
}

pub(super) fn count(text: &str) -> Result<usize, String> {
    whole(text, 1, MOST_TOKENS)
}

fn requests(text: &str) -> Result<usize, String> {
    whole(text, 1, MOST_REQUESTS)
}

fn clients(text: &str) -> Result<usize, String> {
    whole(text, 1, MOST_CLIENTS)
}

fn whole(text: &str, least: u64, most: u64) -> Result<usize, String> {
    match text.parse::<u64>() {
        Ok(count) if (least..=most).contains(&count) => Ok(count as usize),
        _ => Err(format!("a whole number from {least} to {most} should stand here")),
    }
}

pub(super) fn rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if (1e-6..=1e9).contains(&rate) => Ok(rate),
        _ => Err("a number from 1e-6 to 1e9 should stand here".into()),
    }
}

pub(super) fn cached(text: &str) -> Result<usize, String> {
    whole(text, 0, MOST_TOKENS)
}
