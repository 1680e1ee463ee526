//! The ops of GPT layers one by one, as Megatron's modules run them in fp16 on V100: what runs next to a product is in
//! its time.
//!
//! With tensor parallelism only ops are here that do not communicate. Ops under a tenth of a millisecond stand apart: they
//! take some 40 µs forward and 90 µs backward however small they are, which is the host's time to call them.

use super::{Measured, read};
use serde::Deserialize;
use trainwright_spec::precision::Precision;
use trainwright_spec::program::{Access, Kernel};
use trainwright_spec::units::{Bytes, Seconds};

#[derive(Deserialize)]
struct Row {
    op: String,
    direction: String,
    hidden: usize,
    heads: usize,
    tokens: usize,
    tensor: usize,
    micro_batch: usize,
    time_us: f64,
}

/// Microseconds under which an op is mostly the host's.
const SHORT: f64 = 100.0;

pub fn rows() -> impl Iterator<Item = Measured> {
    read::<Row>(include_str!("../data/ops.csv")).map(|row| {
        let kernels = row.kernels();
        let ranks = if row.tensor == 1 { "" } else { ", shared" };
        let kernel = match row.time_us < SHORT {
            true => format!("short op {}", row.direction),
            false => format!("op {} {}{ranks}", row.op, row.direction),
        };
        let time = Seconds::new(row.time_us * 1e-6);
        let source = "github:microsoft/SuperScaler@53d003681662".into();
        Measured::of_kernels("v100-32gb-sxm2".into(), kernel, source, time, &kernels)
    })
}

impl Row {
    /// What the op's module runs: projections of t tokens with their bias, attention with its scores in memory and a
    /// softmax that reads only what the causal mask lets through, bias, dropout and addition as a kernel each. The bias of the
    /// first feed-forward product is the activation's.
    fn kernels(&self) -> Vec<Kernel> {
        let forward = self.direction == "forward";
        let precision = Precision::Fp16;
        let (rows, h) = (self.micro_batch * self.tokens, self.hidden);
        let (heads, d, s) = (self.micro_batch * self.heads / self.tensor, h / self.heads, self.tokens);
        let bytes = |elements: usize| precision.storage_bytes() * elements as f64;
        let linear = |inner: usize, outer: usize| {
            let gemm = |m, n, k| Kernel::Gemm { count: 1, m, n, k, precision, adds_to: None };
            match forward {
                true => vec![gemm(rows, outer, inner)],
                false => vec![gemm(rows, inner, outer), gemm(inner, outer, rows)],
            }
        };
        let heads_product = |m, n, k| Kernel::Gemm { count: heads, m, n, k, precision, adds_to: None };
        let pass = |access, read: Bytes, written: Bytes| Kernel::Streaming { access, read, written };
        let elementwise = |read, written| pass(Access::Elementwise, read, written);
        let reduction = |read, written| pass(Access::Reduction, read, written);
        let (scores, mask) = (bytes(heads * s * s), Bytes::new((heads * s * s) as f64));
        let (hidden, hidden_mask) = (bytes(rows * h), Bytes::new((rows * h) as f64));
        let ffn = 4 * h / self.tensor;
        match (self.op.as_str(), forward) {
            ("qkv", _) => {
                let columns = 3 * h / self.tensor;
                let bias = match forward {
                    true => elementwise(bytes(rows * columns), bytes(rows * columns)),
                    false => reduction(bytes(rows * columns), Bytes::ZERO),
                };
                linear(h, columns).into_iter().chain([bias]).collect()
            }
            ("projection", _) => linear(h / self.tensor, h),
            ("fc1", _) => linear(h, ffn),
            ("fc2", _) => linear(ffn, h),
            ("scores", true) => vec![heads_product(s, s, d)],
            ("scores", false) => vec![heads_product(s, d, s); 2],
            ("values", true) => vec![heads_product(s, d, s)],
            ("values", false) => vec![heads_product(s, s, d), heads_product(s, d, s)],
            ("softmax", true) => vec![reduction(0.5 * scores, scores)],
            ("softmax", false) => vec![reduction(scores, scores)],
            ("score dropout", true) => vec![elementwise(scores, scores + mask)],
            ("score dropout", false) => vec![elementwise(scores + mask, scores)],
            ("activation", true) => vec![elementwise(bytes(rows * ffn), bytes(rows * ffn))],
            ("activation", false) => vec![
                elementwise(2.0 * bytes(rows * ffn), bytes(rows * ffn)),
                reduction(bytes(rows * ffn), Bytes::ZERO),
            ],
            ("norm", true) => vec![reduction(hidden, hidden)],
            ("norm", false) => vec![reduction(2.0 * hidden, Bytes::ZERO), reduction(2.0 * hidden, hidden)],
            ("add residual", true) => vec![
                elementwise(hidden, hidden),
                elementwise(hidden, hidden + hidden_mask),
                elementwise(2.0 * hidden, hidden),
            ],
            ("add residual", false) => {
                vec![elementwise(hidden + hidden_mask, hidden), reduction(hidden, Bytes::ZERO)]
            }
            (other, _) => panic!("unknown op {other}"),
        }
    }
}
