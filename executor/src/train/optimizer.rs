//! The optimizers that the executor has.

/// The optimizers there are, by their names in jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Optimizer {
    AdamW,
    Adam,
    Lamb,
    Lars,
    Momentum,
    Sgd,
}

impl Optimizer {
    /// The one of that name; `None` if the executor has not got it.
    pub fn of_name(name: &str) -> Option<Self> {
        match name {
            "adamw" => Some(Optimizer::AdamW),
            "adam" => Some(Optimizer::Adam),
            "lamb" => Some(Optimizer::Lamb),
            "lars" => Some(Optimizer::Lars),
            "momentum" => Some(Optimizer::Momentum),
            "sgd" => Some(Optimizer::Sgd),
            _ => None,
        }
    }

    /// Whether its step depends on the norms of each tensor.
    pub fn is_layer_wise(self) -> bool {
        matches!(self, Optimizer::Lamb | Optimizer::Lars)
    }

    /// Moments of each weight.
    pub fn moments(self) -> u64 {
        match self {
            Optimizer::AdamW | Optimizer::Adam | Optimizer::Lamb => 2,
            Optimizer::Momentum | Optimizer::Lars => 1,
            Optimizer::Sgd => 0,
        }
    }
}
