//! A measured step and its forecast.

use super::table::Table;
use super::words::{calibration, dash};
use std::collections::BTreeSet;
use trainwright_formats::measured::{Device, MeasuredStep};
use trainwright_spec::plan::Plan;
use trainwright_spec::units::Seconds;
use trainwright_timeline::kinds::{KindTimes, OpKind};

/// A measured step and its forecast.
pub struct Comparison<'a> {
    /// The plan that ran.
    pub plan: &'a Plan,
    /// The rank that was traced.
    pub rank: usize,
    /// The measured step.
    pub measured: &'a MeasuredStep,
    /// How long a step should have taken.
    pub step_time: Seconds,
    /// Forecast times of its ops.
    pub forecast: KindTimes,
}

/// The note below the table.
const NOTE: &str =
    "Times are sums over a rank's ops, each alone in the forecast; those of several streams may run at once.";

/// The page of `compare`.
pub fn page(comparison: &Comparison) -> String {
    let table = table(&rows(comparison)).text();
    let notes: String = notes(comparison).iter().map(|note| format!("{note}\n")).collect();
    format!("{}\n\n{table}{notes}", headline(comparison))
}

/// The measured rank, plan and steps.
pub fn headline(comparison: &Comparison) -> String {
    let Comparison { plan, rank, measured, .. } = comparison;
    let of = match measured.device {
        Device::Gpu => "kernels on the GPU",
        Device::Cpu => "operators on the host: there are no kernels of a GPU in the trace",
    };
    let steps =
        if measured.steps == 1 { "one step".into() } else { format!("the mean of {} steps", measured.steps) };
    format!("Rank {rank} of {} on {}: {steps}, {of}.", plan.model.name, plan.cluster.name)
}

/// Notes on how to read the table.
pub fn notes(comparison: &Comparison) -> Vec<String> {
    let name = comparison.plan.cluster.calibration.as_deref();
    let mut notes = vec![NOTE.to_string(), format!("Calibration of the forecast: {}.", calibration(name))];
    let others = &comparison.measured.others;
    if !others.is_empty() {
        let names: Vec<String> =
            others.iter().map(|(name, time)| format!("{name} {} ms", milliseconds(*time))).collect();
        notes.push(format!("Counted as elementwise without being known by name: {}", names.join(", ")));
    }
    notes
}

/// Every kind of op in the measurement and in the forecast, with its time in each.
pub fn kinds(comparison: &Comparison) -> Vec<(OpKind, [Option<Seconds>; 2])> {
    let [measured, forecast] = [&comparison.measured.kinds, &comparison.forecast];
    let all: BTreeSet<OpKind> = measured.0.keys().chain(forecast.0.keys()).copied().collect();
    let time = |times: &KindTimes, kind: OpKind| times.0.get(&kind).map(|(_, time)| *time);
    all.into_iter().map(|kind| (kind, [time(measured, kind), time(forecast, kind)])).collect()
}

/// A kind of op, or the step: a name, and for measurement and forecast the number of ops and their time.
pub struct CompareRow {
    name: String,
    ops: [String; 2],
    times: [Option<Seconds>; 2],
}

/// A row for each kind, and one for the step.
pub fn rows(comparison: &Comparison) -> Vec<CompareRow> {
    let ops = |times: &KindTimes, kind: OpKind| {
        times.0.get(&kind).map_or_else(dash, |(count, _)| count.to_string())
    };
    let row = |(kind, times): (OpKind, [Option<Seconds>; 2])| CompareRow {
        name: kind.to_string(),
        ops: [ops(&comparison.measured.kinds, kind), ops(&comparison.forecast, kind)],
        times,
    };
    let step = CompareRow {
        name: "step".into(),
        ops: Default::default(),
        times: [Some(comparison.measured.step_time), Some(comparison.step_time)],
    };
    kinds(comparison).into_iter().map(row).chain([step]).collect()
}

/// The comparison.
pub fn table(rows: &[CompareRow]) -> Table<'_, CompareRow> {
    let cell = |time: Option<Seconds>| time.map_or_else(dash, milliseconds);
    Table::of(rows)
        .left("kind", |row| &row.name)
        .right("ops", |row| &row.ops[0])
        .right("measured ms", |row| cell(row.times[0]))
        .right("ops", |row| &row.ops[1])
        .right("forecast ms", |row| cell(row.times[1]))
        .right("error", |row| error(row.times))
}

fn milliseconds(time: Seconds) -> String {
    format!("{:.3}", time.get() * 1e3)
}

/// The forecast over the measurement, less one.
fn error([measured, forecast]: [Option<Seconds>; 2]) -> String {
    match forecast.zip(measured) {
        Some((forecast, measured)) if measured > Seconds::ZERO => {
            format!("{:+.0} %", 100.0 * (forecast / measured - 1.0))
        }
        _ => "-".into(),
    }
}
