//! Number formats, their sizes, and the quantisation that a matrix product in each of them needs.
//!
//! Below 16 bits only products are in the format: their operands are quantised before them, everything else stays in
//! the format's `base`. Attention, embedding, router and head stay there too, and the blocks that the stack names.

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
    /// 8-bit floats with one scale for a tensor, from the largest values of earlier steps (delayed scaling).
    Fp8,
    /// 8-bit floats with an fp32 scale for 128 values (DeepSeek-V3).
    #[serde(rename = "fp8-block")]
    Fp8Block,
    /// 8-bit floats with an 8-bit exponent for 32 values (OCP microscaling).
    MxFp8,
    /// 4-bit floats with an 8-bit scale for 16 values and one for the tensor.
    NvFp4,
    /// 8-bit integers in forward products, backward in fp16 (LightSeq's quantised training).
    Int8,
}

impl Precision {
    /// Every format, in the order of `show`.
    pub const ALL: [Precision; 9] = [
        Precision::Fp32,
        Precision::Tf32,
        Precision::Fp16,
        Precision::Bf16,
        Precision::Fp8,
        Precision::Fp8Block,
        Precision::MxFp8,
        Precision::NvFp4,
        Precision::Int8,
    ];

    /// The format of everything that is no product in this one: weights, activations, attention, the head.
    pub fn base(self) -> Precision {
        match self {
            Precision::Fp8 | Precision::Fp8Block | Precision::MxFp8 | Precision::NvFp4 => Precision::Bf16,
            Precision::Int8 => Precision::Fp16,
            format => format,
        }
    }

    /// The format of backward's products.
    pub fn of_backward(self) -> Precision {
        match self {
            Precision::Int8 => Precision::Fp16,
            format => format,
        }
    }

    /// Bytes of one stored activation or weight.
    pub fn storage_bytes(self) -> Bytes {
        match self.base() {
            Precision::Fp32 | Precision::Tf32 => Bytes::new(4.0),
            _ => Bytes::new(2.0),
        }
    }

    /// Bytes of one operand element as a matrix product reads it, with its part of the block's scale.
    ///
    /// fp8-block 1 + 4/128, mxfp8 1 + 1/32, nvfp4 1/2 + 1/16. A scale of the tensor is not counted, nor that
    /// fp8-block has one for 128 × 128 weights.
    ///
    /// Source: DeepSeek-AI 2024, arXiv 2412.19437, section 3.3.2; OCP Microscaling Formats (MX) specification 1.0, 2023,
    /// section 5; NVIDIA 2025, arXiv 2509.25149, section 2.
    pub fn operand_bytes(self) -> Bytes {
        Bytes::new(match self {
            Precision::Fp8 | Precision::Int8 => 1.0,
            Precision::Fp8Block => 1.0 + 4.0 / 128.0,
            Precision::MxFp8 => 1.0 + 1.0 / 32.0,
            Precision::NvFp4 => 0.5 + 1.0 / 16.0,
            wide => return wide.storage_bytes(),
        })
    }

    /// How the operands of products in this format are made; `None` if they are used as they are stored.
    pub fn quantisation(self) -> Option<Quantisation> {
        match self {
            Precision::Fp32 | Precision::Tf32 | Precision::Fp16 | Precision::Bf16 => None,
            Precision::Fp8 | Precision::Fp8Block | Precision::MxFp8 => {
                Some(Quantisation { maximum_first: false, copies: 2 })
            }
            Precision::NvFp4 => Some(Quantisation { maximum_first: true, copies: 2 }),
            Precision::Int8 => Some(Quantisation { maximum_first: false, copies: 1 }),
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
            Precision::Fp8Block => "fp8-block",
            Precision::MxFp8 => "mxfp8",
            Precision::NvFp4 => "nvfp4",
            Precision::Int8 => "int8",
        }
    }
}

/// How a tensor becomes an operand.
///
/// One kernel reads it and writes a copy for each dim that a product sums along: an activation is summed along its
/// columns forward and along its tokens for the weight's gradient, and Hopper's 8-bit products read only rows, while the
/// scales of blocks hold along one dim alone. Delayed scaling (fp8), blocks in one kernel's reach (fp8-block, mxfp8)
/// and learned ranges (int8) know the scale beforehand or in passing.
///
/// Source: Transformer Engine 2.x documentation, "Using FP8 and FP4" and the recipes DelayedScaling,
/// Float8BlockScaling, MXFP8BlockScaling, NVFP4BlockScaling; LightSeq 3.0, csrc/kernels quantize functions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quantisation {
    /// Whether a pass over the tensor finds its largest value before.
    pub maximum_first: bool,
    /// Copies that are written.
    pub copies: usize,
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.pad(self.name())
    }
}
