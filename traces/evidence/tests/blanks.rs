//! Rows that leave their recomputation open.

use trainwright_evidence::forecasts::forecasts;
use trainwright_evidence::runs::{Outcome, Prediction, Run};
use trainwright_lower::memory::plan_memory;
use trainwright_spec::calibration::Calibration;

/// 32 blocks of width 4,096 in two stages, 64 sequences a microbatch: more than a GPU of 80 GB without recomputation.
fn run() -> Run {
    Run {
        model_name: "large microbatches".into(),
        layers: Some(32),
        hidden: Some(4096),
        heads: Some(32),
        vocab: Some(50_304),
        seq_len: Some(2048),
        gpu: "a100-80gb-sxm".into(),
        gpus: Some(8),
        tp: Some(4),
        pp: Some(2),
        dp: Some(1),
        precision: "bf16".into(),
        micro_batch: Some(64),
        global_batch: Some(128),
        framework: "Megatron-LM".into(),
        date: "2024-06".into(),
        ..Run::default()
    }
}

fn forecast(run: Run) -> Prediction {
    forecasts(&[Ok(run)], &Calibration::default()).remove(0).unwrap()
}

#[test]
fn a_row_that_says_nothing_of_recomputation_runs_out_of_memory_only_if_it_does_with_all_of_it() {
    let says = "fits only with recomputation, which the row does not state";
    let check = |run: Run, expected: (Outcome, bool)| {
        let found = forecast(run);
        let remarked = found.remark.as_ref().is_some_and(|remark| remark.ends_with(says));
        assert_eq!((found.outcome, remarked), expected, "{:?}", found.remark);
    };
    let stated = |recompute: &str| Run { recompute: recompute.into(), ..run() };
    check(stated("none"), (Outcome::OutOfMemory, false));
    check(stated("full"), (Outcome::Fits, false));
    check(run(), (Outcome::Fits, true));
    // Nothing helps.
    check(Run { seq_len: Some(8192), ..run() }, (Outcome::OutOfMemory, false));
    // It fits as it is.
    check(Run { micro_batch: Some(1), ..run() }, (Outcome::Fits, false));
    // Of this software a blank is known to mean none.
    check(Run { framework: "nanotron".into(), ..run() }, (Outcome::OutOfMemory, false));
}

#[test]
fn stages_that_a_tuner_chose_recompute_the_fewest_blocks_that_fit() {
    let tuned = Run { notes: "heterogeneous per-stage plan in a file (ckpt per stage)".into(), ..run() };
    let completed = tuned.completed().unwrap();
    let cells: Vec<usize> = completed.run.recompute["full ".len()..]
        .split(' ')
        .map(|cell| cell.split('/').next().unwrap().parse().unwrap())
        .collect();
    let fits = |cells: &[usize]| {
        let text: Vec<String> = cells.iter().map(|full| format!("{full}/16")).collect();
        let run = Run { recompute: format!("full {}", text.join(" ")), ..tuned.clone() };
        let plan = run.completed().unwrap().run.plan().unwrap();
        let room = plan.cluster.node.gpu.memory.value;
        plan_memory(&plan).iter().map(|rank| rank.total() <= room).collect::<Vec<_>>()
    };
    assert!(cells.iter().all(|full| (1..16).contains(full)), "{cells:?}");
    assert_eq!(fits(&cells), [true, true]);
    let fewer: Vec<usize> = cells.iter().map(|full| full - 1).collect();
    assert_eq!(fits(&fewer), [false, false]);

    // Other notes leave the row as it is.
    assert_eq!(run().completed().unwrap().run.recompute, "");
}
