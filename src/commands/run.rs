//! `run`: trains with a plan on this machine.

use crate::arguments::{AttentionChoice, OptimizerArguments, RunArguments, Switch};
use crate::error::{CliError, Outcome, refuse};
use crate::progress::TrainingBar;
use crate::render::training;
use crate::{inputs, output};
use std::num::NonZeroUsize;
use std::time::Duration;
use trainwright_executor::{
    AttentionBy, LearningRate, Saving, Settings, Start, StepReport, Tokens, train, train_in_processes,
};
use trainwright_spec::plan::Plan;
use trainwright_timeline::chrome::write_chrome;

/// Runs the command.
///
/// # Errors
/// Bad input, a plan that the executor does not run, a rank that stops, and files that cannot be written.
pub fn run(arguments: &RunArguments) -> Result<Outcome, CliError> {
    output::stdout_is_taken(&[("--trace", &arguments.trace)], arguments.json)?;
    let plan = inputs::plan(&arguments.plan, &[], None)?;
    check(&arguments.optimizer, &plan)?;
    let tokens = tokens(arguments, &plan)?;
    let place = inputs::launched::place(inputs::launched::transport(arguments.transport))?;
    let mut settings = settings(arguments);
    if let (Some(place), None) = (&place, arguments.threads) {
        settings.threads = inputs::launched::threads(place.world)?;
    }
    let silent = arguments.json || place.as_ref().is_some_and(|place| place.rank > 0);
    let print = |text: &str| if silent { Ok(()) } else { output::print(text) };
    print(&training::title(&plan, &tokens))?;
    let mut printed = Ok(());
    let bar = TrainingBar::new(!silent, arguments.steps);
    let mut show = |report: &StepReport| {
        if printed.is_ok() {
            printed = bar.above(|| print(&training::step(&plan, report)));
        }
        bar.show(report.step, || training::progress(&plan, report, arguments.steps));
    };
    let outcome = match &place {
        Some(place) => train_in_processes(place, &plan, &tokens, &settings, &mut show)?,
        None => Some(train(&plan, &tokens, &settings, &mut show)?),
    };
    drop(bar);
    printed?;
    // Rank 0 alone knows of all.
    let Some(outcome) = outcome else { return Ok(Outcome::Done) };
    match arguments.json {
        true => output::print(&training::json(&plan, &outcome))?,
        false => {
            let end = [
                training::end(&plan, &outcome.steps),
                training::routes(&outcome.routes),
                training::graph(outcome.graph.as_ref()),
                training::attention(outcome.attention.as_deref()),
                training::deterministic(outcome.deterministic),
                training::device_memory(outcome.device_memory.first()),
            ];
            output::print(&end.concat())?;
        }
    }
    if let Some(path) = &arguments.trace {
        output::write("--trace", path, |mut out| write_chrome(&outcome.timeline, &mut out))?;
    }
    Ok(Outcome::Done)
}

fn settings(arguments: &RunArguments) -> Settings {
    let start = match (&arguments.from, &arguments.resume) {
        (Some(folder), _) => Start::Weights(folder.into()),
        (None, Some(folder)) => Start::Resume(folder.into()),
        (None, None) => Start::Anew,
    };
    let cores = || std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    Settings {
        steps: arguments.steps,
        seed: arguments.seed.unwrap_or(0),
        start,
        saving: arguments.save.as_ref().map(|folder| Saving {
            folder: folder.into(),
            every: arguments.save_every,
            keep: arguments.keep,
        }),
        patience: Duration::from_secs(arguments.patience as u64),
        fault: arguments.drill,
        learning_rate: learning_rate(&arguments.optimizer, arguments.steps),
        weight_decay: arguments.optimizer.weight_decay,
        decays_embeddings: !arguments.optimizer.no_embedding_decay,
        betas: [arguments.optimizer.beta1, arguments.optimizer.beta2],
        adam_epsilon: arguments.optimizer.epsilon,
        largest_gradient_norm: arguments.optimizer.clip.unwrap_or(1.0),
        device: arguments.device,
        graph: arguments.graph == Switch::On,
        attention: arguments.attention.map(|choice| match choice {
            AttentionChoice::Own => AttentionBy::Ours,
            AttentionChoice::Cudnn => AttentionBy::Cudnn,
        }),
        deterministic: arguments.deterministic,
        threads: arguments.threads.unwrap_or_else(cores),
        ..Settings::default()
    }
}

fn learning_rate(arguments: &OptimizerArguments, steps: usize) -> LearningRate {
    let end = arguments.decay_until.unwrap_or(steps);
    LearningRate {
        peak: arguments.learning_rate,
        warmup: arguments.warmup,
        schedule: arguments.rate_schedule,
        end,
        cooldown: arguments.cooldown.unwrap_or(end / 5),
        floor: arguments.final_learning_rate,
    }
}

/// Refuses arguments that do not suit each other or the plan.
fn check(arguments: &OptimizerArguments, plan: &Plan) -> Result<(), CliError> {
    let OptimizerArguments { learning_rate, final_learning_rate, .. } = *arguments;
    if final_learning_rate > learning_rate {
        let allowed = format!("it is at most --learning-rate, {learning_rate}");
        return Err(refuse("--final-learning-rate", final_learning_rate, allowed));
    }
    match arguments.clip {
        Some(norm) if !plan.job.gradient_clipping => {
            let allowed = "the plan's job has `gradient_clipping = false`: set it to true, or leave this out";
            Err(refuse("--clip", norm, allowed))
        }
        _ => Ok(()),
    }
}

/// A text's tokens, or made-up ones for some dozens of steps.
fn tokens(arguments: &RunArguments, plan: &Plan) -> Result<Tokens, CliError> {
    let Some(path) = &arguments.data else {
        let count = plan.job.tokens().saturating_mul(32).min(MOST_MADE_UP);
        // Always the same ones, so that a resumed run finds them again.
        return Ok(Tokens::synthetic(plan.model.vocab, count.max(plan.job.sequence + 1), 0));
    };
    let text = inputs::bytes(Some("--data"), path)?;
    Ok(match &arguments.tokenizer {
        Some(tokenizer) => Tokens::tokenized(&text, tokenizer.as_ref())?,
        None => Tokens::bytes(&text),
    })
}

/// Made-up tokens are in memory, 4 bytes each.
const MOST_MADE_UP: usize = 1 << 26;
