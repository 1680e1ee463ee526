//! `calibrate` and `validate`: that what is printed is consistent. Times decide nothing here: what is
//! made of disturbed samples is tested in `executor/src/measure/calibrate/robust.rs` and `times.rs`.

use crate::run::tiny_plan;
use crate::{Folder, Ran};
use serde_json::Value;
use trainwright_spec::mesh::Mesh;
use trainwright_spec::units::Seconds;

/// Whether it went well. Only what other programs disturbed may be remarked upon.
fn assert_done(ran: &Ran) {
    let remarks = ran.stderr.lines().all(|line| line.starts_with("refused "));
    assert!(ran.code == 0 && remarks && ran.stderr.lines().count() <= 1, "{}", ran.stderr);
}

/// Forecast and measured step time, as JSON has them.
fn step(compared: &Value) -> [f64; 2] {
    ["forecast", "measured"].map(|which| compared["step_time_s"][which].as_f64().unwrap())
}

/// An error as tables print it.
fn printed_error([forecast, measured]: [f64; 2]) -> String {
    format!("{:+.1} %", 100.0 * (forecast / measured - 1.0))
}

#[test]
fn a_forecast_is_compared_with_the_measurement() {
    let folder = Folder::new();
    folder.write("plan.toml", &tiny_plan().to_toml());
    let ran = folder.run("validate plan.toml --steps 5 --json --report page.html --markdown table.md");
    assert_done(&ran);
    let compared: Value = serde_json::from_str(&ran.stdout).unwrap();
    let both = step(&compared);
    assert!(both.iter().all(|time| *time > 0.0), "{both:?}");
    // The page and the table have the figures of the JSON, and the error that follows from them.
    let [forecast, measured] = both.map(|time| Seconds::new(time).to_string());
    let error = printed_error(both);
    let cells = format!("| {forecast} | {measured} | {error} |");
    let table = folder.read("table.md");
    assert!(
        table.lines().any(|line| line.starts_with("| plan | ") && line.contains(&cells)),
        "{cells}: {table}"
    );
    let page = folder.read("page.html");
    assert!([&forecast, &measured, &error].iter().all(|cell| page.contains(cell.as_str())), "{cells}");
    assert_eq!(compared["steps"], 5);
    let [kinds, rounds] = ["error_by_kind", "noise"].map(|key| compared[key].as_f64());
    assert!(
        kinds.is_some_and(|kinds| kinds >= 0.0) && rounds.is_none(),
        "one round knows no noise: {compared}"
    );
    assert_eq!(compared["bubble_by_pipeline_rank"].as_array().unwrap().len(), 2);
    let kinds = compared["kinds"].as_array().unwrap();
    let of = |kind: &str| {
        kinds.iter().find(|kind_row| kind_row["kind"] == kind).unwrap_or_else(|| panic!("{kind}"))
    };
    // A block on each of two ranks, in each of 4 microbatches.
    assert_eq!(of("attention backward")["count"], 4.0);
    for kind in ["qkv forward", "activation backward", "optimizer update"] {
        assert!(
            ["forecast", "measured"].iter().all(|which| of(kind)["time_s"][which].as_f64().unwrap() > 0.0)
        );
    }
    let peak = |which: &str| compared["peak_memory_bytes"][which].as_f64().unwrap();
    assert!((peak("forecast") / peak("measured") - 1.0).abs() < 0.25, "{compared}");
    assert!(["Forecast step", "Measured step", "attention backward"].iter().all(|text| page.contains(text)));
}

/// On the emulator: forecasts can read the output, whatever the figures.
#[test]
fn gpus_are_measured_without_a_plan() {
    let folder = Folder::new();
    folder.write("plan.toml", &tiny_plan().to_toml());
    let ran = folder.run("calibrate --device emulated-gpus --plan plan.toml --out machine");
    if ran.stderr.contains("there is no C++ compiler") {
        return;
    }
    assert_done(&ran);
    assert!(ran.stdout.contains("launch in a graph: "), "{}", ran.stdout);
    // A failed calibration leaves no file.
    folder.write("other.toml", "model = 1");
    let refused = folder.run("calibrate --device emulated-gpus --plan other.toml --out other");
    assert!(refused.code == 2 && !folder.path("other").exists(), "{}", refused.stderr);
    if cfg!(not(feature = "cuda")) {
        let missing = folder.run("calibrate --device cuda --out missing");
        assert!(missing.code == 2 && !folder.path("missing").exists(), "{}", missing.stderr);
    }
    let kernels = folder.read("machine/kernels.csv");
    for of in [
        "gemm,m=16 n=32 k=16,bf16",
        "gemm,m=16 n=16 k=16,tf32",
        "gemm,m=32 n=32 k=32,fp8",
        "attention-backward,",
    ] {
        assert!(kernels.contains(&format!("emulated-gpu,{of}")), "{of}:\n{kernels}");
    }
    // Ops of the plan have the name of its GPU.
    let gpu = tiny_plan().cluster.node.gpu.name;
    assert!(kernels.lines().any(|row| row.starts_with(&gpu) && row.contains("qkv forward")), "{kernels}");
    let links = folder.read("machine/links.csv");
    assert!(["launch", "copy to the host", "copy to the next GPU"].iter().all(|link| links.contains(link)));
    let network = folder.read("machine/network.toml");
    assert!(["all-reduce", "all-gather", "reduce-scatter"].iter().all(|kind| network.contains(kind)));
    folder.write(
        "config.json",
        r#"{"model_type": "gpt2", "n_embd": 64, "n_head": 2, "n_layer": 2, "n_positions": 64, "vocab_size": 256}"#,
    );
    let planned = folder.run(
        "plan --model config.json --cluster machine/cluster.toml --profile machine/kernels.csv \
         --profile machine/network.toml --stack trainwright --seq 64 --global-batch 4",
    );
    assert_eq!((planned.code, planned.stderr.as_str()), (0, ""));
    for said in ["on this-machine with the network times of trainwright", "(2 GPUs)", "Best plan"] {
        assert!(planned.stdout.contains(said), "{said}: {}", planned.stdout);
    }
}

/// Of two data ranks on one emulated GPU each has half of it: with the same times of kernels, each op of the forecast takes
/// twice as long as where the rank is alone.
#[test]
fn ranks_that_share_a_gpu_are_forecast_so() {
    let folder = Folder::new();
    let mut plan = tiny_plan();
    (plan.mesh, plan.stages) = (Mesh::new(1, 1, 2), vec!["2 none".parse().unwrap()]);
    folder.write("two.toml", &plan.to_toml());
    (plan.mesh, plan.cluster.node.gpus.value) = (Mesh::new(1, 1, 1), 1);
    plan.job.global_batch /= 2;
    folder.write("one.toml", &plan.to_toml());
    let ran = folder.run("calibrate --device emulated-gpus --plan one.toml --out machine");
    if ran.stderr.contains("no C++ compiler") {
        return println!("skipped: {}", ran.stderr);
    }
    assert_done(&ran);
    let forecast = |plan: &str| {
        let ran =
            folder.run(&format!("validate {plan} --device emulated --profile machine --steps 3 --json"));
        assert_done(&ran);
        let compared: Value = serde_json::from_str(&ran.stdout).unwrap();
        assert!(step(&compared).iter().all(|time| *time > 0.0), "{compared}");
        let kinds = compared["kinds"].as_array().unwrap();
        let row = kinds.iter().find(|row| row["kind"] == "attention backward").unwrap();
        (row["count"].as_f64().unwrap(), row["time_s"]["forecast"].as_f64().unwrap())
    };
    let (one, two) = (forecast("one.toml"), forecast("two.toml"));
    assert_eq!(one.0, two.0, "each rank has as many microbatches as one that is alone");
    assert!((two.1 / one.1 - 2.0).abs() < 0.05, "{two:?} is not twice {one:?}");
}

#[test]
fn several_plans_make_a_table() {
    let folder = Folder::new();
    folder.write("one.toml", &tiny_plan().to_toml());
    let mut plan = tiny_plan();
    (plan.mesh, plan.stages) = (Mesh::new(1, 1, 2), vec!["2 none".parse().unwrap()]);
    folder.write("two.toml", &plan.to_toml());
    let ran = folder.run("validate one.toml two.toml --steps 2 --rounds 2 --markdown table.md");
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert!(ran.stdout.contains("Mean absolute error of the step time"), "{}", ran.stdout);
    let table = folder.read("table.md");
    assert!(table.contains("| one | ") && table.contains("| two | "), "{table}");
    assert!(table.contains("| noise | ops |") && table.contains("The noise is ± "), "{table}");
    let both = folder.run("validate one.toml two.toml --steps 2 --report page.html");
    assert_eq!(both.code, 2);
    assert!(both.stderr.contains("it is of one plan"), "{}", both.stderr);
}

/// The timed steps run as a graph, and one more op by op.
#[test]
fn on_a_gpu_the_steps_are_timed_that_one_would_train() {
    let folder = Folder::new();
    let mut plan = tiny_plan();
    (plan.mesh, plan.stages) = (Mesh::new(1, 1, 1), vec!["2 none".parse().unwrap()]);
    plan.cluster.node.gpus.value = 1;
    folder.write("plan.toml", &plan.to_toml());
    let ran = folder.run("validate plan.toml --device emulated --steps 3 --report page.html");
    if ran.stderr.contains("no C++ compiler") {
        return println!("skipped: {}", ran.stderr);
    }
    assert_done(&ran);
    for said in ["the median of 3 steps as they are trained", "graph: from step ", "asked its GPU for"] {
        assert!(ran.stdout.contains(said), "{said}: {}", ran.stdout);
    }
    let page = folder.read("page.html");
    assert!(["Measured step, the last one", "attention backward"].iter().all(|text| page.contains(text)));
    let ran = folder.run("validate plan.toml --device emulated --steps 3 --json");
    let compared: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(compared["steps"], 3);
    let kinds = compared["kinds"].as_array().unwrap();
    // Two blocks in each of 4 microbatches, in one step.
    let attention = kinds.iter().find(|row| row["kind"] == "attention backward").unwrap();
    assert_eq!(attention["count"], 8.0);
    // A GPU's allocations are more than the ranks hold at a time.
    let held = compared["peak_bytes_by_kind"].as_array().unwrap().iter();
    let held: f64 = held.map(|kind| kind[1]["measured"].as_f64().unwrap()).sum();
    let peak = compared["peak_memory_bytes"]["measured"].as_f64().unwrap();
    assert!(peak > held && peak < 10.0 * held, "{peak} {held}");
}
