//! What a tool's files say of a plan, they say the same way round.

use super::drafts::{plain, plans};
use proptest::test_runner::{Config, RngSeed, TestRunner};
use std::collections::BTreeSet;
use trainwright_formats::export::{Exported, FIELDS, export, exporter};
use trainwright_formats::import::{Imported, Request, importer};
use trainwright_spec::error::SpecError;
use trainwright_spec::model::Model;
use trainwright_spec::model::preset::preset;
use trainwright_spec::optimizer::StatePrecision;
use trainwright_spec::plan::{Piece, Plan, Recompute, StageBlocks};
use trainwright_spec::precision::Precision;
use trainwright_spec::stack::Stack;

/// What the file does not say and the importer is told.
struct Told<'a> {
    model: Option<&'a Model>,
    sequence: Option<usize>,
}

fn back(tool: &str, plan: &Plan, told: Told) -> Result<(Exported, Imported), SpecError> {
    let exported = export(plan, exporter(tool).unwrap());
    let importer = importer(tool).unwrap();
    let request = Request {
        text: &exported.files[0].text,
        origin: "file",
        cluster: plan.cluster.clone(),
        stack: Stack::from_name(importer.stack()).unwrap(),
        model: told.model.cloned(),
        sequence: told.sequence,
        schedule: exported.files.get(1).map(|file| file.text.clone()),
    };
    let imported = importer.read(&request)?;
    Ok((exported, imported))
}

/// Every field that is not reported as omitted comes back as it was, nothing is left unread, and the plan that came back
/// is written the same way.
fn comes_back(tool: &str, plan: &Plan, told: Told) -> bool {
    let exported = export(plan, exporter(tool).unwrap());
    let omitted: BTreeSet<&str> =
        exported.omissions.iter().flat_map(|omission| &omission.fields).map(|(key, _)| *key).collect();
    let own = |field: &&str| field.starts_with("stack") || field.starts_with("model") || *field == "cluster";
    let whole = omitted.iter().all(own);
    let imported = match back(tool, plan, told) {
        Ok((_, imported)) => imported,
        // What stands for a choice that the tool does not have need not go with the others.
        Err(_) if !whole => return false,
        Err(error) => panic!("{tool}: {error}\n{}", exported.files[0].text),
    };
    for field in FIELDS.iter().filter(|field| !omitted.contains(field.key)) {
        let (before, after) = ((field.value)(plan), (field.value)(&imported.plan));
        assert_eq!(before, after, "{tool}: {}\n{}", field.key, exported.files[0].text);
    }
    assert_eq!(imported.unread, Vec::<String>::new(), "{tool}");
    let again = export(&imported.plan, exporter(tool).unwrap());
    let said = |exported: &Exported| -> Vec<String> {
        let lines = exported.files[0].text.lines().filter(|line| !line.starts_with('#'));
        lines.map(String::from).collect()
    };
    let (once, twice) = (said(&exported), said(&again));
    let other = once.iter().zip(&twice).find(|(one, two)| one != two);
    assert_eq!((other, once.len()), (None, twice.len()), "{tool}");
    whole
}

/// How many of `cases` plans of `names` a tool can say whole, kernels and model aside.
fn whole(
    tool: &str,
    names: &'static [&'static str],
    cut: bool,
    cases: u32,
    told: fn(&Plan) -> Told,
) -> usize {
    let config = Config {
        cases,
        rng_seed: RngSeed::Fixed(0x7261_636b),
        failure_persistence: None,
        max_global_rejects: 100_000,
        ..Config::default()
    };
    let count = std::cell::Cell::new(0);
    let run = TestRunner::new(config).run(&plans(names, !cut), |plan| {
        count.set(count.get() + usize::from(comes_back(tool, &plan, told(&plan))));
        Ok(())
    });
    run.unwrap();
    count.get()
}

#[test]
fn megatron_reads_back_what_it_says() {
    let names = &["gpt2", "llama-3-8b", "qwen3-8b", "mixtral-8x7b", "deepseek-v2", "mistral-7b", "bert-base"];
    let count = whole("megatron-lm", names, true, 200, |_| Told { model: None, sequence: None });
    assert!(count > 2, "only {count} plans are said whole");
}

#[test]
fn deepspeed_reads_back_what_it_says() {
    let names = &["gpt2", "llama-3-8b", "mixtral-8x7b"];
    fn told(plan: &Plan) -> Told<'_> {
        Told { model: Some(&plan.model), sequence: Some(plan.job.sequence) }
    }
    let count = whole("deepspeed", names, true, 200, told);
    // It never says the length of sequences.
    assert_eq!(count, 0);
    assert!(comes_back_but("deepspeed", &["job.sequence"], told));
}

#[test]
fn torchtitan_reads_back_what_it_says() {
    let names = &["llama-3-8b", "qwen3-8b", "deepseek-v2"];
    whole("torchtitan", names, false, 200, |_| Told { model: None, sequence: None });
    let model = preset("llama-3-8b").unwrap();
    let plan = Plan {
        data_sharding: "fsdp".into(),
        stages: vec![StageBlocks(vec![Recompute::Full; model.layers()])],
        state: StatePrecision { gradients: Some(Precision::Fp32), ..StatePrecision::default() },
        stack: Stack::from_name("pytorch-eager").unwrap(),
        model,
        ..plain()
    };
    assert!(comes_back("torchtitan", &plan, Told { model: None, sequence: None }));
}

/// Whether nothing but `fields` and the tool's own is omitted of a plain plan.
fn comes_back_but(tool: &str, fields: &[&str], told: fn(&Plan) -> Told) -> bool {
    let plan = plain();
    let (exported, imported) = back(tool, &plan, told(&plan)).unwrap();
    let omitted = exported.omissions.iter().flat_map(|omission| &omission.fields).map(|(key, _)| *key);
    let own = |key: &&str| key.starts_with("stack") || key.starts_with("model") || *key == "cluster";
    assert_eq!(omitted.filter(|key| !own(key)).collect::<Vec<&str>>(), fields);
    imported.plan.mesh == plan.mesh && imported.plan.job == plan.job && imported.plan.stages == plan.stages
}

/// Plans of Megatron-Core come back equal in every byte, whichever of its choices they make.
#[test]
fn megatron_is_the_identity_on_plans_that_it_can_say() {
    let mut count = 0;
    let mut check = |change: &dyn Fn(&mut Plan)| {
        let mut plan = plain();
        change(&mut plan);
        plan.check("plan").unwrap();
        let (exported, imported) = back("megatron-lm", &plan, Told { model: None, sequence: None }).unwrap();
        let omitted: Vec<&str> = exported.omissions.iter().map(|omission| omission.fields[0].0).collect();
        assert_eq!(omitted, ["cluster"]);
        assert_eq!(imported.plan.to_toml(), plan.to_toml());
        count += 1;
    };
    let stages = |counts: &[usize], choice: Recompute| -> Vec<StageBlocks> {
        counts.iter().map(|count| StageBlocks(vec![choice; *count])).collect()
    };
    check(&|_| {});
    check(&|plan| {
        (plan.mesh.tensor, plan.mesh.data, plan.sequence_parallel) = (4, 2, true);
    });
    check(&|plan| {
        (plan.mesh.pipeline, plan.mesh.data) = (4, 2);
        plan.stages = stages(&[2, 4, 4, 2], Recompute::Full);
    });
    check(&|plan| {
        (plan.mesh.pipeline, plan.mesh.data, plan.virtual_stages) = (2, 4, 3);
        plan.schedule = "interleaved".into();
        plan.stages = stages(&[2; 6], Recompute::of(&[Piece::Core, Piece::Norm]));
    });
    check(&|plan| {
        (plan.mesh.pipeline, plan.mesh.data, plan.virtual_stages) = (2, 4, 3);
        plan.schedule = "interleaved-groups".into();
        // One group of three microbatches: 4 ranks of 2 sequences each.
        plan.job.global_batch = 24;
        plan.stages = stages(&[2; 6], Recompute::Selective);
    });
    check(&|plan| {
        (plan.mesh.context, plan.mesh.data) = (4, 2);
        plan.context_scheme = "ulysses".into();
    });
    check(&|plan| plan.mesh.shard = Some(4));
    check(&|plan| plan.data_sharding = "none".into());
    check(&|plan| {
        plan.stages = vec!["3 full, 9 none".parse().unwrap()];
        plan.job.optimizer = "sgd".into();
        plan.job.gradient_clipping = false;
    });
    assert_eq!(count, 9);
}

/// A script as people write it, with variables, arrays and comments.
#[test]
fn scripts_are_read() {
    let script = r#"#!/bin/bash
GPUS_PER_NODE=8
TP=2
DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes 1
)
GPT_MODEL_ARGS=(
    --num-layers 12 --hidden-size 768   # the small one
    --num-attention-heads 12
    --seq-length 1024
    --max-position-embeddings 1024
    --vocab-size 50257
)
MODEL_PARALLEL_ARGS=(
	--tensor-model-parallel-size ${TP}
	--pipeline-model-parallel-size 2 \
	--sequence-parallel --use-distributed-optimizer
)
torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py ${GPT_MODEL_ARGS[@]} \
    --micro-batch-size=4 --global-batch-size=64 --bf16 --lr 6.0e-5 --recompute-activations
"#;
    let request = Request {
        text: script,
        origin: "train.sh",
        cluster: plain().cluster,
        stack: plain().stack,
        model: None,
        sequence: None,
        schedule: None,
    };
    let Imported { plan, unread } = importer("megatron-lm").unwrap().read(&request).unwrap();
    assert_eq!(plan.model, plain().model, "12 x 768 with biases is GPT-2, by its name");
    assert_eq!((plan.mesh.tensor, plan.mesh.pipeline, plan.mesh.data), (2, 2, 2));
    assert_eq!((plan.micro_batch, plan.job.global_batch, plan.microbatches()), (4, 64, 8));
    assert_eq!(plan.stages[1].to_string(), "6 selective");
    assert_eq!(unread, ["--lr", "--nnodes", "--nproc-per-node"]);
}
