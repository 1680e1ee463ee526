//! How far forecasts of loops with generation are from measured ones: phase by phase, in the direction in which a step's time
//! changes with more GPUs, and beside hand-overs of weights whose times are printed as ranges.

use crate::runs::{NoPlan, PHASE_COLUMNS, Prediction, Run, Table};
use std::collections::BTreeMap;
use trainwright_sim::rl::sync_time;
use trainwright_spec::cluster::Cluster;
use trainwright_spec::job::Job;
use trainwright_spec::mesh::Mesh;
use trainwright_spec::model::preset::preset;
use trainwright_spec::plan::{Plan, Recompute, StageBlocks};
use trainwright_spec::precision::Precision;
use trainwright_spec::rl::{Controller, Mode, ResponseLengths, RlJob, RlPlan, SyncMethod, algorithm};
use trainwright_spec::serving::{Engine, ServingPlan};
use trainwright_spec::stack::Stack;
use trainwright_spec::units::Seconds;

/// A time of a row: measured and forecast.
#[derive(Debug, Clone, PartialEq)]
pub struct LoopTime {
    /// The row's source.
    pub source: String,
    /// `step`, or the column of a phase.
    pub figure: &'static str,
    /// As measured.
    pub measured: Seconds,
    /// As forecast.
    pub forecast: Seconds,
}

/// Every measured time of a step and of its phases that has a forecast.
pub fn loop_times(
    table: &Table,
    runs: &[Result<Run, NoPlan>],
    predictions: &[Result<Prediction, NoPlan>],
) -> Vec<LoopTime> {
    let measured = PHASE_COLUMNS.map(|(column, _)| table.column(column));
    let mut times = Vec::new();
    for (index, pair) in runs.iter().zip(predictions).enumerate() {
        let (Ok(run), Ok(prediction)) = pair else { continue };
        let Some(figures) = &prediction.rl else { continue };
        let mut add = |figure: &'static str, measured: Option<f64>, forecast: f64| {
            let Some(measured) = measured.filter(|seconds| *seconds > 0.0) else { return };
            let source = run.family();
            times.push(LoopTime {
                source,
                figure,
                measured: Seconds::new(measured),
                forecast: Seconds::new(forecast),
            });
        };
        if !run.outcome.contains("weight sync") {
            add("step", run.measured_step_time_s, prediction.step_seconds);
        }
        for (at, (column, _)) in PHASE_COLUMNS.iter().enumerate() {
            if let Some([time, ..]) = figures.phases[at] {
                add(column, measured[at].get(index).and_then(|cell| cell.parse().ok()), time);
            }
        }
    }
    times
}

/// The errors of one source's figure.
#[derive(Debug, Clone, PartialEq)]
pub struct LoopErrors {
    /// The source.
    pub source: String,
    /// The figure.
    pub figure: &'static str,
    /// How many rows.
    pub rows: usize,
    /// Median of the sizes of forecast over measured less one, in percent.
    pub median_percent: f64,
    /// Their mean with sign.
    pub signed_percent: f64,
}

/// Errors by source and figure.
pub fn loop_errors(times: &[LoopTime]) -> Vec<LoopErrors> {
    let mut groups: BTreeMap<(&str, &'static str), Vec<f64>> = BTreeMap::new();
    for time in times {
        let error = 100.0 * (time.forecast / time.measured - 1.0);
        groups.entry((&time.source, time.figure)).or_default().push(error);
    }
    let of = |((source, figure), errors): ((&str, &'static str), Vec<f64>)| LoopErrors {
        source: source.into(),
        figure,
        rows: errors.len(),
        median_percent: median(errors.iter().map(|error| error.abs()).collect()),
        signed_percent: errors.iter().sum::<f64>() / errors.len() as f64,
    };
    groups.into_iter().map(of).collect()
}

/// The middle one, or the mean of the two in the middle; of at least one.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let half = values.len() / 2;
    if values.len() % 2 == 1 { values[half] } else { 0.5 * (values[half - 1] + values[half]) }
}

/// Two rows that differ in their GPUs and how the phases share them.
#[derive(Debug, Clone, PartialEq)]
pub struct ScalingPair {
    /// The row with fewer GPUs, and the one with more.
    pub rows: [String; 2],
    /// Time with more GPUs over that with fewer, as measured.
    pub measured: f64,
    /// The same as forecast.
    pub forecast: f64,
}

impl ScalingPair {
    /// Whether both say that a step gets shorter, or both that it does not.
    pub fn is_right(&self) -> bool {
        (self.measured < 1.0) == (self.forecast < 1.0)
    }
}

/// All pairs of rows of one source with the same model, kind of GPU, samples and limits of lengths, but more GPUs. Rows that have
/// hours alone count as well as steps: both are of the same samples.
pub fn scaling_pairs(
    table: &Table,
    runs: &[Result<Run, NoPlan>],
    predictions: &[Result<Prediction, NoPlan>],
) -> Vec<ScalingPair> {
    let hours = table.column("total_time_h");
    let known: Vec<(&Run, f64, f64)> = runs
        .iter()
        .zip(predictions)
        .enumerate()
        .filter_map(|(index, pair)| {
            let (Ok(run), Ok(prediction)) = pair else { return None };
            prediction.rl.as_ref()?;
            let hours = hours.get(index).and_then(|cell| cell.parse().ok());
            let measured = run.measured_step_time_s.or(hours)?;
            Some((run, measured, prediction.step_seconds))
        })
        .collect();
    let alike = |one: &Run, other: &Run| {
        let key = |run: &Run| {
            let source = run.id.split('-').take(3).collect::<Vec<_>>().join("-");
            let names = [source, run.model_name.clone(), run.gpu.clone(), run.precision.clone()];
            let sizes = [run.prompts_per_step, run.rollouts_per_prompt, run.global_batch];
            (names, sizes, [run.response_len, run.seq_len], run.measured_step_time_s.is_some())
        };
        key(one) == key(other)
    };
    let mut pairs = Vec::new();
    for (few, measured, forecast) in &known {
        for (more, with_more, forecast_of_more) in &known {
            if few.gpus < more.gpus && few.gpus.is_some() && alike(few, more) {
                pairs.push(ScalingPair {
                    rows: [few.id.clone(), more.id.clone()],
                    measured: with_more / measured,
                    forecast: forecast_of_more / forecast,
                });
            }
        }
    }
    pairs
}

/// A hand-over of weights whose time is printed as a range.
#[derive(Debug, Clone, PartialEq)]
pub struct SyncAnchor {
    /// The model that is forecast.
    pub model: &'static str,
    /// Gigabytes of weights as printed.
    pub gigabytes: f64,
    /// The range as printed.
    pub printed: [Seconds; 2],
    /// The forecast.
    pub forecast: Seconds,
}

impl SyncAnchor {
    /// Whether the forecast is within the range.
    pub fn is_within(&self) -> bool {
        self.printed[0] <= self.forecast && self.forecast <= self.printed[1]
    }
}

/// NeMo-RL's times of `nccl_reshard` at 400 Gb/s for each rank (docs/design-docs/nccl-reshard-refit.md), beside models of the catalog
/// with as many weights. The layout is printed for the largest alone: pipeline 16 × expert 16 to tensor 32; those of its recipes
/// stand for the others.
pub fn sync_anchors() -> Vec<SyncAnchor> {
    let of = |model, gigabytes, printed: [f64; 2], mesh: Mesh, nodes: usize, engine: usize| SyncAnchor {
        model,
        gigabytes,
        printed: printed.map(Seconds::new),
        forecast: resharded(model, mesh, nodes, engine),
    };
    let experts = |mesh: Mesh, expert: usize| Mesh { expert, expert_tensor: Some(1), ..mesh };
    vec![
        of("qwen3-30b-a3b", 63.2, [0.84, 1.60], experts(Mesh::new(1, 1, 16), 8), 2, 2),
        of("qwen3-235b-a22b", 470.2, [2.31, 2.73], experts(Mesh::new(4, 8, 4), 16), 16, 8),
        of("deepseek-v3", 1342.0, [3.27, 3.46], experts(Mesh::new(1, 16, 16), 16), 32, 32),
    ]
}

/// The time of a hand-over from nodes of eight H100 to as many others.
fn resharded(model: &str, mesh: Mesh, nodes: usize, engine: usize) -> Seconds {
    let model = preset(model).expect("the catalog has the model");
    let cluster = Cluster::from_name(&format!("dgx-h100:{nodes}")).expect("the catalog has the node");
    let layers = model.layers();
    let of_stage = |stage: usize| layers / mesh.pipeline + usize::from(stage < layers % mesh.pipeline);
    let stages =
        (0..mesh.pipeline).map(|stage| StageBlocks(vec![Recompute::None; of_stage(stage)])).collect();
    let stack = Stack::from_name("megatron-core").expect("the catalog has the stack");
    let job = Job::new(2048, mesh.data * mesh.pipeline, Precision::Bf16);
    let actor = Plan {
        sequence_parallel: mesh.tensor > 1,
        mesh,
        stages,
        data_sharding: "zero1".into(),
        ..Plan::plain(model, stack, cluster.clone(), job)
    };
    let vllm = Engine::from_name("vllm-v1").expect("the catalog has the engine");
    sync_time(&RlPlan {
        job: RlJob {
            algorithm: algorithm("grpo").expect("it is an algorithm"),
            prompts: 1,
            rollouts: 1,
            prompt: 1,
            responses: ResponseLengths::new(1.0, 1),
            mini_batches: 1,
            epochs: 1,
            engine_log_probs: false,
        },
        mode: Mode::OneStepOff,
        critic: None,
        actor,
        pack: 1,
        engine: ServingPlan::new(vllm).with_tensor(engine),
        generation: cluster,
        sync: SyncMethod::Reshard,
        controller: Controller::plain(),
        padded: 1,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directions_and_errors_are_those_of_the_numbers() {
        let pair = |measured: f64, forecast: f64| ScalingPair {
            rows: [String::new(), String::new()],
            measured,
            forecast,
        };
        assert!(pair(0.5, 0.9).is_right() && pair(1.2, 1.0).is_right());
        assert!(!pair(0.9, 1.1).is_right());
        let time = |measured: f64, forecast: f64| LoopTime {
            source: "one".into(),
            figure: "step",
            measured: Seconds::new(measured),
            forecast: Seconds::new(forecast),
        };
        // 10 % too long, 30 % too short, 20 % too short.
        let errors = loop_errors(&[time(10.0, 11.0), time(10.0, 7.0), time(10.0, 8.0)]);
        assert_eq!(errors.len(), 1);
        assert!((errors[0].median_percent - 20.0).abs() < 1e-9, "{errors:?}");
        assert!((errors[0].signed_percent + 40.0 / 3.0).abs() < 1e-9, "{errors:?}");
    }
}
