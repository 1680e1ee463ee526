//! Arguments of `generate`, and of `run` for its samples.

use super::{TransportChoice, count, one_of};
use clap::Args;
use std::num::NonZeroUsize;
use trainwright_executor::WeightFormat;

/// Arguments of `generate`.
#[derive(Debug, Args)]
pub struct GenerateArguments {
    /// A checkpoint, or the last one of a folder that `run --save` wrote; or a Hugging Face folder: config.json and
    /// model.safetensors
    #[arg(long, value_name = "DIR")]
    pub checkpoint: String,
    /// A text to go on from; may be given several times
    #[arg(long, value_name = "TEXT", required_unless_present_any = ["prompts", "prompt_tokens"], allow_hyphen_values = true)]
    pub prompt: Vec<String>,
    /// A file with a prompt on each line; `-` is standard input
    #[arg(long, value_name = "FILE")]
    pub prompts: Option<String>,
    /// The tokens to go on from, instead of a text: 464,2068; may be given several times
    #[arg(long, value_name = "N,...", value_parser = numbers)]
    pub prompt_tokens: Vec<Numbers>,
    /// Tokens to generate behind each prompt
    #[arg(long, value_name = "N", default_value = "32", value_parser = count, allow_negative_numbers = true)]
    pub tokens: usize,
    /// Draw tokens from the softmax of the logits divided by this; 0 takes the likeliest [default: 0, with --top-k or --top-p 1]
    #[arg(long, value_name = "NUMBER", value_parser = temperature, allow_negative_numbers = true)]
    pub temperature: Option<f64>,
    /// Draw from that many likeliest tokens
    #[arg(long, value_name = "N")]
    pub top_k: Option<NonZeroUsize>,
    /// Draw from the fewest likeliest tokens whose probabilities add up to this
    #[arg(long, value_name = "FRACTION", value_parser = fraction, allow_negative_numbers = true)]
    pub top_p: Option<f64>,
    /// Decides what is drawn
    #[arg(long, value_name = "N", default_value = "0", allow_negative_numbers = true)]
    pub seed: u64,
    /// End a text with this token: its text in the tokenizer, or its number
    #[arg(long, value_name = "TOKEN")]
    pub stop: Option<String>,
    /// A Hugging Face tokenizer.json [default: that of the folder; bytes, if the run's tokens were bytes]
    #[arg(long, value_name = "FILE")]
    pub tokenizer: Option<String>,
    /// How the weights of tables and products are kept: int8 with a scale for each row
    #[arg(long, default_value = "fp32", value_parser = one_of(&WeightFormat::ALL, WeightFormat::name))]
    pub weights: WeightFormat,
    /// Generate on the tensor, pipeline and data ranks of this plan; data ranks take prompts in turn
    #[arg(long, value_name = "FILE")]
    pub plan: Option<String>,
    /// Threads for the kernels of all ranks together [default: as many as the machine has cores]
    #[arg(long, value_name = "N")]
    pub threads: Option<NonZeroUsize>,
    /// How ranks reach each other, as for `run`
    #[arg(long, value_enum)]
    pub transport: Option<TransportChoice>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Print the logits from which each token was chosen, too; of prompts that other data ranks complete there are none
    #[arg(long, requires = "json")]
    pub logits: bool,
}

/// Texts that a run makes now and then.
#[derive(Debug, Args)]
pub struct SampleArguments {
    /// Go on from this text after every `--sample-every` steps and after the last one, with the likeliest tokens
    #[arg(long, value_name = "TEXT", requires = "sample_every", allow_hyphen_values = true)]
    pub sample_prompt: Option<String>,
    /// Steps from one such text to the next
    #[arg(long, value_name = "N", requires = "sample_prompt")]
    pub sample_every: Option<NonZeroUsize>,
    /// Tokens of each such text
    #[arg(long, value_name = "N", default_value = "32", requires = "sample_prompt")]
    pub sample_tokens: NonZeroUsize,
}

/// Numbers of tokens between commas.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Numbers(pub Vec<u32>);

fn numbers(text: &str) -> Result<Numbers, String> {
    let all: Result<Vec<u32>, _> = text.split(',').map(|number| number.trim().parse()).collect();
    all.map(Numbers).map_err(|_| "it must be whole numbers between commas, as 464,2068".into())
}

fn temperature(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number: &f64| (0.0..=1000.0).contains(number));
    number.ok_or_else(|| "it must be a number from 0 to 1000".into())
}

fn fraction(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number: &f64| *number > 0.0 && *number <= 1.0);
    number.ok_or_else(|| "it must be a number above 0, at most 1".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stand_between_commas() {
        assert_eq!(numbers("464, 2068"), Ok(Numbers(vec![464, 2068])));
        for bad in ["", "1,", "-1", "1 2", "4294967296"] {
            assert!(numbers(bad).is_err(), "{bad}");
        }
    }
}
