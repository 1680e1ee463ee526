//! The precision of gradients, moments and master weights, and the bytes of a parameter that follow.

use super::{Optimizer, Rule};
use crate::precision::Precision;
use crate::units::Bytes;
use serde::{Deserialize, Serialize};

/// The precision of all state of a parameter but its weight.
///
/// Bytes of a parameter with Adam, weights and matrix products in 16 bits:
///
/// ```text
/// gradients  moments  master weights   bytes
/// 16 bits    fp32     fp32             2 + 2 + 4 + 8 = 16   (arXiv 1910.02054)
/// fp32       fp32     fp32             2 + 4 + 4 + 8 = 18   (Megatron)
/// 16 bits    bf16     remainder        2 + 2 + 2 + 4 = 10
/// 16 bits    int8     fp32             2 + 2 + 4 + 2 = 10   (arXiv 2110.02861)
/// 16 bits    int8     none             2 + 2 + 0 + 2 = 6
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StatePrecision {
    /// Of gradients as they are accumulated, reduced and copied; left out: as the stack does it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gradients: Option<Precision>,
    /// Of the optimizer's moments.
    #[serde(default)]
    pub moments: Moments,
    /// Of the weights that the optimizer updates.
    #[serde(default)]
    pub master_weights: MasterWeights,
}

impl StatePrecision {
    /// Whether it is what training does where nobody says otherwise.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// How an optimizer's moment is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Moments {
    /// 4 bytes.
    #[default]
    Fp32,
    /// 2 bytes.
    Bf16,
    /// A byte, and an fp32 scale for each block of 2048 (Dettmers et al. 2021, arXiv 2110.02861, section 2).
    Int8,
}

impl Moments {
    /// Bytes of one moment of one parameter.
    pub fn bytes(self) -> Bytes {
        Bytes::new(match self {
            Moments::Fp32 => 4.0,
            Moments::Bf16 => 2.0,
            Moments::Int8 => 1.0 + 4.0 / 2048.0,
        })
    }
}

/// The part of the weights beyond 16 bits that 16-bit training keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MasterWeights {
    /// A copy in fp32 (Micikevicius et al. 2017, arXiv 1710.03740).
    #[default]
    Fp32,
    /// The 16 bits that bf16 cuts off: with the weight they are the fp32 value (Transformer Engine's FusedAdam,
    /// `store_param_remainders`).
    Remainder,
    /// Nothing: the 16-bit weights are updated themselves.
    None,
}

/// Bytes of one parameter.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StateBytes {
    /// The weight as matrix products read it.
    pub weight: Bytes,
    /// The accumulated gradient.
    pub gradient: Bytes,
    /// The copy of the weight that the optimizer keeps in addition.
    pub master: Bytes,
    /// All moments and factors.
    pub moments: Bytes,
    /// Bytes that the optimizer moves beyond one pass over all of this.
    pub extra: Bytes,
}

impl StateBytes {
    /// Of a parameter with that rule, trained in `precision`; `gradients` in which gradients are accumulated if `state` does not say.
    pub fn new(
        optimizer: &dyn Optimizer,
        rule: Rule,
        precision: Precision,
        gradients: Precision,
        state: &StatePrecision,
    ) -> Self {
        let master = match state.master_weights {
            _ if !precision.needs_master_weights() => 0.0,
            MasterWeights::Fp32 => 4.0,
            MasterWeights::Remainder => 2.0,
            MasterWeights::None => 0.0,
        };
        let matrices = optimizer.of_matrices().filter(|_| rule == Rule::Matrices);
        let moments = matrices.map_or(optimizer.moment_bytes(), |matrices| matrices.moment_bytes());
        let factors = matrices.map_or(Bytes::ZERO, |matrices| matrices.factor_bytes());
        Self {
            weight: precision.storage_bytes(),
            gradient: state.gradients.unwrap_or(gradients).storage_bytes(),
            master: Bytes::new(master),
            moments: (moments / Moments::Fp32.bytes()) * state.moments.bytes() + factors,
            extra: optimizer.extra_traffic(),
        }
    }

    /// Master weight and moments.
    pub fn optimizer(&self) -> Bytes {
        self.master + self.moments
    }

    /// Everything.
    pub fn total(&self) -> Bytes {
        self.weight + self.gradient + self.optimizer()
    }

    /// Bytes moved by a fused update: (read, written).
    ///
    /// Reads gradient, master weight and moments, writes master weight, moments and the weight; reads the weight too
    /// where it is a part of the master weight or all there is.
    pub fn update_traffic(&self) -> (Bytes, Bytes) {
        let fp32 = Bytes::new(4.0);
        let weight = if self.master == fp32 { Bytes::ZERO } else { self.weight };
        let read = self.gradient + weight + self.master + self.moments + self.extra;
        (read, self.weight + self.master + self.moments)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optimizer::optimizer;

    #[test]
    fn bytes_of_a_parameter() {
        let check = |gradients, moments, master_weights, bytes: [f64; 4], traffic: (f64, f64)| {
            let state = StatePrecision { gradients: Some(gradients), moments, master_weights };
            let adam = optimizer("adam").unwrap();
            let found = StateBytes::new(adam, Rule::Elements, Precision::Bf16, Precision::Fp32, &state);
            let parts = [found.weight, found.gradient, found.master, found.moments];
            assert_eq!(parts, bytes.map(Bytes::new), "{state:?}");
            let (read, written) = found.update_traffic();
            assert_eq!((read.get(), written.get()), traffic, "{state:?}");
        };
        let scales = 2.0 * 4.0 / 2048.0;
        // Read gradient, master and moments; write master, moments and the 16-bit weight.
        check(Precision::Bf16, Moments::Fp32, MasterWeights::Fp32, [2.0, 2.0, 4.0, 8.0], (14.0, 14.0));
        check(Precision::Fp32, Moments::Fp32, MasterWeights::Fp32, [2.0, 4.0, 4.0, 8.0], (16.0, 14.0));
        // Weight and remainder are read and written.
        check(Precision::Bf16, Moments::Bf16, MasterWeights::Remainder, [2.0, 2.0, 2.0, 4.0], (10.0, 8.0));
        let int8 = [2.0, 2.0, 0.0, 2.0 + scales];
        check(Precision::Bf16, Moments::Int8, MasterWeights::None, int8, (6.0 + scales, 4.0 + scales));
    }
}
