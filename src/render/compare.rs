//! A measured step beside its forecast.

use super::table::{Column, table};
use Column::{Left, Right};
use std::collections::BTreeSet;
use trainwright_formats::measured::{Device, MeasuredStep};
use trainwright_spec::plan::Plan;
use trainwright_spec::units::Seconds;
use trainwright_timeline::kinds::{KindTimes, OpKind};

/// What is compared.
pub struct Comparison<'a> {
    /// The plan that ran.
    pub plan: &'a Plan,
    /// The rank that was traced.
    pub rank: usize,
    /// What it did.
    pub measured: &'a MeasuredStep,
    /// How long a step should have taken.
    pub step_time: Seconds,
    /// What its ops should have taken.
    pub forecast: KindTimes,
}

/// The columns of the comparison.
pub const HEADINGS: [&str; 6] = ["kind", "ops", "measured ms", "ops", "forecast ms", "error"];

/// What stands below it.
const NOTE: &str =
    "Times are sums over a rank's ops, each alone in the forecast; those of several streams may run at once.";

/// The page of `compare`.
pub fn page(comparison: &Comparison) -> String {
    let column = |heading: &'static str| if heading == "kind" { Left(heading) } else { Right(heading) };
    let table = table(&HEADINGS.map(column), rows(comparison));
    let notes: String = notes(comparison).iter().map(|note| format!("{note}\n")).collect();
    format!("{}\n\n{table}{notes}", headline(comparison))
}

/// What is compared.
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

/// What one has to know to read it.
pub fn notes(comparison: &Comparison) -> Vec<String> {
    let mut notes = vec![NOTE.to_string()];
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

/// A row for each kind, and one for the step.
pub fn rows(comparison: &Comparison) -> Vec<Vec<String>> {
    let count = |times: &KindTimes, kind: &OpKind| {
        times.0.get(kind).map_or_else(|| "-".into(), |(count, _)| count.to_string())
    };
    let cell = |time: Option<Seconds>| time.map_or_else(|| "-".into(), milliseconds);
    let row = |(kind, [measured, forecast]): (OpKind, [Option<Seconds>; 2])| {
        vec![
            kind.to_string(),
            count(&comparison.measured.kinds, &kind),
            cell(measured),
            count(&comparison.forecast, &kind),
            cell(forecast),
            over(forecast, measured),
        ]
    };
    let mut rows: Vec<Vec<String>> = kinds(comparison).into_iter().map(row).collect();
    let (measured, forecast) = (comparison.measured.step_time, comparison.step_time);
    let error = over(Some(forecast), Some(measured));
    let times = [milliseconds(measured), milliseconds(forecast)];
    let [measured, forecast] = times;
    rows.push(vec!["step".into(), String::new(), measured, String::new(), forecast, error]);
    rows
}

fn milliseconds(time: Seconds) -> String {
    format!("{:.3}", time.get() * 1e3)
}

/// The forecast over the measurement, less one.
fn over(forecast: Option<Seconds>, measured: Option<Seconds>) -> String {
    match forecast.zip(measured) {
        Some((forecast, measured)) if measured > Seconds::ZERO => {
            format!("{:+.0} %", 100.0 * (forecast / measured - 1.0))
        }
        _ => "-".into(),
    }
}
