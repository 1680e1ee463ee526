//! Exported plans, imported again.

use super::drafts::{plain, plans};
use proptest::test_runner::{Config, RngSeed, TestRunner};
use std::collections::BTreeSet;
use trainwright_formats::export::{EXPORTERS, Exported, FIELDS, export, exporter};
use trainwright_formats::import::{Imported, Request, importer};
use trainwright_spec::error::SpecError;
use trainwright_spec::job::Job;
use trainwright_spec::model::Model;
use trainwright_spec::model::preset::preset;
use trainwright_spec::optimizer::StatePrecision;
use trainwright_spec::plan::{Piece, Plan, Recompute, StageBlocks};
use trainwright_spec::precision::Precision;
use trainwright_spec::sourced::Sourced;
use trainwright_spec::stack::Stack;

/// Additional input of the importer, for formats without it.
struct Extra<'a> {
    model: Option<&'a Model>,
    sequence: Option<usize>,
}

fn import_export(tool: &str, plan: &Plan, extra: Extra) -> Result<(Exported, Imported), SpecError> {
    let exported = export(plan, exporter(tool).unwrap());
    let importer = importer(tool).unwrap();
    let request = Request {
        text: &exported.files[0].text,
        origin: "file",
        cluster: plan.cluster.clone(),
        stack: Stack::from_name(importer.stack()).unwrap(),
        model: extra.model.cloned(),
        sequence: extra.sequence,
        schedule: exported.files.get(1).map(|file| file.text.clone()),
        settings: Vec::new(),
    };
    let imported = importer.read(&request)?;
    Ok((exported, imported))
}

/// Checks that fields that are not omitted are imported unchanged, that nothing is left unread, and that the imported
/// plan is exported to an equal file. Returns whether only stack, model and cluster are omitted.
fn round_trip(tool: &str, plan: &Plan, extra: Extra) -> bool {
    let exported = export(plan, exporter(tool).unwrap());
    let omitted: BTreeSet<&str> =
        exported.omissions.iter().flat_map(|omission| &omission.fields).map(|(key, _)| *key).collect();
    let is_external =
        |field: &&str| field.starts_with("stack") || field.starts_with("model") || *field == "cluster";
    let complete = omitted.iter().all(is_external);
    let imported = match import_export(tool, plan, extra) {
        Ok((_, imported)) => imported,
        // The replacement of an omitted choice may contradict the others.
        Err(_) if !complete => return false,
        Err(error) => panic!("{tool}: {error}\n{}", exported.files[0].text),
    };
    for field in FIELDS.iter().filter(|field| !omitted.contains(field.key)) {
        let (before, after) = ((field.value)(plan), (field.value)(&imported.plan));
        assert_eq!(before, after, "{tool}: {}\n{}", field.key, exported.files[0].text);
    }
    assert_eq!(imported.unread, Vec::<String>::new(), "{tool}");
    // What the file leaves open is said the next time.
    if imported.assumed.iter().any(|line| !line.starts_with("compile.enable = false")) {
        return complete;
    }
    let again = export(&imported.plan, exporter(tool).unwrap());
    // Without the remarks.
    let settings = |exported: &Exported| -> Vec<String> {
        let text =
            match serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(&exported.files[0].text)
            {
                Ok(mut table) => {
                    table.remove("_comment");
                    serde_json::to_string_pretty(&table).unwrap()
                }
                Err(_) => exported.files[0].text.clone(),
            };
        text.lines().filter(|line| !line.starts_with('#')).map(String::from).collect()
    };
    let (once, twice) = (settings(&exported), settings(&again));
    let missing: Vec<&String> = once.iter().filter(|line| !twice.contains(line)).collect();
    let added: Vec<&String> = twice.iter().filter(|line| !once.contains(line)).collect();
    assert_eq!((missing, added, once.len()), (vec![], vec![], twice.len()), "{tool}");
    complete
}

/// How many of `cases` random plans of `names` a tool expresses without omissions but stack, model and cluster.
fn complete_round_trips(
    tool: &str,
    names: &'static [&'static str],
    cut: bool,
    cases: u32,
    extra: fn(&Plan) -> Extra,
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
        count.set(count.get() + usize::from(round_trip(tool, &plan, extra(&plan))));
        Ok(())
    });
    run.unwrap();
    count.get()
}

#[test]
fn megatron_reads_its_exports() {
    let names = &["gpt2", "llama-3-8b", "qwen3-8b", "mixtral-8x7b", "deepseek-v2", "mistral-7b", "bert-base"];
    let count =
        complete_round_trips("megatron-lm", names, true, 300, |_| Extra { model: None, sequence: None });
    assert!(count > 2, "only {count} plans are complete");
}

#[test]
fn deepspeed_reads_its_exports() {
    let names = &["gpt2", "llama-3-8b", "mixtral-8x7b"];
    fn extra(plan: &Plan) -> Extra<'_> {
        Extra { model: Some(&plan.model), sequence: Some(plan.job.sequence) }
    }
    let count = complete_round_trips("deepspeed", names, true, 200, extra);
    // Its files have no sequence length.
    assert_eq!(count, 0);
    assert!(omits_only("deepspeed", &["job.sequence"], extra));
}

#[test]
fn torchtitan_reads_its_exports() {
    let names = &["llama-3-8b", "qwen3-8b", "deepseek-v2"];
    complete_round_trips("torchtitan", names, false, 200, |_| Extra { model: None, sequence: None });
    let model = preset("llama-3-8b").unwrap();
    let plan = Plan {
        data_sharding: "fsdp".into(),
        stages: vec![StageBlocks(vec![Recompute::Full; model.layers()])],
        state: StatePrecision { gradients: Some(Precision::Fp32), ..StatePrecision::default() },
        stack: Stack::from_name("pytorch-eager").unwrap(),
        model,
        ..plain()
    };
    assert!(round_trip("torchtitan", &plan, Extra { model: None, sequence: None }));
}

/// Plans of torchtitan's own stacks come back equal in every byte, from either of its formats.
#[test]
fn torchtitan_is_the_identity_on_plans_of_its_stacks() {
    let model = preset("qwen3-8b").unwrap();
    let eager = Stack {
        summary: "torchtitan without torch.compile of the model: FSDP2, attention is fused alone".into(),
        fused_elementwise: false,
        traffic: Some(Sourced::new(1.0, "nothing is compiled: each operator is a kernel")),
        ..Stack::from_name("torchtitan").unwrap()
    };
    let stacks = ["torchtitan", "torchtitan-2025"].map(|name| Stack::from_name(name).unwrap());
    for stack in stacks.into_iter().chain([eager]) {
        for precision in [Precision::Bf16, Precision::Fp8] {
            let plan = Plan {
                data_sharding: "fsdp".into(),
                stages: vec![StageBlocks(vec![Recompute::Full; model.layers()])],
                stack: stack.clone(),
                model: model.clone(),
                job: Job { precision, ..plain().job },
                ..plain()
            };
            for tool in ["torchtitan", "torchtitan-python"] {
                let exported = export(&plan, exporter(tool).unwrap());
                let importer = importer("torchtitan").unwrap();
                let request = Request {
                    text: &exported.files[0].text,
                    origin: "file",
                    cluster: plan.cluster.clone(),
                    stack: Stack::from_name(importer.stack()).unwrap(),
                    model: None,
                    sequence: None,
                    schedule: None,
                    settings: Vec::new(),
                };
                let imported = importer.read(&request).unwrap();
                assert_eq!(imported.plan.to_toml(), plan.to_toml(), "{tool}");
                assert!(imported.unread.is_empty(), "{tool}: {:?}", imported.unread);
                assert_eq!(imported.assumed.is_empty(), stack.fused_elementwise, "{tool}");
            }
        }
    }
}

#[test]
fn megatron_bridge_reads_muon() {
    for sharding in ["none", "zero1"] {
        let mut plan = Plan { data_sharding: sharding.into(), ..plain() };
        plan.job.optimizer = "muon".into();
        let extra = Extra { model: Some(&plan.model), sequence: None };
        let (exported, imported) = import_export("megatron-bridge", &plan, extra).unwrap();
        let name = if sharding == "zero1" { "optimizer: dist_muon" } else { "optimizer: muon" };
        assert!(exported.files[0].text.contains(name), "{}", exported.files[0].text);
        assert_eq!(imported.plan.job.optimizer, "muon");
        assert_eq!(imported.plan.data_sharding, sharding);
    }
}

#[test]
fn megatron_bridge_and_nemo_read_their_exports() {
    let names = &["gpt2", "llama-3-8b", "mixtral-8x7b"];
    for tool in ["megatron-bridge", "nemo"] {
        complete_round_trips(tool, names, true, 200, |plan| Extra {
            model: Some(&plan.model),
            sequence: None,
        });
    }
}

#[test]
fn maxtext_reads_its_exports() {
    let names = &["llama-2-7b", "llama-3-8b", "mixtral-8x7b", "qwen3-8b"];
    complete_round_trips("maxtext", names, false, 200, |_| Extra { model: None, sequence: None });
    complete_round_trips("maxtext", names, true, 100, |plan| Extra {
        model: Some(&plan.model),
        sequence: None,
    });
}

#[test]
fn accelerate_reads_its_exports() {
    let names = &["gpt2", "llama-3-8b"];
    fn extra(plan: &Plan) -> Extra<'_> {
        Extra { model: Some(&plan.model), sequence: Some(plan.job.sequence) }
    }
    complete_round_trips("accelerate-fsdp", names, true, 200, extra);
}

/// No tool's file says anything else than the plan without a word of it, whatever the plan.
#[test]
fn every_exporter_knows_what_its_files_say() {
    let names = &["gpt2", "llama-3-8b", "qwen3-8b", "mixtral-8x7b", "deepseek-v2", "gemma-2-27b"];
    let config = Config {
        cases: 300,
        rng_seed: RngSeed::Fixed(0x7361_7973),
        failure_persistence: None,
        max_global_rejects: 100_000,
        ..Config::default()
    };
    for full in [true, false] {
        let run = TestRunner::new(config.clone()).run(&plans(names, full), |plan| {
            for tool in EXPORTERS {
                let exported = export(&plan, *tool);
                let told: Vec<String> =
                    exported.omissions.iter().map(|omission| omission.to_string()).collect();
                let silent = told.iter().find(|fault| fault.contains("when it is read back"));
                assert_eq!(silent, None, "{}\n{}", tool.name(), exported.files[0].text);
            }
            Ok(())
        });
        run.unwrap();
    }
}

/// Whether a plain plan loses nothing but `fields`, stack, model and cluster.
fn omits_only(tool: &str, fields: &[&str], extra: fn(&Plan) -> Extra) -> bool {
    let plan = plain();
    let (exported, imported) = import_export(tool, &plan, extra(&plan)).unwrap();
    let omitted = exported.omissions.iter().flat_map(|omission| &omission.fields).map(|(key, _)| *key);
    let is_external = |key: &&str| key.starts_with("stack") || key.starts_with("model") || *key == "cluster";
    assert_eq!(omitted.filter(|key| !is_external(key)).collect::<Vec<&str>>(), fields);
    imported.plan.mesh == plan.mesh && imported.plan.job == plan.job && imported.plan.stages == plan.stages
}

/// Plans of Megatron-Core come back equal in every byte, whichever of its choices they make.
#[test]
fn megatron_is_the_identity_on_plans_that_it_expresses() {
    let mut count = 0;
    let mut check = |change: &dyn Fn(&mut Plan)| {
        let mut plan = plain();
        change(&mut plan);
        plan.check("plan").unwrap();
        let (exported, imported) =
            import_export("megatron-lm", &plan, Extra { model: None, sequence: None }).unwrap();
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
    check(&|plan| plan.job.optimizer = "muon".into());
    check(&|plan| {
        (plan.mesh.tensor, plan.mesh.data, plan.sequence_parallel) = (4, 2, true);
        (plan.job.optimizer, plan.data_sharding) = ("muon".into(), "none".into());
    });
    check(&|plan| {
        plan.stages = vec!["3 full, 9 none".parse().unwrap()];
        plan.job.optimizer = "sgd".into();
        // The distributed optimizer takes adam alone.
        plan.data_sharding = "none".into();
        plan.job.gradient_clipping = false;
    });
    assert_eq!(count, 11);
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
        settings: Vec::new(),
    };
    let Imported { plan, unread, .. } = importer("megatron-lm").unwrap().read(&request).unwrap();
    assert_eq!(plan.model, plain().model, "12 x 768 with biases is GPT-2, by its name");
    assert_eq!((plan.mesh.tensor, plan.mesh.pipeline, plan.mesh.data), (2, 2, 2));
    assert_eq!((plan.micro_batch, plan.job.global_batch, plan.microbatches()), (4, 64, 8));
    assert_eq!(plan.stages[1].to_string(), "6 selective");
    assert_eq!(unread, ["--lr", "--nnodes", "--nproc-per-node"]);
}
