//! The answer of a command as one page for any browser.

use super::compare::{self, Comparison};
use super::forecast::{hfu, mfu};
use super::what_if::{Page, cells};
use super::words::{choices, fit, gib, grouped, percent, question as asked, recompute_cell, share};
use trainwright_lower::memory::RankMemory;
use trainwright_pictures::html::{Bar, BarScale, Part, Section, TimelineData, page};
use trainwright_pictures::plot::{Chart, chart_svg};
use trainwright_planner::{Found, Question, Ranked};
use trainwright_sim::Forecast;
use trainwright_spec::plan::Plan;
use trainwright_spec::units::{Bytes, Seconds};
use trainwright_timeline::kinds::OpKind;
use trainwright_timeline::timeline::Timeline;
use trainwright_whatif::answer::Answer;

/// What `simulate` found.
pub fn simulated(plan: &Plan, forecast: &Forecast, timeline: &Timeline) -> String {
    let mut sections =
        vec![Section::Text(about(plan)), Section::Text(choices(plan)), figures(plan, forecast)];
    sections.extend(step(forecast, timeline));
    page(&title(plan), &sections)
}

/// What `plan` found; `timeline` is the best plan's.
pub fn planned(question: &Question, found: &Found, timeline: &Timeline) -> String {
    let Question { model, cluster, job, stack, .. } = question;
    let best = &found.ranked[0];
    let mut sections = vec![
        Section::Text(asked(model, cluster, job, &stack.name)),
        Section::Heading("Best plan".into()),
        Section::Text(choices(&best.plan)),
        figures(&best.plan, &best.forecast),
        Section::Heading("Comparison of plans".into()),
        comparison(&found.ranked),
        Section::Text("Where a step goes, in the mean over ranks:".into()),
    ];
    let bar = |(index, ranked): (usize, &Ranked)| {
        Bar::of(format!("{}: {}", index + 1, short(&ranked.plan)), &ranked.forecast.report.mean)
    };
    sections.push(Section::Bars(found.ranked.iter().enumerate().map(bar).collect(), BarScale::Common));
    let reasons = found.alternatives.iter().map(|other| vec![other.choice.clone(), other.reason.clone()]);
    let headings = ["choice", "what became of it"].map(str::to_string).to_vec();
    sections.push(Section::Heading("Why not something else".into()));
    sections.push(Section::Table { headings, rows: reasons.collect() });
    sections.extend(step(&best.forecast, timeline));
    page(&title(&best.plan), &sections)
}

/// What `what-if` found; the fastest answer's plan, if there is one, with its timeline.
pub fn swept(of: &Page, chart: &Chart, fastest: Option<(&Answer, &Timeline)>) -> String {
    let mut sections: Vec<Section> = of.headline.iter().cloned().map(Section::Text).collect();
    sections.push(Section::Heading(format!("{} points", of.answers.len())));
    sections.push(Section::Picture(chart_svg(chart)));
    let (headings, rows) = cells(of);
    sections.push(Section::Table { headings, rows });
    let refused: Vec<Vec<String>> = of
        .answers
        .iter()
        .filter_map(|answer| Some(vec![answer.point.join(" "), answer.outcome.as_ref().err()?.clone()]))
        .collect();
    if !refused.is_empty() {
        let headings = ["point", "why there is no plan"].map(str::to_string).to_vec();
        sections.push(Section::Heading("Points without a plan".into()));
        sections.push(Section::Table { headings, rows: refused });
    }
    sections.push(Section::Heading("Where a step goes".into()));
    let bars = of.answers.iter().filter_map(|answer| {
        let planned = answer.outcome.as_ref().ok()?;
        let name = if answer.point.is_empty() { short(&planned.plan) } else { answer.point.join(" ") };
        Some(Bar::of(name, &planned.forecast.report.mean))
    });
    sections.push(Section::Bars(bars.take(MOST_BARS).collect(), BarScale::Own));
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

/// What `compare` found; the timeline is the forecast's.
pub fn compared(of: &Comparison, forecast: &Forecast, timeline: &Timeline) -> String {
    let headings = compare::HEADINGS.map(str::to_string).to_vec();
    let mut sections = vec![
        Section::Text(about(of.plan)),
        Section::Text(choices(of.plan)),
        Section::Text(compare::headline(of)),
        Section::Table { headings, rows: compare::rows(of) },
    ];
    sections.extend(compare::notes(of).into_iter().map(Section::Text));
    let bar = |name: &str, index: usize| {
        let part = |(kind, times): (OpKind, [Option<Seconds>; 2])| {
            Some(Part { name: format!("{kind}"), time: times[index]? })
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
    asked(&plan.model, &plan.cluster, &plan.job, &plan.stack.name)
}

fn figures(plan: &Plan, forecast: &Forecast) -> Section {
    let rows = [
        ("step time", forecast.step_time.to_string()),
        (
            "tokens/s",
            format!(
                "{} ({} per GPU)",
                grouped(forecast.tokens_per_s),
                grouped(forecast.tokens_per_s_per_gpu)
            ),
        ),
        ("MFU", mfu(forecast)),
        ("HFU", hfu(forecast)),
        ("memory", fit(plan, forecast)),
    ];
    let rows = rows.into_iter().map(|(name, text)| vec![name.to_string(), text]).collect();
    Section::Table { headings: vec!["of a step".into(), String::new()], rows }
}

fn comparison(ranked: &[Ranked]) -> Section {
    let headings = [
        "#",
        "TP×PP×DP",
        "schedule",
        "stages per rank",
        "microbatch",
        "shard",
        "recompute",
        "step",
        "MFU %",
        "memory GiB",
        "bubble %",
        "exposed %",
        "what limits it",
    ];
    let rows = ranked.iter().enumerate().map(|(index, ranked)| {
        let (plan, forecast) = (&ranked.plan, &ranked.forecast);
        let mean = &forecast.report.mean;
        vec![
            (index + 1).to_string(),
            format!("{}×{}×{}", plan.mesh.tensor, plan.mesh.pipeline, plan.mesh.data),
            plan.schedule.to_string(),
            plan.virtual_stages.to_string(),
            plan.micro_batch.to_string(),
            plan.data_sharding.clone(),
            recompute_cell(plan.stages.iter()),
            forecast.step_time.to_string(),
            percent(forecast.mfu_causal_attention),
            gib(forecast.peak_memory),
            percent(mean.bubble_share),
            percent(share(mean.exposed, forecast.report.step_time)),
            ranked.limited_by.clone(),
        ]
    });
    Section::Table { headings: headings.map(str::to_string).to_vec(), rows: rows.collect() }
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
    let headings = [
        "pipeline rank",
        "weights",
        "gradients",
        "optimizer",
        "activations",
        "temporary",
        "overhead",
        "total",
        "free",
    ];
    let rows = ranks.iter().enumerate().map(|(rank, held)| {
        let mut cells = vec![rank.to_string()];
        let kinds =
            [held.weights, held.gradients, held.optimizer, held.activations, held.temporaries, held.overhead];
        cells.extend(kinds.map(gib));
        cells.push(gib(held.total()));
        cells.push(gib(limit - held.total()));
        cells
    });
    Section::Table { headings: headings.map(str::to_string).to_vec(), rows: rows.collect() }
}
