//! Fewer nodes than there are: some clusters have more than any good plan fills.
//!
//! tensor × pipeline × context × data ranks fill the nodes exactly, and data divides the batch: with 250 nodes of 8 GPUs and
//! 1,024 sequences a factor of 125 would have to be the pipeline's. Where the network is slow, a few nodes may be faster too.
//! Every number of nodes is another question:
//!
//! ```text
//! numbers with legal layouts ─► the most promising first ─► those with bounds below the best so far are searched
//! ```
//!
//! Where the batch or small pipelines divide the nodes well and the best plan with all is near its lower bound, there is little that
//! fewer could save, and none are searched: that they are slower is then not proved, and the answer says so.
//!
//! Some numbers are looked at one by one from above, those below in steps: see `Spacing`. A search with another number of nodes
//! begins with the best time so far, so that most end with their layouts' bounds.

use super::clock::Clock;
use super::node_orders::with_ranked;
use super::{Scope, plan_in_order};
use crate::explore::{Goal, SearchSpace, Seen, search_summary};
use crate::question::Question;
use crate::space::has_layouts;
use crate::verdict::{
    Alternative, Found, KEPT, NodeCounts, PlannerError, Progress, Ranked, Search, Verdict, WithAllNodes,
};
use trainwright_spec::units::Seconds;

/// Which numbers of nodes are looked at.
struct Spacing {
    /// How many with legal layouts one by one.
    dense: usize,
    /// The part by which those below differ at least.
    sparse: usize,
}

/// Those of a search that ends with its proof.
const ALL: Spacing = Spacing { dense: 48, sparse: 16 };

/// Those of a search with a time limit: layouts of a large cluster alone take hundredths of a second.
const FEW: Spacing = Spacing { dense: 4, sparse: 2 };

/// How many numbers of nodes are searched while no plan fits.
const HOPES: usize = 8;

/// Up to which optimality gap of the best plan with all nodes no others are searched.
const NEAR: f64 = 0.2;

/// A number of nodes with legal layouts.
struct Count {
    question: Question,
    /// What a step takes about, by the most promising layout.
    promised: Seconds,
    /// No step is expected to take less, by the model's sizes alone.
    least: Seconds,
}

impl Count {
    /// The question with this number of nodes; `None` if no layout is legal.
    fn of(question: &Question, nodes: usize) -> Option<Self> {
        let cluster = question.cluster.with_fewer_nodes(nodes)?;
        let question = Question { cluster, ..question.clone() };
        if !has_layouts(&question) {
            return None;
        }
        let (promised, least) = SearchSpace::new(&question).ok()?.rough_times();
        Some(Self { question, promised, least })
    }

    fn nodes(&self) -> usize {
        self.question.cluster.nodes
    }
}

/// What the searches with fewer nodes came to.
#[derive(Default)]
struct Outcome {
    /// The number of nodes with the fastest plan, and its expected time; `None` if none is faster than with the nodes of the
    /// first search.
    fastest: Option<(usize, Seconds)>,
    /// The numbers of nodes that were searched.
    searched: Vec<(usize, Search)>,
    /// How many cannot be faster by the model's sizes.
    too_slow: usize,
    /// How many were not looked at.
    unseen: usize,
}

/// The best plans for a question that may leave nodes unused.
///
/// # Errors
/// As `plan`.
pub(super) fn plan_up_to(
    question: &Question,
    scope: Scope,
    clock: &Clock,
    watch: &(dyn Fn(Progress) + Sync),
) -> Result<Verdict, PlannerError> {
    let given = question.cluster.nodes;
    let spacing = if clock.is_limited() { FEW } else { ALL };
    let mut known = None;
    // Half of a limited time is enough for a number of nodes that looks worse than another.
    let time = match clock.is_limited() && !clock.seeks_first_plan() {
        true => {
            let (counts, _) = known.insert(looked_at(question, FEW));
            let promised = Count::of(question, given).map(|all| all.promised);
            let looks_worse = |all| counts.first().is_some_and(|fewer| fewer.promised < all);
            if promised.is_some_and(looks_worse) { clock.share(2) } else { *clock }
        }
        false => *clock,
    };
    let (answer, refused) = match plan_in_order(question, scope, &time, watch) {
        Ok(answer) => (Some(answer), None),
        Err(PlannerError::NoCandidate { reason }) => (None, Some(reason)),
        Err(error) => return Err(error),
    };
    let answer = match answer {
        Some(answer) if clock.seeks_first_plan() => return Ok(answer),
        Some(Verdict::Found(found)) if divides_well(question) && is_near_its_bound(&found) => {
            let nodes = NodeCounts {
                given,
                used: given,
                with_all: with_all(&found),
                searched: vec![given],
                too_slow: 0,
                unpromising: given - 1,
                unseen: 0,
            };
            return Ok(Verdict::Found(Found { nodes: Some(nodes), ..found }));
        }
        answer => answer,
    };
    let (mut counts, skipped) = known.unwrap_or_else(|| looked_at(question, spacing));
    let (first, answer) = match answer {
        Some(answer) if counts.is_empty() => return Ok(answer),
        Some(answer) => (question.clone(), answer),
        None if counts.is_empty() => {
            return Err(PlannerError::NoCandidate { reason: refused.unwrap_or_default() });
        }
        None => {
            let first = counts.remove(0).question;
            let answer = plan_in_order(&first, scope, clock, watch)?;
            (first, answer)
        }
    };
    let least = match &answer {
        Verdict::Found(found) => found.ranked.iter().map(|ranked| ranked.expected).reduce(Seconds::min),
        Verdict::Infeasible(_) | Verdict::OutOfTime(_) => None,
    };
    let mut outcome = search_counts(&counts, least, clock, watch)?;
    let dropped = outcome.fastest.map(|(_, time)| time).or(least);
    let gpu_time = SearchSpace::new(&first)?.least_gpu_time();
    for nodes in skipped {
        let floor = gpu_time / (nodes * question.cluster.node.gpus.value) as f64;
        match dropped.is_some_and(|dropped| floor >= dropped) {
            true => outcome.too_slow += 1,
            false => outcome.unseen += 1,
        }
    }
    let fastest = outcome.fastest.and_then(|(nodes, _)| counts.iter().find(|count| count.nodes() == nodes));
    let better = match fastest {
        Some(count) => match plan_in_order(&count.question, scope, clock, watch)? {
            Verdict::Found(found) => Some(found),
            Verdict::Infeasible(_) | Verdict::OutOfTime(_) => None,
        },
        None => None,
    };
    let first_nodes = first.cluster.nodes;
    let with_all_nodes = match (&answer, refused) {
        // What follows it names another number of nodes.
        (_, Some(reason)) => WithAllNodes::Impossible(reason.split("; ").next().unwrap_or_default().into()),
        (Verdict::Found(found), None) => with_all(found),
        (Verdict::Infeasible(_), None) => WithAllNodes::Impossible("nothing fits".into()),
        (Verdict::OutOfTime(_), None) => WithAllNodes::Impossible("no plan was found in time".into()),
    };
    let searches = Searches { first: first_nodes, outcome: &outcome, least };
    match (answer, better) {
        (Verdict::Found(found), None) => {
            let search = searches.together(Some(found.search), None);
            let nodes = searches.counts(given, with_all_nodes, &found.ranked[0]);
            Ok(Verdict::Found(Found { search, nodes: Some(nodes), ..found }))
        }
        (answer, Some(better)) => {
            let of_first = match &answer {
                Verdict::Found(found) => found.search,
                Verdict::Infeasible(infeasible) => infeasible.search,
                Verdict::OutOfTime(search) => *search,
            };
            let search = searches.together(Some(of_first), Some(better.search));
            let merged = match answer {
                Verdict::Found(found) => merged(found, better),
                Verdict::Infeasible(_) | Verdict::OutOfTime(_) => better,
            };
            let nodes = searches.counts(given, with_all_nodes, &merged.ranked[0]);
            Ok(Verdict::Found(Found { search, nodes: Some(nodes), ..merged }))
        }
        (Verdict::Infeasible(_), None) if first_nodes < given => {
            let WithAllNodes::Impossible(reason) = with_all_nodes else { unreachable!("there is no plan") };
            Err(PlannerError::NoCandidate {
                reason: format!("{reason}; with {first_nodes} and fewer nodes nothing fits"),
            })
        }
        (verdict, None) => Ok(verdict),
    }
}

/// Whether data ranks, whose number divides the batch, and powers of 2 and 3, which tensor ranks and short pipelines take, have all
/// factors of the number of nodes.
fn divides_well(question: &Question) -> bool {
    let mut left = question.cluster.nodes;
    for factor in [2, 3] {
        while left.is_multiple_of(factor) {
            left /= factor;
        }
    }
    question.job.global_batch.is_multiple_of(left)
}

/// Whether little is left between the best plan and what no plan with as many nodes goes below.
fn is_near_its_bound(found: &Found) -> bool {
    found.search.gap(found.ranked[0].expected).is_some_and(|gap| gap <= NEAR)
}

/// The best plan with all nodes.
fn with_all(found: &Found) -> WithAllNodes {
    let best = &found.ranked[0];
    WithAllNodes::Best { step_time: best.forecast.step_time, expected: best.expected }
}

/// The numbers of nodes below the given one that have legal layouts, the most promising first; and those that were skipped.
fn looked_at(question: &Question, Spacing { dense, sparse }: Spacing) -> (Vec<Count>, Vec<usize>) {
    let mut counts: Vec<Count> = Vec::new();
    let mut skipped = Vec::new();
    for nodes in (1..question.cluster.nodes).rev() {
        let is_near = |last: &Count| (last.nodes() - nodes) * sparse < last.nodes();
        if counts.len() >= dense && counts.last().is_some_and(is_near) {
            skipped.push(nodes);
            continue;
        }
        counts.extend(Count::of(question, nodes));
    }
    // Stable: of equal ones, that with more nodes comes first.
    counts.sort_by(|a, b| a.promised.get().total_cmp(&b.promised.get()));
    (counts, skipped)
}

/// Searches the numbers of nodes that may have a plan that is expected to take less than `least`, the time of a plan that fits.
fn search_counts(
    counts: &[Count],
    mut least: Option<Seconds>,
    clock: &Clock,
    watch: &(dyn Fn(Progress) + Sync),
) -> Result<Outcome, PlannerError> {
    let mut outcome = Outcome::default();
    let searched = || clock.ends_search();
    for count in counts {
        if least.is_some_and(|least| count.least >= least) {
            outcome.too_slow += 1;
            continue;
        }
        if searched() || least.is_none() && outcome.searched.len() >= HOPES {
            outcome.unseen += 1;
            continue;
        }
        let space = SearchSpace::new(&count.question)?;
        let goal = Goal::fastest(KEPT, &searched);
        let goal = if clock.is_limited() { goal.in_time() } else { goal };
        let mut explored = space.explore_below(least, Vec::new(), &goal, watch)?;
        space.improve(&mut explored, KEPT, &searched)?;
        outcome.searched.push((count.nodes(), search_summary(&count.question, &space.legal, &explored)));
        let fastest = explored.seen.iter().filter_map(Seen::time).min().map(Seconds::from);
        if let Some(time) = fastest
            && least.is_none_or(|least| time < least)
        {
            least = Some(time);
            outcome.fastest = Some((count.nodes(), time));
        }
    }
    Ok(outcome)
}

/// All searches for a question.
struct Searches<'a> {
    /// The number of nodes that was searched first.
    first: usize,
    outcome: &'a Outcome,
    /// The expected time of the plan that was found first.
    least: Option<Seconds>,
}

impl Searches<'_> {
    /// Their sizes and the bound of all: `first` and `better` are the complete ones.
    fn together(&self, first: Option<Search>, better: Option<Search>) -> Search {
        let fastest = self.outcome.fastest.map(|(nodes, _)| nodes);
        let looks =
            self.outcome.searched.iter().filter(|(nodes, _)| better.is_none() || Some(*nodes) != fastest);
        let complete = first.into_iter().chain(better);
        let all: Vec<Search> = complete.chain(looks.map(|(_, search)| *search)).collect();
        // A search that has ended without a bound has seen nothing that fits or that could be faster.
        let unknown = all.iter().any(|search| search.bound.is_none() && search.unseen > 0);
        let bounds = all.iter().filter_map(|search| search.bound).chain(self.dropped_from());
        let bound = bounds.reduce(Seconds::min).filter(|_| !unknown);
        let together = all.into_iter().reduce(Search::together).expect("one search at least");
        Search { bound, ..together }
    }

    /// The least time from which on candidates were dropped.
    fn dropped_from(&self) -> Option<Seconds> {
        self.outcome.fastest.map(|(_, time)| time).or(self.least)
    }

    /// What `plan` says of them.
    fn counts(&self, given: usize, with_all: WithAllNodes, best: &Ranked) -> NodeCounts {
        let Outcome { searched, too_slow, unseen, .. } = self.outcome;
        let mut searched: Vec<usize> = searched.iter().map(|(nodes, _)| *nodes).chain([self.first]).collect();
        searched.sort_unstable();
        NodeCounts {
            given,
            used: best.plan.cluster.nodes,
            with_all,
            searched,
            too_slow: *too_slow,
            unpromising: 0,
            unseen: *unseen,
        }
    }
}

/// The answers with two numbers of nodes as one.
fn merged(first: Found, better: Found) -> Found {
    let nodes = |ranked: &Ranked| ranked.plan.cluster.nodes;
    let mut order: Vec<&Ranked> = first.ranked.iter().chain(&better.ranked).collect();
    Ranked::sort(&mut order, |ranked| ranked);
    let (mut best, lost) = match nodes(order[0]) == nodes(&first.ranked[0]) {
        true => (first, better),
        false => (better, first),
    };
    let Ranked { forecast, limited_by, expected, .. } = &lost.ranked[0];
    let slower = 100.0 * (*expected / best.ranked[0].expected - 1.0);
    best.alternatives.push(Alternative {
        choice: format!("{} nodes", nodes(&lost.ranked[0])),
        reason: format!("{}, {slower:+.1} %: {limited_by}", forecast.step_time),
    });
    with_ranked(best, lost)
}
