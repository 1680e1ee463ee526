//! The files themselves, small enough to be checked by eye, and errors.

use super::drafts::plain;
use trainwright_formats::export::{EXPORTERS, Effect, export, exporter};
use trainwright_formats::import::{IMPORTERS, Imported, Request, importer};
use trainwright_spec::error::SpecError;
use trainwright_spec::model::preset::preset;
use trainwright_spec::plan::Plan;
use trainwright_spec::precision::Precision;
use trainwright_spec::stack::{AttentionKernel, Fusion, Stack};

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

/// What a text gives on eight GPUs, of GPT-2 if the tool's files do not say a model.
fn read(tool: &str, text: &str) -> Result<Imported, SpecError> {
    let without_model = ["deepspeed", "accelerate-fsdp"].contains(&tool);
    read_with(tool, text, without_model.then_some("gpt2"))
}

fn read_with(tool: &str, text: &str, model: Option<&str>) -> Result<Imported, SpecError> {
    let importer = importer(tool).unwrap();
    importer.read(&Request {
        text,
        origin: "file",
        cluster: plain().cluster,
        stack: Stack::from_name(importer.stack()).unwrap(),
        model: model.map(|name| preset(name).unwrap()),
        sequence: Some(1024),
        schedule: None,
        settings: Vec::new(),
    })
}

fn check_fault(tool: &str, text: &str, expected: &str) {
    assert_eq!(read(tool, text).unwrap_err().to_string(), expected, "{text}");
}

const GPT_2: &str =
    "--num-layers 12 --hidden-size 768 --num-attention-heads 12 --vocab-size 50257 --micro-batch-size 1";

#[test]
fn faults_of_a_file_are_named() {
    let check = check_fault;
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
    let gpt2 = GPT_2;
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
        &format!(
            "{gpt2} --pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 4 \
             --global-batch-size 8"
        ),
        "file: `--num-layers-per-virtual-pipeline-stage` is 4; it must divide the 6 blocks of each of the 2 pipeline ranks",
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

/// torchtitan's own stacks run its files, with what they compile.
#[test]
fn torchtitan_fuses_what_its_file_compiles() {
    let check = |section: &str, stack: &str, fused: [bool; 2]| {
        let text = format!("[model]\nname = \"llama3\"\nflavor = \"8B\"\n{section}");
        let Imported { plan, unread, assumed, .. } = read("torchtitan", &text).unwrap();
        assert_eq!(plan.stack.name, stack, "{section}");
        assert_eq!(plan.stack.attention, AttentionKernel::Flash2, "{section}");
        let found = [plan.stack.fused_elementwise, plan.stack.cross_entropy == Fusion::Fused];
        assert_eq!(found, fused, "{section}");
        assert!(unread.is_empty(), "{section}: {unread:?}");
        let told = assumed.contains(&"compile.enable = false, so that attention alone is fused".to_string());
        assert_eq!(told, section.is_empty(), "{section}: {assumed:?}");
    };
    check("", "torchtitan", [false, false]);
    check("[compile]\nenable = false", "torchtitan", [false, false]);
    check("[compile]\nenable = true", "torchtitan-2025", [true, true]);
    check("[compile]\nenable = true\ncomponents = [\"model\", \"loss\"]", "torchtitan-2025", [true, true]);
    check("[compile]\nenable = true\ncomponents = [\"model\"]", "torchtitan", [true, false]);
    check("[compile]\nenable = true\ncomponents = [\"loss\"]", "torchtitan-2025", [false, true]);
    check("[training]\ncompile = true", "torchtitan-2025", [true, true]);
    check_fault(
        "torchtitan",
        "[model]\nflavor = \"8B\"\n[compile]\ncomponents = [\"optimizer\"]",
        "file: `compile.components` is `optimizer`; model and loss",
    );
    // Another stack fuses what it fuses, and the difference is said.
    let request = Request {
        text: "[model]\nflavor = \"8B\"\n[compile]\nenable = true",
        origin: "file",
        cluster: plain().cluster,
        stack: Stack::from_name("pytorch-eager").unwrap(),
        model: None,
        sequence: None,
        schedule: None,
        settings: Vec::new(),
    };
    let read = importer("torchtitan").unwrap().read(&request).unwrap();
    assert_eq!(read.plan.stack.name, "pytorch-eager");
    assert!(read.assumed.contains(&"compile.enable = false, as pytorch-eager has it".to_string()));
}

/// The section of DeepSpeed's file says how checkpoints are made, not that they are.
#[test]
fn deepspeed_recomputes_where_the_script_says_so() {
    let check = |section: &str, expected: &str, assumed: Option<&str>| {
        let text = format!("{{\"train_micro_batch_size_per_gpu\": 1{section}}}");
        let read = read("deepspeed", &text).unwrap();
        assert_eq!(read.plan.stages[0].to_string(), expected, "{section}");
        let said: Vec<&String> =
            read.assumed.iter().filter(|line| line.starts_with("activation_checkpointing")).collect();
        assert_eq!(said.is_empty(), assumed.is_none(), "{said:?}");
        assert!(said.iter().all(|line| line.contains(assumed.unwrap())), "{said:?}");
    };
    let none = Some("no block: the section alone recomputes nothing");
    let full = Some("all blocks in full, if the script calls");
    check("", "12 none", None);
    check(", \"activation_checkpointing\": {}", "12 none", none);
    check(", \"activation_checkpointing\": {\"partition_activations\": false}", "12 none", none);
    check(", \"activation_checkpointing\": {\"number_checkpoints\": 0}", "12 none", none);
    check(", \"activation_checkpointing\": {\"partition_activations\": true}", "12 full", full);
    check(", \"activation_checkpointing\": {\"number_checkpoints\": 4}", "12 full", full);
    // As it is exported.
    check(", \"activation_checkpointing\": {\"number_checkpoints\": 12}", "12 full", None);
}

/// Accelerate runs the models of Hugging Face, with weights in 32 bits beside those of mixed precision.
#[test]
fn accelerate_trains_models_of_hugging_face() {
    let plan = read("accelerate-fsdp", "mixed_precision: bf16").unwrap().plan;
    assert_eq!((plan.stack.name.as_str(), plan.stack.pure_16_bits), ("hugging-face", false));
    assert_eq!(plan.stack.attention, AttentionKernel::Flash2);
}

/// The flags and keys that a tool refuses beside each other.
#[test]
fn contradictions_are_refused() {
    for (one, other) in [
        ("--bf16", "--fp16"),
        ("--swiglu", "--squared-relu"),
        ("--swiglu", "--quick-geglu"),
        ("--use-torch-fsdp2", "--use-megatron-fsdp"),
        ("--use-torch-fsdp2", "--use-distributed-optimizer"),
    ] {
        let expected = format!("file: `{one}` is given beside `{other}`; only one of them may be given");
        check_fault("megatron-lm", &format!("{GPT_2} {other} {one}"), &expected);
    }
    check_fault(
        "deepspeed",
        r#"{"bf16": {"enabled": true}, "fp16": {"enabled": true}}"#,
        "file: `bf16.enabled` is true; fp16.enabled is true too: only one may be",
    );
    check_fault(
        "deepspeed",
        "{\"fp16\": {\"enabled\": true,\n\"enabled\": false}}",
        "file: key `enabled` stands twice in a table at line 2 column 9",
    );
    // One that is on decides before one that another program fills in.
    let read = read("deepspeed", r#"{"bf16": {"enabled": "auto"}, "fp16": {"enabled": true}}"#).unwrap();
    assert_eq!(read.plan.job.precision, Precision::Fp16);
    assert!(!read.assumed.iter().any(|line| line.contains("enabled")), "{:?}", read.assumed);
}

/// What plans do not have is refused, and not read as what is like it.
#[test]
fn values_that_plans_do_not_have_are_refused() {
    for kind in ["OneBitAdam", "OneBitLamb", "ZeroOneAdam"] {
        let expected = format!(
            "file: `optimizer.type` is `{kind}`; Adam, AdamW, Lamb, Muon or SGD: plans do not have compressed gradients"
        );
        check_fault("deepspeed", &format!("{{\"optimizer\": {{\"type\": \"{kind}\"}}}}"), &expected);
    }
    for (stage, shown) in [("\"3\"", "`\"3\"`"), ("-1", "-1"), ("1.5", "1.5"), ("99999999999", "99999999999")]
    {
        let expected = format!("file: `zero_optimization.stage` is {shown}; 0, 1, 2 or 3");
        check_fault("deepspeed", &format!("{{\"zero_optimization\": {{\"stage\": {stage}}}}}"), &expected);
    }
    check_fault(
        "accelerate-fsdp",
        "distributed_type: DEEPSPEED\ndeepspeed_config:\n  zero_stage: 4",
        "file: `deepspeed_config.zero_stage` is 4; 0, 1, 2 or 3",
    );
    check_fault(
        "accelerate-fsdp",
        "parallelism_config:\n  parallelism_config_cp_size: 2\n  parallelism_config_dp_shard_size: 4\n  \
         parallelism_config_cp_comm_strategy: ring",
        "file: `parallelism_config.parallelism_config_cp_comm_strategy` is `ring`; allgather or alltoall",
    );
}

/// What the plan's check refuses is said of the file's key, with the plan's behind it.
#[test]
fn faults_of_a_plan_name_the_key_of_the_file() {
    let pipeline = "[model]\nflavor = \"8B\"\n[parallelism]\npipeline_parallel_degree = 2\n";
    check_fault(
        "torchtitan",
        &format!("{pipeline}pipeline_parallel_schedule = \"ZBVZeroBubble\""),
        "file: `parallelism.pipeline_parallel_schedule` is `ZBVZeroBubble`; schedule zb-v runs backward in halves or \
         without flush, with which gradients are not divided (`data_sharding` of the plan is `fsdp`)",
    );
    check_fault(
        "deepspeed",
        r#"{"zero_optimization": {"stage": 3}, "activation_checkpointing": {"cpu_checkpointing": true}}"#,
        "file: `activation_checkpointing.cpu_checkpointing` is true; not with data_sharding = `zero3`: only where every \
         rank has all gradients and weights and updates its part (`offload` of the plan is `activations on host`)",
    );
    // The plan's value is not said again where the file has the same.
    check_fault(
        "megatron-lm",
        &format!("{GPT_2} --tensor-model-parallel-size 8"),
        "file: `--tensor-model-parallel-size` is `8`; it must divide the 12 attention heads",
    );
    // A key that the file leaves out.
    check_fault(
        "megatron-lm",
        &format!("{GPT_2} --global-batch-size 12"),
        "file: `--global-batch-size` is `12`; it must divide by mesh.data x micro_batch = 8",
    );
}

/// `fully_shard` of PyTorch, and Megatron's own by both of its names.
#[test]
fn megatron_divides_the_state_by_each_of_its_flags() {
    let check = |flags: &str, scheme: &str| {
        let read = read("megatron-lm", &format!("{GPT_2} --bf16 {flags}")).unwrap();
        assert_eq!(read.plan.data_sharding, scheme, "{flags}");
        assert_eq!(read.unread, Vec::<String>::new(), "{flags}");
    };
    check("--use-torch-fsdp2 --ckpt-format torch_dist", "fsdp");
    check("--use-torch-fsdp2 --torch-fsdp2-no-reshard-after-forward", "zero2-fsdp");
    for flag in ["--use-megatron-fsdp", "--use-custom-fsdp"] {
        for (strategy, scheme) in [
            ("optim_grads_params", "fsdp"),
            ("optim_grads", "zero2"),
            ("optim", "zero1"),
            ("no_shard", "none"),
        ] {
            check(&format!("{flag} --data-parallel-sharding-strategy {strategy}"), scheme);
        }
        check(flag, "none");
    }
    check("--use-distributed-optimizer", "zero1");
    check("", "none");
    check_fault(
        "megatron-lm",
        &format!("{GPT_2} --use-torch-fsdp2 --pipeline-model-parallel-size 2"),
        "file: `--use-torch-fsdp2` is given; Megatron-LM has it without pipeline and expert parallelism",
    );
    let torch = read("megatron-lm", &format!("{GPT_2} --use-torch-fsdp2")).unwrap().plan.stack;
    assert!(torch.overlap_gradient_reduction && torch.overlap_weight_gather);
    let open = read("megatron-lm", &format!("{GPT_2} --use-megatron-fsdp")).unwrap().assumed;
    assert_eq!(open, ["--data-parallel-sharding-strategy no_shard"]);
}

/// Without `data_types` DeepSpeed adds gradients up in the precision of the weights, but those of bf16 without ZeRO in fp32.
#[test]
fn deepspeed_adds_gradients_up_by_precision_and_stage() {
    for (precision, stage, gradients) in [
        (Precision::Bf16, 0, Precision::Fp32),
        (Precision::Bf16, 1, Precision::Bf16),
        (Precision::Fp16, 0, Precision::Fp16),
        (Precision::Fp16, 2, Precision::Fp16),
    ] {
        let text =
            format!(r#"{{"{precision}": {{"enabled": true}}, "zero_optimization": {{"stage": {stage}}}}}"#);
        let plan = read("deepspeed", &text).unwrap().plan;
        let of_stack = plan.stack.gradient_precision(precision);
        assert_eq!(plan.state.gradients.unwrap_or(of_stack), gradients, "{text}");
    }
}

/// 8 GPUs of 1 node times 16 are 128 sequences, however it is written.
#[test]
fn arithmetic_of_scripts_has_a_value() {
    let script = "GPUS=8\nNODES=1\nWORLD_SIZE=$(($GPUS*$NODES))\nPORT=$((20000 + RANDOM % 1000))\n";
    for batch in [
        " $((WORLD_SIZE * 16))",
        " $((WORLD_SIZE*16))",
        "=$((WORLD_SIZE * 16))",
        "=$((WORLD_SIZE*16))",
        " \"$(( 2 * (WORLD_SIZE + 4 - 12 / 3) * 17 / 2 - WORLD_SIZE % 3 - 6 ))\"",
    ] {
        let read =
            read("megatron-lm", &format!("{script}{GPT_2} --global-batch-size{batch} --bf16")).unwrap();
        assert_eq!(read.plan.job.global_batch, 128, "{batch}");
    }
    // In an array, whose bracket closes behind it.
    for batch in [" $((WORLD_SIZE * 16))", "=$((WORLD_SIZE * 16))", " 128", "=128"] {
        let text = format!("{script}ARGS=({GPT_2} --bf16 --global-batch-size{batch})\npython ${{ARGS[@]}}");
        assert_eq!(read("megatron-lm", &text).unwrap().plan.job.global_batch, 128, "{batch}");
    }
    let check = |batch: &str, expected: &str| {
        let expected = format!(
            "file: `--global-batch-size` is {expected}; it holds the number of sequences, a whole number from 1 to 10000000"
        );
        check_fault("megatron-lm", &format!("{script}{GPT_2} --global-batch-size {batch} --bf16"), &expected);
    };
    check("$((REPLICAS * 16))", "`$((REPLICAS*16))`; REPLICAS is not set in the file");
    check("$((WORLD_SIZE / (NODES - 1)))", "`$((WORLD_SIZE/(NODES-1)))`; it divides by 0");
    check(
        "$((WORLD_SIZE << 4))",
        "`$((WORLD_SIZE<<4))`; `<` is not understood in it: + - * / % and brackets are",
    );
}

/// A layout of fewer blocks than the model has.
#[test]
fn stages_have_all_blocks() {
    check_fault(
        "megatron-lm",
        &format!("{GPT_2} --pipeline-model-parallel-size 2 --pipeline-model-parallel-layout 'Et*6|t*5L'"),
        "file: `--pipeline-model-parallel-layout` is of 11 blocks; the model has 12",
    );
    let text = |more: &str| {
        let model = "[model]\nflavor = \"8B\"\n[activation_checkpoint]\nmode = \"none\"\n";
        format!("{model}[parallelism]\npipeline_parallel_degree = 2\n{more}")
    };
    let counts = |more: &str| -> Vec<usize> {
        let read = read("torchtitan", &text(more)).unwrap();
        assert_eq!(read.unread, Vec::<String>::new());
        read.plan.stages.iter().map(|stage| stage.0.len()).collect()
    };
    let points = "pipeline_parallel_split_points";
    assert_eq!(counts(&format!("{points} = []")), [16, 16]);
    assert_eq!(counts(&format!("{points} = \"\"")), [16, 16]);
    assert_eq!(counts(&format!("{points} = [\"layers.10\"]")), [10, 22]);
    assert_eq!(counts(&format!("{points} = \"layers.10\"")), [10, 22]);
    let looped = "pipeline_parallel_schedule = \"Interleaved1F1B\"\n";
    assert_eq!(
        counts(&format!("{looped}{points} = [\"layers.7\", \"layers.15\", \"layers.24\"]")),
        [7, 8, 9, 8]
    );
    let check = |more: &str, expected: &str| {
        check_fault("torchtitan", &text(more), &format!("file: `parallelism.{expected}"));
    };
    let layers = "layers in their order, from layers.0 to layers.31";
    for (list, wrong) in [
        ("[\"layers.32\"]", "layers.32"),
        ("[\"layers.9\", \"layers.9\"]", "layers.9"),
        ("[\"norm\"]", "norm"),
        ("[3]", "3"),
    ] {
        check(&format!("{points} = {list}"), &format!("{points}` is `{wrong}`; {layers}"));
    }
    check(
        &format!("{points} = [\"layers.9\", \"layers.19\"]"),
        &format!("{points}` is of 3 stages; a multiple of the 2 pipeline ranks"),
    );
    let parts = "module_fqns_per_model_part = [[\"tok_embeddings\", \"layers.0\"], [\"norm\", \"output\"]]";
    check(parts, "module_fqns_per_model_part` is of 1 blocks; the model has 32");
}

/// Names of models whose shapes the catalog has under another name.
#[test]
fn stock_names_are_models_of_the_catalog() {
    let check = |tool: &str, text: &str, model: &str| {
        let read = read(tool, text).unwrap();
        assert_eq!(read.plan.model, preset(model).unwrap(), "{text}");
        read.assumed
    };
    for (name, model, first) in [
        ("llama3-8b", "llama-3-8b", None),
        ("llama3.1-8b", "llama-3-8b", Some("llama3-8b")),
        ("llama3.1-70b", "llama-3-70b", Some("llama3-70b")),
        ("llama3.3-70b", "llama-3-70b", Some("llama3-70b")),
    ] {
        let assumed = check("maxtext", &format!("model_name: {name}"), model);
        let said =
            first.map(|first| format!("model_name = {first}, which differs in rotary positions alone"));
        assert_eq!(assumed.iter().find(|line| line.starts_with("model_name")), said.as_ref());
    }
    for (flavor, model) in [("20b", "gpt-oss-20b"), ("120b", "gpt-oss-120b")] {
        check("torchtitan", &format!("[model]\nname = \"gpt_oss\"\nflavor = \"{flavor}\""), model);
    }
}

/// PyTorch's ring runs the fused kernels of attention, whichever the stack has otherwise.
#[test]
fn accelerate_passes_keys_and_values_around() {
    let text = |strategy: &str| {
        format!(
            "distributed_type: FSDP\nparallelism_config:\n  parallelism_config_cp_size: 2\n  \
             parallelism_config_dp_shard_size: 4\n{strategy}"
        )
    };
    for (strategy, scheme) in [("alltoall", "ring"), ("allgather", "all-gather"), ("", "all-gather")] {
        let line = match strategy {
            "" => String::new(),
            strategy => format!("  parallelism_config_cp_comm_strategy: {strategy}"),
        };
        let plan = read("accelerate-fsdp", &text(&line)).unwrap().plan;
        assert_eq!((plan.mesh.context, plan.context_scheme.as_str()), (2, scheme));
    }
    let ring = text("  parallelism_config_cp_comm_strategy: alltoall");
    assert_eq!(
        read_with("accelerate-fsdp", &ring, Some("mistral-7b")).unwrap_err().to_string(),
        "file: `parallelism_config.parallelism_config_cp_comm_strategy` is `alltoall`; with a sliding window most steps \
         of a ring would see no key: take `all-gather` or `ulysses` (`context_scheme` of the plan is `ring`)"
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
