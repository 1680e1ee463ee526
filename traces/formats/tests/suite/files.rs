//! The files themselves, small enough to be checked by eye, and errors.

use super::drafts::plain;
use trainwright_formats::export::{EXPORTERS, Effect, export, exporter};
use trainwright_formats::import::{IMPORTERS, Request, importer};
use trainwright_spec::model::preset::preset;
use trainwright_spec::plan::Plan;
use trainwright_spec::stack::Stack;

#[test]
fn deepspeed_of_a_plain_plan() {
    let exported = export(&plain(), exporter("deepspeed").unwrap());
    // 64 sequences over 8 ranks and microbatches of 2: 4 steps; buckets of max(40M, 8 x 1M).
    let expected = r#"{
  "train_batch_size": 64,
  "train_micro_batch_size_per_gpu": 2,
  "gradient_accumulation_steps": 4,
  "gradient_clipping": 1.0,
  "bf16": {
    "enabled": true
  },
  "data_types": {
    "grad_accum_dtype": "fp32"
  },
  "optimizer": {
    "type": "AdamW",
    "params": {}
  },
  "zero_optimization": {
    "stage": 1,
    "overlap_comm": true,
    "reduce_bucket_size": 40000000
  }
}
"#;
    assert_eq!(exported.files[0].text, expected);
}

#[test]
fn every_tool_gets_the_sizes_of_the_mesh() {
    let mut plan = plain();
    (plan.mesh.tensor, plan.mesh.data, plan.sequence_parallel) = (2, 4, true);
    let expected = [
        ("megatron-lm", "--tensor-model-parallel-size 2"),
        ("megatron-bridge", "  tensor_model_parallel_size: 2"),
        ("nemo", "trainer.strategy.tensor_model_parallel_size=2"),
        ("deepspeed", "    \"autotp_size\": 2"),
        ("torchtitan", "tensor_parallel_degree = 2"),
        ("torchtitan-python", "            tensor_parallel_degree=2,"),
        // 64 sequences over 4 ranks and microbatches of 2: the mesh is in their number.
        ("torch-pipelining", "0F0,0B0,0F1,0B1,0F2,0B2,0F3,0B3,0F4,0B4,0F5,0B5,0F6,0B6,0F7,0B7"),
        ("accelerate-fsdp", "  parallelism_config_tp_size: 2"),
        ("maxtext", "ici_tensor_sequence_parallelism: 2"),
        ("slurm", "  --tensor-model-parallel-size 2"),
    ];
    assert_eq!(expected.len(), EXPORTERS.len());
    for (name, line) in expected {
        let exported = export(&plan, exporter(name).unwrap());
        assert!(
            exported.files[0].text.lines().any(|other| other == line),
            "{name}:\n{}",
            exported.files[0].text
        );
    }
}

/// Megatron-LM's parser takes `--rotary-base` as an integer, and refuses 500000.0.
#[test]
fn megatron_gets_the_base_of_rotary_positions_as_a_whole_number() {
    let mut plan = plain();
    plan.model = preset("llama-3-8b").unwrap();
    plan.stages = vec!["32 none".parse().unwrap()];
    let text = |plan: &Plan| export(plan, exporter("megatron-lm").unwrap()).files.remove(0).text;
    assert!(text(&plan).contains("--rotary-base 500000\n"));
    plan.model.blocks[0].block.attention.rotary_base = Some(10000.5);
    assert!(!text(&plan).contains("--rotary-base "));
    assert!(text(&plan).contains("the base of rotary positions is a whole number"));
}

/// A schedule that torchtitan has no name for is written as a table.
#[test]
fn torchtitan_gets_schedules_as_tables() {
    let mut plan = plain();
    (plan.mesh.pipeline, plan.mesh.data) = (2, 4);
    plan.schedule = "zb-h1".into();
    plan.data_sharding = "none".into();
    plan.stages = vec!["6 none".parse().unwrap(), "6 none".parse().unwrap()];
    plan.job.global_batch = 16;
    plan.check("plan").unwrap();
    let exported = export(&plan, exporter("torchtitan").unwrap());
    assert_eq!(exported.files[1].name, "schedule.csv");
    let lists = plan.schedule().lists(plan.pipeline_shape());
    let read = trainwright_spec::schedule::text::read_csv(&exported.files[1].text, "schedule.csv").unwrap();
    assert_eq!(read, lists);
    let mut request = Request {
        text: &exported.files[0].text,
        origin: "file",
        cluster: plan.cluster.clone(),
        stack: Stack::from_name("pytorch-eager").unwrap(),
        model: Some(plan.model.clone()),
        sequence: None,
        schedule: Some(exported.files[1].text.clone()),
        settings: Vec::new(),
    };
    let back = importer("torchtitan").unwrap().read(&request).unwrap().plan;
    assert_eq!(back.schedule().lists(back.pipeline_shape()), lists);
    request.schedule = None;
    assert_eq!(
        importer("torchtitan").unwrap().read(&request).unwrap_err().to_string(),
        "file: `parallelism.pipeline_parallel_schedule_csv` is `schedule.csv`; give that file by --schedule-csv"
    );
}

#[test]
fn faults_of_a_file_are_named() {
    let check = |tool: &str, text: &str, expected: &str| {
        let request = Request {
            text,
            origin: "file",
            cluster: plain().cluster,
            stack: Stack::from_name(importer(tool).unwrap().stack()).unwrap(),
            model: (tool == "deepspeed").then(|| preset("gpt2").unwrap()),
            sequence: Some(1024),
            schedule: None,
            settings: Vec::new(),
        };
        let error = importer(tool).unwrap().read(&request).unwrap_err().to_string();
        assert_eq!(error, expected);
    };
    check(
        "megatron-lm",
        "--num-layers 12",
        "file: `--hidden-size` is missing; it holds the width of the residual stream, a whole number from 1 to 1000000",
    );
    let blocks = "it holds the number of blocks, a whole number from 1 to 2000";
    for layers in ["many", "0", "-1", "2001", "99999999999999", "1e18"] {
        let expected = format!("file: `--num-layers` is `{layers}`; {blocks}");
        check("megatron-lm", &format!("--num-layers {layers}"), &expected);
    }
    check("megatron-lm", "--num-layers 'many", "file: a quote is not closed");
    let gpt2 =
        "--num-layers 12 --hidden-size 768 --num-attention-heads 12 --vocab-size 50257 --micro-batch-size 1";
    check(
        "megatron-lm",
        &format!("{gpt2} --tensor-model-parallel-size 3"),
        "file: `tensor x pipeline x context parallel size` is 3; it must divide the 8 GPUs of dgx-h100:1",
    );
    check(
        "megatron-lm",
        &format!("{gpt2} --pipeline-model-parallel-size 8"),
        "file: `--num-layers` is of 12 blocks; 8 stages have equal shares: --pipeline-model-parallel-layout has others",
    );
    check(
        "megatron-lm",
        &format!("{gpt2} --num-experts 8 --moe-layer-freq '([0]*3+[1]*9999999999)'"),
        "file: `--moe-layer-freq` is `([0]*3+[1]*9999999999`; a number, or a list of the 12 blocks such as \
         ([0]*3+[1]*58)",
    );
    check(
        "megatron-lm",
        &format!("{gpt2} --norm-epsilon nan"),
        "file: `--norm-epsilon` is `nan`; a number should stand here",
    );
    // Each line doubles what the variable stands for.
    check(
        "megatron-lm",
        &format!("A=12{}\n--num-layers $A", "\nA=$A$A".repeat(60)),
        "file: a word with its variables has more than 65536 letters",
    );
    check("deepspeed", "[]", "file: a table should stand here");
    let sequences = "it holds the number of sequences, a whole number from 1 to 10000000";
    check(
        "deepspeed",
        r#"{"train_micro_batch_size_per_gpu": 1e18}"#,
        &format!("file: `train_micro_batch_size_per_gpu` is `1e+18`; {sequences}"),
    );
    check(
        "torchtitan",
        "[parallelism]\npipeline_parallel_degree = 2\n\
         pipeline_parallel_first_stage_less_layers = 1000000000000000000\n[model]\nflavor = \"8B\"",
        "file: `parallelism.pipeline_parallel_first_stage_less_layers` is `1000000000000000000`; it holds the number of \
         blocks, a whole number from 0 to 2000",
    );
    check(
        "deepspeed",
        r#"{"train_batch_size": 8, "train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 4}}"#,
        "file: `zero_optimization.stage` is 4; 0, 1, 2 or 3",
    );
    check(
        "deepspeed",
        r#"{"train_batch_size": 8, "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 2}"#,
        "file: `train_batch_size` is 8; micro-batch 1 x steps 2 x 8 data ranks",
    );
    check(
        "torchtitan",
        "[parallelism]\npipeline_parallel_degree = 2\npipeline_parallel_schedule = \"Zero\"\n[model]\nflavor = \"8B\"",
        "file: `parallelism.pipeline_parallel_schedule` is `Zero`; one of GPipe, 1F1B, Interleaved1F1B, LoopedBFS, \
         InterleavedZeroBubble, ZBVZeroBubble, DualPipeV",
    );
}

#[test]
fn registries_have_names_and_summaries() {
    let names: Vec<&str> = EXPORTERS.iter().map(|tool| tool.name()).collect();
    let without: Vec<&str> =
        IMPORTERS.iter().map(|tool| tool.name()).filter(|name| !names.contains(name)).collect();
    assert_eq!(without, ["llm-foundry", "nanotron"], "these are read only");
    let plan: Plan = plain();
    for tool in EXPORTERS {
        assert!(!tool.summary().is_empty() && !tool.source().is_empty(), "{}", tool.name());
        let exported = export(&plan, *tool);
        let omitted =
            |kind: fn(Effect) -> bool| exported.omissions.iter().any(|omission| kind(omission.effect));
        let says = |title: &str| exported.files[0].text.contains(title);
        let has_comment = tool.comment().is_none()
            || says("Not said here") == omitted(|effect| effect != Effect::Elsewhere)
                && says("To be said elsewhere") == omitted(|effect| effect == Effect::Elsewhere);
        assert!(has_comment, "{}", tool.name());
    }
}
