//! What people ran and published, and what the planner answers for the same model, GPUs, batch, precision and software.
//!
//! Both are forecast with the calibration `published`. The planner searches the space that suits the model and may use all
//! of a GPU's memory that a plan exceeds with a probability of one half, as the published plans that ran did.

use std::path::Path;
use trainwright_evidence::runs::{Run, Table};
use trainwright_lower::memory::{RankMemory, plan_memory};
use trainwright_planner::{MemoryLimit, Pins, Question, Risk, Scope, Verdict, plan_within};
use trainwright_sim::costs::ClusterCosts;
use trainwright_sim::quick_forecast;
use trainwright_spec::calibration::{Calibration, DEFAULT};
use trainwright_spec::plan::{Plan, Recompute, ScheduleChoice};
use trainwright_spec::units::{Bytes, Seconds};

/// The runs of the page by their `id` in `traces/published`.
pub const RUNS: [&str; 8] = [
    "deepseek-v3-2048",
    "llama3-405b-16384",
    "llama3-405b-8192",
    "llama2-70b-2048",
    "narayanan21-175b-1024",
    "korthikanti22-t5-175b-selective-sp-64",
    "bridge-25.11-pretrain-qwen3-235b-a22b-dgx-h100-256-fp8-cs",
    "bridge-skill-qwen3-30b-hybridep-r4",
];

/// The table's head.
pub const HEAD: &str =
    "| run | measured | | arrangement | forecast | GiB of a GPU |\n| --- | --: | --- | --- | --: | --: |\n";

/// The two lines of a run: the authors' arrangement and the planner's.
///
/// # Panics
/// If the tables have no such run, or it has no plan.
pub fn row(id: &str) -> String {
    let run = run(id);
    let mut authors = run.plan().unwrap_or_else(|reason| panic!("{id}: {reason}"));
    let calibration = Calibration::from_name(DEFAULT).expect("the default is in the catalog");
    calibration.apply(&mut authors.cluster, &mut authors.stack);
    let measured = run.step_seconds().map_or_else(String::new, |seconds| Seconds::new(seconds).to_string());
    let costs = ClusterCosts::new(&authors.cluster);
    let forecast = quick_forecast(&authors, &costs).expect("a published plan has no deadlock");
    let capacity = authors.cluster.node.gpu.memory.value;
    let line = |who: &str, plan: &Plan, step: Seconds, memory: Bytes| {
        let gib = |bytes: Bytes| bytes.get() / f64::from(1u32 << 30);
        format!("{who} | {} | {step} | {:.1} of {:.1} |\n", arrangement(plan), gib(memory), gib(capacity))
    };
    let used = plan_memory(&authors).iter().map(RankMemory::total).fold(Bytes::ZERO, Bytes::max);
    let theirs = line("authors", &authors, forecast.step_time.into(), used);
    let ours = match plan_within(&question(&authors, &calibration), Scope::BEST, &|_| {}) {
        Ok(Verdict::Found(found)) => {
            let best = &found.ranked[0];
            line("planner", &best.plan, best.forecast.step_time, best.forecast.peak_memory)
        }
        Ok(_) => "planner | nothing fits | | |\n".into(),
        Err(error) => panic!("{id}: {error}"),
    };
    format!("| {id} | {measured} | {theirs}| | | {ours}")
}

fn run(id: &str) -> Run {
    let tables = ["statements.csv", "training.csv"].map(|name| {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("traces/published").join(name);
        std::fs::read(path).expect("the repository has its tables")
    });
    let tables = tables.iter().map(|text| Table::read(text.as_slice()).expect("a table of runs"));
    let mut runs = tables.flat_map(|table| table.runs().filter_map(Result::ok).collect::<Vec<_>>());
    runs.find(|run| run.id == id).unwrap_or_else(|| panic!("no run {id}"))
}

/// The question that a calibrated plan answers.
fn question(plan: &Plan, calibration: &Calibration) -> Question {
    Question {
        model: plan.model.clone(),
        cluster: plan.cluster.clone(),
        job: plan.job.clone(),
        stack: plan.stack.clone(),
        pins: Pins::default(),
        risk: Risk {
            residuals: calibration.residuals.clone(),
            memory: MemoryLimit::Risk(0.5),
            ..Risk::default()
        },
    }
}

/// A plan in short: `TP 8, PP 16, DP 128, interleaved 8, microbatch 1, zero1, recompute none`.
fn arrangement(plan: &Plan) -> String {
    let mesh = &plan.mesh;
    let mut words =
        vec![format!("TP {}", mesh.tensor), format!("PP {}", mesh.pipeline), format!("DP {}", mesh.data)];
    if mesh.context > 1 {
        words.push(format!("CP {}", mesh.context));
    }
    if mesh.expert > 1 {
        words.push(format!("EP {} {}", mesh.expert, plan.experts.dispatcher));
    }
    if let (ScheduleChoice::Named(name), 2..) = (&plan.schedule, mesh.pipeline) {
        words.push(match plan.virtual_stages {
            1 => name.clone(),
            stages => format!("{name} {stages}"),
        });
    }
    words.push(format!("microbatch {}", plan.micro_batch));
    words.push(plan.data_sharding.clone());
    words.push(format!("recompute {}", recompute(plan)));
    words.join(", ")
}

/// How many blocks recompute what.
fn recompute(plan: &Plan) -> String {
    let mut counts: Vec<(Recompute, usize)> = Vec::new();
    for choice in plan.stages.iter().flat_map(|stage| &stage.0) {
        match counts.iter_mut().find(|(known, _)| known == choice) {
            Some((_, count)) => *count += 1,
            None => counts.push((*choice, 1)),
        }
    }
    counts.sort();
    match counts[..] {
        [(choice, _)] => choice.to_string(),
        _ => counts.iter().map(|(choice, count)| format!("{count} {choice}")).collect::<Vec<_>>().join(" "),
    }
}
