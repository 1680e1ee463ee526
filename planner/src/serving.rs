//! Plans of serving: which instances of a model, how many of each, and which part of the requests each takes, so that the limits
//! of latency hold.
//!
//! ```text
//! options (layout, formats, budget of a step) ─► the rate that each keeps, by simulation ─► integer program over pools ─► verdict
//! ```
//!
//! The rates are simulated, not proved. What is proved is that no mix of the options with these rates is better.

mod apart;
mod capacity;
mod options;
mod pools;
mod verdict;

pub use capacity::{Broken, Capacity, Point};
pub use options::{Role, ServingOption};
pub use pools::{Mix, OptionOfPool, best_mix};
pub use verdict::{Pool, ServingVerdict, Tried, TriedOutcome, plan_serving};

use trainwright_sim::serving::{Load, Request};
use trainwright_spec::cluster::Cluster;
use trainwright_spec::model::Model;
use trainwright_spec::serving::Engine;
use trainwright_spec::units::Seconds;

/// What is asked.
#[derive(Debug, Clone)]
pub struct ServingQuestion {
    /// The model.
    pub model: Model,
    /// Nodes of each kind.
    pub kinds: Vec<Kind>,
    /// Engines that may serve it.
    pub engines: Vec<Engine>,
    /// Number formats that may be used.
    pub formats: Vec<ServedFormats>,
    /// What the requests are like.
    pub traffic: Traffic,
    /// Requests a second that must be served; `None` asks for the most that the nodes can serve.
    pub rate: Option<f64>,
    /// What they must not exceed.
    pub limits: LatencyLimits,
    /// Whether prefill and decode may be apart, each with instances of its own.
    pub apart: bool,
    /// What is to be least.
    pub objective: Objective,
}

/// Nodes of one kind.
#[derive(Debug, Clone)]
pub struct Kind {
    /// All nodes of it.
    pub cluster: Cluster,
    /// US dollars for a GPU and hour; `None` if it is not known.
    pub price: Option<f64>,
}

/// Number formats as kernel tables spell them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServedFormats {
    /// Of products.
    pub weights: String,
    /// Of the experts.
    pub expert_weights: String,
    /// Of keys and values.
    pub cache: String,
}

/// What requests are like, at any rate.
#[derive(Debug, Clone, PartialEq)]
pub enum Traffic {
    /// All alike, at random times.
    Alike {
        /// Tokens of a prompt.
        input: usize,
        /// Tokens of an answer.
        output: usize,
        /// Tokens at the beginning of a prompt that the engine has in its cache.
        cached: usize,
    },
    /// Those of a trace; the gaps between arrivals are stretched to the rate.
    Trace(Vec<Request>),
}

impl Traffic {
    /// The number of requests at a rate; all of a trace.
    pub fn at_rate(&self, rate: f64, requests: usize) -> Load {
        match self {
            Traffic::Alike { input, output, cached } => {
                Load::at_rate(rate, requests, *input, *output).with_cached(*cached)
            }
            Traffic::Trace(trace) => Load::stretched(trace.clone(), rate),
        }
    }

    /// Mean tokens of answers.
    pub fn mean_output(&self) -> f64 {
        match self {
            Traffic::Alike { output, .. } => *output as f64,
            Traffic::Trace(trace) => {
                trace.iter().map(|request| request.output as f64).sum::<f64>() / trace.len() as f64
            }
        }
    }

    /// Tokens of the longest prompt and answer.
    fn longest(&self) -> usize {
        match self {
            Traffic::Alike { input, output, .. } => input + output,
            Traffic::Trace(trace) => {
                trace.iter().map(|request| request.input + request.output).max().unwrap_or(0)
            }
        }
    }

    /// A request of mean lengths.
    fn mean(&self) -> Request {
        match self {
            Traffic::Alike { input, output, cached } => {
                let cached = (*cached).min(input - 1);
                Request { cached, ..Request::new(Seconds::ZERO, *input, *output) }
            }
            Traffic::Trace(trace) => {
                let mean =
                    |of: fn(&Request) -> usize| trace.iter().map(of).sum::<usize>().div_ceil(trace.len());
                let input = mean(|request| request.input);
                let cached = mean(|request| request.cached).min(input - 1);
                Request { cached, ..Request::new(Seconds::ZERO, input, mean(|request| request.output)) }
            }
        }
    }
}

/// What a part of the requests must not exceed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LatencyLimits {
    /// Time to the first token.
    pub ttft: Seconds,
    /// Time for each token after the first.
    pub tpot: Seconds,
    /// The part of the requests that keeps each, 0.9 for P90.
    pub part: f64,
}

/// What is to be least for a rate; where none is asked, the rate is to be most and this decides nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Objective {
    /// GPUs.
    Gpus,
    /// Dollars an hour.
    Cost,
}
