//! The order in which each pipeline rank runs its passes.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// One entry of a schedule, written `2F0`: stage 2, forward, microbatch 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Action {
    /// Which stage: with virtual stages there are more of them than pipeline ranks.
    pub stage: usize,
    /// Forward or backward.
    pub kind: ActionKind,
    /// Which microbatch.
    pub microbatch: usize,
}

/// What an action does to its microbatch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum ActionKind {
    /// Forward, letter `F`.
    Forward,
    /// The whole backward pass, letter `B`.
    Backward,
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let letter = match self.kind {
            ActionKind::Forward => 'F',
            ActionKind::Backward => 'B',
        };
        f.pad(&format!("{}{letter}{}", self.stage, self.microbatch))
    }
}

impl FromStr for Action {
    type Err = String;

    /// Reads `2F0`.
    ///
    /// # Errors
    /// Says what an action looks like when `text` is not one.
    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("`{text}` is not an action such as 2F0 (stage 2, forward, microbatch 0)");
        let at = text.find(['F', 'B']).ok_or_else(bad)?;
        let kind = if &text[at..=at] == "F" { ActionKind::Forward } else { ActionKind::Backward };
        let stage = text[..at].parse().map_err(|_| bad())?;
        let microbatch = text[at + 1..].parse().map_err(|_| bad())?;
        Ok(Action { stage, kind, microbatch })
    }
}
