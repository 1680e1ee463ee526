//! Published sweeps of one model over many layouts: the measured layout that the forecasts would have picked.

use std::collections::BTreeMap;
use trainwright_evidence::runs::Run;
use trainwright_evidence::statistics::mean;

/// Layouts of one model, batch and sequence on one number of GPUs, all measured.
pub struct Sweep {
    /// Model, sequence and GPUs.
    pub name: String,
    /// How many layouts were measured.
    pub layouts: usize,
    /// The layout with the least forecast.
    pub picked: String,
    /// The layout with the least measured time.
    pub best: String,
    /// By which part of the least measured time the picked one's is above it.
    pub loss: f64,
}

/// The sweeps among the runs whose names begin with `aleph-`; `forecasts` are steps in seconds by name, of runs that fit.
pub fn sweeps(runs: &[Run], forecasts: &BTreeMap<String, f64>) -> Vec<Sweep> {
    let mut measured: BTreeMap<String, Vec<(&str, f64, f64)>> = BTreeMap::new();
    for run in runs.iter().filter(|run| run.id.starts_with("aleph-")) {
        let (Some(step), Some(forecast)) = (run.step_seconds(), forecasts.get(&run.id)) else { continue };
        let size = |size: Option<usize>| size.map_or_else(String::new, |size| size.to_string());
        let [sequence, gpus, batch] = [run.seq_len, run.gpus, run.global_batch].map(size);
        let name = format!("{}, {batch} sequences of {sequence} tokens, {gpus} GPUs", run.model_name);
        measured.entry(name).or_default().push((&run.id, step, *forecast));
    }
    measured.into_iter().map(|(name, layouts)| sweep(name, &layouts)).collect()
}

fn sweep(name: String, layouts: &[(&str, f64, f64)]) -> Sweep {
    let least = |of: fn(&(&str, f64, f64)) -> f64| {
        layouts.iter().min_by(|a, b| of(a).total_cmp(&of(b))).expect("a sweep has layouts")
    };
    let (best, picked) = (least(|layout| layout.1), least(|layout| layout.2));
    // aleph-13b-2048-64-t1p1m1-…: model, sequence and GPUs come first.
    let layout = |id: &str| id.splitn(5, '-').last().unwrap_or(id).to_string();
    Sweep {
        name,
        layouts: layouts.len(),
        picked: layout(picked.0),
        best: layout(best.0),
        loss: picked.1 / best.1 - 1.0,
    }
}

/// The mean of their losses.
pub fn mean_loss(sweeps: &[Sweep]) -> f64 {
    mean(&sweeps.iter().map(|sweep| sweep.loss).collect::<Vec<_>>())
}

/// It in a line.
pub fn row(sweep: &Sweep) -> String {
    let Sweep { name, layouts, picked, best, loss } = sweep;
    format!("| {name} | {layouts} | {picked} | {best} | {:.1} % |\n", 100.0 * loss)
}
