//! Axes, batch and microbatch of rows that leave them blank.

use super::assumptions::{Completed, Kind};
use super::{NoPlan, Run};
use trainwright_lower::memory::plan_memory;
use trainwright_spec::plan::{Plan, Recompute, StageBlocks};

/// Microbatches of a step without pipeline, and for each of its stages; of runs whose data ranks share the weights.
///
/// Source: medians over the sources of traces/published/training.csv of the microbatches of a data rank (4), over those with a
/// pipeline divided by its ranks (8); torchtitan's and fms-fsdp's runs have 1.
const MICROBATCHES: usize = 4;
const MICROBATCHES_OF_STAGE: usize = 8;
const MICROBATCHES_OF_SHARDED_WEIGHTS: usize = 1;

/// Tokens of a microbatch of which neither it nor the batch is stated: assumed; larger ones speed up no product.
const TOKENS: usize = 16_384;

/// What notes say of a plan whose recomputation a tuner chose stage by stage.
const TUNED_BY_STAGE: [&str; 2] = ["per-stage plan", "ckpt"];

/// What they say if it chose the sharding too, and what it chooses from, the least sharding first.
const TUNED_SHARDING: &str = "zero";
const SHARDINGS: [&str; 3] = ["ddp", "zero1", "zero2"];

/// Ranks of the largest replica that is tried.
const LARGEST_REPLICA: usize = 4096;

/// The largest difference of a batch from a multiple of data ranks times microbatch that counts as rounding.
const ROUNDING: f64 = 0.05;

/// Fills the axes, the batch and the microbatch.
///
/// # Errors
/// `Unsupported` without a number of GPUs.
pub(super) fn settle(completed: &mut Completed) -> Result<(), NoPlan> {
    settle_gpus(completed)?;
    settle_accumulation(completed);
    settle_data(completed);
    match (completed.run.tp, completed.run.pp, completed.run.dp) {
        (None, None, None) => settle_by_memory(completed),
        (None, None, Some(data)) => settle_rest(completed, data),
        (Some(tensor), None, Some(data)) => {
            let pipeline = rest(&completed.run, tensor.saturating_mul(data));
            fill(completed, tensor, pipeline);
        }
        (None, Some(pipeline), Some(data)) => {
            let tensor = rest(&completed.run, pipeline.saturating_mul(data));
            fill(completed, tensor, pipeline);
        }
        _ => {}
    }
    settle_batch(completed);
    settle_tuned(completed);
    Ok(())
}

/// A blank `recompute` of a run whose notes say that a tuner chose it stage by stage: the fewest blocks of each stage in full with
/// which its rank fits, all of them where none fits. If they say so of the sharding, a blank one is the least with which all ranks
/// fit, or none if they never do.
fn settle_tuned(completed: &mut Completed) {
    let run = &completed.run;
    if !run.recompute.is_empty() || !TUNED_BY_STAGE.iter().all(|words| run.notes.contains(words)) {
        return;
    }
    let is_tuned = run.data_sharding.is_empty() && run.notes.contains(TUNED_SHARDING);
    let with = |sharding: &&str| Run { data_sharding: (*sharding).into(), ..run.clone() };
    let tuned = SHARDINGS.iter().filter(|_| is_tuned).map(|sharding| (Some(*sharding), with(sharding)));
    let first = std::iter::once((None, run.clone()));
    let tried = first.chain(tuned).filter_map(|(sharding, run)| Some((sharding, fewest_recomputed(&run)?)));
    let tried: Vec<(Option<&str>, Recomputed)> = tried.collect();
    let Some((sharding, chosen)) = tried.iter().find(|(_, tried)| tried.fits).or(tried.first()) else {
        return;
    };
    let pairs = || chosen.full.iter().zip(&chosen.blocks);
    let cells: Vec<String> = pairs().map(|(full, all)| format!("{full}/{}", (*all).max(1))).collect();
    if let Some(sharding) = sharding {
        completed.run.data_sharding = (*sharding).into();
        completed.assume(Kind::Memory, format!("`data_sharding` {sharding}: the least that fits"));
    }
    completed.run.recompute = format!("full {}", cells.join(" "));
    let text = format!("`recompute` {} of the stages' blocks in full: the fewest that fit", cells.join(", "));
    completed.assume(Kind::Memory, text);
}

/// The blocks of each stage, and how many of them are recomputed in full.
struct Recomputed {
    blocks: Vec<usize>,
    full: Vec<usize>,
    fits: bool,
}

/// The fewest blocks in full with which the ranks of a run fit. `None` where it has no plan, or ranks have several stages, which share
/// their memory.
fn fewest_recomputed(run: &Run) -> Option<Recomputed> {
    let plan = run.plan().ok()?;
    if plan.stages.len() != plan.mesh.pipeline {
        return None;
    }
    let blocks: Vec<usize> = plan.stages.iter().map(|stage| stage.0.len()).collect();
    let mut recomputed = vec![0usize; blocks.len()];
    loop {
        let choices = recomputed.iter().zip(&blocks);
        let stages = choices.map(|(full, all)| {
            let of = |place| if place < *full { Recompute::Full } else { Recompute::None };
            StageBlocks((0..*all).map(of).collect())
        });
        let trial = Plan { stages: stages.collect(), ..plan.clone() };
        let room = plan.cluster.node.gpu.memory.value;
        let memory = plan_memory(&trial);
        let lacks = |stage: &usize| memory[*stage].total() > room && recomputed[*stage] < blocks[*stage];
        let lacking: Vec<usize> = (0..blocks.len()).filter(lacks).collect();
        if lacking.is_empty() {
            let fits = memory.iter().all(|memory| memory.total() <= room);
            return Some(Recomputed { blocks, full: recomputed, fits });
        }
        lacking.into_iter().for_each(|stage| recomputed[stage] += 1);
    }
}

/// A blank number of GPUs is the product of the axes.
fn settle_gpus(completed: &mut Completed) -> Result<(), NoPlan> {
    let run = &mut completed.run;
    if run.gpus.is_some() {
        return Ok(());
    }
    let axes = [run.tp, run.pp, run.cp, run.dp];
    if axes.iter().all(Option::is_none) {
        return Err(NoPlan::missing("gpus"));
    }
    let gpus = axes.iter().flatten().try_fold(1usize, |product, size| product.checked_mul(*size));
    let gpus = gpus.ok_or_else(|| NoPlan::Invalid("the axes have too many ranks".into()))?;
    run.gpus = Some(gpus);
    completed.assume(Kind::Layout, format!("`gpus` {gpus}, the product of the axes"));
    Ok(())
}

/// Data ranks of a row without axes that logged how many microbatches of one sequence it accumulates: batch over accumulation.
fn settle_accumulation(completed: &mut Completed) {
    let run = &completed.run;
    let words = "logged gradient_accumulation_steps ";
    let noted = run.notes.split_once(words).and_then(|(_, rest)| {
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        digits.parse::<usize>().ok().filter(|steps| *steps > 0)
    });
    let blank = [run.tp, run.pp, run.cp, run.dp].iter().all(Option::is_none) && run.micro_batch.is_none();
    let (Some(steps), Some(batch), Some(gpus), true) = (noted, run.global_batch, run.gpus, blank) else {
        return;
    };
    let data = batch / steps;
    if batch.is_multiple_of(steps) && gpus.is_multiple_of(data) {
        completed.run.dp = Some(data);
        completed.run.micro_batch = Some(1);
        completed.assume(Kind::Layout, format!("`dp` {data}: {steps} microbatches of one sequence"));
    }
}

/// Ranks that do not fill the GPUs: the number of GPUs counts, and data ranks follow from it, or context ranks if the
/// batch does not divide by those data ranks.
fn settle_data(completed: &mut Completed) {
    let run = &completed.run;
    let (Some(tensor), Some(pipeline), Some(data), Some(gpus)) = (run.tp, run.pp, run.dp, run.gpus) else {
        return;
    };
    let context = run.cp.unwrap_or(1);
    let layers = tensor.saturating_mul(pipeline);
    let shared = layers.saturating_mul(context);
    let ranks = shared.saturating_mul(data);
    if ranks == gpus {
        return;
    }
    let divides = |data: usize| {
        run.global_batch
            .is_none_or(|batch| batch.is_multiple_of(data.saturating_mul(run.micro_batch.unwrap_or(1))))
    };
    let text = |axis: &str, now: usize, was: usize| {
        format!("`{axis}` {now} for {was}: the axes have {ranks} ranks, and there are {gpus} GPUs")
    };
    let without_context = layers.saturating_mul(data);
    if gpus.is_multiple_of(shared) && divides(gpus / shared) {
        completed.run.dp = Some(gpus / shared);
        completed.assume(Kind::Layout, text("dp", gpus / shared, data));
    } else if gpus.is_multiple_of(without_context) && divides(data) {
        completed.run.cp = Some(gpus / without_context);
        completed.assume(Kind::Layout, text("cp", gpus / without_context, context));
    }
}

/// GPUs over ranks, context ranks included; 1 if that is not a whole number.
fn rest(run: &Run, ranks: usize) -> usize {
    let ranks = ranks.saturating_mul(run.cp.unwrap_or(1)).max(1);
    let gpus = run.gpus.unwrap_or(1);
    if gpus.is_multiple_of(ranks) { gpus / ranks } else { 1 }
}

fn fill(completed: &mut Completed, tensor: usize, pipeline: usize) {
    let blank = [completed.run.tp.is_none(), completed.run.pp.is_none()];
    completed.run.tp = Some(tensor);
    completed.run.pp = Some(pipeline);
    let filled = [("tp", tensor, blank[0]), ("pp", pipeline, blank[1])];
    let filled: Vec<String> = filled
        .iter()
        .filter(|(_, ranks, blank)| *blank && *ranks > 1)
        .map(|(axis, ranks, _)| format!("`{axis}` {ranks}"))
        .collect();
    if !filled.is_empty() {
        completed.assume(Kind::Layout, format!("{}: the ranks of a replica", filled.join(", ")));
    }
}

/// Tensor and pipeline ranks of a replica with this number of ranks: tensor first, within a node.
fn split(run: &Run, ranks: usize) -> Option<(usize, usize)> {
    let node = run.cluster().ok()?.node.gpus.value;
    let heads = run.heads.unwrap_or(node);
    let suits = |tensor: &usize| ranks.is_multiple_of(*tensor) && heads.is_multiple_of(*tensor);
    let tensor = (1..=node.min(ranks)).rev().find(suits)?;
    Some((tensor, ranks / tensor))
}

/// Tensor and pipeline ranks of GPUs that the data ranks leave.
fn settle_rest(completed: &mut Completed, data: usize) {
    let ranks = rest(&completed.run, data);
    if let Some((tensor, pipeline)) = split(&completed.run, ranks) {
        fill(completed, tensor, pipeline);
    }
}

/// The smallest replica that has a plan and fits; the smallest that has a plan, if none fits. Where data ranks share the
/// weights, a blank `recompute` is full before layers are divided.
fn settle_by_memory(completed: &mut Completed) {
    let Some(gpus) = completed.run.gpus else { return };
    let replicas = gpus / completed.run.cp.unwrap_or(1).max(1);
    let divisors = (1..=replicas.min(LARGEST_REPLICA)).filter(|ranks| replicas.is_multiple_of(*ranks));
    let may_recompute = completed.run.recompute.is_empty() && shares_weights(&completed.run);
    let mut first = None;
    for (ranks, recomputes) in divisors.flat_map(|ranks| [(ranks, false), (ranks, true)]) {
        let Some((tensor, pipeline)) = split(&completed.run, ranks) else { continue };
        if recomputes && !may_recompute {
            continue;
        }
        let mut trial = completed.clone();
        if recomputes {
            trial.run.recompute = "full".into();
            trial.assume(Kind::Memory, "`recompute` full: nothing else fits".into());
        }
        fill(&mut trial, tensor, pipeline);
        settle_batch(&mut trial);
        let Ok(plan) = trial.run.plan() else { continue };
        if fits(&plan) {
            *completed = trial;
            return;
        }
        first = first.or(Some(trial));
    }
    if let Some(trial) = first {
        *completed = trial;
    }
}

/// Whether data ranks share the weights.
fn shares_weights(run: &Run) -> bool {
    let scheme = run.data_sharding.split(':').next().unwrap_or_default();
    ["zero3", "hsdp", "zero2-fsdp"].contains(&scheme)
}

/// Whether every rank has enough memory.
fn fits(plan: &Plan) -> bool {
    let room = plan.cluster.node.gpu.memory.value;
    plan_memory(plan).iter().all(|rank| rank.total() <= room)
}

/// A blank batch, with the microbatch if that is blank too; or a batch that divides up to rounding.
fn settle_batch(completed: &mut Completed) {
    let run = &completed.run;
    let shared = run.tp.unwrap_or(1).saturating_mul(run.pp.unwrap_or(1));
    let data = rest(run, shared);
    if let Some(batch) = run.global_batch {
        let each = data.saturating_mul(run.micro_batch.unwrap_or(1));
        let near = ((batch as f64 / each as f64).round() as usize).saturating_mul(each);
        let off = (near as f64 / batch as f64 - 1.0).abs();
        if near > 0 && off > 0.0 && off <= ROUNDING {
            completed.run.global_batch = Some(near);
            completed.assume(Kind::Batch, format!("`global_batch` {near} for {batch}, a multiple of {each}"));
        }
        return;
    }
    let pipeline = run.pp.unwrap_or(1);
    let microbatches = match shares_weights(run) {
        _ if pipeline > 1 => pipeline.saturating_mul(MICROBATCHES_OF_STAGE),
        true => MICROBATCHES_OF_SHARDED_WEIGHTS,
        false => MICROBATCHES,
    };
    let given = run.micro_batch;
    let of = |micro: usize| Run {
        micro_batch: Some(micro),
        global_batch: Some(data.saturating_mul(micro).saturating_mul(microbatches)),
        ..completed.run.clone()
    };
    let largest = match pipeline {
        1 => (TOKENS / run.seq_len.unwrap_or(TOKENS)).clamp(1, 64),
        _ => 1,
    };
    let powers = (0..=largest.ilog2()).rev().map(|power| 1 << power);
    let fitting = || powers.map(of).find(|trial| trial.plan().is_ok_and(|plan| fits(&plan)));
    let filled = match given {
        Some(micro) => of(micro),
        None => fitting().unwrap_or_else(|| of(1)),
    };
    let batch = filled.global_batch.unwrap_or_default();
    let text = match (given, filled.micro_batch) {
        (None, Some(micro)) => format!("`micro_batch` {micro} and `global_batch` {batch}"),
        _ => format!("`global_batch` {batch}"),
    };
    completed.run = filled;
    completed.assume(Kind::Batch, format!("{text}: {microbatches} microbatches of {data} data ranks"));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// GPT-3 on A100s, without axes and batch.
    fn gpt3(gpus: usize) -> Run {
        Run {
            layers: Some(96),
            hidden: Some(12_288),
            heads: Some(96),
            seq_len: Some(2048),
            gpu: "a100-80gb-sxm".into(),
            gpus: Some(gpus),
            recompute: "full".into(),
            global_batch: Some(1536),
            framework: "Megatron-LM".into(),
            date: "2021-04".into(),
            ..Run::default()
        }
    }

    /// Axes (tensor, pipeline, context, data), batch and remarks of a completed row.
    fn settled(run: Run) -> ([usize; 4], usize, String) {
        let completed = run.completed().unwrap();
        let plan = completed.run.plan().unwrap();
        let mesh = &plan.mesh;
        let texts: Vec<&str> =
            completed.assumptions.iter().map(|assumption| assumption.text.as_str()).collect();
        ([mesh.tensor, mesh.pipeline, mesh.context, mesh.data], plan.job.global_batch, texts.join("; "))
    }

    #[test]
    fn blank_axes_are_what_the_data_ranks_leave() {
        // 384 GPUs over 4 data ranks: 96 = 8 of a node times 12.
        let replica = "`tp` 8, `pp` 12: the ranks of a replica".to_string();
        assert_eq!(settled(Run { dp: Some(4), ..gpt3(384) }), ([8, 12, 1, 4], 1536, replica));
        let pipeline = "`pp` 24: the ranks of a replica".to_string();
        assert_eq!(settled(Run { tp: Some(4), dp: Some(4), ..gpt3(384) }), ([4, 24, 1, 4], 1536, pipeline));
        let tensor = "`tp` 2: the ranks of a replica".to_string();
        assert_eq!(settled(Run { pp: Some(48), dp: Some(4), ..gpt3(384) }), ([2, 48, 1, 4], 1536, tensor));
    }

    #[test]
    fn a_layout_without_any_axis_is_the_smallest_replica_that_fits() {
        let ([tensor, pipeline, _, _], _, text) = settled(gpt3(1024));
        assert_eq!(text, format!("`tp` {tensor}, `pp` {pipeline}: the ranks of a replica"));
        let half = Run { tp: Some(tensor), pp: Some(pipeline / 2), ..gpt3(1024) };
        assert!(fits(&Run { pp: Some(pipeline), ..half.clone() }.plan().unwrap()));
        assert!(half.plan().is_err() || !fits(&half.plan().unwrap()));
        // A small model fits on one GPU, which is the default.
        let small =
            Run { layers: Some(12), hidden: Some(768), heads: Some(12), global_batch: Some(64), ..gpt3(8) };
        assert_eq!(settled(small), ([1, 1, 1, 8], 64, String::new()));
    }

    #[test]
    fn axes_that_contradict_the_gpus_give_way() {
        let row = |batch: usize| Run {
            tp: Some(8),
            pp: Some(8),
            cp: Some(1),
            dp: Some(2),
            global_batch: Some(batch),
            // Software whose attention kernel can share a sequence.
            date: "2024-06".into(),
            ..gpt3(256)
        };
        let data = "`dp` 4 for 2: the axes have 128 ranks, and there are 256 GPUs".to_string();
        assert_eq!(settled(row(8)), ([8, 8, 1, 4], 8, data));
        // A batch of 2 does not divide by 4 data ranks.
        let context = "`cp` 2 for 1: the axes have 128 ranks, and there are 256 GPUs".to_string();
        assert_eq!(settled(row(2)), ([8, 8, 2, 2], 2, context));
    }

    #[test]
    fn a_blank_batch_has_the_usual_microbatches() {
        let row = || Run { tp: Some(8), pp: Some(8), global_batch: None, ..gpt3(128) };
        let text = "`micro_batch` 1 and `global_batch` 128: 64 microbatches of 2 data ranks".to_string();
        assert_eq!(settled(row()), ([8, 8, 1, 2], 128, text));
        let text = "`global_batch` 256: 64 microbatches of 2 data ranks".to_string();
        assert_eq!(settled(Run { micro_batch: Some(2), ..row() }), ([8, 8, 1, 2], 256, text));
        let rounded = Run { global_batch: Some(127), micro_batch: Some(2), ..row() };
        let text = "`global_batch` 128 for 127, a multiple of 4".to_string();
        assert_eq!(settled(rounded), ([8, 8, 1, 2], 128, text));
    }

    #[test]
    fn gpus_are_the_product_of_the_axes() {
        let run = Run { gpus: None, tp: Some(8), pp: Some(8), ..gpt3(1) };
        assert_eq!(settled(run), ([8, 8, 1, 1], 1536, "`gpus` 64, the product of the axes".into()));
    }

    #[test]
    fn sizes_that_no_machine_has_are_refused_without_a_panic() {
        let most = Some(1_000_000_000);
        let huge = Run { tp: most, pp: most, dp: most, cp: most, micro_batch: most, gpus: most, ..gpt3(8) };
        let blank = |run: Run| Run { global_batch: None, ..run };
        for run in [
            huge.clone(),
            blank(huge.clone()),
            blank(Run { tp: None, ..huge.clone() }),
            blank(Run { tp: None, pp: None, ..huge.clone() }),
            Run { tp: None, pp: None, dp: None, ..huge.clone() },
            Run { layers: None, params_b: Some(1e300), ..gpt3(8) },
            Run { hidden: None, params_b: Some(1e300), ..gpt3(8) },
            Run { gpus: None, ..huge },
        ] {
            let plan = run.completed().and_then(|completed| completed.run.plan());
            assert!(plan.is_err(), "{run:?}");
        }
    }
}
