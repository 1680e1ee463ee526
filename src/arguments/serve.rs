//! The arguments of `serve`.

use super::load::{LoadArguments, cached, count};
use clap::Args;
use trainwright_sim::libraries::Operands;

/// What a plan in a file says.
const SAID: [&str; 10] = [
    "model",
    "cluster",
    "engine",
    "tensor",
    "pipeline",
    "expert",
    "attention_data",
    "weights",
    "expert_weights",
    "cache",
];

/// Arguments of `serve`.
#[derive(Debug, Args)]
pub struct ServeArguments {
    /// A serving plan in a file, as `rl --out` writes it, instead of the arguments that say one; an instance of it serves
    #[arg(long, value_name = "FILE", conflicts_with_all = SAID)]
    pub plan: Option<String>,
    /// A model of the catalog, or a Hugging Face config.json, or a folder with one
    #[arg(long, value_name = "NAME", required_unless_present = "plan")]
    pub model: Option<String>,
    /// Read a key of config.json from another (`hidden_size=d_model`), or as a number, true or false; `model_type=FAMILY` takes it for
    /// that family, `model_type=decoder` for a plain decoder; may be repeated
    #[arg(long, value_name = "KEY=KEY", value_parser = super::pair)]
    pub map: Vec<(String, String)>,
    /// A cluster or node of the catalog, or a TOML file; the instance takes its first GPUs
    #[arg(long, value_name = "NAME", required_unless_present = "plan")]
    pub cluster: Option<String>,
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
    /// What is asked of the instance.
    #[command(flatten)]
    pub load: LoadArguments,
    /// The JSON of `vllm bench serve --save-result`: its load is asked, and its figures stand beside the forecast
    #[arg(long, value_name = "FILE", group = "load", conflicts_with_all = ["clients", "rate", "batch", "trace", "requests", "input", "output"])]
    pub measured: Option<String>,
    /// Tokens at the beginning of a prompt whose keys and values the engine has in its prefix cache
    #[arg(long, value_name = "TOKENS", default_value = "0", value_parser = cached, conflicts_with = "trace")]
    pub cached: usize,
    /// Sequences of a step at most [default: the engine's]
    #[arg(long, value_name = "N", value_parser = count)]
    pub max_sequences: Option<usize>,
    /// Tokens of a step at most [default: the engine's]
    #[arg(long, value_name = "N", value_parser = count)]
    pub max_tokens: Option<usize>,
    /// Write the times of every request to this CSV; `-` is standard output, which then carries nothing else
    #[arg(long, value_name = "FILE")]
    pub out: Option<String>,
    /// Draw the distributions of the times, and how many requests are there at a time, as SVG
    #[arg(long, value_name = "FILE")]
    pub svg: Option<String>,
    /// The same as PNG
    #[arg(long, value_name = "FILE")]
    pub png: Option<String>,
    /// Print the answer as JSON
    #[arg(long)]
    pub json: bool,
}

pub(super) fn format(name: &str) -> Result<Operands, String> {
    let known = || Operands::names().collect::<Vec<_>>().join(", ");
    Operands::parse(name).ok_or_else(|| format!("known formats are bf16, {}", known()))
}
