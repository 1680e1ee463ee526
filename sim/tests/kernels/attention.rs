//! Attention: fused, by generation, and in several kernels with the scores in memory.

use super::{Measured, read};
use serde::Deserialize;
use trainwright_spec::model::Mask;
use trainwright_spec::precision::Precision;
use trainwright_spec::program::{Access, Direction, FlashVersion, FusedAttention, Kernel};
use trainwright_spec::units::{Bytes, Seconds};

#[derive(Deserialize)]
struct Row {
    family: String,
    gpu: String,
    precision: Precision,
    passes: String,
    batch: usize,
    heads: usize,
    kv_heads: usize,
    tokens: usize,
    head_dim: usize,
    value_head_dim: usize,
    mask: Mask,
    time_us: f64,
    source: String,
    version: String,
}

pub fn rows() -> impl Iterator<Item = Measured> {
    read::<Row>(include_str!("../data/attention.csv")).map(|row| {
        let kernels = match row.version.as_str() {
            "unfused" => row.unfused(),
            "flash-1" => row.fused(FlashVersion::First),
            "best" => row.fused(FlashVersion::Best),
            other => panic!("unknown version {other}"),
        };
        let time = Seconds::new(row.time_us * 1e-6);
        Measured::of_kernels(row.gpu, row.family, row.source, time, &kernels)
    })
}

impl Row {
    fn fused(&self, version: FlashVersion) -> Vec<Kernel> {
        let pass = |direction| {
            Kernel::FusedAttention(FusedAttention {
                direction,
                batch: self.batch,
                heads: self.heads,
                kv_heads: self.kv_heads,
                queries: self.tokens,
                keys: self.tokens,
                head_dim: self.head_dim,
                value_head_dim: self.value_head_dim,
                mask: self.mask,
                precision: self.precision,
                version,
            })
        };
        let directions = [("fwd", Direction::Forward), ("bwd", Direction::Backward)];
        let wanted = directions.into_iter().filter(|(name, _)| self.passes.contains(name));
        wanted.map(|(_, direction)| pass(direction)).collect()
    }

    /// Forward: scores, mask, softmax, values. Backward: both products' gradients, softmax's. A softmax goes over its rows
    /// twice.
    fn unfused(&self) -> Vec<Kernel> {
        let (tokens, d, precision) = (self.tokens, self.head_dim, self.precision);
        let count = self.batch * self.heads;
        let scores = precision.storage_bytes() * (count * tokens * tokens) as f64;
        let gemm = |m, n, k| Kernel::Gemm { count, m, n, k, precision, adds_to: None };
        let pass = |access, read: f64| Kernel::Streaming { access, read: read * scores, written: scores };
        let mut kernels = vec![
            gemm(tokens, tokens, d),
            pass(Access::Reduction, 2.0),
            gemm(tokens, d, tokens),
            gemm(tokens, tokens, d),
            gemm(tokens, d, tokens),
            pass(Access::Reduction, 4.0),
            gemm(tokens, d, tokens),
            gemm(tokens, d, tokens),
        ];
        if self.mask != Mask::Full {
            kernels.push(pass(Access::Elementwise, 1.0));
        }
        assert_eq!((self.passes.as_str(), Bytes::ZERO < scores), ("fwd+bwd", true));
        kernels
    }
}
