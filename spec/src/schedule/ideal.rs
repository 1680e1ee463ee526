//! Times the actions of a schedule with free ranks and links: when each starts and ends, how long ranks idle, how much they hold.
//!
//! The dependencies are those of the pipeline and nothing else, so that it says what a schedule can reach at best.
//! It knows nothing of programs and of the simulator, which it checks.
//!
//! ```
//! use trainwright_spec::schedule::{PipelineShape, ideal, schedule};
//! let schedule = schedule("1f1b").unwrap();
//! let shape = PipelineShape { ranks: 4, virtual_stages: 1, microbatches: 8 };
//! let times = ideal::Times::equal(shape, ideal::PassTimes::unit());
//! let run = ideal::run(&schedule.lists(shape), &times).unwrap();
//! assert_eq!(run.makespan.get(), (8.0 + 4.0 - 1.0) * 3.0);
//! assert_eq!(run.peak, [4.0, 3.0, 2.0, 1.0]);
//! ```

use super::{Action, ActionKind, ActionLists, PipelineShape, Schedule, ScheduleFault};
use crate::units::Seconds;

/// How long the passes of a stage take.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PassTimes {
    /// F.
    pub forward: Seconds,
    /// I; B is I and W.
    pub input: Seconds,
    /// W.
    pub weight: Seconds,
}

impl PassTimes {
    /// F = I = W = 1, the times of the zero-bubble papers; B = 2 F.
    pub fn unit() -> Self {
        let one = Seconds::new(1.0);
        Self { forward: one, input: one, weight: one }
    }

    /// Time of a pass of `kind`.
    pub fn of(&self, kind: ActionKind) -> Seconds {
        match kind {
            ActionKind::Forward => self.forward,
            ActionKind::Backward => self.input + self.weight,
            ActionKind::Input => self.input,
            ActionKind::Weight => self.weight,
        }
    }

    fn scaled(self, factor: f64) -> Self {
        Self { forward: self.forward * factor, input: self.input * factor, weight: self.weight * factor }
    }
}

/// Everything that a run's times follow from.
#[derive(Debug, Clone, PartialEq)]
pub struct Times {
    /// By stage, copies not counted.
    pub stages: Vec<PassTimes>,
    /// How much longer than a stage's time the passes of each microbatch take.
    pub microbatches: Vec<f64>,
    /// A message between two ranks.
    pub transfer: Seconds,
    /// Time of a joint pass relative to the sum of its two passes.
    pub joint: f64,
    /// The part of a stage's activations that I gives back; W gives back the rest.
    pub given_back_by_input: f64,
}

impl Times {
    /// Equal stages, of which a rank's together take `rank`; equal microbatches, free messages, joint passes that
    /// gain nothing, and all activations kept until W.
    pub fn equal(shape: PipelineShape, rank: PassTimes) -> Self {
        let stage = rank.scaled(1.0 / shape.virtual_stages as f64);
        Self {
            stages: vec![stage; shape.stages()],
            microbatches: vec![1.0; shape.microbatches],
            transfer: Seconds::ZERO,
            joint: 1.0,
            given_back_by_input: 0.0,
        }
    }

    /// Time of `action`.
    pub fn of(&self, action: Action) -> Seconds {
        self.stages[action.stage % self.stages.len()].of(action.kind) * self.microbatches[action.microbatch]
    }
}

/// An action with its start and end.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Placed {
    /// Which.
    pub action: Action,
    /// When it starts.
    pub start: Seconds,
    /// When it ends.
    pub end: Seconds,
}

/// The run of some lists.
#[derive(Debug, Clone, PartialEq)]
pub struct Ideal {
    /// By rank, in order.
    pub spans: Vec<Vec<Placed>>,
    /// When the last action ends.
    pub makespan: Seconds,
    /// By rank: the time it works.
    pub work: Vec<Seconds>,
    /// By rank: the most it holds, in activations of one microbatch of one stage.
    pub peak: Vec<f64>,
}

impl Ideal {
    /// By rank: the part of the makespan that it does not work.
    pub fn idle(&self) -> impl Iterator<Item = Seconds> {
        self.work.iter().map(|work| self.makespan - *work)
    }

    /// By rank: the time between its first start and its last end that it does not work.
    pub fn idle_within(&self) -> impl Iterator<Item = Seconds> {
        self.spans.iter().zip(&self.work).map(|(spans, work)| match (spans.first(), spans.last()) {
            (Some(first), Some(last)) => last.end - first.start - *work,
            _ => Seconds::ZERO,
        })
    }
}

/// Idle time over work of the rank that idles most, for equal stages, F = I = W and free messages.
pub fn bubble_over_work(schedule: &dyn Schedule, shape: PipelineShape) -> f64 {
    let run = run(&schedule.lists(shape), &Times::equal(shape, PassTimes::unit()))
        .expect("a registered schedule does not deadlock");
    run.idle().zip(&run.work).map(|(idle, work)| idle / *work).fold(0.0, f64::max)
}

/// Runs every action as soon as its rank is free and what it needs is there.
///
/// F of stage s needs F of s − 1; B and I of s need F of s and B or I of s + 1; W needs I of the same stage. What comes
/// from another rank arrives `transfer` later.
///
/// # Errors
/// `Deadlock` with the first action that can never start, and what it waits for.
pub fn run(lists: &ActionLists, times: &Times) -> Result<Ideal, ScheduleFault> {
    let ranks = lists.ranks.len();
    let mut ends = Ends::new(lists, times);
    let mut spans: Vec<Vec<Placed>> = vec![Vec::new(); ranks];
    let mut work = vec![Seconds::ZERO; ranks];
    let mut now = vec![Seconds::ZERO; ranks];
    loop {
        let mut moved = false;
        for rank in 0..ranks {
            let list = &lists.ranks[rank];
            while spans[rank].len() < list.len() {
                let at = spans[rank].len();
                let joint = lists.joint[rank].contains(&at) && at + 1 < list.len();
                let pass = &list[at..=at + usize::from(joint)];
                let ready = pass.iter().map(|action| ends.ready(*action, rank));
                let Some(start) = ready.collect::<Option<Vec<_>>>() else { break };
                let start = start.into_iter().fold(now[rank], Seconds::max);
                let sum: Seconds = pass.iter().map(|action| times.of(*action)).sum();
                let end = start + if joint { sum * times.joint } else { sum };
                for action in pass {
                    ends.set(*action, end);
                    spans[rank].push(Placed { action: *action, start, end });
                }
                work[rank] += end - start;
                now[rank] = end;
                moved = true;
            }
        }
        if !moved {
            break;
        }
    }
    if let Some(rank) = (0..ranks).find(|rank| spans[*rank].len() < lists.ranks[*rank].len()) {
        let action = lists.ranks[rank][spans[rank].len()];
        let next = lists.ranks[rank].get(spans[rank].len() + 1).copied();
        let needs = ends.missing(action).or_else(|| next.and_then(|next| ends.missing(next)));
        return Err(ScheduleFault::Deadlock { rank, action, needs: needs.unwrap_or(action) });
    }
    let peak = lists.ranks.iter().map(|list| peak(list, times)).collect();
    Ok(Ideal { makespan: now.into_iter().fold(Seconds::ZERO, Seconds::max), spans, work, peak })
}

/// The most activations held at once.
fn peak(list: &[Action], times: &Times) -> f64 {
    let by_input = times.given_back_by_input;
    let held = list.iter().scan(0.0, |held, action| {
        *held += match action.kind {
            ActionKind::Forward => 1.0,
            ActionKind::Backward => -1.0,
            ActionKind::Input => -by_input,
            ActionKind::Weight => by_input - 1.0,
        };
        Some(*held)
    });
    held.fold(0.0, f64::max)
}

/// When forwards and input gradients have ended, by stage with copies and by microbatch.
struct Ends<'a> {
    times: &'a Times,
    rank_of: Vec<usize>,
    forward: Vec<Vec<Option<Seconds>>>,
    input: Vec<Vec<Option<Seconds>>>,
}

impl<'a> Ends<'a> {
    fn new(lists: &ActionLists, times: &'a Times) -> Self {
        let numbers = lists.ranks.iter().flatten().map(|action| action.stage + 1).max().unwrap_or(0);
        let mut rank_of = vec![0; numbers];
        for (rank, list) in lists.ranks.iter().enumerate() {
            list.iter().for_each(|action| rank_of[action.stage] = rank);
        }
        let none = vec![vec![None; times.microbatches.len()]; numbers];
        Ends { times, rank_of, forward: none.clone(), input: none }
    }

    /// The actions that must have ended before `action`: at most two actions; B stands for whichever of B and I there is.
    fn needs(&self, action: Action) -> impl Iterator<Item = Action> + use<> {
        let stages = self.times.stages.len();
        let (first, last) = (action.stage.is_multiple_of(stages), (action.stage + 1).is_multiple_of(stages));
        let forward = Action { kind: ActionKind::Forward, ..action };
        let input = Action { kind: ActionKind::Input, ..action };
        let (one, other) = match action.kind {
            ActionKind::Forward if first => (None, None),
            ActionKind::Forward => (Some(Action { stage: action.stage - 1, ..action }), None),
            ActionKind::Weight => (Some(input), None),
            _ if last => (Some(forward), None),
            _ => (Some(forward), Some(Action { stage: action.stage + 1, ..input })),
        };
        one.into_iter().chain(other)
    }

    fn end(&self, action: Action) -> Option<Seconds> {
        let of = if action.kind == ActionKind::Forward { &self.forward } else { &self.input };
        of.get(action.stage)?[action.microbatch]
    }

    /// When what `action` on `rank` needs is there; `None` if that is not known yet.
    fn ready(&self, action: Action, rank: usize) -> Option<Seconds> {
        let arrive = |needed: Action| {
            let away = self.rank_of.get(needed.stage) != Some(&rank);
            Some(self.end(needed)? + if away { self.times.transfer } else { Seconds::ZERO })
        };
        self.needs(action).map(arrive).try_fold(Seconds::ZERO, |latest, end| Some(latest.max(end?)))
    }

    fn missing(&self, action: Action) -> Option<Action> {
        self.needs(action).find(|needed| self.end(*needed).is_none())
    }

    fn set(&mut self, action: Action, end: Seconds) {
        match action.kind {
            ActionKind::Forward => self.forward[action.stage][action.microbatch] = Some(end),
            ActionKind::Backward | ActionKind::Input => {
                self.input[action.stage][action.microbatch] = Some(end);
            }
            ActionKind::Weight => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lists(ranks: &[&str]) -> ActionLists {
        ranks.iter().map(|rank| rank.split(' ').map(|action| action.parse().unwrap()).collect()).collect()
    }

    fn times(stages: &[[f64; 3]], microbatches: &[f64], transfer: f64) -> Times {
        let pass = |[f, i, w]: [f64; 3]| PassTimes {
            forward: Seconds::new(f),
            input: Seconds::new(i),
            weight: Seconds::new(w),
        };
        Times {
            stages: stages.iter().copied().map(pass).collect(),
            microbatches: microbatches.to_vec(),
            transfer: Seconds::new(transfer),
            joint: 1.0,
            given_back_by_input: 0.5,
        }
    }

    #[test]
    fn uneven_stages_microbatches_and_transfers_are_added_up() {
        // Rank 0: F0 0-1, F1 1-3 (microbatch 1 takes twice as long).
        // Rank 1: F0 from 1 + 0.5, 1.5-3.5; I0 3.5-4.5; F1 from 3 + 0.5, after I0: 4.5-8.5; W0 8.5-9.5; B1 9.5-13.5.
        // Rank 0: I0 from 4.5 + 0.5: 5-6; W0 6-7; B1 from 13.5 + 0.5: 14-18.
        let lists = lists(&["0F0 0F1 0I0 0W0 0B1", "1F0 1I0 1F1 1W0 1B1"]);
        let run = run(&lists, &times(&[[1.0, 1.0, 1.0], [2.0, 1.0, 1.0]], &[1.0, 2.0], 0.5)).unwrap();
        assert_eq!(run.makespan, Seconds::new(18.0));
        let starts: Vec<f64> = run.spans[1].iter().map(|span| span.start.get()).collect();
        assert_eq!(starts, [1.5, 3.5, 4.5, 8.5, 9.5]);
        // Rank 0 works 1 + 2 + 1 + 1 + 4 = 9 of 18, rank 1 2 + 1 + 4 + 1 + 4 = 12 of the 12 after its first start.
        assert_eq!(run.idle().collect::<Vec<_>>(), [Seconds::new(9.0), Seconds::new(6.0)]);
        assert_eq!(run.idle_within().collect::<Vec<_>>(), [Seconds::new(9.0), Seconds::ZERO]);
        // Rank 1 holds 1, 0.5, 1.5, 1, 0.
        assert_eq!(run.peak, [2.0, 1.5]);
    }

    #[test]
    fn a_joint_pass_waits_for_both_and_ends_both() {
        // F1 and B0 of the only stage: 3 units in turn, 2.5 jointly.
        let mut lists = lists(&["0F0 0F1 0B0 0B1"]);
        lists.joint[0] = vec![1];
        let mut times = times(&[[1.0, 1.0, 1.0]], &[1.0, 1.0], 0.0);
        times.joint = 2.5 / 3.0;
        let run = run(&lists, &times).unwrap();
        assert!((run.makespan.get() - 5.5).abs() < 1e-12);
        assert_eq!(run.spans[0][1].end, run.spans[0][2].end);
    }

    #[test]
    fn a_deadlock_names_the_action_and_what_it_waits_for() {
        let lists = lists(&["0F0 0B0 0F1 0B1", "1F1 1F0 1B0 1B1"]);
        let fault = run(&lists, &times(&[[1.0; 3], [1.0; 3]], &[1.0, 1.0], 0.0)).unwrap_err();
        assert_eq!(fault.to_string(), "rank 0: 0B0 never starts: it waits for 1I0");
    }
}
