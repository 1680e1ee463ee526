//! Attention in one kernel that never stores the scores.

use super::multiprocessor_peak;
use super::streaming;
use trainwright_spec::cluster::Gpu;
use trainwright_spec::model::Mask;
use trainwright_spec::program::{Access, Direction, FusedAttention};
use trainwright_spec::units::{Bytes, Flops, Seconds};

/// Queries that one multiprocessor works on at a time, where its GPU does not say otherwise (FlashAttention-2 and -3: 128
/// for most head widths).
const BLOCK: usize = 128;

/// Width of a head and of a value head, together, at which the achieved fractions hold.
const REFERENCE_WIDTHS: f64 = 256.0;

/// Time of the exponential of one score on one multiprocessor: 16 per clock at 1.65 GHz.
///
/// Source: CUDA C++ Programming Guide, throughput of native arithmetic instructions; clock between those of V100
/// and H200. That it is the same on every generation, while the matrix units grew, makes narrow heads slow on the
/// newer ones.
const EXPONENTIAL: Seconds = Seconds::new(38e-12);

/// Time to start and end a block for each element of its rows, forward: queries in, outputs out.
///
/// Least mean error over FlashAttention-2 on A100, FlashAttention-3 on H100 and Transformer Engine on A100 and B200,
/// out of 70, 90 and 110 ps; one value for all.
const START_UP_FORWARD: Seconds = Seconds::new(90e-12);

/// The same for backward, which also adds up gradients in memory.
///
/// Between the best two of 250, 350, 450 and 550 ps, whose mean errors are 6.8 % and 6.7 %.
const START_UP_BACKWARD: Seconds = Seconds::new(500e-12);

/// Time of one call, without the launch gap; infinite if the precision is not supported.
///
/// T = max(T_blocks, n / (φ_m β))
/// T_blocks, all blocks alike = ⌈N / P⌉ (K τ + σ)
/// T_blocks, masked           = max(N / P (K̄ τ + σ) + ½ min(1, N / P) (K τ + σ), K τ + σ)
/// τ = B u / (φ R) · max(1, (1 + x R / u) / (1 + x R / u₀))
///
/// N = b a ⌈q / B⌉ blocks of B queries, P multiprocessors, K the most keys that a block sees, K̄ the mean; u flops per
/// score, 2 (d + d_v) forward, 2.5 times that backward, u₀ the same of heads 128 wide; R peak of a multiprocessor, φ the
/// part of it that long sequences of such heads reach; x time of an exponential, which the matrix units do not hide;
/// σ = B (d + d_v) times a constant, to start and end a block. n bytes: all inputs read and all results written once.
/// The masked form is list scheduling of unequal blocks: on average half a block is left over at the end.
/// Assumes an implementation tuned for the GPU and heads no faster when wider than 128.
/// Source of the form: Dao 2023, arXiv 2307.08691, sections 3.2 and 4.1; Shah et al. 2024, arXiv 2407.08608,
/// section 3.2 (exponentials); Graham 1969, SIAM J. Appl. Math. 17(2), 416–429 (list scheduling).
pub(super) fn time(attention: &FusedAttention, gpu: &Gpu) -> Seconds {
    let Some(peak) = multiprocessor_peak(gpu, attention.precision) else {
        return Seconds::new(f64::INFINITY);
    };
    let of_version = gpu.achieved.attention.get(&attention.version);
    let (reached, start_up) = match attention.direction {
        Direction::Forward => (
            of_version.map_or(&gpu.achieved.attention_forward, |reached| &reached.forward).value,
            START_UP_FORWARD,
        ),
        Direction::Backward => (
            of_version.map_or(&gpu.achieved.attention_backward, |reached| &reached.backward).value,
            START_UP_BACKWARD,
        ),
    };
    let widths = (attention.head_dim + attention.value_head_dim) as f64;
    let slowdown = |widths: f64| 1.0 + EXPONENTIAL / (flops_per_score(attention.direction, widths) / peak);
    let narrow_heads = (slowdown(widths) / slowdown(REFERENCE_WIDTHS)).max(1.0);
    let score = flops_per_score(attention.direction, widths) / (peak * reached) * narrow_heads;
    let block = block_queries(attention.direction, gpu);
    let key = block as f64 * score;
    let edges = block as f64 * widths * start_up;

    let blocks = (attention.batch * attention.heads * attention.queries.div_ceil(block)) as f64;
    let (mean_keys, most_keys) = keys_of_block(attention, block);
    let longest = most_keys * key + edges;
    let waves = blocks / gpu.multiprocessors.value as f64;
    let all_blocks = match attention.mask {
        Mask::Full => waves.ceil() * longest,
        Mask::Causal | Mask::Window(_) => {
            let shared_out = waves * (mean_keys * key + edges);
            (shared_out + 0.5 * waves.min(1.0) * longest).max(longest)
        }
    };
    all_blocks.max(streaming::time(Access::Elementwise, traffic(attention), gpu))
}

/// Flops of one score when head and value head are `widths` wide together.
fn flops_per_score(direction: Direction, widths: f64) -> Flops {
    Flops::new(match direction {
        Direction::Forward => 2.0 * widths,
        Direction::Backward => 2.5 * 2.0 * widths,
    })
}

/// Queries of a block.
fn block_queries(direction: Direction, gpu: &Gpu) -> usize {
    match (direction, &gpu.achieved.attention_queries) {
        (Direction::Forward, Some(queries)) => queries.value.max(1),
        _ => BLOCK,
    }
}

/// Keys that a block of queries computes scores of: mean over the blocks, and the most.
///
/// A block on the edge of the mask computes its whole square there, half a block more than is visible.
fn keys_of_block(attention: &FusedAttention, block: usize) -> (f64, f64) {
    let keys = attention.keys as f64;
    let visible =
        attention.mask.visible_pairs(attention.queries, attention.keys) / attention.queries.max(1) as f64;
    match attention.mask {
        Mask::Full => (keys, keys),
        Mask::Causal => ((visible + 0.5 * block as f64).min(keys), keys),
        Mask::Window(window) => {
            let edge = block as f64;
            ((visible + edge).min(keys), (window as f64 + edge).min(keys))
        }
    }
}

/// Bytes of the inputs and results: Q, K, V and O forward; these, their gradients backward.
fn traffic(attention: &FusedAttention) -> Bytes {
    let widths = (attention.head_dim + attention.value_head_dim) as f64;
    let rows = (attention.heads * attention.queries + attention.kv_heads * attention.keys) as f64;
    let tensors = attention.batch as f64 * rows * widths * attention.precision.storage_bytes();
    match attention.direction {
        Direction::Forward => tensors,
        Direction::Backward => 2.0 * tensors,
    }
}
