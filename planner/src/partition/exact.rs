//! The slow twin: a dynamic program.
//!
//! For each time T that some interval takes, the least sum over splits with no stage slower than T is a shortest path over
//! (stage, layers used); the answer is the least of steady · T + ramp · sum. Intervals are costed by trying every count of
//! every choice. Nothing here is shared with the fast method but the problem's types.

use super::problem::{LayerClass, Problem, Stage, fits};
use trainwright_spec::units::Seconds;

/// The least objective of any split; `None` if no split fits. Needs a valid problem.
pub fn least_objective(problem: &Problem) -> Option<Seconds> {
    let classes: Vec<usize> =
        problem.runs.iter().flat_map(|run| std::iter::repeat_n(run.class, run.count)).collect();
    let layers = classes.len();
    let table: Vec<Vec<Vec<f64>>> = problem
        .stages
        .iter()
        .map(|stage| {
            let time = |from: usize, to: usize| match to < from + stage.least_layers {
                true => f64::INFINITY,
                false => least_time(problem, stage, &classes[from..to]),
            };
            (0..=layers).map(|from| (0..=layers).map(|to| time(from, to)).collect()).collect()
        })
        .collect();
    let mut caps: Vec<f64> =
        table.iter().flatten().flatten().copied().filter(|time| time.is_finite()).collect();
    caps.sort_by(f64::total_cmp);
    caps.dedup();
    let objectives = caps.into_iter().filter_map(|cap| {
        let sum = least_sum(&table, layers, cap);
        sum.is_finite().then_some(problem.steady * cap + problem.ramp * sum)
    });
    objectives.min_by(f64::total_cmp).map(Seconds::new)
}

/// The least sum of stage times up to `cap` seconds, infinite if there is no such split.
fn least_sum(table: &[Vec<Vec<f64>>], layers: usize, cap: f64) -> f64 {
    let mut before = vec![f64::INFINITY; layers + 1];
    before[0] = 0.0;
    for times in table {
        let mut after = vec![f64::INFINITY; layers + 1];
        for from in 0..=layers {
            for to in from..=layers {
                if times[from][to] <= cap {
                    after[to] = after[to].min(before[from] + times[from][to]);
                }
            }
        }
        before = after;
    }
    before[layers]
}

/// The least time of a stage with these layers, over all mixes that fit; infinite if none does.
fn least_time(problem: &Problem, stage: &Stage, classes: &[usize]) -> f64 {
    let on_device = &problem.classes[stage.device];
    let mut left = vec![0; on_device.len()];
    for &class in classes {
        left[class] += 1;
    }
    let states: f64 = classes.iter().map(|&class| on_device[class].state.get()).sum();
    let idle: f64 = classes.iter().map(|&class| on_device[class].idle.get()).sum();
    if !fits(stage.idle.get() + idle, stage.idle_limit.get()) {
        return f64::INFINITY;
    }
    let limit = stage.limit.get();
    let mut search =
        MixSearch { classes: on_device, in_flight: stage.in_flight, limit, least: f64::INFINITY };
    search.extend(0, 0, &mut left, stage.time.get(), stage.memory.get() + states, stage.peak.get());
    search.least
}

struct MixSearch<'a> {
    classes: &'a [LayerClass],
    in_flight: f64,
    limit: f64,
    least: f64,
}

impl MixSearch<'_> {
    /// Tries every count of `choice` of `class` and of all that follow, given the layers `left`, and the cost so far.
    fn extend(&mut self, class: usize, choice: usize, left: &mut [usize], time: f64, held: f64, peak: f64) {
        if time >= self.least || !fits(held + peak, self.limit) {
            return;
        }
        if class == left.len() {
            self.least = time;
            return;
        }
        let choices = &self.classes[class].choices;
        let last = choice + 1 == choices.len();
        let option = choices[choice];
        for taken in if last { left[class]..=left[class] } else { 0..=left[class] } {
            left[class] -= taken;
            let (class_next, choice_next) = if last { (class + 1, 0) } else { (class, choice + 1) };
            let amount = taken as f64;
            self.extend(
                class_next,
                choice_next,
                left,
                time + amount * option.time.get(),
                held + amount * self.in_flight * option.kept.get(),
                if taken > 0 { peak.max(option.peak.get()) } else { peak },
            );
            left[class] += taken;
        }
    }
}
