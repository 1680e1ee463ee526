//! Exports that would not run or would train something else: refused, or written right.

use super::drafts::plain;
use trainwright_formats::details::Details;
use trainwright_formats::export::{EXPORTERS, Effect, Exported, Omission, Request, export, exporter, write};
use trainwright_spec::adapters::{Adapters, BaseFormat};
use trainwright_spec::cluster::Cluster;
use trainwright_spec::mesh::Mesh;
use trainwright_spec::model::Mask;
use trainwright_spec::model::preset::preset;
use trainwright_spec::plan::{Plan, Recompute, StageBlocks};
use trainwright_spec::precision::Precision;
use trainwright_spec::stack::Stack;

/// A plan of a model of the catalog with stages of these sizes, on as many nodes of eight GPUs as it needs.
fn plan_of(model: &str, mesh: Mesh, counts: &[usize]) -> Plan {
    let nodes = mesh.ranks().div_ceil(8);
    Plan {
        model: preset(model).unwrap(),
        cluster: Cluster::from_name(&format!("dgx-h100:{nodes}")).unwrap(),
        sequence_parallel: mesh.tensor > 1,
        stages: counts.iter().map(|count| StageBlocks(vec![Recompute::None; *count])).collect(),
        mesh,
        ..plain()
    }
}

fn exported(plan: &Plan, tool: &str) -> Exported {
    export(plan, exporter(tool).unwrap())
}

/// The reasons for which a tool's files would train something else.
fn faults(plan: &Plan, tool: &str) -> String {
    exported(plan, tool).faults().iter().map(|fault| fault.to_string()).collect::<Vec<String>>().join("\n")
}

fn text(plan: &Plan, tool: &str) -> String {
    exported(plan, tool).files.remove(0).text
}

/// Every line must stand in the text; those that begin with `!` must not.
fn check_lines(text: &str, lines: &[&str]) {
    for line in lines {
        match line.strip_prefix('!') {
            Some(absent) => assert!(!text.contains(absent), "{absent} in\n{text}"),
            None => assert!(text.contains(line), "no {line} in\n{text}"),
        }
    }
}

/// FSDP's stacks reduce block by block, with buckets of one parameter.
#[test]
fn buckets_are_not_of_one_parameter() {
    let mut plan = plan_of("llama-3-8b", Mesh::new(1, 1, 8), &[32]);
    plan.stack = Stack::from_name("torchtitan").unwrap();
    plan.data_sharding = "fsdp".into();
    assert_eq!(plan.bucket_parameters(), 1);
    // 4 x 4096^2 with 8 of 32 heads for keys and values, 3 x 4096 x 14336, and two norms.
    let block = 4096 * 4096 * 5 / 2 + 3 * 4096 * 14336 + 2 * 4096;
    check_lines(&text(&plan, "deepspeed"), &[&format!("\"reduce_bucket_size\": {block}")]);
    check_lines(&text(&plan, "megatron-lm"), &[&format!("--ddp-bucket-size {block}")]);
    let told = exported(&plan, "deepspeed").omissions;
    let bucket = told.iter().find(|omission| omission.fields[0].0 == "stack.bucket_parameters").unwrap();
    assert_eq!(bucket.effect, Effect::Speed);
}

/// 6 5 5 5 5 6 blocks in 6 stages: MaxText's are equal, and what is left over runs beside them.
#[test]
fn maxtext_pipelines_have_as_many_layers_as_the_model() {
    let mut plan = plan_of("llama-3-8b", Mesh::new(1, 6, 4), &[6, 5, 5, 5, 5, 6]);
    plan.schedule = "gpipe".into();
    plan.job.global_batch = 4 * 2 * 6;
    let lines =
        ["num_layers_per_pipeline_stage: 5", "num_pipeline_repeats: 1", "pipeline_parallel_layers: 30"];
    check_lines(&text(&plan, "maxtext"), &lines);
    assert_eq!(faults(&plan, "maxtext"), "");
    // Equal stages leave nothing over.
    let even = plan_of("llama-3-8b", Mesh::new(1, 4, 2), &[8; 4]);
    let even = Plan { schedule: "gpipe".into(), ..even };
    check_lines(&text(&even, "maxtext"), &["num_layers_per_pipeline_stage: 8", "!pipeline_parallel_layers"]);
    // A dense block and experts do not make one loop.
    let mixed = plan_of("deepseek-v3", Mesh::new(1, 2, 4), &[31, 30]);
    assert!(faults(&mixed, "maxtext").contains("a pipeline of equal blocks"));
}

/// Experts are experts everywhere, or nothing is written.
#[test]
fn mixtral_is_no_dense_llama() {
    let mut plan = plan_of("mixtral-8x7b", Mesh::new(1, 1, 8), &[32]);
    check_lines(&text(&plan, "maxtext"), &["model_name: mixtral-8x7b"]);
    plan.model.name = "config.json".into();
    check_lines(&text(&plan, "maxtext"), &["model_name: mixtral-8x7b"]);
    plan.model.hidden = 2048;
    check_lines(
        &text(&plan, "maxtext"),
        &["decoder_block: mixtral", "num_experts: 8", "num_experts_per_tok: 2"],
    );
    for tool in ["torchtitan", "torchtitan-python"] {
        assert!(faults(&plan, tool).contains("no flavor of this shape"), "{tool}");
    }
    check_lines(&text(&plan, "megatron-lm"), &["--num-experts 8", "--moe-grouped-gemm"]);
}

/// torchtitan's flavors are recognised by their shapes, whatever file the model is from.
#[test]
fn flavors_are_recognised_by_their_shapes() {
    let mut plan = plan_of("llama-3-405b", Mesh::new(8, 1, 1), &[126]);
    plan.model.name = "/models/config.json".into();
    check_lines(&text(&plan, "torchtitan"), &["flavor = \"405B\"", "!/models/config.json"]);
    // Whether its rotary positions are scaled is not known by its shape.
    for tool in ["torchtitan", "torchtitan-python", "megatron-lm", "maxtext"] {
        check_lines(&text(&plan, tool), &["--model with its config.json"]);
    }
    check_lines(&text(&plan, "torchtitan-python"), &["model_registry(\"405B\")"]);
}

/// LLaMA 3 does not scale rotary positions, torchtitan's flavor of its sizes does; Python can say so, TOML cannot.
#[test]
fn rotary_positions_are_those_of_the_model() {
    let plan = plan_of("llama-3-8b", Mesh::new(1, 1, 8), &[32]);
    assert!(faults(&plan, "torchtitan").contains("scales rotary positions otherwise: as LLaMA 3.1, by 8"));
    assert_eq!(faults(&plan, "torchtitan-python"), "");
    check_lines(&text(&plan, "torchtitan-python"), &["replace(layer.attention.rope, scaling=\"none\")"]);
    check_lines(&text(&plan, "megatron-lm"), &["!--use-rope-scaling"]);
    // Its details come from a file when the catalog does not have it.
    let mut request = Request::new(&plan);
    let config = r#"{"model_type": "llama", "rope_scaling": {"rope_type": "llama3", "factor": 8.0}}"#;
    request.details = Some(Details::of_config(config, "config.json").unwrap());
    let main = |tool: &str| write(&request, exporter(tool).unwrap()).files.remove(0).text;
    check_lines(&main("megatron-lm"), &["--use-rope-scaling", "--rope-scaling-factor 8.0"]);
    check_lines(&main("maxtext"), &["rope_type: llama3.1"]);
    check_lines(&main("torchtitan-python"), &["!replace("]);
    let small = plan_of("llama-3.2-1b", Mesh::new(1, 1, 8), &[16]);
    check_lines(&text(&small, "megatron-lm"), &["--rope-scaling-factor 32.0"]);
    check_lines(&text(&small, "torchtitan-python"), &["scaling=\"llama\", scaling_factor=32.0"]);
    assert!(faults(&small, "maxtext").contains("scaled as LLaMA 3.1's"));
}

/// θ of torchtitan's 235B-A22B is 5,000,000, the published model's 1,000,000.
#[test]
fn the_base_of_rotary_positions_is_that_of_the_model() {
    let plan = plan_of("qwen3-235b-a22b", Mesh::new(1, 1, 8), &[94]);
    assert!(faults(&plan, "torchtitan").contains("of rotary positions is 5000000 there"));
    check_lines(&text(&plan, "torchtitan-python"), &["theta=1000000.0"]);
}

/// Weights that the plan keeps whole are gathered once.
#[test]
fn zero1_is_not_gathered_twice() {
    let plan = plan_of("llama-3-405b", Mesh::new(8, 1, 2), &[126]);
    assert_eq!(plan.data_sharding, "zero1");
    check_lines(&text(&plan, "torchtitan"), &["fsdp_reshard_after_forward = \"never\""]);
    let plan = Plan { data_sharding: "zero3".into(), ..plan };
    check_lines(&text(&plan, "torchtitan"), &["fsdp_reshard_after_forward = \"always\""]);
}

/// 32 processes of which 16 had a place; what is written all the same has a place for each.
#[test]
fn accelerate_has_no_pipeline() {
    let plan = plan_of("llama-3-8b", Mesh::new(2, 2, 8), &[16, 16]);
    assert!(faults(&plan, "accelerate-fsdp").contains("no pipeline: its ranks divide weights here"));
    let lines =
        ["num_processes: 32", "parallelism_config_dp_shard_size: 16", "parallelism_config_tp_size: 2"];
    check_lines(&text(&plan, "accelerate-fsdp"), &lines);
}

/// What DeepSeek-V3's configuration says beyond its sizes.
#[test]
fn deepseek_keeps_its_router_and_its_predictions() {
    let plan = plan_of("deepseek-v3", Mesh::new(1, 8, 4), &[8, 8, 8, 8, 8, 7, 7, 7]);
    let lines = [
        "--mtp-num-layers 1",
        "--moe-router-topk-scaling-factor 2.5",
        "--moe-router-score-function sigmoid",
        "--moe-router-enable-expert-bias",
        "--rotary-scaling-factor 40.0",
        "mL'",
    ];
    check_lines(&text(&plan, "megatron-lm"), &lines);
    assert_eq!(faults(&plan, "megatron-lm"), "");
    check_lines(&text(&plan, "torchtitan-python"), &["num_mtp_layers=1"]);
    let second = plan_of("deepseek-v2", Mesh::new(1, 1, 8), &[60]);
    let lines = ["--moe-router-pre-softmax", "--moe-router-topk-scaling-factor 16.0", "!sigmoid"];
    check_lines(&text(&second, "megatron-lm"), &lines);
}

/// GeGLU, soft limits, norms after each part: Megatron-LM has none of them. Two kinds of windows it has.
#[test]
fn gemma_2_is_refused_and_windows_are_listed() {
    let plan = plan_of("gemma-2-27b", Mesh::new(1, 1, 8), &[46]);
    let why = faults(&plan, "megatron-lm");
    for part in ["no GeGLU", "no soft limits", "a norm before each", "embeddings are not scaled"] {
        assert!(why.contains(part), "{part}: {why}");
    }
    check_lines(&text(&plan, "megatron-lm"), &["!--swiglu", "--window-attn-skip-freq '([1,0])*23'"]);
    check_lines(&text(&plan, "maxtext"), &["model_name: gemma2-27b"]);
    let sinks = plan_of("gpt-oss-20b", Mesh::new(1, 1, 8), &[24]);
    assert_eq!(faults(&sinks, "megatron-lm"), "");
    let lines = [
        "--window-size 127,0",
        "--window-attn-skip-freq '([1,0])*12'",
        "--softmax-type learnable",
        "--quick-geglu",
        "--activation-func-clamp-value 7.0",
        "--position-embedding-type yarn",
    ];
    check_lines(&text(&sinks, "megatron-lm"), &lines);
    let mut two = plan_of("mistral-7b", Mesh::new(1, 1, 8), &[32]);
    let mut other = two.model.blocks[0].clone();
    other.count = 16;
    other.block.attention.mask = Mask::Window(128);
    two.model.blocks[0].count = 16;
    two.model.blocks.push(other);
    assert!(faults(&two, "megatron-lm").contains("in one window only"));
}

/// One norm over all heads of queries or keys, or norms behind each part, are not what `--qk-layernorm` and
/// `--normalization` make.
#[test]
fn megatron_has_no_norms_over_all_heads() {
    for (name, layers, reasons) in [
        ("olmo-2-7b", 32, &["norms behind attention", "over all heads"][..]),
        ("minimax-m2.5", 62, &["over all heads"]),
    ] {
        let plan = plan_of(name, Mesh::new(1, 1, 8), &[layers]);
        let why = faults(&plan, "megatron-lm");
        assert!(why.starts_with("model.blocks: ") && why.lines().count() == 1, "{name}: {why}");
        for reason in reasons {
            assert!(why.contains(reason), "{name}: {why}");
        }
    }
}

/// A window that is shorter than the sequences is in some of MaxText's configurations only.
#[test]
fn maxtext_has_windows_by_name_alone() {
    let check = |name: &str, layers: usize, sequence: usize, refused: bool| {
        let mut plan = plan_of(name, Mesh::new(1, 1, 8), &[layers]);
        plan.job.sequence = sequence;
        let why = faults(&plan, "maxtext");
        assert_eq!(why.contains("windows"), refused, "{name} of {sequence}: {why}");
        assert_eq!(why.starts_with("model.blocks: "), refused, "{name} of {sequence}: {why}");
    };
    check("phi-3-mini", 32, 4096, true);
    check("phi-3-mini", 32, 1024, false);
    check("mistral-7b", 32, 8192, true);
    check("mistral-7b", 32, 4096, false);
    check("gemma-2-27b", 46, 8192, false);
    check("gpt-oss-20b", 24, 8192, false);
}

/// DeepSpeed without ZeRO adds gradients up in fp32 for bf16, and in fp16 for fp16; it refuses all else.
#[test]
fn deepspeed_adds_gradients_up_as_it_can() {
    let check = |scheme: &str, precision: Precision, gradients: Precision, written: &str| {
        let mut plan = Plan { data_sharding: scheme.into(), ..plain() };
        plan.job.precision = precision;
        plan.state.gradients = Some(gradients);
        check_lines(&text(&plan, "deepspeed"), &[&format!("\"grad_accum_dtype\": \"{written}\"")]);
        assert_eq!(faults(&plan, "deepspeed"), "");
        let told = exported(&plan, "deepspeed").omissions;
        let told = told.iter().any(|omission| omission.fields[0].0 == "state.gradients");
        assert_eq!(told, gradients.name() != written, "{scheme} {precision} {gradients}");
    };
    check("none", Precision::Fp16, Precision::Fp32, "fp16");
    check("none", Precision::Fp16, Precision::Fp16, "fp16");
    check("none", Precision::Bf16, Precision::Bf16, "fp32");
    check("none", Precision::Bf16, Precision::Fp32, "fp32");
    check("zero1", Precision::Fp16, Precision::Fp32, "fp32");
    check("zero1", Precision::Bf16, Precision::Bf16, "bf16");
}

/// torchtitan's gpt-oss is read; nothing has checked a file of it.
#[test]
fn flavors_that_are_read_alone_are_said() {
    let plan = plan_of("gpt-oss-20b", Mesh::new(1, 1, 8), &[24]);
    for tool in ["torchtitan", "torchtitan-python"] {
        assert!(faults(&plan, tool).contains("its flavor is read, not written"), "{}", faults(&plan, tool));
    }
}

/// Without a number of cores a task is bound to one of them; without a time it ends when the site says.
#[test]
fn batch_scripts_say_what_a_site_needs() {
    let plan = plan_of("llama-3-8b", Mesh::new(2, 1, 8), &[32]);
    let lines = [
        "#SBATCH --time=1-00:00:00",
        "#SBATCH --mem=0",
        "srun --cpus-per-task=\"$SLURM_CPUS_ON_NODE\" torchrun",
        "export CUDA_DEVICE_MAX_CONNECTIONS=1",
        "!--partition=",
    ];
    check_lines(&text(&plan, "slurm"), &lines);
    let mut request = Request::new(&plan);
    for (key, value) in [("partition", "gpu"), ("time", "04:00:00"), ("cpus-per-task", "96")] {
        request.settings.insert(key.into(), value.into());
    }
    let script = write(&request, exporter("slurm").unwrap()).files.remove(0).text;
    check_lines(
        &script,
        &["#SBATCH --partition=gpu", "#SBATCH --time=04:00:00", "srun --cpus-per-task=96 torchrun"],
    );
    // Megatron-FSDP wants several queues, and its own format of checkpoints.
    let fsdp = Plan { data_sharding: "fsdp".into(), ..plan };
    let lines = ["unset CUDA_DEVICE_MAX_CONNECTIONS", "--ckpt-format fsdp_dtensor", "!CONNECTIONS=1"];
    check_lines(&text(&fsdp, "slurm"), &lines);
}

/// Nothing is gathered where nothing is divided: Megatron-LM refuses the flag.
#[test]
fn plain_data_parallelism_gathers_nothing() {
    let plan = Plan { data_sharding: "none".into(), ..plain() };
    assert!(plan.stack.overlap_weight_gather);
    check_lines(&text(&plan, "megatron-lm"), &["!--overlap-param-gather"]);
}

/// What recomputes some blocks fits where all are recomputed, not where none is.
#[test]
fn tools_with_one_recomputation_for_all_take_that_which_fits() {
    let check = |stage: &str, expected: [&str; 4]| {
        let mut plan = plan_of("llama-3-8b", Mesh::new(1, 1, 8), &[32]);
        plan.stack = Stack::from_name("pytorch-eager").unwrap();
        plan.data_sharding = "fsdp".into();
        plan.stages = vec![stage.parse().unwrap()];
        for (tool, line) in
            ["accelerate-fsdp", "deepspeed", "maxtext", "torchtitan-python"].iter().zip(expected)
        {
            check_lines(&text(&plan, tool), &[line]);
            let told = exported(&plan, tool).omissions.iter().any(|omission| {
                omission.fields[0].0 == "stages.recompute" && omission.effect == Effect::Speed
            });
            assert_eq!(told, stage.contains(','), "{tool}: {stage}");
        }
    };
    let full = [
        "fsdp_activation_checkpointing: true",
        "\"number_checkpoints\": 32",
        "remat_policy: full",
        "activation_checkpoint=FullAC.Config()",
    ];
    check("30 full, 2 none", full);
    check("1 full, 31 none", full);
    check("32 full", full);
    let none = [
        "fsdp_activation_checkpointing: false",
        "!activation_checkpointing",
        "remat_policy: minimal_with_context",
        "activation_checkpoint=None",
    ];
    check("32 none", none);
}

/// MaxText's experts have an axis of their own, whose ranks have sequences of their own and divide all weights.
#[test]
fn maxtext_has_an_axis_of_experts() {
    let mut plan = plan_of("mixtral-8x7b", Mesh { expert: 8, ..Mesh::new(1, 1, 16) }, &[32]);
    let written = |plan: &Plan, lines: &[&str]| check_lines(&text(plan, "maxtext"), lines);
    let told = |plan: &Plan| {
        let omissions = exported(plan, "maxtext").omissions;
        omissions.iter().any(|omission| omission.why.contains("the expert ranks divide all weights"))
    };
    assert_eq!(faults(&plan, "maxtext"), "");
    written(&plan, &["ici_expert_parallelism: 8", "dcn_expert_parallelism: 1", "dcn_data_parallelism: 2"]);
    written(&plan, &["ici_data_parallelism: 1", "ici_fsdp_parallelism: 1", "dcn_fsdp_parallelism: 1"]);
    assert!(told(&plan));
    plan.stack = Stack::from_name("maxtext").unwrap();
    plan.data_sharding = "fsdp".into();
    assert_eq!(faults(&plan, "maxtext"), "");
    written(&plan, &["ici_expert_parallelism: 8", "dcn_fsdp_parallelism: 2", "dcn_data_parallelism: 1"]);
    assert!(!told(&plan));
    // Experts over tensor ranks as well.
    plan.mesh = Mesh { expert: 8, expert_tensor: Some(1), ..Mesh::new(4, 1, 4) };
    assert!(faults(&plan, "maxtext").contains("the axis of experts is one of the data ranks"));
}

/// A script that makes the model makes its adapters; a recipe of pretraining has no place for them.
#[test]
fn adapters_are_those_of_the_script() {
    let mut plan = plan_of("llama-3-8b", Mesh::new(1, 1, 8), &[32]);
    plan.job.adapters = Some(Adapters::of_all(16, BaseFormat::Full, &plan.model));
    for tool in ["deepspeed", "accelerate-fsdp"] {
        assert_eq!(faults(&plan, tool), "", "{tool}");
        let omissions = exported(&plan, tool).omissions;
        let adapters = |omission: &&Omission| omission.fields.iter().any(|(key, _)| *key == "job.adapters");
        let omission = omissions.iter().find(adapters).unwrap();
        assert_eq!(omission.effect, Effect::Elsewhere, "{tool}");
    }
    assert!(faults(&plan, "megatron-bridge").contains("a finetuning recipe"));
}

/// torchtitan compiles what the plan's stack fuses, and its products in 8 bits know of it.
#[test]
fn torchtitan_compiles_what_the_stack_fuses() {
    let check = |stack: &str, toml: &[&str], python: &[&str]| {
        let mut plan = plan_of("qwen3-8b", Mesh::new(1, 1, 8), &[36]);
        plan.stack = Stack::from_name(stack).unwrap();
        plan.data_sharding = "fsdp".into();
        plan.job.precision = Precision::Fp8;
        check_lines(&text(&plan, "torchtitan"), toml);
        check_lines(&text(&plan, "torchtitan-python"), python);
    };
    check(
        "torchtitan-2025",
        &["[compile]\nenable = true\ncomponents = [\"model\", \"loss\"]\n"],
        &[
            "compile=CompileConfig(enable=True, components=[\"model\", \"loss\"]),",
            "model_compile_enabled=True",
        ],
    );
    check(
        "torchtitan",
        &["[compile]\nenable = true\ncomponents = [\"model\"]\n"],
        &["compile=CompileConfig(enable=True, components=[\"model\"]),", "model_compile_enabled=True"],
    );
    check("pytorch-eager", &["![compile]"], &["!compile=", "model_compile_enabled=False"]);
}

/// ZeRO's stages 2 and 3 do not go with DeepSpeed's pipelines.
#[test]
fn deepspeed_pipelines_divide_the_optimizer_alone() {
    let mut plan = plan_of("llama-3-8b", Mesh::new(1, 2, 4), &[16, 16]);
    assert_eq!(faults(&plan, "deepspeed"), "");
    plan.data_sharding = "zero2".into();
    assert!(faults(&plan, "deepspeed").contains("stages 0 and 1 of ZeRO"));
    // JSON has no comments: a key that DeepSpeed does not read says it.
    check_lines(&text(&plan, "deepspeed"), &["\"_comment\": [", "stages 0 and 1 of ZeRO"]);
}

/// Files that come back as another plan are refused, whoever made the mistake.
#[test]
fn files_are_read_back() {
    let mut plan = plain();
    (plan.mesh.tensor, plan.mesh.data) = (2, 4);
    for tool in EXPORTERS {
        let fine = exported(&plan, tool.name());
        let wrong: Vec<String> = fine.faults().iter().map(|fault| fault.to_string()).collect();
        assert!(!wrong.iter().any(|fault| fault.contains("read back")), "{}: {wrong:?}", tool.name());
    }
    // Half of the ranks that the plan has: the file's ranks do not make up the cluster.
    plan.cluster = Cluster::from_name("dgx-h100:2").unwrap();
    for tool in ["megatron-lm", "torchtitan", "accelerate-fsdp", "maxtext", "deepspeed"] {
        assert!(faults(&plan, tool).contains("read back"), "{tool}: {}", faults(&plan, tool));
    }
}
