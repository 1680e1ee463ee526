//! What is measured can be written, read and forecast with.

use crate::drafts::Draft;
use trainwright_executor::{Calibrated, Grid, Measuring, Over, calibrate, on_machine};
use trainwright_lower::lower_every_rank;
use trainwright_spec::cluster::Cluster;
use trainwright_spec::plan::Plan;
use trainwright_spec::program::{Kernel, Work};
use trainwright_spec::units::Seconds;

/// This machine, measured for `ranks` ranks of a plan.
fn measured(ranks: usize, over: Over, plan: &Plan) -> Calibrated {
    let plans = std::slice::from_ref(plan);
    let mut parts = Vec::new();
    let measuring = Measuring { ranks, over, grid: Grid::None, plans };
    let measured = calibrate(measuring, &mut |done, all| parts.push((done, all))).unwrap();
    assert_eq!(parts, [0, 1, 2, 3].map(|done| (done, 4)), "three rounds of the plan's layers, and the rest");
    measured
}

#[test]
fn every_op_of_a_plan_is_measured_with_its_shape() {
    let plan = Draft { mesh: [2, 1, 1], ..Draft::of("llama") }.plan();
    let measured = measured(2, Over::Threads, &plan);
    let profile = measured.cluster.node.gpu.profile.clone().unwrap();
    let known = |kind: &str, kernel: &Kernel| {
        profile.ops.iter().any(|row| row.op == kind && row.measured.kernel == *kernel)
    };
    let program = lower_every_rank(&plan);
    let ops = program
        .segments
        .iter()
        .filter(|segment| segment.name.contains("stage"))
        .flat_map(|segment| &segment.ops);
    let mut found = 0;
    for op in ops {
        if let Work::Compute(kernel) = &op.work {
            assert!(known(&op.kind(), kernel), "{} {kernel:?}", op.kind());
            found += 1;
        }
    }
    assert!(found > 50, "{found}");
    let cores = measured.cluster.node.cores.as_ref().unwrap();
    assert!(cores.steps.adds.iter().all(|row| row.time > Seconds::ZERO));
    assert!(!cores.jitter.is_empty() && cores.jitter.is_sorted());
    let mean = cores.jitter.iter().sum::<f64>() / cores.jitter.len() as f64;
    assert!((mean - 1.0).abs() < 1e-9, "{mean}");
}

#[test]
fn a_measured_machine_is_written_and_read_back() {
    let plan = Draft::of("gpt").plan();
    let measured = measured(4, Over::Tcp, &plan);
    let gpu = &measured.cluster.node.gpu;
    let profile = gpu.profile.as_ref().unwrap();
    let table = profile.to_csv(&gpu.name, ["2026-11-21", "a version"]);
    let text = toml::to_string(&measured.cluster).unwrap();
    let read = Cluster::from_toml(&text, "machine.toml")
        .unwrap()
        .with_device_profile(&table, "kernels.csv")
        .unwrap();
    let again = read.node.gpu.profile.as_ref().unwrap();
    assert_eq!(again.ops.len(), profile.ops.len());
    let times = |ops: &[trainwright_spec::cluster::MeasuredOp]| -> f64 {
        ops.iter().map(|row| row.measured.time.get()).sum()
    };
    assert!((times(&again.ops) / times(&profile.ops) - 1.0).abs() < 1e-6);
    let placed = on_machine(&Draft { mesh: [2, 2, 1], ..Draft::of("gpt") }.plan(), &read).unwrap();
    assert_eq!((placed.cluster.node.gpus.value, placed.stack.name.as_str()), (4, "trainwright"));
}
