//! The number formats of a plan.

use crate::libraries::{Operands, Unknown};
use trainwright_spec::serving::ServingPlan;

/// The format of the router, the head, vectors and activations.
const BASE: &str = "bfloat16";

/// Number formats of a plan.
#[derive(Debug, Clone, Copy)]
pub(super) struct Formats {
    /// Of products.
    pub weights: Operands,
    /// Of the experts.
    pub experts: Operands,
    /// Of keys and values.
    pub cache: Operands,
    /// Of the router and the head.
    pub base: Operands,
}

impl Formats {
    /// Those of a plan.
    ///
    /// # Errors
    /// `Unknown::Format`.
    pub fn of(plan: &ServingPlan) -> Result<Self, Unknown> {
        let parse = |name: &str| Operands::parse(name).ok_or_else(|| Unknown::Format(name.into()));
        Ok(Self {
            weights: parse(&plan.weights)?,
            experts: parse(&plan.expert_weights)?,
            cache: parse(&plan.cache)?,
            base: parse(BASE)?,
        })
    }
}
