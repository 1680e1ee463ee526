//! Makes a zero-bubble schedule for given times under a memory limit.
//!
//! List scheduling: whenever a rank is free it starts one of the passes that can start, I before F before W. What is
//! best to do with W depends on the times, so that several rules are tried and the best lists are kept.
//! Source of the idea: Qi et al. 2024, arXiv 2401.10241, section 3; the rules are ours.
//!
//! ```
//! use trainwright_spec::schedule::{PipelineShape, ideal::{PassTimes, Times}, list::Problem};
//! let shape = PipelineShape { ranks: 4, virtual_stages: 1, microbatches: 8 };
//! let problem = Problem { times: Times::equal(shape, PassTimes::unit()), limits: vec![7; 4] };
//! let (lists, run) = problem.solve().unwrap();
//! assert_eq!(lists.ranks.len(), 4);
//! assert_eq!(run.makespan, problem.lower_bound());
//! ```

use super::build::Build;
use super::ideal::{Ideal, Times, run};
use super::{ActionKind, ActionLists, PipelineShape, peak_in_flight, schedule};
use crate::units::{Picoseconds, Seconds};

/// The times and limits that lists are made for: one stage on each rank.
#[derive(Debug, Clone, PartialEq)]
pub struct Problem {
    /// Times of the stages and microbatches.
    pub times: Times,
    /// By rank: the most microbatches whose activations it holds.
    pub limits: Vec<usize>,
}

/// How a rank decides.
#[derive(Debug, Clone, Copy)]
struct Rule {
    /// How many of W's time a rank rather waits for an F or I that is under way than start W.
    patience: f64,
    /// Forwards beyond these wait: as in 1F1B, as in ZB-H2, or as memory allows.
    ahead: Ahead,
    /// Whether F comes before I while memory allows.
    forward_first: bool,
}

#[derive(Debug, Clone, Copy)]
enum Ahead {
    OneForwardOneBackward,
    Twice,
    Memory,
}

impl Problem {
    /// The best lists found and their ideal run; `None` if a limit is 0, so that nothing can start.
    ///
    /// The handmade ZB-H1 and ZB-H2 are among those tried, where they keep the limits.
    pub fn solve(&self) -> Option<(ActionLists, Ideal)> {
        let made = rules().filter_map(|rule| self.build(rule));
        let handmade =
            ["zb-h1", "zb-h2"].map(|name| schedule(name).expect("it is registered").lists(self.shape()));
        let runs = made.chain(handmade).filter_map(|lists| {
            let run = run(&lists, &self.times).ok()?;
            // With one stage on each rank, a stage's peak is its rank's.
            let fits =
                peak_in_flight(&lists, |_| 1.0).iter().zip(&self.limits).all(|(held, limit)| held <= limit);
            fits.then_some((lists, run))
        });
        let idle = |run: &Ideal| run.idle_within().map(Picoseconds::from).max();
        runs.min_by_key(|(_, run)| (Picoseconds::from(run.makespan), idle(run)))
    }

    /// No lists are faster than max over r of Σ_{s<r} (F_s + t) + m (F_r + I_r) + max(m W_r, Σ_{s<r} (I_s + t) + W_0).
    ///
    /// Before rank r starts, the first microbatch passes the ranks before it, F and transfer t each. Its last I comes
    /// after all its F and I; then it has its W left, and that microbatch the I of the ranks before it and W on the
    /// first. Where microbatches differ, sums are over all of them, and what one has to pass alone is the shortest's.
    pub fn lower_bound(&self) -> Seconds {
        let Times { stages, microbatches, transfer, .. } = &self.times;
        let least = microbatches.iter().copied().fold(f64::INFINITY, f64::min);
        let all: f64 = microbatches.iter().sum();
        let mut bound = Seconds::ZERO;
        let mut before = Seconds::ZERO;
        let mut after = stages.first().map_or(Seconds::ZERO, |first| first.weight * least);
        for stage in stages {
            let work = (stage.forward + stage.input) * all;
            bound = bound.max(before + work + after.max(stage.weight * all));
            before += stage.forward * least + *transfer;
            after += stage.input * least + *transfer;
        }
        bound
    }

    fn shape(&self) -> PipelineShape {
        let Times { stages, microbatches, .. } = &self.times;
        PipelineShape { ranks: stages.len(), virtual_stages: 1, microbatches: microbatches.len() }
    }

    fn build(&self, rule: Rule) -> Option<ActionLists> {
        let shape = self.shape();
        let limit = |limit: &usize| match rule.ahead {
            Ahead::OneForwardOneBackward => *limit.min(&shape.ranks),
            Ahead::Twice => *limit.min(&(2 * shape.ranks - 1)),
            Ahead::Memory => *limit,
        };
        let build = Build {
            limit: self.limits.iter().map(limit).collect(),
            ..Build::unlimited(shape, (0..shape.ranks).collect(), &self.times)
        };
        let weight = |rank: usize| self.times.stages[rank].weight;
        build.run(|choice| {
            let find = |kind| choice.candidates.iter().position(|candidate| candidate.action.kind == kind);
            let (forward, input) = (find(ActionKind::Forward), find(ActionKind::Input));
            let urgent = if rule.forward_first { forward.or(input) } else { input.or(forward) };
            urgent.or_else(|| {
                let longest = Picoseconds::from(weight(choice.rank) * rule.patience);
                let soon = choice.next.is_some_and(|next| next < longest);
                if soon { None } else { find(ActionKind::Weight) }
            })
        })
    }
}

fn rules() -> impl Iterator<Item = Rule> {
    let patience = [0.0, 0.25, 0.5, 0.75, 1.0];
    let ahead = [Ahead::OneForwardOneBackward, Ahead::Twice, Ahead::Memory];
    patience.into_iter().flat_map(move |patience| {
        ahead
            .into_iter()
            .flat_map(move |ahead| [false, true].map(|forward_first| Rule { patience, ahead, forward_first }))
    })
}
