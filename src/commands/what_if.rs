//! `what-if`: sweeps, and the questions that people ask most.

use crate::arguments::{Asked, WhatIfArguments};
use crate::error::{CliError, Outcome};
use crate::inputs::what_if::{self as inputs, Sweep};
use crate::output;
use crate::progress::Bar;
use crate::render::report;
use crate::render::what_if::{self as page, Page};
use std::time::{Duration, Instant};
use trainwright_pictures::plot::{chart_png, chart_svg};
use trainwright_sim::costs::ClusterCosts;
use trainwright_sim::forecast;
use trainwright_spec::units::Flops;
use trainwright_whatif::answer::{Answer, Planned};
use trainwright_whatif::law::ScalingLaw;
use trainwright_whatif::picture::chart;
use trainwright_whatif::questions::{
    Budget, Scaling, compute_optimal, gpus_needed, largest_model, longest_sequence, scaling, upgrades,
};
use trainwright_whatif::sweep::{Axis, Watch, sweep};
use trainwright_whatif::table::csv;

/// Runs the command.
///
/// # Errors
/// Bad input and files that cannot be written; points without a plan are answers.
pub fn run(arguments: &WhatIfArguments) -> Result<Outcome, CliError> {
    let files = [
        ("--csv", &arguments.csv),
        ("--svg", &arguments.svg),
        ("--png", &arguments.png),
        ("--report", &arguments.report),
    ];
    let alone = output::stdout_is_taken(&files, arguments.json)?;
    let question = inputs::sweep(arguments)?;
    let page = {
        let bar = Bar::new();
        let limit = arguments.time_limit.map(Duration::from_secs_f64);
        let end = limit.and_then(|limit| Instant::now().checked_add(limit));
        answered(arguments, &question, Watch { progress: &|done, total| bar.points(done, total), end })?
    };
    // The files first, so that a reader who closes standard output early does not lose them.
    let written = write_files(arguments, &question, &page);
    if arguments.json {
        output::print(&page::json(&page))?;
    } else if !alone {
        output::print(&page::page(&page))?;
    }
    written?;
    let fits = page.answers.iter().any(|answer| answer.outcome.is_ok());
    Ok(if fits { Outcome::Done } else { Outcome::NothingFits })
}

fn answered(arguments: &WhatIfArguments, question: &Sweep, watch: Watch) -> Result<Page, CliError> {
    let base = &question.base;
    let refuse = |reason: String| CliError::NoAnswer { reason };
    let of = |names: &[&str], answers: Vec<Answer>, headline: Vec<String>| {
        let axes = names.iter().enumerate().map(|(index, name)| axis(name, index, &answers)).collect();
        Page { base: base.clone(), axes, answers, headline }
    };
    Ok(match arguments.asked {
        Asked::Sweep | Asked::Rent => {
            let answers = sweep(base, &question.axes, watch).map_err(|reason| CliError::Vary { reason })?;
            let headline = match arguments.asked {
                Asked::Rent => page::cheapest(&answers, question.limit),
                _ => Vec::new(),
            };
            Page { base: base.clone(), axes: question.axes.clone(), answers, headline }
        }
        Asked::GpusNeeded => {
            let limit = question.limit.ok_or_else(|| refuse("a time is missing".into()))?;
            let found = gpus_needed(base, limit, arguments.up_to, watch);
            let headline = page::fewest(&found, limit);
            of(&["nodes"], found.answers, headline)
        }
        Asked::LargestModel => {
            let found = largest_model(base, watch);
            let headline = page::largest(&found, "model");
            of(&["model-size"], found.answers, headline)
        }
        Asked::LongestSequence => {
            let found = longest_sequence(base, watch);
            let headline = page::largest(&found, "sequence");
            of(&["seq", "global-batch"], found.answers, headline)
        }
        Asked::Upgrades => {
            let answers = upgrades(base, watch);
            let headline = page::gains(&answers);
            of(&["what is better"], answers, headline)
        }
        Asked::StrongScaling | Asked::WeakScaling => {
            let kind = if arguments.asked == Asked::WeakScaling { Scaling::Weak } else { Scaling::Strong };
            let answers = scaling(base, kind, arguments.up_to, watch);
            let headline = page::efficiency(&answers);
            of(&["nodes", "global-batch"], answers, headline)
        }
        Asked::ComputeOptimal => {
            let law = ScalingLaw::from_name(&arguments.law)
                .map_err(|error| CliError::of_input(Some("--law"), error))?;
            let budget = match (arguments.flops, question.limit) {
                (Some(flops), _) => Budget::Flops(Flops::new(flops)),
                (None, Some(limit)) => Budget::Time(limit),
                (None, None) => return Err(refuse("a budget is missing".into())),
            };
            let found = compute_optimal(base, budget, &law, watch).map_err(refuse)?;
            let headline = page::optimum(&found, &arguments.law);
            of(&["model-size", "tokens"], vec![found.answer], headline)
        }
    })
}

/// The axis that a question has varied itself.
fn axis(name: &str, index: usize, answers: &[Answer]) -> Axis {
    let mut values: Vec<String> = Vec::new();
    for answer in answers {
        let value = &answer.point[index];
        if !values.contains(value) {
            values.push(value.clone());
        }
    }
    Axis { input: name.into(), values }
}

fn write_files(arguments: &WhatIfArguments, question: &Sweep, page: &Page) -> Result<(), CliError> {
    output::save_given("--csv", &arguments.csv, || {
        let names: Vec<String> = page.axes.iter().map(|axis| axis.input.clone()).collect();
        csv(&names, &page.answers)
    })?;
    let drawn = || {
        // A question draws along the GPUs where the axes that it chose itself are not independent.
        let across = if question.axes.is_empty() { None } else { question.across };
        let axes = if question.axes.is_empty() { &[] } else { page.axes.as_slice() };
        chart(&page.title(), axes, across, &page.answers)
    };
    output::save_given("--svg", &arguments.svg, || chart_svg(&drawn()))?;
    output::save_given("--png", &arguments.png, || chart_png(&drawn()))?;
    if let Some(path) = &arguments.report {
        let fastest = fastest(&page.answers);
        let timeline = match fastest {
            Some((_, planned)) => {
                let costs = ClusterCosts::new(&planned.plan.cluster);
                Some(forecast(&planned.plan, &costs)?.1)
            }
            None => None,
        };
        let fastest = fastest.map(|(answer, _)| answer).zip(timeline.as_ref());
        let text = report::swept(page, &drawn(), fastest);
        output::save("--report", path, text)?;
    }
    Ok(())
}

/// The answer that trains most tokens in a second.
fn fastest(answers: &[Answer]) -> Option<(&Answer, &Planned)> {
    let planned = answers.iter().filter_map(|answer| Some((answer, answer.outcome.as_ref().ok()?)));
    planned.max_by(|a, b| a.1.forecast.tokens_per_s.total_cmp(&b.1.forecast.tokens_per_s))
}
