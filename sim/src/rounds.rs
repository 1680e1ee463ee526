//! Steps whose middle repeats: a few rounds of it are simulated, and the rest follows from them exactly.
//!
//! ```text
//! rank 0   F F F F  B F B F B F ... B F B F  B B B B          a round: what a rank does for some microbatches, and
//! rank 1   . F F F  B F B F B F ... B F B F  B B B .          then again for as many others
//!                   └─ rounds ──────────────┘
//!
//! lo ──── two rounds that are alike ──── hi                   by rank, in the order of the program
//!          T ├─── Δ ───┤ T + Δ
//! ```
//!
//! The engine is a function of what runs and waits, not of the clock. So if everything that is not over at T, on every rank, is
//! posted, starts and ends Δ before its counterpart of the next round, the state at T + Δ is that at T, one round further: then
//! all rounds up to the one in which some rank has none left take Δ, and what follows comes as much later as rounds were left
//! out. Times are integers, so that "the same" is no matter of tolerance; where they are not the same, the whole step is simulated.
//! (Not compared is the order in which the loads of three or more ops on one device are added up, a rounding of floats.)

use crate::costs::{Conditions, Costs};
use crate::engine::{Halt, OpId, Outcome, Stop};
use crate::flat::{Flat, Templates};
use crate::template::Detail;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use trainwright_spec::program::{Call, Program};
use trainwright_spec::schedule::{Action, ActionKind};
use trainwright_spec::units::Picoseconds;

/// The part of a program's microbatches that must be left out to be worth it.
const WORTHWHILE: f64 = 0.25;

/// Of how many pipelines of microbatches the rounds are simulated that should be alike: first of few, then of more.
const KEPT_PIPELINES: [usize; 2] = [1, 4];

/// Whether what repeats takes the same time: ops whose times depend on their numbers do not, and threads that take turns depend on
/// when the turns before began.
pub(crate) fn repeats_exactly(costs: &impl Costs, detail: Detail) -> bool {
    let Conditions { jitter, scheduling, .. } = costs.conditions();
    scheduling.is_none() && (detail == Detail::Calls || jitter.is_empty())
}

/// A program without most of its rounds, and its run, from which the times of the whole program follow.
pub(crate) struct FewRounds {
    pub flat: Flat,
    pub outcome: Outcome,
    pub steady: Steady,
    /// How many rounds are left out.
    pub left_out: usize,
}

impl FewRounds {
    /// `None` if its ranks do not repeat what they do in those rounds.
    pub fn of(
        program: &Program,
        templates: &Arc<Templates>,
        costs: &impl Costs,
        stop: Stop,
    ) -> Result<Option<Self>, Halt> {
        for kept in KEPT_PIPELINES {
            let Some(short) = Shortened::of(program, kept) else { return Ok(None) };
            let calls: Vec<&[Call]> = short.calls.iter().map(Vec::as_slice).collect();
            let flat = Flat::of_templates(program, &calls, templates.clone(), costs, stop)?;
            let outcome = match flat.graph.run_until(stop) {
                Ok(outcome) => outcome,
                // The whole program says which of its ops never start.
                Err(Halt::Deadlock(_)) => return Ok(None),
                Err(Halt::Stopped) => return Err(Halt::Stopped),
            };
            let (ops, firsts) = flat.first_ops(&calls);
            if let Some(steady) = short.steady(&ops, &firsts, &outcome) {
                return Ok(Some(FewRounds { flat, outcome, steady, left_out: short.left_out }));
            }
        }
        Ok(None)
    }

    /// When each op of the whole program starts and ends.
    pub fn outcome_of_all(self) -> Outcome {
        let Steady { period, rounds, ops, .. } = &self.steady;
        let whole = |short: Vec<Picoseconds>| {
            let left_out: usize = rounds.iter().map(|round| round.len() * self.left_out).sum();
            let mut whole = Vec::with_capacity(short.len() + left_out);
            for (round, bounds) in rounds.iter().zip(ops.windows(2)) {
                whole.extend_from_slice(&short[bounds[0]..round.end]);
                for more in 1..=self.left_out as u64 {
                    let later = Picoseconds(more * period.0);
                    whole.extend(short[round.clone()].iter().map(|time| *time + later));
                }
                let later = Picoseconds(self.left_out as u64 * period.0);
                whole.extend(short[round.end..bounds[1]].iter().map(|time| *time + later));
            }
            whole
        };
        let Outcome { posted, started, ended } = self.outcome;
        Outcome { posted: whole(posted), started: whole(started), ended: whole(ended) }
    }

    /// What the rounds that are left out take.
    pub fn left_out_time(&self) -> Picoseconds {
        Picoseconds(self.left_out as u64 * self.steady.period.0)
    }
}

/// The calls of a program with all but a few rounds of its middle left out.
struct Shortened {
    /// The calls of each rank that are left, their microbatches numbered without gaps.
    calls: Vec<Vec<Call>>,
    /// How many rounds are left out.
    left_out: usize,
    /// The middle of each rank's calls that are left.
    middles: Vec<Middle>,
}

/// The part of a rank's calls that repeats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Middle {
    /// The first call.
    start: usize,
    /// The calls of a round.
    round: usize,
    /// How many whole rounds there are.
    rounds: usize,
}

/// A round that all ranks repeat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Steady {
    /// When one begins in the run: the state of all ranks then is that at its end.
    pub from: Picoseconds,
    /// What each takes.
    pub period: Picoseconds,
    /// Of each rank the ops of one round, as many as it has, numbered in the short program. Those before come as they do there,
    /// those behind as much later as rounds were left out.
    pub rounds: Vec<Range<usize>>,
    /// The first op of each rank of that program, and how many there are.
    pub ops: Vec<usize>,
}

impl Shortened {
    /// The calls of `program` with `kept` pipelines of microbatches in its middle; `None` if little could be left out.
    ///
    /// A round of most schedules is one microbatch, of interleaved ones as many as there are pipeline ranks.
    fn of(program: &Program, kept: usize) -> Option<Self> {
        let ranks = 1 + program.ranks.iter().map(|rank| rank.pipeline_rank).max()?;
        let copies = Copies::of(program)?;
        let mut sizes = vec![1, 2, ranks, 2 * ranks];
        sizes.dedup();
        sizes.into_iter().find_map(|size| {
            // Ranks are up to a pipeline of microbatches apart.
            let rounds = (kept * ranks).div_ceil(size) + 3;
            let middles = program.ranks.iter().map(|rank| middle(&rank.calls, size));
            let middles = middles.collect::<Option<Vec<Middle>>>()?;
            let least = middles.iter().map(|middle| middle.rounds).min()?;
            let left_out = least.saturating_sub(rounds);
            if left_out == 0 || ((left_out * size) as f64) < WORTHWHILE * copies.microbatches as f64 {
                return None;
            }
            let calls = program.ranks.iter().zip(&middles);
            let calls = calls.map(|(rank, middle)| copies.without(&rank.calls, *middle, (left_out, size)));
            let calls = calls.collect::<Option<Vec<Vec<Call>>>>()?;
            let middles = middles.iter().map(|middle| Middle { rounds: middle.rounds - left_out, ..*middle });
            Some(Self { calls, left_out, middles: middles.collect() })
        })
    }

    /// The round that all ranks repeat in a run of the short program. `ops` gives the first op of each rank, and then how many there
    /// are; `calls` the first op of each call, by rank.
    fn steady(&self, ops: &[usize], calls: &[Vec<usize>], outcome: &Outcome) -> Option<Steady> {
        // In the program's order.
        let mut windows = Vec::with_capacity(self.middles.len());
        let mut period = None;
        for ((middle, bounds), first) in self.middles.iter().zip(ops.windows(2)).zip(calls) {
            let op = |call: usize| first.get(call).copied().unwrap_or(bounds[1]);
            let (start, end) = (op(middle.start), op(middle.start + middle.round * middle.rounds));
            let round = op(middle.start + middle.round) - start;
            let alike = |op: usize| {
                let (one, next) = (OpId(op as u32), OpId((op + round) as u32));
                let later = |of: &[Picoseconds]| of[next].0.wrapping_sub(of[one].0);
                let by = later(&outcome.ended);
                (later(&outcome.posted) == by && later(&outcome.started) == by).then_some(by)
            };
            let middle_op = start + (end - start) / 2 - round / 2;
            let period = *period.get_or_insert(alike(middle_op)?);
            let repeats = |op: &usize| alike(*op) == Some(period);
            let low = (start..middle_op).rev().take_while(repeats).last().unwrap_or(middle_op);
            let high = (middle_op..end - round).take_while(repeats).last()? + 1;
            windows.push((low, high, round));
        }
        let period = Picoseconds(period?);
        // All that came before the windows is over at the time, and nothing behind them is posted; nor a round later.
        let (mut from, mut to) = (Picoseconds::ZERO, Picoseconds(u64::MAX));
        for ((low, high, round), bounds) in windows.iter().zip(ops.windows(2)) {
            let last_end = |ops: Range<usize>| outcome.ended[ops].iter().copied().max();
            let first_post = |ops: Range<usize>| outcome.posted[ops].iter().copied().min();
            from = from.max(last_end(bounds[0]..*low).unwrap_or_default());
            let later = last_end(bounds[0]..low + round).unwrap_or_default();
            from = from.max(Picoseconds(later.0.saturating_sub(period.0)));
            to = to.min(first_post(*high..bounds[1]).unwrap_or(to));
            let later = first_post(high + round..bounds[1]).unwrap_or(Picoseconds(u64::MAX));
            to = to.min(Picoseconds(later.0.saturating_sub(period.0)));
        }
        let rounds = windows.iter().map(|(low, _, round)| *low..low + round);
        (from < to).then(|| Steady { from, period, rounds: rounds.collect(), ops: ops.to_vec() })
    }
}

/// The copies of a program's stages, each of which runs a part of the microbatches: the first copy the first, and so on.
struct Copies {
    /// What each of them runs.
    microbatches: usize,
}

/// The least microbatch that a rank runs through each of its stages.
fn first_microbatches(calls: &[Call]) -> BTreeMap<usize, usize> {
    let mut first = BTreeMap::new();
    for Action { stage, microbatch, .. } in calls.iter().filter_map(|call| call.action) {
        let least = first.entry(stage).or_insert(microbatch);
        *least = microbatch.min(*least);
    }
    first
}

impl Copies {
    /// `None` without microbatches.
    fn of(program: &Program) -> Option<Self> {
        let calls = || program.ranks.iter().flat_map(|rank| &rank.calls);
        let all = 1 + calls().filter_map(|call| call.action).map(|action| action.microbatch).max()?;
        let firsts = program.ranks.iter().flat_map(|rank| first_microbatches(&rank.calls).into_values());
        let copies = firsts.collect::<BTreeSet<usize>>().len();
        Some(Self { microbatches: all / copies })
    }

    /// The calls of a rank without the last `left_out` rounds of a middle, of `size` microbatches each, and without their microbatches;
    /// `None` if what is left is not all of fewer microbatches: a call behind those rounds may be of an earlier one.
    fn without(&self, calls: &[Call], middle: Middle, (left_out, size): (usize, usize)) -> Option<Vec<Call>> {
        let Middle { start, round, rounds } = middle;
        let (to, from) = (start + round * (rounds - left_out), start + round * rounds);
        let first = first_microbatches(calls);
        let renumbered = |call: &Call, copies: usize| {
            let action = match call.action {
                Some(action) => {
                    let before = copies + first[&action.stage] / self.microbatches;
                    let microbatch = action.microbatch.checked_sub(before * left_out * size)?;
                    Some(Action { microbatch, ..action })
                }
                None => None,
            };
            Some(Call { action, ..*call })
        };
        let before = calls[..to].iter().map(|call| renumbered(call, 0));
        let behind = calls[from..].iter().map(|call| renumbered(call, 1));
        let left: Vec<Call> = before.chain(behind).collect::<Option<_>>()?;
        are_all_of(&left, self.microbatches - left_out * size).then_some(left)
    }
}

/// Whether a call does for a microbatch `size` later what another does.
fn follows(call: &Call, earlier: &Call, size: usize) -> bool {
    let later = |action: Action| Action { microbatch: action.microbatch + size, ..action };
    earlier.action.is_some() && *call == Call { action: earlier.action.map(later), ..*earlier }
}

/// The middle of a rank's calls that repeats every `size` microbatches.
fn middle(calls: &[Call], size: usize) -> Option<Middle> {
    let at = calls.len() / 2;
    let round = 1 + calls.get(at + 1..)?.iter().position(|call| follows(call, &calls[at], size))?;
    let repeats = |index: &usize| follows(&calls[index + round], &calls[*index], size);
    let start = (0..at).rev().take_while(repeats).last().unwrap_or(at);
    let end = (at..calls.len() - round).take_while(repeats).last()? + 1 + round;
    Some(Middle { start, round, rounds: (end - start) / round })
}

/// Whether a rank's calls run each stage forward and backward, in one pass or in two, once for every microbatch of its copy, of which
/// each copy has `microbatches`: then each receive has its send as in the whole program.
fn are_all_of(calls: &[Call], microbatches: usize) -> bool {
    let first = first_microbatches(calls);
    let mut done: BTreeMap<(usize, ActionKind), Vec<bool>> = BTreeMap::new();
    for Action { stage, kind, microbatch } in calls.iter().filter_map(|call| call.action) {
        let halves: &[ActionKind] = match kind {
            ActionKind::Backward => &[ActionKind::Input, ActionKind::Weight],
            ActionKind::Forward => &[ActionKind::Forward],
            ActionKind::Input => &[ActionKind::Input],
            ActionKind::Weight => &[ActionKind::Weight],
        };
        for half in halves {
            let done = done.entry((stage, *half)).or_insert_with(|| vec![false; microbatches]);
            match done.get_mut(microbatch - first[&stage]) {
                Some(done) if !*done => *done = true,
                _ => return false,
            }
        }
    }
    first.values().all(|first| first.is_multiple_of(microbatches))
        && done.values().flatten().all(|done| *done)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::costs::ClusterCosts;
    use crate::flat::all_templates;
    use trainwright_lower::lower;
    use trainwright_spec::plan::Plan;

    fn plan(schedule: &str, virtual_stages: usize, microbatches: usize) -> Plan {
        let stages = 4 * virtual_stages;
        let blocks = |stage: usize| 12 * (stage + 1) / stages - 12 * stage / stages;
        let stages: Vec<String> = (0..stages).map(|stage| format!("\"{} none\"", blocks(stage))).collect();
        let stages = stages.join(", ");
        let text = format!(
            r#"
            model = "gpt2"
            cluster = "dgx-a100:2"
            stack = "megatron-core-2024"
            job = {{ sequence = 1024, global_batch = {microbatches}, precision = "bf16", optimizer = "adamw", gradient_clipping = true }}
            mesh = {{ tensor = 4, pipeline = 4, data = 1 }}
            micro_batch = 1
            schedule = "{schedule}"
            virtual_stages = {virtual_stages}
            sequence_parallel = true
            data_sharding = "none"
            stages = [{stages}]
            "#
        );
        Plan::from_toml(&text, "plan.toml").unwrap()
    }

    /// Whether the times of a step follow from a few rounds; those of each op are then compared with the whole step's.
    fn follow(schedule: &str, virtual_stages: usize, microbatches: usize) -> bool {
        let plan = plan(schedule, virtual_stages, microbatches);
        let (program, costs) = (lower(&plan), ClusterCosts::new(&plan.cluster));
        let templates = Arc::new(all_templates(&program, &costs, Detail::Ops, &|| false).unwrap());
        let Some(few) = FewRounds::of(&program, &templates, &costs, &|| false).unwrap() else { return false };
        let whole = Flat::new(&program, &costs, Detail::Ops).graph;
        assert!(few.flat.graph.len() < whole.len());
        assert!(few.outcome_of_all() == whole.run().unwrap(), "{schedule}, {microbatches} microbatches");
        true
    }

    #[test]
    fn the_times_of_a_long_step_follow_from_a_few_rounds() {
        assert!(follow("1f1b", 1, 64));
        assert!(follow("zb-h1", 1, 64));
        assert!(follow("interleaved", 3, 96));
        // Its last passes run backward in halves.
        assert!(follow("dualpipev", 2, 64));
        // Two copies of the stages have the microbatches between them.
        assert!(follow("dualpipe", 1, 64));
        // Hardly a round is left out of a short step; forward and backward passes of one microbatch are far apart.
        assert!(!follow("1f1b", 1, 12));
        assert!(!follow("gpipe", 1, 64));
    }

    #[test]
    fn a_rank_without_calls_repeats_nothing() {
        assert_eq!(middle(&[], 1), None);
    }
}
