//! Kernel calls with their shapes, and their FLOPs. What a call takes on a device is a matter of the simulator.

use crate::model::Mask;
use crate::precision::Precision;
use crate::units::{Bytes, Flops};
use serde::{Deserialize, Serialize};

/// A kernel call with its shapes, as one rank runs it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Kernel {
    /// `count` independent products: (m × k) · (k × n) → (m × n).
    Gemm {
        /// How many in one call.
        count: usize,
        /// Rows of the result.
        m: usize,
        /// Columns of the result.
        n: usize,
        /// The dim summed over.
        k: usize,
        /// Precision of the operands.
        precision: Precision,
        /// Size of an element of the result if the product adds to it, so that it is read too; `None` if it is written, in the
        /// precision that activations of `precision` are stored in.
        adds_to: Option<Bytes>,
    },
    /// Attention in one kernel that never stores the scores (FlashAttention).
    FusedAttention(FusedAttention),
    /// Anything bound by memory: reads, computes little, writes.
    Streaming {
        /// How it goes through memory.
        access: Access,
        /// Bytes read.
        read: Bytes,
        /// Bytes written.
        written: Bytes,
    },
}

/// The shapes of one call of a FlashAttention kernel.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FusedAttention {
    /// Forward, or the whole backward.
    pub direction: Direction,
    /// Sequences.
    pub batch: usize,
    /// Query heads on this rank.
    pub heads: usize,
    /// Key and value heads on this rank.
    pub kv_heads: usize,
    /// Queries per sequence.
    pub queries: usize,
    /// Keys per sequence.
    pub keys: usize,
    /// Width of a query or key head.
    pub head_dim: usize,
    /// Width of a value head.
    pub value_head_dim: usize,
    /// Which keys a query sees.
    pub mask: Mask,
    /// Precision of the operands.
    pub precision: Precision,
    /// Which generation of the kernel.
    pub version: FlashVersion,
}

/// A generation of FlashAttention.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum FlashVersion {
    /// The best that there is for the GPU.
    #[serde(rename = "best")]
    Best,
    /// Dao et al. 2022, arXiv 2205.14135.
    #[serde(rename = "flash-1")]
    First,
    /// Dao 2023, arXiv 2307.08691.
    #[serde(rename = "flash-2")]
    Second,
    /// Shah et al. 2024, arXiv 2407.08608.
    #[serde(rename = "flash-3")]
    Third,
}

impl FlashVersion {
    /// The name in files.
    pub fn name(self) -> &'static str {
        match self {
            FlashVersion::Best => "best",
            FlashVersion::First => "flash-1",
            FlashVersion::Second => "flash-2",
            FlashVersion::Third => "flash-3",
        }
    }
}

/// How a memory-bound kernel goes through memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Access {
    /// Element by element: copies, activations, dropout, additions, optimizers.
    Elementwise,
    /// With sums along a dim: norms, softmax, gradients of biases.
    Reduction,
}

/// Forward or backward of one kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// The result.
    Forward,
    /// All input gradients.
    Backward,
}

impl Kernel {
    /// Floating-point operations on the matrix units; masked-out attention scores are not counted.
    ///
    /// GEMM: 2 m n k. Attention forward: 2 · visible · (d + d_v) per head; backward 2.5 times that, since it forms
    /// the scores again (five products for two; Dao 2023, arXiv 2307.08691, section 4.1).
    pub fn flops(&self) -> Flops {
        match *self {
            Kernel::Gemm { count, m, n, k, .. } => {
                Flops::new(2.0 * count as f64 * m as f64 * n as f64 * k as f64)
            }
            Kernel::FusedAttention(call) => {
                let pairs =
                    call.batch as f64 * call.heads as f64 * call.mask.visible_pairs(call.queries, call.keys);
                let forward = 2.0 * pairs * (call.head_dim + call.value_head_dim) as f64;
                Flops::new(match call.direction {
                    Direction::Forward => forward,
                    Direction::Backward => 2.5 * forward,
                })
            }
            Kernel::Streaming { .. } => Flops::ZERO,
        }
    }
}

impl Mask {
    /// How many (query, key) pairs it lets through, for one head of one sequence.
    ///
    /// Causal counts half of the square, as published causal FLOP counts do.
    pub fn visible_pairs(self, queries: usize, keys: usize) -> f64 {
        let (q, k) = (queries as f64, keys as f64);
        match self {
            Mask::Full => q * k,
            Mask::Causal => q * k / 2.0,
            Mask::Window(window) => {
                let w = (window as f64).min(k);
                w * k / 2.0 * (q / k) + (k - w) * w / 2.0 * (q / k)
            }
        }
    }
}
