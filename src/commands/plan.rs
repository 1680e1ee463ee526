//! `plan`: the fastest plans for a question.

use super::pictures;
use crate::arguments::{PlanArguments, Space};
use crate::calls;
use crate::error::{CliError, Outcome};
use crate::inputs::calibration::confidence_of;
use crate::progress::Bar;
use crate::render::{json, plans, refusal, report};
use crate::{inputs, output};
use std::sync::atomic::{AtomicBool, Ordering};
use trainwright_planner::{
    Found, Nodes, PlannerError, Question, Ranked, Scope, Verdict, plan_until, sensitivity,
};
use trainwright_sim::costs::ClusterCosts;
use trainwright_sim::forecast;
use trainwright_spec::units::Seconds;

/// Whether a signal has asked for the answer so far.
static ANSWER_NOW: AtomicBool = AtomicBool::new(false);

/// What an interrupted search remarks.
const ANSWERS: &str = "interrupted: the answer so far follows; once more to end at once";

/// Lets the first signal to end ask for the answer so far; the second one ends the program.
pub fn answer_when_interrupted() {
    output::when_interrupted(|| {
        let is_first = !ANSWER_NOW.swap(true, Ordering::SeqCst);
        if is_first {
            output::remark(ANSWERS);
        }
        is_first
    });
}

/// Runs the command.
///
/// # Errors
/// Bad input, files that cannot be read or written, and questions without any legal plan.
pub fn run(arguments: &PlanArguments) -> Result<Outcome, CliError> {
    let files = [("--out", &arguments.out), ("--report", &arguments.report)];
    let files = [&files[..], &pictures::files(&arguments.pictures)].concat();
    let alone = output::stdout_is_taken(&files, arguments.json)?;
    let question = inputs::question(&arguments.question, &arguments.pins, &arguments.risk)?;
    let verdict = {
        let bar = Bar::new();
        let time = arguments.time_limit.map(Seconds::new);
        let nodes = match arguments.pins.space {
            Space::Auto if !arguments.all_nodes => Nodes::UpToAll,
            _ => Nodes::All,
        };
        let scope = Scope { time, nodes, ..Scope::default() };
        let call = calls::current();
        let stop = || match &call {
            Some(call) => call.watch().is_stopped(),
            None => ANSWER_NOW.load(Ordering::Relaxed),
        };
        match plan_until(&question, scope, &stop, &|progress| bar.search(&progress)) {
            Err(error @ PlannerError::NoCandidate { .. }) if arguments.json && !alone => {
                output::print(&json::no_candidate(&question, &error.to_string()))?;
                return Err(error.into());
            }
            verdict => verdict?,
        }
    };
    match verdict {
        Verdict::Found(mut found) => {
            found.ranked.truncate(arguments.top);
            // The file first, so that a reader who closes standard output early does not lose it.
            let written = output::save_given("--out", &arguments.out, || {
                let plan = &found.ranked[0].plan;
                if arguments.inline { plan.to_toml() } else { plan.to_short_toml() }
            });
            let written = written.and_then(|()| write_pictures(arguments, &question, &found));
            if !alone {
                output::print(&answer(&question, &found, arguments)?)?;
            }
            written?;
            match arguments.out.as_deref() {
                Some(path) if !alone && !arguments.json => output::print(&next_step(path))?,
                _ => {}
            }
            Ok(Outcome::Done)
        }
        Verdict::Infeasible(infeasible) => {
            let text = match arguments.json {
                true => json::infeasible(&question, &infeasible),
                false => refusal::page(&question, &infeasible),
            };
            if alone {
                output::say(text.trim_end())
            } else {
                output::print(&text)?
            }
            Ok(Outcome::NothingFits)
        }
        Verdict::OutOfTime(search) => {
            let text = match arguments.json {
                true => json::out_of_time(&question, &search),
                false => refusal::out_of_time(&question, &search),
            };
            if alone {
                output::say(text.trim_end())
            } else {
                output::print(&text)?
            }
            Ok(Outcome::NothingFits)
        }
    }
}

/// The report and the pictures, which show the best plan's step.
fn write_pictures(arguments: &PlanArguments, question: &Question, found: &Found) -> Result<(), CliError> {
    if arguments.report.is_none() && !pictures::are_wanted(&arguments.pictures) {
        return Ok(());
    }
    let best = &found.ranked[0];
    let given = arguments.question.calibration.as_deref();
    let confidence = confidence_of(&best.plan, &best.forecast, given)?;
    let (_, timeline) = forecast(&best.plan, &ClusterCosts::new(&best.plan.cluster))?;
    pictures::write(&arguments.pictures, &best.plan, &timeline)?;
    output::save_given("--report", &arguments.report, || {
        report::planned(question, found, &confidence, &timeline)
    })
}

fn answer(question: &Question, found: &Found, arguments: &PlanArguments) -> Result<String, CliError> {
    let changes = if arguments.sensitivity { sensitivity(found)? } else { Vec::new() };
    let given = arguments.question.calibration.as_deref();
    let trust = |ranked: &Ranked| confidence_of(&ranked.plan, &ranked.forecast, given);
    let trust = found.ranked.iter().map(trust).collect::<Result<Vec<_>, _>>()?;
    if arguments.json {
        return Ok(json::found(question, found, &trust, &changes));
    }
    Ok(plans::page(question, found, &trust, &changes, output::columns()))
}

fn next_step(path: &str) -> String {
    format!("\nThe best plan is in {path}; `trainwright simulate {path}` shows all of its forecast.\n")
}
