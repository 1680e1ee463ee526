//! Interleaved 1F1B with the halves of backward apart.

use super::interleaved::passes;
use super::one_f_one_b::with_weights_put_off;
use super::{ActionLists, PipelineShape, Schedule};

/// ZB-H1 over several stages per rank: p − r − 1 + (v − 1) p forwards first, each W r passes behind its I.
pub struct InterleavedZb;

impl Schedule for InterleavedZb {
    fn name(&self) -> &str {
        "interleaved-zb"
    }

    fn summary(&self) -> &str {
        "interleaved with W put off by r passes: a third of its bubble; m must divide by p"
    }

    fn bubble(&self) -> &str {
        "(p - 1) (F + I - W) / (m v (F + I + W))"
    }

    fn source(&self) -> &str {
        "torch.distributed.pipelining, ScheduleInterleavedZeroBubble; Qi et al. 2024, arXiv 2401.10241"
    }

    fn check(&self, shape: PipelineShape) -> Result<(), String> {
        super::interleaved::check(self.name(), shape)
    }

    fn lists(&self, shape: PipelineShape) -> ActionLists {
        let PipelineShape { ranks: p, virtual_stages: v, microbatches: m } = shape;
        let of_rank = |rank| {
            let warm_up = p - rank - 1 + (v - 1) * p;
            with_weights_put_off(m * v, warm_up, rank, passes(rank, shape, &vec![p; m / p]))
        };
        (0..p).map(of_rank).collect()
    }

    /// (p − 1) (F + I − W) / (m v (F + I + W)) for F = I = W: (p − 1) / (3 m v).
    fn bubble_over_work(&self, shape: PipelineShape) -> f64 {
        (shape.ranks as f64 - 1.0) / (3.0 * (shape.microbatches * shape.virtual_stages) as f64)
    }
}
