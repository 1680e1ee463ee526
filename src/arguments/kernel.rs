//! The arguments of `kernel`.

use clap::{ArgGroup, Args};
use trainwright_sim::libraries::Operands;

/// No size of a kernel is larger.
const MOST: usize = 1 << 40;

/// Arguments of `kernel`.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("hardware").required(true).args(["gpu", "cluster"]))]
#[command(group = ArgGroup::new("call").required(true))]
pub struct KernelArguments {
    /// A GPU of the catalog
    #[arg(long, value_name = "NAME")]
    pub gpu: Option<String>,
    /// A cluster or node of the catalog, or a TOML file: its GPU, with the links to the others of the node
    #[arg(long, value_name = "NAME")]
    pub cluster: Option<String>,
    /// A matrix product of M tokens with N x K weights
    #[arg(long, value_name = "M,N,K", group = "call", value_parser = sizes::<3>, allow_hyphen_values = true)]
    pub gemm: Option<[usize; 3]>,
    /// Attention of one new token of each sequence: sequences, heads, key-value heads, width of a head, tokens in the cache
    #[arg(long, value_name = "BATCH,HEADS,KV,WIDTH,HISTORY", group = "call", value_parser = sizes::<5>, allow_hyphen_values = true)]
    pub decode: Option<[usize; 5]>,
    /// Attention of prompts: sequences, heads, key-value heads, width of a head, new tokens
    #[arg(long, value_name = "BATCH,HEADS,KV,WIDTH,TOKENS", group = "call", value_parser = sizes::<5>, allow_hyphen_values = true)]
    pub prefill: Option<[usize; 5]>,
    /// Latent attention of one new token of each sequence: sequences, heads, tokens in the cache
    #[arg(long, value_name = "BATCH,HEADS,HISTORY", group = "call", value_parser = sizes::<3>, allow_hyphen_values = true)]
    pub mla_decode: Option<[usize; 3]>,
    /// A layer's experts: tokens, width, inner width, experts, experts of a token; `--tp` and `--ep` distribute them
    #[arg(long, value_name = "TOKENS,HIDDEN,INNER,EXPERTS,TOPK", group = "call", value_parser = sizes::<5>, allow_hyphen_values = true)]
    pub experts: Option<[usize; 5]>,
    /// An all-reduce in one kernel: GPUs, bytes on each; needs `--cluster`
    #[arg(long, value_name = "GPUS,BYTES", group = "call", value_parser = sizes::<2>, requires = "cluster", allow_hyphen_values = true)]
    pub all_reduce: Option<[usize; 2]>,
    /// Tokens to their experts: GPUs, tokens on each, width, experts of a token; needs `--cluster`
    #[arg(long, value_name = "GPUS,TOKENS,HIDDEN,TOPK", group = "call", value_parser = sizes::<4>, requires = "cluster", allow_hyphen_values = true)]
    pub exchange: Option<[usize; 4]>,
    /// Tokens of each sequence that are in the cache before a prefill
    #[arg(long, value_name = "TOKENS", default_value = "0")]
    pub history: u32,
    /// The last tokens that a query of attention sees [default: all]
    #[arg(long, value_name = "TOKENS", value_parser = size, allow_hyphen_values = true)]
    pub window: Option<usize>,
    /// GPUs that share each expert
    #[arg(long, value_name = "N", default_value = "1", value_parser = size, allow_hyphen_values = true)]
    pub tp: usize,
    /// GPUs that the experts are distributed over
    #[arg(long, value_name = "N", default_value = "1", value_parser = size, allow_hyphen_values = true)]
    pub ep: usize,
    /// Number format of operands, or of the cache in attention
    #[arg(long, value_name = "FORMAT", default_value = "bf16", value_parser = format)]
    pub dtype: Operands,
    /// The library [default: the one with the most measurements]
    #[arg(long, value_name = "NAME")]
    pub library: Option<String>,
    /// Its kernel, by its name in the tables [default: the one with the most measurements]
    #[arg(long, value_name = "NAME", requires = "library")]
    pub kernel: Option<String>,
    /// Print the answer as JSON
    #[arg(long)]
    pub json: bool,
}

fn size(text: &str) -> Result<usize, String> {
    super::within(text, 1, MOST)
}

/// Numbers between commas.
fn sizes<const N: usize>(text: &str) -> Result<[usize; N], String> {
    let numbers: Vec<usize> = text.split(',').map(|number| size(number.trim())).collect::<Result<_, _>>()?;
    let given = numbers.len();
    numbers.try_into().map_err(|_| format!("it needs {N} numbers between commas, not {given}"))
}

fn format(text: &str) -> Result<Operands, String> {
    let known = || Operands::names().collect::<Vec<_>>().join(", ");
    Operands::parse(text).ok_or_else(|| format!("it must be bf16 or one of {}", known()))
}
