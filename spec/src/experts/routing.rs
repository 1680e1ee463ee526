//! The choices about experts that a plan makes.

use super::{AllToAll, Dispatcher, Load, dispatcher};
use crate::model::Experts;
use serde::{Deserialize, Serialize};

/// How tokens come to their experts: the table `[experts]` of a plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Routing {
    /// Name of the dispatcher.
    pub dispatcher: String,
    /// The input by which experts are chosen.
    pub gate: Gate,
    /// How many times the mean an expert takes; it drops the rest. Without it none is dropped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capacity_factor: Option<f64>,
    /// Which experts the tokens visit.
    pub load: Load,
}

impl Default for Routing {
    fn default() -> Self {
        Routing {
            dispatcher: AllToAll.name().into(),
            gate: Gate::Token,
            capacity_factor: None,
            load: Load::Balanced,
        }
    }
}

/// The input by which a token's experts are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Gate {
    /// Each token for itself.
    #[default]
    Token,
    /// All tokens of a sentence by their mean, so that they visit the same experts (Kudugunta et al. 2021, Beyond
    /// distillation: task-level mixture-of-experts, arXiv 2110.03742, section 3): full sentences spread over experts.
    Sentence,
}

/// The work of the ranks of an expert axis, relative to a balanced load without dropped tokens.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spread {
    /// The busiest rank.
    pub busiest: f64,
    /// The mean of all: 1 less what is dropped.
    pub mean: f64,
}

impl Routing {
    /// Whether nothing is chosen.
    pub fn is_default(&self) -> bool {
        *self == Routing::default()
    }

    /// The dispatcher.
    ///
    /// # Panics
    /// If the name is unknown, which `Plan::check` has excluded.
    pub fn dispatcher(&self) -> &'static dyn Dispatcher {
        dispatcher(&self.dispatcher).expect("a checked plan has a known dispatcher")
    }

    /// How the visits to the experts of block `layer` spread over `ranks` that hold equal numbers of them, in their
    /// order.
    ///
    /// busiest = max over ranks of the mean of min(x, c) over the rank's experts, mean = that over all experts
    ///
    /// x an expert's tokens over the mean of all experts, c the capacity factor. Every expert takes at most c · T k / n
    /// of T tokens with k visits each to n experts (Lepikhin et al. 2020, arXiv 2006.16668, section 2.2).
    pub fn spread(&self, experts: &Experts, layer: usize, ranks: usize) -> Spread {
        let capacity = self.capacity_factor.unwrap_or(f64::INFINITY);
        let multiples = self.load.multiples(experts, layer);
        let taken: Vec<f64> = multiples.into_iter().map(|multiple| multiple.min(capacity)).collect();
        let mean = |taken: &[f64]| taken.iter().sum::<f64>() / taken.len() as f64;
        let of_ranks = taken.chunks(taken.len().div_ceil(ranks)).map(mean);
        Spread { busiest: of_ranks.fold(0.0, f64::max), mean: mean(&taken) }
    }
}
