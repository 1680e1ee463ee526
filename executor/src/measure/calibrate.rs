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
//! the other cores do the same. What an op takes goes from the end of the op before it to its end.
//! Everything is timed in rounds, so that what another program does for a second is in a part of the samples of everything
//! and not in all samples of something; `robust` says what counts of them.
//! Nothing here knows what is made of the numbers.

mod gpus;
mod machine;
mod network;
mod robust;
mod slices;
mod steps;
mod times;

pub use gpus::{Link, LinkKind, MeasuredGpus, measure_gpus, shared_gpus};
pub use machine::on_machine;
pub(crate) use machine::{processor, today};
pub use network::network_work;
pub use robust::Refused;
pub use slices::Grid;
pub(crate) use slices::alone;
pub use steps::Over;
pub(crate) use times::Times;

use crate::error::RunError;
use crate::train::data::tokens::Tokens;
use crate::train::learning_rate::LearningRate;
use crate::train::record::Record;
use crate::train::run::{Ran, run_plan};
use crate::train::settings::{Records, Settings};
use crate::train::timeline::timed_ops;
use machine::{Figures, Threading};
use robust::median;
use std::num::NonZeroUsize;
use trainwright_spec::cluster::{Cluster, CoreTurns, Cores, DeviceProfile, MeasuredOp};
use trainwright_spec::plan::Plan;
use trainwright_spec::program::Work;
use trainwright_spec::units::Seconds;

/// What was measured for ranks of `threads` threads each.
#[derive(Debug, Clone, PartialEq)]
pub struct Calibrated {
    /// Threads of each rank.
    pub threads: usize,
    /// A node of `Measuring::ranks` ranks with every measured op.
    pub cluster: Cluster,
    /// Samples that other programs disturbed, and that are not in these figures.
    pub refused: Vec<Refused>,
}

impl Calibrated {
    /// The medians of several measurements of the same; `None` of none.
    pub fn median(all: &[Calibrated]) -> Option<Calibrated> {
        let mut middle = all.first()?.clone();
        let of = |time: &dyn Fn(&Calibrated) -> Option<Seconds>| -> Seconds {
            Seconds::new(median(all.iter().filter_map(time).map(Seconds::get).collect()))
        };
        if let Some(profile) = &mut middle.cluster.node.gpu.profile {
            for (index, row) in profile.ops.iter_mut().enumerate() {
                row.measured.time = of(&|one| Some(one.ops()?.get(index)?.measured.time));
            }
        }
        if let Some(cores) = &mut middle.cluster.node.cores {
            for (index, row) in cores.exchanges.iter_mut().enumerate() {
                row.measured.time = of(&|one| Some(one.cores()?.exchanges.get(index)?.measured.time));
            }
            cores.crowding = median(all.iter().filter_map(|one| Some(one.cores()?.crowding)).collect());
            // Means, as the mean of all parts is 1 in each of them.
            for (index, part) in cores.jitter.iter_mut().enumerate() {
                let parts = all.iter().filter_map(|one| one.cores()?.jitter.get(index));
                *part = parts.sum::<f64>() / all.len() as f64;
            }
            for (index, row) in cores.steps.copies.iter_mut().enumerate() {
                row.time = of(&|one| Some(one.cores()?.steps.copies.get(index)?.time));
            }
            for (index, row) in cores.steps.adds.iter_mut().enumerate() {
                row.time = of(&|one| Some(one.cores()?.steps.adds.get(index)?.time));
            }
        }
        middle.refused = all.iter().flat_map(|one| one.refused.clone()).collect();
        Some(middle)
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
    /// Ranks on this machine; the cores are divided among them.
    pub ranks: usize,
    /// How they exchange numbers.
    pub over: Over,
    /// Runs of models that no plan asks for.
    pub grid: Grid,
    /// Plans of whose layers short runs are made.
    pub plans: &'a [Plan],
}

/// Measures the machine; `progress` gets how many parts of how many are done.
///
/// # Errors
/// `Refused` if the executor does not run one of the plans, `Rank` if a rank cannot go on.
pub fn calibrate(
    measuring: Measuring,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Calibrated, RunError> {
    let Measuring { ranks, over, grid, plans } = measuring;
    let threading = Threading::of(ranks);
    let mut plans = slices::of_plans(plans, threading)?;
    plans.splice(0..0, slices::of_grid(grid, threading));
    let mut runs: Vec<ShortRun> = plans.iter().map(ShortRun::new).collect();
    let parts = ROUNDS * runs.len() + 1;
    let mut times = Times::default();
    for round in 0..ROUNDS {
        for index in 0..runs.len() {
            progress(round * runs.len() + index, parts);
            runs[index].measure(threading, &mut times)?;
        }
    }
    runs.into_iter().for_each(|run| run.add_middle_half(&mut times));
    progress(parts - 1, parts);
    let mut refused = times.refuse();
    let profile = DeviceProfile { source: machine::source(), kernels: Vec::new(), ops: times.ops() };
    let figures = Figures::measure(threading, &profile);
    let (steps, of_steps) = steps::measure(over, machine::source())?;
    refused.extend(of_steps);
    let cores = Cores {
        count: machine::sourced(threading.cores),
        threads: machine::sourced(threading.threads),
        emulated: false,
        steps,
        network: None,
        crowding: times.crowding(),
        turns: cfg!(target_os = "linux").then(|| CoreTurns::of_linux(threading.cores)),
        jitter: times.jitter(),
        // The short runs exchange between threads.
        exchanges: if over == Over::Threads { times.exchanges() } else { Vec::new() },
    };
    let threads = threading.threads;
    Ok(Calibrated { threads, cluster: machine::cluster(ranks, threads, figures, cores, profile), refused })
}

/// How often each short run is made, all of them in turn.
const ROUNDS: usize = 3;

/// Steps of a short run in a round, of which the first ones warm up: as many as fit into some time, but enough for a mean
/// and not more than anybody needs.
const LEAST_STEPS: usize = 4;
const MOST_STEPS: usize = 36;
const WARM_UP: usize = 2;
const SECONDS: f64 = 1.0 / ROUNDS as f64;

/// A plan whose ranks all do the same, and what it took.
struct ShortRun<'a> {
    plan: &'a Plan,
    tokens: Tokens,
    /// Seconds of a step, by a first try.
    of_step: Option<f64>,
    steps: Vec<TimedStep>,
}

/// A step of all ranks.
struct TimedStep {
    /// Nanoseconds.
    duration: u64,
    ops: Vec<StepOp>,
}

/// An op, with the ranks of its group if it is a collective.
struct StepOp {
    op: String,
    work: Work,
    ranks: usize,
    seconds: f64,
}

impl<'a> ShortRun<'a> {
    fn new(plan: &'a Plan) -> Self {
        let tokens = Tokens::synthetic(plan.model.vocab, plan.job.tokens() * 2 + 1, 0);
        Self { plan, tokens, of_step: None, steps: Vec::new() }
    }

    fn run(&self, plan: &Plan, steps: usize, threading: Threading) -> Result<Ran, RunError> {
        let settings = Settings {
            steps,
            // Nothing is learned, so that made-up tokens cannot make numbers that are none.
            learning_rate: LearningRate::constant(0.0),
            threads: NonZeroUsize::new(threading.threads * self.plan.mesh.ranks())
                .unwrap_or(NonZeroUsize::MIN),
            records: Records::EveryStep,
            ..Settings::default()
        };
        run_plan(plan, &self.tokens, &settings, &mut |_| {})
    }

    /// Runs it once more, and as many ranks as the machine has where these outnumber its cores.
    fn measure(&mut self, threading: Threading, times: &mut Times) -> Result<(), RunError> {
        let of_step = match self.of_step {
            Some(of_step) => of_step,
            None => {
                let tried = self.run(self.plan, WARM_UP, threading)?;
                *self.of_step.insert(tried.steps.last().map_or(SECONDS, |step| step.seconds))
            }
        };
        let count = |of_step: f64| ((SECONDS / of_step) as usize).clamp(LEAST_STEPS, MOST_STEPS);
        let ran = self.run(self.plan, count(of_step), threading)?;
        if threading.a_core() > 1.0 {
            let crowd = slices::oversubscribed(self.plan, threading);
            let crowded = self.run(&crowd, count(of_step * threading.a_core()), threading)?;
            let fair = threading.a_core() * computing(&ran);
            times.crowded.push([computing(&crowded), fair, threading.a_core()]);
        }
        self.steps.extend((WARM_UP..ran.steps.len()).map(|step| TimedStep::of(&ran, step)));
        Ok(())
    }

    /// Adds the ops of the steps whose times are in the middle. That ranks wait for the slower ones of them is a matter of
    /// how far the times lie apart, which `Times::jitter` says.
    fn add_middle_half(mut self, times: &mut Times) {
        self.steps.sort_by_key(|step| step.duration);
        let quarter = self.steps.len() / 4;
        let middle = quarter..self.steps.len() - quarter;
        for StepOp { op, work, ranks, seconds } in self.steps.drain(middle).flat_map(|step| step.ops) {
            match work {
                Work::Compute(kernel) => times.add_op(op, kernel, seconds),
                Work::Collective { kind, bytes, .. } => times.add_exchange((op, kind, ranks), bytes, seconds),
                _ => {}
            }
        }
    }
}

impl TimedStep {
    fn of(ran: &Ran, step: usize) -> Self {
        let records: Vec<Record> = ran.ends.iter().map(|end| end.records[step].clone()).collect();
        let ends = records.iter().filter_map(|record| record.ops.last()).map(|op| op.end).max();
        let starts = records.iter().filter_map(|record| record.ops.first()).map(|op| op.start).min();
        let ops = timed_ops(&ran.program, &records).into_iter().map(|timed| StepOp {
            op: timed.op.kind(),
            work: timed.op.work,
            ranks: timed.group.map_or(1, |group| ran.program.groups[group].ranks.len()),
            seconds: timed.seconds,
        });
        Self { duration: ends.zip(starts).map_or(0, |(end, start)| end - start), ops: ops.collect() }
    }
}

/// The seconds of a step of median length without its collectives, of which more ranks have larger ones.
fn computing(ran: &Ran) -> f64 {
    let of_step = |step: usize| {
        let records: Vec<Record> = ran.ends.iter().map(|end| end.records[step].clone()).collect();
        let timed = timed_ops(&ran.program, &records).into_iter();
        let exchanged = timed.filter(|timed| matches!(timed.op.work, Work::Collective { .. }));
        let exchanged: f64 = exchanged.map(|timed| timed.seconds).sum();
        ran.steps[step].seconds - exchanged / ran.ends.len() as f64
    };
    median((WARM_UP..ran.steps.len()).map(of_step).collect())
}
