//! The aims of the scoreboard, and how far they are reached.

use super::unseen::is_unseen;
use super::{Row, Rows};
use crate::render::table::Table;
use crate::render::words::dash;
use trainwright_evidence::reliability::{Of, Regret, coverages, judged, regret};
use trainwright_evidence::runs::{Prediction, Run};
use trainwright_evidence::statistics::{mean, median, quantile};
use trainwright_evidence::summary::{Summary, TimeErrors};
use trainwright_spec::calibration::{Calibration, Figures};

/// Runs of a slice whose range is to hold, and of a sweep whose choice is judged.
const SLICE: usize = 50;
const SWEEP: usize = 4;
/// What ranges of 80 % may hold of a slice.
const HELD: std::ops::RangeInclusive<f64> = 0.77..=0.83;

/// An aim, and today's value.
struct Aim {
    what: String,
    at: String,
    reached: Option<f64>,
    holds: bool,
}

/// Errors of step times: |forecast / measured − 1|.
struct Errors {
    median: f64,
    mean: f64,
    p90: f64,
}

/// The table of aims, in Markdown.
pub fn table(rows: Rows, summary: &Summary, calibration: &Calibration) -> String {
    let verdict = |aim: &Aim| match (aim.reached, aim.holds) {
        (None, _) => "no row",
        (_, true) => "met",
        (_, false) => "missed",
    };
    Table::of(&aims(rows, summary, calibration))
        .left("aim, in %", |aim| &aim.what)
        .right("at", |aim| &aim.at)
        .right("reached", |aim| aim.reached.map_or_else(dash, |value| format!("{value:.1}")))
        .left("", |aim| if aim.at.is_empty() { "" } else { verdict(aim) })
        .markdown()
}

fn aims(rows: Rows, summary: &Summary, calibration: &Calibration) -> Vec<Aim> {
    let left_out = calibration.sources.iter().find(|source| source.name == "all").map(|all| &all.left_out);
    let of_left_out = |of: fn(&Figures) -> f64| left_out.map(of);
    let a = summary.group("quality", "A");
    let of_a = |of: fn(&TimeErrors) -> f64| Some(100.0 * of(a?.time.as_ref()?));
    let unseen = errors(rows, |run, _| is_unseen(run, calibration));
    let tensor = |ranks: usize| {
        errors(rows, |run, prediction| {
            run.tp == Some(ranks) && prediction.traits.kind.spread.tensor_over_nodes
        })
    };
    let experts = errors(rows, |_, prediction| prediction.traits.kind.experts);
    let gpu = |name: &'static str| errors(rows, move |run, _| run.gpu.starts_with(name));
    let all = summary.groups.first();
    let judged = judged(rows);
    let [regret_all, regret_one] = [false, true].map(|one_node| regret(&judged, SWEEP, one_node));
    let of_regret =
        |regret: &Option<Regret>, of: fn(&Regret) -> f64| regret.as_ref().map(|it| 100.0 * of(it));
    let slices: Vec<(f64, bool)> = [Of::Time, Of::Memory]
        .into_iter()
        .flat_map(|of| coverages(&judged, of, SLICE))
        .map(|slice| (slice.inside[1], HELD.contains(&slice.inside[1])))
        .collect();
    let held = slices.iter().filter(|(_, holds)| *holds).count();
    let quality = "step time, quality A, each source left out of the fit";
    vec![
        Aim::at_most(4.0, format!("{quality}: median error"), of_left_out(|figures| figures.median)),
        Aim::at_most(8.0, format!("{quality}: mean error"), of_left_out(|figures| figures.mean)),
        Aim::at_most(15.0, format!("{quality}: 90th percentile"), of_left_out(|figures| figures.p90)),
        Aim::compared("the same in the fit: median error", of_a(|time| time.median)),
        Aim::compared("the same in the fit: mean error", of_a(|time| time.mean)),
        Aim::compared(
            "null model, quality A: median error",
            a.and_then(|a| Some(100.0 * a.null.as_ref()?.median)),
        ),
        Aim::at_most(7.0, "sources that no fit has seen: median error", unseen.as_ref().map(|it| it.median)),
        Aim::at_most(
            10.0,
            "tensor groups of 16 ranks over nodes: median error",
            tensor(16).map(|it| it.median),
        ),
        Aim::at_most(
            10.0,
            "tensor groups of 32 ranks over nodes: median error",
            tensor(32).map(|it| it.median),
        ),
        Aim::at_most(9.0, "mixtures of experts: median error", experts.as_ref().map(|it| it.median)),
        Aim::compared("mixtures of experts: mean error", experts.as_ref().map(|it| it.mean)),
        Aim::at_most(8.0, "B200: median error", gpu("b200").map(|it| it.median)),
        Aim::at_most(10.0, "V100 16 GB: median error", gpu("v100-16gb").map(|it| it.median)),
        Aim::at_most(15.0, "GH200: median error", gpu("gh200").map(|it| it.median)),
        Aim::compared("GH200: 90th percentile", gpu("gh200").map(|it| it.p90)),
        Aim::at_most(
            4.0,
            "memory, all rows: mean error",
            all.and_then(|all| Some(100.0 * all.memory.as_ref()?.mean)),
        ),
        Aim::at_least(
            97.5,
            "runs that fit or not, forecast right",
            all.map(|all| 100.0 * all.outcomes.right()),
        ),
        Aim::at_most(4.0, "regret of sweeps: mean", of_regret(&regret_all, |it| it.mean)),
        Aim::at_most(0.5, "regret of sweeps: median", of_regret(&regret_all, |it| it.median)),
        Aim::at_most(3.0, "regret of sweeps on one node: mean", of_regret(&regret_one, |it| it.mean)),
        Aim::at_least(
            85.0,
            "order in sweeps of quality A: median of Kendall's τ",
            of_a(|time| time.order.unwrap_or(0.0)),
        ),
        Aim {
            what: format!("slices of {SLICE} runs and more of which ranges of 80 % hold 77 to 83 %"),
            at: "100".into(),
            reached: (!slices.is_empty()).then(|| 100.0 * held as f64 / slices.len() as f64),
            holds: held == slices.len(),
        },
    ]
}

/// The errors of the rows with a measured step time for which `belongs` is true; `None` if there are none.
fn errors(rows: Rows, belongs: impl Fn(&Run, &Prediction) -> bool) -> Option<Errors> {
    let error = |(run, prediction): &Row| {
        let (run, prediction) = (run.as_ref().ok()?, prediction.as_ref().ok()?);
        let error = 100.0 * (prediction.step_seconds / run.step_seconds()? - 1.0).abs();
        belongs(run, prediction).then_some(error)
    };
    let errors: Vec<f64> = rows.iter().filter_map(error).collect();
    (!errors.is_empty()).then(|| Errors {
        median: median(&errors),
        mean: mean(&errors),
        p90: quantile(&errors, 0.9),
    })
}

impl Aim {
    fn at_most(limit: f64, what: impl Into<String>, reached: Option<f64>) -> Self {
        let holds = reached.is_some_and(|value| value <= limit);
        Self { what: what.into(), at: format!("≤ {limit}"), reached, holds }
    }

    fn at_least(limit: f64, what: impl Into<String>, reached: Option<f64>) -> Self {
        let holds = reached.is_some_and(|value| value >= limit);
        Self { what: what.into(), at: format!("≥ {limit}"), reached, holds }
    }

    /// A figure without an aim.
    fn compared(what: &str, reached: Option<f64>) -> Self {
        Self { what: format!("({what})"), at: String::new(), reached, holds: true }
    }
}
