//! The arguments of `rl`.

use super::load::count;
use super::serve::format;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use trainwright_sim::libraries::Operands;
use trainwright_spec::precision::Precision;
use trainwright_spec::rl::{ALGORITHMS, Algorithm, SyncMethod, algorithm};
use trainwright_spec::units::Seconds;

/// Arguments of `rl`.
#[derive(Debug, Args)]
pub struct RlArguments {
    /// A model of the catalog, or a Hugging Face config.json, or a folder with one
    #[arg(long, value_name = "NAME")]
    pub model: String,
    /// Read a key of config.json from another (`hidden_size=d_model`), or as a number, true or false; `model_type=FAMILY` takes it for
    /// that family, `model_type=decoder` for a plain decoder; may be repeated
    #[arg(long, value_name = "KEY=KEY", value_parser = super::pair)]
    pub map: Vec<(String, String)>,
    /// A cluster or node of the catalog, or a TOML file
    #[arg(long, value_name = "NAME")]
    pub cluster: String,
    /// Which phases a step has
    #[arg(long, value_name = "NAME", default_value = "grpo", value_parser = algorithms())]
    pub algorithm: &'static Algorithm,
    /// Prompts of a step
    #[arg(long, value_name = "N", default_value = "64", value_parser = count)]
    pub prompts: usize,
    /// Answers to each prompt
    #[arg(long, value_name = "N", default_value = "16", value_parser = count)]
    pub rollouts: usize,
    /// Tokens of a prompt, in the mean
    #[arg(long, value_name = "TOKENS", default_value = "512", value_parser = count)]
    pub prompt: usize,
    /// Tokens of an answer at most; longer ones are cut
    #[arg(long, value_name = "TOKENS", default_value = "4096", value_parser = count)]
    pub response: usize,
    /// Tokens of an answer in the mean [default: half of --response, 2048 at most]
    #[arg(long, value_name = "TOKENS", value_parser = count)]
    pub mean_response: Option<usize>,
    /// Standard deviation of the logarithm of an answer's length before it is cut
    #[arg(long, value_name = "SIGMA", default_value = "1", value_parser = spread, allow_negative_numbers = true)]
    pub spread: f64,
    /// Updates of an epoch
    #[arg(long, value_name = "N", default_value = "1", value_parser = count)]
    pub mini_batches: usize,
    /// How often a step's answers are trained on
    #[arg(long, value_name = "N", default_value = "1", value_parser = count)]
    pub epochs: usize,
    /// How phases may share the GPUs [default: colocated, disaggregated, one-step-off]
    #[arg(long = "mode", value_name = "MODES", value_enum, value_delimiter = ',')]
    pub modes: Vec<RlMode>,
    /// With the mode async: how many steps older than the weights a sample may be [default: 0.5]
    #[arg(long, value_name = "STEPS", value_parser = staleness, allow_negative_numbers = true)]
    pub staleness: Option<f64>,
    /// Tokens packed into a microbatch at most; fewer are tried too [default: the longest sample]
    #[arg(long, value_name = "TOKENS", value_parser = count)]
    pub pack: Option<usize>,
    /// Number format of training
    #[arg(long, value_name = "FORMAT", default_value = "bf16", value_parser = precisions())]
    pub precision: Precision,
    /// Format of the engine's weights
    #[arg(long, value_name = "FORMAT", default_value = "bf16", value_parser = format)]
    pub weights: Operands,
    /// Software of training
    #[arg(long, value_name = "NAME", default_value = "megatron-core")]
    pub stack: String,
    /// Its calibration, or `none`
    #[arg(long, value_name = "NAME")]
    pub calibration: Option<String>,
    /// The inference engine
    #[arg(long, value_name = "NAME", default_value = "vllm-v1")]
    pub engine: String,
    /// The part of a GPU that the engine takes where training is on it too
    #[arg(long, value_name = "PART", default_value = "0.6", value_parser = part)]
    pub memory_share: f64,
    /// The software that runs the loop, whose work between phases counts
    #[arg(long, value_name = "NAME", default_value = "plain")]
    pub controller: String,
    /// How weights are handed to the engine
    #[arg(long, value_name = "NAME", default_value = "broadcast", value_parser = methods())]
    pub sync: SyncMethod,
    /// Pin the tensor ranks of training
    #[arg(long, value_name = "N", value_parser = count)]
    pub tensor: Option<usize>,
    /// Pin the pipeline ranks of training
    #[arg(long, value_name = "N", value_parser = count)]
    pub pipeline: Option<usize>,
    /// Pin the expert ranks of training
    #[arg(long, value_name = "N", value_parser = count)]
    pub expert: Option<usize>,
    /// Pin the tensor ranks of the engine
    #[arg(long, value_name = "N", value_parser = count)]
    pub engine_tensor: Option<usize>,
    /// Pin the GPUs of generation, where it has some of its own
    #[arg(long, value_name = "N", value_parser = count)]
    pub engine_gpus: Option<usize>,
    /// Find the fewest GPUs of the cluster on which it fits
    #[arg(long)]
    pub fewest: bool,
    /// With --fewest: what a step may take
    #[arg(long, value_name = "SECONDS", value_parser = seconds, requires = "fewest", allow_negative_numbers = true)]
    pub within: Option<Seconds>,
    /// End after this time with the best loops so far, which then depend on the machine's speed
    #[arg(long, value_name = "SECONDS", value_parser = seconds, conflicts_with = "fewest", allow_negative_numbers = true)]
    pub time_limit: Option<Seconds>,
    /// Write the fastest loop's plans into this folder: `training.toml`, a critic's `critic.toml`, `generation.toml`, and
    /// `requests.csv` with the requests to the instance that ends last
    #[arg(long, value_name = "FOLDER")]
    pub out: Option<String>,
    /// Print the answer as JSON
    #[arg(long)]
    pub json: bool,
}

/// How phases share GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum RlMode {
    /// All phases on all GPUs, in turns
    Colocated,
    /// Generation on GPUs of its own, in turns with training
    Disaggregated,
    /// Generation of the next step beside training
    OneStepOff,
    /// Generation that never waits for its longest answer
    Async,
}

fn algorithms() -> impl TypedValueParser<Value = &'static Algorithm> {
    PossibleValuesParser::new(ALGORITHMS.iter().map(|known| known.name))
        .map(|name| algorithm(&name).expect("the parser lets known names pass"))
}

fn methods() -> impl TypedValueParser<Value = SyncMethod> {
    PossibleValuesParser::new(SyncMethod::ALL.map(SyncMethod::name)).map(|name| {
        let known = SyncMethod::ALL.into_iter().find(|method| method.name() == name);
        known.expect("the parser lets known names pass")
    })
}

fn precisions() -> impl TypedValueParser<Value = Precision> {
    PossibleValuesParser::new(Precision::ALL.map(|precision| precision.name())).map(|name| {
        let known = Precision::ALL.into_iter().find(|precision| precision.name() == name);
        known.expect("the parser lets known names pass")
    })
}

fn number(text: &str, range: std::ops::RangeInclusive<f64>, what: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if range.contains(&value) => Ok(value),
        _ => Err(format!("{what} from {} to {} should stand here", range.start(), range.end())),
    }
}

fn spread(text: &str) -> Result<f64, String> {
    number(text, 0.01..=3.0, "a number")
}

fn staleness(text: &str) -> Result<f64, String> {
    number(text, 0.01..=16.0, "a number of steps")
}

fn part(text: &str) -> Result<f64, String> {
    number(text, 0.05..=0.95, "a part of the memory")
}

fn seconds(text: &str) -> Result<Seconds, String> {
    number(text, 1e-3..=1e9, "a number of seconds").map(Seconds::new)
}
