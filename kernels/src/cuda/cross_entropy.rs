//! Launches of cross_entropy.cu.

use super::launch::{Address, Launch, Number};

const FILE: &str = "cross_entropy";

/// Cross entropy of logits whose columns are sharded over ranks.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[repr(C)]
pub struct CrossEntropy {
    /// tokens × width; the gradient replaces them.
    pub logits: Address,
    /// u32 per token.
    pub targets: Address,
    /// f32 per token: the largest logit.
    pub maximum: Address,
    /// f32 per token: Σ e^(z − maximum).
    pub sum: Address,
    /// f32 per token: the target's logit, 0 if another rank has it.
    pub target: Address,
    /// Tokens.
    pub tokens: i32,
    /// Length of a row.
    pub width: i32,
    /// The first column's entry.
    pub first: i32,
    /// Columns that are entries; the rest is padding.
    pub valid: i32,
    /// Factor of the gradient.
    pub scale: f32,
}

impl CrossEntropy {
    /// All versions of maximum, sum and target per token, the fastest last.
    pub fn statistics(&self, number: Number) -> Vec<Launch> {
        let end = number.suffix();
        let warps = (self.tokens + 7) / 8;
        let simple = format!("loss_statistics_simple_{end}");
        let mut ladder = vec![Launch::new(FILE, simple, [warps, 1, 1], 256, self)];
        if self.is_packed(number) {
            let packed = format!("loss_statistics_packed_{end}");
            ladder.push(Launch::new(FILE, packed, [self.tokens, 1, 1], 256, self));
        }
        ladder
    }

    /// All versions that replace the logits by their gradients, the fastest last.
    pub fn gradient(&self, number: Number) -> Vec<Launch> {
        let launch = |version: &str| {
            let kernel = format!("loss_gradient_{version}_{}", number.suffix());
            Launch::new(FILE, kernel, [self.tokens, 1, 1], 256, self)
        };
        let packed = self.is_packed(number).then(|| launch("packed"));
        std::iter::once(launch("simple")).chain(packed).collect()
    }

    fn is_packed(&self, number: Number) -> bool {
        self.width % number.pack() == 0
    }
}

/// The largest logits over all ranks' columns, and this rank's sums relative to them.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[repr(C)]
pub struct JoinMaxima {
    /// f32: ranks × tokens.
    pub maxima: Address,
    /// f32 per token: this rank's maximum, replaced by the one of all ranks.
    pub maximum: Address,
    /// f32 per token: this rank's sum.
    pub sum: Address,
    /// Ranks.
    pub ranks: i32,
    /// Tokens.
    pub tokens: i32,
}

impl JoinMaxima {
    /// The launch.
    pub fn launch(&self) -> Launch {
        Launch::new(FILE, "join_maxima", [(self.tokens + 255) / 256, 1, 1], 256, self)
    }
}

/// The sum of the tokens' losses, from maximum, sum and target over all columns.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[repr(C)]
pub struct LossSum {
    /// f32 per token.
    pub maximum: Address,
    /// f32 per token.
    pub sum: Address,
    /// f32 per token.
    pub target: Address,
    /// One f64.
    pub out: Address,
    /// Tokens.
    pub tokens: i32,
}

impl LossSum {
    /// The launch.
    pub fn launch(&self) -> Launch {
        Launch::new(FILE, "loss_sum", [1, 1, 1], 1024, self)
    }
}
