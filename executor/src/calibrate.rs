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

mod machine;
mod slices;
mod steps;

pub use machine::on_machine;
pub(crate) use machine::today;
pub use slices::Grid;
pub use steps::Over;

use crate::error::RunError;
use crate::record::Record;
use crate::settings::{LearningRate, Records, Settings};
use crate::timeline::{Met, met_ops};
use crate::tokens::Tokens;
use crate::train::run_plan;
use machine::{Figures, Threading};
use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use trainwright_spec::cluster::{
    Cluster, Cores, DeviceProfile, MeasuredExchange, MeasuredKernel, MeasuredOp, MeasuredTime,
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

/// Measures ranks of as many threads as `ranks` ranks on this machine have, by the runs of `grid` and short ones of the
/// layers of `plans`.
///
/// # Errors
/// `Refused` if the executor does not run one of the plans, `Rank` if a rank cannot go on.
pub fn calibrate(ranks: usize, over: Over, grid: Grid, plans: &[Plan]) -> Result<Calibrated, RunError> {
    let threading = Threading::of(ranks);
    let mut times = Times::default();
    for plan in slices::of_grid(grid, threading).into_iter().chain(slices::of_plans(plans, threading)?) {
        time_ops(&plan, threading, &mut times)?;
    }
    let profile = DeviceProfile { source: machine::source(), kernels: Vec::new(), ops: times.ops() };
    let figures = Figures::measure(threading, &profile);
    let cores = Cores {
        count: machine::sourced(threading.cores),
        threads: machine::sourced(threading.threads),
        emulated: false,
        steps: steps::measure(over, machine::source())?,
        // The short runs exchange between threads.
        exchanges: if over == Over::Threads { times.exchanges() } else { Vec::new() },
    };
    let threads = threading.threads;
    Ok(Calibrated { threads, cluster: machine::cluster(ranks, threads, figures, cores, profile) })
}

/// Steps of a short run, of which the first ones warm up.
const STEPS: usize = 10;
const WARM_UP: usize = 2;

/// The sum of some times, and how many they are.
#[derive(Default, Clone, Copy)]
struct Sum {
    seconds: f64,
    count: usize,
}

impl Sum {
    fn add(&mut self, seconds: f64) {
        self.seconds += seconds;
        self.count += 1;
    }

    fn mean(self) -> Seconds {
        Seconds::new((self.seconds / self.count.max(1) as f64).max(1e-9))
    }
}

/// Of each op kind and shape, the times of its runs.
#[derive(Default)]
struct Times {
    ops: BTreeMap<(String, String), (Kernel, Sum)>,
    exchanges: BTreeMap<(String, CollectiveKind, usize, u64), Sum>,
}

impl Times {
    fn ops(&self) -> Vec<MeasuredOp> {
        let row = |((op, _), (kernel, sum)): (&(String, String), &(Kernel, Sum))| MeasuredOp {
            op: op.clone(),
            measured: MeasuredKernel { kernel: *kernel, time: sum.mean() },
        };
        self.ops.iter().map(row).collect()
    }

    fn exchanges(&self) -> Vec<MeasuredExchange> {
        let row = |((op, collective, ranks, bytes), sum): (&(String, CollectiveKind, usize, u64), &Sum)| {
            let measured = MeasuredTime { bytes: Bytes::new(*bytes as f64), time: sum.mean() };
            MeasuredExchange { op: op.clone(), collective: *collective, ranks: *ranks, measured }
        };
        self.exchanges.iter().map(row).collect()
    }
}

/// The middle of some numbers, of an even count the upper one of both.
pub(crate) fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers.get(numbers.len() / 2).copied().unwrap_or(0.0)
}

/// The mean of the half of some numbers that is in their middle.
pub(crate) fn middle_mean(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    let quarter = numbers.len() / 4;
    let middle = &numbers[quarter..numbers.len() - quarter];
    middle.iter().sum::<f64>() / middle.len().max(1) as f64
}

/// Runs a plan, whose ranks all do the same, and notes what ops take in the steps whose times are in the middle, on the rank
/// that the others wait for: the sum of such times is that of a typical step, which a sum of medians is not where some
/// ops are disturbed.
fn time_ops(plan: &Plan, threading: Threading, times: &mut Times) -> Result<(), RunError> {
    let settings = Settings {
        steps: STEPS,
        // Nothing is learned, so that made-up tokens cannot make numbers that are none.
        learning_rate: LearningRate { peak: 0.0, warmup: 0 },
        threads: NonZeroUsize::new(threading.threads * plan.mesh.ranks()).unwrap_or(NonZeroUsize::MIN),
        records: Records::EveryStep,
        ..Settings::default()
    };
    let tokens = Tokens::synthetic(plan.model.vocab, plan.job.tokens() * 2 + 1, 0);
    let ran = run_plan(plan, &tokens, &settings, &mut |_| {})?;
    let of_step = |step: usize| ran.ends.iter().map(move |end| &end.records[step]);
    let duration = |step: usize| {
        let ends = of_step(step).filter_map(|record| record.ops.last()).map(|op| op.end).max();
        let starts = of_step(step).filter_map(|record| record.ops.first()).map(|op| op.start).min();
        ends.zip(starts).map_or(0, |(end, start)| end - start)
    };
    let mut steps: Vec<usize> = (WARM_UP..STEPS).collect();
    steps.sort_by_key(|step| duration(*step));
    let quarter = steps.len() / 4;
    for step in &steps[quarter..steps.len() - quarter] {
        let records: Vec<Record> = of_step(*step).cloned().collect();
        let met = met_ops(&ran.program, &records);
        let mut busy = vec![0.0; records.len()];
        met.iter().for_each(|one| busy[one.rank] += one.seconds);
        let slowest = (0..busy.len()).max_by(|one, other| busy[*one].total_cmp(&busy[*other]));
        for Met { op, group, seconds, .. } in met.into_iter().filter(|one| Some(one.rank) == slowest) {
            match op.work {
                Work::Compute(kernel) => {
                    let key = (op.kind(), format!("{kernel:?}"));
                    times.ops.entry(key).or_insert((kernel, Sum::default())).1.add(seconds);
                }
                Work::Collective { kind, bytes, .. } => {
                    let ranks = group.map_or(1, |group| ran.program.groups[group].ranks.len());
                    let key = (op.kind(), kind, ranks, bytes.get() as u64);
                    times.exchanges.entry(key).or_default().add(seconds);
                }
                _ => {}
            }
        }
    }
    Ok(())
}
