//! The answer of a command as one page for any browser.

use super::compare::{self, Comparison};
use super::forecast::{self, hfu, mfu, tokens_per_s};
use super::plans;
use super::table::Table;
use super::what_if::{self, Page};
use super::words::{choices, fit, gib, job_in_words};
use trainwright_lower::memory::RankMemory;
use trainwright_pictures::html::{Bar, BarScale, Part, Section, TimelineData, page};
use trainwright_pictures::plot::{Chart, chart_svg};
use trainwright_planner::{Found, Question, Ranked};
use trainwright_sim::Forecast;
use trainwright_sim::likeness::Confidence;
use trainwright_spec::plan::Plan;
use trainwright_spec::units::{Bytes, Seconds};
use trainwright_timeline::kinds::OpKind;
use trainwright_timeline::timeline::Timeline;
use trainwright_whatif::answer::Answer;

/// The page of `simulate`.
pub fn simulated(plan: &Plan, forecast: &Forecast, confidence: &Confidence, timeline: &Timeline) -> String {
    let figures = words(&forecast::figures(plan, forecast, confidence));
    let mut sections = vec![Section::Text(about(plan)), Section::Text(choices(plan)), figures];
    sections.extend(step(forecast, timeline));
    page(&title(plan), &sections)
}

/// The page of `plan`; `timeline` is the best plan's.
pub fn planned(question: &Question, found: &Found, confidence: &Confidence, timeline: &Timeline) -> String {
    let Question { model, cluster, job, stack, .. } = question;
    let best = &found.ranked[0];
    let ranked = plans::numbered(&found.ranked);
    let (table, legend) = plans::ranking(question, &ranked);
    let mut sections = vec![
        Section::Text(job_in_words(model, cluster, job, &stack.name)),
        Section::Heading("Best plan".into()),
        words(&plans::figures(question, found, confidence)),
        Section::Heading(format!("Best plans, memory in GiB of {}", gib(best.forecast.gpu_memory))),
        table.left("what limits it", |(_, ranked)| &ranked.limited_by).section(),
        Section::Text(legend),
        Section::Text("Where a step goes, in the mean over ranks:".into()),
    ];
    let bar = |(index, ranked): (usize, &Ranked)| {
        Bar::of(format!("{}: {}", index + 1, short(&ranked.plan)), &ranked.forecast.report.mean)
    };
    sections.push(Section::Bars(found.ranked.iter().enumerate().map(bar).collect(), BarScale::Common));
    let reasons = Table::of(&found.alternatives)
        .left("choice", |other| &other.choice)
        .left("what became of it", |other| &other.reason);
    sections.push(Section::Heading("Why not something else".into()));
    sections.push(reasons.section());
    sections.extend(step(&best.forecast, timeline));
    page(&title(&best.plan), &sections)
}

/// The page of `what-if`; the fastest answer's plan, if there is one, with its timeline.
pub fn swept(of: &Page, chart: &Chart, fastest: Option<(&Answer, &Timeline)>) -> String {
    let mut sections: Vec<Section> = of.headline.iter().cloned().map(Section::Text).collect();
    sections.push(Section::Heading(format!("{} points", of.answers.len())));
    sections.push(Section::Picture(chart_svg(chart)));
    sections.push(what_if::points(of, &what_if::planned(of)).section());
    let refused = what_if::refused(of);
    if !refused.is_empty() {
        let table = Table::of(&refused)
            .left("point", |(point, _)| point)
            .left("why there is no plan", |(_, why)| why);
        sections.push(Section::Heading("Points without a plan".into()));
        sections.push(table.section());
    }
    sections.push(Section::Heading("Where a step goes".into()));
    let bars = of.answers.iter().filter_map(|answer| {
        let planned = answer.outcome.as_ref().ok()?;
        let name = if answer.point.is_empty() { short(&planned.plan) } else { answer.point.join(" ") };
        Some(Bar::of(name, &planned.forecast.report.mean))
    });
    sections.push(Section::Bars(bars.take(MOST_BARS).collect(), BarScale::Bar));
    if let Some((answer, timeline)) = fastest
        && let Ok(planned) = &answer.outcome
    {
        let point =
            if answer.point.is_empty() { String::new() } else { format!(": {}", answer.point.join(" ")) };
        sections.push(Section::Heading(format!("The fastest point{point}")));
        sections.push(Section::Text(choices(&planned.plan)));
        sections.push(figures(&planned.plan, &planned.forecast));
        sections.extend(step(&planned.forecast, timeline));
    }
    page(&of.title(), &sections)
}

/// The page of `compare`; the timeline is the forecast's.
pub fn compared(of: &Comparison, forecast: &Forecast, timeline: &Timeline) -> String {
    let mut sections = vec![
        Section::Text(about(of.plan)),
        Section::Text(choices(of.plan)),
        Section::Text(compare::headline(of)),
        compare::table(&compare::rows(of)).section(),
    ];
    sections.extend(compare::notes(of).into_iter().map(Section::Text));
    let bar = |name: &str, index: usize| {
        let part = |(kind, times): (OpKind, [Option<Seconds>; 2])| {
            Some(Part { name: format!("{kind}"), meaning: None, time: times[index]? })
        };
        let parts = compare::kinds(of).into_iter().filter_map(part);
        Bar { name: name.into(), parts: parts.collect() }
    };
    sections.push(Section::Heading("Times of ops by kind".into()));
    sections.push(Section::Bars(vec![bar("measured", 0), bar("forecast", 1)], BarScale::Common));
    sections.push(Section::Heading("The forecast".into()));
    sections.push(figures(of.plan, forecast));
    sections.extend(step(forecast, timeline));
    page(&format!("Measurement and forecast: {}", title(of.plan)), &sections)
}

/// Bars beyond these are too many to compare.
const MOST_BARS: usize = 40;

fn title(plan: &Plan) -> String {
    format!("{} on {}: {}", plan.model.name, plan.cluster.name, short(plan))
}

fn short(plan: &Plan) -> String {
    let mesh = &plan.mesh;
    format!("{}×{}×{}, {}", mesh.tensor, mesh.pipeline, mesh.data, plan.schedule)
}

fn about(plan: &Plan) -> String {
    job_in_words(&plan.model, &plan.cluster, &plan.job, &plan.stack.name)
}

fn figures(plan: &Plan, forecast: &Forecast) -> Section {
    words(&[
        ("step time", forecast.step_time.to_string()),
        ("tokens/s", tokens_per_s(forecast)),
        ("MFU", mfu(forecast)),
        ("HFU", hfu(forecast)),
        ("memory", fit(plan, forecast)),
    ])
}

/// Names and their words.
fn words(rows: &[(&'static str, String)]) -> Section {
    Table::of(rows).left("of a step", |(name, _)| name).left("", |(_, text)| text).section()
}

/// Timeline, memory and the breakdown of each pipeline rank.
fn step(forecast: &Forecast, timeline: &Timeline) -> Vec<Section> {
    vec![
        Section::Heading("Timeline of a step".into()),
        Section::Timeline(TimelineData::new(timeline, forecast.gpu_memory)),
        Section::Heading("Where the time of each pipeline rank goes".into()),
        Section::Bars(Bar::of_ranks(&forecast.report), BarScale::Common),
        Section::Heading("What each pipeline rank holds, in GiB".into()),
        memory(&forecast.memory, forecast.gpu_memory),
    ]
}

fn memory(ranks: &[RankMemory], limit: Bytes) -> Section {
    let ranks: Vec<(usize, &RankMemory)> = ranks.iter().enumerate().collect();
    Table::of(&ranks)
        .right("pipeline rank", |(rank, _)| rank)
        .right("weights", |(_, held)| gib(held.weights))
        .right("gradients", |(_, held)| gib(held.gradients))
        .right("optimizer", |(_, held)| gib(held.optimizer))
        .right("activations", |(_, held)| gib(held.activations))
        .right("temporary", |(_, held)| gib(held.temporaries))
        .right("overhead", |(_, held)| gib(held.overhead))
        .right("total", |(_, held)| gib(held.total()))
        .right("free", |(_, held)| gib(limit - held.total()))
        .section()
}
