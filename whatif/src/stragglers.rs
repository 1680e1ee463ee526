//! Slow ranks and jitter: step times when GPUs and messages differ in speed.
//!
//! ```text
//! Plan ─► a program of one rank per tensor group ─► simulated once for each sample, with durations drawn by Noise
//!                                                    └─► quantiles of the step, and who waits for whom
//! ```
//!
//! Each sample has a random generator, seeded by the seed and its number: the answer is the same whatever
//! the number of threads.

mod maximum;
mod noise;

pub use noise::{Noise, SlowPart, SlowRank};

use noise::Draws;
use rayon::prelude::*;
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use trainwright_evidence::statistics::{mean, quantile};
use trainwright_lower::lower_every_copy;
use trainwright_sim::costs::ClusterCosts;
use trainwright_sim::{Deadlock, Detail, Repeated, Waiting, forecast_step_time};
use trainwright_spec::mesh::Coordinates;
use trainwright_spec::plan::Plan;
use trainwright_spec::units::{Picoseconds, Seconds};

/// The most ops of a step that is simulated so often: each takes some 200 bytes for each thread.
pub const MOST_OPS: usize = 4_000_000;

/// Which steps are drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sampling {
    /// How many.
    pub samples: usize,
    /// The same seed draws the same samples.
    pub seed: u64,
}

/// Step times of many samples, and the ranks' waits for each other.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Stragglers {
    /// The step when all are equally fast.
    #[serde(rename = "undisturbed_s")]
    pub undisturbed: Seconds,
    /// The step of every sample, in their order.
    #[serde(rename = "samples_s")]
    pub samples: Vec<Seconds>,
    /// Waits of each rank, in the mean over samples, by decreasing time that others wait for it beyond the undisturbed
    /// step.
    pub ranks: Vec<RankWaits>,
    /// Pairs of ranks that wait for each other, in the mean over samples, by decreasing wait beyond the undisturbed step.
    pub pairs: Vec<PairWaits>,
    /// GPUs that a rank here represents: those of its tensor group.
    pub gpus_per_rank: usize,
}

/// A rank's part in the waiting of a step.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct RankWaits {
    /// The global rank, the first of its tensor group.
    pub rank: usize,
    /// Its coordinate on the pipeline axis.
    pub pipeline: usize,
    /// Its coordinate on the data axis.
    pub data: usize,
    /// Idle time of this rank because others are late.
    #[serde(rename = "waits_s")]
    pub waits: Seconds,
    /// Idle time of all other ranks together because this one is late.
    #[serde(rename = "waited_for_s")]
    pub waited_for: Seconds,
    /// `waited_for` when all are equally fast: waits that the schedule itself causes.
    #[serde(rename = "waited_for_undisturbed_s")]
    pub waited_for_undisturbed: Seconds,
}

/// How long one rank waits for another in a step.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct PairWaits {
    /// The waiting rank.
    pub waiting: usize,
    /// The late rank.
    pub waited_for: usize,
    /// For how long, in the mean over samples.
    #[serde(rename = "waits_s")]
    pub waits: Seconds,
    /// `waits` when all are equally fast.
    #[serde(rename = "undisturbed_s")]
    pub undisturbed: Seconds,
}

/// Why steps cannot be drawn.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum StragglerError {
    /// A slow rank that does not exist.
    #[error("rank {rank} is slow, but the plan has ranks 0 to {last}", last = .ranks - 1)]
    UnknownRank {
        /// The rank.
        rank: usize,
        /// How many there are.
        ranks: usize,
    },
    /// A step that is too long to be simulated many times.
    #[error(
        "a step of this plan has {ops} ops over all tensor groups, and at most {MOST_OPS} are simulated so often: \
         take fewer data ranks or a smaller batch"
    )]
    TooManyOps {
        /// How many.
        ops: usize,
    },
    /// The plan's passes wait for each other.
    #[error(transparent)]
    Deadlock(#[from] Deadlock),
}

impl Stragglers {
    /// The step time below which a part q of the samples are.
    pub fn quantile(&self, q: f64) -> Seconds {
        Seconds::new(quantile(&self.seconds(), q))
    }

    /// The mean over samples.
    pub fn mean(&self) -> Seconds {
        Seconds::new(mean(&self.seconds()))
    }

    fn seconds(&self) -> Vec<f64> {
        self.samples.iter().map(|step| step.get()).collect()
    }
}

/// Simulates steps of a plan with durations that `noise` draws, call by call. All times are multiplied by the step of `forecast` over
/// the undisturbed one call by call, so that the undisturbed step is that of `forecast`. `watch` gets the number of finished samples, from
/// several threads. The plan must have passed `Plan::check`.
///
/// # Errors
/// As `StragglerError` says.
pub fn stragglers(
    plan: &Plan,
    noise: &Noise,
    sampling: Sampling,
    watch: &(dyn Fn(usize, usize) + Sync),
) -> Result<Stragglers, StragglerError> {
    let Sampling { samples, seed } = sampling;
    let ranks = plan.mesh.ranks();
    if let Some(SlowRank { rank, .. }) = noise.slow_ranks.iter().find(|slow| slow.rank >= ranks) {
        return Err(StragglerError::UnknownRank { rank: *rank, ranks });
    }
    // Known before the program is made, which would take as much memory.
    let passes = plan.microbatches().saturating_mul(2 * plan.virtual_stages);
    let least = passes.saturating_mul(ranks / plan.mesh.tensor);
    if least > MOST_OPS {
        return Err(StragglerError::TooManyOps { ops: least });
    }
    let program = lower_every_copy(plan);
    let costs = ClusterCosts::new(&plan.cluster);
    let repeated = Repeated::new(&program, &costs, Detail::Calls);
    if repeated.ops() > MOST_OPS {
        return Err(StragglerError::TooManyOps { ops: repeated.ops() });
    }
    let firsts: Vec<usize> = program.ranks.iter().map(|rank| rank.rank).collect();
    let step = forecast_step_time(plan, &costs)?;
    let undisturbed = repeated.run(|_| 1.0)?;
    let draws = Draws::new(noise, &firsts, plan.mesh.tensor);
    let done = AtomicUsize::new(0);
    watch(0, samples);
    let sample = |number: usize| {
        let mut drawn = draws.sample(seed, number as u64);
        let waiting = repeated.run(|piece| drawn.factor(piece))?;
        watch(1 + done.fetch_add(1, Ordering::Relaxed), samples);
        Ok(waiting)
    };
    let waits: Vec<Waiting> = (0..samples).into_par_iter().map(sample).collect::<Result<_, Deadlock>>()?;
    Ok(answer(plan, &firsts, step, (&undisturbed, &waits)))
}

/// The answer from simulations call by call, without and with noise, when the undisturbed step takes `step`.
fn answer(
    plan: &Plan,
    firsts: &[usize],
    step: Seconds,
    (undisturbed, samples): (&Waiting, &[Waiting]),
) -> Stragglers {
    let scaled = |time: Picoseconds| step * (time.0 as f64 / undisturbed.step.0 as f64);
    // Whole picoseconds: their sum does not depend on the order.
    let mut sums: BTreeMap<(u32, u32), u128> = undisturbed.pairs.keys().map(|pair| (*pair, 0)).collect();
    for (pair, time) in samples.iter().flat_map(|sample| &sample.pairs) {
        *sums.entry(*pair).or_default() += u128::from(time.0);
    }
    let before = |pair: &(u32, u32)| undisturbed.pairs.get(pair).copied().map_or(Seconds::ZERO, scaled);
    let of_mean = |sum: u128| {
        let mean = sum as f64 / samples.len().max(1) as f64;
        step * (mean / undisturbed.step.0 as f64)
    };
    let mut ranks: Vec<RankWaits> = firsts
        .iter()
        .map(|&rank| {
            let Coordinates { pipeline, data, .. } = plan.mesh.coordinates(rank);
            let none = Seconds::ZERO;
            RankWaits { rank, pipeline, data, waits: none, waited_for: none, waited_for_undisturbed: none }
        })
        .collect();
    let mut pairs = Vec::new();
    for (pair, sum) in &sums {
        let (waiting, late) = (pair.0 as usize, pair.1 as usize);
        let (waits, undisturbed) = (of_mean(*sum), before(pair));
        ranks[waiting].waits += waits;
        ranks[late].waited_for += waits;
        ranks[late].waited_for_undisturbed += undisturbed;
        pairs.push(PairWaits { waiting: firsts[waiting], waited_for: firsts[late], waits, undisturbed });
    }
    // Waits that the schedule causes do not show who is slow.
    let more = |rank: &RankWaits| (rank.waited_for - rank.waited_for_undisturbed).get();
    ranks.sort_by(|a, b| more(b).total_cmp(&more(a)).then(a.rank.cmp(&b.rank)));
    let more = |pair: &PairWaits| (pair.waits - pair.undisturbed).get();
    pairs.sort_by(|a, b| {
        let order = more(b).total_cmp(&more(a));
        order.then((a.waiting, a.waited_for).cmp(&(b.waiting, b.waited_for)))
    });
    Stragglers {
        undisturbed: step,
        samples: samples.iter().map(|sample| scaled(sample.step)).collect(),
        ranks,
        pairs,
        gpus_per_rank: plan.mesh.tensor,
    }
}

#[cfg(test)]
mod tests;
