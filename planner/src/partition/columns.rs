//! The columns of the coupled program: what each stage may take.

use super::Problem;
use super::layers::Layers;
use super::mixes::{Mix, Mixes};
use super::slots::with_tolerance;

/// The layers as runs of one class each, and the stages with where they can begin.
pub(super) struct Chain {
    pub runs: Vec<ChainRun>,
    /// The rank of each stage.
    pub ranks: Vec<usize>,
}

/// Consecutive layers `start..end` of one class.
pub(super) struct ChainRun {
    pub class: usize,
    pub start: usize,
    pub count: usize,
}

impl ChainRun {
    fn end(&self) -> usize {
        self.start + self.count
    }
}

impl Chain {
    pub fn new(problem: &Problem, layers: &Layers) -> Self {
        let mut runs: Vec<ChainRun> = Vec::new();
        for (start, &class) in layers.sequence.iter().enumerate() {
            match runs.last_mut() {
                Some(run) if run.class == class => run.count += 1,
                _ => runs.push(ChainRun { class, start, count: 1 }),
            }
        }
        Self { runs, ranks: problem.stages.iter().map(|stage| stage.rank).collect() }
    }
}

/// A stage with layers of some runs in some mix.
pub(super) struct Column {
    pub stage: usize,
    /// The run of its first layer.
    pub from: usize,
    /// The run of the next stage's first layer.
    pub to: usize,
    /// How many layers of which runs.
    pub taken: Vec<(usize, usize)>,
    pub composition: usize,
    pub mix: Mix,
    /// Seconds, the stage's own included.
    pub time: f64,
    /// Seconds more than the same layers at their fastest.
    pub detour: f64,
    /// Bytes, the stage's own included, without the peak.
    pub memory: f64,
    pub peak: f64,
}

/// What a column must leave possible.
pub(super) struct Caps {
    /// The objective must be less.
    pub most: f64,
    /// No split's slowest rank is faster.
    pub least_slowest: f64,
    /// Sum of all ranks' times with every layer at its fastest.
    pub fastest_sum: f64,
}

/// Every column that a split may use: within `caps`, those on the front of each composition; without, those that hold least.
pub(super) fn columns(
    problem: &Problem,
    layers: &Layers,
    chain: &Chain,
    mixes: &mut Mixes,
    caps: Option<&Caps>,
) -> Vec<Column> {
    let least = LeastShares::new(problem, layers, chain);
    let stages = chain.ranks.len();
    let all = layers.sequence.len();
    let windows = Windows::new(longest(problem, layers, chain, caps), all);
    let mut list = Vec::new();
    for stage in 0..stages {
        for Span { from, to, taken } in spans(chain, &windows, stage) {
            let mut counts = vec![0; layers.classes.len()];
            for &(run, count) in &taken {
                counts[chain.runs[run].class] += count as u32;
            }
            let composition = mixes.named(counts);
            let own = problem.stages[stage];
            let totals = mixes.totals(composition);
            for (mix, time, kept, peak) in candidates(layers, mixes, composition, caps.is_some()) {
                let column = Column {
                    stage,
                    from,
                    to,
                    taken: taken.clone(),
                    composition,
                    mix,
                    time: layers.stage_times[stage] + time,
                    detour: time - totals.time,
                    memory: own.memory.get() + totals.state + own.in_flight * kept,
                    peak,
                };
                if caps.is_none_or(|caps| least.leaves_room(problem, chain, &column, caps)) {
                    list.push(column);
                }
            }
        }
    }
    list
}

/// The most layers that each stage can have, within `caps` if given.
pub(super) fn longest(problem: &Problem, layers: &Layers, chain: &Chain, caps: Option<&Caps>) -> Vec<usize> {
    let least = LeastShares::new(problem, layers, chain);
    let all = layers.sequence.len();
    let most = |stage| caps.map_or(all, |caps| least.most_layers(problem, chain, stage, caps).min(all));
    (0..chain.ranks.len()).map(most).collect()
}

/// The mixes of a composition that none beats in time, kept bytes and peak; or for each peak the one that keeps least.
fn candidates(
    layers: &Layers,
    mixes: &mut Mixes,
    composition: usize,
    whole_front: bool,
) -> Vec<(Mix, f64, f64, f64)> {
    let mut found: Vec<(Mix, f64, f64, f64)> = Vec::new();
    for (level, &peak) in layers.peaks.iter().enumerate() {
        let front = mixes.front(composition, level);
        let first = if whole_front { 0 } else { front.len().saturating_sub(1) };
        for (point, step) in front.iter().enumerate().skip(first) {
            // Lower peaks came first: a mix that one of them beats in the rest has no use.
            if !found.iter().any(|&(_, time, kept, _)| time <= step.time && kept <= step.kept) {
                found.push((Mix::Front { level, point }, step.time, step.kept, peak));
            }
        }
    }
    found
}

/// Time and memory that each stage needs at the least, with one layer.
struct LeastShares {
    times: Vec<f64>,
    memory: Vec<f64>,
    /// Per rank, the sums over its stages.
    rank_times: Vec<f64>,
    rank_memory: Vec<f64>,
    /// Least time of any layer.
    layer_time: f64,
}

impl LeastShares {
    fn new(problem: &Problem, layers: &Layers, chain: &Chain) -> Self {
        let least = |of: &dyn Fn(&super::layers::Class) -> f64| {
            layers.classes.iter().map(of).fold(f64::INFINITY, f64::min)
        };
        let layer_time = least(&|class| class.choices[0].time);
        let mut shares = Self {
            times: Vec::new(),
            memory: Vec::new(),
            rank_times: vec![0.0; problem.ranks.len()],
            rank_memory: vec![0.0; problem.ranks.len()],
            layer_time,
        };
        for (stage, own) in problem.stages.iter().enumerate() {
            let time = layers.stage_times[stage] + layer_time;
            let memory = own.memory.get()
                + least(&|class| {
                    let kept = class.choices.iter().map(|choice| choice.kept).fold(f64::INFINITY, f64::min);
                    class.state + own.in_flight * kept
                });
            shares.times.push(time);
            shares.memory.push(memory);
            shares.rank_times[chain.ranks[stage]] += time;
            shares.rank_memory[chain.ranks[stage]] += memory;
        }
        shares
    }

    /// Whether a split with this column can fit its rank and cost less than the caps' most.
    fn leaves_room(&self, problem: &Problem, chain: &Chain, column: &Column, caps: &Caps) -> bool {
        let (stage, rank) = (column.stage, chain.ranks[column.stage]);
        let memory = self.rank_memory[rank] - self.memory[stage] + column.memory + column.peak;
        // The sums above may round up; what is really too full fails the rows.
        let room = with_tolerance(problem.ranks[rank]) + 1e-9 * self.rank_memory[rank].abs();
        let slowest = (self.rank_times[rank] - self.times[stage] + column.time).max(caps.least_slowest);
        memory <= room && problem.objective(slowest, caps.fastest_sum + column.detour) < caps.most
    }

    /// The most layers that a stage can have in a split that costs less than the caps' most.
    fn most_layers(&self, problem: &Problem, chain: &Chain, stage: usize, caps: &Caps) -> usize {
        if problem.steady == 0.0 || self.layer_time == 0.0 {
            return usize::MAX;
        }
        let slowest = (caps.most - problem.ramp * caps.fastest_sum) / problem.steady;
        let spare = slowest - self.rank_times[chain.ranks[stage]];
        1 + (spare / self.layer_time * (1.0 + 1e-9)).max(0.0) as usize
    }
}

/// The first and the last layer that each stage can begin at, and the most layers it can have.
struct Windows {
    cuts: Vec<(usize, usize)>,
    longest: Vec<usize>,
}

impl Windows {
    fn new(longest: Vec<usize>, layers: usize) -> Self {
        let stages = longest.len();
        let mut cuts = vec![(0usize, 0usize); stages + 1];
        for stage in 0..stages {
            let reached = cuts[stage].1.saturating_add(longest[stage]);
            cuts[stage + 1] = (0, reached.min(layers - (stages - stage - 1)));
        }
        cuts[stages].0 = layers;
        for stage in (0..stages).rev() {
            cuts[stage].0 = cuts[stage + 1].0.saturating_sub(longest[stage]).max(stage);
        }
        Self { cuts, longest }
    }
}

/// Layers of some runs that a stage may take.
struct Span {
    from: usize,
    to: usize,
    taken: Vec<(usize, usize)>,
}

/// What a stage may take, given where it and the next one can begin.
fn spans(chain: &Chain, windows: &Windows, stage: usize) -> Vec<Span> {
    let (first, last) = windows.cuts[stage];
    let (end_first, end_last) = windows.cuts[stage + 1];
    let longest = windows.longest[stage];
    let mut found = Vec::new();
    for (from, run) in chain.runs.iter().enumerate() {
        // Inside one run only how many matters, not where.
        for count in 1..=run.count.min(longest) {
            let earliest = run.start.max(first).max(end_first.saturating_sub(count));
            let latest = last.min(run.end().min(end_last).saturating_sub(count));
            let closing = run.end() - count;
            if earliest <= latest && earliest < closing {
                found.push(Span { from, to: from, taken: vec![(from, count)] });
            }
            if earliest <= closing && closing <= latest {
                found.push(Span { from, to: from + 1, taken: vec![(from, count)] });
            }
        }
        // Into a later run: the rest of this one and all in between.
        for tail in (1..=run.count).filter(|tail| (first..=last).contains(&(run.end() - tail))) {
            for (to, later) in chain.runs.iter().enumerate().skip(from + 1) {
                let between = later.start - run.end();
                for head in 1..=later.count {
                    let (end, length) = (later.start + head, tail + between + head);
                    if end > end_last || length > longest {
                        break;
                    }
                    if end >= end_first {
                        let mut taken = vec![(from, tail)];
                        taken.extend((from + 1..to).map(|run| (run, chain.runs[run].count)));
                        taken.push((to, head));
                        found.push(Span { from, to: to + usize::from(end == later.end()), taken });
                    }
                }
            }
        }
    }
    found
}
