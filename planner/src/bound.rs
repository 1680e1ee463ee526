//! Lower bounds: what no partition of a candidate can beat.

use crate::candidate::Candidate;
use crate::layers::ModelCost;
use crate::verdict::Question;
use trainwright_sim::costs::Costs;
use trainwright_spec::memory::{fixed_overhead, state_per_parameter};
use trainwright_spec::optimizer::update_traffic;
use trainwright_spec::plan::DataSharding;
use trainwright_spec::program::{Access, Kernel};
use trainwright_spec::units::{Bytes, Seconds};

/// A time that no step of `candidate` is below, whatever its partition and recomputation.
pub(crate) fn step_bound(
    question: &Question,
    candidate: &Candidate,
    cost: &ModelCost,
    costs: &impl Costs,
) -> Seconds {
    let shape = candidate.shape(question.job.global_batch);
    pipeline_bound(cost.least_time(question), shape.ranks, shape.virtual_stages, shape.microbatches)
        + update_bound(question, candidate, cost, costs)
}

/// The least time of a pipeline in which one microbatch takes `work` over all ranks.
///
/// v = 1: T = W / (1 − (1 − 1/m)^p);  v > 1: T = m W / p
///
/// W work of a microbatch, p ranks, m microbatches. With one stage per rank, rank r cannot begin before the ranks
/// before it have each run their first forward, nor can the step end before they have each run a last backward after
/// its own: T ≥ m t_r + Σ_{q<r} t_q for every r. The least T over all t with Σ t = W makes every one of these an
/// equality, so that the rest W_r left after r ranks shrinks by (1 − 1/m) each: hence the formula. With several
/// stages per rank only the busiest rank's work is counted.
fn pipeline_bound(work: Seconds, ranks: usize, virtual_stages: usize, microbatches: usize) -> Seconds {
    let (p, m) = (ranks as f64, microbatches as f64);
    match virtual_stages {
        1 => work / (1.0 - (1.0 - 1.0 / m).powf(p)),
        _ => work * (m / p),
    }
}

/// The least time of the optimizer's update after the last backward.
///
/// With gradient clipping all pipeline ranks wait for each other before it, so that the one with the most parameters
/// adds its whole update, and it has at least the mean. Without, a rank may update while others still run.
fn update_bound(question: &Question, candidate: &Candidate, cost: &ModelCost, costs: &impl Costs) -> Seconds {
    if !question.job.gradient_clipping && candidate.mesh.pipeline > 1 {
        return Seconds::ZERO;
    }
    let shards = match candidate.data_sharding {
        DataSharding::Zero1 => candidate.mesh.data as f64,
        DataSharding::None => 1.0,
    };
    let updated = cost.parameters(question) / candidate.mesh.pipeline as f64 / shards;
    let precision = question.job.precision;
    let gradient = question.stack.gradient_precision(precision).storage_bytes();
    let (read, written) = update_traffic(question.job.optimizer(), precision, gradient);
    costs.kernel(&Kernel::Streaming {
        access: Access::Elementwise,
        read: read * updated,
        written: written * updated,
    })
}

/// The memory that some rank of `candidate` needs at least: weights, gradients and optimizer state of its share of
/// the model, libraries and communicators. Activations come on top.
pub(crate) fn memory_bound(question: &Question, candidate: &Candidate, cost: &ModelCost) -> Bytes {
    let plan = candidate.plan(question, Vec::new());
    let (weights, gradients, optimizer) = state_per_parameter(&plan);
    let share = cost.parameters(question) / candidate.mesh.pipeline as f64;
    (weights + gradients + optimizer) * share + fixed_overhead(&plan)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pipeline_bound_is_met_by_the_best_times() {
        let check = |work: f64, ranks, virtual_stages, microbatches, expected: f64| {
            let bound = pipeline_bound(Seconds::new(work), ranks, virtual_stages, microbatches).get();
            assert!((bound - expected).abs() < 1e-9 * expected, "{bound}, not {expected}");
        };
        // One rank: m times the work.
        check(3.0, 1, 1, 8, 24.0);
        // One microbatch: the work itself, however many ranks.
        check(3.0, 4, 1, 1, 3.0);
        // Two ranks, two microbatches, t = (2, 1): 2 · 2 = 4 and 2 · 1 + 2 = 4.
        check(3.0, 2, 1, 2, 4.0);
        // Several stages per rank: the busiest rank's share.
        check(4.0, 4, 2, 8, 8.0);
    }
}
