//! The null model that forecasts are compared with: what a line on paper would say.
//!
//! ```text
//! TPOT = (weights + n (input + output / 2) bytes of a token) / (0.5 β)      of one GPU; n sequences at once
//! TTFT = 2 P input / (0.3 R)                                                P active parameters, R peak rate of all GPUs
//! ```

use super::case::ServingCase;
use trainwright_sim::libraries::Chip;
use trainwright_sim::serving::{Instance, Load};
use trainwright_spec::precision::Precision;
use trainwright_spec::units::{Bytes, Seconds};

/// The part of the memory's bandwidth that decoding is taken to reach.
const BANDWIDTH: f64 = 0.5;
/// The part of the peak rate that prompts are taken to reach.
const PEAK: f64 = 0.3;

/// What the null model says of a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NullForecast {
    /// Time to the first token of a request alone.
    pub ttft: Option<Seconds>,
    /// Time for each token after the first; `None` where a row does not say how many sequences run at once.
    pub tpot: Option<Seconds>,
}

/// The null model's forecast of a case.
pub fn null_forecast(case: &ServingCase, instance: &Instance) -> NullForecast {
    // Of the instances with the most requests.
    let load = &case.shares[0].load;
    let requests = load.requests();
    let mean = |of: fn(&trainwright_sim::serving::Request) -> usize| {
        requests.iter().map(of).sum::<usize>() as f64 / requests.len().max(1) as f64
    };
    let (input, output) = (mean(|request| request.input), mean(|request| request.output));
    let at_once = match load {
        Load::Closed { clients, .. } => Some(*clients),
        Load::Open(requests) if case.whole_batch => Some(requests.len()),
        Load::Open(_) => None,
    };
    let chip = Chip::of(&case.cluster);
    let memory = &instance.memory;
    let bandwidth = BANDWIDTH * chip.gpu.memory_bandwidth.value;
    let tpot = at_once.map(|sequences| {
        let group = sequences as f64 / case.plan.attention_data as f64;
        let read: Bytes = memory.weights + group * (input + output / 2.0) * memory.token;
        // Stages read theirs one after the other.
        case.plan.pipeline as f64 * (read / bandwidth)
    });
    let precision = if case.plan.weights.starts_with("fp8") { Precision::Fp8 } else { Precision::Bf16 };
    let rate =
        chip.peak(precision).or_else(|| chip.peak(Precision::Bf16)).or_else(|| chip.peak(Precision::Fp16));
    let flops = 2.0 * case.model.active_parameters() as f64 * input;
    let ttft = rate.map(|rate| Seconds::new(flops / (rate.get() * PEAK * case.plan.gpus() as f64)));
    NullForecast { ttft, tpot }
}
