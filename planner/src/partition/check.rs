//! Checks from outside: the problem before it is solved, the split after.

use super::placement::Split;
use super::{Effort, PartitionError, Problem, Solution, fits};
use trainwright_spec::units::{Bytes, Seconds};

/// Refuses problems that make no sense.
pub(super) fn validate(problem: &Problem) -> Result<(), PartitionError> {
    let lists = [
        ("runs", problem.runs.len()),
        ("classes", problem.classes.len()),
        ("stages", problem.stages.len()),
        ("ranks", problem.ranks.len()),
    ];
    for (what, length) in lists {
        if length == 0 {
            return Err(PartitionError::Missing { what: what.into() });
        }
    }
    number(|| "steady".into(), problem.steady)?;
    number(|| "ramp".into(), problem.ramp)?;
    for (index, run) in problem.runs.iter().enumerate() {
        in_range(|| format!("the class of run {index}"), run.class, problem.classes.len())?;
    }
    for (index, class) in problem.classes.iter().enumerate() {
        number(|| format!("the state of class {index}"), class.state.get())?;
        if class.choices.is_empty() {
            return Err(PartitionError::Missing { what: format!("choices of class {index}") });
        }
        for (option, choice) in class.choices.iter().enumerate() {
            number(|| format!("the time of choice {option} of class {index}"), choice.time.get())?;
            number(|| format!("the kept bytes of choice {option} of class {index}"), choice.kept.get())?;
            number(|| format!("the peak of choice {option} of class {index}"), choice.peak.get())?;
        }
    }
    let mut idle = vec![true; problem.ranks.len()];
    for (index, stage) in problem.stages.iter().enumerate() {
        in_range(|| format!("the rank of stage {index}"), stage.rank, problem.ranks.len())?;
        idle[stage.rank] = false;
        number(|| format!("the time of stage {index}"), stage.time.get())?;
        number(|| format!("the memory of stage {index}"), stage.memory.get())?;
        number(|| format!("the microbatches in flight of stage {index}"), stage.in_flight)?;
    }
    for (rank, limit) in problem.ranks.iter().enumerate() {
        // A limit may well be negative: what is left of a GPU after its other tenants.
        if !limit.memory.get().is_finite() {
            let what = format!("the memory of rank {rank}");
            return Err(PartitionError::BadNumber { what, value: limit.memory.get() });
        }
        if idle[rank] {
            return Err(PartitionError::IdleRank { rank });
        }
    }
    Ok(())
}

fn number(what: impl Fn() -> String, value: f64) -> Result<(), PartitionError> {
    if value.is_finite() && value >= 0.0 {
        Ok(())
    } else {
        Err(PartitionError::BadNumber { what: what(), value })
    }
}

fn in_range(what: impl Fn() -> String, index: usize, count: usize) -> Result<(), PartitionError> {
    if index < count { Ok(()) } else { Err(PartitionError::OutOfRange { what: what(), index, count }) }
}

/// What a split costs and holds, computed from the problem as given.
pub(super) struct Measured {
    pub rank_times: Vec<Seconds>,
    pub rank_memory: Vec<Bytes>,
    pub objective: Seconds,
}

/// Measures a split; none if it isn't one: an interval empty or out of place, a choice unknown, a rank too full.
pub(super) fn measure(problem: &Problem, split: &Split) -> Option<Measured> {
    let classes: Vec<usize> =
        problem.runs.iter().flat_map(|run| std::iter::repeat_n(run.class, run.count)).collect();
    if split.intervals.len() != problem.stages.len() || split.choices.len() != classes.len() {
        return None;
    }
    let mut end = 0;
    let mut times = vec![0.0; problem.ranks.len()];
    let mut held = vec![0.0; problem.ranks.len()];
    let mut peaks = vec![0.0f64; problem.ranks.len()];
    for (stage, interval) in problem.stages.iter().zip(&split.intervals) {
        if interval.start != end || interval.end <= interval.start || interval.end > classes.len() {
            return None;
        }
        end = interval.end;
        times[stage.rank] += stage.time.get();
        held[stage.rank] += stage.memory.get();
        for layer in interval.clone() {
            let class = &problem.classes[classes[layer]];
            let choice = class.choices.get(split.choices[layer])?;
            times[stage.rank] += choice.time.get();
            held[stage.rank] += class.state.get() + stage.in_flight * choice.kept.get();
            peaks[stage.rank] = peaks[stage.rank].max(choice.peak.get());
        }
    }
    let memory: Vec<f64> = held.iter().zip(&peaks).map(|(held, peak)| held + peak).collect();
    let all_fit = memory.iter().zip(&problem.ranks).all(|(&needs, rank)| fits(needs, rank.memory.get()));
    if end != classes.len() || !all_fit {
        return None;
    }
    let slowest = times.iter().copied().fold(0.0, f64::max);
    Some(Measured {
        objective: Seconds::new(problem.objective(slowest, times.iter().sum())),
        rank_times: times.into_iter().map(Seconds::new).collect(),
        rank_memory: memory.into_iter().map(Bytes::new).collect(),
    })
}

/// The solution that a split is, given a proven bound; none if the split does not stand up to the check.
pub(super) fn solution(problem: &Problem, split: Split, bound: f64, effort: Effort) -> Option<Solution> {
    let measured = measure(problem, &split)?;
    let objective = measured.objective.get();
    let optimal = objective - bound <= 1e-9 * objective.abs();
    Some(Solution {
        intervals: split.intervals,
        choices: split.choices,
        rank_times: measured.rank_times,
        rank_memory: measured.rank_memory,
        objective: measured.objective,
        // A bound that rounding lifted above a split's cost is that cost.
        bound: Seconds::new(if optimal { objective } else { bound }),
        optimal,
        effort,
    })
}
