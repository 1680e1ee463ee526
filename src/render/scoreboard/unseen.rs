//! Errors on sources that the fit has no run of, and the same figures for sources left out of it whole.

use super::Rows;
use crate::render::table::Table;
use trainwright_evidence::runs::Run;
use trainwright_evidence::statistics::mean;
use trainwright_evidence::summary::{Group, Summary, TimeErrors};
use trainwright_spec::calibration::{Calibration, Figures};

/// A run that took more than this multiple of its forecast is left out of the trimmed figures.
const SLOWEST: f64 = 2.0;

/// Whether the calibration was fitted without any run of this run's source.
pub fn is_unseen(run: &Run, calibration: &Calibration) -> bool {
    calibration.sources.iter().all(|source| source.name != run.family())
}

/// The section on unseen sources. `fitted` and `catalog` hold the runs of these sources, forecast with the calibration and
/// with the catalog alone. Nothing for a calibration that does not say which sources it was fitted to.
pub fn section(fitted: Rows, catalog: Rows, calibration: &Calibration) -> String {
    let (fitted, catalog) = (Summary::new(fitted.iter().copied()), Summary::new(catalog.iter().copied()));
    let judged = |group: &&Group| matches!(group.by, "source" | "all") && group.time.is_some();
    let groups: Vec<&Group> = fitted.groups.iter().filter(judged).collect();
    if groups.is_empty() || calibration.sources.is_empty() {
        return String::new();
    }
    let bare = |group: &Group| catalog.group(group.by, &group.name).and_then(|group| group.time);
    let table = Table::of(&groups)
        .left("source", |group| &group.name)
        .right("n", |group| group.time.map_or(0, |time| time.rows))
        .right("calibrated", |group| cell(group.time))
        .right("catalog", |group| cell(bare(group)))
        .markdown();
    let medians = |summary: &Summary| {
        let of_source = summary.groups.iter().filter(|group| group.by == "source");
        100.0 * mean(&of_source.filter_map(|group| Some(group.time?.median)).collect::<Vec<f64>>())
    };
    format!(
        "## Sources that no fit has seen\n\n\
         The fit takes rows of quality A only, so it has no row of these sources. Errors of step times in %: median / mean /\n\
         90th percentile of their sizes / mean with sign, with the calibration and with the catalog alone.\n\n\
         {table}\nMean of the sources' medians: {:.1} % calibrated, {:.1} % with the catalog alone.\n{}\n",
        medians(&fitted),
        medians(&catalog),
        of_the_fit(calibration),
    )
}

fn cell(time: Option<TimeErrors>) -> String {
    let percent = |part: f64| 100.0 * part;
    time.map_or_else(String::new, |TimeErrors { median, mean, p90, signed, .. }| {
        let (median, mean, p90) = (percent(median), percent(mean), percent(p90));
        format!("{median:.1} / {mean:.1} / {p90:.1} / {:+.1}", percent(signed))
    })
}

/// The mean over the sources of the fit of their median errors.
fn of_the_fit(calibration: &Calibration) -> String {
    let sources: Vec<_> = calibration.sources.iter().filter(|source| source.name != "all").collect();
    let medians =
        |of: fn(&_) -> &Figures| mean(&sources.iter().map(|source| of(source).median).collect::<Vec<f64>>());
    format!(
        "The same of the {} sources of the fit: {:.1} % with the catalog alone, {:.1} % each left out of the fit, {:.1} % in it.\n",
        sources.len(),
        medians(|source| &source.catalog),
        medians(|source| &source.left_out),
        medians(|source| &source.in_sample),
    )
}

/// The section on the rows of quality A without those that took far longer than their forecast.
pub fn trimmed(rows: Rows) -> String {
    let in_time = |(run, prediction): &&super::Row| match (run, prediction) {
        (Ok(run), Ok(prediction)) if run.quality == "A" => {
            run.step_seconds().is_some_and(|measured| measured <= SLOWEST * prediction.step_seconds)
        }
        _ => false,
    };
    let summary = Summary::new(rows.iter().filter(in_time).copied());
    let Some(time) = summary.group("quality", "A").and_then(|group| group.time) else { return String::new() };
    let TimeErrors { rows, median, mean, p90, signed, .. } = time;
    let percent = |part: f64| 100.0 * part;
    format!(
        "## Quality A without the slowest runs\n\n\
         {rows} rows took at most {SLOWEST} times their forecast: median {:.1} %, mean {:.1} %, 90th percentile {:.1} %, with sign\n\
         {:+.1} %. The error itself selects these rows, so the figures say how the other errors are distributed, not how good\n\
         the forecasts are.\n\n",
        percent(median),
        percent(mean),
        percent(p90),
        percent(signed),
    )
}
