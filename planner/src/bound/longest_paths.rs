//! The passes of a schedule and what each waits for, as numbers; and the longest path through them.

use trainwright_spec::schedule::{Action, ActionKind, ActionLists};

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
                    all.push(Pass { stage: (stage % stages) as u32, rank: rank as u32, kind, after });
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

    /// How long a step takes whose stages' passes and messages take so long, and how often each counts in a longest path. `ends` is
    /// room for as many numbers as there are passes.
    pub fn longest(&self, times: &[[f64; 3]], message: f64, ends: &mut Vec<f64>) -> (f64, Counts) {
        let comes_by_message = |pass: &Pass| self.all[pass.after[1] as usize].rank != pass.rank;
        let begins = |ends: &[f64], pass: &Pass| {
            let [before, needed] = pass.after;
            let end = |pass: u32| if pass == NONE { 0.0 } else { ends[pass as usize] };
            match needed {
                NONE => (end(before), false),
                _ => {
                    let arrives = end(needed) + if comes_by_message(pass) { message } else { 0.0 };
                    (arrives.max(end(before)), arrives > end(before))
                }
            }
        };
        ends.clear();
        for pass in &self.all {
            let [forward, input, weight] = times[pass.stage as usize];
            let time = match pass.kind {
                ActionKind::Forward => forward,
                ActionKind::Backward => input + weight,
                ActionKind::Input => input,
                ActionKind::Weight => weight,
            };
            ends.push(begins(ends, pass).0 + time);
        }
        let last = (0..ends.len()).max_by(|a, b| ends[*a].total_cmp(&ends[*b])).unwrap_or(0);
        let mut counts = Counts::none(self.stages);
        let mut at = last as u32;
        while at != NONE {
            let pass = &self.all[at as usize];
            counts.count(pass.stage as usize, pass.kind);
            let waited = begins(ends, pass).1;
            if waited && comes_by_message(pass) {
                counts.messages += 1.0;
            }
            at = pass.after[usize::from(waited)];
        }
        (ends[last], counts)
    }
}
