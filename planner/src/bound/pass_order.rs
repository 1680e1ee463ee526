//! What the order of a schedule's passes costs, whichever way layers are split into stages.
//!
//! A path through the passes of a step that wait for each other takes no longer than the step. With b_s blocks on stage s, each of
//! which takes f, i and w at least, a path takes Σ b_s (F_s f + I_s i + W_s w), and so does any weighted mean of paths:
//!
//! ```text
//! T ≥ Σ b_s c_s ≥ Σ c_s + (L − S) min c_s      c_s = F_s f + I_s i + W_s w, b_s ≥ 1, Σ b_s = L, S stages
//! ```
//!
//! The ends, which may have no block, count neither in Σ c_s nor in S. Messages between ranks on a path take their time too.
//!
//! The better the mean, the more equal c_s. Three means are kept:
//!
//! - two of the paths through each stage: forward of one microbatch down to it, all that its rank does from there to the stage's last
//!   backward, and backward of that microbatch up again; with equal weights, and with those under which stages count as often;
//! - of longest paths of splits: each next split moves blocks from stages that have counted often to ones that have not.
//!
//! ```text
//! rank 0  F F F F . . B F B       the path of rank 1 in 1F1B: F of rank 0, all of rank 1, B of rank 0
//! rank 1    F . . B F B …
//! ```

use super::longest_paths::{Counts, Passes};
use std::sync::{Arc, OnceLock};
use trainwright_spec::schedule::ideal::PassTimes;
use trainwright_spec::schedule::{Action, ActionKind, ActionLists};
use trainwright_spec::units::Seconds;

/// Parts of a block's time, and other times compared with it, roughly: for these a mean is made. It is a bound for all others too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Parts {
    forward: u8,
    input: u8,
    message: u8,
    embedding: u8,
    head: u8,
}

/// How finely parts are distinguished.
const PARTS: f64 = 24.0;

/// How finely messages are, as parts of a block.
const MESSAGE_PARTS: f64 = 128.0;

/// How finely embedding and head are.
const END_PARTS: f64 = 8.0;

impl Parts {
    /// Of blocks, their ends, and messages that take so long.
    pub fn of(blocks: &Blocks, message: Seconds) -> Self {
        let all = |times: PassTimes| times.forward + times.input + times.weight;
        let block = blocks.longest_run();
        if all(block) <= Seconds::ZERO {
            return Self { forward: 8, input: 8, message: 0, embedding: 0, head: 0 };
        }
        let part = |time: Seconds, parts: f64| (parts * (time / all(block))).round() as u8;
        Self {
            forward: part(block.forward, PARTS),
            input: part(block.input, PARTS),
            message: part(message, MESSAGE_PARTS),
            embedding: part(all(blocks.embedding), END_PARTS),
            head: part(all(blocks.head), END_PARTS),
        }
    }

    /// Embedding and head, in blocks.
    fn ends(self) -> [f64; 2] {
        [self.embedding, self.head].map(|end| f64::from(end) / END_PARTS)
    }

    fn message(self) -> f64 {
        f64::from(self.message) / MESSAGE_PARTS
    }

    fn times(self) -> [f64; 3] {
        let (forward, input) = (f64::from(self.forward) / PARTS, f64::from(self.input) / PARTS);
        [forward, input, (1.0 - forward - input).max(0.0)]
    }
}

/// What is split into stages: blocks of several runs, and what stands before and behind them.
#[derive(Debug, Clone)]
pub(super) struct Blocks {
    /// How many blocks there are of each run, and what the passes of one take at least.
    pub runs: Vec<(usize, PassTimes)>,
    pub embedding: PassTimes,
    pub head: PassTimes,
}

impl Blocks {
    pub fn count(&self) -> usize {
        self.runs.iter().map(|(count, _)| count).sum()
    }

    /// A block of the run that has most of them.
    pub fn longest_run(&self) -> PassTimes {
        let longest = self.runs.iter().max_by_key(|(count, _)| *count);
        longest.map(|(_, times)| *times).expect("a model has blocks")
    }
}

/// A lower bound of a step, made of a mean of paths.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Line {
    /// Of embedding, head, the blocks that stages must have, and those of other runs.
    base: Seconds,
    /// How many blocks of the longest run there are besides.
    rest: f64,
    /// What each of these takes on a rank at least, and the blocks that the rank must have; the least time first.
    on_ranks: Vec<OnRank>,
    /// How much of additional work in backward is added to it.
    pub more: f64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct OnRank {
    rank: usize,
    block: Seconds,
    must: f64,
}

impl Line {
    /// The bound, if ranks have no more than `caps` blocks of the longest run.
    pub fn time(&self, caps: Option<&[f64]>) -> Seconds {
        let (mut time, mut left) = (self.base, self.rest);
        for OnRank { rank, block, must } in &self.on_ranks {
            let here = caps.map_or(left, |caps| (caps[*rank] - must).clamp(0.0, left));
            time += *block * here;
            left -= here;
        }
        time
    }
}

/// Means of a schedule's paths: how often the stages' passes count.
pub(super) struct OrderBound {
    /// Of the paths through each stage.
    through_stages: Vec<Counts>,
    /// Of longest paths of splits, which take long to make: made when they are first asked for.
    of_splits: OnceLock<Vec<Counts>>,
    order: Order,
}

/// What means of a schedule's paths are made of.
pub(super) struct Order {
    pub lists: Arc<ActionLists>,
    /// `None` if some wait for each other.
    pub passes: Option<Arc<Passes>>,
    pub stages: usize,
    pub blocks: usize,
    pub parts: Parts,
}

impl OrderBound {
    pub fn of(order: Order) -> Self {
        let paths = paths(&order.lists, order.stages);
        let mut through_stages = vec![mean(&paths, &vec![1.0; paths.len()], order.stages)];
        if let Some(weights) = equalising(&paths, order.stages, order.parts.times()) {
            through_stages.push(mean(&paths, &weights, order.stages));
        }
        Self { through_stages, of_splits: OnceLock::new(), order }
    }

    /// The passes behind what they wait for; `None` if some wait for each other.
    pub fn passes(&self) -> Option<Arc<Passes>> {
        self.order.passes.clone()
    }

    /// The paths through each stage, and means of longest paths.
    pub fn paths(&self) -> Vec<Counts> {
        let through_stages = paths(&self.order.lists, self.order.stages);
        through_stages.into_iter().chain(self.of_splits().iter().cloned()).collect()
    }

    fn of_splits(&self) -> &[Counts] {
        self.of_splits.get_or_init(|| self.order.longest())
    }

    /// What the means of the paths through each stage say, where messages take so long and stages are on these ranks.
    pub fn lines_through_stages(
        &self,
        blocks: &Blocks,
        message: Seconds,
        rank_of: &dyn Fn(usize) -> usize,
    ) -> Vec<Line> {
        self.through_stages.iter().map(|mean| line(mean, blocks, message, rank_of)).collect()
    }

    /// What the means of longest paths say.
    pub fn lines_of_splits(
        &self,
        blocks: &Blocks,
        message: Seconds,
        rank_of: &dyn Fn(usize) -> usize,
    ) -> Vec<Line> {
        self.of_splits().iter().map(|mean| line(mean, blocks, message, rank_of)).collect()
    }
}

impl Order {
    fn longest(&self) -> Vec<Counts> {
        let Self { lists, passes, stages, blocks, parts } = self;
        let Some(passes) = passes else { return Vec::new() };
        let anywhere = Free::anywhere(*stages, *blocks);
        let on_its_rank = Free::on_its_rank(lists, *stages, *blocks, parts.ends());
        [anywhere, on_its_rank].map(|free| longest(passes, &free, *parts)).into()
    }
}

fn line(counts: &Counts, blocks: &Blocks, message: Seconds, rank_of: &dyn Fn(usize) -> usize) -> Line {
    let mean = &counts.stages;
    let of = |counts: &[f64; 3], times: &PassTimes| {
        times.forward * counts[0] + times.input * counts[1] + times.weight * counts[2]
    };
    let cheapest = |times: &PassTimes| mean.iter().map(|counts| of(counts, times)).reduce(Seconds::min);
    let least = |times: &PassTimes| cheapest(times).unwrap_or(Seconds::ZERO);
    let ends = of(&mean[0], &blocks.embedding) + of(&mean[mean.len() - 1], &blocks.head);
    let longest = (0..blocks.runs.len()).max_by_key(|run| (blocks.runs[*run].0, *run)).unwrap_or(0);
    let (count, times) = blocks.runs[longest];
    let others = blocks.runs.iter().enumerate().filter(|(run, _)| *run != longest).map(|(_, run)| run);
    // Stages between the ends that must have a block of the longest run: there are not enough others for all.
    let between = if mean.len() > 1 { &mean[1..mean.len() - 1] } else { mean };
    let sure = between.len().saturating_sub(others.clone().map(|(count, _)| count).sum()).min(count);
    let mut of_stages: Vec<Seconds> = between.iter().map(|counts| of(counts, &times)).collect();
    of_stages.sort_by(|a, b| a.get().total_cmp(&b.get()));
    let first: Seconds = of_stages[..sure].iter().copied().sum();
    let others: Seconds = others.map(|(count, times)| least(times) * *count as f64).sum();
    let more = mean.iter().map(|counts| counts[1].min(counts[2])).fold(f64::INFINITY, f64::min);
    let mut on_ranks: Vec<OnRank> = Vec::new();
    for (stage, counts) in mean.iter().enumerate() {
        let (rank, block) = (rank_of(stage), of(counts, &times));
        // Which stages do without one of the longest run is not known.
        let has = sure == between.len() && (mean.len() == 1 || (stage > 0 && stage + 1 < mean.len()));
        let must = if has { 1.0 } else { 0.0 };
        match on_ranks.iter_mut().find(|known| known.rank == rank) {
            Some(known) => (known.block, known.must) = (known.block.min(block), known.must + must),
            None => on_ranks.push(OnRank { rank, block, must }),
        }
    }
    on_ranks.sort_by(|a, b| a.block.get().total_cmp(&b.block.get()));
    Line {
        base: ends + first + others + message * counts.messages,
        rest: (count - sure) as f64,
        on_ranks,
        more,
    }
}

/// How many splits are tried for a mean of longest paths.
const SPLITS: usize = 48;

/// How close to the fastest of the splits a mean need not come closer.
const CLOSE: f64 = 0.01;

/// How strongly blocks move.
const STEP: f64 = 6.0;

/// Blocks that no stage must have, in groups of stages among which they move.
struct Free {
    /// By stage.
    group: Vec<usize>,
    /// By group.
    blocks: Vec<f64>,
}

impl Free {
    fn anywhere(stages: usize, blocks: usize) -> Self {
        Self { group: vec![0; stages], blocks: vec![blocks.saturating_sub(stages.saturating_sub(2)) as f64] }
    }

    /// On the stages of each rank as many as make the ranks equal, embedding and head counted as blocks.
    fn on_its_rank(lists: &ActionLists, stages: usize, blocks: usize, ends: [f64; 2]) -> Self {
        let mut group = vec![0; stages];
        for (rank, actions) in lists.ranks.iter().enumerate() {
            actions.iter().for_each(|action| group[action.stage % stages] = rank);
        }
        let mut must = vec![0.0; lists.ranks.len()];
        group.iter().zip(must_have(stages, ends)).for_each(|(rank, blocks)| must[*rank] += blocks);
        let load = (blocks as f64 + ends[0] + ends[1]) / must.len() as f64;
        Self { group, blocks: must.iter().map(|must| (load - must).max(0.0)).collect() }
    }

    /// How much each stage wants its group's blocks: the more, the less it counts in the mean of paths.
    fn wanted(&self, counted: &[f64]) -> Vec<f64> {
        let mut all = vec![(0.0, 0.0); self.blocks.len()];
        for (group, counted) in self.group.iter().zip(counted) {
            let (sum, stages) = &mut all[*group];
            (*sum, *stages) = (*sum + counted, *stages + 1.0);
        }
        let of = |(group, counted): (&usize, &f64)| match all[*group] {
            (sum, stages) if sum > 0.0 => libm::exp(STEP * (1.0 - counted * stages / sum)),
            _ => 1.0,
        };
        self.group.iter().zip(counted).map(of).collect()
    }

    /// These blocks by stage, in proportion to how much each stage wants them.
    fn divided(&self, wanted: &[f64]) -> Vec<f64> {
        let mut all = vec![0.0; self.blocks.len()];
        self.group.iter().zip(wanted).for_each(|(group, wanted)| all[*group] += wanted);
        let of = |(group, wanted): (&usize, &f64)| self.blocks[*group] * wanted / all[*group];
        self.group.iter().zip(wanted).map(of).collect()
    }

    /// What they take at least where a block takes so long on each stage.
    fn least(&self, of_stage: &[f64]) -> f64 {
        let mut least = vec![f64::INFINITY; self.blocks.len()];
        self.group.iter().zip(of_stage).for_each(|(group, time)| least[*group] = least[*group].min(*time));
        let taken = |(blocks, least): (&f64, &f64)| if *blocks > 0.0 { blocks * least } else { 0.0 };
        self.blocks.iter().zip(&least).map(taken).sum()
    }
}

/// What each stage has in any case: a block, or embedding and head, in blocks.
fn must_have(stages: usize, ends: [f64; 2]) -> Vec<f64> {
    let mut must = vec![1.0; stages];
    must[0] = ends[0];
    must[stages - 1] = ends[1];
    must
}

/// The mean of longest paths of splits in which stages that have counted less have more of the blocks that no stage must have: a game
/// between paths and blocks, each of which answers what the other has done so far.
fn longest(passes: &Passes, free: &Free, parts: Parts) -> Counts {
    let (times, message) = (parts.times(), parts.message());
    let stages = free.group.len();
    let must = must_have(stages, parts.ends());
    let mut sum = Counts::none(stages);
    let (mut best, mut best_time) = (sum.clone(), 0.0);
    let mut fastest = f64::INFINITY;
    let mut ends = Vec::new();
    let mut counted = vec![0.0; stages];
    let mut all = 0.0;
    for split in 0..SPLITS {
        let wanted = free.wanted(&counted);
        let stage = |(free, must): (f64, &f64)| times.map(|time| time * (must + free));
        let of_stages: Vec<[f64; 3]> = free.divided(&wanted).into_iter().zip(&must).map(stage).collect();
        let (time, path) = passes.longest(&of_stages, message, &mut ends);
        fastest = fastest.min(time);
        // Later answers count more.
        let weight = (split + 1) as f64;
        all += weight;
        sum.add(&path, weight);
        counted.iter_mut().zip(&sum.stages).for_each(|(counted, sum)| *counted = weigh(sum, times) / all);
        let sure: f64 = counted.iter().zip(&must).map(|(counted, must)| counted * must).sum();
        let bound = sure + free.least(&counted) + message * sum.messages / all;
        if bound > best_time {
            best_time = bound;
            best = Counts::none(stages);
            best.add(&sum, 1.0 / all);
        }
        if best_time >= fastest * (1.0 - CLOSE) {
            break;
        }
    }
    best
}

/// What passes take that count so often.
fn weigh(counts: &[f64; 3], times: [f64; 3]) -> f64 {
    counts.iter().zip(times).map(|(count, time)| count * time).sum()
}

fn mean(paths: &[Counts], weights: &[f64], stages: usize) -> Counts {
    let total: f64 = weights.iter().sum();
    let mut mean = Counts::none(stages);
    for (path, weight) in paths.iter().zip(weights) {
        mean.add(path, weight / total);
    }
    mean
}

/// The paths through each stage of each rank.
fn paths(lists: &ActionLists, stages: usize) -> Vec<Counts> {
    let halves = lists.ranks.iter().flatten().any(|action| action.kind == ActionKind::Input);
    let mut paths = Vec::new();
    for actions in &lists.ranks {
        let mut stages_of_rank: Vec<usize> = actions.iter().map(|action| action.stage).collect();
        stages_of_rank.sort_unstable();
        stages_of_rank.dedup();
        for stage in stages_of_rank {
            let is_first = |action: &Action| action.stage == stage && action.kind == ActionKind::Forward;
            let is_last = |action: &Action| action.stage == stage && action.kind == ActionKind::Backward;
            let Some(first) = actions.iter().position(is_first) else { continue };
            let end = if halves { None } else { actions.iter().rposition(is_last) };
            let mut path = Counts::none(stages);
            for action in &actions[first..=end.unwrap_or(actions.len() - 1)] {
                path.count(action.stage % stages, action.kind);
            }
            for below in 0..stage % stages {
                path.count(below, ActionKind::Forward);
                if !halves {
                    path.count(below, ActionKind::Backward);
                }
            }
            paths.push(path);
        }
    }
    paths
}

/// Weights under which every stage counts as often: Σ_P λ_P c_Ps = 1 for all s, by elimination. `None` if there are not as
/// many paths as stages, they depend on each other, or some weights are negative and leave nothing equal.
fn equalising(paths: &[Counts], stages: usize, times: [f64; 3]) -> Option<Vec<f64>> {
    if paths.len() != stages {
        return None;
    }
    let mut rows: Vec<Vec<f64>> = (0..stages)
        .map(|stage| paths.iter().map(|path| weigh(&path.stages[stage], times)).chain([1.0]).collect())
        .collect();
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
                row.iter_mut().zip(&head).skip(column).for_each(|(entry, pivot)| *entry -= factor * pivot);
            }
        }
    }
    let mut weights = vec![0.0; stages];
    for row in (0..stages).rev() {
        let known: f64 = (row + 1..stages).map(|column| rows[row][column] * weights[column]).sum();
        weights[row] = (rows[row][stages] - known) / rows[row][row];
    }
    weights.iter_mut().for_each(|weight| *weight = weight.max(0.0));
    (weights.iter().sum::<f64>() > 0.0).then_some(weights)
}
#[cfg(test)]
mod tests {
    use super::*;
    use trainwright_spec::schedule::ideal::{Times, run};
    use trainwright_spec::schedule::{PipelineShape, SCHEDULES, Schedule, schedule};

    /// Blocks of which forward, input and weight gradients take a third each, without embedding and head.
    fn thirds(count: usize) -> Blocks {
        let third = Seconds::new(1.0 / 3.0);
        let block = PassTimes { forward: third, input: third, weight: third };
        let nothing = PassTimes { forward: Seconds::ZERO, input: Seconds::ZERO, weight: Seconds::ZERO };
        Blocks { runs: vec![(count, block)], embedding: nothing, head: nothing }
    }

    fn bound(schedule: &dyn Schedule, shape: PipelineShape, blocks: &Blocks) -> f64 {
        let parts = Parts::of(blocks, Seconds::ZERO);
        let lists = Arc::new(schedule.lists(shape));
        let passes = Passes::of(&lists, shape.stages()).map(Arc::new);
        let (stages, blocks_in_all) = (shape.stages(), blocks.count());
        let bound = OrderBound::of(Order { lists, passes, stages, blocks: blocks_in_all, parts });
        let rank_of = |stage: usize| schedule.rank_of(stage, shape);
        let mut lines = bound.lines_through_stages(blocks, Seconds::ZERO, &rank_of);
        lines.extend(bound.lines_of_splits(blocks, Seconds::ZERO, &rank_of));
        lines.into_iter().map(|line| line.time(None).get()).fold(0.0, f64::max)
    }

    #[test]
    fn one_stage_per_rank_is_between_the_closed_form_and_the_even_split() {
        // T ≥ W / (1 − (1 − 1/m)^p): see `ramped`. T = (m + p − 1) W / p. Many blocks: the first of each stage says little.
        for (ranks, microbatches) in [(2, 2), (4, 8), (8, 64)] {
            let shape = PipelineShape { ranks, virtual_stages: 1, microbatches };
            let bound = bound(schedule("1f1b").unwrap(), shape, &thirds(10_000)) / 10_000.0;
            let (p, m) = (ranks as f64, microbatches as f64);
            let least = 1.0 / (1.0 - libm::pow(1.0 - 1.0 / m, p));
            assert!(
                (0.99 * least..(m + p - 1.0) / p).contains(&bound),
                "{shape:?}: {bound}, at least {least}"
            );
        }
    }

    #[test]
    fn no_split_is_faster_and_even_ones_are_close() {
        let mut state = 7u64;
        let mut random = move |below: usize| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as usize % below
        };
        let shapes = [
            (2, 1, 4),
            (4, 1, 8),
            (4, 1, 3),
            (4, 2, 8),
            (4, 2, 16),
            (2, 3, 8),
            (4, 4, 16),
            (16, 2, 16),
            (16, 1, 32),
        ];
        for schedule in SCHEDULES.iter().filter(|schedule| schedule.flushes()) {
            let mut closest = f64::INFINITY;
            for (ranks, virtual_stages, microbatches) in shapes {
                let shape = PipelineShape { ranks, virtual_stages, microbatches };
                if schedule.check(shape).is_err() {
                    continue;
                }
                let lists = schedule.lists(shape);
                for on_each in [1, 2, 4] {
                    let blocks = thirds(on_each * shape.stages());
                    let bound = bound(*schedule, shape, &blocks);
                    // Splits from the even one on, each with one more block moved at random.
                    let mut split = vec![on_each; shape.stages()];
                    for _ in 0..10 {
                        let third = blocks.longest_run().forward;
                        let pass = |blocks: &usize| {
                            let time = third * *blocks as f64;
                            PassTimes { forward: time, input: time, weight: time }
                        };
                        let equal = Times::equal(shape, PassTimes::unit());
                        let times = Times { stages: split.iter().map(pass).collect(), ..equal };
                        let makespan = run(&lists, &times).unwrap().makespan.get();
                        let name = schedule.name();
                        assert!(
                            bound <= makespan * (1.0 + 1e-9),
                            "{name} {split:?}: {bound} above {makespan}"
                        );
                        closest = closest.min(makespan / bound);
                        let (from, to) = (random(split.len()), random(split.len()));
                        let between = from > 0 && from + 1 < split.len();
                        if split[from] > usize::from(between) {
                            (split[from], split[to]) = (split[from] - 1, split[to] + 1);
                        }
                    }
                }
            }
            assert!(closest < 1.1, "{}: the closest bound is {closest} below", schedule.name());
        }
    }
}
