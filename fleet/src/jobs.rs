//! The file of jobs.
//!
//! ```toml
//! [defaults]                      # for every job that does not say otherwise
//! model = "llama-3-8b"
//! seq = 4096
//! global_batch = 64
//!
//! [[job]]
//! name = "base"
//! tokens = 2e9                    # or steps, or epochs of dataset_tokens
//! deadline_h = 48.0
//!
//! [[job]]
//! name = "sweep"
//! copies = 3                      # sweep-1, sweep-2, sweep-3: jobs that differ in a learning rate
//! steps = 2000
//! max_gpus = 8
//! after = ["base"]
//! ```
//!
//! Jobs may belong to users. At no time more than `max_gpus` GPUs are held by a user's jobs, and `weight` multiplies theirs:
//!
//! ```toml
//! [[user]]
//! name = "ann"
//! max_gpus = 32
//! weight = 2.0
//!
//! [[job]]
//! name = "base"
//! user = "ann"
//! steps = 2000
//! ```
//!
//! A job may have arguments of `plan` besides its keys. With arguments of `rl` it is a loop of reinforcement learning, and with those of
//! `serve-plan` a deployment that holds its GPUs for some hours:
//!
//! ```toml
//! [[job]]
//! name = "pretraining"
//! steps = 20000
//! plan = ["--tensor", "8", "--recompute", "selective"]
//!
//! [[job]]
//! name = "loop"
//! steps = 200
//! rl = ["--prompts", "128", "--rollouts", "8"]
//!
//! [[job]]
//! name = "chat"
//! hours = 24.0
//! serve = ["--rate", "20"]
//! ```
//!
//! With `throughputs = "table.csv"` (columns `profile,gpus,steps_per_s` and, for several kinds of nodes, `node`), jobs name a
//! `profile` and `steps` instead of a model.

use serde::Deserialize;
use thiserror::Error;

/// The most jobs of a file.
pub const MOST_JOBS: usize = 10_000;
/// The most users of a file.
const MOST_USERS: usize = 1_000;
/// The largest weight of a job or a user, and what is said of a larger one.
const MOST_WEIGHT: f64 = 1e9;
const ALLOWED_WEIGHT: &str = "it should be from 0 to 1e9";
/// Bytes of the longest name of a job, which names files too.
const LONGEST_NAME: usize = 100;
/// The longest time in hours: a century.
const MOST_HOURS: f64 = 876_600.0;

/// What a file says.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobFile {
    /// A table of measured speeds in place of forecasts.
    pub throughputs: Option<String>,
    /// What every job has that does not say otherwise.
    #[serde(default)]
    pub defaults: JobRow,
    /// The jobs.
    #[serde(default)]
    pub job: Vec<JobRow>,
    /// Whose they are.
    #[serde(default)]
    pub user: Vec<UserRow>,
}

/// What the file says of a user.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UserRow {
    /// The name.
    pub name: String,
    /// The most GPUs that the user's jobs hold at any time.
    pub max_gpus: Option<usize>,
    /// What multiplies the weights of the user's jobs.
    pub weight: Option<f64>,
}

/// What the file says of a job.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobRow {
    /// Its name; jobs with several copies get `-1`, `-2`, … behind it.
    pub name: Option<String>,
    /// How many such jobs.
    pub copies: Option<usize>,
    /// A preset, or a Hugging Face config.json.
    pub model: Option<String>,
    /// Tokens in a sequence.
    pub seq: Option<usize>,
    /// Sequences in a step.
    pub global_batch: Option<usize>,
    /// Number format.
    pub precision: Option<String>,
    /// Optimizer.
    pub optimizer: Option<String>,
    /// Software.
    pub stack: Option<String>,
    /// Rank of adapters.
    pub lora: Option<usize>,
    /// How frozen matrices are stored.
    pub base_format: Option<String>,
    /// The row of the table of speeds.
    pub profile: Option<String>,
    /// Tokens to train.
    pub tokens: Option<f64>,
    /// Steps to train.
    pub steps: Option<f64>,
    /// Epochs to train.
    pub epochs: Option<f64>,
    /// Tokens of an epoch.
    pub dataset_tokens: Option<f64>,
    /// Hours for which it serves.
    pub hours: Option<f64>,
    /// More arguments of `plan` about it, behind those of the defaults.
    pub plan: Option<Vec<String>>,
    /// Arguments of `rl`: it is a loop of reinforcement learning.
    pub rl: Option<Vec<String>>,
    /// Arguments of `serve-plan`: it serves.
    pub serve: Option<Vec<String>>,
    /// Whose it is.
    pub user: Option<String>,
    /// How much its completion counts.
    pub weight: Option<f64>,
    /// When it should have ended.
    pub deadline_h: Option<f64>,
    /// When it may begin.
    pub earliest_h: Option<f64>,
    /// The fewest GPUs.
    pub min_gpus: Option<usize>,
    /// The most GPUs.
    pub max_gpus: Option<usize>,
    /// Jobs, or jobs with copies, that must have ended before it begins.
    pub after: Option<Vec<String>>,
    /// Whether it may stop and go on on other GPUs.
    pub preempt: Option<bool>,
    /// Arguments of `run` where this machine carries it out, behind those of the defaults.
    pub run: Option<Vec<String>>,
}

/// Why a file of jobs cannot be used.
#[derive(Debug, Error, Clone, PartialEq)]
#[non_exhaustive]
pub enum JobFileError {
    /// It is no such file.
    #[error("{path}: {message}")]
    Syntax {
        /// The file.
        path: String,
        /// What the parser says.
        message: String,
    },
    /// A key with a value that makes no sense, or that is missing.
    #[error("{path}: {row}: `{key}` is {value}; {allowed}")]
    BadValue {
        /// The file.
        path: String,
        /// Whose key it is: a job or a user with its name.
        row: String,
        /// The key.
        key: &'static str,
        /// The value.
        value: String,
        /// What is allowed.
        allowed: String,
    },
}

/// A job of the file with its defaults, checked.
#[derive(Debug, Clone, PartialEq)]
pub struct NamedJob {
    /// Its name.
    pub name: String,
    /// What the file says.
    pub row: JobRow,
    /// The jobs, by their places, that must have ended before it begins.
    pub after: Vec<usize>,
    /// The place of its user in the file.
    pub user: Option<usize>,
    /// Its weight times that of its user.
    pub weight: f64,
}

impl JobRow {
    /// The row with the values of another one where it has none.
    fn or(self, defaults: &JobRow) -> Self {
        let of = defaults.clone();
        let joined = |of: Option<Vec<String>>, own: Option<Vec<String>>| match (of, own) {
            (Some(first), Some(then)) => Some([first, then].concat()),
            (one, other) => other.or(one),
        };
        Self {
            name: self.name,
            copies: self.copies.or(of.copies),
            model: self.model.or(of.model),
            seq: self.seq.or(of.seq),
            global_batch: self.global_batch.or(of.global_batch),
            precision: self.precision.or(of.precision),
            optimizer: self.optimizer.or(of.optimizer),
            stack: self.stack.or(of.stack),
            lora: self.lora.or(of.lora),
            base_format: self.base_format.or(of.base_format),
            profile: self.profile.or(of.profile),
            tokens: self.tokens.or(of.tokens),
            steps: self.steps.or(of.steps),
            epochs: self.epochs.or(of.epochs),
            dataset_tokens: self.dataset_tokens.or(of.dataset_tokens),
            hours: self.hours.or(of.hours),
            plan: joined(of.plan, self.plan),
            rl: joined(of.rl, self.rl),
            serve: joined(of.serve, self.serve),
            user: self.user.or(of.user),
            weight: self.weight.or(of.weight),
            deadline_h: self.deadline_h.or(of.deadline_h),
            earliest_h: self.earliest_h.or(of.earliest_h),
            min_gpus: self.min_gpus.or(of.min_gpus),
            max_gpus: self.max_gpus.or(of.max_gpus),
            after: self.after.or(of.after),
            preempt: self.preempt.or(of.preempt),
            run: joined(of.run, self.run),
        }
    }

    /// Steps to train with so many tokens in each; `None` if the file does not say how long.
    pub fn step_count(&self, tokens_of_step: f64) -> Option<f64> {
        let tokens =
            self.tokens.or(self.epochs.zip(self.dataset_tokens).map(|(epochs, tokens)| epochs * tokens));
        self.steps.or(tokens.map(|tokens| (tokens / tokens_of_step).ceil().max(1.0)))
    }
}

/// The jobs of a file.
///
/// # Errors
/// The first fault.
pub fn read(text: &str, path: &str) -> Result<(JobFile, Vec<NamedJob>), JobFileError> {
    let syntax = |message: String| JobFileError::Syntax { path: path.into(), message };
    let file: JobFile = toml::from_str(text).map_err(|error: toml::de::Error| {
        let line = error.span().map_or(1, |span| text[..span.start].matches('\n').count() + 1);
        syntax(format!("line {line}: {}", error.message().replace('\n', " ")))
    })?;
    if file.job.is_empty() {
        return Err(syntax("there is no [[job]]".into()));
    }
    check_users(&file.user, path)?;
    let mut named: Vec<(String, Vec<usize>)> = Vec::new();
    let mut jobs = Vec::new();
    for (index, row) in file.job.iter().enumerate() {
        let row = row.clone().or(&file.defaults);
        let bad = |key: &'static str, value: String, allowed: &str| JobFileError::BadValue {
            path: path.into(),
            row: format!("job `{}`", row.name.clone().unwrap_or(format!("number {}", index + 1))),
            key,
            value,
            allowed: allowed.into(),
        };
        let name = row.name.clone().ok_or_else(|| bad("name", "missing".into(), "every job has a name"))?;
        if name.is_empty() || name.contains(|letter: char| letter.is_control() || letter == '/') {
            return Err(bad("name", format!("{name:?}"), "it should be a word without `/`"));
        }
        if name.trim() != name || name.len() > LONGEST_NAME {
            let allowed = format!("it should have no space at its ends, and at most {LONGEST_NAME} bytes");
            return Err(bad("name", format!("{name:?}"), &allowed));
        }
        if named.iter().any(|(other, _)| *other == name) {
            return Err(bad("name", name, "another job has this name"));
        }
        check(&row, &bad)?;
        if file.job[index].hours.is_some() && row.serve.is_none() {
            return Err(bad("hours", "said".into(), "a job without `serve` has tokens, steps or epochs"));
        }
        let copies = row.copies.unwrap_or(1);
        if copies == 0 || jobs.len() + copies > MOST_JOBS {
            let allowed = format!("it should be 1 or more, and all jobs at most {MOST_JOBS}");
            return Err(bad("copies", copies.to_string(), &allowed));
        }
        let user = row.user.as_ref().map(|name| {
            let place = file.user.iter().position(|user| user.name == *name);
            place.ok_or_else(|| bad("user", format!("{name:?}"), "no [[user]] has this name"))
        });
        let user = user.transpose()?;
        let of_user = user.and_then(|user| file.user[user].weight).unwrap_or(1.0);
        let weight = row.weight.unwrap_or(1.0) * of_user;
        let places = (jobs.len()..jobs.len() + copies).collect();
        for copy in 1..=copies {
            let name = if copies > 1 { format!("{name}-{copy}") } else { name.clone() };
            jobs.push(NamedJob { name, row: row.clone(), after: Vec::new(), user, weight });
        }
        named.push((name, places));
    }
    for place in 0..jobs.len() {
        let mut after = Vec::new();
        for name in jobs[place].row.after.iter().flatten() {
            let of_row = named.iter().find(|(other, _)| other == name).map(|(_, places)| places.clone());
            let of_copy = jobs.iter().position(|job| job.name == *name).map(|place| vec![place]);
            let Some(before) = of_row.or(of_copy) else {
                return Err(JobFileError::BadValue {
                    path: path.into(),
                    row: format!("job `{}`", jobs[place].name),
                    key: "after",
                    value: format!("{name:?}"),
                    allowed: "no job has this name".into(),
                });
            };
            after.extend(before);
        }
        after.sort_unstable();
        after.dedup();
        jobs[place].after = after;
    }
    Ok((file, jobs))
}

/// Checks the users.
fn check_users(users: &[UserRow], path: &str) -> Result<(), JobFileError> {
    for (index, user) in users.iter().enumerate() {
        let bad = |key: &'static str, value: String, allowed: &str| {
            let (path, row, allowed) = (path.into(), format!("user `{}`", user.name), allowed.into());
            Err(JobFileError::BadValue { path, row, key, value, allowed })
        };
        if user.name.trim().is_empty() || user.name.contains(char::is_control) {
            return bad("name", format!("{:?}", user.name), "it should be a word");
        }
        if index == MOST_USERS {
            return bad("name", "one too many".into(), &format!("there are at most {MOST_USERS} users"));
        }
        if users[..index].iter().any(|other| other.name == user.name) {
            return bad("name", format!("{:?}", user.name), "another user has this name");
        }
        if user.max_gpus == Some(0) {
            return bad("max_gpus", "0".into(), "it should be 1 or more");
        }
        match user.weight {
            Some(weight) if !(0.0..=MOST_WEIGHT).contains(&weight) => {
                return bad("weight", number(weight), ALLOWED_WEIGHT);
            }
            _ => {}
        }
    }
    Ok(())
}

/// A number as it is usually written; one of many digits by its exponent.
fn number(value: f64) -> String {
    if value.abs() < 1e15 { value.to_string() } else { format!("{value:e}") }
}

/// Checks the numbers of a row.
fn check(row: &JobRow, bad: &dyn Fn(&'static str, String, &str) -> JobFileError) -> Result<(), JobFileError> {
    let positive = [
        ("tokens", row.tokens),
        ("steps", row.steps),
        ("epochs", row.epochs),
        ("dataset_tokens", row.dataset_tokens),
    ];
    for (key, value) in positive {
        match value {
            Some(value) if !(value > 0.0 && value <= 1e18) => {
                return Err(bad(key, number(value), "it should be above 0, up to 1e18"));
            }
            _ => {}
        }
    }
    match (&row.rl, &row.serve, row.hours) {
        (Some(_), Some(_), _) => {
            return Err(bad("serve", "said".into(), "a job with `rl` does not serve"));
        }
        (_, Some(_), None) => return Err(bad("hours", "missing".into(), "a job serves for some hours")),
        (_, Some(_), Some(hours)) if !(hours > 0.0 && hours <= MOST_HOURS) => {
            return Err(bad("hours", number(hours), "it should be hours above 0, up to 876600"));
        }
        (Some(_), None, _) if row.steps.is_none() => {
            return Err(bad("steps", "missing".into(), "a job with `rl` has steps"));
        }
        _ => {}
    }
    for (key, value) in [("deadline_h", row.deadline_h), ("earliest_h", row.earliest_h)] {
        match value {
            Some(value) if !(0.0..=MOST_HOURS).contains(&value) => {
                return Err(bad(key, number(value), "it should be hours from 0 to 876600"));
            }
            _ => {}
        }
    }
    match row.weight {
        Some(weight) if !(0.0..=MOST_WEIGHT).contains(&weight) => {
            return Err(bad("weight", number(weight), ALLOWED_WEIGHT));
        }
        _ => {}
    }
    let given = [row.tokens.is_some(), row.steps.is_some(), row.epochs.is_some()];
    let allowed = "it should be said once: tokens, steps, or epochs with dataset_tokens";
    match given.iter().filter(|given| **given).count() {
        1 => {}
        _ if row.serve.is_some() => {}
        0 => return Err(bad("steps", "missing".into(), allowed)),
        _ => return Err(bad("steps", "said twice".into(), allowed)),
    }
    if row.epochs.is_some() && row.dataset_tokens.is_none() {
        return Err(bad("dataset_tokens", "missing".into(), "epochs need the tokens of one"));
    }
    if row.seq == Some(0) {
        return Err(bad("seq", "0".into(), "it should be tokens from 1 on"));
    }
    let (least, most) = (row.min_gpus.unwrap_or(1), row.max_gpus.unwrap_or(usize::MAX));
    if least == 0 || least > most {
        return Err(bad("min_gpus", least.to_string(), "it should be from 1 to max_gpus"));
    }
    Ok(())
}
