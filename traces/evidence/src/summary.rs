//! How forecasts compare with measurements: errors by source, GPU, precision, stack and quality.

use crate::runs::{NoPlan, Outcome, Prediction, Run};
use crate::statistics::{kendall, mean, median, quantile};
use serde::Serialize;
use std::collections::BTreeMap;

/// The fewest runs of a sweep whose order is judged.
pub const SWEEP: usize = 10;

/// Errors of all rows and of groups of them.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Summary {
    /// Rows, those with a forecast, those that cannot be expressed, and those that contradict themselves.
    pub rows: usize,
    /// Rows with a forecast.
    pub forecast: usize,
    /// Rows that cannot be expressed.
    pub unsupported: usize,
    /// Rows that contradict themselves.
    pub invalid: usize,
    /// The groups, by what they have in common: first all rows, then those of a quality, a source and so on.
    pub groups: Vec<Group>,
}

/// Errors of rows that have something in common.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Group {
    /// The common property: `quality`, `source`, `gpu`, `precision`, `stack`, or `all`.
    pub by: &'static str,
    /// Its name.
    pub name: String,
    /// Errors of step times; `None` if none was measured.
    pub time: Option<TimeErrors>,
    /// Errors of the baseline: FLOPs at the peak times one efficiency for each GPU and precision, times the bubble.
    pub null: Option<TimeErrors>,
    /// Errors of memory; `None` if none was measured.
    pub memory: Option<MemoryErrors>,
    /// Forecasts of running out of memory.
    pub outcomes: Outcomes,
}

/// Errors of step times: forecast over measured, less one.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct TimeErrors {
    /// Rows.
    pub rows: usize,
    /// Median of the absolute errors.
    pub median: f64,
    /// Their mean.
    pub mean: f64,
    /// Mean of the errors with their signs.
    pub signed: f64,
    /// 90th percentile of the absolute errors.
    pub p90: f64,
    /// Median over sweeps of at least `SWEEP` runs of Kendall's τ between forecast and measured times.
    pub order: Option<f64>,
    /// Those sweeps.
    pub sweeps: usize,
}

/// Errors of memory: forecast over measured, less one.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct MemoryErrors {
    /// Rows.
    pub rows: usize,
    /// Mean of the absolute errors.
    pub mean: f64,
    /// Mean of the errors with their signs.
    pub signed: f64,
}

/// How often a run fits or not, as it was and as it was forecast.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Outcomes {
    /// It fits, and so says the forecast.
    pub fits: usize,
    /// It fits, and the forecast says that it does not.
    pub false_alarms: usize,
    /// It does not fit, and the forecast says that it does.
    pub missed: usize,
    /// It does not fit, and so says the forecast.
    pub out_of_memory: usize,
}

impl Outcomes {
    /// Runs.
    pub fn rows(&self) -> usize {
        self.fits + self.false_alarms + self.missed + self.out_of_memory
    }

    /// The part that is forecast right.
    pub fn right(&self) -> f64 {
        (self.fits + self.out_of_memory) as f64 / self.rows() as f64
    }
}

/// A run with its forecast.
#[derive(Debug, Clone, Copy)]
struct Judged<'a> {
    run: &'a Run,
    prediction: &'a Prediction,
    /// The baseline's step time.
    null: Option<f64>,
}

impl Summary {
    /// Summarises runs and their forecasts.
    pub fn new<'a>(
        rows: impl Iterator<Item = (&'a Result<Run, NoPlan>, &'a Result<Prediction, NoPlan>)>,
    ) -> Self {
        let (mut judged, mut unsupported, mut invalid) = (Vec::new(), 0, 0);
        for row in rows {
            match row {
                (Ok(run), Ok(prediction)) => judged.push(Judged { run, prediction, null: None }),
                (_, Err(NoPlan::Unsupported(_))) => unsupported += 1,
                (_, Err(NoPlan::Invalid(_))) | (Err(_), _) => invalid += 1,
            }
        }
        fill_null(&mut judged);
        type Kind = (&'static str, fn(&Judged) -> String);
        let kinds: [Kind; 6] = [
            ("all", |_| "all rows".into()),
            ("quality", |row| row.run.quality.clone()),
            ("source", |row| row.run.family()),
            ("gpu", |row| row.run.gpu.clone()),
            ("precision", |row| row.run.precision.clone()),
            ("stack", |row| row.prediction.stack.clone()),
        ];
        let groups = kinds.into_iter().flat_map(|(by, key)| {
            let mut groups: BTreeMap<String, Vec<Judged>> = BTreeMap::new();
            judged.iter().for_each(|row| groups.entry(key(row)).or_default().push(*row));
            groups.into_iter().map(move |(name, rows)| Group::of(by, name, &rows))
        });
        let groups = groups.collect();
        Self {
            rows: judged.len() + unsupported + invalid,
            forecast: judged.len(),
            unsupported,
            invalid,
            groups,
        }
    }

    /// The group of that kind and name.
    pub fn group(&self, by: &str, name: &str) -> Option<&Group> {
        self.groups.iter().find(|group| group.by == by && group.name == name)
    }
}

impl Group {
    fn of(by: &'static str, name: String, rows: &[Judged]) -> Self {
        let mut outcomes = Outcomes::default();
        for row in rows {
            match (row.run.outcome(), row.prediction.outcome) {
                (Some(Outcome::Fits), Outcome::Fits) => outcomes.fits += 1,
                (Some(Outcome::Fits), Outcome::OutOfMemory) => outcomes.false_alarms += 1,
                (Some(Outcome::OutOfMemory), Outcome::Fits) => outcomes.missed += 1,
                (Some(Outcome::OutOfMemory), Outcome::OutOfMemory) => outcomes.out_of_memory += 1,
                (None, _) => {}
            }
        }
        let memory = |row: &Judged| {
            let measured = row.run.measured_peak_memory_gb.filter(|memory| *memory > 0.0)?;
            Some(row.prediction.peak_memory_gb / measured - 1.0)
        };
        let memory: Vec<f64> = rows.iter().filter_map(memory).collect();
        let absolute: Vec<f64> = memory.iter().map(|error| error.abs()).collect();
        Group {
            by,
            name,
            time: TimeErrors::of(rows, |row| Some(row.prediction.step_seconds)),
            null: TimeErrors::of(rows, |row| row.null),
            memory: (!memory.is_empty()).then(|| MemoryErrors {
                rows: memory.len(),
                mean: mean(&absolute),
                signed: mean(&memory),
            }),
            outcomes,
        }
    }
}

impl TimeErrors {
    fn of(rows: &[Judged], forecast: impl Fn(&Judged) -> Option<f64>) -> Option<Self> {
        let mut sweeps: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
        let mut errors = Vec::new();
        for row in rows {
            if let (Some(measured), Some(forecast)) = (row.run.step_seconds(), forecast(row)) {
                errors.push(forecast / measured - 1.0);
                sweeps.entry(row.run.sweep()).or_default().push((forecast, measured));
            }
        }
        if errors.is_empty() {
            return None;
        }
        let absolute: Vec<f64> = errors.iter().map(|error| error.abs()).collect();
        let orders: Vec<f64> =
            sweeps.values().filter(|sweep| sweep.len() >= SWEEP).filter_map(|sweep| kendall(sweep)).collect();
        Some(Self {
            rows: errors.len(),
            median: median(&absolute),
            mean: mean(&absolute),
            signed: mean(&errors),
            p90: quantile(&absolute, 0.9),
            order: (!orders.is_empty()).then(|| median(&orders)),
            sweeps: orders.len(),
        })
    }
}

/// The baseline: t = e · (F / peak) · (1 + (p − 1) / (v m)), F the model's FLOPs, e the median of measured over that
/// of the rows of quality A with the same GPU and precision, or of all if there are none.
fn fill_null(rows: &mut [Judged]) {
    let mut known: BTreeMap<(&str, &str, bool), Vec<f64>> = BTreeMap::new();
    for row in rows.iter() {
        if let Some(measured) = row.run.step_seconds() {
            let ratio = measured / row.prediction.ideal_seconds;
            let key = |best| (row.run.gpu.as_str(), row.run.precision.as_str(), best);
            known.entry(key(false)).or_default().push(ratio);
            if row.run.quality == "A" {
                known.entry(key(true)).or_default().push(ratio);
            }
        }
    }
    let factors: BTreeMap<_, _> = known.iter().map(|(key, ratios)| (*key, median(ratios))).collect();
    for row in rows {
        let of = |best| factors.get(&(row.run.gpu.as_str(), row.run.precision.as_str(), best));
        row.null = of(true).or_else(|| of(false)).map(|factor| factor * row.prediction.ideal_seconds);
    }
}
