//! `curves`: the losses of trainings by step, out of files of `run --metrics`.

use crate::arguments::CurvesArguments;
use crate::error::{CliError, Outcome};
use crate::inputs::metrics::{LoggedRun, LoggedStep, logged_run};
use crate::output;
use crate::render::curves;
use trainwright_pictures::plot::{TrainingCurves, training_png, training_svg};

/// Runs the command.
///
/// # Errors
/// Files that cannot be read or written, or have no steps.
pub fn run(arguments: &CurvesArguments) -> Result<Outcome, CliError> {
    let files = [("--svg", &arguments.svg), ("--png", &arguments.png)];
    let alone = output::stdout_is_taken(&files, arguments.json)?;
    let runs = arguments.metrics.iter().map(|path| logged_run(path));
    let runs: Vec<LoggedRun> = runs.collect::<Result<_, _>>()?;
    let names: Vec<&str> = runs.iter().map(|run| run.name.as_str()).collect();
    let title = arguments.title.clone().unwrap_or_else(|| names.join(", "));
    let drawn: Vec<TrainingCurves> = runs.iter().map(|run| drawn(run, runs.len() > 1)).collect();
    output::save_given("--svg", &arguments.svg, || training_svg(&title, &drawn))?;
    output::save_given("--png", &arguments.png, || training_png(&title, &drawn))?;
    if !alone {
        output::print(&if arguments.json { curves::json(&runs) } else { curves::page(&runs) })?;
    }
    Ok(Outcome::Done)
}

fn drawn(run: &LoggedRun, is_named: bool) -> TrainingCurves {
    let curve = |value: &dyn Fn(&LoggedStep) -> Option<f64>| {
        run.steps.iter().filter_map(|step| Some((step.step as f64, value(step)?))).collect()
    };
    TrainingCurves {
        name: if is_named { run.name.clone() } else { String::new() },
        loss: curve(&|step| Some(step.loss)),
        validation: curve(&|step| step.validation_loss),
        norm: curve(&|step| step.gradient_norm),
    }
}
