//! The forecast of a plan: the figures by which plans are compared.

use crate::costs::{Costs, Query};
use crate::engine::{Halt, Stop};
use crate::launches::{few_microbatches, launches_of};
use crate::simulate::Stopwatch;
use crate::{Deadlock, Detail, hardware_flops, simulate_until};
use serde::Serialize;
use std::collections::BTreeMap;
use trainwright_lower::memory::{NodeMemory, RankMemory, node_memory, plan_memory};
use trainwright_lower::{lower, lower_every_rank, lower_lengths, lower_steps};
use trainwright_spec::data::{Divided, Reduction, Reshard};
use trainwright_spec::model::flops::AttentionCount;
use trainwright_spec::plan::{Plan, ScheduleChoice};
use trainwright_spec::program::{Call, Op, Pass, Program, RankProgram, Work};
use trainwright_spec::schedule::{PipelineShape, shorter_step};
use trainwright_spec::units::{Bytes, Flops, Picoseconds, Seconds};
use trainwright_timeline::report::{Report, TimeShares};
use trainwright_timeline::timeline::Timeline;

/// The forecast of one training step.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Forecast {
    /// How long a step takes.
    #[serde(rename = "step_time_s")]
    pub step_time: Seconds,
    /// Tokens per second of all GPUs together.
    pub tokens_per_s: f64,
    /// Tokens per second of one GPU.
    pub tokens_per_s_per_gpu: f64,
    /// Model FLOPs of a step, every attention score counted.
    pub model_flops_full_attention: Flops,
    /// Model FLOPs of a step, only the scores that the mask lets through counted.
    pub model_flops_causal_attention: Flops,
    /// Matrix FLOPs that the GPUs execute in a step, recomputation included.
    pub hardware_flops: Flops,
    /// Model FLOP/s over the peak, every attention score counted, 0 to 1.
    pub mfu_full_attention: f64,
    /// Model FLOP/s over the peak, only visible scores counted, 0 to 1.
    pub mfu_causal_attention: f64,
    /// Executed FLOP/s over the peak, 0 to 1.
    pub hfu: f64,
    /// Kernel time spent on computing again what was not kept, in the mean over ranks.
    #[serde(rename = "recompute_s")]
    pub recompute_time: Seconds,
    /// How finely the step was simulated for `report`.
    pub detail: Detail,
    /// The peak memory of the GPU that has least left, in closed form.
    #[serde(rename = "peak_memory_bytes")]
    pub peak_memory: Bytes,
    /// The memory of that GPU.
    #[serde(rename = "gpu_memory_bytes")]
    pub gpu_memory: Bytes,
    /// Offloaded tensors in the fullest node; `None` if nothing is offloaded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_memory: Option<NodeMemory>,
    /// Whether every GPU has enough, and every node for what is offloaded.
    pub fits: bool,
    /// Peak memory by pipeline rank and kind, in bytes.
    #[serde(rename = "memory_bytes_by_pipeline_rank")]
    pub memory: Vec<RankMemory>,
    /// Where time and memory go, rank by rank, by simulation.
    pub report: Report,
}

/// Steps of more ops than this are simulated call by call: their timelines would take gigabytes.
const MOST_OPS: usize = 3_000_000;

/// The step time of a plan, for ranking many: that of `quick_forecast`.
///
/// # Errors
/// `Deadlock` if the schedule's actions wait for each other.
pub fn step_time_for_ranking(plan: &Plan, costs: &impl Costs) -> Result<Picoseconds, Deadlock> {
    unstopped(step_time_for_ranking_until(plan, costs, &|| false))
}

/// The same, unless it is stopped before its end.
///
/// # Errors
/// As `step_time_for_ranking`; `Stopped` if `stop` said so.
pub fn step_time_for_ranking_until(plan: &Plan, costs: &impl Costs, stop: Stop) -> Result<Picoseconds, Halt> {
    let detail = detail_for_ranking(plan);
    let mut stopwatch = Stopwatch::new(costs, detail, stop);
    let [step] = step_by(plan, |program, wanted| {
        Ok(match wanted {
            Wanted::Nothing => None,
            Wanted::OfFew => {
                stopwatch.time_of_few(program)?.map(|step| Times { times: [step], progress: Vec::new() })
            }
            Wanted::Step | Wanted::All => {
                let (step, progress) = stopwatch.time_and_progress(program)?;
                Some(Times { times: [step], progress })
            }
        })
    })?;
    Ok(step)
}

/// What a simulation that nobody stops came to.
fn unstopped<T>(simulated: Result<T, Halt>) -> Result<T, Deadlock> {
    match simulated {
        Ok(result) => Ok(result),
        Err(Halt::Deadlock(deadlock)) => Err(deadlock),
        Err(Halt::Stopped) => unreachable!("nobody stops it"),
    }
}

/// Ranks that share cores slow each other in ways that joined ops do not show.
fn detail_for_ranking(plan: &Plan) -> Detail {
    match plan.cluster.node.cores {
        Some(_) if plan.schedule().flushes() => Detail::Ops,
        _ => Detail::Calls,
    }
}

/// What is measured of a program.
struct Times<const N: usize> {
    /// How long it takes, and what else grows with its length.
    times: [Picoseconds; N],
    /// When each rank has run each microbatch forward through its first stage.
    progress: Vec<Vec<Picoseconds>>,
}

/// Which times of a program are asked for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wanted {
    /// All.
    All,
    /// The first: how long it takes.
    Step,
    /// All, if a few rounds of the program tell.
    OfFew,
    /// None: the program is one that was lowered together with another.
    Nothing,
}

/// Times of a plan's step from those of programs, which differ in their calls alone.
fn step_by<const N: usize>(
    plan: &Plan,
    mut times: impl FnMut(&Program, Wanted) -> Result<Option<Times<N>>, Halt>,
) -> Result<[Picoseconds; N], Halt> {
    let mut always =
        |program: &Program, wanted| Ok(times(program, wanted)?.expect("only a few rounds may not tell"));
    match plan.cluster.node.cores {
        _ if !plan.schedule().flushes() => steady_state(plan, always),
        Some(_) => Ok(always(&step_program(plan), Wanted::All)?.times),
        None => repeated(plan, times),
    }
}

/// Times of a step from a few rounds of it, if all ranks repeat them exactly; else of the whole step, or extrapolated.
fn repeated<const N: usize>(
    plan: &Plan,
    mut times: impl FnMut(&Program, Wanted) -> Result<Option<Times<N>>, Halt>,
) -> Result<[Picoseconds; N], Halt> {
    let lengths = [plan.microbatches(), few_microbatches(plan)];
    let shorter = lengths[1] < lengths[0];
    let mut programs = lower_lengths(plan, &lengths[..1 + usize::from(shorter)]);
    if shorter {
        times(programs.program(1), Wanted::Nothing)?;
    }
    if let Some(few) = times(programs.program(0), Wanted::OfFew)? {
        return Ok(few.times);
    }
    let mut always =
        |program: &Program, wanted| Ok(times(program, wanted)?.expect("only a few rounds may not tell"));
    match extrapolated(plan, &mut always)? {
        Some(times) => Ok(times),
        None => Ok(always(programs.program(0), Wanted::All)?.times),
    }
}

/// The program of a plan's step as it is simulated: one rank of each class of ranks that do the same. Ranks that share cores slow
/// each other, so that none stands for another.
pub fn step_program(plan: &Plan) -> Program {
    match plan.cluster.node.cores {
        Some(_) => lower_every_rank(plan),
        None => lower(plan),
    }
}

/// Where the time of a step goes, in the mean over ranks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct QuickForecast {
    /// The step.
    pub step_time: Picoseconds,
    /// Its part without kernels and communication.
    pub bubble: Picoseconds,
    /// Its part with communication but no kernel.
    pub exposed: Picoseconds,
    /// The time that the process of the first rank needs for it; `None` if no program was lowered that tells.
    pub launches: Option<Seconds>,
}

/// Times of a step, call by call and for long steps extrapolated, for the forecast of many.
///
/// # Errors
/// `Deadlock` if the schedule's actions wait for each other.
pub fn quick_forecast(plan: &Plan, costs: &impl Costs) -> Result<QuickForecast, Deadlock> {
    let mut stopwatch = Stopwatch::new(costs, detail_for_ranking(plan), &|| false);
    let few = few_microbatches(plan);
    let mut launches = plan.stack.host.is_none().then_some(Seconds::ZERO);
    let times = |program: &Program, wanted: Wanted| {
        if launches.is_none() && microbatches_of(program) == few {
            launches = Some(launches_of(plan, program, few));
        }
        Ok(match wanted {
            Wanted::Nothing => None,
            Wanted::OfFew => {
                let few = stopwatch.shares_of_few(program)?;
                few.map(|(step, mean)| Times {
                    times: [step, mean.bubble, mean.exposed],
                    progress: Vec::new(),
                })
            }
            Wanted::Step => {
                let (step, progress) = stopwatch.time_and_progress(program)?;
                Some(Times { times: [step, Picoseconds::ZERO, Picoseconds::ZERO], progress })
            }
            Wanted::All => {
                let (step, progress, mean) = stopwatch.shares(program)?;
                Some(Times { times: [step, mean.bubble, mean.exposed], progress })
            }
        })
    };
    let [step_time, bubble, exposed] = unstopped(step_by(plan, times))?;
    Ok(QuickForecast { step_time, bubble, exposed, launches })
}

/// How many microbatches the first rank of a program runs.
fn microbatches_of(program: &Program) -> usize {
    let actions = program.ranks[0].calls.iter().filter_map(|call| call.action);
    actions.map(|action| action.microbatch + 1).max().unwrap_or(0)
}

/// Microbatches, in pipelines, beyond which a step is extrapolated: the three shorter ones have up to fifteen.
const MANY_PIPELINES: usize = 15;

/// The relative difference of two rounds up to which a step is extrapolated.
const UNEVEN: f64 = 1e-6;

/// Times of a step of m microbatches, from three shorter steps if it is long:
/// T(m) = T(a + p) + (m − a − p) / p · (T(a + p) − T(a)).
///
/// p pipeline ranks, a the microbatches of `shorter_step`. Once a pipeline is full, most schedules repeat, so that each p more
/// microbatches, a round, take the same time; filling and draining take the same time however many there are. The whole step is
/// simulated where that round does not take what the one before it did, T(a) − T(a − p), as with schedules that repeat after more
/// than p; where some rank goes through that round faster than others, since it runs ahead and will wait for them in a later round;
/// and where the data axis of a pipeline communicates in every microbatch: its queue may grow for many rounds before kernels wait for
/// it.
/// Tests hold it to the whole step.
fn extrapolated<const N: usize>(
    plan: &Plan,
    mut times: impl FnMut(&Program, Wanted) -> Result<Times<N>, Halt>,
) -> Result<Option<[Picoseconds; N]>, Halt> {
    let shape = plan.pipeline_shape();
    let (p, m) = (shape.ranks, shape.microbatches);
    let from_file = matches!(plan.schedule, ScheduleChoice::Actions(_));
    let in_full = from_file || communicates_in_every_microbatch(plan) || m <= MANY_PIPELINES * p;
    let exists = |microbatches| plan.schedule().check(PipelineShape { microbatches, ..shape }).is_ok();
    let shorter = shorter_step(plan.schedule(), shape).map(|shorter| shorter.microbatches);
    let Some(few) = shorter.filter(|few| !in_full && exists(few - p) && exists(few + p)) else {
        return Ok(None);
    };
    let mut programs = lower_lengths(plan, &[few - p, few, few + p]);
    let mut with = |length: usize, wanted| times(programs.program(length), wanted);
    let (first, second, third) = (with(0, Wanted::Step)?, with(1, Wanted::All)?, with(2, Wanted::All)?);
    let more =
        |to: &Times<N>, from: &Times<N>, index: usize| to.times[index].0.saturating_sub(from.times[index].0);
    let rounds = [more(&second, &first, 0), more(&third, &second, 0)].map(|round| round as f64);
    let is_close = |a: f64, b: f64| (a - b).abs() <= UNEVEN * rounds[1];
    let mut paces = third.progress.iter().map(|ended| pace(ended, [few - p, few, few + p]));
    let first_pace = paces.next().flatten();
    let is_even = paces.all(|pace| pace.zip(first_pace).is_some_and(|(a, b)| is_close(a, b)));
    if !is_close(rounds[1], rounds[0]) || !is_even {
        return Ok(None);
    }
    let left = ((m - few - p) / p) as u64;
    Ok(Some(std::array::from_fn(|index| {
        Picoseconds(third.times[index].0 + left * more(&third, &second, index))
    })))
}

/// In what time a rank goes through the round between the first two of these numbers of microbatches, of as many in all as the third,
/// by when its first stage has run each forward. Of two copies of a stage each runs half of them. `None` if it runs too few.
fn pace(ended: &[Picoseconds], [from, to, all]: [usize; 3]) -> Option<f64> {
    let of = |microbatches: usize| ended.get(microbatches * ended.len() / all);
    Some(of(to)?.0.saturating_sub(of(from)?.0) as f64)
}

/// Whether weights are gathered or gradients reduced in every microbatch of a pipeline.
fn communicates_in_every_microbatch(plan: &Plan) -> bool {
    let gathers = plan.divides(Divided::Weights) && plan.reshard() != Reshard::AfterStep;
    plan.mesh.data > 1
        && plan.mesh.pipeline > 1
        && (gathers || plan.reduction() == Reduction::EveryMicrobatch)
}

/// Times between two updates where steps follow each other without a flush: what the third of three steps adds.
fn steady_state<const N: usize>(
    plan: &Plan,
    mut times: impl FnMut(&Program, Wanted) -> Result<Times<N>, Halt>,
) -> Result<[Picoseconds; N], Halt> {
    let two = times(&lower_steps(plan, 2), Wanted::All)?.times;
    let three = times(&lower_steps(plan, 3), Wanted::All)?.times;
    Ok(std::array::from_fn(|index| Picoseconds(three[index].0.saturating_sub(two[index].0))))
}

/// Kernel time of the recompute pass, in the mean over ranks.
fn recompute_time(program: &Program, costs: &impl Costs) -> Seconds {
    // By device and segment.
    let mut known: BTreeMap<(usize, usize), Seconds> = BTreeMap::new();
    let mut of_rank = |rank: &RankProgram| {
        let device = costs.device(rank.rank);
        let of_op = |op: &Op| match &op.work {
            Work::Compute(_) if op.pass == Pass::Recompute => {
                Query::of(program, rank, op).map_or(Seconds::ZERO, |query| costs.cost(&query).time)
            }
            _ => Seconds::ZERO,
        };
        let mut of_call = |call: &Call| {
            let of_segment = || program.segments[call.segment].ops.iter().map(of_op).sum();
            *known.entry((device, call.segment)).or_insert_with(of_segment)
        };
        rank.stands_for as f64 * rank.calls.iter().map(&mut of_call).sum::<Seconds>()
    };
    let ranks: usize = program.ranks.iter().map(|rank| rank.stands_for).sum();
    program.ranks.iter().map(&mut of_rank).sum::<Seconds>() / ranks as f64
}

/// The pipeline rank whose GPUs have least memory left.
pub fn fullest(plan: &Plan, memory: &[RankMemory]) -> usize {
    let left = |rank: usize| (plan.node(rank).gpu.memory.value - memory[rank].total()).get();
    (0..memory.len()).min_by(|a, b| left(*a).total_cmp(&left(*b))).expect("a plan has ranks")
}

/// Simulates a step of `plan`: op by op, or call by call if it has very many. The plan must have passed `Plan::check`.
///
/// # Errors
/// `Deadlock` if the schedule's actions wait for each other.
pub fn forecast(plan: &Plan, costs: &impl Costs) -> Result<(Forecast, Timeline), Deadlock> {
    unstopped(forecast_until(plan, costs, Detail::Ops, &|| false))
}

/// The same with `detail` or less, unless it is stopped before its end.
///
/// # Errors
/// As `forecast`; `Stopped` if `stop` said so.
pub fn forecast_until(
    plan: &Plan,
    costs: &impl Costs,
    detail: Detail,
    stop: Stop,
) -> Result<(Forecast, Timeline), Halt> {
    let program = step_program(plan);
    let detail = detail.affordable(&program);
    let timeline = simulate_until(&program, costs, detail, stop)?;
    // One step alone would fill and drain the pipeline; the report shows that step, the figures are of the steady state.
    let step_time = match plan.schedule().flushes() {
        true => timeline.duration,
        false => step_time_for_ranking_until(plan, costs, stop)?,
    };
    Ok((forecast_of(plan, costs, &program, (detail, step_time, &timeline)), timeline))
}

/// Where the time of a step goes, without the rest of a forecast.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TimeForecast {
    /// `Forecast::step_time`.
    pub step_time: Seconds,
    /// The mean over the ranks of `Forecast::report`.
    pub mean: TimeShares,
    /// `Forecast::recompute_time`.
    pub recompute_time: Seconds,
}

impl From<&Forecast> for TimeForecast {
    fn from(forecast: &Forecast) -> Self {
        let Forecast { step_time, recompute_time, report, .. } = forecast;
        Self { step_time: *step_time, mean: report.mean, recompute_time: *recompute_time }
    }
}

/// Where the time of a step goes by `forecast_until` with `detail`, in less time than all of it takes.
///
/// # Errors
/// As `forecast_until`.
pub fn time_forecast_until(
    plan: &Plan,
    costs: &impl Costs,
    detail: Detail,
    stop: Stop,
) -> Result<TimeForecast, Halt> {
    let program = step_program(plan);
    let mut stopwatch = Stopwatch::new(costs, detail.affordable(&program), stop);
    let (duration, mean) = match stopwatch.shares_of_few(&program)? {
        Some(few) => few,
        None => {
            let (duration, _, mean) = stopwatch.shares(&program)?;
            (duration, mean)
        }
    };
    let step_time = match plan.schedule().flushes() {
        true => duration,
        false => step_time_for_ranking_until(plan, costs, stop)?,
    };
    Ok(TimeForecast { step_time: step_time.into(), mean, recompute_time: recompute_time(&program, costs) })
}

/// The step time of `forecast`, in less time.
///
/// # Errors
/// As `forecast`.
pub fn forecast_step_time(plan: &Plan, costs: &impl Costs) -> Result<Seconds, Deadlock> {
    unstopped(step_time_until(plan, costs, Detail::Ops, &|| false))
}

/// The step time of `forecast_until` with `detail`.
///
/// # Errors
/// As `forecast_until`.
pub fn step_time_until(plan: &Plan, costs: &impl Costs, detail: Detail, stop: Stop) -> Result<Seconds, Halt> {
    if !plan.schedule().flushes() {
        return Ok(step_time_for_ranking_until(plan, costs, stop)?.into());
    }
    let program = step_program(plan);
    Ok(Stopwatch::new(costs, detail.affordable(&program), stop).time(&program)?.into())
}

impl Detail {
    /// The same, or call by call if a program has very many ops.
    fn affordable(self, program: &Program) -> Detail {
        let of_rank = |rank: &RankProgram| -> usize {
            rank.calls.iter().map(|call| program.segments[call.segment].ops.len()).sum()
        };
        let ops: usize = program.ranks.iter().map(of_rank).sum();
        if ops > MOST_OPS { Detail::Calls } else { self }
    }
}

/// The figures of a step that was simulated.
fn forecast_of(
    plan: &Plan,
    costs: &impl Costs,
    program: &Program,
    (detail, step_time, timeline): (Detail, Picoseconds, &Timeline),
) -> Forecast {
    let report = Report::new(timeline);
    let step_time = Seconds::from(step_time);
    let model_flops = |count| plan.job.step_flops(&plan.model, count);
    let peak = plan.peak();
    let utilisation = |flops: Flops| flops / step_time / peak;
    let tokens_per_s = plan.job.tokens() as f64 / step_time.get();
    let memory = plan_memory(plan);
    let fullest = fullest(plan, &memory);
    let peak_memory = memory[fullest].total();
    let gpu_memory = plan.node(fullest).gpu.memory.value;
    let node_memory = node_memory(plan, &memory);
    let hardware_flops = hardware_flops(program);
    Forecast {
        step_time,
        tokens_per_s,
        tokens_per_s_per_gpu: tokens_per_s / plan.mesh.ranks() as f64,
        model_flops_full_attention: model_flops(AttentionCount::Full),
        model_flops_causal_attention: model_flops(AttentionCount::CausalHalved),
        hardware_flops,
        mfu_full_attention: utilisation(model_flops(AttentionCount::Full)),
        mfu_causal_attention: utilisation(model_flops(AttentionCount::CausalHalved)),
        hfu: utilisation(hardware_flops),
        recompute_time: recompute_time(program, costs),
        detail,
        peak_memory,
        gpu_memory,
        node_memory,
        fits: peak_memory <= gpu_memory && node_memory.is_none_or(|node| node.fits()),
        memory,
        report,
    }
}
