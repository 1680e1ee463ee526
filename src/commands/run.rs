//! `run`: trains with a plan on this machine.

use crate::arguments::RunArguments;
use crate::error::{CliError, Outcome};
use crate::render::training;
use crate::{inputs, output};
use std::num::NonZeroUsize;
use trainwright_executor::{LearningRate, Settings, StepReport, Tokens, train};
use trainwright_spec::plan::Plan;
use trainwright_traces::chrome::write_chrome;

/// Runs the command.
///
/// # Errors
/// Bad input, a plan that the executor does not run, a rank that stops, and files that cannot be written.
pub fn run(arguments: &RunArguments) -> Result<Outcome, CliError> {
    let plan = inputs::plan(&arguments.plan, &[], None)?;
    let tokens = tokens(arguments, &plan)?;
    let settings = Settings {
        steps: arguments.steps,
        seed: arguments.seed,
        learning_rate: LearningRate { peak: arguments.learning_rate, warmup: arguments.warmup },
        weight_decay: arguments.weight_decay,
        threads: std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN),
        ..Settings::default()
    };
    output::print(&training::title(&plan, &tokens))?;
    let mut printed = Ok(());
    let mut show = |report: &StepReport| {
        if printed.is_ok() {
            printed = output::print(&training::step(&plan, report));
        }
    };
    let outcome = train(&plan, &tokens, &settings, &mut show)?;
    printed?;
    output::print(&training::end(&plan, &outcome.steps))?;
    if let Some(path) = &arguments.trace {
        output::write("--trace", path, |mut out| write_chrome(&outcome.timeline, &mut out))?;
    }
    Ok(Outcome::Done)
}

/// The bytes of a file, or made-up tokens for some dozens of steps.
fn tokens(arguments: &RunArguments, plan: &Plan) -> Result<Tokens, CliError> {
    Ok(match &arguments.data {
        Some(path) => Tokens::bytes(&inputs::bytes(Some("--data"), path)?),
        None => {
            let count = plan.job.tokens().saturating_mul(32).min(MOST_MADE_UP);
            Tokens::synthetic(plan.model.vocab, count.max(plan.job.sequence + 1), arguments.seed)
        }
    })
}

/// Made-up tokens are in memory, 4 bytes each.
const MOST_MADE_UP: usize = 1 << 26;
