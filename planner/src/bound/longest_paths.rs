//! The passes of a schedule and what each waits for, as numbers; and the longest path through them.

use trainwright_spec::schedule::ideal::PassTimes;
use trainwright_spec::schedule::{Action, ActionKind, ActionLists};
use trainwright_spec::units::Seconds;

/// No pass.
const NONE: u32 = u32::MAX;

/// What a path, or a mean of paths, is made of.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Counts {
    /// How often the passes of each stage count, F, I and W; B counts as both I and W.
    pub stages: Vec<[f64; 3]>,
    /// How often messages between ranks do.
    pub messages: f64,
}

impl Counts {
    pub fn none(stages: usize) -> Self {
        Self { stages: vec![[0.0; 3]; stages], messages: 0.0 }
    }

    /// Adds `weight` times another.
    pub fn add(&mut self, other: &Self, weight: f64) {
        for (sum, counts) in self.stages.iter_mut().zip(&other.stages) {
            (0..3).for_each(|part| sum[part] += weight * counts[part]);
        }
        self.messages += weight * other.messages;
    }

    /// Counts one more pass.
    pub fn count(&mut self, stage: usize, kind: ActionKind) {
        let [forward, input, weight] = &mut self.stages[stage];
        match kind {
            ActionKind::Forward => *forward += 1.0,
            ActionKind::Backward => (*input, *weight) = (*input + 1.0, *weight + 1.0),
            ActionKind::Input => *input += 1.0,
            ActionKind::Weight => *weight += 1.0,
        }
    }
}

/// All passes of a step, each behind what it waits for.
pub(super) struct Passes {
    /// Copies not counted.
    stages: usize,
    all: Vec<Pass>,
}

#[derive(Clone, Copy)]
struct Pass {
    stage: u32,
    rank: u32,
    kind: ActionKind,
    /// What its rank does before, and what it needs of another stage.
    after: [u32; 2],
    /// Whether what it needs comes by a message.
    by_message: bool,
}

impl Passes {
    /// The passes of lists for `stages` stages; `None` if some wait for each other.
    pub fn of(lists: &ActionLists, stages: usize) -> Option<Self> {
        let actions = || lists.ranks.iter().flatten();
        let copies = actions().map(|action| action.stage + 1).max()?.div_ceil(stages);
        let microbatches = actions().map(|action| action.microbatch + 1).max()?;
        let at = |stage: usize, microbatch: usize| stage * microbatches + microbatch;
        let mut forward = vec![NONE; copies * stages * microbatches];
        let mut backward = forward.clone();
        let mut next = vec![0; lists.ranks.len()];
        let mut last = vec![NONE; lists.ranks.len()];
        let mut all: Vec<Pass> = Vec::with_capacity(actions().count());
        loop {
            let before = all.len();
            for (rank, list) in lists.ranks.iter().enumerate() {
                while let Some(&Action { kind, stage, microbatch, .. }) = list.get(next[rank]) {
                    let (first, end) = (stage.is_multiple_of(stages), (stage + 1).is_multiple_of(stages));
                    let needs = match kind {
                        ActionKind::Forward if !first => Some(forward[at(stage - 1, microbatch)]),
                        ActionKind::Backward | ActionKind::Input if !end => {
                            Some(backward[at(stage + 1, microbatch)])
                        }
                        _ => None,
                    };
                    if needs == Some(NONE) {
                        break;
                    }
                    let pass = all.len() as u32;
                    match kind {
                        ActionKind::Forward => forward[at(stage, microbatch)] = pass,
                        ActionKind::Backward | ActionKind::Input => backward[at(stage, microbatch)] = pass,
                        ActionKind::Weight => {}
                    }
                    let after = [last[rank], needs.unwrap_or(NONE)];
                    let by_message = needs.is_some_and(|needed| all[needed as usize].rank != rank as u32);
                    let stage = (stage % stages) as u32;
                    all.push(Pass { stage, rank: rank as u32, kind, after, by_message });
                    last[rank] = pass;
                    next[rank] += 1;
                }
            }
            if all.len() == before {
                break;
            }
        }
        (all.len() == actions().count()).then_some(Self { stages, all })
    }

    /// How long a step takes whose stages' passes and messages take so long, and how long its busiest rank works.
    pub fn makespan(&self, times: &[PassTimes], message: Seconds) -> (Seconds, Seconds) {
        let mut ends: Vec<Seconds> = Vec::with_capacity(self.all.len());
        let mut work: Vec<Seconds> = Vec::new();
        for pass in &self.all {
            let [before, needed] = pass.after;
            let end = |pass: u32| if pass == NONE { Seconds::ZERO } else { ends[pass as usize] };
            let mut start = end(before);
            if needed != NONE {
                start = start.max(end(needed) + if pass.by_message { message } else { Seconds::ZERO });
            }
            let end = start + times[pass.stage as usize].of(pass.kind);
            let rank = pass.rank as usize;
            if rank >= work.len() {
                work.resize(rank + 1, Seconds::ZERO);
            }
            work[rank] += end - start;
            ends.push(end);
        }
        let most = |times: Vec<Seconds>| times.into_iter().fold(Seconds::ZERO, Seconds::max);
        (most(ends), most(work))
    }

    /// How long a step takes whose stages' passes and messages take so long, and how often each counts in a longest path. `ends` is
    /// room for as many numbers as there are passes.
    pub fn longest(&self, times: &[[f64; 3]], message: f64, ends: &mut Vec<f64>) -> (f64, Counts) {
        // By stage and kind.
        let of_stage = |[forward, input, weight]: &[f64; 3]| [*forward, input + weight, *input, *weight];
        let times: Vec<[f64; 4]> = times.iter().map(of_stage).collect();
        let kind_of = |kind: ActionKind| match kind {
            ActionKind::Forward => 0,
            ActionKind::Backward => 1,
            ActionKind::Input => 2,
            ActionKind::Weight => 3,
        };
        // When its rank is free, and when what it needs arrives.
        let begins = |ends: &[f64], pass: &Pass| {
            let [before, needed] = pass.after;
            let before = if before == NONE { 0.0 } else { ends[before as usize] };
            let arrives = match needed {
                NONE => 0.0,
                _ if pass.by_message => ends[needed as usize] + message,
                _ => ends[needed as usize],
            };
            (before, arrives)
        };
        ends.clear();
        let (mut last, mut makespan) = (0, f64::NEG_INFINITY);
        for (at, pass) in self.all.iter().enumerate() {
            let (before, arrives) = begins(ends, pass);
            let end = before.max(arrives) + times[pass.stage as usize][kind_of(pass.kind)];
            if end >= makespan {
                (last, makespan) = (at, end);
            }
            ends.push(end);
        }
        let mut counts = Counts::none(self.stages);
        let mut at = last as u32;
        while at != NONE {
            let pass = &self.all[at as usize];
            counts.count(pass.stage as usize, pass.kind);
            let (before, arrives) = begins(ends, pass);
            let waited = arrives > before;
            if waited && pass.by_message {
                counts.messages += 1.0;
            }
            at = pass.after[usize::from(waited)];
        }
        (ends[last], counts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trainwright_spec::schedule::ideal::{Times, run};
    use trainwright_spec::schedule::{PipelineShape, SCHEDULES};

    #[test]
    fn makespans_are_those_of_the_ideal_run() {
        let mut state = 5u64;
        let mut random = move || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            Seconds::new((state >> 33) as f64 / 2f64.powi(31))
        };
        let mut compared = 0;
        for schedule in SCHEDULES {
            for (ranks, virtual_stages, microbatches) in
                [(2, 1, 4), (4, 1, 8), (4, 2, 8), (2, 3, 6), (8, 2, 16)]
            {
                let shape = PipelineShape { ranks, virtual_stages, microbatches };
                if schedule.check(shape).is_err() {
                    continue;
                }
                // No two passes joined.
                let lists: ActionLists = schedule.lists(shape).ranks.into_iter().collect();
                let mut pass = || PassTimes { forward: random(), input: random(), weight: random() };
                let stages: Vec<PassTimes> = (0..shape.stages()).map(|_| pass()).collect();
                let equal = Times::equal(shape, PassTimes::unit());
                let times = Times { stages, transfer: Seconds::new(0.125), ..equal };
                let expected = run(&lists, &times).unwrap();
                let busiest = expected.work.iter().copied().fold(Seconds::ZERO, Seconds::max);
                let passes = Passes::of(&lists, shape.stages()).unwrap();
                let found = passes.makespan(&times.stages, times.transfer);
                assert_eq!(found, (expected.makespan, busiest), "{} {shape:?}", schedule.name());
                compared += 1;
            }
        }
        assert!(compared > 20, "{compared}");
        // One stage on one rank, m microbatches of 1 s forward, 1 s and 1 s back.
        let shape = PipelineShape { ranks: 1, virtual_stages: 1, microbatches: 3 };
        let lists = trainwright_spec::schedule::schedule("1f1b").unwrap().lists(shape);
        let found = Passes::of(&lists, 1).unwrap().makespan(&[PassTimes::unit()], Seconds::ZERO);
        let of_one = PassTimes::unit().forward + PassTimes::unit().input + PassTimes::unit().weight;
        assert_eq!(found, (of_one * 3.0, of_one * 3.0));
    }
}
