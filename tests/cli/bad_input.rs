//! Whatever is wrong is said in one line that names the argument or the file, the key, the value and what is
//! allowed.

use crate::{Folder, Ran, small_plan};

/// The line on standard error, and the exit code.
fn check(folder: &Folder, arguments: &str, code: i32, message: &str) {
    let Ran { code: ended, stdout, stderr } = folder.run(arguments);
    assert_eq!(stderr, format!("error: {message}\n"), "{arguments}");
    assert_eq!((ended, stdout.as_str()), (code, ""), "{arguments}");
}

#[test]
fn arguments_by_themselves() {
    let folder = Folder::new();
    let check = |arguments: &str, message: &str| check(&folder, arguments, 2, message);
    check(
        "",
        "a command is missing: plan, simulate, predict, fit, run, generate, curves, calibrate, validate, what-if, network, kernel, serve, serve-plan, fleet, fleet-online, fleet-run, rl, serve-bench, export, import, compare, profile, replay, \
         stragglers, goodput, show, doctor, schema, completions or man; `trainwright --help` explains them",
    );
    check("plam", "unrecognized subcommand 'plam'; some similar subcommands exist: 'replay', 'plan'");
    check(
        "plan --seq 128",
        "the following required arguments were not provided: --model <MODEL> --cluster <CLUSTER> \
         --global-batch <SEQUENCES>",
    );
    let plan = "plan --model gpt2 --cluster dgx-a100";
    for (argument, given, name) in [
        ("seq", "0", "TOKENS"),
        ("seq", "1000000000000", "TOKENS"),
        ("seq", "-5", "TOKENS"),
        ("seq", "1e3", "TOKENS"),
        ("global-batch", "0", "SEQUENCES"),
        ("tensor", "0", "N"),
        ("pipeline", "99999999999999999999", "N"),
    ] {
        check(
            &format!("{plan} --{argument} {given}"),
            &format!(
                "invalid value '{given}' for '--{argument} <{name}>': it must be a whole number from 1 to 10000000"
            ),
        );
    }
    for given in ["0", "6"] {
        let expected =
            format!("invalid value '{given}' for '--top <N>': it must be a whole number from 1 to 5");
        check(&format!("{plan} --top {given}"), &expected);
    }
    check(
        &format!("{plan} --seq 8 --global-batch 8 --precision bf17"),
        "invalid value 'bf17' for '--precision <PRECISION>' [possible values: fp32, tf32, fp16, bf16, fp8, fp8-block, mxfp8, nvfp4, int8]; \
         a similar value exists: 'bf16'",
    );
    check(
        &format!("{plan} --seq 8 --global-batch 8 --optimizer adm"),
        "invalid value 'adm' for '--optimizer <OPTIMIZER>' [possible values: sgd, momentum, adam, adamw, lamb, lars, muon, sophia, shampoo]; \
         a similar value exists: 'adam'",
    );
}

#[test]
fn incompatible_arguments() {
    let folder = Folder::new();
    let check = |arguments: &str, message: &str| {
        let plan = "plan --model gpt2 --cluster dgx-a100 --seq 1024 --global-batch 8";
        check(&folder, &format!("{plan} {arguments}"), 2, message);
    };
    check("--tensor 7", "`--tensor` is 7; it must divide the 8 GPUs of dgx-a100");
    check("--tensor 8", "`--tensor` is 8; it must divide the 12 attention heads");
    check("--tensor 2 --data 8", "`--tensor` x `--data` is 2 x 8; it must divide the 8 GPUs of dgx-a100");
    check(
        "--tensor 2 --pipeline 2 --data 1",
        "`--tensor` x `--pipeline` x `--data` is 2 x 2 x 1; it must be the 8 GPUs of dgx-a100",
    );
    check(
        "--pipeline 8 --virtual-stages 4",
        "`--pipeline` is 8; 32 stages are more than the model's 12 blocks, embedding and head",
    );
    check(
        "--schedule 1f1b --virtual-stages 3",
        "`--schedule` is 1f1b; schedule `1f1b` has 1 virtual stage, not 3: use `interleaved`",
    );
    check(
        "--recompute selective(experts)",
        "`--recompute` is selective(experts); the blocks of gpt2 have core, norm, activation, mlp",
    );
    check("--micro-batch 3", "`--global-batch` is 8; it must divide by `--micro-batch` 3");
    check(
        "--data 8 --micro-batch 2",
        "`--global-batch` is 8; it must divide by `--data` 8 x `--micro-batch` 2 = 16",
    );
    check("--precision fp8", "`--precision` is fp8; a100-80gb-sxm computes in fp32, tf32, fp16, bf16, int8");
    // Whichever kind of node comes first.
    for cluster in ["dgx-h100:1+dgx-a100:1", "dgx-a100:1+dgx-h100:1"] {
        let plan =
            format!("plan --model gpt2 --cluster {cluster} --seq 1024 --global-batch 8 --precision fp8");
        let message = "`--precision` is fp8; a100-80gb-sxm computes in fp32, tf32, fp16, bf16, int8";
        self::check(&folder, &plan, 2, message);
    }
    check("--out - --json", "`--out` is -; with `--json` standard output is taken: name a file");
}

#[test]
fn models() {
    let folder = Folder::new();
    folder.write("cut.json", r#"{"model_type": "llama", "hidden_size": 64"#);
    folder.write("missing.json", r#"{"model_type": "llama", "hidden_size": 64}"#);
    folder.write("negative.json", r#"{"model_type": "llama", "hidden_size": -4}"#);
    folder.write("list.json", "[1, 2]");
    std::fs::create_dir(folder.path("folder")).unwrap();
    let check = |model: &str, code: i32, message: &str| {
        let arguments = format!("plan --model {model} --cluster dgx-a100 --seq 1024 --global-batch 8");
        check(&folder, &arguments, code, &format!("--model: {message}"));
    };
    check(
        "gpt2-mediun",
        2,
        "unknown model `gpt2-mediun` (nearest: gpt2-medium, gpt2, gpt2-xl); `trainwright show models` lists all",
    );
    check("cut.json", 2, "cut.json: EOF while parsing an object at line 1 column 41");
    check(
        "missing.json",
        2,
        "missing.json: `num_attention_heads` is missing; it holds the number of attention heads, a whole number \
         from 1 to 1000000",
    );
    check(
        "negative.json",
        2,
        "negative.json: `hidden_size` is -4; it holds the width of the residual stream, a whole number from 1 to \
         1000000",
    );
    check("list.json", 2, "list.json: a JSON object should stand here, this is a list");
    check("nowhere.json", 2, "cannot read nowhere.json: no such file or directory");
    check("./folder", 2, "cannot read ./folder/config.json: no such file or directory");
}

#[test]
fn sequences_longer_than_the_model_has_positions() {
    let arguments = "plan --model gpt2 --cluster dgx-a100 --seq 2048 --global-batch 8";
    let message = "`--seq` is 2048; the model has learned positions for 1024 tokens";
    check(&Folder::new(), arguments, 2, message);
}

#[test]
fn clusters() {
    let folder = Folder::new();
    folder.write("zero.toml", "nodes = 0\nnode = \"dgx-a100\"\n");
    folder.write("cut.toml", "nodes = 2\nnode = \"dgx-a10");
    folder.write("unknown.toml", "nodes = 2\nnode = \"dgx-a101\"\n");
    let check = |cluster: &str, code: i32, message: &str| {
        let arguments = format!("plan --model gpt2 --cluster {cluster} --seq 1024 --global-batch 8");
        check(&folder, &arguments, code, message);
    };
    check(
        "dgx-h10",
        2,
        "--cluster: unknown cluster `dgx-h10` (nearest: dgx-h100, dgx-a100, dgx-h200); `trainwright show clusters` \
         lists all",
    );
    for count in ["0", "x", "-1", ""] {
        check(
            &format!("dgx-h100:{count}"),
            2,
            &format!(
                "`--cluster` is `dgx-h100:{count}`; after the colon stands a number of nodes, at least 1"
            ),
        );
    }
    check(
        "dgx-h100:9999999999",
        2,
        "`--cluster` is `dgx-h100:9999999999`; `nodes` is 9999999999; at most 10000000 GPUs in all, here each node \
         has 8",
    );
    check("selene:600", 2, "`--cluster` is `selene:600`; selene has 560 nodes");
    check("zero.toml", 2, "--cluster: zero.toml:1: `nodes` is 0; at least 1");
    check("cut.toml", 2, "--cluster: cut.toml:2: invalid basic string, expected `\"`");
    check(
        "unknown.toml",
        2,
        "--cluster: unknown.toml:2: `node` is `dgx-a101`; unknown node `dgx-a101` (nearest: dgx-a100, dgx-h100, \
         dgx-1v); `trainwright show nodes` lists all",
    );
    folder.write("calibrated.toml", "nodes = 2\nnode = \"dgx-a100\"\ncalibration = \"bogus\"\n");
    check(
        "calibrated.toml",
        2,
        "`calibration` of the cluster: unknown calibration `bogus`; `trainwright show calibrations` lists all",
    );
    check("nowhere.toml", 2, "--cluster: cannot read nowhere.toml: no such file or directory");
}

#[test]
fn plans() {
    let folder = Folder::new();
    let text = small_plan().to_toml();
    folder.write("plan.toml", &text);
    folder.write("cut.toml", &text[..text.find("[mesh]").unwrap() - 4]);
    folder.write("mesh.toml", &text.replace("tensor = 2\n", "tensor = 3\n"));
    folder.write("batch.toml", &text.replace("global_batch = 16", "global_batch = 15"));
    folder.write("absurd.toml", &text.replace("global_batch = 16", "global_batch = 10000000"));
    folder.write("sequence.toml", &text.replace("sequence = 1024", "sequence = 0"));
    std::fs::create_dir(folder.path("folder")).unwrap();
    let check = |arguments: &str, code: i32, message: &str| {
        check(&folder, &format!("simulate {arguments}"), code, message);
    };
    check("cut.toml", 2, "cut.toml: line 6, column 38: unclosed array, expected `]`");
    check(
        "mesh.toml",
        2,
        "mesh.toml: `mesh` is 3 x 2 x 1 x 2 = 12 ranks; tensor x pipeline x context x data must be the cluster's 8 GPUs",
    );
    check(
        "batch.toml",
        2,
        "batch.toml: `job.global_batch` is 15; it must divide by mesh.data x micro_batch = 2",
    );
    check(
        "absurd.toml",
        2,
        "absurd.toml: `job.global_batch` is 10000000; that is 5000000 microbatches of 24 blocks, and at most 1000000 \
         passes of a block are simulated",
    );
    check("sequence.toml", 2, "sequence.toml: `job.sequence` is 0; it must be from 1 to 10000000");
    check("nowhere.toml", 2, "cannot read nowhere.toml: no such file or directory");
    check("folder", 2, "cannot read folder: is a directory");
    check(
        "plan.toml --width 3",
        2,
        "invalid value '3' for '--width <COLUMNS>': it must be a whole number from 40 to 10000",
    );
    check(
        "plan.toml --trace - --svg -",
        2,
        "`--trace` is -; with `--svg` standard output is taken: name a file",
    );
    check("plan.toml --svg - --json", 2, "`--svg` is -; with `--json` standard output is taken: name a file");
}

#[test]
fn hardware_and_software_in_plans() {
    let folder = Folder::new();
    let check = |was: &str, is: &str, message: &str| {
        let text = small_plan().to_toml();
        assert!(text.contains(was), "{was}");
        folder.write("plan.toml", &text.replacen(was, is, 1));
        check(&folder, "simulate plan.toml", 2, &format!("plan.toml: {message}"));
    };
    check(
        "[stack.vocabulary_multiple]\nvalue = 128",
        "[stack.vocabulary_multiple]\nvalue = 0",
        "`stack.vocabulary_multiple` is 0; it must be from 1 to 10000000",
    );
    check(
        "[stack.fragmentation]\nvalue = 0.05",
        "[stack.fragmentation]\nvalue = 5",
        "`stack.fragmentation` is 5; it must be from 0 to 1",
    );
    check(
        "\"300 GB/s\"",
        "\"0 GB/s\"",
        "`cluster.node.interconnect.bandwidth` is 0 GB/s; at least 0.001 GB/s",
    );
    check("\"2039 GB/s\"", "1", "`cluster.node.gpu.memory_bandwidth` is 1 B/s; at least 0.001 GB/s");
    check(
        "[cluster.node.gpu.achieved.matrix.bf16]",
        "[cluster.node.gpu.achieved.matrix.fp8]",
        "`cluster.node.gpu.achieved.matrix.bf16` is missing; every precision with a peak needs one",
    );
}

#[test]
fn steps_that_take_days() {
    let arguments = "plan --model llama-3-405b --cluster rtx-4090 --seq 131072 --global-batch 100000";
    let message = "`--global-batch` is 100000; a step would take ";
    let ran = Folder::new().run(arguments);
    assert_eq!(ran.code, 2);
    assert!(ran.stderr.starts_with(&format!("error: {message}")), "{}", ran.stderr);
    assert!(
        ran.stderr.ends_with(" days at the peak of all GPUs, and at most one day is simulated\n"),
        "{}",
        ran.stderr
    );
}

#[test]
fn names_of_the_catalog() {
    let folder = Folder::new();
    let check = |arguments: &str, message: &str| check(&folder, &format!("show {arguments}"), 2, message);
    check("", "the following required arguments were not provided: <LIST>");
    check(
        "model",
        "invalid value 'model' for '<LIST>' [possible values: models, gpus, clusters, nodes, choices, schedules, tensor-schemes, \
         context-schemes, data-schemes, stacks, engines, controllers, optimizers, dispatchers, interconnects, nics, fabrics, collectives, algorithms, nccl, exporters, importers, reliabilities]; a similar value exists: 'models'",
    );
    check(
        "gpus h100",
        "unknown gpu `h100` (nearest: h100-80gb-sxm, h100-94gb-nvl, h100-80gb-pcie); `trainwright show gpus` lists all",
    );
}
