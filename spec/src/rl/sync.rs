//! How the actor's weights get from the training ranks to the engine's.

use serde::{Deserialize, Serialize};

/// A way to hand weights over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SyncMethod {
    /// Every rank sends the parts that it holds straight to the ranks that need them: each of the engine's ranks receives its
    /// share of the model once.
    Reshard,
    /// Each tensor is made whole and broadcast: every rank of the engine receives the whole model and keeps its share.
    Broadcast,
    /// The same, but of experts every rank of the engine receives what it keeps alone.
    ExpertParts,
}

impl SyncMethod {
    /// Every method.
    pub const ALL: [SyncMethod; 3] = [SyncMethod::Reshard, SyncMethod::Broadcast, SyncMethod::ExpertParts];

    /// Its name in arguments.
    pub fn name(self) -> &'static str {
        match self {
            SyncMethod::Reshard => "reshard",
            SyncMethod::Broadcast => "broadcast",
            SyncMethod::ExpertParts => "expert-parts",
        }
    }
}
