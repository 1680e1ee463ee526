//! The slow twin: a dynamic program for problems with one stage per rank.
//!
//! For each time T that some interval takes, the least sum over splits with no stage slower than T is a shortest path over
//! (stage, layers used); the answer is the least of steady · T + ramp · sum. Intervals are costed by trying every count of
//! every choice. Nothing here is shared with the fast method but the problem's types.

use super::placement::Split;
use super::{Problem, Stage, fits};
use trainwright_spec::units::Seconds;

/// The least objective of any split; none if no split fits, or if a rank has several stages. Needs a valid problem.
pub fn least_objective(problem: &Problem) -> Option<Seconds> {
    solve(problem).map(|(_, objective)| objective)
}

/// The best split with its objective.
pub(super) fn solve(problem: &Problem) -> Option<(Split, Seconds)> {
    let classes: Vec<usize> =
        problem.runs.iter().flat_map(|run| std::iter::repeat_n(run.class, run.count)).collect();
    if problem.stages.len() != problem.ranks.len() || classes.len() < problem.stages.len() {
        return None;
    }
    let layers = classes.len();
    let table: Vec<Vec<Vec<f64>>> = problem
        .stages
        .iter()
        .map(|stage| {
            let time = |from: usize, to: usize| {
                if to <= from {
                    return f64::INFINITY;
                }
                best_mix(problem, stage, &classes[from..to]).map_or(f64::INFINITY, |mix| mix.time)
            };
            (0..layers).map(|from| (0..=layers).map(|to| time(from, to)).collect()).collect()
        })
        .collect();
    let mut caps: Vec<f64> =
        table.iter().flatten().flatten().copied().filter(|time| time.is_finite()).collect();
    caps.sort_by(f64::total_cmp);
    caps.dedup();
    let mut best: Option<(f64, Vec<usize>)> = None;
    for cap in caps {
        let Some((sum, cuts)) = shortest(&table, layers, cap) else { continue };
        let objective = problem.steady * cap + problem.ramp * sum;
        if best.as_ref().is_none_or(|(least, _)| objective < *least) {
            best = Some((objective, cuts));
        }
    }
    let (objective, cuts) = best?;
    let mut split = Split { intervals: Vec::new(), choices: Vec::new() };
    for (stage, bounds) in problem.stages.iter().zip(cuts.windows(2)) {
        let mix = best_mix(problem, stage, &classes[bounds[0]..bounds[1]])?;
        split.intervals.push(bounds[0]..bounds[1]);
        split.choices.extend(mix.choices(problem, &classes[bounds[0]..bounds[1]]));
    }
    Some((split, Seconds::new(objective)))
}

/// The least sum of stage times up to `cap`, with the cuts.
fn shortest(table: &[Vec<Vec<f64>>], layers: usize, cap: f64) -> Option<(f64, Vec<usize>)> {
    let stages = table.len();
    let mut least = vec![vec![f64::INFINITY; layers + 1]; stages + 1];
    let mut came = vec![vec![0; layers + 1]; stages + 1];
    least[0][0] = 0.0;
    for stage in 0..stages {
        for from in 0..layers {
            for to in from + 1..=layers {
                let time = table[stage][from][to];
                let sum = least[stage][from] + time;
                if time <= cap && sum < least[stage + 1][to] {
                    least[stage + 1][to] = sum;
                    came[stage + 1][to] = from;
                }
            }
        }
    }
    if least[stages][layers].is_infinite() {
        return None;
    }
    let mut cuts = vec![layers];
    for stage in (1..=stages).rev() {
        cuts.push(came[stage][cuts[cuts.len() - 1]]);
    }
    cuts.reverse();
    Some((least[stages][layers], cuts))
}

/// How many layers of each class take each choice, and what that costs.
#[derive(Clone)]
struct BestMix {
    time: f64,
    counts: Vec<Vec<usize>>,
}

impl BestMix {
    /// A choice for each layer; among equal layers those that keep less come first.
    fn choices(&self, problem: &Problem, classes: &[usize]) -> Vec<usize> {
        let mut left = self.counts.clone();
        let mut choices = Vec::with_capacity(classes.len());
        for &class in classes {
            let open = (0..left[class].len()).filter(|&choice| left[class][choice] > 0);
            let kept = |choice: usize| problem.classes[class].choices[choice].kept.get();
            let Some(choice) = open.min_by(|&a, &b| kept(a).total_cmp(&kept(b))) else { break };
            left[class][choice] -= 1;
            choices.push(choice);
        }
        choices
    }
}

/// The fastest mix that fits a stage alone on its rank, by trying all of them.
fn best_mix(problem: &Problem, stage: &Stage, classes: &[usize]) -> Option<BestMix> {
    let mut left = vec![0; problem.classes.len()];
    for &class in classes {
        left[class] += 1;
    }
    let states: f64 = classes.iter().map(|&class| problem.classes[class].state.get()).sum();
    let mut search = MixSearch {
        problem,
        stage,
        limit: problem.ranks[stage.rank].memory.get(),
        counts: problem.classes.iter().map(|class| vec![0; class.choices.len()]).collect(),
        best: None,
    };
    search.extend(0, 0, &mut left, stage.time.get(), stage.memory.get() + states, 0.0);
    search.best
}

struct MixSearch<'a> {
    problem: &'a Problem,
    stage: &'a Stage,
    limit: f64,
    counts: Vec<Vec<usize>>,
    best: Option<BestMix>,
}

impl MixSearch<'_> {
    /// Tries every count of `choice` of `class` and of all that follow, given the layers `left`, and the cost so far.
    fn extend(&mut self, class: usize, choice: usize, left: &mut [usize], time: f64, held: f64, peak: f64) {
        if self.best.as_ref().is_some_and(|best| time >= best.time) || !fits(held + peak, self.limit) {
            return;
        }
        if class == left.len() {
            self.best = Some(BestMix { time, counts: self.counts.clone() });
            return;
        }
        let choices = &self.problem.classes[class].choices;
        let last = choice + 1 == choices.len();
        let option = choices[choice];
        for taken in if last { left[class]..=left[class] } else { 0..=left[class] } {
            self.counts[class][choice] = taken;
            left[class] -= taken;
            let (class_next, choice_next) = if last { (class + 1, 0) } else { (class, choice + 1) };
            let amount = taken as f64;
            self.extend(
                class_next,
                choice_next,
                left,
                time + amount * option.time.get(),
                held + amount * self.stage.in_flight * option.kept.get(),
                if taken > 0 { peak.max(option.peak.get()) } else { peak },
            );
            left[class] += taken;
        }
        self.counts[class][choice] = 0;
    }
}
