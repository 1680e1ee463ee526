//! What the order of a schedule's passes costs, whichever way layers are split into stages.
//!
//! A path through the passes of a step that wait for each other takes no longer than the step. With stage s taking τ_s for a
//! microbatch, a path takes Σ c_s τ_s, and so does any weighted mean of paths: T ≥ Σ c̄_s τ_s. With c̄ as equal as can be
//! this says much, whatever τ is:
//!
//! ```text
//! T ≥ t Σ c̄_s + (W − S t) min c̄_s      τ_s ≥ t, Σ τ_s = W, S stages
//! ```
//!
//! The paths: forward of one microbatch down to a stage, all that its rank does from there to the stage's last backward, and
//! backward of that microbatch up again.
//!
//! ```text
//! rank 0  F F F F . . B F B       the path of rank 1 in 1F1B: F of rank 0, all of rank 1, B of rank 0
//! rank 1    F . . B F B …
//! ```

use trainwright_spec::schedule::{Action, ActionKind, PipelineShape, Schedule};

/// The part of a stage's time that is forward, at least and at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ForwardPart {
    /// In thousandths, rounded down.
    pub least: u16,
    /// In thousandths, rounded up.
    pub most: u16,
}

impl ForwardPart {
    /// Of these parts, 0 to 1.
    pub fn of(parts: impl Iterator<Item = f64> + Clone) -> Self {
        let least = parts.clone().fold(1.0, f64::min);
        let most = parts.fold(0.0, f64::max);
        Self { least: (least * 1000.0).floor() as u16, most: (most * 1000.0).ceil() as u16 }
    }
}

/// The mean of a schedule's paths: how often the stages' times count.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct OrderBound {
    /// min c̄_s
    pub least: f64,
    /// Σ c̄_s
    pub sum: f64,
}

/// How often the parts of a stage's time count in a path.
#[derive(Debug, Clone, Copy, Default)]
struct Passes {
    forward: f64,
    backward: f64,
}

impl OrderBound {
    /// Of a schedule that exists for the shape.
    pub fn of(schedule: &dyn Schedule, shape: PipelineShape, forward: ForwardPart) -> Self {
        let paths = paths(schedule, shape, forward);
        let stages = shape.stages();
        let mixed = |weights: &[f64]| -> Self {
            let total: f64 = weights.iter().sum();
            let of_stage = |stage: usize| -> f64 {
                let sum: f64 = paths.iter().zip(weights).map(|(path, weight)| path[stage] * weight).sum();
                sum / total
            };
            let mean: Vec<f64> = (0..stages).map(of_stage).collect();
            Self { least: mean.iter().copied().fold(f64::INFINITY, f64::min), sum: mean.iter().sum() }
        };
        let even = mixed(&vec![1.0; paths.len()]);
        let Some(mut weights) = equalising(&paths, stages) else { return even };
        weights.iter_mut().for_each(|weight| *weight = weight.max(0.0));
        let equal = mixed(&weights);
        if equal.least > even.least { equal } else { even }
    }
}

/// The paths through each stage of each rank, in weights of the stages' times.
fn paths(schedule: &dyn Schedule, shape: PipelineShape, forward: ForwardPart) -> Vec<Vec<f64>> {
    let stages = shape.stages();
    let (least, most) = (f64::from(forward.least) / 1000.0, f64::from(forward.most) / 1000.0);
    let weight = |passes: &Passes| {
        let both = passes.forward.min(passes.backward);
        both + (passes.forward - both) * least + (passes.backward - both) * (1.0 - most)
    };
    let lists = schedule.lists(shape).ranks;
    let halves = lists.iter().flatten().any(|action| action.kind == ActionKind::Input);
    let mut paths = Vec::new();
    for actions in &lists {
        let mut own: Vec<usize> = actions.iter().map(|action| action.stage).collect();
        own.sort_unstable();
        own.dedup();
        for stage in own {
            let is_first = |action: &Action| action.stage == stage && action.kind == ActionKind::Forward;
            let is_last = |action: &Action| action.stage == stage && action.kind == ActionKind::Backward;
            let Some(first) = actions.iter().position(is_first) else { continue };
            let end = if halves { None } else { actions.iter().rposition(is_last) };
            let mut passes = vec![Passes::default(); stages];
            for action in &actions[first..=end.unwrap_or(actions.len() - 1)] {
                let own = &mut passes[action.stage % stages];
                match action.kind {
                    ActionKind::Forward => own.forward += 1.0,
                    ActionKind::Backward | ActionKind::Weight => own.backward += 1.0,
                    ActionKind::Input => {}
                }
            }
            for below in &mut passes[..stage % stages] {
                below.forward += 1.0;
                if !halves {
                    below.backward += 1.0;
                }
            }
            paths.push(passes.iter().map(weight).collect());
        }
    }
    paths
}

/// Weights under which every stage counts as often: Σ_P λ_P c_Ps = 1 for all s, by elimination. None if there are not as
/// many paths as stages, or they depend on each other.
fn equalising(paths: &[Vec<f64>], stages: usize) -> Option<Vec<f64>> {
    if paths.len() != stages {
        return None;
    }
    let mut rows: Vec<Vec<f64>> =
        (0..stages).map(|stage| paths.iter().map(|path| path[stage]).chain([1.0]).collect()).collect();
    for column in 0..stages {
        let by_size = |a: &usize, b: &usize| rows[*a][column].abs().total_cmp(&rows[*b][column].abs());
        let pivot = (column..stages).max_by(by_size)?;
        rows.swap(column, pivot);
        let head = rows[column].clone();
        if head[column].abs() < 1e-9 {
            return None;
        }
        for row in rows.iter_mut().skip(column + 1) {
            let factor = row[column] / head[column];
            if factor != 0.0 {
                row.iter_mut().zip(&head).skip(column).for_each(|(own, other)| *own -= factor * other);
            }
        }
    }
    let mut weights = vec![0.0; stages];
    for row in (0..stages).rev() {
        let known: f64 = (row + 1..stages).map(|column| rows[row][column] * weights[column]).sum();
        weights[row] = (rows[row][stages] - known) / rows[row][row];
    }
    Some(weights)
}

#[cfg(test)]
mod tests {
    use super::*;
    use trainwright_spec::schedule::ideal::{PassTimes, Times, run};
    use trainwright_spec::schedule::{SCHEDULES, schedule};
    use trainwright_spec::units::Seconds;

    #[test]
    fn one_stage_per_rank_has_the_closed_form() {
        // T = W / (1 − (1 − 1/m)^p): see `ramped`.
        let third = ForwardPart { least: 333, most: 334 };
        for (ranks, microbatches) in [(2, 2), (4, 8), (8, 64)] {
            let shape = PipelineShape { ranks, virtual_stages: 1, microbatches };
            let bound = OrderBound::of(schedule("1f1b").unwrap(), shape, third);
            let expected = 1.0 / (1.0 - (1.0 - 1.0 / microbatches as f64).powi(ranks as i32));
            assert!((bound.least / expected - 1.0).abs() < 0.01, "{shape:?}: {bound:?}, not {expected}");
        }
    }

    #[test]
    fn no_split_is_faster_and_even_ones_are_close() {
        // Forward a third, input and weight gradients a third each. Stage times from a fixed generator, at least 1 each.
        let mut state = 7u64;
        let mut random = move || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as f64 / (1u64 << 31) as f64
        };
        let parts = ForwardPart { least: 333, most: 334 };
        for schedule in SCHEDULES.iter().filter(|schedule| schedule.flushes()) {
            let mut closest = f64::INFINITY;
            for (ranks, virtual_stages, microbatches) in
                [(2, 1, 4), (4, 1, 8), (4, 1, 3), (4, 2, 8), (4, 2, 16), (2, 3, 8), (4, 4, 16)]
            {
                let shape = PipelineShape { ranks, virtual_stages, microbatches };
                if schedule.check(shape).is_err() {
                    continue;
                }
                let bound = OrderBound::of(*schedule, shape, parts);
                for round in 0..20 {
                    let times: Vec<f64> = (0..shape.stages())
                        .map(|_| if round == 0 { 1.0 } else { 1.0 + (4.0 * random()).floor() })
                        .collect();
                    let pass = |time: &f64| {
                        let third = Seconds::new(time / 3.0);
                        PassTimes { forward: third, input: third, weight: third }
                    };
                    let equal = Times::equal(shape, PassTimes::unit());
                    let all = Times { stages: times.iter().map(pass).collect(), ..equal };
                    let makespan = run(&schedule.lists(shape), &all).unwrap().makespan.get();
                    let work: f64 = times.iter().sum();
                    let least = bound.sum + (work - shape.stages() as f64) * bound.least;
                    assert!(
                        least <= makespan * (1.0 + 1e-9),
                        "{} {shape:?} {times:?}: {least} above {makespan}",
                        schedule.name()
                    );
                    closest = closest.min(makespan / least);
                }
            }
            assert!(closest < 1.35, "{}: the closest bound is {closest} below", schedule.name());
        }
    }
}
