//! Stages of small questions: what fits is found, and what is found fits.

use super::rank_memory::RankMemoryUse;
use super::{Staged, stage};
use crate::candidate::Candidate;
use crate::cost::{CachedCosts, CostModel};
use crate::question::{Breadth, Pins, Question};
use crate::risk::Risk;
use crate::space::LegalCandidates;
use trainwright_lower::memory::plan_memory;
use trainwright_spec::cluster::{Cluster, Others};
use trainwright_spec::job::Job;
use trainwright_spec::model::preset::preset;
use trainwright_spec::plan::{Plan, Recompute, StageBlocks};
use trainwright_spec::precision::Precision;
use trainwright_spec::stack::Stack;
use trainwright_spec::units::Bytes;

fn question(model: &str, cluster: &str, sequence: usize, global_batch: usize, pins: Pins) -> Question {
    Question {
        model: preset(model).unwrap(),
        cluster: Cluster::from_name(cluster).unwrap(),
        job: Job {
            sequence,
            global_batch,
            precision: Precision::Bf16,
            optimizer: "adamw".into(),
            gradient_clipping: true,
            adapters: None,
        },
        stack: Stack::from_name("megatron-core").unwrap(),
        pins,
        risk: Risk::default(),
    }
}

/// What came of every candidate of a question.
fn staged(question: &Question) -> Vec<(Candidate, Staged)> {
    let legal = LegalCandidates::of(question).unwrap();
    let model = CostModel::new(question, &legal.layouts, CachedCosts::new(&question.cluster)).unwrap();
    let each = legal.layouts.iter().flat_map(|layout| legal.candidates(layout).iter());
    each.map(|candidate| (candidate, stage(&model, &candidate, &|| false).expect("nobody stops it")))
        .collect()
}

fn fits(plan: &Plan) -> bool {
    let held = plan_memory(plan);
    held.iter().enumerate().all(|(rank, held)| held.total() <= plan.node(rank).gpu.memory.value)
}

#[test]
fn uneven_stages_are_found_when_only_they_fit() {
    // 16 layers on the first rank's 5 stages fit with 64 microbatches, 20 even ones do not: the last ranks take more.
    let pins = Pins {
        tensor: Some(4),
        pipeline: Some(4),
        virtual_stages: Some(5),
        micro_batch: Some(1),
        schedule: Some("interleaved".into()),
        sequence_parallel: Some(true),
        data_sharding: Some("zero1".into()),
        recompute: Some(Recompute::None),
        ..Pins::default()
    };
    let question = question("llama-3-70b", "dgx-h100:16", 8192, 512, pins);
    let [(_, Staged::Plan(plan, _))] = &staged(&question)[..] else { panic!("nothing fits") };
    assert!(fits(plan));
    assert!(plan.stages.iter().any(|stage| stage.0.len() < 4), "{:?}", plan.stages);
}

/// Of a rank with several stages no block recomputes all that could keep all.
#[test]
fn ranks_with_several_stages_leave_no_memory_that_saves_recomputation() {
    let pins = Pins { schedule: Some("interleaved".into()), ..Pins::default() };
    let mut question = question("llama-3-8b", "dgx-h100:2", 4096, 32, pins);
    let memory = Bytes::GIB * 30.0;
    question.cluster.node.gpu.memory.value = memory;
    let (mut plans, mut blocks) = (0, 0);
    for (candidate, staged) in staged(&question) {
        let Staged::Plan(plan, _) = staged else { continue };
        for stage in 0..plan.stages.len() {
            let choices = &plan.stages[stage].0;
            let Some(at) = choices.iter().position(|choice| *choice == Recompute::Full) else { continue };
            let mut faster = (*plan).clone();
            faster.stages[stage].0[at] = Recompute::None;
            assert!(!fits(&faster), "{}: stage {stage}", candidate.words());
            blocks += 1;
        }
        plans += 1;
    }
    assert!(plans > 20 && blocks > 20, "{plans} plans, {blocks} blocks");
}

#[test]
fn every_candidate_gets_a_plan_that_fits_or_does_not_fit_recomputed_and_even() {
    let check = |gib: f64, fewest: usize| {
        let mut question = question("llama-3-8b", "dgx-h100:2", 4096, 32, Pins::default());
        question.cluster.node.gpu.memory.value = Bytes::GIB * gib;
        let has = question.cluster.node.gpu.memory.value;
        let mut plans = 0;
        for (candidate, staged) in staged(&question) {
            match staged {
                Staged::Plan(plan, _) => {
                    assert!(fits(&plan), "{}", candidate.words());
                    plans += 1;
                }
                Staged::OutOfMemory(RankMemoryUse { needs, .. }) => {
                    assert!(needs > has, "{}", candidate.words());
                    let stages = candidate.mesh.pipeline * candidate.virtual_stages;
                    let share = |stage| 32 / stages + usize::from(stage < 32 % stages);
                    let full = |stage| StageBlocks(vec![Recompute::Full; share(stage)]);
                    let even = candidate.plan(&question, (0..stages).map(full).collect());
                    assert!(!fits(&even), "{}: even stages fit", candidate.words());
                }
                Staged::Undecided => panic!("{}", candidate.words()),
            }
        }
        assert!(plans >= fewest, "{gib}: only {plans}");
    };
    check(16.0, 1);
    check(24.0, 10);
    check(40.0, 100);
}

/// The plans of a candidate with every split, whose blocks keep all or recompute all.
fn all_plans(question: &Question, candidate: &Candidate) -> impl Iterator<Item = Plan> {
    let (blocks, stages) = (question.model.layers(), candidate.mesh.pipeline);
    // The first and the last stage may have the embedding and the head alone.
    let is_end = move |stage: usize| stage == 0 || stage + 1 == stages;
    let splits = splits(blocks, stages).into_iter();
    let splits = splits.filter(move |split| (0..stages).all(|stage| is_end(stage) || split[stage] > 0));
    splits.flat_map(move |split| {
        (0..1 << blocks).map(move |kept: usize| {
            let choice =
                |block: usize| if kept >> block & 1 == 1 { Recompute::None } else { Recompute::Full };
            let mut next = 0..blocks;
            let stage = |length: &usize| StageBlocks(next.by_ref().take(*length).map(choice).collect());
            candidate.plan(question, split.iter().map(stage).collect())
        })
    })
}

/// All weak compositions of `number` into `parts` parts: ordered, zeros allowed.
fn splits(number: usize, parts: usize) -> Vec<Vec<usize>> {
    match parts {
        1 => vec![vec![number]],
        _ => (0..=number)
            .flat_map(|first| {
                splits(number - first, parts - 1).into_iter().map(move |rest| [&[first][..], &rest].concat())
            })
            .collect(),
    }
}

/// Two copies of each stage are on two ranks, and both have to have room for its blocks.
#[test]
fn stages_with_two_copies_fill_the_memory_of_both_ranks_and_no_more() {
    let only =
        [("schedule", "dualpipe"), ("schedule", "chimera"), ("recompute", "full"), ("recompute", "none")];
    let pins = Pins {
        pipeline: Some(4),
        data: Some(1),
        micro_batch: Some(1),
        data_sharding: Some("none".into()),
        only: only.map(|(key, value)| (key.to_string(), value.to_string())).to_vec(),
        breadth: Breadth::Whole,
        ..Pins::default()
    };
    let (mut plans, mut recomputed, mut infeasible) = (0, 0, 0);
    for quarters in 32..60 {
        let mut question = question("llama-7b", "dgx-h100:2", 2048, 8, pins.clone());
        question.model.blocks[0].count = 5;
        question.cluster.node.gpus.value = 2;
        // The second copies of the first stages are on ranks with less memory.
        let mut smaller = question.cluster.node.clone();
        smaller.gpu.memory.value = Bytes::GIB * (f64::from(quarters) / 4.0);
        question.cluster.node.gpu.memory.value = Bytes::GIB * 24.0;
        question.cluster.others.push(Others { nodes: 1, node: smaller });
        for (candidate, staged) in staged(&question) {
            let words =
                format!("{quarters} quarters of a GiB, {}: {}", candidate.schedule, candidate.words());
            let Staged::Plan(plan, _) = staged else {
                assert!(
                    !all_plans(&question, &candidate).any(|plan| fits(&plan)),
                    "{words}: no plan was found"
                );
                infeasible += 1;
                continue;
            };
            assert!(fits(&plan), "{words}");
            plans += 1;
            for stage in 0..plan.stages.len() {
                let choices = &plan.stages[stage].0;
                let Some(at) = choices.iter().position(|choice| *choice == Recompute::Full) else { continue };
                let mut faster = (*plan).clone();
                faster.stages[stage].0[at] = Recompute::None;
                assert!(!fits(&faster), "{words}: stage {stage} of {:?}", plan.stages);
                recomputed += 1;
            }
        }
    }
    let counts = format!("{plans} plans, {recomputed} stages recompute, {infeasible} do not fit");
    assert!(plans >= 10 && recomputed >= 10 && infeasible >= 4, "{counts}");
}
