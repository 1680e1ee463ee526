//! The scoreboard: a page on how forecasts compare with measurements, with its pictures and the forecasts behind it.

mod aims;
pub mod peers;
pub mod statements;
pub mod unseen;

use super::table::Table;
use std::collections::BTreeMap;
use trainwright_evidence::runs::{NoPlan, Prediction, Run};
use trainwright_evidence::summary::{Group, Summary};
use trainwright_pictures::scatter::{self, Scatter};
use trainwright_spec::calibration::{Calibration, Figures};

/// A run and its forecast.
pub type Row<'a> = (&'a Result<Run, NoPlan>, &'a Result<Prediction, NoPlan>);

/// Runs and their forecasts.
pub type Rows<'a> = &'a [Row<'a>];

/// The rows that are farthest off.
const WORST: usize = 10;

/// The page, in Markdown. `comparisons` are sections that need more than the table of runs; they follow the fit.
pub fn page(rows: Rows, summary: &Summary, calibration: &Calibration, comparisons: &str) -> String {
    let mut page = String::from(
        "# Scoreboard\n\n\
         Forecasts against measurements that others published (`traces/published/training.csv`). Made by\n\
         `trainwright predict traces/published/training.csv --scoreboard docs/scoreboard`; a test fails when it is out of date or errors grow.\n\n",
    );
    page.push_str(&format!(
        "{} rows: {} forecast, {} that cannot be expressed, {} that contradict themselves. Calibration: {}.\n\n",
        summary.rows, summary.forecast, summary.unsupported, summary.invalid, calibration.source
    ));
    page.push_str("## Aims\n\n");
    page.push_str(&aims::table(rows, summary, calibration));
    page.push_str("\n![step times](step-times.svg)\n\n![memory](memory.svg)\n\n");
    page.push_str(&fitted(calibration));
    page.push_str(comparisons);
    for (by, title) in [
        ("all", "All rows"),
        ("quality", "By quality"),
        ("source", "By source"),
        ("gpu", "By GPU"),
        ("precision", "By precision"),
        ("stack", "By stack"),
    ] {
        page.push_str(&format!("## {title}\n\n"));
        page.push_str(&groups(summary.groups.iter().filter(|group| group.by == by)));
    }
    page.push_str(&outcomes(summary));
    page.push_str(&unseen::trimmed(rows));
    page.push_str(&worst(rows));
    page
}

fn fitted(calibration: &Calibration) -> String {
    if calibration.sources.is_empty() {
        return String::new();
    }
    let cell =
        |Figures { median, mean, signed, p90 }: &Figures| format!("{median} / {mean} / {p90} / {signed:+}");
    let sources = Table::of(&calibration.sources)
        .left("source", |source| &source.name)
        .right("n", |source| source.rows)
        .right("catalog", |source| cell(&source.catalog))
        .right("left out of the fit", |source| cell(&source.left_out))
        .right("in the fit", |source| cell(&source.in_sample));
    let factors = Table::of(&calibration.factors)
        .left("factor", |factor| &factor.parameter)
        .left("of", |factor| &factor.of)
        .right("value", |factor| factor.factor);
    format!(
        "## Fit\n\nErrors of step times of quality A in %: median / mean / 90th percentile of their sizes / mean with sign.\n\n\
         {}\n{}\n",
        sources.markdown(),
        factors.markdown(),
    )
}

fn groups<'a>(groups: impl Iterator<Item = &'a Group>) -> String {
    let mut text = String::from(
        "| | n | median % | mean % | signed % | p90 % | τ | null median % | memory n | mean % | signed % |\n\
         | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n",
    );
    let percent = |part: f64| format!("{:.1}", 100.0 * part);
    for group in groups {
        let time = match &group.time {
            None => "| | | | | | |".to_string(),
            Some(time) => format!(
                "{} | {} | {} | {:+.1} | {} | {} |",
                time.rows,
                percent(time.median),
                percent(time.mean),
                100.0 * time.signed,
                percent(time.p90),
                time.order.map_or_else(String::new, |order| format!("{order:.2}")),
            ),
        };
        let null = group.null.as_ref().map_or_else(String::new, |null| percent(null.median));
        let memory = match &group.memory {
            None => "| |".to_string(),
            Some(memory) => {
                format!("{} | {} | {:+.1}", memory.rows, percent(memory.mean), 100.0 * memory.signed)
            }
        };
        let name = if group.name.is_empty() { "(blank)" } else { &group.name };
        text.push_str(&format!("| {name} | {time} {null} | {memory} |\n"));
    }
    text.push('\n');
    text
}

fn outcomes(summary: &Summary) -> String {
    let mut judged: Vec<&Group> = summary.groups.iter().collect();
    judged.retain(|group| matches!(group.by, "all" | "quality" | "source"));
    judged.retain(|group| group.outcomes.missed + group.outcomes.out_of_memory > 0);
    let table = Table::of(&judged)
        .left("", |group| &group.name)
        .right("fits, forecast so", |group| group.outcomes.fits)
        .right("fits, forecast not", |group| group.outcomes.false_alarms)
        .right("does not, forecast does", |group| group.outcomes.missed)
        .right("does not, forecast so", |group| group.outcomes.out_of_memory);
    format!("## Out of memory\n\n{}\n", table.markdown())
}

fn worst(rows: Rows) -> String {
    let judged = rows.iter().filter_map(|(run, prediction)| {
        let (run, prediction) = (run.as_ref().ok()?, prediction.as_ref().ok()?);
        (run.quality == "A").then_some(())?;
        Some((run, prediction, prediction.error(run)?))
    });
    let mut judged: Vec<(&Run, &Prediction, f64)> = judged.collect();
    judged.sort_by(|one, other| {
        let size = |error: f64| libm::log(1.0 + error).abs();
        size(other.2).total_cmp(&size(one.2)).then_with(|| one.0.id.cmp(&other.0.id))
    });
    judged.truncate(WORST);
    let table = Table::of(&judged)
        .left("row", |(run, ..)| &run.id)
        .right("measured s", |(run, ..)| format!("{:.3}", run.step_seconds().unwrap_or_default()))
        .right("forecast s", |(_, prediction, _)| format!("{:.3}", prediction.step_seconds))
        .right("error %", |(.., error)| format!("{:+.1}", 100.0 * error));
    format!("## The {WORST} rows of quality A that are farthest off\n\n{}\n", table.markdown())
}

/// The forecasts by `id`, for the test that makes them again.
pub fn forecasts(rows: Rows) -> String {
    let mut text = String::from("id,step_time_s,memory_gb,outcome\n");
    for (run, prediction) in rows {
        let Ok(run) = run else { continue };
        let cells = match prediction {
            Ok(prediction) => format!(
                "{:.6},{:.3},{}",
                prediction.step_seconds,
                prediction.peak_memory_gb,
                prediction.outcome.name()
            ),
            Err(NoPlan::Unsupported(_)) => ",,unsupported".into(),
            Err(NoPlan::Invalid(_)) => ",,invalid".into(),
        };
        text.push_str(&format!("{},{cells}\n", run.id));
    }
    text
}

/// The pictures: file name and content.
pub fn pictures(rows: Rows) -> Vec<(&'static str, String)> {
    type Pair = Option<(f64, f64)>;
    let of = |value: &dyn Fn(&Run, &Prediction) -> Pair| {
        let mut sources: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
        for (run, prediction) in rows {
            let (Ok(run), Ok(prediction)) = (run, prediction) else { continue };
            if let Some(point) = value(run, prediction).filter(|(one, other)| one.min(*other) > 0.0) {
                sources.entry(run.family()).or_default().push(point);
            }
        }
        // The many first, so that the few are seen.
        let mut sources: Vec<_> = sources.into_iter().collect();
        sources.sort_by(|one, other| other.1.len().cmp(&one.1.len()).then_with(|| one.0.cmp(&other.0)));
        sources
    };
    let times = of(&|run, prediction| {
        let known = (run.quality == "A").then(|| run.step_seconds())??;
        Some((known, prediction.step_seconds))
    });
    let memory = of(&|run, prediction| Some((run.measured_peak_memory_gb?, prediction.peak_memory_gb)));
    let draw = |title: &str, quantity: &str, sources| {
        scatter::svg(&Scatter { title: title.into(), quantity: quantity.into(), sources })
    };
    vec![
        ("step-times.svg", draw("Step times of quality A", "step time in s", times)),
        ("memory.svg", draw("Peak memory as the sources print it", "memory in GB", memory)),
    ]
}
