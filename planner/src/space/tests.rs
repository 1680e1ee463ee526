//! The space against every combination of values shown to `Plan::check`, and pins that mean nothing.

use super::legal_candidates::LegalCandidates;
use crate::candidate::Candidate;
use crate::question::{Pins, Question};
use crate::risk::Risk;
use std::collections::BTreeSet;
use trainwright_spec::cluster::Cluster;
use trainwright_spec::context::CONTEXT_SCHEMES;
use trainwright_spec::job::Job;
use trainwright_spec::mesh::{Mesh, RankOrder};
use trainwright_spec::model::preset::preset;
use trainwright_spec::plan::{Offload, Recompute};
use trainwright_spec::precision::Precision;
use trainwright_spec::program::Place;
use trainwright_spec::schedule::SCHEDULES;
use trainwright_spec::stack::Stack;

/// The first blocks of a model on four GPUs of a node each.
fn question(model: &str, nodes: usize, stack: &str) -> Question {
    let mut model = preset(model).unwrap();
    model.blocks[0].count = 4;
    let mut cluster = Cluster::from_name("dgx-h100:1").unwrap();
    cluster.node.gpus.value = 4 / nodes;
    cluster.nodes = nodes;
    Question {
        model,
        cluster,
        job: Job {
            sequence: 1024,
            global_batch: 8,
            precision: Precision::Bf16,
            optimizer: "adamw".into(),
            gradient_clipping: true,
            adapters: None,
        },
        stack: Stack::from_name(stack).unwrap(),
        pins: Pins::whole(),
        risk: Risk::default(),
    }
}

fn pin(question: &mut Question, key: &str, values: &[&str]) {
    question.pins.only.extend(values.iter().map(|value| (key.to_string(), value.to_string())));
}

/// The candidate with each of the values.
fn each<T: Copy>(
    candidates: Vec<Candidate>,
    values: &[T],
    set: impl Fn(&mut Candidate, T),
) -> Vec<Candidate> {
    let with = |candidate: Candidate| {
        let set = &set;
        values.iter().map(move |value| {
            let mut changed = candidate;
            set(&mut changed, *value);
            changed
        })
    };
    candidates.into_iter().flat_map(with).collect()
}

fn legal_plan(question: &Question, candidate: &Candidate) -> bool {
    let stages = candidate.mesh.pipeline * candidate.virtual_stages;
    let mut plan = candidate.plan(question, Vec::new());
    let divides = question.job.global_batch.is_multiple_of(candidate.mesh.data * candidate.micro_batch);
    if !divides || stages > question.model.layers() {
        return false;
    }
    plan.stages = candidate.even_stages(question.model.layers());
    plan.check("candidate").is_ok()
}

fn shown(candidates: impl IntoIterator<Item = Candidate>) -> BTreeSet<String> {
    candidates.into_iter().map(|candidate| format!("{candidate:?}")).collect()
}

fn check_equal(found: BTreeSet<String>, expected: BTreeSet<String>, fewest: usize) {
    assert_eq!(found.difference(&expected).next(), None, "not legal");
    assert_eq!(expected.difference(&found).next(), None, "legal, and not in the space");
    assert!(found.len() >= fewest, "only {}", found.len());
}

#[test]
fn layouts_are_what_the_check_of_plans_allows() {
    let check = |model: &str, stack: &str, fewest: usize| {
        let mut question = question(model, 2, stack);
        let names = |candidates: &[&'static str]| -> Vec<&'static str> { candidates.to_vec() };
        let contexts: Vec<&'static str> = CONTEXT_SCHEMES.iter().map(|scheme| scheme.name()).collect();
        let dispatchers = names(&["all-to-all", "all-gather"]);
        pin(&mut question, "precision", &["bf16", "fp8"]);
        for (key, values) in [
            ("tensor", &["1", "2", "4"][..]),
            ("context", &["1", "2", "4"]),
            ("context-inner", &["1", "2"]),
            ("pipeline", &["1", "2", "4"]),
            ("expert", &["1", "2", "4"]),
            ("expert-tensor", &["1", "2", "4"]),
            ("micro-batch", &["1", "2", "4"]),
            ("context-scheme", &contexts),
            ("dispatcher", &dispatchers),
        ] {
            pin(&mut question, key, values);
        }
        let legal = LegalCandidates::of(&question).unwrap();
        let start = vec![Candidate::plainest(&question)];
        let all = each(start, &[Precision::Bf16, Precision::Fp8], |c, precision| c.precision = precision);
        let all = each(all, &[1, 2, 4], |c, tensor| c.mesh.tensor = tensor);
        let all = each(all, &RankOrder::ALL, |c, order| c.mesh.order = order);
        let all = each(all, &[1, 2], |c, rows| c.mesh.tensor_rows = rows);
        let all = each(all, &["1d", "2d", "2.5d", "3d"], |c, scheme| c.tensor_scheme = scheme);
        let all = each(all, &[false, true], |c, on| c.sequence_parallel = on);
        let all = each(all, &[1, 2, 4], |c, context| c.mesh.context = context);
        let all = each(all, &[1, 2], |c, inner| c.mesh.context_inner = inner);
        let all = each(all, &contexts, |c, scheme| c.context_scheme = scheme);
        let all = each(all, &[1, 2, 4], |c, pipeline| c.mesh.pipeline = pipeline);
        let all: Vec<Candidate> = all.into_iter().filter(|c| 4usize.is_multiple_of(c.mesh.ranks())).collect();
        let all: Vec<Candidate> = all
            .into_iter()
            .map(|c| Candidate { mesh: Mesh { data: 4 / c.mesh.ranks(), ..c.mesh }, ..c })
            .collect();
        let all = each(all, &[1, 2, 4], |c, expert| c.mesh.expert = expert);
        let all = each(all, &[None, Some(1), Some(2), Some(4)], |c, degree| c.mesh.expert_tensor = degree);
        // As many as share each layer is what is left out.
        let all = all.into_iter().filter(|c| c.mesh.expert_tensor != Some(c.mesh.tensor)).collect();
        let all = each(all, &dispatchers, |c, dispatcher| c.dispatcher = dispatcher);
        let all = each(all, &[1, 2, 4], |c, micro_batch| c.micro_batch = micro_batch);
        let expected = all.into_iter().filter(|candidate| legal_plan(&question, candidate));
        // A sequence on one rank, and experts on one, are shared in no way: the plainest stands for all.
        let alike = |c: &Candidate| {
            let (block, gpus) = (c.mesh.tensor * c.mesh.context, question.cluster.node.gpus.value);
            block.is_multiple_of(gpus) || gpus.is_multiple_of(block * c.mesh.pipeline)
        };
        let plain = |c: &Candidate| {
            (c.mesh.tensor > 1 || !c.sequence_parallel)
                && (c.mesh.tensor_rows > 1 || c.tensor_scheme == "1d")
                && (c.mesh.order.is_default() || c.mesh.pipeline > 1 && c.mesh.data > 1 && alike(c))
        };
        check_equal(shown(legal.layouts.iter().copied()), shown(expected.filter(plain)), fewest);
    };
    check("gpt2", "megatron-core", 200);
    check("mixtral-8x7b", "megatron-core", 500);
}

#[test]
fn pipelines_and_states_are_what_the_check_of_plans_allows() {
    let check = |model: &str, stack: &str, clipping: bool, fewest: usize| {
        let mut question = question(model, 1, stack);
        question.job.gradient_clipping = clipping;
        let schedules: Vec<&'static str> = SCHEDULES.iter().map(|schedule| schedule.name()).collect();
        let none = Offload::default();
        let host = Some(Place::Host);
        let kinds = [none, Offload { optimizer: host, ..none }, Offload { activations: host, ..none }];
        let schemes = ["none", "zero1", "zero2", "zero3", "fsdp", "zero2-fsdp", "hsdp"];
        for (key, values) in [
            ("context", &["1"][..]),
            ("micro-batch", &["1"]),
            ("schedule", &schedules),
            ("virtual-stages", &["1", "2"]),
            ("data-sharding", &schemes),
            ("shard", &["1", "2", "4"]),
            ("offload", &["none", "optimizer", "activations"]),
        ] {
            pin(&mut question, key, values);
        }
        let legal = LegalCandidates::of(&question).unwrap();
        let found = legal.layouts.iter().flat_map(|layout| legal.candidates(layout).iter());
        let all = each(legal.layouts.clone(), &schedules, |c, schedule| c.schedule = schedule);
        let all = each(all, &[1, 2], |c, stages| c.virtual_stages = stages);
        let all = each(all, &schemes, |c, scheme| c.data_sharding = scheme);
        let all = each(all, &[None, Some(1), Some(2), Some(4)], |c, shard| c.mesh.shard = shard);
        let all = each(all, &kinds, |c, offload| c.offload = offload);
        // Nothing is divided where there is one rank, nor in two ways among the same ranks.
        let sensible = |c: &Candidate| {
            let several = c.mesh.weight_copies() > 1;
            let alike = c.schedule().same_as(c.shape(question.job.global_batch)).is_some();
            !alike
                && (several || c.data_sharding == "none")
                && (c.mesh.shard.is_none() || c.data_sharding == "hsdp")
        };
        let expected = all.into_iter().filter(sensible).filter(|candidate| legal_plan(&question, candidate));
        check_equal(shown(found), shown(expected), fewest);
    };
    check("gpt2", "megatron-core", true, 200);
    check("gpt2", "deepspeed", true, 200);
    check("gpt2", "pytorch-eager", false, 200);
    check("llama-3-8b", "megatron-core", false, 200);
}

/// By itself the planner tries the pipelines that the software has; a pin asks for others.
#[test]
fn pipelines_are_those_of_the_stack() {
    for stack in ["deepspeed", "nanotron", "maxtext", "hugging-face", "torchtitan"] {
        let question = question("gpt2", 1, stack);
        let legal = LegalCandidates::of(&question).unwrap();
        let piped = |layout: &&Candidate| layout.mesh.pipeline > 1;
        let tried: BTreeSet<&str> = legal
            .layouts
            .iter()
            .filter(piped)
            .flat_map(|layout| legal.candidates(layout).iter())
            .map(|candidate| candidate.schedule)
            .collect();
        match &question.stack.schedules {
            Some(schedules) => assert_eq!(tried, schedules.iter().map(String::as_str).collect(), "{stack}"),
            None => assert!(tried.len() > 4, "{stack}: {tried:?}"),
        }
    }
    let mut pinned = question("gpt2", 1, "hugging-face");
    pin(&mut pinned, "pipeline", &["2"]);
    let reason = LegalCandidates::of(&pinned).err().unwrap().to_string();
    assert!(reason.contains("stack hugging-face has no pipelines"), "{reason}");
    pin(&mut pinned, "schedule", &["interleaved"]);
    assert!(LegalCandidates::of(&pinned).is_ok());
}

#[test]
fn pins_that_mean_nothing_are_refused() {
    let check = |pins: Pins, expected: &str| {
        let question = Question { pins, ..question("gpt2", 1, "megatron-core") };
        let Err(error) = LegalCandidates::of(&question) else { panic!("{expected}") };
        assert!(error.to_string().contains(expected), "{error}");
    };
    let pair = |key: &str, value: &str| vec![(key.to_string(), value.to_string())];
    let only = |key, value| Pins { only: pair(key, value), ..Pins::default() };
    let never = |key, value| Pins { never: pair(key, value), ..Pins::default() };
    check(only("tensors", "2"), "pin `tensors=2`: the key must be one of precision, tensor,");
    check(never("schedule", "2f2b"), "pin `schedule=2f2b`: known are gpipe, 1f1b,");
    check(only("context", "two"), "pin `context=two`: it must be a whole number");
    check(only("recompute", "half"), "pin `recompute=half`");
    check(
        Pins { tensor: Some(2), ..never("tensor", "2") },
        "pins leave `tensor` nothing: only 2 is allowed, and 2 is",
    );
    let nothing = Pins { recompute: Some(Recompute::Full), ..never("recompute", "full") };
    check(nothing, "pins leave `recompute` nothing");
}
