//! What whole blocks in the order of a schedule's passes take at least, in what the ranks can hold.
//!
//! The order of the passes wants stages that take equally long, and memory wants blocks where few microbatches are in flight, or
//! computed again. A bound of one of them gives it what it wants, in parts of blocks. Together they are an integer program over how
//! many blocks x_so each stage s has with each option o, a run of the model and a recompute choice, and b_r in all on each rank r:
//!
//! ```text
//! min T = P + n R
//! P ≥ A_k + Σ x_so τ_kso              for each path k through the passes of the first microbatches
//! R ≥ E_r + Σ_{s on r} x_so t_o       for each rank r, of a microbatch: there are n more, each of which takes what the busiest does
//! Σ_{s on r} x_so a_sop ≤ M_rp        for each rank r at each instant p at which it holds most
//! Σ_so x_so = L_q                     for each run q of the model, of L_q blocks
//! Σ_o x_so ≥ 1                        where a stage must have a block
//! Σ_{s on r} x_so = b_r               for each rank r, whole where it has one stage
//! ```
//!
//! The blocks of a run need not be next to each other, and parts of one may be on several stages of a rank, or with several options.
//! Paths are made as they are needed: the longest one of the program's answer is added until it is about as long as the program has
//! it.

use super::longest_paths::{Counts, Passes};
use super::pipeline_work::ROUNDING;
use crate::solver::{IntegerProgram, Limits, Relation, Searched, search};
use std::sync::Arc;
use trainwright_spec::units::Seconds;

/// How often a path is added.
const ROUNDS: usize = 8;

/// By how much the longest path of an answer may be longer than the program has it.
const CLOSE: f64 = 1e-3;

/// Programs of more columns than this would take longer than what they spare.
const MOST_OPTIONS: usize = 192;

/// Seconds after which a program is given up, as microlp does not end for every program; most take milliseconds. Only where this limit
/// is reached does a bound depend on the speed of the machine.
const LOST: Seconds = Seconds::new(10.0);

/// Nodes of a search; most programs take ten.
const NODES: u64 = 64;

/// One way to run a block on a stage.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct StageOption {
    /// Which run of the model.
    pub run: usize,
    /// Which recompute choice.
    pub choice: usize,
    /// Forward, and both halves of backward, in seconds.
    pub times: [f64; 3],
    /// What it holds at each of the rank's peaks, as a part of the GPU's memory.
    pub memory: Vec<f64>,
}

/// A stage, and the ways to run blocks on it.
#[derive(Debug, Clone)]
pub(super) struct StageOptions {
    pub rank: usize,
    /// How many blocks it has at least.
    pub least_blocks: usize,
    /// Embedding and head on it, in seconds as `StageOption::times`.
    pub ends: [f64; 3],
    pub options: Vec<StageOption>,
}

/// Stages whose blocks are to be chosen.
pub(super) struct StageProgram {
    pub stages: Vec<StageOptions>,
    /// By rank and peak: what is left for blocks, as a part of the GPU's memory.
    pub room: Vec<Vec<f64>>,
    /// Blocks by run of the model.
    pub blocks: Vec<usize>,
    /// What a message between ranks takes at least, in seconds.
    pub message: f64,
    /// Microbatches beyond those that the paths run through.
    pub more: f64,
    /// Whether ranks have whole blocks. With several stages on a rank the search for these does not end in time.
    pub whole: bool,
    pub passes: Arc<Passes>,
}

/// Which columns of a program stand for what.
struct Columns {
    /// P.
    length: usize,
    /// By stage and option.
    blocks: Vec<Vec<usize>>,
}

/// What a program says.
struct Answer {
    /// No step is below it, in seconds.
    bound: f64,
    /// The last values of its columns, if there are any.
    blocks: Option<(Vec<f64>, Columns)>,
}

impl StageProgram {
    /// A time that no step is below whose stages are chosen among these, in seconds. One that is `enough` is as good as any; `paths`
    /// are the first. 0 if the program is too large.
    pub fn bound(&self, paths: Vec<Counts>, enough: &dyn Fn(f64) -> bool) -> f64 {
        self.solve(paths, enough).map_or(0.0, |answer| answer.bound)
    }

    /// How many blocks each stage has with each of `choices` recompute choices in an answer to the program: parts of blocks, where
    /// they need not be whole. `None` if there is no answer, or the program is too large.
    pub fn blocks(&self, paths: Vec<Counts>, choices: usize) -> Option<Vec<Vec<f64>>> {
        let (values, columns) = self.solve(paths, &|_| false)?.blocks?;
        let of_stage = |(stage, columns): (&StageOptions, &Vec<usize>)| {
            let mut blocks = vec![0.0; choices];
            for (option, column) in stage.options.iter().zip(columns) {
                blocks[option.choice] += values[*column].max(0.0);
            }
            blocks
        };
        Some(self.stages.iter().zip(&columns.blocks).map(of_stage).collect())
    }

    /// Solves the program. `None` if it is too large.
    fn solve(&self, mut paths: Vec<Counts>, enough: &dyn Fn(f64) -> bool) -> Option<Answer> {
        if self.stages.iter().map(|stage| stage.options.len()).sum::<usize>() > MOST_OPTIONS {
            return None;
        }
        let (mut bound, mut ends, mut blocks) = (0.0f64, Vec::new(), None);
        for _ in 0..ROUNDS {
            let (program, columns) = self.program(&paths);
            let Searched { values, bound: least, .. } =
                search(&program, Limits { time: Some(LOST), nodes: Some(NODES) });
            bound = bound.max(least.unwrap_or(0.0) * (1.0 - ROUNDING));
            let Some(values) = values.filter(|_| !enough(bound)) else { break };
            let stages = self.times(&values, &columns);
            let (longest, path) = self.passes.longest(&stages, self.message, &mut ends);
            let is_close = longest <= values[columns.length] * (1.0 + CLOSE);
            blocks = Some((values, columns));
            if is_close {
                break;
            }
            paths.push(path);
        }
        Some(Answer { bound, blocks })
    }

    /// What a path counts of a stage's passes.
    fn on_path(path: &Counts, stage: usize, times: &[f64; 3]) -> f64 {
        path.stages[stage].iter().zip(times).map(|(count, time)| count * time).sum()
    }

    fn program(&self, paths: &[Counts]) -> (IntegerProgram, Columns) {
        let mut program = IntegerProgram::default();
        let (length, work) = (program.column(1.0, f64::INFINITY), program.column(self.more, f64::INFINITY));
        let all_blocks = self.blocks.iter().sum::<usize>() as f64;
        let stage = |stage: &StageOptions| -> Vec<usize> {
            let blocks: Vec<usize> =
                stage.options.iter().map(|_| program.column(0.0, f64::INFINITY)).collect();
            let ones = blocks.iter().map(|column| (*column, 1.0)).collect();
            program.row(ones, Relation::AtLeast, stage.least_blocks as f64);
            blocks
        };
        let blocks: Vec<Vec<usize>> = self.stages.iter().map(stage).collect();
        let stages = || self.stages.iter().zip(&blocks).enumerate();
        let all = || {
            stages().flat_map(|(at, (stage, columns))| {
                stage.options.iter().zip(columns).map(move |(option, column)| (at, option, *column))
            })
        };
        for path in paths {
            let time = |(at, option, column): (usize, &StageOption, usize)| {
                (column, -Self::on_path(path, at, &option.times))
            };
            let ends = stages().map(|(at, (stage, _))| Self::on_path(path, at, &stage.ends)).sum::<f64>();
            let terms = all().map(time).chain([(length, 1.0)]).collect();
            program.row(terms, Relation::AtLeast, ends + path.messages * self.message);
        }
        for (rank, room) in self.room.iter().enumerate() {
            let own = || all().filter(|(at, ..)| self.stages[*at].rank == rank);
            let time = |(_, option, column): (usize, &StageOption, usize)| {
                (column, -option.times.iter().sum::<f64>())
            };
            let on_rank = self.stages.iter().filter(|stage| stage.rank == rank);
            let ends = on_rank.flat_map(|stage| stage.ends).sum();
            if self.whole {
                let whole = program.integer(0.0, all_blocks);
                let blocks = own().map(|(.., column)| (column, 1.0)).chain([(whole, -1.0)]).collect();
                program.row(blocks, Relation::Equal, 0.0);
            }
            program.row(own().map(time).chain([(work, 1.0)]).collect(), Relation::AtLeast, ends);
            for (peak, room) in room.iter().enumerate() {
                let terms = own().map(|(_, option, column)| (column, option.memory[peak])).collect();
                program.row(terms, Relation::AtMost, *room);
            }
        }
        for (run, blocks) in self.blocks.iter().enumerate() {
            let terms = all().filter(|(_, option, _)| option.run == run).map(|(.., column)| (column, 1.0));
            program.row(terms.collect(), Relation::Equal, *blocks as f64);
        }
        (program, Columns { length, blocks })
    }

    /// What the passes of each stage take by an answer.
    fn times(&self, values: &[f64], columns: &Columns) -> Vec<[f64; 3]> {
        let stage = |(stage, columns): (&StageOptions, &Vec<usize>)| {
            let mut times = stage.ends;
            for (option, column) in stage.options.iter().zip(columns) {
                let blocks = values[*column].max(0.0);
                times.iter_mut().zip(option.times).for_each(|(sum, time)| *sum += blocks * time);
            }
            times
        };
        self.stages.iter().zip(&columns.blocks).map(stage).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trainwright_spec::schedule::ideal::PassTimes;
    use trainwright_spec::schedule::{PipelineShape, schedule};

    /// All ways to give `stages` stages `blocks` blocks: by stage, how many keep their activations and how many are computed again.
    fn all_ways(stages: usize, blocks: usize) -> Vec<Vec<[usize; 2]>> {
        if stages == 1 {
            return (0..=blocks).map(|again| vec![[blocks - again, again]]).collect();
        }
        let mut ways = Vec::new();
        for first in 0..=blocks {
            for rest in all_ways(stages - 1, blocks - first) {
                ways.extend((0..=first).map(|again| [&[[first - again, again]][..], &rest].concat()));
            }
        }
        ways
    }

    #[test]
    fn nothing_that_fits_is_faster_and_the_fastest_is_close() {
        let mut state = 11u64;
        let mut random = move || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as f64 / 2f64.powi(31)
        };
        let (mut of_best, mut in_memory, mut questions) = (0.0, 0, 0);
        for (ranks, blocks, microbatches) in [(2, 5, 4), (3, 6, 6), (3, 7, 9), (4, 6, 8)].repeat(8) {
            let shape = PipelineShape { ranks, virtual_stages: 1, microbatches };
            let lists = schedule("1f1b").unwrap().lists(shape);
            let passes = Arc::new(Passes::of(&lists, ranks).unwrap());
            let (forward, back) = (0.5 + random(), 0.5 + random());
            let message = 0.1 * random();
            let options = |rank: usize| {
                let held = (ranks - rank).min(microbatches) as f64;
                let option = |times: [f64; 3], kept: f64| StageOption {
                    run: 0,
                    choice: usize::from(kept < 1.0),
                    times,
                    memory: vec![0.02 + 0.02 * kept * held],
                };
                vec![option([forward, back, back], 1.0), option([forward, back + forward, back], 0.1)]
            };
            let ends = |random: &mut dyn FnMut() -> f64| [random(), random(), random()];
            let (first, last) = (ends(&mut random), ends(&mut random));
            let room = 0.07 + 0.25 * random();
            let stage = |rank: usize| StageOptions {
                rank,
                least_blocks: usize::from(rank > 0 && rank + 1 < ranks),
                ends: match rank {
                    0 => first,
                    _ if rank + 1 == ranks => last,
                    _ => [0.0; 3],
                },
                options: options(rank),
            };
            let program = StageProgram {
                stages: (0..ranks).map(stage).collect(),
                room: vec![vec![room]; ranks],
                blocks: vec![blocks],
                message,
                more: 0.0,
                whole: true,
                passes: passes.clone(),
            };
            let mut best = [f64::INFINITY; 2];
            for way in all_ways(ranks, blocks) {
                let stages = || program.stages.iter().zip(&way);
                if stages().any(|(stage, [kept, again])| kept + again < stage.least_blocks) {
                    continue;
                }
                let times = |(stage, counts): (&StageOptions, &[usize; 2])| {
                    let mut times = stage.ends;
                    for (option, count) in stage.options.iter().zip(counts) {
                        times
                            .iter_mut()
                            .zip(option.times)
                            .for_each(|(sum, time)| *sum += time * *count as f64);
                    }
                    let [forward, input, weight] = times.map(Seconds::new);
                    PassTimes { forward, input, weight }
                };
                let held = |(stage, counts): (&StageOptions, &[usize; 2])| -> f64 {
                    let options = stage.options.iter().zip(counts);
                    options.map(|(option, count)| option.memory[0] * *count as f64).sum()
                };
                let times: Vec<PassTimes> = stages().map(times).collect();
                let (makespan, _) = passes.makespan(&times, Seconds::new(message));
                let fits = stages().all(|stage| held(stage) <= room);
                best[0] = best[0].min(makespan.get());
                best[1] = best[1].min(if fits { makespan.get() } else { f64::INFINITY });
            }
            if best[1].is_infinite() {
                continue;
            }
            let bound = program.bound(Vec::new(), &|_| false);
            assert!(bound <= best[1], "{shape:?}: {bound} above {}", best[1]);
            of_best += bound / best[1];
            in_memory += usize::from(bound > best[0]);
            questions += 1;
        }
        assert!(questions > 16 && in_memory > 4, "{questions}, memory matters in {in_memory}");
        assert!(of_best / questions as f64 > 0.95, "{}", of_best / questions as f64);
    }

    #[test]
    fn ranks_have_whole_blocks() {
        let lists =
            schedule("1f1b").unwrap().lists(PipelineShape { ranks: 2, virtual_stages: 1, microbatches: 1 });
        let option = StageOption { run: 0, choice: 0, times: [1.0; 3], memory: vec![0.1] };
        let stage =
            |rank| StageOptions { rank, least_blocks: 0, ends: [0.0; 3], options: vec![option.clone()] };
        let bound = |blocks: usize, whole: bool| {
            let program = StageProgram {
                stages: vec![stage(0), stage(1)],
                room: vec![vec![1.0]; 2],
                blocks: vec![blocks],
                message: 0.0,
                more: 10.0,
                whole,
                passes: Arc::new(Passes::of(&lists, 2).unwrap()),
            };
            program.bound(Vec::new(), &|_| false)
        };
        // A block takes 3 s. The first microbatch runs through all, ten more take what the busiest rank does.
        for (blocks, whole, expected) in
            [(3, true, 69.0), (3, false, 54.0), (4, true, 72.0), (5, true, 105.0)]
        {
            let found = bound(blocks, whole);
            assert!(
                (found / expected - 1.0).abs() < 2.0 * ROUNDING,
                "{blocks} blocks: {found}, not {expected}"
            );
        }
    }
}
