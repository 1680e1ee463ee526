//! The arguments of `serve-plan`.

use super::load::{cached, count, rate};
use super::serve::format;
use clap::{Args, ValueEnum};
use trainwright_sim::libraries::Operands;
use trainwright_spec::units::Seconds;

/// Arguments of `serve-plan`.
#[derive(Debug, Args)]
pub struct ServePlanArguments {
    /// A model of the catalog, or a Hugging Face config.json, or a folder with one
    #[arg(long, value_name = "NAME")]
    pub model: String,
    /// Read a key of config.json from another (`hidden_size=d_model`), or as a number, true or false; `model_type=FAMILY` takes it for
    /// that family, `model_type=decoder` for a plain decoder; may be repeated
    #[arg(long, value_name = "KEY=KEY", value_parser = super::pair)]
    pub map: Vec<(String, String)>,
    /// A cluster or node of the catalog, or a TOML file; several are several kinds of nodes
    #[arg(long = "cluster", value_name = "NAME", required = true)]
    pub clusters: Vec<String>,
    /// An inference engine of the catalog that may serve; several may
    #[arg(long = "engine", value_name = "NAME", default_value = "vllm-v1")]
    pub engines: Vec<String>,
    /// Formats that weights may have
    #[arg(long, value_name = "FORMATS", default_value = "bf16", value_parser = format, value_delimiter = ',')]
    pub weights: Vec<Operands>,
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
    /// Tokens at the beginning of a prompt whose keys and values the engine has in its prefix cache
    #[arg(long, value_name = "TOKENS", default_value = "0", value_parser = cached)]
    pub cached: usize,
    /// What the requests are like: a CSV with `arrival_s`, `input_tokens`, `output_tokens` and, if given, `cached_tokens`; its gaps
    /// are stretched to the rate
    #[arg(long, value_name = "FILE", conflicts_with_all = ["input", "output", "cached"])]
    pub trace: Option<String>,
    /// Requests a second that must be served [default: as many as the nodes can]
    #[arg(long, value_name = "N", value_parser = rate)]
    pub rate: Option<f64>,
    /// Limit of the time to the first token
    #[arg(long, value_name = "MS", default_value = "1000", value_parser = milliseconds)]
    pub ttft: Seconds,
    /// Limit of the time for each token after the first
    #[arg(long, value_name = "MS", default_value = "50", value_parser = milliseconds)]
    pub tpot: Seconds,
    /// Percentage of requests that keep each limit
    #[arg(long, value_name = "PERCENT", default_value = "90", value_parser = percentage)]
    pub percentile: f64,
    /// Try instances of prefill and of decode apart from each other, too
    #[arg(long)]
    pub apart: bool,
    /// What is to be least
    #[arg(long, value_enum, default_value = "gpus")]
    pub least: Least,
    /// US dollars for a GPU and hour [default: the catalog's list price of the node, or of its GPU]
    #[arg(long, value_name = "USD", value_parser = price)]
    pub price: Option<f64>,
    /// Try no other option after this time; the answer then depends on the machine's speed
    #[arg(long, value_name = "SECONDS", value_parser = super::seconds, allow_negative_numbers = true)]
    pub time_limit: Option<f64>,
    /// Print the commands that start an instance of each pool with its engine (vLLM, SGLang or TensorRT-LLM)
    #[arg(long)]
    pub commands: bool,
    /// Model in these commands: a name on Hugging Face or a folder [default: that of --model]
    #[arg(long, value_name = "NAME", requires = "commands")]
    pub checkpoint: Option<String>,
    /// Draw throughput and latency of the options as SVG
    #[arg(long, value_name = "FILE")]
    pub svg: Option<String>,
    /// The same as PNG
    #[arg(long, value_name = "FILE")]
    pub png: Option<String>,
    /// Print the answer as JSON
    #[arg(long)]
    pub json: bool,
}

/// What is to be least.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Least {
    /// GPUs
    Gpus,
    /// Dollars an hour
    Cost,
}

fn milliseconds(text: &str) -> Result<Seconds, String> {
    match text.parse::<f64>() {
        Ok(time) if (1e-3..=1e9).contains(&time) => Ok(Seconds::new(1e-3 * time)),
        _ => Err("a number of milliseconds from 1e-3 to 1e9 should stand here".into()),
    }
}

fn percentage(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(percent) if (1.0..=99.9).contains(&percent) => Ok(percent / 100.0),
        _ => Err("a number from 1 to 99.9 should stand here".into()),
    }
}

pub(super) fn price(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(price) if (1e-6..=1e6).contains(&price) => Ok(price),
        _ => Err("a number of dollars from 1e-6 to 1e6 should stand here".into()),
    }
}
