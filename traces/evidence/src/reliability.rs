//! Whether ranges mean what they say: how often measured values lie inside, how often runs fit, and what a choice by the
//! forecast costs.

use crate::runs::{NoPlan, Outcome, Prediction, Run};
use crate::statistics::{mean, median};
use std::collections::BTreeMap;

/// A row of a table with its forecast, or why there is none.
pub type Forecast<'a> = (&'a Result<Run, NoPlan>, &'a Result<Prediction, NoPlan>);

/// A run with its forecast.
type Row<'a> = (&'a Run, &'a Prediction);

/// The nominal coverages of a reliability table.
pub const LEVELS: [f64; 3] = [0.5, 0.8, 0.9];

/// How often measured values lie inside of ranges.
#[derive(Debug, Clone, PartialEq)]
pub struct Coverage {
    /// What the runs have in common.
    pub slice: String,
    /// Runs.
    pub runs: usize,
    /// For each of `LEVELS` the fraction of runs inside of the range with that nominal coverage.
    pub inside: [f64; LEVELS.len()],
    /// The median over runs of the upper end over the lower end of the range of 80 %.
    pub width: f64,
}

/// How often runs fit that fit with some probability.
#[derive(Debug, Clone, PartialEq)]
pub struct Fitting {
    /// The least and the largest probability.
    pub between: (f64, f64),
    /// Runs.
    pub runs: usize,
    /// The mean of their probabilities.
    pub expected: f64,
    /// The fraction that fitted.
    pub fitted: f64,
}

/// What choosing by the forecast costs in sweeps: the measured time of the layout with the least forecast over the least measured
/// time, less one.
#[derive(Debug, Clone, PartialEq)]
pub struct Regret {
    /// Sweeps.
    pub sweeps: usize,
    /// Mean over sweeps.
    pub mean: f64,
    /// Median over sweeps.
    pub median: f64,
}

/// How often the order of two runs of a sweep is forecast right, by how far their forecasts differ.
#[derive(Debug, Clone, PartialEq)]
pub struct Order {
    /// The least and the largest difference: the longer forecast over the shorter one, less one.
    pub between: (f64, f64),
    /// Pairs of runs.
    pub pairs: usize,
    /// The fraction of which the run with the shorter forecast took less time.
    pub right: f64,
}

/// The quantity of a coverage, by its place in `Prediction::places`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Of {
    /// The step time.
    Time,
    /// The peak memory.
    Memory,
}

/// Rows that have a forecast.
pub fn judged<'a>(rows: &[Forecast<'a>]) -> Vec<Row<'a>> {
    rows.iter()
        .filter_map(|(run, prediction)| Some((run.as_ref().ok()?, prediction.as_ref().ok()?)))
        .collect()
}

/// The coverage of all runs and of each slice with at least `fewest` runs.
pub fn coverages(rows: &[Row], of: Of, fewest: usize) -> Vec<Coverage> {
    let mut slices: Vec<(String, Vec<Row>)> = Vec::new();
    let mut add = |name: &str, belongs: &dyn Fn(&Row) -> bool| {
        let rows: Vec<Row> = rows.iter().filter(|row| belongs(row)).copied().collect();
        slices.push((name.into(), rows));
    };
    add("all", &|_| true);
    for quality in ["A", "B", "C"] {
        add(&format!("quality {quality}"), &|(run, _)| run.quality == quality);
    }
    add("mixtures of experts", &|(_, prediction)| prediction.traits.kind.experts);
    add("tensor groups over nodes", &|(_, prediction)| prediction.traits.kind.spread.tensor_over_nodes);
    add("context parallelism", &|(_, prediction)| prediction.traits.kind.spread.context);
    add("one node", &|(_, prediction)| !prediction.traits.kind.spread.several_nodes);
    add("several nodes", &|(_, prediction)| prediction.traits.kind.spread.several_nodes);
    let mut gpus: Vec<&str> = rows.iter().map(|(run, _)| run.gpu.as_str()).collect();
    gpus.sort_unstable();
    gpus.dedup();
    for gpu in gpus {
        add(gpu, &|(run, _)| run.gpu == gpu);
    }
    let coverage = |(name, rows): (String, Vec<Row>)| Coverage::new(name, &rows, of);
    slices.into_iter().filter_map(coverage).filter(|coverage| coverage.runs >= fewest).collect()
}

impl Coverage {
    fn new(slice: String, rows: &[Row], of: Of) -> Option<Self> {
        let placed = rows.iter().filter_map(|(_, prediction)| {
            let (place, band) = match of {
                Of::Time => (prediction.places[0], prediction.band),
                Of::Memory => (prediction.places[1], prediction.memory_band),
            };
            Some((place?, band?))
        });
        let placed: Vec<(f64, (f64, f64))> = placed.collect();
        if placed.is_empty() {
            return None;
        }
        let inside = |level: f64| {
            let held = placed.iter().filter(|(place, _)| (2.0 * place - 1.0).abs() <= level);
            held.count() as f64 / placed.len() as f64
        };
        let widths: Vec<f64> = placed.iter().map(|(_, (low, high))| high / low).collect();
        Some(Self { slice, runs: placed.len(), inside: LEVELS.map(inside), width: median(&widths) })
    }
}

/// Runs by their probability of fitting, in the given ranges of it.
pub fn fitting(rows: &[Row], bounds: &[f64]) -> Vec<Fitting> {
    let known = rows.iter().filter_map(|(run, prediction)| Some((prediction.fits_with?, run.outcome()?)));
    let known: Vec<(f64, Outcome)> = known.collect();
    let between = |pair: &[f64]| {
        let (low, high) = (pair[0], pair[1]);
        let inside =
            |(probability, _): &&(f64, Outcome)| *probability >= low && (*probability < high || high == 1.0);
        let inside: Vec<&(f64, Outcome)> = known.iter().filter(inside).collect();
        let fitted = inside.iter().filter(|(_, outcome)| *outcome == Outcome::Fits).count();
        let probabilities: Vec<f64> = inside.iter().map(|(probability, _)| *probability).collect();
        (!inside.is_empty()).then(|| Fitting {
            between: (low, high),
            runs: inside.len(),
            expected: mean(&probabilities),
            fitted: fitted as f64 / inside.len() as f64,
        })
    };
    bounds.windows(2).filter_map(between).collect()
}

/// The forecast and measured times of each sweep.
fn sweeps(rows: &[Row], one_node: bool) -> BTreeMap<String, Vec<(f64, f64)>> {
    let mut sweeps: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
    for (run, prediction) in rows.iter().filter(|(_, row)| !one_node || !row.traits.kind.spread.several_nodes)
    {
        if let Some(measured) = run.step_seconds() {
            sweeps.entry(run.sweep()).or_default().push((prediction.step_seconds, measured));
        }
    }
    sweeps
}

/// Pairs of runs of a sweep by how far their forecasts differ, in the given ranges of it. Each sweep weighs the same, however many
/// pairs it has.
pub fn orders(rows: &[Row], bounds: &[f64]) -> Vec<Order> {
    let mut pairs: Vec<(f64, f64, f64)> = Vec::new();
    for sweep in sweeps(rows, false).values() {
        let of_sweep = (0..sweep.len()).flat_map(|one| (one + 1..sweep.len()).map(move |other| (one, other)));
        let of_sweep: Vec<(f64, f64)> = of_sweep
            .map(|(one, other)| (sweep[one], sweep[other]))
            .filter(|(one, other)| one.1 != other.1 && one.0 != other.0)
            .map(|(one, other)| {
                let apart = one.0.max(other.0) / one.0.min(other.0) - 1.0;
                (apart, f64::from(u8::from((one.0 < other.0) == (one.1 < other.1))))
            })
            .collect();
        let weight = 1.0 / of_sweep.len() as f64;
        pairs.extend(of_sweep.into_iter().map(|(apart, right)| (apart, right, weight)));
    }
    let between = |range: &[f64]| {
        let inside = pairs.iter().filter(|(apart, ..)| (range[0]..range[1]).contains(apart));
        let inside: Vec<&(f64, f64, f64)> = inside.collect();
        let all: f64 = inside.iter().map(|(.., weight)| weight).sum();
        let right: f64 = inside.iter().map(|(_, right, weight)| right * weight).sum();
        let order = || Order { between: (range[0], range[1]), pairs: inside.len(), right: right / all };
        (!inside.is_empty()).then(order)
    };
    bounds.windows(2).filter_map(between).collect()
}

/// The regret over sweeps of at least `fewest` runs; of all, or of those on one node.
pub fn regret(rows: &[Row], fewest: usize, one_node: bool) -> Option<Regret> {
    let sweeps = sweeps(rows, one_node);
    let lost = |sweep: &Vec<(f64, f64)>| {
        let chosen = sweep.iter().min_by(|a, b| a.0.total_cmp(&b.0))?.1;
        let best = sweep.iter().map(|(_, measured)| *measured).fold(f64::INFINITY, f64::min);
        Some(chosen / best - 1.0)
    };
    let losses: Vec<f64> = sweeps.values().filter(|sweep| sweep.len() >= fewest).filter_map(lost).collect();
    (!losses.is_empty()).then(|| Regret {
        sweeps: losses.len(),
        mean: mean(&losses),
        median: median(&losses),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use trainwright_spec::calibration::residuals::{Kind, Spread, Traits};

    fn run(source: &str, measured: f64) -> Run {
        Run {
            id: format!("{source}-1"),
            gpu: "h100-80gb-sxm".into(),
            quality: "A".into(),
            outcome: Outcome::Fits.name().into(),
            measured_step_time_s: Some(measured),
            ..Run::default()
        }
    }

    fn prediction(step_seconds: f64, place: f64, fits_with: f64) -> Prediction {
        Prediction {
            stack: "megatron-core".into(),
            remark: None,
            step_seconds,
            tokens_per_gpu: 1.0,
            band: Some((0.9, 1.2)),
            memory_band: None,
            places: [Some(place), None],
            fits_with: Some(fits_with),
            traits: Traits {
                kind: Kind {
                    experts: false,
                    adapters: false,
                    generation: "hopper".into(),
                    precision: "bf16".into(),
                    spread: Spread { tensor_over_nodes: false, context: false, several_nodes: true },
                },
                exposed: 0.0,
                host: 0.0,
            },
            ideal_seconds: 1.0,
            mfu_percent: 40.0,
            peak_memory_gb: 40.0,
            reserved_gb: None,
            used_memory_gb: 40.0,
            outcome: Outcome::Fits,
            bubble_percent: 0.0,
            exposed_percent: 0.0,
            rl: None,
        }
    }

    #[test]
    fn the_place_of_a_run_says_in_which_ranges_it_is() {
        // A range of 80 % is between the tenths: 0.1 and 0.9 are inside, 0.05 and 0.99 are not.
        let run = run("a", 1.0);
        let predictions = [0.1, 0.3, 0.5, 0.9, 0.05, 0.99].map(|place| prediction(1.0, place, 1.0));
        let rows: Vec<Row> = predictions.iter().map(|prediction| (&run, prediction)).collect();
        let all = &coverages(&rows, Of::Time, 1)[0];
        assert_eq!((all.slice.as_str(), all.runs), ("all", 6));
        assert_eq!(all.inside, [2.0 / 6.0, 4.0 / 6.0, 5.0 / 6.0]);
        assert!((all.width - 1.2 / 0.9).abs() < 1e-12);
        assert_eq!(coverages(&rows, Of::Memory, 1), []);
        assert_eq!(coverages(&rows, Of::Time, 7), []);
    }

    #[test]
    fn regret_is_what_the_choice_by_the_forecast_costs() {
        // The forecast prefers the run that took 1.1 s; 1.0 s was possible. In the other sweep it is right.
        let runs = [run("a", 1.1), run("a", 1.0), run("b", 2.0), run("b", 3.0)];
        let predictions = [0.8, 0.9, 2.0, 2.5].map(|step| prediction(step, 0.5, 1.0));
        let rows: Vec<Row> = runs.iter().zip(&predictions).collect();
        let regret = regret(&rows, 2, false).unwrap();
        assert_eq!(regret.sweeps, 2);
        assert!((regret.mean - 0.05).abs() < 1e-12 && (regret.median - 0.05).abs() < 1e-12, "{regret:?}");
        assert_eq!(super::regret(&rows, 3, false), None);
        assert_eq!(super::regret(&rows, 2, true), None);
    }

    #[test]
    fn orders_are_counted_where_the_difference_of_the_forecasts_is() {
        // Forecasts 1.0, 1.01 and 1.2: the first pair is 1 % apart and wrong, the others 19 and 20 % and right.
        let runs = [run("a", 2.2), run("a", 2.1), run("a", 2.5), run("b", 1.0)];
        let predictions = [1.0, 1.01, 1.2, 1.0].map(|step| prediction(step, 0.5, 1.0));
        let rows: Vec<Row> = runs.iter().zip(&predictions).collect();
        let found = orders(&rows, &[0.0, 0.02, 0.1, f64::INFINITY]);
        let counts: Vec<(f64, usize, f64)> =
            found.iter().map(|order| (order.between.0, order.pairs, order.right)).collect();
        assert_eq!(counts, [(0.0, 1, 0.0), (0.1, 2, 1.0)]);
    }

    #[test]
    fn runs_are_counted_where_their_probability_is() {
        let fitted = run("a", 1.0);
        let failed =
            Run { outcome: Outcome::OutOfMemory.name().into(), measured_step_time_s: None, ..run("a", 1.0) };
        let predictions = [0.96, 0.97, 1.0].map(|probability| prediction(1.0, 0.5, probability));
        let rows = [(&fitted, &predictions[0]), (&failed, &predictions[1]), (&fitted, &predictions[2])];
        let found = fitting(&rows, &[0.0, 0.95, 0.99, 1.0]);
        let counts: Vec<(usize, f64)> = found.iter().map(|fit| (fit.runs, fit.fitted)).collect();
        assert_eq!(counts, [(2, 0.5), (1, 1.0)]);
    }
}
