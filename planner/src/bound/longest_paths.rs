//! The passes of a schedule and what each waits for, as numbers; and the longest path through them.

use trainwright_spec::schedule::{Action, ActionKind, ActionLists};

/// No pass.
const NONE: u32 = u32::MAX;

/// How often the passes of each stage count, F, I and W; B counts as both I and W.
pub(super) type Counts = Vec<[f64; 3]>;

/// All passes of a step, each behind what it waits for.
pub(super) struct Passes {
    /// Copies not counted.
    stages: usize,
    all: Vec<Pass>,
}

#[derive(Clone, Copy)]
struct Pass {
    stage: u32,
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
                    all.push(Pass { stage: (stage % stages) as u32, kind, after });
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

    /// How long a step takes whose stages' passes take so long, and how often each counts in a longest path. `ends` is room
    /// for as many numbers as there are passes.
    pub fn longest(&self, times: &[[f64; 3]], ends: &mut Vec<f64>) -> (f64, Counts) {
        let end = |ends: &[f64], pass: u32| if pass == NONE { 0.0 } else { ends[pass as usize] };
        ends.clear();
        for pass in &self.all {
            let [forward, input, weight] = times[pass.stage as usize];
            let time = match pass.kind {
                ActionKind::Forward => forward,
                ActionKind::Backward => input + weight,
                ActionKind::Input => input,
                ActionKind::Weight => weight,
            };
            let [a, b] = pass.after;
            ends.push(end(ends, a).max(end(ends, b)) + time);
        }
        let last = (0..ends.len()).max_by(|a, b| ends[*a].total_cmp(&ends[*b])).unwrap_or(0);
        let mut counts = vec![[0.0; 3]; self.stages];
        let mut at = last as u32;
        while at != NONE {
            let pass = &self.all[at as usize];
            count(&mut counts[pass.stage as usize], pass.kind);
            let [a, b] = pass.after;
            at = if end(ends, b) > end(ends, a) { b } else { a };
        }
        (ends[last], counts)
    }
}

/// Counts one more pass.
pub(super) fn count(counts: &mut [f64; 3], kind: ActionKind) {
    let [forward, input, weight] = counts;
    match kind {
        ActionKind::Forward => *forward += 1.0,
        ActionKind::Backward => (*input, *weight) = (*input + 1.0, *weight + 1.0),
        ActionKind::Input => *input += 1.0,
        ActionKind::Weight => *weight += 1.0,
    }
}
