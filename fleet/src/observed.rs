//! What happened to a schedule so far: a log of events, `time_s,event,name,value`.
//!
//! | event | name | value | meaning |
//! | --- | --- | --- | --- |
//! | `start` | a job | `GPUS@NODE` | it runs on that number of GPUs, from this node on; nodes are counted from 0 over all kinds |
//! | `progress` | a job | 0 to 1 | so much of its work is done and saved |
//! | `stop` | a job | | it runs no more; what it saved stays |
//! | `end` | a job | | it has ended |
//! | `down`, `up` | a node | | it died, and jobs on it stopped; it is back |
//! | `now` | | | nothing, but time went on |
//!
//! The time of the last row is now. A job's speed is that from its start to its last progress; what it says of the forecast holds
//! for all its choices.

use crate::instance::Instance;
use serde::Deserialize;

/// The most rows of a log.
pub const MOST_ROWS: usize = 1_000_000;
/// The latest time in seconds.
const MOST_SECONDS: f64 = 3.2e9;
/// Measured over forecast durations beyond which a row is taken for a mistake.
const MOST_FACTOR: f64 = 1e3;
/// The part of a job that is left at least, while it has not ended.
const LEAST_LEFT: f64 = 1e-3;

/// A job that runs.
#[derive(Debug, Clone, PartialEq)]
pub struct Running {
    /// Which of its choices.
    pub choice: usize,
    /// Its nodes, ascending.
    pub nodes: Vec<usize>,
}

/// What is known of a job.
#[derive(Debug, Clone, PartialEq)]
pub struct State {
    /// Whether it has ended.
    pub has_ended: bool,
    /// Whether it ever began.
    pub has_begun: bool,
    /// Where it runs.
    pub running: Option<Running>,
    /// The part of its work that is left if it runs on.
    pub left: f64,
    /// The part that is left if it begins again from what it saved.
    pub left_saved: f64,
    /// Its durations over the forecast ones.
    pub factor: f64,
}

/// The state of a fleet.
#[derive(Debug, Clone, PartialEq)]
pub struct Observed {
    /// The time of the last row, in seconds, rounded up.
    pub now: u64,
    /// Of each job.
    pub jobs: Vec<State>,
    /// Nodes that are down, ascending.
    pub down: Vec<usize>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    time_s: f64,
    event: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    value: String,
}

/// A run of a job: where, since when, with how much saved then, and what it saved since.
struct Run {
    running: Running,
    since: f64,
    saved: f64,
    last: Option<(f64, f64)>,
}

/// The state that a log leads to.
///
/// # Errors
/// The first line that makes no sense, with line, key, value and what is allowed.
pub fn read(text: &str, instance: &Instance) -> Result<Observed, String> {
    let mut reader =
        csv::ReaderBuilder::new().trim(csv::Trim::All).flexible(true).from_reader(text.as_bytes());
    let fresh =
        State { has_ended: false, has_begun: false, running: None, left: 1.0, left_saved: 1.0, factor: 1.0 };
    let mut jobs = vec![fresh; instance.jobs.len()];
    let mut runs: Vec<Option<Run>> = jobs.iter().map(|_| None).collect();
    let mut down: Vec<usize> = Vec::new();
    let mut now = 0.0;
    for (index, row) in reader.deserialize::<Row>().enumerate() {
        let line = index + 2;
        let row = row.map_err(|error| format!("line {line}: {}", error.to_string().replace('\n', " ")))?;
        let bad = |key: &str, value: &str, allowed: &str| {
            Err(format!("line {line}: `{key}` is {value:?}; it should be {allowed}"))
        };
        if index == MOST_ROWS {
            return Err(format!("line {line}: there are more than {MOST_ROWS} rows"));
        }
        if !(now..=MOST_SECONDS).contains(&row.time_s) {
            return bad("time_s", &row.time_s.to_string(), "seconds up to 3.2e9, not before the line above");
        }
        now = row.time_s;
        let job = instance.jobs.iter().position(|job| job.name == row.name);
        match row.event.as_str() {
            "now" => {}
            "down" | "up" => {
                let node = row.name.parse().ok().filter(|node| *node < instance.nodes().len());
                let Some(node) = node else { return bad("name", &row.name, "the number of a node") };
                down.retain(|other| *other != node);
                if row.event == "down" {
                    down.push(node);
                    let on = |run: &&mut Option<Run>| {
                        run.as_ref().is_some_and(|run| run.running.nodes.contains(&node))
                    };
                    runs.iter_mut().filter(on).for_each(|run| *run = None);
                }
            }
            "start" | "progress" | "stop" | "end" => {
                let Some(job) = job else { return bad("name", &row.name, "a job of the file") };
                let state = &mut jobs[job];
                if state.has_ended {
                    return bad("event", &row.event, "nothing, for the job has ended");
                }
                match (row.event.as_str(), &mut runs[job]) {
                    ("start", None) => {
                        let running = start(instance, job, &row.value, &down, &runs);
                        let running = running.map_err(|allowed| {
                            format!("line {line}: `value` is {:?}; {allowed}", row.value)
                        })?;
                        state.has_begun = true;
                        runs[job] =
                            Some(Run { running, since: now, saved: 1.0 - state.left_saved, last: None });
                    }
                    ("start", Some(_)) => return bad("event", "start", "`stop` before, for the job runs"),
                    (event, None) => return bad("event", event, "`start` before, for the job does not run"),
                    ("stop", run) => *run = None,
                    ("end", run) => (*run, state.has_ended) = (None, true),
                    (_, Some(run)) => {
                        let known = 1.0 - state.left_saved;
                        let done = row.value.parse().ok().filter(|done: &f64| (known..=1.0).contains(done));
                        let Some(done) = done else {
                            return bad("value", &row.value, "a part from 0 to 1, not less than before");
                        };
                        state.left_saved = (1.0 - done).max(LEAST_LEFT);
                        run.last = Some((now, done));
                        let expected = instance.jobs[job].choices[run.running.choice].duration as f64;
                        let (time, part) = (now - run.since, done - run.saved);
                        if time > 0.0 && part > 0.0 {
                            state.factor = time / (part * expected);
                        }
                        if !(1.0 / MOST_FACTOR..=MOST_FACTOR).contains(&state.factor) {
                            return bad(
                                "value",
                                &row.value,
                                "a speed from a thousandth to a thousand of the forecast",
                            );
                        }
                    }
                }
            }
            other => return bad("event", other, "start, progress, stop, end, down, up or now"),
        }
    }
    down.sort_unstable();
    for (job, (state, run)) in jobs.iter_mut().zip(runs).enumerate() {
        state.left = state.left_saved;
        if let Some(run) = run {
            let duration = instance.jobs[job].choices[run.running.choice].duration as f64 * state.factor;
            let (since, done) = run.last.unwrap_or((run.since, run.saved));
            state.left = (1.0 - done - (now - since) / duration).max(LEAST_LEFT);
            state.running = Some(run.running);
        }
    }
    Ok(Observed { now: now.ceil() as u64, jobs, down })
}

/// Where a job starts.
fn start(
    instance: &Instance,
    job: usize,
    value: &str,
    down: &[usize],
    runs: &[Option<Run>],
) -> Result<Running, String> {
    let allowed = || "it should be GPUS@NODE, as 8@0".to_string();
    let (gpus, node) = value.split_once('@').ok_or_else(allowed)?;
    let gpus: usize = gpus.parse().map_err(|_| allowed())?;
    let node: usize = node.parse().map_err(|_| allowed())?;
    let kinds = instance.nodes();
    let kind = *kinds.get(node).ok_or_else(|| format!("there are {} nodes, from 0 on", kinds.len()))?;
    let choices = instance.jobs[job].choices.iter();
    let choice = choices.clone().position(|choice| choice.kind == kind && choice.gpus == gpus);
    let known: Vec<String> =
        choices.filter(|choice| choice.kind == kind).map(|choice| choice.gpus.to_string()).collect();
    let choice = choice.ok_or_else(|| format!("the job has plans for {} GPUs there", known.join(", ")))?;
    let nodes: Vec<usize> = (node..node + instance.nodes_of(&instance.jobs[job].choices[choice])).collect();
    let per_node = gpus.min(instance.kinds[kind].gpus);
    for node in &nodes {
        if kinds.get(*node) != Some(&kind) || down.contains(node) {
            return Err(format!("node {node} is down, of another kind, or none"));
        }
        let taken: usize = runs
            .iter()
            .enumerate()
            .filter_map(|(other, run)| Some((other, run.as_ref()?)))
            .filter(|(_, run)| run.running.nodes.contains(node))
            .map(|(other, run)| {
                instance.jobs[other].choices[run.running.choice].gpus.min(instance.kinds[kind].gpus)
            })
            .sum();
        if taken + per_node > instance.kinds[kind].gpus {
            return Err(format!(
                "other jobs hold {taken} of the {} GPUs of node {node}",
                instance.kinds[kind].gpus
            ));
        }
    }
    if let Some((user, quota)) = instance.jobs[job].user.zip(instance.quota_of(job)) {
        let of_user = runs.iter().enumerate().filter(|(other, _)| instance.jobs[*other].user == Some(user));
        let held = of_user
            .filter_map(|(other, run)| Some(&instance.jobs[other].choices[run.as_ref()?.running.choice]));
        let held: usize = held.map(|choice| choice.gpus).sum();
        if held + gpus > quota {
            let name = &instance.users[user].name;
            return Err(format!("other jobs of user `{name}` hold {held} GPUs, and `max_gpus` is {quota}"));
        }
    }
    Ok(Running { choice, nodes })
}
