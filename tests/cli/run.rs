//! `run`.

use crate::{Folder, Ran, program, small_plan};
use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::process::{Child, Command};
use trainwright_spec::mesh::Mesh;
use trainwright_spec::model::hf::from_hugging_face;
use trainwright_spec::plan::Plan;
use trainwright_spec::precision::Precision;

/// Two blocks of width 16 over bytes, on two pipeline ranks.
pub fn tiny_plan() -> Plan {
    let config = r#"{"model_type": "gpt2", "n_embd": 16, "n_head": 2, "n_layer": 2, "n_positions": 8,
        "vocab_size": 256, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}"#;
    let mut plan = small_plan();
    plan.model = from_hugging_face(config, "tiny").unwrap();
    plan.mesh = Mesh::new(1, 2, 1);
    plan.sequence_parallel = false;
    plan.data_sharding = "none".into();
    plan.stages = vec!["1 none".parse().unwrap(), "1 none".parse().unwrap()];
    plan.job.precision = Precision::Fp32;
    (plan.job.sequence, plan.job.global_batch) = (8, 4);
    plan.cluster.node.gpus.value = 2;
    plan
}

/// The losses that a run printed.
pub fn losses(page: &str) -> Vec<f64> {
    let steps = page.lines().filter(|line| line.starts_with("step "));
    steps.map(|line| line.split_whitespace().nth(3).unwrap().parse().unwrap()).collect()
}

#[test]
fn a_text_is_learned_and_every_op_is_in_the_trace() {
    let folder = Folder::new();
    folder.write("plan.toml", &tiny_plan().to_toml());
    folder.write("text", &"the quick brown fox ".repeat(20));
    let run = "run plan.toml --steps 30 --data text --learning-rate 0.02 --trace step.json";
    let ran = folder.run(run);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{}", ran.stdout);
    let first = losses(&ran.stdout);
    // ln 256 = 5.545 at first.
    assert!(first.len() == 30 && (first[0] - 5.545).abs() < 0.2 && first[29] < 4.0, "{}", ran.stdout);
    assert!(ran.stdout.contains("tokens/s"), "{}", ran.stdout);
    let trace = folder.read("step.json");
    assert!(["block 1 attention", "optimizer", "receive"].iter().all(|name| trace.contains(name)));
    assert_eq!(losses(&folder.run(run).stdout), first, "two runs differ");
    assert_ne!(losses(&folder.run(&format!("{run} --seed 1")).stdout), first);
}

/// Only cuDNN's gradients of attention may have other bits in another run, unless `--deterministic` is given.
#[test]
fn a_run_says_whether_another_has_the_same_bits() {
    let folder = Folder::new();
    let mut plan = tiny_plan();
    (plan.mesh, plan.stages) = (Mesh::new(1, 1, 1), vec!["2 none".parse().unwrap()]);
    plan.cluster.node.gpus.value = 1;
    plan.job.precision = Precision::Bf16;
    folder.write("plan.toml", &plan.to_toml());
    let run = |arguments: &str| folder.run(&format!("run plan.toml --steps 2 {arguments}"));
    let ran = run("--device emulated --attention cudnn");
    if ran.stderr.contains("no C++ compiler") {
        return println!("skipped: {}", ran.stderr);
    }
    assert!(ran.stdout.contains("\ndeterministic: no, "), "{}{}", ran.stdout, ran.stderr);
    let deterministic = run("--device emulated --attention cudnn --deterministic");
    assert!(
        deterministic.stdout.contains("\ndeterministic: yes\n"),
        "{}{}",
        deterministic.stdout,
        deterministic.stderr
    );
    let ours = run("--device emulated --json");
    let ours: serde_json::Value = serde_json::from_str(&ours.stdout).unwrap();
    assert_eq!(ours["deterministic"], true);
    let on_cpu = run("--deterministic");
    assert_eq!((on_cpu.code, on_cpu.stdout.contains("deterministic")), (0, false), "{}", on_cpu.stdout);
}

#[test]
fn impossible_runs_are_refused_in_one_line() {
    let folder = Folder::new();
    folder.write("plan.toml", &tiny_plan().to_toml());
    folder.write("text", "short");
    let check = |arguments: &str, code, expected: &str| {
        let ran = folder.run(arguments);
        assert_eq!((ran.code, ran.stderr.lines().count()), (code, 1), "{}", ran.stderr);
        assert!(ran.stderr.contains(expected), "{}", ran.stderr);
    };
    check("run plan.toml --data text", 2, "5 tokens are fewer than one sequence of 8");
    check("run plan.toml --data none", 2, "cannot read none");
    if cfg!(not(feature = "cuda")) {
        check(
            "run plan.toml --device cuda",
            2,
            "the device `cuda` cannot be used: this program was built without",
        );
    }
}

/// Half a trillion parameters: no machine that runs tests has that much memory.
#[test]
fn a_plan_that_needs_more_memory_than_there_is_is_refused_before_it_takes_any() {
    let config = r#"{"model_type": "gpt2", "n_embd": 16384, "n_head": 128, "n_layer": 160, "n_positions": 8,
        "vocab_size": 256, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}"#;
    let mut plan = tiny_plan();
    plan.model = from_hugging_face(config, "huge").unwrap();
    plan.stages = vec!["80 none".parse().unwrap(), "80 none".parse().unwrap()];
    let folder = Folder::new();
    folder.write("plan.toml", &plan.to_toml());
    let check = |ran: Ran| {
        assert_eq!((ran.code, ran.stderr.lines().count()), (3, 1), "{ran:?}");
        // 0.515e12 parameters of 16 bytes are 7.5 TiB.
        assert!(ran.stderr.contains("the 2 ranks on this host need 7.5"), "{ran:?}");
        assert!(ran.stderr.contains(" are available: "), "{ran:?}");
    };
    if cfg!(target_os = "linux") {
        check(folder.run("run plan.toml"));
        launched(&folder, "run plan.toml --transport tcp", 2).into_iter().map(ended).for_each(check);
    }
}

/// The program once for each of `world` ranks, as a launcher would start it.
pub fn launched(folder: &Folder, arguments: &str, world: usize) -> Vec<Child> {
    launched_by(|| program(&folder.path(""), arguments), world)
}

/// A command once for each of `world` ranks, as a launcher would start it.
pub fn launched_by(command: impl Fn() -> Command, world: usize) -> Vec<Child> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    drop(listener);
    let start = |rank: usize| {
        let variables = [("RANK", rank.to_string()), ("WORLD_SIZE", world.to_string())];
        let place = [("MASTER_ADDR", "127.0.0.1".to_string()), ("MASTER_PORT", port.clone())];
        command().envs(variables).envs(place).spawn().unwrap()
    };
    (0..world).map(start).collect()
}

pub fn ended(child: Child) -> Ran {
    Ran::from(child.wait_with_output().unwrap())
}

#[test]
fn processes_train_as_threads_do() {
    let folder = Folder::new();
    let check = |mesh: Mesh, stages: &[&str], sharding: &str| {
        let mut plan = tiny_plan();
        plan.stages = stages.iter().map(|stage| stage.parse().unwrap()).collect();
        plan.data_sharding = sharding.into();
        plan.cluster.node.gpus.value = mesh.ranks();
        plan.mesh = mesh;
        folder.write("plan.toml", &plan.to_toml());
        let run = "run plan.toml --steps 4";
        let expected = losses(&folder.run(run).stdout);
        let processes = launched(&folder, &format!("{run} --transport tcp"), plan.mesh.ranks());
        let ran: Vec<Ran> = processes.into_iter().map(ended).collect();
        assert!(ran.iter().all(|ran| ran.code == 0 && ran.stderr.is_empty()), "{ran:?}");
        assert_eq!(losses(&ran[0].stdout), expected);
        assert!(ran[1..].iter().all(|ran| ran.stdout.is_empty()), "rank 0 alone prints");
    };
    check(Mesh::new(1, 2, 1), &["1 none", "1 none"], "none");
    check(Mesh::new(2, 1, 2), &["2 none"], "zero1");
}

#[test]
fn a_process_that_dies_ends_the_others_with_its_rank() {
    let folder = Folder::new();
    folder.write("plan.toml", &tiny_plan().to_toml());
    let mut processes = launched(&folder, "run plan.toml --transport tcp --steps 1000000", 2);
    // Both have met when rank 0 prints its first step.
    let mut said = BufReader::new(processes[0].stdout.take().unwrap());
    let mut line = String::new();
    while !line.starts_with("step ") {
        line.clear();
        assert!(said.read_line(&mut line).unwrap() > 0, "rank 0 trains until it is ended");
    }
    let mut second = processes.pop().unwrap();
    second.kill().unwrap();
    second.wait().unwrap();
    let mut first = processes.pop().unwrap();
    std::io::copy(&mut said, &mut std::io::sink()).unwrap();
    let mut error = String::new();
    first.stderr.take().unwrap().read_to_string(&mut error).unwrap();
    assert_eq!(first.wait().unwrap().code(), Some(1), "{error}");
    assert!(error.contains("rank 1 is gone"), "{error}");
}

/// Arguments that would do nothing.
#[test]
fn a_run_refuses_what_it_would_ignore() {
    let folder = Folder::new();
    folder.write("plan.toml", &tiny_plan().to_toml());
    folder.write("text", &"the quick brown fox ".repeat(20));
    for (rest, expected) in [
        ("--cooldown 1", "`--cooldown` is 1; it goes with `--rate-schedule wsd`"),
        ("--drill death:2:1:0", "`--drill` is rank 2; the plan has 2 ranks, from 0 on"),
        ("--drill nan:0:3:0", "`--drill` is step 3; the run has 2 steps, from 1 on"),
    ] {
        let ran = folder.run(&format!("run plan.toml --steps 2 --data text {rest}"));
        assert_eq!((ran.code, ran.stderr.lines().count()), (2, 1), "{rest}: {}", ran.stderr);
        assert!(ran.stderr.contains(expected), "{rest}: {}", ran.stderr);
    }
}

/// A plan has no place for what a configuration says beyond sizes; a run that leaves it out says so.
#[test]
fn a_run_says_what_it_leaves_out_of_a_configuration() {
    let folder = Folder::new();
    let config = |more: &str| {
        format!(
            r#"{{"model_type": "llama", "hidden_size": 16, "num_attention_heads": 2, "num_key_value_heads": 2,
            "num_hidden_layers": 2, "intermediate_size": 24, "vocab_size": 256{more}}}"#
        )
    };
    let mut plan = tiny_plan();
    let path = folder.path("config.json");
    plan.model = from_hugging_face(&config(""), &path.display().to_string()).unwrap();
    folder.write("plan.toml", &plan.to_toml());
    folder.write("text", &"the quick brown fox ".repeat(20));
    for (more, expected) in [
        ("", ""),
        (r#", "rope_scaling": {"type": "linear", "factor": 4.0}"#, "the executor does not scale positions"),
    ] {
        folder.write("config.json", &config(more));
        let ran = folder.run("run plan.toml --steps 1 --data text");
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        assert!(ran.stderr.contains(expected), "{}", ran.stderr);
        assert_eq!(ran.stderr.lines().count(), usize::from(!expected.is_empty()), "{}", ran.stderr);
    }
}
