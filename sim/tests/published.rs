//! Forecasts against step times that others measured and published.
//!
//! Nothing in the costs was fitted to these rows.

#[path = "published/sequence_parallel.rs"]
mod sequence_parallel;

use serde::Deserialize;
use trainwright_sim::costs::ClusterCosts;
use trainwright_sim::forecast;
use trainwright_spec::cluster::Cluster;
use trainwright_spec::job::Job;
use trainwright_spec::mesh::Mesh;
use trainwright_spec::model::Model;
use trainwright_spec::model::preset::preset;
use trainwright_spec::plan::{Plan, Recompute, StageBlocks};
use trainwright_spec::precision::Precision;
use trainwright_spec::stack::Stack;

/// The columns of `traces/published/training.csv` that these rows need.
#[derive(Debug, Deserialize)]
struct Row {
    id: String,
    layers: usize,
    hidden: usize,
    seq_len: usize,
    gpus: usize,
    tp: usize,
    pp: usize,
    dp: usize,
    vp: Option<usize>,
    sequence_parallel: String,
    recompute: String,
    micro_batch: usize,
    global_batch: usize,
    measured_step_time_s: Option<f64>,
}

fn model(row: &Row) -> Model {
    let names = ["megatron-22b", "megatron-175b", "megatron-530b", "megatron-1t"];
    let models = names.map(|name| preset(name).unwrap());
    models.into_iter().find(|model| model.hidden == row.hidden && model.layers() == row.layers).unwrap()
}

fn plan(row: &Row) -> Plan {
    let recompute = Recompute::ALL.into_iter().find(|choice| choice.name() == row.recompute).unwrap();
    let virtual_stages = row.vp.unwrap_or(1);
    let stages = row.pp * virtual_stages;
    assert_eq!(row.layers % stages, 0, "{}: equal stages", row.id);
    let plan = Plan {
        micro_batch: row.micro_batch,
        schedule: if virtual_stages > 1 { "interleaved" } else { "1f1b" }.into(),
        virtual_stages,
        sequence_parallel: row.sequence_parallel == "yes",
        stages: vec![StageBlocks(vec![recompute; row.layers / stages]); stages],
        mesh: Mesh::new(row.tp, row.pp, row.dp),
        ..Plan::plain(
            model(row),
            Stack::from_name("megatron-lm-2022").unwrap(),
            Cluster::from_name(&format!("dgx-a100:{}", row.gpus / 8)).unwrap(),
            Job { optimizer: "adam".into(), ..Job::new(row.seq_len, row.global_batch, Precision::Fp16) },
        )
    };
    plan.check(&row.id).unwrap();
    plan
}

/// The errors that we have today, in percent.
const TODAY: [(&str, f64); 9] = [
    ("korthikanti22-t5-22b-full-8", -2.2),
    ("korthikanti22-t5-22b-selective-sp-8", -5.6),
    ("korthikanti22-t5-175b-full-64", -3.1),
    ("korthikanti22-t5-175b-selective-sp-64", -5.6),
    ("korthikanti22-t5-530b-full-280", -5.7),
    ("korthikanti22-t5-530b-selective-sp-280", -8.9),
    ("korthikanti22-t5-1t-full-512", -3.8),
    ("korthikanti22-t5-1t-selective-sp-512", -4.6),
    ("korthikanti22-text-530b-selective-sp-2240", -10.4),
];

/// How much worse than today an error may get, in points of percent, before the test fails.
const MARGIN: f64 = 0.3;

#[test]
fn step_times_of_korthikanti_2022_are_met_within_15_percent() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../traces/published/training.csv");
    // Rows of other sources leave cells empty that these have.
    let rows = csv::Reader::from_path(path).unwrap().into_deserialize().filter_map(Result::ok);
    let (mut tried, mut worse) = (0, Vec::new());
    for row in rows.filter(|row: &Row| row.id.starts_with("korthikanti22")) {
        let Some(measured) = row.measured_step_time_s else { continue };
        let plan = plan(&row);
        let (forecast, _) = forecast(&plan, &ClusterCosts::new(&plan.cluster)).unwrap();
        let error = forecast.step_time.get() / measured - 1.0;
        println!(
            "{:40} measured {measured:6.2} s, forecast {:6.2} s, {:+5.1} %; peak {:.1} GiB, bubble {:.1} %",
            row.id,
            forecast.step_time.get(),
            100.0 * error,
            forecast.peak_memory.as_gib(),
            100.0 * forecast.report.mean.bubble_share,
        );
        let (_, today) = TODAY.iter().find(|(id, _)| *id == row.id).expect("a row of TODAY");
        if error.abs() > 0.15 || 100.0 * error.abs() > today.abs() + MARGIN {
            worse.push(format!("{}: {:+.1} % after {today:+.1} %", row.id, 100.0 * error));
        }
        tried += 1;
    }
    assert_eq!(tried, TODAY.len());
    assert!(worse.is_empty(), "beyond 15 % or worse than today:\n{}", worse.join("\n"));
}
