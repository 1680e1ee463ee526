//! An inference engine as data: how it batches, whose kernels it calls, and what its host does.

use crate::catalog;
use crate::error::SpecError;
use crate::sourced::Sourced;
use crate::units::Seconds;
use serde::{Deserialize, Serialize};
use std::sync::LazyLock;

/// An inference engine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Engine {
    /// Name in the catalog.
    pub name: String,
    /// What tables of measurements call it, in lower case.
    pub spellings: Vec<String>,
    /// From when on it is what tables mean, as a year or a year and a month.
    pub since: String,
    /// The library in `spec/catalog/libraries` whose kernels it calls.
    pub library: String,
    /// Whether it sums over the GPUs of a node in one kernel of its own where that is faster than NCCL.
    pub own_all_reduce: bool,
    /// Whether one half of a batch computes while the tokens of the other move to their experts and back.
    #[serde(default)]
    pub two_batches: bool,
    /// Whether it copies and moves experts so that every rank has about as many tokens.
    #[serde(default)]
    pub balances_experts: bool,
    /// Whether it runs with tensor ranks that have different numbers of heads.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub uneven_heads: bool,
    /// How it makes batches.
    pub batching: Batching,
    /// What its host does.
    pub host: HostWork,
    /// The kernels of a block besides products and attention.
    pub small_kernels: SmallKernels,
}

/// How an engine makes batches.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Batching {
    /// The scheduling policy, by its name in the simulator's registry.
    pub policy: String,
    /// Sequences of a step at most.
    pub max_sequences: Sourced<usize>,
    /// Tokens of a step at most.
    pub max_tokens: Sourced<usize>,
    /// Tokens in a block of the cache.
    pub block: Sourced<usize>,
    /// The part of the GPU's memory that weights, activations and cache may fill.
    pub memory_share: Sourced<f64>,
}

/// What an engine's host does.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostWork {
    /// Scheduling and sampling of each step.
    pub step: Sourced<Seconds>,
    /// The same for each sequence of the step.
    pub sequence: Sourced<Seconds>,
    /// Between a request's arrival and its place in the queue, and between its first token and the client.
    pub request: Sourced<Seconds>,
    /// What each log-probability takes that a request asks for, between steps; `None` if nothing is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log_probability: Option<Sourced<Seconds>>,
    /// Whether the host prepares a step while the GPU runs the one before.
    pub overlapped: bool,
    /// The launch of one kernel, where the step is not a captured graph.
    pub launch: Sourced<Seconds>,
    /// Tokens of a step up to which it is a captured graph.
    pub graph_tokens: Sourced<usize>,
}

/// The kernels of a block besides products and attention: norms, rotation, activation, writing the cache, quantisation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SmallKernels {
    /// How many.
    pub count: Sourced<usize>,
    /// What each takes at least.
    pub latency: Sourced<Seconds>,
    /// How often they read or write the residual stream, in all.
    pub passes: Sourced<f64>,
}

impl Engine {
    /// The engine of that name.
    ///
    /// # Errors
    /// `UnknownName` with the nearest names.
    pub fn from_name(name: &str) -> Result<Self, SpecError> {
        let text = catalog::text("engine", name)?;
        toml::from_str(text).map_err(|error| SpecError::Syntax {
            origin: format!("catalog/engines/{name}.toml"),
            message: error.message().replace('\n', " "),
        })
    }

    /// Every engine of the catalog, in alphabetical order.
    pub fn all() -> &'static [Engine] {
        static ALL: LazyLock<Vec<Engine>> = LazyLock::new(|| {
            let read = |name| Engine::from_name(name).expect("the catalog can be read");
            catalog::names("engines").into_iter().map(read).collect()
        });
        &ALL
    }

    /// The engine that a table of a date calls `spelling`; `None` if no engine is called so. Of spellings that it begins with, the
    /// longest counts; of engines with that spelling the newest that existed then, or the newest if `date` is blank.
    pub fn of_table(spelling: &str, date: &str) -> Option<&'static Engine> {
        let spelling = spelling.to_lowercase();
        let length = |engine: &Engine| {
            let begins = engine.spellings.iter().filter(|known| spelling.starts_with(known.as_str()));
            begins.map(String::len).max()
        };
        let existed = |engine: &Engine| date.is_empty() || engine.since.as_str() <= date;
        let known = Self::all().iter().filter_map(|engine| Some((length(engine)?, existed(engine), engine)));
        known
            .max_by_key(|(length, existed, engine)| (*length, *existed, &engine.since))
            .map(|(.., engine)| engine)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_are_found_by_what_tables_call_them() {
        let check = |spelling: &str, date: &str, expected: Option<&str>| {
            let found = Engine::of_table(spelling, date).map(|engine| engine.name.as_str());
            assert_eq!(found, expected, "{spelling} of {date}");
        };
        check("vLLM", "", Some("vllm-v1"));
        check("vLLM 0.4.3", "2024-08", Some("vllm-v0"));
        check("trtllm", "2025-11", Some("tensorrt-llm"));
        check("tensorrt_llm (static batch gptSessionBenchmark)", "2023-10-31", Some("tensorrt-llm-static"));
        check("Z9", "", None);
        for engine in Engine::all() {
            assert_eq!(
                engine.spellings,
                engine.spellings.iter().map(|name| name.to_lowercase()).collect::<Vec<_>>()
            );
        }
    }
}
