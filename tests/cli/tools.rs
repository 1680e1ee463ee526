//! Plans to other tools and from them, measured steps, failures, and the shell.

use super::{Folder, Ran, program, small_plan};
use trainwright_spec::plan::Plan;

fn folder() -> Folder {
    let folder = Folder::new();
    folder.write("plan.toml", &small_plan().to_toml());
    folder
}

#[test]
fn a_plan_goes_to_megatron_and_comes_back() {
    let folder = folder();
    let Ran { code, stdout, stderr } = folder.run("export plan.toml --to megatron-lm");
    assert_eq!(code, 0);
    assert!(stdout.contains("\n--tensor-model-parallel-size 2\n"), "{stdout}");
    let lines: Vec<&str> = stderr.lines().collect();
    assert!(lines[0].starts_with("not said: cluster = 1 x 8 a100-80gb-sxm: the launcher"), "{stderr}");
    // The first blocks of one stage alone cannot be said: all are computed again.
    assert!(lines[1].starts_with("not said: stages.recompute"), "{stderr}");
    assert_eq!(lines.len(), 2, "{stderr}");
    let back = folder.run_with_input("import - --from megatron-lm --cluster dgx-a100 --out -", &stdout);
    assert_eq!((back.code, back.stderr.as_str()), (0, ""));
    let plan = Plan::from_toml(&back.stdout, "plan").unwrap();
    let stages = vec!["12 full".parse().unwrap(), "12 full".parse().unwrap()];
    assert_eq!(plan, Plan { stages, ..small_plan() });
}

#[test]
fn what_a_tool_reads_beside_its_file_is_written_beside_it() {
    let folder = Folder::new();
    let plan = Plan { schedule: "zb-h1".into(), data_sharding: "none".into(), ..small_plan() };
    folder.write("plan.toml", &plan.to_toml());
    let ran = folder.run("export plan.toml --to torchtitan --out train.toml");
    assert_eq!((ran.code, ran.stdout.as_str()), (0, ""));
    assert!(ran.stderr.ends_with("written beside it: schedule.csv\n"), "{}", ran.stderr);
    assert!(folder.read("train.toml").contains("pipeline_parallel_schedule_csv = \"schedule.csv\""));
    assert!(folder.read("schedule.csv").starts_with("0F0,0F1,"));
}

#[test]
fn traces_of_chakra_have_a_file_for_each_rank() {
    let folder = folder();
    let ran = folder.run("simulate plan.toml --chakra traces");
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    for rank in 0..8 {
        let bytes = std::fs::read(folder.path(&format!("traces/trainwright.{rank}.et"))).unwrap();
        let (_, nodes) = trainwright_traces::chakra::read(&bytes, "trace").unwrap();
        assert!(nodes.len() > 1000, "{}", nodes.len());
    }
    assert!(folder.read("traces/groups.json").starts_with("{\n  \"0\": ["));
}

#[test]
fn a_measured_step_stands_beside_its_forecast() {
    let folder = folder();
    folder.write(
        "trace.json",
        r#"{"traceEvents":[
            {"ph":"X","cat":"kernel","name":"nvjet_hsh","ts":0,"dur":50000},
            {"ph":"X","cat":"kernel","name":"flash_fwd_kernel","ts":50000,"dur":4000},
            {"ph":"X","cat":"kernel","name":"ncclDevKernel_AllGather_RING_LL","ts":60000,"dur":2500}]}"#,
    );
    let ran = folder.run("compare trace.json --plan plan.toml --rank 5");
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    let row = |kind: &str| {
        let line = ran.stdout.lines().find(|line| line.starts_with(kind));
        line.unwrap_or_else(|| panic!("{}", ran.stdout)).split_whitespace().collect::<Vec<&str>>()
    };
    assert_eq!(row("gemm")[1..3], ["1", "50.000"]);
    assert_eq!(row("attention")[1..3], ["1", "4.000"]);
    assert_eq!(row("all-gather")[1..3], ["1", "2.500"]);
    assert_eq!(row("step")[1], "62.500");
    let refused = folder.run("compare trace.json --plan plan.toml --rank 8");
    assert_eq!(
        (refused.code, refused.stderr.as_str()),
        (2, "error: `--rank` is 8; the plan has ranks 0 to 7\n")
    );
}

#[test]
fn failures_take_their_part() {
    let folder = folder();
    let ran = folder.run("goodput plan.toml --tokens 1e9 --json");
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    let answer: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    // 8 GPUs and a node: 1 / (8/3597 + 1/639) days = 264 days.
    let failures = answer["goodput"]["between_failures_s"].as_f64().unwrap() / 86_400.0;
    assert!((failures - 263.9).abs() < 0.1, "{failures}");
    // 354.8 M parameters of 14 bytes at 0.98 GB/s: 5.07 s.
    let checkpoint = answer["goodput"]["checkpoint_s"].as_f64().unwrap();
    assert!((checkpoint - 5.07).abs() < 0.01, "{checkpoint}");
    let part = answer["goodput"]["goodput"].as_f64().unwrap();
    assert!(part > 0.999 && part < 1.0, "{part}");
    let page = folder.run("goodput plan.toml --reliability meta-rsc-2").stdout;
    assert!(page.contains(" GiB in ") && page.contains(" % is lost"), "{page}");
    assert!(page.contains("one every 427.4 days, as on meta-rsc-2"), "{page}");
}

#[test]
fn shells_get_completions_and_manuals() {
    let folder = Folder::new();
    for (shell, mark) in
        [("bash", "_trainwright()"), ("zsh", "#compdef trainwright"), ("fish", "complete -c trainwright")]
    {
        let ran = folder.run(&format!("completions {shell}"));
        assert_eq!(ran.code, 0);
        assert!(ran.stdout.contains(mark) && ran.stdout.contains("megatron-lm"), "{shell}");
    }
    assert!(folder.run("man").stdout.contains(".TH trainwright 1"));
    let page = folder.run("man export").stdout;
    assert!(page.contains("trainwright\\-export") && page.contains("\\-\\-to"), "{page}");
    let refused = folder.run("man plam");
    assert_eq!(refused.code, 2);
    assert!(
        refused.stderr.starts_with("error: `COMMAND` is plam; known are plan, simulate"),
        "{}",
        refused.stderr
    );
}

/// Neither pipes nor NO_COLOR get escape sequences, and a reader that goes away is no fault.
#[test]
fn pipes_get_plain_text() {
    let folder = folder();
    for arguments in ["--help", "show exporters", "simulate plan.toml", "plan --tensor x"] {
        let ran = Ran::from(program(folder.0.path(), arguments).env("NO_COLOR", "1").output().unwrap());
        assert!(!ran.stdout.contains('\u{1b}') && !ran.stderr.contains('\u{1b}'), "{arguments}");
    }
    for arguments in ["completions bash", "man", "export plan.toml --to deepspeed"] {
        let mut child = program(folder.0.path(), arguments).spawn().unwrap();
        drop(child.stdout.take());
        let ran = Ran::from(child.wait_with_output().unwrap());
        assert_eq!(ran.code, 0, "{arguments}: {}", ran.stderr);
        assert!(!ran.stderr.contains("panicked"), "{arguments}: {}", ran.stderr);
    }
}
