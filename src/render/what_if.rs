//! The answers of a sweep: a headline for questions, and a table.

use super::json::print;
use super::table::Table;
use super::words::{billions, calibration, count, dash, gib, grouped, heading, job_in_words, percent, wrap};
use serde_json::json;
use trainwright_sim::Forecast;
use trainwright_spec::plan::Plan;
use trainwright_spec::units::{Dollars, Seconds};
use trainwright_whatif::answer::{Answer, BILLION};
use trainwright_whatif::pareto::{Cost, front};
use trainwright_whatif::price::list_price;
use trainwright_whatif::questions::{ComputeOptimal, GpusNeeded, Largest};
use trainwright_whatif::run::Run;
use trainwright_whatif::scenario::{Base, Scenario};
use trainwright_whatif::sweep::Axis;
use trainwright_whatif::table::objects;

/// The answers to a question.
pub struct Page {
    /// Without variations.
    pub base: Scenario,
    /// The varied inputs.
    pub axes: Vec<Axis>,
    /// A row for each.
    pub answers: Vec<Answer>,
    /// The answer in words; empty for a plain sweep.
    pub headline: Vec<String>,
}

impl Page {
    /// Model, cluster and varied inputs.
    pub fn title(&self) -> String {
        let varied: Vec<&str> = self.axes.iter().map(|axis| axis.input.as_str()).collect();
        let (model, cluster) = (&self.base.model().name, &self.base.cluster().name);
        match varied.as_slice() {
            [] => format!("{model} on {cluster}"),
            varied => format!("{model} on {cluster} by {}", varied.join(" and ")),
        }
    }
}

/// Everything that a person wants to know.
pub fn page(page: &Page) -> String {
    let Page { base, answers, headline, .. } = page;
    let stack = match &base.base {
        Base::Question(question) => &question.stack.name,
        Base::Plan(plan) => &plan.stack.name,
    };
    let mut text = wrap(&job_in_words(base.model(), base.cluster(), base.job(), stack), 0);
    if !headline.is_empty() {
        text.push_str(&heading("Answer"));
        text.extend(headline.iter().map(|line| wrap(line, 0)));
    }
    text.push_str(&heading(&format!("{} ({})", page.title(), count(answers.len(), "point"))));
    text.push_str(&points(page, &planned(page)).text());
    let refused = refused(page);
    if !refused.is_empty() {
        text.push_str(&heading("Points without a plan"));
        let table = Table::of(&refused).left("point", |(point, _)| point).left("why", |(_, why)| why);
        text.push_str(&table.wrapped());
    }
    text.push_str(&wrap(&notes(page), 0));
    let name = base.calibration.as_ref().map(|calibration| calibration.name.as_str());
    let name = name.or(base.cluster().calibration.as_deref());
    text.push_str(&wrap(&format!("Calibration: {}.", calibration(name)), 0));
    text
}

/// The same as data, a row for each point.
pub fn json(page: &Page) -> String {
    let names: Vec<String> = page.axes.iter().map(|axis| axis.input.clone()).collect();
    let axis = |axis: &Axis| json!({ "input": axis.input, "values": axis.values });
    print(&json!({
        "title": page.title(),
        "model": page.base.model().name,
        "cluster": page.base.cluster().name,
        "axes": page.axes.iter().map(axis).collect::<Vec<_>>(),
        "headline": page.headline,
        "points": objects(&names, &page.answers),
    }))
}

/// The points without a plan, each with the reason.
pub fn refused(page: &Page) -> Vec<(String, &str)> {
    let refused = page.answers.iter();
    refused
        .filter_map(|answer| Some((answer.point.join(" "), answer.outcome.as_ref().err()?.as_str())))
        .collect()
}

/// A point with a plan.
pub struct Point<'a> {
    answer: &'a Answer,
    plan: &'a Plan,
    forecast: &'a Forecast,
    run: Run,
    on_front: bool,
}

/// The points with a plan.
pub fn planned(page: &Page) -> Vec<Point<'_>> {
    let front = front(&page.answers, Cost::of(&page.answers));
    let points = page.answers.iter().zip(front).filter_map(|(answer, on_front)| {
        let planned = answer.outcome.as_ref().ok()?;
        let run = answer.wanted_run()?;
        Some(Point { answer, plan: &planned.plan, forecast: &planned.forecast, run, on_front })
    });
    points.collect()
}

/// The table of the points with a plan.
pub fn points<'a>(page: &Page, points: &'a [Point<'a>]) -> Table<'a, Point<'a>> {
    let run = run_words(page);
    let known = |value: Option<f64>| value.map_or_else(dash, digits);
    let mut table = Table::of(points);
    for (index, axis) in page.axes.iter().enumerate() {
        table = table.right(&axis.input, |point| &point.answer.point[index]);
    }
    table
        .right("GPUs", |point| grouped(point.plan.mesh.ranks() as f64))
        .right("step", |point| point.forecast.step_time)
        .right("tokens/s", |point| grouped(point.forecast.tokens_per_s))
        .right("per GPU", |point| grouped(point.forecast.tokens_per_s_per_gpu))
        .right("MFU", |point| percent(point.forecast.mfu_causal_attention))
        .right("memory", |point| gib(point.forecast.peak_memory))
        .right("T×P×D", |point| mesh(point.plan))
        .right("v", |point| point.plan.virtual_stages)
        .right("µb", |point| point.plan.micro_batch)
        .right(&format!("days {run}"), |point| digits(point.run.time.as_days()))
        .right(&format!("USD {run}"), |point| known(point.run.cost.map(|cost| cost.get())))
        .right(&format!("MWh {run}"), |point| known(point.run.energy.map(|energy| energy.as_mwh())))
        .right("front", |point| if point.on_front { "*" } else { "" })
}

/// Of how many tokens the run is, for narrow columns.
fn run_words(page: &Page) -> String {
    match page.axes.iter().any(|axis| axis.input == "tokens") {
        true => "/ run".into(),
        false => format!("/ {}", amount(page.base.rates.tokens.unwrap_or(BILLION))),
    }
}

/// Three digits at least.
fn digits(value: f64) -> String {
    match value {
        v if v >= 100.0 => grouped(v),
        v if v >= 10.0 => format!("{v:.1}"),
        v if v >= 1.0 => format!("{v:.2}"),
        v => format!("{v:.4}"),
    }
}

/// `15T`, `1.4T`, `300B`.
fn amount(value: f64) -> String {
    let scales = [(1e12, "T"), (1e9, "B"), (1e6, "M")];
    match scales.iter().find(|(scale, _)| value >= *scale) {
        Some((scale, name)) => {
            let text = format!("{:.2}", value / scale);
            format!("{}{name}", text.trim_end_matches('0').trim_end_matches('.'))
        }
        None => grouped(value),
    }
}

fn mesh(plan: &Plan) -> String {
    format!("{}×{}×{}", plan.mesh.tensor, plan.mesh.pipeline, plan.mesh.data)
}

/// Choices of a plan that the table has no column for: ranks of further axes, and what is offloaded.
fn further_axes_and_offload(plan: &Plan) -> String {
    let ranks = |axis: &str, ranks: usize| (ranks > 1).then(|| format!("{axis} {ranks}"));
    let offload = plan.offload.in_words();
    let offload = (!offload.is_empty()).then_some(offload);
    let parts = [ranks("context", plan.mesh.context), ranks("expert", plan.mesh.expert), offload];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// The points whose plans have such choices, a part of a sentence for those that have the same.
fn further_choices(page: &Page) -> Vec<String> {
    let mut points: Vec<(String, Vec<String>)> = Vec::new();
    for answer in &page.answers {
        let Ok(planned) = &answer.outcome else { continue };
        let choices = further_axes_and_offload(&planned.plan);
        if choices.is_empty() {
            continue;
        }
        let point = answer.point.join(" ");
        match points.iter_mut().find(|(same, _)| *same == choices) {
            Some((_, with_same)) => with_same.push(point),
            None => points.push((choices, vec![point])),
        }
    }
    points.into_iter().map(|(choices, points)| format!("{} {choices}", points.join(", "))).collect()
}

/// How to read the table, and where price and power are from.
fn notes(page: &Page) -> String {
    let base = &page.base;
    let further = match further_choices(page) {
        choices if choices.is_empty() => String::new(),
        choices => format!("Plans differ in what has no column, too: {}. ", choices.join("; ")),
    };
    let run = match page.axes.iter().any(|axis| axis.input == "tokens") {
        true => "the point's run".into(),
        false => format!("{} tokens", grouped(base.rates.tokens.unwrap_or(BILLION))),
    };
    let price = base.rates.price.clone().or_else(|| list_price(base.cluster()));
    let price = price.map_or("no price is known".to_string(), |price| {
        format!("{:.2} USD for a GPU and hour ({})", price.per_gpu.get(), price.source)
    });
    let power = base.cluster().node.gpu.power.as_ref();
    let power = power.map_or("no power is known".to_string(), |power| {
        format!("{:.0} W for a GPU ({}), PUE {}", power.value.get(), power.source, base.rates.pue)
    });
    format!(
        "{further}MFU: % of the peak, causal attention halved; memory: GiB on the fullest GPU; T×P×D: ranks of the tensor, pipeline \
         and data axis; v: stages per pipeline rank; µb: sequences in a microbatch; days, USD, MWh: of {run}, without \
         interruptions; *: nothing is both faster and cheaper. Before variations: {price}; {power}."
    )
}

/// The fewest nodes that are fast enough.
pub fn fewest(found: &GpusNeeded, limit: Seconds) -> Vec<String> {
    let days = digits(limit.as_days());
    match found.fewest {
        Some(index) => {
            let answer = &found.answers[index];
            let mut lines = vec![format!(
                "The fewest of those tried that end within {days} days: {}, {}.",
                gpus(answer),
                run_of(answer)
            )];
            if let Some(fewer) = index.checked_sub(1).map(|before| &found.answers[before]) {
                let why = match (fewer.wanted_run(), &fewer.outcome) {
                    (Some(run), _) => format!("{} days", digits(run.time.as_days())),
                    (None, Err(reason)) => reason.clone(),
                    (None, Ok(_)) => "no run".into(),
                };
                lines.push(format!("The next fewer, {}: {why}.", gpus(fewer)));
            }
            lines
        }
        None => {
            let fastest = found.answers.iter().filter_map(|answer| Some((answer.wanted_run()?.time, answer)));
            let fastest = fastest.min_by(|a, b| a.0.get().total_cmp(&b.0.get()));
            vec![match fastest {
                Some((_, answer)) => {
                    format!(
                        "No number of nodes that was tried ends within {days} days. The fastest: {}, {}.",
                        gpus(answer),
                        run_of(answer)
                    )
                }
                None => "No number of nodes that was tried has a plan.".into(),
            }]
        }
    }
}

/// The cheapest, and the cheapest that ends in time.
pub fn cheapest(answers: &[Answer], limit: Option<Seconds>) -> Vec<String> {
    let cheapest = |in_time: &dyn Fn(&Run) -> bool| {
        let priced = answers.iter().filter_map(|answer| {
            let run = answer.wanted_run()?;
            Some((run.cost.filter(|_| in_time(&run))?, answer))
        });
        priced.min_by(|a: &(Dollars, &Answer), b| a.0.get().total_cmp(&b.0.get()))
    };
    let say = |found: Option<(Dollars, &Answer)>, what: &str| match found {
        Some((_, answer)) => format!("The cheapest{what}: {}, {}.", answer.point.join(" "), run_of(answer)),
        None => format!("None{what} has both a plan and a price."),
    };
    let mut lines = vec![say(cheapest(&|_| true), "")];
    if let Some(limit) = limit {
        let what = format!(" that ends within {} days", digits(limit.as_days()));
        lines.push(say(cheapest(&|run| run.time <= limit), &what));
    }
    lines
}

/// The largest that fits.
pub fn largest(found: &Largest, what: &str) -> Vec<String> {
    let Some(index) = found.largest else {
        return vec![format!("No {what} that was tried fits.")];
    };
    let answer = &found.answers[index];
    let above = found.answers.get(index + 1).map(|next| (size(next, what), next.outcome.as_ref().err()));
    let most = if what == "model" { "largest" } else { "longest" };
    let mut lines = vec![format!("The {most} {what} of those tried that fits: {}.", size(answer, what))];
    if let Some((size, Some(reason))) = above {
        lines.push(format!("The next, {size}: {reason}."));
    }
    lines
}

fn size(answer: &Answer, what: &str) -> String {
    match (&answer.scenario, what) {
        (Some(scenario), "model") => {
            let model = scenario.model();
            format!(
                "{} parameters, {} layers of width {}",
                billions(model.parameters()),
                model.layers(),
                model.hidden
            )
        }
        (Some(scenario), _) => {
            let job = scenario.job();
            format!("{} tokens, {}", grouped(job.sequence as f64), count(job.global_batch, "sequence"))
        }
        (None, _) => answer.point.join(" "),
    }
}

/// The gain of each change over the first answer.
pub fn gains(answers: &[Answer]) -> Vec<String> {
    let speed = |answer: &Answer| answer.outcome.as_ref().ok().map(|planned| planned.forecast.tokens_per_s);
    let Some(base) = answers.first().and_then(speed) else {
        return vec!["As it is, nothing fits.".into()];
    };
    let mut gains: Vec<(f64, &Answer)> =
        answers[1..].iter().filter_map(|answer| Some((speed(answer)? / base - 1.0, answer))).collect();
    gains.sort_by(|a, b| b.0.total_cmp(&a.0));
    gains
        .iter()
        .map(|(gain, answer)| format!("{:+.1} % tokens/s: {}", 100.0 * gain, answer.point[0]))
        .collect()
}

/// Speed for each GPU over that of the first answer that has a plan.
pub fn efficiency(answers: &[Answer]) -> Vec<String> {
    let speed =
        |answer: &Answer| answer.outcome.as_ref().ok().map(|planned| planned.forecast.tokens_per_s_per_gpu);
    let planned: Vec<(&Answer, f64)> =
        answers.iter().filter_map(|answer| Some((answer, speed(answer)?))).collect();
    match planned.as_slice() {
        [(first, start), .., (last, end)] => vec![format!(
            "From {} to {}: {:.1} % of the speed for each GPU remains.",
            gpus(first),
            gpus(last),
            100.0 * end / start
        )],
        [(only, _)] => vec![format!("Only {} have a plan.", gpus(only))],
        [] => vec!["No number of GPUs has a plan.".into()],
    }
}

/// Model and tokens, and what they take.
pub fn optimum(found: &ComputeOptimal, law: &str) -> Vec<String> {
    let ComputeOptimal { budget, optimum, answer } = found;
    let mut lines = vec![
        format!(
            "{:.3e} FLOPs are spent best on {} parameters and {} tokens, {:.1} tokens for each parameter \
             (law {law}, loss {:.3}).",
            budget.get(),
            amount(optimum.parameters),
            amount(optimum.tokens),
            optimum.tokens / optimum.parameters,
            optimum.loss,
        ),
        format!("The nearest model of this shape: {}.", size(answer, "model")),
    ];
    if answer.outcome.is_ok() {
        lines.push(format!("On {}: {}.", gpus(answer), run_of(answer)));
    }
    lines
}

fn gpus(answer: &Answer) -> String {
    answer.scenario.as_ref().map_or_else(
        || answer.point.join(" "),
        |scenario| {
            format!(
                "{} ({})",
                count(scenario.cluster().gpus(), "GPU"),
                count(scenario.cluster().nodes, "node")
            )
        },
    )
}

fn run_of(answer: &Answer) -> String {
    let Some(run) = answer.wanted_run() else { return "no plan".into() };
    let cost = run.cost.map_or(String::new(), |cost| format!(", {} USD", grouped(cost.get())));
    let energy = run.energy.map_or(String::new(), |energy| format!(", {} MWh", digits(energy.as_mwh())));
    format!(
        "{} days, {} steps, {} GPU-hours{cost}{energy}",
        digits(run.time.as_days()),
        grouped(run.steps),
        grouped(run.gpu_hours)
    )
}
