//! The bounds against what they bound, and the search against solving everything.

use super::*;
use crate::verdict::Pins;
use trainwright_spec::cluster::Cluster;
use trainwright_spec::job::Job;
use trainwright_spec::memory::{RankMemory, plan_memory};
use trainwright_spec::model::preset::preset;
use trainwright_spec::plan::Recompute;
use trainwright_spec::precision::Precision;
use trainwright_spec::stack::Stack;

/// A question on the first blocks of a model, on GPUs of a given memory.
fn question(model: &str, blocks: usize, cluster: &str, gib: f64, job: [usize; 2], stack: &str) -> Question {
    let mut model = preset(model).unwrap();
    model.blocks[0].count = blocks;
    let mut cluster = Cluster::from_name(cluster).unwrap();
    cluster.node.gpu.memory.value = Bytes::GIB * gib;
    let [sequence, global_batch] = job;
    Question {
        model,
        cluster,
        job: Job {
            sequence,
            global_batch,
            precision: Precision::Bf16,
            optimizer: "adamw".into(),
            gradient_clipping: true,
        },
        stack: Stack::from_name(stack).unwrap(),
        pins: Pins::default(),
    }
}

/// Ample and tight memory, one node and several, pipelines of uneven stages, experts, every stack.
fn questions() -> Vec<(&'static str, Question)> {
    let two_of = |nodes: usize, mut question: Question| {
        question.cluster.node.gpus.value = 2;
        question.cluster.nodes = nodes;
        question
    };
    let unclipped = |mut question: Question| {
        question.job.gradient_clipping = false;
        question
    };
    let core = "megatron-core";
    let mut experts_after_dense = question("deepseek-v3", 2, "dgx-h100:2", 79.0, [1024, 16], core);
    experts_after_dense.model.blocks[1].count = 3;
    vec![
        ("one GPU", two_of(1, question("gpt2", 12, "dgx-a100:1", 79.0, [1024, 8], core))),
        ("gpt2, ample", question("gpt2", 12, "dgx-a100:1", 79.0, [1024, 16], core)),
        ("gpt2, tight", question("gpt2", 12, "dgx-a100:1", 4.0, [1024, 16], core)),
        ("gpt2 in three", two_of(3, question("gpt2", 7, "dgx-a100:1", 79.0, [1024, 12], "pytorch-eager"))),
        ("gpt2-xl, tight", question("gpt2-xl", 24, "dgx-a100:1", 7.0, [1024, 8], "megatron-lm-2022")),
        ("gpt2-xl on small nodes", two_of(4, question("gpt2-xl", 24, "dgx-a100:1", 12.0, [1024, 8], core))),
        ("gpt2-xl, unclipped", unclipped(question("gpt2-xl", 12, "dgx-a100:2", 79.0, [1024, 16], core))),
        ("llama-3-8b, ample", question("llama-3-8b", 8, "dgx-h100:1", 79.0, [4096, 8], core)),
        ("llama-3-8b, tight", question("llama-3-8b", 16, "dgx-h100:1", 14.0, [4096, 8], core)),
        ("llama-3-8b, two nodes", question("llama-3-8b", 12, "dgx-h100:2", 10.0, [8192, 16], core)),
        ("llama, 2021", question("llama-3-8b", 8, "dgx-h100:1", 20.0, [2048, 8], "megatron-lm-2021")),
        ("mixtral-8x7b", question("mixtral-8x7b", 6, "dgx-h100:2", 24.0, [4096, 16], core)),
        ("experts after dense", experts_after_dense),
    ]
}

/// What comes of every candidate, those included that the bounds exclude.
fn solve_everything(space: &Space) -> Vec<Trial> {
    let all: Vec<usize> = (0..space.candidates.len()).collect();
    space.tried(&all).unwrap().into_iter().map(|(_, trial)| trial).collect()
}

#[test]
fn no_plan_beats_its_bounds() {
    for (name, question) in questions() {
        let space = Space::new(&question, &|_| {}).unwrap();
        let (mut fit, mut recompute, mut closest) = (0, 0, f64::INFINITY);
        for (index, trial) in solve_everything(&space).into_iter().enumerate() {
            let candidate = &space.candidates[index];
            let Trial::Simulated { plan, time, .. } = trial else { continue };
            let (time, bound) = (Seconds::from(time), space.bounds[index]);
            assert!(bound <= time, "{name}: {candidate:?} takes {time}, its bound is {bound}");
            let needs = plan_memory(&plan).iter().map(RankMemory::total).fold(Bytes::ZERO, Bytes::max);
            let least = space.memory[index];
            assert!(least <= needs, "{name}: {candidate:?} needs {needs}, its bound is {least}");
            assert!(space.order.contains(&index), "{name}: {candidate:?} fits, and the bounds exclude it");
            fit += 1;
            recompute +=
                usize::from(plan.stages.iter().flat_map(|stage| &stage.0).any(|c| *c != Recompute::None));
            closest = closest.min(time / bound);
        }
        let tight = name.contains("tight");
        assert!(fit >= 20 && (recompute >= 20 || !tight), "{name}: {fit} fit, {recompute} of them recompute");
        // Bounds that are far below every time would hold too, and be of no use.
        assert!(closest < 1.2, "{name}: the closest bound is {closest} below");
    }
}

#[test]
fn the_search_finds_what_solving_everything_finds() {
    let mut spared = 0;
    for (name, question) in questions() {
        let Ok(Verdict::Found(found)) = plan(&question, &|_| {}) else { panic!("{name}: nothing found") };
        let space = Space::new(&question, &|_| {}).unwrap();
        let trials = solve_everything(&space);
        let mut all: Vec<(Picoseconds, &Plan)> = space
            .order
            .iter()
            .filter_map(|index| match &trials[*index] {
                Trial::Simulated { plan, time, .. } => Some((*time, plan.as_ref())),
                Trial::OutOfMemory { .. } | Trial::Undecided => None,
            })
            .collect();
        all.sort_by_key(|(time, _)| *time);
        all.truncate(KEPT);
        // Long steps were extrapolated; the answer is ordered by the whole ones.
        let whole = |plan: &Plan| forecast(plan, &space.costs).unwrap().0.report.step_time;
        let mut best: Vec<(Picoseconds, &Plan)> =
            all.into_iter().map(|(_, plan)| (whole(plan), plan)).collect();
        best.sort_by_key(|(time, _)| *time);
        let ranked: Vec<(Picoseconds, &Plan)> =
            found.ranked.iter().map(|ranked| (ranked.forecast.report.step_time, &ranked.plan)).collect();
        assert!(ranked == best, "{name}");
        spared += found.search.bounded_out;
        let Search { candidates, out_of_memory, bounded_out, solved, simulated } = found.search;
        assert_eq!(candidates, out_of_memory + bounded_out + simulated, "{name}: {:?}", found.search);
        assert!(simulated <= solved, "{name}");
    }
    assert!(spared >= 300, "the bounds spare only {spared} candidates");
}
