//! Number formats and what they weigh.

use crate::units::Bytes;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A number format of weights, activations or matrix products.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// IEEE single precision.
    Fp32,
    /// Single precision storage, matrix products on tensor cores with 10-bit mantissas.
    Tf32,
    /// IEEE half precision.
    Fp16,
    /// Brain float: 8 exponent bits, 7 mantissa bits.
    Bf16,
    /// 8-bit floats in matrix products; everything else stays in bf16.
    Fp8,
}

impl Precision {
    /// Every format, in the order of `show`.
    pub const ALL: [Precision; 5] =
        [Precision::Fp32, Precision::Tf32, Precision::Fp16, Precision::Bf16, Precision::Fp8];

    /// Bytes of one stored activation or weight: fp8 training keeps them in bf16.
    pub fn storage_bytes(self) -> Bytes {
        match self {
            Precision::Fp32 | Precision::Tf32 => Bytes::new(4.0),
            Precision::Fp16 | Precision::Bf16 | Precision::Fp8 => Bytes::new(2.0),
        }
    }

    /// Bytes of one operand element as a matrix product reads it.
    pub fn operand_bytes(self) -> Bytes {
        match self {
            Precision::Fp8 => Bytes::new(1.0),
            other => other.storage_bytes(),
        }
    }

    /// Whether the optimizer keeps a separate fp32 master copy of the weights.
    pub fn needs_master_weights(self) -> bool {
        self.storage_bytes() < Bytes::new(4.0)
    }

    /// The name used in files and arguments.
    pub fn name(self) -> &'static str {
        match self {
            Precision::Fp32 => "fp32",
            Precision::Tf32 => "tf32",
            Precision::Fp16 => "fp16",
            Precision::Bf16 => "bf16",
            Precision::Fp8 => "fp8",
        }
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.pad(self.name())
    }
}
