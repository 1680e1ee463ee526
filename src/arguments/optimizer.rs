//! Arguments of `run` for the optimizer.

use super::{count, one_of, rate};
use clap::Args;
use trainwright_executor::{RATE_SCHEDULES, RateSchedule};

/// The optimizer's settings that a plan does not have.
#[derive(Debug, Args)]
pub struct OptimizerArguments {
    /// The largest learning rate, reached at the end of the warmup
    #[arg(long, value_name = "RATE", default_value = "0.0006", value_parser = rate, allow_negative_numbers = true)]
    pub learning_rate: f32,
    /// Steps in which the learning rate rises from 0
    #[arg(long, value_name = "N", default_value = "0")]
    pub warmup: usize,
    /// How the learning rate goes on after the warmup; `wsd` stays and decays linearly in its last steps
    #[arg(long, default_value = "constant", value_parser = one_of(&RATE_SCHEDULES, |schedule| schedule.name))]
    pub rate_schedule: RateSchedule,
    /// The smallest learning rate after the warmup, which decays end with
    #[arg(long, value_name = "RATE", default_value = "0", value_parser = rate, allow_negative_numbers = true)]
    pub final_learning_rate: f32,
    /// The step at which the learning rate has decayed [default: --steps]
    #[arg(long, value_name = "STEP", value_parser = count, allow_negative_numbers = true)]
    pub decay_until: Option<usize>,
    /// The steps in which `wsd` decays [default: a fifth of --decay-until]
    #[arg(long, value_name = "N", value_parser = count, allow_negative_numbers = true)]
    pub cooldown: Option<usize>,
    /// Weight decay of matrices; vectors such as biases and the norms' gains do not decay
    #[arg(long, value_name = "RATE", default_value = "0.1", value_parser = rate, allow_negative_numbers = true)]
    pub weight_decay: f32,
    /// Do not decay the tables of tokens and positions either, nor an output embedding tied to them
    #[arg(long)]
    pub no_embedding_decay: bool,
    /// β₁ of Adam and LAMB, the momentum of `momentum` and LARS
    #[arg(long, value_name = "NUMBER", default_value = "0.9", value_parser = moment, allow_negative_numbers = true)]
    pub beta1: f32,
    /// β₂ of Adam and LAMB
    #[arg(long, value_name = "NUMBER", default_value = "0.95", value_parser = moment, allow_negative_numbers = true)]
    pub beta2: f32,
    /// ε of Adam and LAMB
    #[arg(long, value_name = "NUMBER", default_value = "0.00000001", value_parser = rate, allow_negative_numbers = true)]
    pub epsilon: f32,
    /// Add NUMBER · (ln Σ e^logit)² to each token's loss, which keeps logits from drifting (1e-4 in PaLM)
    #[arg(long, value_name = "NUMBER", default_value = "0", value_parser = z_loss, allow_negative_numbers = true)]
    pub z_loss: f64,
    /// Spread this part of each target evenly over the vocabulary
    #[arg(long, value_name = "FRACTION", default_value = "0", value_parser = smoothing, allow_negative_numbers = true)]
    pub label_smoothing: f64,
    /// The largest norm of the gradients; larger ones are scaled down [default: 1, if the plan's job clips]
    #[arg(long, value_name = "NORM", value_parser = norm, allow_negative_numbers = true)]
    pub clip: Option<f64>,
}

/// The decay of a moving average.
fn moment(text: &str) -> Result<f32, String> {
    let number = text.parse().ok().filter(|beta: &f32| (0.0..1.0).contains(beta));
    number.ok_or_else(|| "it must be a number from 0 to below 1".into())
}

fn z_loss(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|factor: &f64| factor.is_finite() && *factor >= 0.0);
    number.ok_or_else(|| "it must be a number from 0".into())
}

fn smoothing(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|part: &f64| (0.0..1.0).contains(part));
    number.ok_or_else(|| "it must be a number from 0 to below 1".into())
}

fn norm(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|norm: &f64| norm.is_finite() && *norm > 0.0);
    number.ok_or_else(|| "it must be a number above 0".into())
}
