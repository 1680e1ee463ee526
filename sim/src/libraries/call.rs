//! What is asked: a call of a kernel with its shapes, and the figures of the GPU that it runs on.

use super::{Convolution, SparseAttention, StateDecode, StatePrefill};
use std::fmt;
use trainwright_spec::cluster::{Cluster, Generation, Gpu};
use trainwright_spec::library;
use trainwright_spec::precision::Precision;
use trainwright_spec::units::{Bytes, BytesPerSecond, FlopsPerSecond};

/// A kernel call of an inference engine on one GPU.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Call {
    /// A matrix product.
    Product(Product),
    /// Attention of one new token of each sequence over its history.
    Decode(Decode),
    /// Attention of prompts.
    Prefill(Prefill),
    /// Latent attention of one new token of each sequence.
    Latent(Latent),
    /// The grouped products of a mixture of experts.
    Experts(Experts),
    /// A sum over the GPUs of a node in one kernel of the library's own.
    AllReduce(AllReduce),
    /// Tokens to their experts on the GPUs of a node, or back.
    Exchange(Exchange),
    /// Prompts through the states of linear attention or Mamba-2.
    StatePrefill(StatePrefill),
    /// One new token of each sequence through its states.
    StateDecode(StateDecode),
    /// The convolution before the states.
    Convolution(Convolution),
    /// Sparse latent attention with its projections.
    Sparse(SparseAttention),
}

/// (m × k) · (k × n): activations times weights.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Product {
    /// Rows of the activations: tokens.
    pub m: usize,
    /// Columns of the weights.
    pub n: usize,
    /// The dim summed over.
    pub k: usize,
    /// Number formats.
    pub operands: Operands,
}

/// Attention of `batch` sequences, one query token each.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Decode {
    /// Sequences.
    pub batch: usize,
    /// Query heads on this GPU.
    pub heads: usize,
    /// Key and value heads on this GPU.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Tokens in the cache of each sequence.
    pub history: usize,
    /// The last tokens that a query sees; `None`: all.
    pub window: Option<usize>,
    /// Format of keys and values in the cache.
    pub cache: Operands,
}

/// Causal attention of `queries` new tokens of each of `batch` sequences.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prefill {
    /// Sequences.
    pub batch: usize,
    /// Query heads on this GPU.
    pub heads: usize,
    /// Key and value heads on this GPU.
    pub kv_heads: usize,
    /// Width of a query or key head.
    pub head_dim: usize,
    /// Width of a value head.
    pub value_head_dim: usize,
    /// New tokens of each sequence.
    pub queries: usize,
    /// Tokens of each sequence that are in the cache already.
    pub history: usize,
    /// The last tokens that a query sees; `None`: all.
    pub window: Option<usize>,
    /// Format of the matrix units.
    pub math: Precision,
    /// Format of keys and values in the cache.
    pub cache: Operands,
}

/// Latent attention of `batch` sequences, one query token each.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Latent {
    /// Sequences.
    pub batch: usize,
    /// Heads on this GPU.
    pub heads: usize,
    /// Tokens in the cache of each sequence.
    pub history: usize,
    /// Format of the cache.
    pub cache: Operands,
}

/// Grouped products of the experts of one layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Experts {
    /// Tokens of all GPUs that the experts are distributed over.
    pub tokens: usize,
    /// Width of a token.
    pub hidden: usize,
    /// Inner width of an expert.
    pub inner: usize,
    /// Experts of the layer.
    pub experts: usize,
    /// Experts that a token goes to.
    pub chosen: usize,
    /// GPUs that share each expert.
    pub tensor_parallel: usize,
    /// GPUs that the experts are distributed over.
    pub expert_parallel: usize,
    /// Whether an expert has a gate, so three matrices and not two.
    pub gated: bool,
    /// Whether some experts get more tokens than others.
    pub skewed: bool,
    /// Whether an exchange brought this GPU only the tokens of its experts; else it has all tokens in its input.
    pub exchanged: bool,
    /// Number formats.
    pub operands: Operands,
}

/// A sum of `message` on each of `gpus` GPUs that share a switch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AllReduce {
    /// GPUs.
    pub gpus: usize,
    /// Bytes on each of them.
    pub message: Bytes,
}

/// Tokens of each of `gpus` GPUs, to the GPUs of their experts or back.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Exchange {
    /// GPUs that share the experts.
    pub gpus: usize,
    /// Tokens on each of them.
    pub tokens: usize,
    /// Width of a token.
    pub hidden: usize,
    /// Experts that a token goes to.
    pub chosen: usize,
    /// Format of what is sent.
    pub element: Operands,
}

/// Number formats of a product: what memory holds, and what the matrix units work in.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Operands {
    /// As tables spell it.
    pub name: &'static str,
    /// Bytes of an activation, with its part of the scales.
    pub activation: Bytes,
    /// Bytes of a weight or a cached element, with its part of the scales.
    pub weight: Bytes,
    /// Format of the matrix units.
    pub units: Precision,
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let window =
            |window: Option<usize>| window.map(|window| format!(", window {window}")).unwrap_or_default();
        match self {
            Call::Product(Product { m, n, k, operands }) => write!(f, "m={m} n={n} k={k} {}", operands.name),
            Call::Decode(call) => write!(
                f,
                "{} sequences, {} heads, {} kv heads, width {}, history {}{}, {}",
                call.batch,
                call.heads,
                call.kv_heads,
                call.head_dim,
                call.history,
                window(call.window),
                call.cache.name
            ),
            Call::Prefill(call) => write!(
                f,
                "{} sequences, {} heads, {} kv heads, width {}, {} tokens, history {}{}, {}",
                call.batch,
                call.heads,
                call.kv_heads,
                call.head_dim,
                call.queries,
                call.history,
                window(call.window),
                self.format()
            ),
            Call::Latent(Latent { batch, heads, history, cache }) => {
                write!(f, "{batch} sequences, {heads} heads, history {history}, {}", cache.name)
            }
            Call::Experts(call) => write!(
                f,
                "{} tokens, {} of {} experts {} x {}, tp {}, ep {}, {}",
                call.tokens,
                call.chosen,
                call.experts,
                call.hidden,
                call.inner,
                call.tensor_parallel,
                call.expert_parallel,
                call.operands.name
            ),
            Call::StatePrefill(call) => call.fmt(f),
            Call::StateDecode(call) => call.fmt(f),
            Call::Convolution(call) => call.fmt(f),
            Call::Sparse(call) => call.fmt(f),
            Call::AllReduce(AllReduce { gpus, message }) => write!(f, "{gpus} GPUs, {} bytes", message.get()),
            Call::Exchange(call) => write!(
                f,
                "{} GPUs, {} tokens of width {}, {} experts each, {}",
                call.gpus, call.tokens, call.hidden, call.chosen, call.element.name
            ),
        }
    }
}

impl Operands {
    /// Every format: name, bytes of an activation, bytes of a weight, format of the matrix units.
    const ALL: [(&'static str, f64, f64, Precision); 9] = [
        ("bfloat16", 2.0, 2.0, Precision::Bf16),
        ("fp8", 1.0, 1.0, Precision::Fp8),
        ("fp8_block", 1.0 + 4.0 / 128.0, 1.0 + 4.0 / 16384.0, Precision::Fp8),
        ("nvfp4", 0.5 + 1.0 / 16.0, 0.5 + 1.0 / 16.0, Precision::NvFp4),
        ("int8_wo", 2.0, 1.0, Precision::Bf16),
        ("int4_wo", 2.0, 0.5 + 2.0 / 128.0, Precision::Bf16),
        ("sq", 1.0, 1.0, Precision::Int8),
        ("w4a16_mxfp4", 2.0, 0.5 + 1.0 / 32.0, Precision::Bf16),
        ("w4a8_mxfp4_mxfp8", 1.0 + 1.0 / 32.0, 0.5 + 1.0 / 32.0, Precision::Fp8),
    ];

    /// The names that `parse` knows.
    pub fn names() -> impl Iterator<Item = &'static str> {
        Self::ALL.iter().map(|format| format.0)
    }

    /// The format of that name; `None` if there is none. `bf16`, `fp16` and `float16` are `bfloat16`.
    pub fn parse(name: &str) -> Option<Self> {
        let name = match name {
            "bf16" | "fp16" | "float16" | "half" => "bfloat16",
            "fp8-block" => "fp8_block",
            name => name,
        };
        let (name, activation, weight, units) = *Self::ALL.iter().find(|format| format.0 == name)?;
        Some(Self { name, activation: Bytes::new(activation), weight: Bytes::new(weight), units })
    }
}

/// Published figures of a GPU, and of its links if it has peers.
#[derive(Debug, Clone, Copy)]
pub struct Chip<'a> {
    /// The GPU.
    pub gpu: &'a Gpu,
    /// Bandwidth of its links to the GPUs of its node, in one direction; `None` if it has no peers.
    pub link: Option<BytesPerSecond>,
    /// Its second-level cache.
    pub cache: Bytes,
}

impl<'a> Chip<'a> {
    /// A GPU without peers.
    pub fn new(gpu: &'a Gpu) -> Self {
        Self { gpu, link: None, cache: library::cache(&gpu.name).unwrap_or(Bytes::ZERO) }
    }

    /// A GPU of a node of the cluster.
    pub fn of(cluster: &'a Cluster) -> Self {
        let link = Some(cluster.node.interconnect.bandwidth.value);
        Self { link, ..Self::new(&cluster.node.gpu) }
    }

    /// Its generation.
    pub fn generation(&self) -> Generation {
        self.gpu.generation
    }

    /// Published rate of the matrix units; `None` if they do not support the format. Where only 16 bits are listed, 8-bit
    /// integers take half of the time: so they do since Ampere.
    pub fn peak(&self, precision: Precision) -> Option<FlopsPerSecond> {
        let peak = |precision| self.gpu.peak.get(&precision).map(|peak| peak.value);
        match precision {
            Precision::Int8 => peak(Precision::Int8).or_else(|| Some(peak(Precision::Bf16)? * 2.0)),
            precision => peak(precision),
        }
    }

    /// Streaming multiprocessors.
    pub(super) fn multiprocessors(&self) -> f64 {
        self.gpu.multiprocessors.value as f64
    }

    /// Time to move `bytes` of a working set of that size through memory, in seconds: at the part `reached` of the bandwidth,
    /// and `gain` times as fast while the set is in the cache.
    ///
    /// T = n / (φ β g(n)), g = γ for n ≤ C and 1 + (γ − 1) (C / n)² beyond
    ///
    /// n bytes, β published bandwidth, φ `reached`, C the cache, γ `gain`. Measurements repeat one call, so that a set which
    /// fits in the cache is found there.
    pub(super) fn memory_time(&self, bytes: f64, reached: f64, gain: f64) -> f64 {
        let inside = (self.cache.get() / bytes.max(1.0)).min(1.0).powi(2);
        bytes / (self.gpu.memory_bandwidth.value.get() * reached * (1.0 + (gain - 1.0) * inside))
    }
}
