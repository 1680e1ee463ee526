//! The software that runs a loop, as data: what it does between and around the phases.
//!
//! ```
//! use trainwright_spec::rl::Controller;
//! let verl = Controller::of_framework("verl FSDP2").unwrap();
//! assert_eq!(verl.name, "verl");
//! assert!(Controller::of_framework("AReaL").is_none());
//! ```

use super::{Mode, SyncMethod};
use crate::catalog;
use crate::error::SpecError;
use crate::sourced::Sourced;
use crate::units::{Bytes, BytesPerSecond, Seconds};
use serde::{Deserialize, Serialize};
use std::sync::LazyLock;

/// Over which samples data ranks are balanced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Balance {
    /// Those of each update: in each of them every rank has about as many tokens.
    MiniBatch,
    /// Those of the step: every rank has about as many tokens in all, but not in each update, which waits for the fullest.
    Step,
}

/// The samples as the controller holds them: padded to the longest that a sample may be, sent to the workers before a phase.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BatchTransfer {
    /// Bytes for each token of a padded sample that come from generation.
    pub generated: Sourced<Bytes>,
    /// The same to and from a pass that computes probabilities.
    pub forward: Sourced<Bytes>,
    /// The same to the updates.
    pub update: Sourced<Bytes>,
    /// Rate at which one process writes and another reads them.
    pub rate: Sourced<BytesPerSecond>,
}

/// What a loop's software adds to its phases, and what it chooses where nothing else is said.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Controller {
    /// Name in the catalog.
    pub name: String,
    /// How tables name it, in lower case: their `framework` begins so.
    pub frameworks: Vec<String>,
    /// How data ranks are balanced.
    pub balance: Balance,
    /// Whether the engine is asked for the log-probability of each token.
    pub returns_log_probs: bool,
    /// Recomputation where nothing is said; empty for none.
    #[serde(default)]
    pub recompute: String,
    /// The part of a GPU that an engine takes beside training.
    pub colocated_share: Option<Sourced<f64>>,
    /// The same of a GPU of its own.
    pub own_share: Option<Sourced<f64>>,
    /// Rate at which a GPU's state goes to host memory, if that is allocated anew each time; `None` if it is kept pinned.
    pub to_host: Option<Sourced<BytesPerSecond>>,
    /// Whether weights are on the host between passes too, and come and go for each of those that compute probabilities.
    #[serde(default)]
    pub offloads_between_passes: bool,
    /// How it hands weights over where nothing is said; `None` for broadcasts.
    pub sync: Option<SyncMethod>,
    /// Work of the host for each named tensor that is handed to the engine; `None` for launches alone.
    pub tensor: Option<Sourced<Seconds>>,
    /// Tokens of a microbatch at most; `None` for those of one longest sample.
    pub pack: Option<Sourced<usize>>,
    /// Tokens of a longest sample on one rank: more are divided over context ranks, and over the engine's tensor ranks.
    pub rank_tokens: Option<Sourced<usize>>,
    /// Ranks that share weights and state, where these are divided at all; `None` for all.
    pub shard_ranks: Option<Sourced<usize>>,
    /// Samples on their way through the controller; `None` if they stay where they are.
    pub batch: Option<BatchTransfer>,
}

impl Controller {
    /// How data ranks are balanced in a mode: what comes part by part is dealt to the ranks part by part.
    pub fn balance_in(&self, mode: Mode) -> Balance {
        match mode {
            Mode::Streamed { .. } | Mode::Async { .. } => Balance::MiniBatch,
            _ => self.balance,
        }
    }

    /// The controller of that name.
    ///
    /// # Errors
    /// `UnknownName` with the nearest names.
    pub fn from_name(name: &str) -> Result<Self, SpecError> {
        let text = catalog::text("controller", name)?;
        toml::from_str(text).map_err(|error| SpecError::Syntax {
            origin: format!("catalog/controllers/{name}.toml"),
            message: error.message().replace('\n', " "),
        })
    }

    /// Phases alone, nothing between them.
    pub fn plain() -> Self {
        Self::from_name("plain").expect("the catalog has it")
    }

    /// Every controller of the catalog, in alphabetical order.
    pub fn all() -> &'static [Controller] {
        static ALL: LazyLock<Vec<Controller>> = LazyLock::new(|| {
            let read = |name| Controller::from_name(name).expect("the catalog can be read");
            catalog::names("controllers").into_iter().map(read).collect()
        });
        &ALL
    }

    /// The controller whose name a table's framework begins with, the longest of several; `None` if none is known.
    pub fn of_framework(framework: &str) -> Option<&'static Controller> {
        let framework = framework.to_lowercase();
        let length = |known: &Controller| {
            known.frameworks.iter().filter(|name| framework.starts_with(name.as_str())).map(String::len).max()
        };
        let known = Self::all().iter().filter_map(|known| Some((length(known)?, known)));
        known.max_by_key(|(length, _)| *length).map(|(_, known)| known)
    }

    /// Context ranks of training, and tensor ranks of the engine, for samples of so many tokens at most.
    pub fn ranks_of_sample(&self, longest: usize) -> usize {
        self.rank_tokens.as_ref().map_or(1, |most| longest.div_ceil(most.value.max(1)).next_power_of_two())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn controllers_are_found_and_divide_long_samples() {
        let check = |framework: &str, expected: Option<&str>| {
            let found = Controller::of_framework(framework).map(|known| known.name.as_str());
            assert_eq!(found, expected, "{framework}");
        };
        check("NeMo-RL (Megatron Core)", Some("nemo-rl"));
        check("NeMo-RL checkpoint engine", Some("nemo-rl-checkpoint-engine"));
        check("verl Megatron", Some("verl"));
        check("", None);
        let verl = Controller::from_name("verl").unwrap();
        // At most 12,288 tokens a rank.
        for (longest, ranks) in [(10_240, 1), (12_289, 2), (30_720, 4)] {
            assert_eq!(verl.ranks_of_sample(longest), ranks);
        }
        assert_eq!(Controller::plain().ranks_of_sample(30_720), 1);
    }
}
