//! The planner's answer.

use crate::risk::Outlook;
use serde::Serialize;
use thiserror::Error;
use trainwright_sim::{Deadlock, Forecast};
use trainwright_spec::plan::Plan;
use trainwright_spec::units::{Bytes, Picoseconds, Seconds};
use trainwright_timeline::timeline::Timeline;

/// How many plans are ranked.
pub const KEPT: usize = 5;

/// How far the search is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Progress {
    /// What is being done: `partitions` or `simulations`.
    pub phase: &'static str,
    /// Candidates done in this phase.
    pub done: usize,
    /// Candidates of this phase, as far as known.
    pub total: usize,
    /// The expected step time of the fastest plan so far; `None` if none was found.
    pub best: Option<Seconds>,
    /// A time that no plan is expected to be below; `None` if nothing is known.
    pub bound: Option<Seconds>,
    /// The time until the limit; `None` without one.
    pub left: Option<Seconds>,
}

impl Progress {
    /// That of a phase, with no plan yet.
    pub(crate) fn of(phase: &'static str, done: usize, total: usize) -> Self {
        Self { phase, done, total, best: None, bound: None, left: None }
    }

    /// By which part of the best plan's time the bound is below it.
    pub fn gap(&self) -> Option<f64> {
        self.best.zip(self.bound).map(|(best, bound)| (1.0 - bound / best).max(0.0))
    }
}

/// The planner's answer.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    /// At least one plan fits.
    Found(Found),
    /// None does.
    Infeasible(Infeasible),
    /// The time limit, or who asked, ended the search before any plan that fits was found.
    OutOfTime(Search),
}

impl Verdict {
    /// This verdict with the counts of another search, if one is given.
    pub(crate) fn with_search(self, search: Option<Search>) -> Self {
        match (self, search) {
            (Verdict::Found(found), Some(search)) => Verdict::Found(Found { search, ..found }),
            (Verdict::Infeasible(broken), Some(search)) => {
                Verdict::Infeasible(Infeasible { search, ..broken })
            }
            (Verdict::OutOfTime(_), Some(search)) => Verdict::OutOfTime(search),
            (verdict, None) => verdict,
        }
    }
}

/// Plans that fit, and why the best is the best.
#[derive(Debug, Clone, PartialEq)]
pub struct Found {
    /// The simulated plans by their expected step time; but the first is the one with most evidence among `tied`.
    pub ranked: Vec<Ranked>,
    /// How many of the first plans have 80 % ranges that the fastest one's hardly differs from.
    pub tied: usize,
    /// Why the obvious other choices are not the first of them; empty unless `Scope::explained`.
    pub alternatives: Vec<Alternative>,
    /// The simulated plans that none other beats in expected time and memory at once, the fastest first; empty unless
    /// `Scope::explained`.
    pub front: Vec<FrontPoint>,
    /// The fastest simulated plans of different meshes: see `sensitivity`.
    pub finalists: Vec<Finalist>,
    /// Which numbers of nodes were searched; `None` if all nodes are used in any case.
    pub nodes: Option<NodeCounts>,
    /// How the search went.
    pub search: Search,
}

/// The numbers of nodes that plans may use.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct NodeCounts {
    /// How many there are.
    pub given: usize,
    /// How many the first plan uses.
    pub used: usize,
    /// What is possible with all.
    pub with_all: WithAllNodes,
    /// Those that were searched, ascending; with others no layout is legal, or they are counted below.
    pub searched: Vec<usize>,
    /// How many others cannot have a faster plan, by a lower bound.
    pub too_slow: usize,
    /// How many others were not searched, as the best plan with all nodes is near its lower bound.
    pub unpromising: usize,
    /// How many others were not looked at.
    pub unseen: usize,
}

/// What is possible with all nodes.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum WithAllNodes {
    /// The best plan.
    Best {
        /// Its simulated step.
        #[serde(rename = "step_time_s")]
        step_time: Seconds,
        /// The step time to order it by.
        #[serde(rename = "ordered_by_s")]
        expected: Seconds,
    },
    /// Nothing, and why.
    Impossible(String),
}

/// A plan with its forecast.
#[derive(Debug, Clone, PartialEq)]
pub struct Ranked {
    /// The plan.
    pub plan: Plan,
    /// Its simulated step.
    pub forecast: Forecast,
    /// The step time to order it by: see `Risk`.
    pub expected: Seconds,
    /// The planner's estimate of the step without simulation: the partition's objective, or the time of the passes in their
    /// order where the simulator improved the stages; and the optimizer's update, without the data axis's communication.
    pub estimate: Seconds,
    /// What its time goes to beyond ideal compute, the largest part first, in words.
    pub limited_by: String,
    /// When its ranks do which pass in the simulated step, for drawings: see `trainwright_timeline::actions::outline`.
    pub outline: Timeline,
    pub(crate) outlook: Outlook,
}

/// Ranges of which this part is common to both are the same: forecasts do not distinguish such plans.
const SAME_RANGE: f64 = 0.9;

/// Up to which ratio expected times are the same: of measured runs that differ by less than 1 % in their forecasts, the one with the
/// shorter forecast is the faster in half of the cases (docs/scoreboard/reliability.md).
const SAME_TIME: f64 = 1.01;

impl Ranked {
    /// How much of the fullest GPU's memory the question lets the plan use.
    pub fn room(&self) -> Bytes {
        self.outlook.room(self.forecast.gpu_memory)
    }

    /// Whether its forecast's range is the same as another's, or its expected time.
    fn is_tied(&self, other: &Self) -> bool {
        let range = |ranked: &Self| (ranked.outlook, ranked.forecast.step_time);
        let slower = (self.expected / other.expected).max(other.expected / self.expected);
        slower < SAME_TIME || Outlook::overlap(range(self), range(other)) >= SAME_RANGE
    }

    /// Orders plans by their expected time. Of the first that forecasts do not distinguish, the one with most evidence becomes the
    /// first. Returns how many these are; 1 where nothing is known of the forecasts' errors.
    pub(crate) fn sort<T>(plans: &mut [T], ranked: impl Fn(&T) -> &Self) -> usize {
        // Stable: of equal times, the one with the lower bound comes first.
        plans.sort_by_key(|plan| Picoseconds::from(ranked(plan).expected));
        let Some(fastest) = plans.first().map(&ranked) else { return 0 };
        if fastest.outlook.alike == 0.0 {
            return 1;
        }
        let tied = plans.iter().take_while(|plan| fastest.is_tied(ranked(plan))).count();
        let alike = |place: &usize| ranked(&plans[*place]).outlook.alike;
        let best = (0..tied).max_by(|a, b| alike(a).total_cmp(&alike(b)).then(b.cmp(a))).unwrap_or(0);
        plans[..=best].rotate_right(1);
        tied
    }
}

/// A choice that one might have expected, and what became of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Alternative {
    /// The choice: `no recomputation`, `tensor 1`, `gpipe`, …
    pub choice: String,
    /// Why it lost.
    pub reason: String,
}

/// A change of the machine after which another plan is the fastest of the finalists.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Sensitivity {
    /// What changes: `bandwidth inside a node`.
    pub quantity: String,
    /// Its value where the answer changes, over that of now; `None` if it does not change within a sixteenth and sixteen
    /// times.
    pub factor: Option<f64>,
    /// The plan that is the fastest beyond it, in words; the best one of now if none else is.
    pub then: String,
}

/// A plan that no other simulated one beats in time and memory at once.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FrontPoint {
    /// The plan in words.
    pub plan: String,
    /// Its step.
    #[serde(rename = "step_time_s")]
    pub step_time: Seconds,
    /// The step time to order it by.
    #[serde(rename = "expected_step_time_s")]
    pub expected: Seconds,
    /// What its fullest GPU holds.
    #[serde(rename = "peak_memory_bytes")]
    pub peak_memory: Bytes,
    /// What that GPU has left.
    #[serde(rename = "headroom_bytes")]
    pub headroom: Bytes,
    /// GPUs times time.
    #[serde(rename = "gpu_s")]
    pub gpu_time: Seconds,
}

/// A plan that may win elsewhere.
#[derive(Debug, Clone, PartialEq)]
pub struct Finalist {
    /// In words.
    pub words: String,
    /// Itself.
    pub plan: Plan,
    pub(crate) outlook: Outlook,
}

/// How large the space was and what became of its candidates. A candidate is everything but the partition of layers and
/// what each layer computes again; a plan is a candidate with both.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Search {
    /// Legal ways in which a rank can run its layers: mesh, microbatch, and how the axes share a layer.
    pub layouts: usize,
    /// Legal combinations of these with schedules, virtual stages and places of the training state.
    pub candidates: usize,
    /// The decimal logarithm of the number of plans.
    pub plans_log10: f64,
    /// Candidates dropped because no partition and recompute choice fits in memory.
    pub out_of_memory: usize,
    /// Those of them whose weights, gradients and optimizer alone do not fit.
    pub state_out_of_memory: usize,
    /// Dropped because their lower bound is above the expected time of enough others.
    pub bounded_out: usize,
    /// Whose layers were split into stages: by the integer program where more than one split is left by its bounds.
    pub solved: usize,
    /// Simulated.
    pub simulated: usize,
    /// Not looked at before the time limit.
    pub unseen: usize,
    /// A time that no plan of the space is expected to be below: of the candidates that were not simulated their bounds, of
    /// those that were the bound over all their partitions.
    #[serde(rename = "bound_s", skip_serializing_if = "Option::is_none")]
    pub bound: Option<Seconds>,
}

impl Search {
    /// Two searches of different spaces.
    pub(crate) fn together(self, other: Self) -> Self {
        let (high, low) = (self.plans_log10.max(other.plans_log10), self.plans_log10.min(other.plans_log10));
        Self {
            layouts: self.layouts + other.layouts,
            candidates: self.candidates + other.candidates,
            plans_log10: high + libm::log10(1.0 + libm::pow(10.0, low - high)),
            out_of_memory: self.out_of_memory + other.out_of_memory,
            state_out_of_memory: self.state_out_of_memory + other.state_out_of_memory,
            bounded_out: self.bounded_out + other.bounded_out,
            solved: self.solved + other.solved,
            simulated: self.simulated + other.simulated,
            unseen: self.unseen + other.unseen,
            bound: self.bound.zip(other.bound).map(|(one, other)| one.min(other)),
        }
    }

    /// By which part of the best plan's time the bound is below it.
    pub fn gap(&self, best: Seconds) -> Option<f64> {
        self.bound.map(|bound| (1.0 - bound / best).max(0.0))
    }
}

/// Why nothing fits.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Infeasible {
    /// Each limit that is broken, the least broken first.
    pub broken: Vec<BrokenLimit>,
    /// Changes after which a plan fits, in words.
    pub remedies: Vec<String>,
    /// How the search went.
    pub search: Search,
}

/// A limit that a family of plans breaks.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BrokenLimit {
    /// Which plans, in words: `tensor 8, pipeline 2, data 8`.
    pub plans: String,
    /// Which limit, in words: `memory of pipeline rank 0`.
    pub limit: String,
    /// The least that is needed.
    #[serde(rename = "needs_bytes")]
    pub needs: Bytes,
    /// What there is.
    #[serde(rename = "has_bytes")]
    pub has: Bytes,
}

/// Why there is no answer.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PlannerError {
    /// A pin with a key or a value that does not exist.
    #[error("pin `{key}={value}`: {allowed}")]
    BadPin {
        /// Its key.
        key: String,
        /// Its value.
        value: String,
        /// What there is.
        allowed: String,
    },
    /// No combination of choices is legal, whatever the memory.
    #[error("no plan is possible: {reason}")]
    NoCandidate {
        /// What stands in the way, with the values.
        reason: String,
    },
    /// A plan whose passes wait for each other: a schedule is wrong.
    #[error(transparent)]
    Deadlock(#[from] Deadlock),
}
