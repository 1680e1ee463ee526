//! Measures this machine as ranks of a run find it: every op by its kind and shape, the steps of collectives, and the
//! figures that a simulator's device needs beside them.
//!
//! ```text
//! models small and large, slices of plans ─► short runs, as many ranks as there are cores ─► times, op by op ─► Profile
//! two ranks that only exchange                                                          ─► StepTimes           ─┐
//! large products, large sums                                                            ─► peak, bandwidth     ─┴► Cluster
//! ```
//!
//! Ops are timed inside training steps, because there their operands are in the caches or not as they will be, and while
//! the other cores do the same. What an op takes goes from the end of the one before it to its own end.
//! Nothing here knows what is made of the numbers.

mod gpus;
mod machine;
mod network;
mod slices;
mod steps;

pub(crate) use gpus::{FULL, SMALL, Shapes};
pub use gpus::{Link, LinkKind, MeasuredGpus, measure_gpus, shared_gpus};
pub use machine::on_machine;
pub(crate) use machine::today;
pub use network::network_work;
pub use slices::Grid;
pub(crate) use slices::alone;
pub use steps::Over;

use crate::error::RunError;
use crate::record::Record;
use crate::settings::{LearningRate, Records, Settings};
use crate::timeline::{Met, met_ops};
use crate::tokens::Tokens;
use crate::train::{Ran, run_plan};
use machine::{Figures, Threading};
use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use trainwright_spec::cluster::{
    Cluster, CoreTurns, Cores, DeviceProfile, MeasuredExchange, MeasuredKernel, MeasuredOp, MeasuredTime,
};
use trainwright_spec::collective::CollectiveKind;
use trainwright_spec::plan::Plan;
use trainwright_spec::program::{Kernel, Work};
use trainwright_spec::units::{Bytes, Seconds};

/// What was measured for ranks of so many threads each.
#[derive(Debug, Clone, PartialEq)]
pub struct Calibrated {
    /// Threads of each rank.
    pub threads: usize,
    /// A node of such ranks, as many as were asked for, with every measured op.
    pub cluster: Cluster,
}

impl Calibrated {
    /// The mean of several measurements of the same; none of none.
    pub fn mean(all: &[Calibrated]) -> Option<Calibrated> {
        let mut mean = all.first()?.clone();
        let share = 1.0 / all.len() as f64;
        let of = |time: &dyn Fn(&Calibrated) -> Option<Seconds>| -> Seconds {
            all.iter().filter_map(time).map(|time| share * time).sum()
        };
        if let Some(profile) = &mut mean.cluster.node.gpu.profile {
            for (index, row) in profile.ops.iter_mut().enumerate() {
                row.measured.time = of(&|one| Some(one.ops()?.get(index)?.measured.time));
            }
        }
        if let Some(cores) = &mut mean.cluster.node.cores {
            for (index, row) in cores.exchanges.iter_mut().enumerate() {
                row.measured.time = of(&|one| Some(one.cores()?.exchanges.get(index)?.measured.time));
            }
            cores.crowding = share * all.iter().filter_map(|one| Some(one.cores()?.crowding)).sum::<f64>();
            for (index, part) in cores.jitter.iter_mut().enumerate() {
                let own = all.iter().filter_map(|one| one.cores()?.jitter.get(index));
                *part = share * own.sum::<f64>();
            }
            for (index, row) in cores.steps.copies.iter_mut().enumerate() {
                row.time = of(&|one| Some(one.cores()?.steps.copies.get(index)?.time));
            }
            for (index, row) in cores.steps.adds.iter_mut().enumerate() {
                row.time = of(&|one| Some(one.cores()?.steps.adds.get(index)?.time));
            }
        }
        Some(mean)
    }

    fn ops(&self) -> Option<&[MeasuredOp]> {
        self.cluster.node.gpu.profile.as_ref().map(|profile| &profile.ops[..])
    }

    fn cores(&self) -> Option<&Cores> {
        self.cluster.node.cores.as_ref()
    }
}

/// What is to be measured.
#[derive(Debug, Clone, Copy)]
pub struct Measuring<'a> {
    /// Ranks have as many threads as so many ranks on this machine have.
    pub ranks: usize,
    /// How they exchange numbers.
    pub over: Over,
    /// Runs of models that no plan asks for.
    pub grid: Grid,
    /// Plans of whose layers short runs are made.
    pub plans: &'a [Plan],
}

/// Measures the machine; `progress` hears how many parts of how many are done.
///
/// # Errors
/// `Refused` if the executor does not run one of the plans, `Rank` if a rank cannot go on.
pub fn calibrate(
    measuring: Measuring,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Calibrated, RunError> {
    let Measuring { ranks, over, grid, plans } = measuring;
    let threading = Threading::of(ranks);
    let mut times = Times::default();
    let mut runs = slices::of_grid(grid, threading);
    runs.extend(slices::of_plans(plans, threading)?);
    for (done, plan) in runs.iter().enumerate() {
        progress(done, runs.len() + 1);
        time_ops(plan, threading, &mut times)?;
    }
    progress(runs.len(), runs.len() + 1);
    let profile = DeviceProfile { source: machine::source(), kernels: Vec::new(), ops: times.ops() };
    let figures = Figures::measure(threading, &profile);
    let cores = Cores {
        count: machine::sourced(threading.cores),
        threads: machine::sourced(threading.threads),
        emulated: false,
        steps: steps::measure(over, machine::source())?,
        network: None,
        crowding: times.crowding(),
        turns: cfg!(target_os = "linux").then(|| CoreTurns::of_linux(threading.cores)),
        jitter: times.jitter(),
        // The short runs exchange between threads.
        exchanges: if over == Over::Threads { times.exchanges() } else { Vec::new() },
    };
    let threads = threading.threads;
    Ok(Calibrated { threads, cluster: machine::cluster(ranks, threads, figures, cores, profile) })
}

/// Steps of a short run, of which the first ones warm up: as many as fit into some time, but enough for a mean and not
/// more than anybody needs.
const LEAST_STEPS: usize = 8;
const MOST_STEPS: usize = 100;
const WARM_UP: usize = 2;
const SECONDS: f64 = 1.0;

/// How many parts tell how unsteady ops are.
const PARTS: usize = 64;

/// Of each op kind and shape, the seconds of each of its runs.
#[derive(Default)]
struct Times {
    ops: BTreeMap<(String, String), (Kernel, Vec<f64>)>,
    exchanges: BTreeMap<(String, CollectiveKind, usize, u64), Vec<f64>>,
    /// Seconds of all steps of ranks that outnumber cores, what they would be if each rank took as long as one with a core
    /// to itself, and threads a core.
    crowded: Vec<[f64; 3]>,
}

/// No op takes less than a nanosecond, the unit in which they are timed.
fn mean(seconds: &[f64]) -> Seconds {
    Seconds::new((seconds.iter().sum::<f64>() / seconds.len().max(1) as f64).max(1e-9))
}

impl Times {
    fn ops(&self) -> Vec<MeasuredOp> {
        let row = |((op, _), (kernel, seconds)): (&(String, String), &(Kernel, Vec<f64>))| MeasuredOp {
            op: op.clone(),
            measured: MeasuredKernel { kernel: *kernel, time: mean(seconds) },
        };
        self.ops.iter().map(row).collect()
    }

    fn exchanges(&self) -> Vec<MeasuredExchange> {
        let row = |((op, collective, ranks, bytes), seconds): (
            &(String, CollectiveKind, usize, u64),
            &Vec<f64>,
        )| {
            let measured = MeasuredTime { bytes: Bytes::new(*bytes as f64), time: mean(seconds) };
            MeasuredExchange { op: op.clone(), collective: *collective, ranks: *ranks, measured }
        };
        self.exchanges.iter().map(row).collect()
    }

    /// k = Σ (T_i − T'_i) / Σ T'_i (w_i − 1): T_i and T'_i the times with and without others on the cores, w_i threads a core.
    /// It is less than nothing where other programs are busy too, of which more ranks leave less.
    fn crowding(&self) -> f64 {
        let more: f64 = self.crowded.iter().map(|[time, fair, _]| time - fair).sum();
        let beyond: f64 = self.crowded.iter().map(|[_, fair, threads]| fair * (threads - 1.0)).sum();
        if beyond > 0.0 { more / beyond } else { 0.0 }
    }

    /// Parts of their means that runs of ops took: of all runs, each as likely as its op's mean is long, the means of
    /// equal shares, so that what is short but often disturbed does not speak for what is long.
    fn jitter(&self) -> Vec<f64> {
        let runs = self.ops.values().flat_map(|(_, seconds)| {
            let mean = mean(seconds).get();
            seconds.iter().map(move |own| (own / mean, mean))
        });
        shares(runs.collect(), PARTS)
    }
}

/// The means of `count` shares of equal weight of values with weights, the smallest first; none of nothing.
fn shares(mut values: Vec<(f64, f64)>, count: usize) -> Vec<f64> {
    values.sort_by(|one, other| one.0.total_cmp(&other.0));
    let share = values.iter().map(|(_, weight)| weight).sum::<f64>() / count as f64;
    if share <= 0.0 {
        return Vec::new();
    }
    let (mut sums, mut at, mut room) = (vec![0.0; count], 0, share);
    for (value, mut weight) in values {
        while weight > 0.0 {
            // What rounding leaves over belongs to the last share.
            let taken = if at + 1 == count { weight } else { weight.min(room) };
            sums[at] += taken * value;
            weight -= taken;
            room -= taken;
            if room <= 0.0 && at + 1 < count {
                (at, room) = (at + 1, share);
            }
        }
    }
    sums.into_iter().map(|sum| sum / share).collect()
}

/// The middle of some numbers, of an even count the upper one of both.
pub(crate) fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers.get(numbers.len() / 2).copied().unwrap_or(0.0)
}

/// Runs a plan, whose ranks all do the same, and notes what ops take in the steps whose times are in the middle, on all
/// ranks: the sum of their means is that of a typical step, which a sum of medians is not where some ops are disturbed.
/// That ranks wait for the slower ones of them is a matter of how far the times lie apart, which is noted too.
fn time_ops(plan: &Plan, threading: Threading, times: &mut Times) -> Result<(), RunError> {
    let settings = |steps| Settings {
        steps,
        // Nothing is learned, so that made-up tokens cannot make numbers that are none.
        learning_rate: LearningRate { peak: 0.0, warmup: 0 },
        threads: NonZeroUsize::new(threading.threads * plan.mesh.ranks()).unwrap_or(NonZeroUsize::MIN),
        records: Records::EveryStep,
        ..Settings::default()
    };
    let tokens = Tokens::synthetic(plan.model.vocab, plan.job.tokens() * 2 + 1, 0);
    let tried = run_plan(plan, &tokens, &settings(WARM_UP), &mut |_| {})?;
    let of_step = tried.steps.last().map_or(SECONDS, |step| step.seconds);
    let steps = ((SECONDS / of_step) as usize).clamp(LEAST_STEPS, MOST_STEPS);
    let ran = run_plan(plan, &tokens, &settings(steps), &mut |_| {})?;
    if threading.a_core() > 1.0 {
        let crowd = slices::crowded(plan, threading);
        let settings =
            settings(((SECONDS / of_step / threading.a_core()) as usize).clamp(LEAST_STEPS, MOST_STEPS));
        let crowded = run_plan(&crowd, &tokens, &settings, &mut |_| {})?;
        let fair = threading.a_core() * computing(&ran);
        times.crowded.push([computing(&crowded), fair, threading.a_core()]);
    }
    let of_step = |step: usize| ran.ends.iter().map(move |end| &end.records[step]);
    let duration = |step: usize| {
        let ends = of_step(step).filter_map(|record| record.ops.last()).map(|op| op.end).max();
        let starts = of_step(step).filter_map(|record| record.ops.first()).map(|op| op.start).min();
        ends.zip(starts).map_or(0, |(end, start)| end - start)
    };
    let mut steps: Vec<usize> = (WARM_UP..steps).collect();
    steps.sort_by_key(|step| duration(*step));
    let quarter = steps.len() / 4;
    for step in &steps[quarter..steps.len() - quarter] {
        let records: Vec<Record> = of_step(*step).cloned().collect();
        for Met { op, group, seconds } in met_ops(&ran.program, &records) {
            match op.work {
                Work::Compute(kernel) => {
                    let key = (op.kind(), format!("{kernel:?}"));
                    times.ops.entry(key).or_insert((kernel, Vec::new())).1.push(seconds);
                }
                Work::Collective { kind, bytes, .. } => {
                    let ranks = group.map_or(1, |group| ran.program.groups[group].ranks.len());
                    let key = (op.kind(), kind, ranks, bytes.get() as u64);
                    times.exchanges.entry(key).or_default().push(seconds);
                }
                _ => {}
            }
        }
    }
    Ok(())
}

/// The seconds of a step of median length without its collectives, of which more ranks have larger ones.
fn computing(ran: &Ran) -> f64 {
    let of_step = |step: usize| {
        let records: Vec<Record> = ran.ends.iter().map(|end| end.records[step].clone()).collect();
        let met = met_ops(&ran.program, &records).into_iter();
        let exchanged = met.filter(|met| matches!(met.op.work, Work::Collective { .. }));
        let exchanged: f64 = exchanged.map(|met| met.seconds).sum();
        ran.steps[step].seconds - exchanged / ran.ends.len() as f64
    };
    median((WARM_UP..ran.steps.len()).map(of_step).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use trainwright_spec::program::Access;

    #[test]
    fn crowding_is_what_taking_turns_costs() {
        let times = |crowded| Times { crowded, ..Times::default() };
        // 2 s more than 20 where two threads share a core, 4 s more than 40 where five do: 6 s of 20 · 1 + 40 · 4.
        let found = times(vec![[22.0, 20.0, 2.0], [44.0, 40.0, 5.0]]).crowding();
        assert!((found - 6.0 / 180.0).abs() < 1e-12, "{found}");
        assert_eq!(times(Vec::new()).crowding(), 0.0);
    }

    #[test]
    fn shares_weigh_the_same_and_keep_the_mean() {
        // Weights 1, 1 and 2 in two shares of 2: the two small values, and the large one.
        assert_eq!(shares(vec![(3.0, 2.0), (1.0, 1.0), (2.0, 1.0)], 2), [1.5, 3.0]);
        // One value is in all shares.
        assert_eq!(shares(vec![(1.0, 5.0)], 4), [1.0; 4]);
        assert!(shares(Vec::new(), 4).is_empty());
        let unsteady = Times {
            ops: BTreeMap::from([(
                ("qkv forward".into(), String::new()),
                (
                    Kernel::Streaming {
                        access: Access::Elementwise,
                        read: Bytes::ZERO,
                        written: Bytes::ZERO,
                    },
                    vec![1.0, 3.0],
                ),
            )]),
            ..Times::default()
        };
        let parts = unsteady.jitter();
        // Half of the runs took half of the mean, the others one and a half.
        assert_eq!((parts.len(), parts[0], parts[PARTS - 1]), (PARTS, 0.5, 1.5));
    }
}
