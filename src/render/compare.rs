//! A measured step beside its forecast.

use super::table::{Column, table};
use Column::{Left, Right};
use std::collections::BTreeSet;
use trainwright_spec::plan::Plan;
use trainwright_spec::units::Seconds;
use trainwright_traces::kinds::{KindTimes, OpKind};
use trainwright_traces::kineto::{Device, MeasuredStep};

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

/// The page of `compare`.
pub fn page(comparison: &Comparison) -> String {
    let Comparison { plan, rank, measured, step_time, forecast } = comparison;
    let kinds: BTreeSet<OpKind> = measured.kinds.0.keys().chain(forecast.0.keys()).copied().collect();
    let cells = |times: &KindTimes, kind: OpKind| match times.0.get(&kind) {
        Some((count, time)) => [count.to_string(), milliseconds(*time)],
        None => ["-".into(), "-".into()],
    };
    let time = |times: &KindTimes, kind: OpKind| times.0.get(&kind).map(|(_, time)| *time);
    let row = |kind: &OpKind| -> Vec<String> {
        let error = over(time(forecast, *kind), time(&measured.kinds, *kind));
        let (measured, forecast) = (cells(&measured.kinds, *kind), cells(forecast, *kind));
        [vec![kind.to_string()], measured.to_vec(), forecast.to_vec(), vec![error]].concat()
    };
    let mut rows: Vec<Vec<String>> = kinds.iter().map(row).collect();
    let step = over(Some(*step_time), Some(measured.step_time));
    let empty = String::new;
    rows.push(vec![
        "step".into(),
        empty(),
        milliseconds(measured.step_time),
        empty(),
        milliseconds(*step_time),
        step,
    ]);
    let columns = [
        Left("kind"),
        Right("ops"),
        Right("measured ms"),
        Right("ops"),
        Right("forecast ms"),
        Right("error"),
    ];
    let of = match measured.device {
        Device::Gpu => "kernels on the GPU",
        Device::Cpu => "operators on the host: there are no kernels of a GPU in the trace",
    };
    let steps =
        if measured.steps == 1 { "one step".into() } else { format!("the mean of {} steps", measured.steps) };
    let mut text = format!(
        "Rank {rank} of {} on {}: {steps}, {of}.\n\n{}",
        plan.model.name,
        plan.cluster.name,
        table(&columns, rows)
    );
    text += "Times are sums over a rank's ops, each alone in the forecast; those of several streams may run at once.\n";
    if !measured.others.is_empty() {
        let names: Vec<String> =
            measured.others.iter().map(|(name, time)| format!("{name} {} ms", milliseconds(*time))).collect();
        text += &format!("Counted as elementwise without being known by name: {}\n", names.join(", "));
    }
    text
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
