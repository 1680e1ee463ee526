//! Checks from outside: the problem before it is solved, the split after.

use super::outcome::{Effort, Solution};
use super::problem::{LayerClass, PartitionError, Problem, TOLERANCE, fits};
use super::stage_layout::Split;

/// Refuses problems that make no sense.
pub(super) fn validate(problem: &Problem) -> Result<(), PartitionError> {
    let lists = [
        ("runs", problem.runs.len()),
        ("classes", problem.classes.iter().map(Vec::len).sum()),
        ("stages", problem.stages.len()),
    ];
    for (what, length) in lists {
        if length == 0 {
            return Err(PartitionError::Missing { what: what.into() });
        }
    }
    number(|| "steady".into(), problem.steady)?;
    number(|| "ramp".into(), problem.ramp)?;
    let first = &problem.classes[0];
    for (index, run) in problem.runs.iter().enumerate() {
        if run.class >= first.len() {
            return Err(PartitionError::UnknownClass { run: index, class: run.class, count: first.len() });
        }
    }
    let choices =
        |classes: &[LayerClass]| classes.iter().map(|class| class.choices.len()).collect::<Vec<_>>();
    if let Some(device) = problem.classes.iter().position(|classes| choices(classes) != choices(first)) {
        return Err(PartitionError::UnlikeDevices { device });
    }
    for (index, class) in problem.classes.iter().flat_map(|classes| classes.iter().enumerate()) {
        number(|| format!("the state of class {index}"), class.state.get())?;
        number(|| format!("the idle bytes of class {index}"), class.idle.get())?;
        if class.choices.is_empty() {
            return Err(PartitionError::Missing { what: format!("choices of class {index}") });
        }
        for (option, choice) in class.choices.iter().enumerate() {
            number(|| format!("the time of choice {option} of class {index}"), choice.time.get())?;
            number(|| format!("the kept bytes of choice {option} of class {index}"), choice.kept.get())?;
            number(|| format!("the peak of choice {option} of class {index}"), choice.peak.get())?;
        }
    }
    for (index, stage) in problem.stages.iter().enumerate() {
        let (device, count) = (stage.device, problem.classes.len());
        if device >= count {
            return Err(PartitionError::UnknownDevice { stage: index, device, count });
        }
        number(|| format!("the time of stage {index}"), stage.time.get())?;
        number(|| format!("the memory of stage {index}"), stage.memory.get())?;
        number(|| format!("the peak of stage {index}"), stage.peak.get())?;
        number(|| format!("the idle bytes of stage {index}"), stage.idle.get())?;
        number(|| format!("the microbatches in flight of stage {index}"), stage.in_flight)?;
        // A limit may well be negative: what is left of a GPU after its other tenants.
        if !stage.limit.get().is_finite() {
            let what = format!("the limit of stage {index}");
            return Err(PartitionError::BadNumber { what, value: stage.limit.get() });
        }
        let idle_limit = stage.idle_limit.get();
        if idle_limit.is_nan() || idle_limit == f64::NEG_INFINITY {
            let what = format!("the idle limit of stage {index}");
            return Err(PartitionError::BadNumber { what, value: idle_limit });
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

/// The solution that a split is, given a proven bound, measured on the problem as given; `None` if it isn't one: an
/// interval too short or out of place, a choice unknown, a stage too full, an objective above the bound.
pub(super) fn solution(problem: &Problem, split: Split, bound: f64, effort: Effort) -> Option<Solution> {
    let classes: Vec<usize> =
        problem.runs.iter().flat_map(|run| std::iter::repeat_n(run.class, run.count)).collect();
    if split.intervals.len() != problem.stages.len() || split.choices.len() != classes.len() {
        return None;
    }
    let mut end = 0;
    let mut times = Vec::with_capacity(problem.stages.len());
    let mut memory = Vec::with_capacity(problem.stages.len());
    for (stage, interval) in problem.stages.iter().zip(&split.intervals) {
        if interval.start != end
            || interval.end < interval.start + stage.least_layers
            || interval.end > classes.len()
        {
            return None;
        }
        end = interval.end;
        let (mut time, mut held, mut peak, mut idle) = (stage.time, stage.memory, stage.peak, stage.idle);
        for layer in interval.clone() {
            let class = &problem.classes[stage.device][classes[layer]];
            let choice = class.choices.get(split.choices[layer])?;
            time += choice.time;
            held += class.state + choice.kept * stage.in_flight;
            peak = peak.max(choice.peak);
            idle += class.idle;
        }
        if !fits((held + peak).get(), stage.limit.get()) || !fits(idle.get(), stage.idle_limit.get()) {
            return None;
        }
        times.push(time);
        memory.push(held + peak);
    }
    let objective = problem.objective(&times);
    let proved = objective.get() - bound <= TOLERANCE * objective.get();
    (end == classes.len() && proved).then_some(Solution {
        intervals: split.intervals,
        choices: split.choices,
        times,
        memory,
        objective,
        effort,
    })
}
