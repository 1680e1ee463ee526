//! Tables of measured runs, kernels, collectives and requests.

use super::{CSV, Target, fate, reader, rows};
use crate::files;
use trainwright_evidence::forecasts::forecasts;
use trainwright_evidence::kernels::KernelTable;
use trainwright_evidence::peers;
use trainwright_evidence::runs::Table;
use trainwright_evidence::serving::ServingTable;
use trainwright_spec::calibration::Calibration;
use trainwright_spec::library::Library;

/// The tables of kernels in the repository.
const KERNELS: [&str; 10] = [
    "custom_allreduce",
    "decode_attention",
    "gemm",
    "linear_attention",
    "mla",
    "moe",
    "moe_all_to_all",
    "prefill_attention",
    "sparse_attention",
    "gemm",
];

pub fn targets() -> Vec<Target> {
    vec![
        Target { inputs: 150, ..reader("runs", runs, CSV, &["zero2", "interleaved"], forecast_runs) },
        Target { inputs: 500, ..reader("kernels", kernels, CSV, &[], forecast_kernels) },
        Target { inputs: 120, ..reader("serving", serving, CSV, &[], forecast_serving) },
        reader(
            "peers",
            || vec![rows("traces/published/peers.csv", 900)],
            CSV,
            &[],
            |bytes| fate(peers::read(bytes)),
        ),
    ]
}

fn runs() -> Vec<Vec<u8>> {
    let published = rows("traces/published/training.csv", 400);
    let tuned = rows("traces/published/post_training/training.csv", 30);
    vec![files::RUNS.into(), published, tuned]
}

/// Rows of a damaged table at most that are simulated.
const SIMULATED: usize = 4;

fn forecast_runs(bytes: &[u8]) -> Result<(), String> {
    let table = Table::read(bytes).map_err(|error| error.to_string())?;
    let runs: Vec<_> = table.runs().collect();
    let mut plans = Vec::new();
    for run in &runs {
        let planned = run.as_ref().map_err(ToString::to_string);
        let plan =
            planned.and_then(|run| run.completed().and_then(|run| run.run.plan()).map_err(|e| e.to_string()));
        plans.push(plan);
    }
    let small = |plan: &Result<trainwright_spec::plan::Plan, String>| {
        plan.as_ref()
            .is_ok_and(|plan| plan.microbatches() * plan.model.layers() < 2000 && plan.mesh.ranks() < 4096)
    };
    let some: Vec<_> =
        runs.iter().zip(&plans).filter(|(_, plan)| small(plan)).map(|(run, _)| run.clone()).collect();
    let calibration = Calibration::from_name("published").unwrap();
    forecasts(&some[..some.len().min(SIMULATED)], &calibration);
    fate(plans.into_iter().collect::<Result<Vec<_>, _>>()).or_else(|fault| match fault.lines().count() {
        1 => Ok(()),
        _ => Err(fault),
    })
}

fn kernels() -> Vec<Vec<u8>> {
    KERNELS.iter().map(|name| rows(&format!("traces/published/inference/{name}.csv"), 100)).collect()
}

fn forecast_kernels(bytes: &[u8]) -> Result<(), String> {
    let table = KernelTable::read(bytes).map_err(|error| error.to_string())?;
    for forecast in table.forecasts(Library::all()).into_iter().flatten() {
        assert!(forecast.time.get().is_finite(), "{forecast:?}");
    }
    Ok(())
}

fn serving() -> Vec<Vec<u8>> {
    vec![rows("traces/published/inference/serving.csv", 150)]
}

/// A case with more tokens than this is not simulated here: it is allowed, and takes long.
const MOST_TOKENS: usize = 1 << 20;

fn forecast_serving(bytes: &[u8]) -> Result<(), String> {
    let table = ServingTable::read(bytes).map_err(|error| error.to_string())?;
    for row in 0..table.len().min(2) {
        let size = |column: &str| table.text(row, column).trim().parse::<f64>().unwrap_or(1.0).max(1.0);
        let tokens = ["input_len", "output_len"].map(size).into_iter().sum::<f64>()
            * size("concurrency").max(size("batch")).max(size("request_rate"));
        if let Ok(case) = table.case(row)
            && tokens < MOST_TOKENS as f64
        {
            let _ = trainwright_evidence::serving::forecast(&case);
        }
    }
    Ok(())
}
