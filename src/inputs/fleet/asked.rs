//! What is asked about a job: its keys as arguments of `plan`, `rl` or `serve-plan`, so that each has one reading.

use super::bad;
use crate::arguments::{
    Arguments, Command, PinArguments, QuestionArguments, RiskArguments, RlArguments, ServePlanArguments,
};
use crate::error::CliError;
use crate::inputs::{question_on, rl, serving, with_profile};
use clap::Parser;
use clap::error::{ContextKind, ContextValue};
use trainwright_fleet::jobs::NamedJob;
use trainwright_fleet::options::{best, words};
use trainwright_fleet::part::part;
use trainwright_planner::Question;
use trainwright_planner::rl::plan_rl;
use trainwright_planner::serving::{Pool, plan_serving};
use trainwright_spec::cluster::Cluster;
use trainwright_spec::plan::Plan;
use trainwright_spec::units::Seconds;

/// Keys of a job that are arguments of `plan`, of `rl` and of `serve-plan`.
const OF_PLAN: &[&str] = &[
    "model",
    "seq",
    "global_batch",
    "precision",
    "optimizer",
    "stack",
    "lora",
    "base_format",
    "calibration",
];
const OF_RL: &[&str] = &["model", "precision", "stack", "calibration"];
const OF_SERVE: &[&str] = &["model"];
/// Keys without which there is no question.
const NEEDED: [&str; 3] = ["model", "seq", "global_batch"];
/// Arguments of these commands that a fleet gives itself, or that are for one answer alone.
const OWN: [&str; 15] = [
    "--cluster",
    "--price",
    "--least",
    "--fewest",
    "--within",
    "--time-limit",
    "--out",
    "--commands",
    "--checkpoint",
    "--svg",
    "--png",
    "--json",
    "--quiet",
    "--help",
    "-h",
];

/// A question about a job.
pub enum Asked {
    /// A training: which plan is best?
    Training(Box<TrainingArguments>),
    /// A loop of reinforcement learning: which loop is fastest?
    Loop(Box<RlArguments>),
    /// A deployment: how many GPUs serve this rate?
    Serving(Box<ServePlanArguments>),
}

/// The arguments of `plan` that say what is asked.
#[derive(Debug, Parser)]
#[command(name = "trainwright", disable_help_flag = true)]
pub struct TrainingArguments {
    #[command(flatten)]
    question: QuestionArguments,
    #[command(flatten)]
    pins: PinArguments,
    #[command(flatten)]
    risk: RiskArguments,
}

/// How a job runs on some GPUs.
#[derive(Debug, Clone)]
pub struct Way {
    /// GPUs.
    pub gpus: usize,
    /// A step of it; of a deployment, its hours.
    pub step: Seconds,
    /// Measured over expected times: equally likely values, ascending; empty if nothing is known.
    pub spread: Vec<f64>,
    /// The plan, in words.
    pub words: String,
    /// The plan of a training.
    pub plan: Option<Plan>,
}

/// The arguments of a job, with the command's name first: its keys, unless its own arguments say the same, and those.
pub fn arguments(job: &NamedJob, calibration: Option<&str>) -> Vec<String> {
    let row = &job.row;
    let (command, keys, given) = match (&row.rl, &row.serve) {
        (Some(given), _) => ("rl", OF_RL, Some(given)),
        (_, Some(given)) => ("serve-plan", OF_SERVE, Some(given)),
        (None, None) => ("plan", OF_PLAN, row.plan.as_ref()),
    };
    let given = given.map(Vec::as_slice).unwrap_or_default();
    let text = |number: Option<usize>| number.map(|number| number.to_string());
    let value = |key: &str| match key {
        "model" => row.model.clone(),
        "seq" => text(row.seq),
        "global_batch" => text(row.global_batch),
        "precision" => row.precision.clone(),
        "optimizer" => row.optimizer.clone(),
        "stack" => row.stack.clone(),
        "lora" => text(row.lora),
        "base_format" => row.base_format.clone(),
        _ => calibration.map(str::to_string),
    };
    let of_keys = keys.iter().filter_map(|key| {
        let name = argument_of(key);
        let is_given = given.iter().any(|word| word.split('=').next() == Some(name.as_str()));
        value(key).filter(|_| !is_given).map(|value| format!("{name}={value}"))
    });
    std::iter::once(command.to_string()).chain(of_keys).chain(given.iter().cloned()).collect()
}

impl Asked {
    /// The question of arguments that `arguments` made.
    ///
    /// # Errors
    /// The first key or argument that is missing or makes no sense.
    pub fn of(path: &str, job: &NamedJob, arguments: &[String]) -> Result<Self, CliError> {
        let (command, given) = arguments.split_first().expect("the name of the command is first");
        let key = key_of_list(job);
        let own = |word: &&String| OWN.contains(&word.split('=').next().unwrap_or(word));
        if let Some(word) = given.iter().find(own) {
            return Err(bad(path, job, key, format!("`{word}`; a fleet says this itself: leave it out")));
        }
        let has = |name: &str| given.iter().any(|word| word.split('=').next() == Some(name));
        let needed = if command == "plan" { &NEEDED[..] } else { &NEEDED[..1] };
        if let Some(key) = needed.iter().find(|key| !has(&argument_of(key))) {
            return Err(bad(path, job, key, "it is missing"));
        }
        if has("--base-format") && !has("--lora") {
            let allowed = "it is of adapters: give their rank, lora";
            return Err(bad(path, job, "base_format", allowed));
        }
        if command == "serve-plan" && !has("--rate") {
            return Err(bad(path, job, key, "`--rate` is missing: requests a second"));
        }
        let wrong = |error: clap::Error| of_key(path, job, CliError::Usage(error));
        let words = ["trainwright", "--cluster=given"].into_iter().chain(given.iter().map(String::as_str));
        if command == "plan" {
            return TrainingArguments::try_parse_from(words).map(Box::new).map(Self::Training).map_err(wrong);
        }
        let mut words: Vec<&str> = words.collect();
        words.insert(1, command);
        match Arguments::try_parse_from(words).map_err(wrong)?.command {
            Command::Rl(arguments) => Ok(Self::Loop(arguments)),
            Command::ServePlan(arguments) => Ok(Self::Serving(arguments)),
            _ => unreachable!("the command is one of these"),
        }
    }

    /// Refuses what makes no sense on a cluster, whatever the number of its GPUs; the question of a training.
    ///
    /// # Errors
    /// The first key or argument that does not suit the others.
    pub fn check(&self, path: &str, job: &NamedJob, cluster: &Cluster) -> Result<Option<Question>, CliError> {
        let checked = match self {
            Self::Training(asked) => asked.question(cluster.clone()).map(Some),
            Self::Loop(asked) => rl::question(asked, cluster.clone()).map(|_| None),
            Self::Serving(asked) => serving::question(asked, std::slice::from_ref(cluster)).map(|_| None),
        };
        checked.map_err(|error| of_key(path, job, error))
    }

    /// How the job runs on `gpus` GPUs of a cluster, or with as many as it needs if that is `None`.
    ///
    /// # Errors
    /// Why it does not, in words.
    pub fn way(
        &self,
        cluster: &Cluster,
        question: Option<&Question>,
        gpus: Option<usize>,
    ) -> Result<Way, String> {
        let part = |gpus: usize| {
            part(cluster, gpus).ok_or(format!("{gpus} GPUs of {} cannot be described alone", cluster.name))
        };
        match (self, question, gpus) {
            (Self::Training(_), Some(question), Some(gpus)) => {
                let found = best(question, gpus)?;
                let (step, words) = (found.step, words(&found.plan));
                Ok(Way { gpus, step, spread: found.spread, words, plan: Some(found.plan) })
            }
            (Self::Loop(asked), _, Some(gpus)) => {
                let question = rl::question(asked, part(gpus)?).map_err(|error| error.line())?;
                let verdict = plan_rl(&question, None).map_err(|error| error.to_string())?;
                let Some(best) = verdict.found.first() else {
                    return Err("no loop fits".into());
                };
                let words = format!("{}, training {}", best.plan.mode.name(), words(&best.plan.actor));
                Ok(Way { gpus, step: best.forecast.step, spread: Vec::new(), words, plan: None })
            }
            (Self::Serving(asked), _, _) => {
                let question = serving::question(asked, std::slice::from_ref(cluster));
                let verdict = plan_serving(&question.map_err(|error| error.line())?, false, None, &|_, _| {});
                let of = |pool: &Pool| pool.instances * pool.option.plan.gpus();
                let needed: usize = verdict.pools.iter().map(of).sum();
                if needed == 0 {
                    return Err(format!("{} cannot serve this rate within the limits", cluster.name));
                }
                let per_node = cluster.node.gpus.value;
                let gpus = if needed > per_node { needed.next_multiple_of(per_node) } else { needed };
                let instances: Vec<String> = verdict.pools.iter().map(instances).collect();
                let words = instances.join(", ");
                Ok(Way { gpus, step: Seconds::ZERO, spread: Vec::new(), words, plan: None })
            }
            _ => unreachable!("trainings have a question, and all but deployments a number of GPUs"),
        }
    }
}

impl TrainingArguments {
    /// The question on a cluster, with the profiles that were given.
    fn question(&self, cluster: Cluster) -> Result<Question, CliError> {
        let profiles = &self.question.profile;
        let cluster = profiles.iter().try_fold(cluster, |cluster, path| with_profile(cluster, path))?;
        question_on(cluster, &self.question, &self.pins, &self.risk)
    }
}

/// `2 × TP 4 of vllm-v1`.
fn instances(pool: &Pool) -> String {
    let plan = &pool.option.plan;
    let degrees = [("TP", plan.tensor), ("PP", plan.pipeline), ("EP", plan.expert)];
    let used = degrees.iter().filter(|(_, degree)| *degree > 1);
    let used: Vec<String> = used.map(|(name, degree)| format!("{name} {degree} ")).collect();
    format!("{} × {}{}", pool.instances, used.concat(), plan.engine.name)
}

/// `--global-batch` of `global_batch`.
fn argument_of(key: &str) -> String {
    format!("--{}", key.replace('_', "-"))
}

/// The key that has more arguments of the job.
pub fn key_of_list(job: &NamedJob) -> &'static str {
    match (&job.row.rl, &job.row.serve) {
        (Some(_), _) => "rl",
        (_, Some(_)) => "serve",
        _ => "plan",
    }
}

/// An error about an argument as one about the key that gave it.
fn of_key(path: &str, job: &NamedJob, error: CliError) -> CliError {
    let key = |argument: &str| OF_PLAN.iter().copied().find(|key| argument_of(key) == argument);
    match &error {
        CliError::Argument { argument, value, allowed } => match key(argument) {
            Some(key) => bad(path, job, key, format!("{value}; {allowed}")),
            None => bad(path, job, key_of_list(job), error),
        },
        CliError::Content { argument: Some(argument), source } => match key(argument) {
            Some(key) => bad(path, job, key, source),
            None => bad(path, job, key_of_list(job), error),
        },
        CliError::Reading { argument: Some(argument), .. } => {
            bad(path, job, key(argument).unwrap_or(key_of_list(job)), error.line())
        }
        CliError::Usage(usage) => {
            let argument = match usage.get(ContextKind::InvalidArg) {
                Some(ContextValue::String(argument)) => argument.split([' ', '=']).next(),
                _ => None,
            };
            bad(path, job, argument.and_then(key).unwrap_or(key_of_list(job)), error.line())
        }
        _ => bad(path, job, key_of_list(job), error.line()),
    }
}
