//! The bounds against what they bound, and the search against solving everything.

use super::*;
use crate::bound::tight_bound;
use crate::question::Pins;
use trainwright_sim::costs::ClusterCosts;
use trainwright_spec::cluster::{
    Cluster, DeviceProfile, MeasuredKernel, MeasuredOp, NetworkProfile, Node, Others,
};
use trainwright_spec::job::Job;
use trainwright_spec::memory::{RankMemory, plan_memory};
use trainwright_spec::model::preset::preset;
use trainwright_spec::plan::{Recompute, StageBlocks};
use trainwright_spec::precision::Precision;
use trainwright_spec::program::{Access, Kernel};
use trainwright_spec::stack::Stack;

/// How many small questions are compared with simulating every plan.
const INSTANCES: usize = 24;

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
    // As many GPUs of another kind beside them, with other memory.
    let beside = |node: &str, gib: f64, mut question: Question| {
        let mut node = Node::from_name(node).unwrap();
        node.gpus = question.cluster.node.gpus.clone();
        node.gpu.memory.value = Bytes::GIB * gib;
        question.cluster.others.push(Others { nodes: question.cluster.nodes, node });
        question.cluster.nodes *= 2;
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
        (
            "measured all-reduces",
            measured("all-reduce", question("gpt2", 12, "dgx-a100:2", 79.0, [1024, 16], core)),
        ),
        (
            "measured reduce-scatters",
            measured("reduce-scatter", question("gpt2-xl", 12, "dgx-a100:1", 79.0, [1024, 16], core)),
        ),
        ("measured updates", measured_update(question("gpt2", 12, "dgx-a100:1", 79.0, [1024, 16], core))),
        (
            "two kinds",
            beside(
                "dgx-a100",
                79.0,
                two_of(2, question("llama-3-8b", 9, "dgx-h100:1", 79.0, [4096, 8], core)),
            ),
        ),
        (
            "two kinds, tight",
            beside(
                "dgx-h100",
                17.0,
                two_of(2, question("llama-3-8b", 10, "dgx-a100:1", 24.0, [4096, 8], core)),
            ),
        ),
    ]
}

/// A question whose collectives were measured and grow faster than their sizes from 1 MB on: half a tensor takes less than half
/// the time. From 100 MB on they take less again.
fn measured(collective: &str, mut question: Question) -> Question {
    let rows = "[[1024, 20], [1000000, 60], [4000000, 900], [90000000, 90000], [100000000, 20000]]";
    let sweep = |(nodes, ranks): (usize, usize)| {
        format!(
            "[[sweeps]]\ncollective = \"{collective}\"\nnodes = {nodes}\nranks_per_node = {ranks}\n\
             groups = {}\nbytes_and_us = {rows}\n",
            if nodes == 1 { 1 } else { 8 / ranks }
        )
    };
    let shapes = [(1, 2), (1, 4), (1, 8), (2, 1), (2, 2), (2, 4), (2, 8)];
    let text = format!(
        "kind = \"network\"\ncluster = \"c\"\ngpus_per_node = 8\nsource = \"s\"\n{}",
        shapes.map(sweep).concat()
    );
    let profile = NetworkProfile::from_toml(&text, "p").unwrap();
    question.cluster = question.cluster.with_profile(profile, "p").unwrap();
    question
}

/// A question whose optimizer was measured, and takes less for many parameters than for few.
fn measured_update(mut question: Question) -> Question {
    let row = |elements: f64, us: f64| MeasuredOp {
        op: "optimizer update".into(),
        measured: MeasuredKernel {
            kernel: Kernel::Streaming {
                access: Access::Elementwise,
                read: Bytes::new(20.0 * elements),
                written: Bytes::new(14.0 * elements),
            },
            time: Seconds::new(us * 1e-6),
        },
    };
    let ops = vec![row(1e6, 1e4), row(3e7, 2e5), row(6e7, 100.0), row(2e8, 300.0)];
    let profile = DeviceProfile { source: "a test".into(), kernels: Vec::new(), ops };
    question.cluster.node.gpu.profile = Some(profile);
    question
}

/// Small questions about the whole space: grids, contexts, experts, halves of backward, copies of the stages, divided
/// weights, offload.
fn whole_questions() -> Vec<(&'static str, Question)> {
    let whole = |mut question: Question, nodes: usize, gpus: usize| {
        question.pins = Pins::whole();
        question.cluster.node.gpus.value = gpus;
        question.cluster.nodes = nodes;
        question
    };
    let forbid = |mut question: Question, never: &[(&str, &str)]| {
        question.pins.never = never.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
        question
    };
    let core = "megatron-core";
    let long = question("llama-3-8b", 4, "dgx-h100:1", 79.0, [8192, 4], core);
    let grids = question("gpt2", 4, "dgx-a100:1", 79.0, [1024, 8], core);
    let mixture = question("mixtral-8x7b", 4, "dgx-h100:1", 60.0, [2048, 8], core);
    let mut latent = question("deepseek-v3", 1, "dgx-h100:1", 400.0, [1024, 8], core);
    latent.model.blocks[1].count = 3;
    let sharded = question("gpt2", 6, "dgx-a100:1", 79.0, [1024, 8], "pytorch-eager");
    let slow = question("gpt2", 4, "l40s-8-ethernet:2", 40.0, [512, 8], "pytorch-eager");
    let deepspeed = question("gpt2", 6, "dgx-a100:1", 3.0, [1024, 8], "deepspeed");
    let no_offload =
        [("offload", "activations"), ("offload", "optimizer"), ("offload", "optimizer+gradients")];
    vec![
        ("four GPUs", whole(grids, 1, 4)),
        ("long", forbid(whole(long, 2, 2), &no_offload)),
        ("mixture", forbid(whole(mixture, 2, 2), &no_offload)),
        ("latent", forbid(whole(latent, 1, 4), &no_offload)),
        ("sharded", whole(sharded, 2, 2)),
        ("sharded, slow network", forbid(whole(slow, 2, 2), &no_offload)),
        ("deepspeed", whole(deepspeed, 1, 4)),
    ]
}

/// Whether every pipeline rank holds what its GPUs have room for.
fn fits(plan: &Plan, held: &[RankMemory]) -> bool {
    held.iter().enumerate().all(|(rank, held)| held.total() <= plan.node(rank).gpu.memory.value)
}

/// What comes of every candidate, those included that the bounds exclude.
fn solve_everything(space: &Space) -> Vec<Seen> {
    let candidates: Vec<Candidate> =
        space.legal.layouts.iter().flat_map(|layout| space.legal.candidates(layout)).collect();
    candidates
        .par_iter()
        .map_init(
            || space.legal.layouts[0].plan(space.question, Vec::new()),
            |plan, candidate| {
                let (bound, memory) = space.limits(candidate, plan);
                let tight = tight_bound(space.question, candidate, plan, (&space.layers, None), &space.costs);
                let layout = layout_bound(space.question, candidate, space.layers.of(candidate));
                assert!(
                    layout <= bound * (1.0 + 1e-5),
                    "{candidate:?}: {layout} of the layout, {bound} of it"
                );
                assert!(bound <= tight, "{candidate:?}: {bound}, and a tight one of {tight}");
                let trial = space.trial(candidate).unwrap();
                if let Trial::Simulated { plan, time, .. } = &trial {
                    let held = plan_memory(plan);
                    let needs = held.iter().map(RankMemory::total).fold(Bytes::ZERO, Bytes::max);
                    let time = Seconds::from(*time);
                    assert!(memory <= needs, "{candidate:?} needs {needs}, its bound is {memory}");
                    assert!(fits(plan, &held), "{candidate:?} does not fit");
                    assert!(
                        tight <= time,
                        "{candidate:?} takes {time}, its bounds are {bound} and {tight}: {:?}",
                        plan.stages
                    );
                    let own = plan_bound(space.question, candidate, plan, &space.layers, &space.costs);
                    assert!(own <= time, "{candidate:?} takes {time}, its plan's bound is {own}");
                    plan.check("candidate").unwrap();
                }
                Seen { candidate: *candidate, bound: tight, trial }
            },
        )
        .collect()
}

#[test]
fn no_plan_beats_its_bounds() {
    for (name, question) in questions().into_iter().chain(whole_questions()) {
        let space = Space::new(&question).unwrap();
        let (mut fit, mut recompute, mut closest) = (0, 0, f64::INFINITY);
        for seen in solve_everything(&space) {
            let Trial::Simulated { plan, time, .. } = seen.trial else { continue };
            fit += 1;
            recompute +=
                usize::from(plan.stages.iter().flat_map(|stage| &stage.0).any(|c| *c != Recompute::None));
            closest = closest.min(Seconds::from(time) / seen.bound);
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
    for (name, question) in questions().into_iter().chain(whole_questions()) {
        let Ok(Verdict::Found(found)) = plan(&question, &|_| {}) else { panic!("{name}: nothing found") };
        let of_order = |ordered: Question| solve_everything(&Space::new(&ordered).unwrap());
        let everything: Vec<Seen> = orders(&question).into_iter().flat_map(of_order).collect();
        let mut times: Vec<Picoseconds> = everything.iter().filter_map(Seen::time).collect();
        times.sort_unstable();
        times.truncate(KEPT);
        let ranked = found.ranked.iter().map(|ranked| {
            step_time_for_ranking(&ranked.plan, &ClusterCosts::new(&ranked.plan.cluster)).unwrap()
        });
        let mut ranked: Vec<Picoseconds> = ranked.collect();
        ranked.sort_unstable();
        assert_eq!(ranked, times, "{name}");
        spared += found.search.bounded_out;
        let Search { candidates, out_of_memory, bounded_out, solved, simulated, unseen, .. } = found.search;
        assert_eq!((candidates, unseen), (everything.len(), 0), "{name}");
        assert_eq!(candidates, out_of_memory + bounded_out + simulated, "{name}: {:?}", found.search);
        assert!(simulated <= solved, "{name}");
    }
    assert!(spared >= 300, "the bounds spare only {spared} candidates");
}

/// Every division of `blocks` among so many stages, one or more each.
fn divisions(blocks: usize, stages: usize) -> Vec<Vec<usize>> {
    if stages == 1 {
        return vec![vec![blocks]];
    }
    let first = 1..=blocks + 1 - stages;
    let rest = |own: usize| {
        let rest = divisions(blocks - own, stages - 1).into_iter();
        rest.map(move |rest| [vec![own], rest].concat())
    };
    first.flat_map(rest).collect()
}

/// Every sequence of so many of these choices.
fn sequences(choices: &[Recompute], length: usize) -> Vec<Vec<Recompute>> {
    let start = vec![Vec::new()];
    (0..length).fold(start, |all, _| {
        let longer = |one: &Vec<Recompute>| {
            let one = one.clone();
            choices.iter().map(move |choice| [one.clone(), vec![*choice]].concat())
        };
        all.iter().flat_map(longer).collect()
    })
}

/// How many plans there are, and the time of the fastest that fits: every candidate with every partition and every
/// recomputation of each block.
fn fastest_of_all(space: &Space) -> (usize, Option<Picoseconds>) {
    let layers = space.question.model.layers();
    let again = sequences(&recompute_choices(space.question), layers);
    let candidates = space.legal.layouts.iter().flat_map(|layout| space.legal.candidates(layout));
    let mut plans: Vec<Plan> = Vec::new();
    for candidate in candidates {
        for lengths in divisions(layers, candidate.mesh.pipeline * candidate.virtual_stages) {
            for choices in &again {
                let mut rest = choices.as_slice();
                let stages = lengths.iter().map(|length| {
                    let (own, after) = rest.split_at(*length);
                    rest = after;
                    StageBlocks(own.to_vec())
                });
                let stages = stages.collect();
                plans.push(candidate.plan(space.question, stages));
            }
        }
    }
    let time = |plan: &Plan| {
        fits(plan, &plan_memory(plan)).then(|| step_time_for_ranking(plan, &space.costs).unwrap())
    };
    (plans.len(), plans.par_iter().filter_map(time).min())
}

#[test]
fn where_nothing_is_computed_again_the_planner_finds_the_fastest_of_all_plans() {
    let mut state = 0x5eed_0009_u64;
    let mut random = move |below: usize| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as usize % below
    };
    let (mut plans, mut fit, mut mixed) = (0, 0, 0);
    for instance in 0..INSTANCES {
        let (model, gib) = [("gpt2", 1.5), ("llama-3-8b", 14.0)][random(2)];
        let gib = gib * [1.0, 1.1, 1.25, 1.5, 4.0][random(5)];
        let batch = [2, 4, 6, 8][random(4)];
        let mut question = question(
            model,
            2 + random(2),
            ["dgx-a100:1", "dgx-h100:1"][random(2)],
            gib,
            [1024, batch],
            "megatron-core",
        );
        question.cluster.node.gpus.value = [1, 2][random(2)];
        question.cluster.nodes = [1, 2][random(2)];
        if question.cluster.nodes == 2 && instance % 3 < 2 {
            let other = ["dgx-a100", "dgx-h100"][instance % 2];
            let mut node = Node::from_name(other).unwrap();
            node.gpus = question.cluster.node.gpus.clone();
            node.gpu.memory.value = Bytes::GIB * gib * [0.8, 1.5][instance % 2];
            question.cluster.others.push(Others { nodes: 1, node });
        }
        let mut fastest = None;
        for ordered in orders(&question) {
            let (count, own) = fastest_of_all(&Space::new(&ordered).unwrap());
            plans += count;
            fastest = [fastest, own].into_iter().flatten().min();
        }
        mixed += usize::from(question.cluster.is_mixed() && fastest.is_some());
        let found = match plan(&question, &|_| {}).unwrap() {
            Verdict::Found(found) => Some(found),
            _ => None,
        };
        let best = found.as_ref().map(|found| &found.ranked[0].plan);
        let time = best.map(|best| step_time_for_ranking(best, &ClusterCosts::new(&best.cluster)).unwrap());
        let name = format!(
            "{model}, batch {batch}, {} GPUs with {}, {} of other kinds",
            question.cluster.gpus(),
            question.cluster.node.gpu.memory.value,
            question.cluster.others.len()
        );
        let choice = best.map(|best| (best.mesh, &best.stages));
        match (question.cluster.is_mixed(), time, fastest) {
            // What ranks of unequal speed update at the end is not in the partition's objective.
            (true, Some(time), Some(fastest)) => {
                let slower = time.0 as f64 / fastest.0 as f64;
                assert!((1.0..1.01).contains(&slower), "{name}: {slower} of the fastest: {choice:?}");
            }
            _ => assert_eq!(time, fastest, "{name}: {choice:?}"),
        }
        fit += usize::from(fastest.is_some());
    }
    assert!(plans >= 10_000 && fit >= 11 && mixed >= 3, "{plans} plans, {fit} fit, {mixed} of them mixed");
}
