//! The arguments of `serve`.

use clap::{ArgGroup, Args};
use trainwright_sim::libraries::Operands;

/// No count of `serve` is larger.
const MOST: u64 = 1 << 32;

/// Arguments of `serve`.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("load").required(true).args(["clients", "rate", "batch", "trace"]))]
pub struct ServeArguments {
    /// A model of the catalog, or a Hugging Face config.json
    #[arg(long, value_name = "NAME")]
    pub model: String,
    /// A cluster or node of the catalog, or a TOML file; the instance takes its first GPUs
    #[arg(long, value_name = "NAME")]
    pub cluster: String,
    /// An inference engine of the catalog
    #[arg(long, value_name = "NAME", default_value = "vllm-v1")]
    pub engine: String,
    /// Tensor ranks
    #[arg(long, value_name = "N", default_value = "1", value_parser = count)]
    pub tensor: usize,
    /// Pipeline stages
    #[arg(long, value_name = "N", default_value = "1", value_parser = count)]
    pub pipeline: usize,
    /// Ranks that experts are distributed over
    #[arg(long, value_name = "N", default_value = "1", value_parser = count)]
    pub expert: usize,
    /// Groups of tensor ranks that attend to requests of their own and share the experts
    #[arg(long, value_name = "N", default_value = "1", value_parser = count)]
    pub attention_data: usize,
    /// Format of weights
    #[arg(long, value_name = "FORMAT", default_value = "bf16", value_parser = format)]
    pub weights: Operands,
    /// Format of experts' weights [default: that of weights]
    #[arg(long, value_name = "FORMAT", value_parser = format)]
    pub expert_weights: Option<Operands>,
    /// Format of keys and values in the cache
    #[arg(long, value_name = "FORMAT", default_value = "bf16", value_parser = format)]
    pub cache: Operands,
    /// Tokens of a prompt
    #[arg(long, value_name = "TOKENS", default_value = "1024", value_parser = count)]
    pub input: usize,
    /// Tokens of an answer
    #[arg(long, value_name = "TOKENS", default_value = "256", value_parser = count)]
    pub output: usize,
    /// Clients that ask again as soon as they have their answer; lengths vary by 10 %
    #[arg(long, value_name = "N", value_parser = count)]
    pub clients: Option<usize>,
    /// Requests a second, at random times
    #[arg(long, value_name = "N", value_parser = rate)]
    pub rate: Option<f64>,
    /// So many requests at once, and no others
    #[arg(long, value_name = "N", value_parser = count)]
    pub batch: Option<usize>,
    /// A CSV with a row for each request: `arrival_s`, `input_tokens`, `output_tokens`; `-` is standard input
    #[arg(long, value_name = "FILE")]
    pub trace: Option<String>,
    /// Requests in all [default: 10 for each client, 1000 at a rate]
    #[arg(long, value_name = "N", value_parser = count, conflicts_with_all = ["batch", "trace"])]
    pub requests: Option<usize>,
    /// Sequences of a step at most [default: the engine's]
    #[arg(long, value_name = "N", value_parser = count)]
    pub max_sequences: Option<usize>,
    /// Tokens of a step at most [default: the engine's]
    #[arg(long, value_name = "N", value_parser = count)]
    pub max_tokens: Option<usize>,
    /// Write the times of every request to this CSV; `-` is standard output, which then carries nothing else
    #[arg(long, value_name = "FILE")]
    pub out: Option<String>,
    /// Print the answer as JSON
    #[arg(long)]
    pub json: bool,
}

fn count(text: &str) -> Result<usize, String> {
    match text.parse::<u64>() {
        Ok(count) if (1..=MOST).contains(&count) => Ok(count as usize),
        _ => Err(format!("a whole number from 1 to {MOST} should stand here")),
    }
}

fn rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if (1e-6..=1e9).contains(&rate) => Ok(rate),
        _ => Err("a number from 1e-6 to 1e9 should stand here".into()),
    }
}

fn format(name: &str) -> Result<Operands, String> {
    let known = || Operands::names().collect::<Vec<_>>().join(", ");
    Operands::parse(name).ok_or_else(|| format!("known formats are bf16, {}", known()))
}
