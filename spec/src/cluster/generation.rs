//! GPU generations.

use serde::{Deserialize, Serialize};

/// A GPU's generation, as far as NCCL distinguishes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Generation {
    /// Volta, Turing and all before.
    Volta,
    /// Ampere.
    Ampere,
    /// Ada Lovelace and Hopper.
    Hopper,
    /// Blackwell.
    Blackwell,
}

impl Generation {
    /// The name in the catalog.
    pub fn name(self) -> &'static str {
        match self {
            Generation::Volta => "volta",
            Generation::Ampere => "ampere",
            Generation::Hopper => "hopper",
            Generation::Blackwell => "blackwell",
        }
    }
}
