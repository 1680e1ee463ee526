//! Makes action lists by running them: whenever a rank is free, a rule chooses among the passes that could start.
//!
//! It keeps the dependencies, the memory limit and the order of microbatches; what to prefer is the caller's.

use super::ideal::Times;
use super::{Action, ActionKind, ActionLists, PipelineShape};
use crate::units::Picoseconds;
use std::collections::BTreeSet;

/// The pipeline that lists are made for, and their limits.
pub(super) struct Build<'a> {
    /// The sizes.
    pub shape: PipelineShape,
    /// The rank of each stage, copies counted.
    pub rank_of: Vec<usize>,
    /// The microbatches of each copy, in the order in which they enter it.
    pub microbatches: Vec<Vec<usize>>,
    /// How long passes take.
    pub times: &'a Times,
    /// Whether backward is run in halves.
    pub backward: Backward,
    /// The most microbatches that are between the first stage's F and its I or B, in each copy.
    pub admitted: usize,
    /// By rank: the most activations of a stage that it holds.
    pub limit: Vec<usize>,
}

/// How backward is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Backward {
    /// As B.
    Whole,
    /// As I and W.
    Halves,
}

/// A pass that could start now.
#[derive(Debug, Clone, Copy)]
pub(super) struct Candidate {
    /// Which.
    pub action: Action,
    /// How many microbatches of its copy have had this pass of this stage.
    pub turn: usize,
}

/// The input of a rule.
pub(super) struct Choice<'a> {
    /// The rank that is free.
    pub rank: usize,
    /// The passes that it could start.
    pub candidates: &'a [Candidate],
    /// How long until the next pass that is known to become possible.
    pub next: Option<Picoseconds>,
}

impl Build<'_> {
    /// All microbatches through one copy without a limit.
    pub fn unlimited(shape: PipelineShape, rank_of: Vec<usize>, times: &Times) -> Build<'_> {
        Build {
            shape,
            rank_of,
            microbatches: vec![(0..shape.microbatches).collect()],
            times,
            backward: Backward::Halves,
            admitted: usize::MAX,
            limit: vec![usize::MAX; shape.ranks],
        }
    }

    /// The lists, where `choose` gives the index of the candidate to start, or `None` to wait; `None` if the ranks end up
    /// waiting for each other.
    pub fn run(&self, mut choose: impl FnMut(&Choice) -> Option<usize>) -> Option<ActionLists> {
        let mut state = State::new(self);
        let passes = if self.backward == Backward::Halves { 3 } else { 2 };
        let mut left = passes * self.shape.stages() * self.shape.microbatches;
        let mut events = BTreeSet::from([Picoseconds(0)]);
        while let Some(now) = events.pop_first() {
            for rank in 0..self.shape.ranks {
                if state.free[rank] > now {
                    continue;
                }
                let (candidates, next) = state.candidates(rank, now);
                if candidates.is_empty() {
                    continue;
                }
                let next = next.map(|next| next - now);
                let Some(chosen) = choose(&Choice { rank, candidates: &candidates, next }) else { continue };
                let end = now + Picoseconds::from(self.times.of(candidates[chosen].action));
                state.start(rank, candidates[chosen], end);
                events.extend([end, end + state.transfer]);
                left -= 1;
            }
        }
        (left == 0).then(|| state.lists.into_iter().collect())
    }
}

/// The passes that have been started so far.
struct State<'a> {
    build: &'a Build<'a>,
    transfer: Picoseconds,
    stages_of: Vec<Vec<usize>>,
    /// By stage, then F, I or B, W: how many have been started, and when each ends.
    ends: Vec<[Vec<Picoseconds>; 3]>,
    held: Vec<usize>,
    free: Vec<Picoseconds>,
    lists: Vec<Vec<Action>>,
}

const FORWARD: usize = 0;
const INPUT: usize = 1;
const WEIGHT: usize = 2;

impl<'a> State<'a> {
    fn new(build: &'a Build<'a>) -> Self {
        let ranks = build.shape.ranks;
        let mut stages_of = vec![Vec::new(); ranks];
        build.rank_of.iter().enumerate().for_each(|(stage, rank)| stages_of[*rank].push(stage));
        State {
            build,
            transfer: build.times.transfer.into(),
            stages_of,
            ends: vec![Default::default(); build.rank_of.len()],
            held: vec![0; ranks],
            free: vec![Picoseconds(0); ranks],
            lists: vec![Vec::new(); ranks],
        }
    }

    /// When the `turn`-th result of `stage` is there for `rank`; `None` if its pass has not started.
    fn arrival(&self, stage: usize, pass: usize, turn: usize, rank: usize) -> Option<Picoseconds> {
        let end = *self.ends[stage][pass].get(turn)?;
        Some(if self.build.rank_of[stage] == rank { end } else { end + self.transfer })
    }

    /// When the next pass of this kind of `stage` can start, as far as is known and memory allows.
    fn ready(&self, stage: usize, pass: usize, rank: usize) -> Option<Picoseconds> {
        let stages = self.build.shape.stages();
        let turn = self.ends[stage][pass].len();
        if turn >= self.build.microbatches[stage / stages].len() {
            return None;
        }
        let [forwards, inputs, _] = &self.ends[stage];
        match pass {
            FORWARD if self.held[rank] >= self.build.limit[rank] => None,
            FORWARD if stage.is_multiple_of(stages) => {
                (forwards.len() - inputs.len() < self.build.admitted).then_some(Picoseconds(0))
            }
            FORWARD => self.arrival(stage - 1, FORWARD, turn, rank),
            INPUT => {
                let forward = self.arrival(stage, FORWARD, turn, rank)?;
                match (stage + 1).is_multiple_of(stages) {
                    true => Some(forward),
                    false => Some(forward.max(self.arrival(stage + 1, INPUT, turn, rank)?)),
                }
            }
            _ => self.arrival(stage, INPUT, turn, rank),
        }
    }

    fn candidates(&self, rank: usize, now: Picoseconds) -> (Vec<Candidate>, Option<Picoseconds>) {
        let passes: &[(usize, ActionKind)] = match self.build.backward {
            Backward::Whole => &[(FORWARD, ActionKind::Forward), (INPUT, ActionKind::Backward)],
            Backward::Halves => {
                &[(FORWARD, ActionKind::Forward), (INPUT, ActionKind::Input), (WEIGHT, ActionKind::Weight)]
            }
        };
        let mut candidates = Vec::new();
        let mut next: Option<Picoseconds> = None;
        for &stage in &self.stages_of[rank] {
            for &(pass, kind) in passes {
                let Some(ready) = self.ready(stage, pass, rank) else { continue };
                if ready > now {
                    next = Some(next.map_or(ready, |next| next.min(ready)));
                    continue;
                }
                let turn = self.ends[stage][pass].len();
                let microbatch = self.build.microbatches[stage / self.build.shape.stages()][turn];
                candidates.push(Candidate { action: Action { stage, kind, microbatch }, turn });
            }
        }
        (candidates, next)
    }

    fn start(&mut self, rank: usize, Candidate { action, .. }: Candidate, end: Picoseconds) {
        let pass = match action.kind {
            ActionKind::Forward => FORWARD,
            ActionKind::Backward | ActionKind::Input => INPUT,
            ActionKind::Weight => WEIGHT,
        };
        match action.kind {
            ActionKind::Forward => self.held[rank] += 1,
            ActionKind::Input => {}
            ActionKind::Backward | ActionKind::Weight => self.held[rank] -= 1,
        }
        self.ends[action.stage][pass].push(end);
        self.free[rank] = end;
        self.lists[rank].push(action);
    }
}
