//! Answers as curves: speed by what was varied, and cost by time.

use crate::answer::Answer;
use crate::pareto::{Cost, front};
use crate::sweep::Axis;
use trainwright_pictures::plot::{Chart, ChartCurve, ChartPanel, Mark};

/// The chart of a sweep.
///
/// Left, tokens per second over the axis `across`, or over the GPUs if there is none; right, what the run, or a billion
/// tokens, costs over the time it takes. A curve for each combination of the other axes' values, and one for the front
/// of time and cost.
pub fn chart(title: &str, axes: &[Axis], across: Option<usize>, answers: &[Answer]) -> Chart {
    let cost = Cost::of(answers);
    let numbers = across.and_then(|index| axes[index].numbers());
    let x = |answer: &Answer| -> Option<f64> {
        match (across, &numbers) {
            (Some(index), Some(numbers)) => {
                let place = axes[index].values.iter().position(|value| *value == answer.point[index])?;
                Some(numbers[place])
            }
            _ => Some(answer.scenario.as_ref()?.cluster().gpus() as f64),
        }
    };
    let varied = |answer: &Answer| -> String {
        let others = axes.iter().enumerate().filter(|(index, _)| Some(*index) != across);
        others
            .map(|(index, axis)| format!("{} {}", axis.input, answer.point[index]))
            .collect::<Vec<_>>()
            .join(", ")
    };
    let place = |answer: &Answer| Some((answer.wanted_run()?.time.as_days(), cost.value(answer)?));
    let speed = |answer: &Answer| Some((x(answer)?, answer.outcome.as_ref().ok()?.forecast.tokens_per_s));

    let mut names: Vec<String> = Vec::new();
    for answer in answers {
        let name = varied(answer);
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let mut curves: Vec<ChartCurve> = names
        .into_iter()
        .map(|name| {
            let series = || answers.iter().filter(|answer| varied(answer) == name);
            let mut points =
                [series().filter_map(speed).collect(), series().filter_map(place).collect::<Vec<_>>()];
            points[0].sort_by(|a: &(f64, f64), b| a.0.total_cmp(&b.0));
            let mark = if points[0].len() > 1 { Mark::Line } else { Mark::Points };
            let name = if name.is_empty() { "forecast".into() } else { name };
            ChartCurve { name, mark, points }
        })
        .collect();
    // Joined in the order of the sweep, curves of time and cost would cross themselves.
    for curve in &mut curves {
        curve.points[1].sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    let on_front = answers.iter().zip(front(answers, cost)).filter(|(_, on)| *on).map(|(answer, _)| answer);
    let mut best: Vec<(f64, f64)> = on_front.filter_map(place).collect();
    best.sort_by(|a, b| a.0.total_cmp(&b.0));
    curves.push(ChartCurve { name: "Pareto front".into(), mark: Mark::Points, points: [Vec::new(), best] });

    let run = match answers
        .iter()
        .filter_map(|answer| answer.scenario.as_ref())
        .any(|s| s.rates.tokens.is_some())
    {
        true => "the run",
        false => "a billion tokens",
    };
    let across = across.map_or("GPUs", |index| axes[index].input.as_str());
    let unit = match cost {
        Cost::Dollars => "USD",
        Cost::GpuHours => "GPU-hours",
    };
    Chart {
        title: title.into(),
        panels: [
            ChartPanel { across: across.into(), up: "tokens/s".into() },
            ChartPanel { across: format!("days for {run}"), up: format!("{unit} for {run}") },
        ],
        curves,
    }
}
