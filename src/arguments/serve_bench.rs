//! The arguments of `serve-bench`.

use super::load::{LoadArguments, count};
use super::one_of;
use clap::{ArgGroup, Args};
use std::num::NonZeroUsize;
use trainwright_executor::WeightFormat;

/// Arguments of `serve-bench`.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("weights_of").required(true).args(["model", "checkpoint"]))]
pub struct ServeBenchArguments {
    /// A model of the catalog, or a Hugging Face config.json, with random weights
    #[arg(long, value_name = "NAME")]
    pub model: Option<String>,
    /// The weights of a folder, as for `generate`
    #[arg(long, value_name = "DIR")]
    pub checkpoint: Option<String>,
    /// The inference engine of the catalog whose scheduler makes the steps
    #[arg(long, value_name = "NAME", default_value = "vllm-v1")]
    pub engine: String,
    /// Tensor ranks
    #[arg(long, value_name = "N", default_value = "1")]
    pub tensor: NonZeroUsize,
    /// Pipeline stages
    #[arg(long, value_name = "N", default_value = "1")]
    pub pipeline: NonZeroUsize,
    /// How the weights of tables and products are kept
    #[arg(long, default_value = "fp32", value_parser = one_of(&WeightFormat::ALL, WeightFormat::name))]
    pub weights: WeightFormat,
    /// What is asked.
    #[command(flatten)]
    pub load: LoadArguments,
    /// Sequences of a step at most [default: the engine's]
    #[arg(long, value_name = "N", value_parser = count)]
    pub max_sequences: Option<usize>,
    /// Tokens of a step at most [default: the engine's]
    #[arg(long, value_name = "N", value_parser = count)]
    pub max_tokens: Option<usize>,
    /// Tokens that the cache has room for [default: as many as all sequences of a step can have]
    #[arg(long, value_name = "TOKENS", value_parser = count)]
    pub cache_tokens: Option<usize>,
    /// Threads for the kernels of all ranks together [default: as many as the machine has cores]
    #[arg(long, value_name = "N")]
    pub threads: Option<NonZeroUsize>,
    /// Decides new weights and the tokens of prompts
    #[arg(long, value_name = "N", default_value = "0")]
    pub seed: u64,
    /// Measure steps of other sequences first, forecast the run from their times, and compare
    #[arg(long)]
    pub validate: bool,
    /// How often a validation measures and runs in turn; times are medians
    #[arg(long, value_name = "N", default_value = "3", requires = "validate")]
    pub rounds: NonZeroUsize,
    /// Count the processor's time instead of the wall's, on a machine that others use; for one rank with one thread
    #[arg(long)]
    pub processor_time: bool,
    /// Write the times of every request to this CSV; `-` is standard output, which then carries nothing else
    #[arg(long, value_name = "FILE")]
    pub out: Option<String>,
    /// Print the answer as JSON
    #[arg(long)]
    pub json: bool,
}
