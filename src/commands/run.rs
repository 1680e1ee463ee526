//! `run`: trains with a plan on this machine.

mod elastic;
mod expected;
mod supervised;
mod supervisor;

pub use supervised::ATTEMPT;

use crate::arguments::{
    AttentionChoice, OptimizerArguments, RunArguments, SampleArguments, Switch, TransportChoice,
};
use crate::error::{CliError, Outcome, refuse};
use crate::logs::StepLogs;
use crate::progress::TrainingBar;
use crate::render::training;
use crate::{inputs, output};
use expected::Expected;
use std::num::NonZeroUsize;
use std::time::Duration;
use trainwright_executor::{
    AttentionBy, LearningRate, Remark, Saving, Settings, Start, StepReport, TextCoder, TrainingSample, train,
    train_in_processes,
};
use trainwright_spec::plan::Plan;
use trainwright_timeline::chrome::write_chrome;

/// What an interrupted run remarks.
const ENDS: &str = "the run ends after this step with a checkpoint; another signal ends it at once";

/// Runs the command.
///
/// # Errors
/// Bad input, a plan that the executor does not run, a rank that stops, and files that cannot be written.
pub fn run(arguments: &RunArguments) -> Result<Outcome, CliError> {
    output::stdout_is_taken(&[("--trace", &arguments.trace)], arguments.json)?;
    let attempt = supervised::attempt()?;
    if supervisor::is_wanted(arguments) && attempt.is_none() {
        return supervisor::run(arguments);
    }
    let plan = inputs::plan(&supervised::plan(attempt, &arguments.plan), &[], None)?;
    check(&arguments.optimizer, &plan)?;
    if attempt.is_none_or(|attempt| attempt == 0) {
        check_drill(arguments, &plan)?;
    }
    let (tokens, validation) = inputs::data::data(&arguments.data, &plan)?;
    let transport = arguments.transport.or(arguments.launch.then_some(TransportChoice::Tcp));
    let place = inputs::launched::place(inputs::launched::transport(transport))?;
    let coder = TextCoder::of(&tokens);
    let sample = sample(&arguments.sample, coder.as_ref())?;
    let position_limit = inputs::configuration::position_limit(&plan.model);
    let mut settings = Settings { validation, sample, position_limit, ..settings(arguments) };
    if let Some(attempt) = attempt {
        settings = supervised::settings(attempt, settings);
        if supervised::is_complete(attempt, &settings) {
            return Ok(Outcome::Done);
        }
    }
    if let (Some(place), None) = (&place, arguments.threads) {
        settings.threads = inputs::launched::threads(place.world)?;
    }
    if settings.saving.is_some() {
        let stop = settings.stop.clone();
        // The processes that one supervisor started get its signals together: one of them says so.
        let says = attempt.is_none() || place.as_ref().is_none_or(|place| place.rank == 0);
        output::when_interrupted(move || {
            let ends = stop.request();
            if ends && says {
                output::remark(ENDS);
            }
            ends
        });
    }
    if attempt.is_some() {
        supervised::listen_to_supervisor();
    }
    let silent = arguments.json || place.as_ref().is_some_and(|place| place.rank > 0);
    let print = |text: &str| if silent { Ok(()) } else { output::print(text) };
    print(&training::title(&plan, &tokens, &settings))?;
    let leads = place.as_ref().is_none_or(|place| place.rank == 0);
    let is_first = attempt.is_none_or(|attempt| attempt == 0);
    if let Some(remark) = inputs::configuration::remark(&plan.model).filter(|_| leads && is_first) {
        output::remark(&remark);
    }
    let mut expected = Expected::of(arguments, &plan)?;
    let forecast = expected.as_ref().map(Expected::step_time);
    expected.as_ref().map_or(Ok(()), |expected| print(&expected.line(&plan)))?;
    let mut logs = match leads {
        true => StepLogs::open(&arguments.logs, settings.start.is_resumed())?,
        false => StepLogs::default(),
    };
    let mut interval = Interval::default();
    let mut printed = Ok(());
    let bar = TrainingBar::new(!silent, arguments.steps);
    let mut show = |report: &StepReport| {
        let mean = interval.add(report);
        let is_shown = report.step.is_multiple_of(arguments.log_interval.get())
            || report.step == arguments.steps
            || report.validation_loss.is_some()
            || report.sample.is_some();
        if printed.is_ok() {
            printed = logs.add(&plan, report, is_shown);
        }
        if let Some(warning) = expected.as_mut().and_then(|expected| expected.watch(report)) {
            bar.above(|| output::remark(&warning));
        }
        if printed.is_ok() && is_shown {
            interval = Interval::default();
            printed = bar.above(|| print(&training::step(&plan, &mean)));
        }
        if printed.is_ok()
            && let (Some(tokens), Some(coder)) = (&report.sample, &coder)
        {
            printed = bar.above(|| print(&training::sample(report.step, &coder.decode(tokens)?)));
        }
        bar.show(report.step, || training::progress(&plan, report, arguments.steps));
    };
    let outcome = match &place {
        Some(place) => train_in_processes(place, &plan, &tokens, &settings, &mut show)
            .map_err(|error| supervised::error(attempt, place.rank, error))?,
        None => Some(train(&plan, &tokens, &settings, &mut show)?),
    };
    drop(bar);
    printed?;
    let end = if settings.stop.has_stopped() { Outcome::Interrupted } else { Outcome::Done };
    // Rank 0 alone knows of all.
    let Some(outcome) = outcome else { return Ok(end) };
    match arguments.json {
        true => output::print(&training::json(&plan, &outcome))?,
        false => {
            let page = [
                training::end(&plan, &outcome.steps, forecast),
                training::routes(&outcome.routes),
                training::graph(outcome.graph.as_ref()),
                training::attention(outcome.attention.as_deref()),
                training::deterministic(outcome.deterministic),
                training::device_memory(outcome.device_memory.first()),
            ];
            output::print(&page.concat())?;
        }
    }
    if let Some(path) = &arguments.trace {
        output::write("--trace", path, |mut out| write_chrome(&outcome.timeline, &mut out))?;
    }
    Ok(end)
}

/// The steps since the last printed line.
#[derive(Default)]
struct Interval {
    steps: usize,
    seconds: f64,
}

impl Interval {
    /// The step with the mean time of the steps.
    fn add(&mut self, report: &StepReport) -> StepReport {
        self.steps += 1;
        self.seconds += report.seconds;
        StepReport { seconds: self.seconds / self.steps as f64, ..report.clone() }
    }
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
        remark: Remark(output::remark),
        patience: Duration::from_secs(arguments.patience as u64),
        fault: arguments.drill,
        learning_rate: learning_rate(&arguments.optimizer, arguments.steps),
        weight_decay: arguments.optimizer.weight_decay,
        decays_embeddings: !arguments.optimizer.no_embedding_decay,
        betas: [arguments.optimizer.beta1, arguments.optimizer.beta2],
        adam_epsilon: arguments.optimizer.epsilon,
        document_mask: arguments.data.document_mask,
        z_loss: arguments.optimizer.z_loss,
        label_smoothing: arguments.optimizer.label_smoothing,
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

/// What is generated now and then, if anything.
fn sample(
    arguments: &SampleArguments,
    coder: Option<&TextCoder>,
) -> Result<Option<TrainingSample>, CliError> {
    let (Some(text), Some(every)) = (&arguments.sample_prompt, arguments.sample_every) else {
        return Ok(None);
    };
    let Some(coder) = coder else {
        let allowed = "the data's tokens are of no known tokenizer: train on a text, or name its --tokenizer";
        return Err(refuse("--sample-prompt", text, allowed));
    };
    let prompt = coder.encode(text)?;
    match prompt.is_empty() {
        true => Err(refuse("--sample-prompt", text, "a prompt has at least one token")),
        false => Ok(Some(TrainingSample { prompt, tokens: arguments.sample_tokens, every })),
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
    if let Some(cooldown) = arguments.cooldown.filter(|_| arguments.rate_schedule.name != "wsd") {
        return Err(refuse("--cooldown", cooldown, "it goes with `--rate-schedule wsd`"));
    }
    match arguments.clip {
        Some(norm) if !plan.job.gradient_clipping => {
            let allowed = "the plan's job has `gradient_clipping = false`: set it to true, or leave this out";
            Err(refuse("--clip", norm, allowed))
        }
        _ => Ok(()),
    }
}

/// Refuses a fault that no rank or no step has.
fn check_drill(arguments: &RunArguments, plan: &Plan) -> Result<(), CliError> {
    let Some(drill) = arguments.drill else { return Ok(()) };
    let ranks = plan.mesh.ranks();
    if drill.rank >= ranks {
        return Err(refuse(
            "--drill",
            format!("rank {}", drill.rank),
            format!("the plan has {ranks} ranks, from 0 on"),
        ));
    }
    if drill.step > arguments.steps {
        let allowed = format!("the run has {} steps, from 1 on", arguments.steps);
        return Err(refuse("--drill", format!("step {}", drill.step), allowed));
    }
    Ok(())
}
