//! A schedule of several jobs, what is proved of it, and what heuristics do.

mod json;
mod picture;

use super::table::Table;
use crate::inputs::fleet::Fleet;
use trainwright_fleet::instance::User;
use trainwright_fleet::objective::Objective;
use trainwright_fleet::schedule::{Placed, Schedule};
use trainwright_fleet::uncertain::quantile;
use trainwright_fleet::{Answer, Rival};
use trainwright_spec::units::{Joules, Seconds};
use trainwright_whatif::run::{default_pue, energy};

/// An answer with its question.
pub struct Page<'a> {
    /// What was scheduled.
    pub fleet: &'a Fleet,
    /// What is least.
    pub objective: Objective,
    /// The answer.
    pub answer: &'a Answer,
    /// Makespans of samples, ascending.
    pub samples: &'a [u64],
    /// Answers to changes.
    pub changes: &'a [Change],
    /// The time of a log from which times count, in seconds; `None` without a log.
    pub now: Option<u64>,
    /// Whether jobs may move.
    pub may_move: bool,
}

/// What the jobs of a user have.
struct UserPage<'a> {
    user: &'a User,
    jobs: usize,
    /// The most GPUs at any time.
    held: usize,
    /// Seconds.
    mean_end: f64,
}

/// The answer if something were different.
pub struct Change {
    /// What.
    pub what: Changed,
    /// The answer; `None` if some job does not fit then.
    pub answer: Option<Answer>,
}

/// What is different.
pub enum Changed {
    /// One node of a kind more, or one less.
    Node {
        /// `one more`.
        change: &'static str,
        /// The kind.
        kind: String,
    },
    /// A job, by its name, has no deadline.
    Deadline(String),
}

impl Change {
    fn name(&self) -> String {
        match &self.what {
            Changed::Node { change, kind } => format!("{change} {kind}"),
            Changed::Deadline(job) => format!("no deadline for {job}"),
        }
    }
}

/// Below the table of methods.
const METHODS: &str = "*: current practice; every method has the same plans to choose from";

impl Page<'_> {
    /// For a terminal.
    pub fn text(&self) -> String {
        let instance = &self.fleet.instance;
        let many = if instance.jobs.len() == 1 { "" } else { "s" };
        let mut text = format!(
            "{} job{many} on {} ({} GPUs), least {}\n\n",
            instance.jobs.len(),
            self.fleet.cluster.name,
            instance.gpus(),
            self.objective.name()
        );
        if let Some(now) = self.now {
            text += &format!("Times count from the last one of the log, {now} s.\n\n");
        }
        let entries = self.entries();
        text += &self.jobs(&entries).text();
        text.push('\n');
        for (name, words) in self.figures() {
            text += &format!("{name:<13}{words}\n");
        }
        let all = self.methods();
        text += &format!("\nBeside it\n{}{METHODS}\n", self.beside(&all).text());
        for line in self.changes() {
            text += &format!("{line}\n");
        }
        text
    }

    /// What there is to say of the schedule, each with its name.
    fn figures(&self) -> Vec<(&'static str, String)> {
        let (instance, schedule) = (&self.fleet.instance, &self.answer.schedule);
        let set_by = self.critical().join(" after ");
        let mut all = vec![("makespan", format!("{}, set by {set_by}", time(schedule.makespan())))];
        if self.samples.first() != self.samples.last() {
            let [half, most] = [0.5, 0.9].map(|part| time(quantile(self.samples, part)));
            let samples = self.samples.len();
            all.push((
                "P50, P90",
                format!("{half}, {most}: {samples} samples of the errors of similar measured runs, shared by jobs of one model"),
            ));
        }
        let moves = schedule.placed.len() - instance.jobs.len();
        if self.may_move && moves > 0 {
            all.push(("moves", format!("{moves}; {}", self.restarts())));
        }
        let (mean, sum) =
            (schedule.mean_completion() as u64, schedule.weighted_completion(instance) / 3600.0);
        all.push(("completion", format!("{} in the mean, Σ weight · end {sum:.1} h", time(mean))));
        let used = 100.0 * schedule.utilisation(instance);
        all.push(("utilisation", format!("{used:.1} % of the GPUs' time until then")));
        if let Some(cost) = self.cost(schedule) {
            all.push(("cost", format!("{cost:.0} USD for the GPUs that jobs hold")));
        }
        if let Some(energy) = self.energy(schedule) {
            all.push(("energy", format!("{:.0} kWh", energy.get() / 3.6e6)));
        }
        for UserPage { user, held, jobs, mean_end } in self.users() {
            let many = if jobs == 1 { "" } else { "s" };
            let quota = user.max_gpus.map_or(String::new(), |most| format!(" of {most}"));
            let mean = time(mean_end as u64);
            let name = &user.name;
            all.push((
                "user",
                format!("{name}: {jobs} job{many}, {held}{quota} GPUs at most, {mean} the mean end"),
            ));
        }
        all.push(self.proof());
        if let Some(tried) = self.answer.program {
            all.push((
                "program",
                format!("{} columns, {} nodes of branch and bound", tried.columns, tried.nodes),
            ));
        }
        all
    }

    /// What changes would bring, a line each.
    fn changes(&self) -> Vec<String> {
        let line = |other: &Change| match &other.answer {
            None => format!("{}: some job does not fit or keep its deadline", other.name()),
            Some(found) => {
                let [value, bound] = [found.score.value(), found.bound].map(|value| self.value(value));
                format!("{}: {value} (proved: not below {bound})", other.name())
            }
        };
        self.changes.iter().map(line).collect()
    }

    /// What stands in the table of jobs, by start.
    fn entries(&self) -> Vec<&Placed> {
        let mut entries: Vec<&Placed> = self.answer.schedule.placed.iter().collect();
        entries.sort_by_key(|entry| (entry.start, entry.job));
        entries
    }

    fn jobs<'a>(&'a self, entries: &'a [&'a Placed]) -> Table<'a, &'a Placed> {
        let (instance, schedule) = (&self.fleet.instance, &self.answer.schedule);
        let user = |entry: &Placed| {
            instance.jobs[entry.job].user.map_or("", |user| instance.users[user].name.as_str())
        };
        let mut table = Table::of(entries).left("job", |entry| &instance.jobs[entry.job].name);
        if !instance.users.is_empty() {
            table = table.left("user", |entry| user(entry));
        }
        table
            .left("plan", |entry| &entry.choice_of(instance).plan)
            .right("GPUs", |entry| entry.choice_of(instance).gpus)
            .left("nodes", |entry| place(entry, instance.kinds[entry.choice_of(instance).kind].gpus))
            .right("start", |entry| time(entry.start))
            .right("end", |entry| time(entry.end))
            .left("deadline", |entry| match instance.jobs[entry.job].deadline {
                _ if !is_last(schedule, entry) => "goes on later".into(),
                None => String::new(),
                Some(deadline) if entry.end > deadline => format!("{}, missed", time(deadline)),
                Some(deadline) => format!("{}, kept", time(deadline)),
            })
    }

    /// Our schedule and those of the heuristics.
    fn methods(&self) -> Vec<Rival> {
        let ours = Rival {
            name: "trainwright",
            summary: "the schedule above",
            is_current_practice: false,
            schedule: self.answer.schedule.clone(),
            score: self.answer.score,
        };
        std::iter::once(ours).chain(self.answer.heuristics.iter().cloned()).collect()
    }

    fn beside<'a>(&'a self, methods: &'a [Rival]) -> Table<'a, Rival> {
        let (instance, makespan) = (&self.fleet.instance, self.answer.schedule.makespan());
        Table::of(methods)
            .left("method", |rival| match rival.is_current_practice {
                true => format!("{} *", rival.name),
                false => rival.name.to_string(),
            })
            .right("makespan", |rival| time(rival.schedule.makespan()))
            .right("ours less by", move |rival| percent(makespan, rival.schedule.makespan()))
            .right("mean end", |rival| time(rival.schedule.mean_completion() as u64))
            .right("utilisation", |rival| format!("{:.1} %", 100.0 * rival.schedule.utilisation(instance)))
            .right("late", |rival| rival.schedule.missed(instance).len())
    }

    /// What the jobs of each user have.
    fn users(&self) -> Vec<UserPage<'_>> {
        let (instance, schedule) = (&self.fleet.instance, &self.answer.schedule);
        let of_user = |(place, user)| {
            let is_of = |entry: &&Placed| instance.jobs[entry.job].user == Some(place);
            let entries: Vec<&Placed> = schedule.placed.iter().filter(is_of).collect();
            let held_at = |time: u64| -> usize {
                let during = entries.iter().filter(|entry| entry.start <= time && time < entry.end);
                during.map(|entry| entry.choice_of(instance).gpus).sum()
            };
            let held = entries.iter().map(|entry| held_at(entry.start)).max().unwrap_or(0);
            let ends: Vec<u64> = schedule.last().filter(is_of).map(|entry| entry.end).collect();
            let mean_end = ends.iter().sum::<u64>() as f64 / ends.len().max(1) as f64;
            UserPage { user, jobs: ends.len(), held, mean_end }
        };
        instance.users.iter().enumerate().map(of_user).collect()
    }

    /// What is proved.
    fn proof(&self) -> (&'static str, String) {
        let answer = self.answer;
        let preemption = if self.may_move { "with preemption" } else { "without preemption" };
        let whose = format!("with these plans on these numbers of GPUs, and {preemption}");
        match (answer.score.0[0] > 0.0, answer.is_proved()) {
            (true, _) => {
                let missed = answer.schedule.missed(&self.fleet.instance).len();
                let which = if answer.keeps_none { "that is proved" } else { "none was found" };
                ("deadlines", format!("{missed} missed; no schedule keeps all: {which}"))
            }
            (false, true) => ("proof", format!("no schedule has less, {whose}")),
            (false, false) => {
                let (gap, bound) = (100.0 * answer.gap(), self.value(answer.bound));
                ("gap", format!("{gap:.1} %: proved is that no schedule has less than {bound}, {whose}"))
            }
        }
    }

    /// A value of the objective.
    fn value(&self, value: f64) -> String {
        match self.objective {
            Objective::Makespan => time(value.ceil() as u64),
            Objective::Cost => format!("{value:.0} USD"),
            Objective::Completion | Objective::Deadlines => format!("{:.1} h", value / 3600.0),
        }
    }

    /// A chain of jobs from the last end back, each of which begins when the next one ends.
    fn critical(&self) -> Vec<&str> {
        let (instance, schedule) = (&self.fleet.instance, &self.answer.schedule);
        let Some(mut last) = schedule.placed.iter().max_by_key(|entry| (entry.end, entry.job)) else {
            return Vec::new();
        };
        let mut names = vec![instance.jobs[last.job].name.as_str()];
        let shares = |one: &Placed, other: &Placed| one.nodes.iter().any(|node| other.nodes.contains(node));
        while let Some(before) = schedule.placed.iter().find(|other| {
            let waits = instance.jobs[last.job].after.contains(&other.job) || other.job == last.job;
            other.end == last.start && (waits || shares(other, last))
        }) {
            names.push(instance.jobs[before.job].name.as_str());
            last = before;
        }
        names.dedup();
        names
    }

    /// What a move costs the jobs that move.
    fn restarts(&self) -> String {
        let instance = &self.fleet.instance;
        let moved = self.answer.schedule.of_jobs().filter(|entries| entries.len() > 1);
        let costs: Vec<u64> = moved.filter_map(|entries| instance.jobs[entries[0].job].restart).collect();
        let (least, most) =
            (costs.iter().min().copied().unwrap_or(0), costs.iter().max().copied().unwrap_or(0));
        match least == most {
            true => format!("each costs {}", time(least)),
            false => format!("each costs {} to {}", time(least), time(most)),
        }
    }

    fn cost(&self, schedule: &Schedule) -> Option<f64> {
        let instance = &self.fleet.instance;
        let known =
            schedule.placed.iter().all(|entry| self.fleet.prices[entry.choice_of(instance).kind].is_some());
        known.then(|| schedule.cost(instance))
    }

    /// Energy of the facility while jobs hold GPUs; `None` if the power of a GPU is not known.
    fn energy(&self, schedule: &Schedule) -> Option<Joules> {
        let instance = &self.fleet.instance;
        let pue = default_pue().value;
        let of = |entry: &Placed| {
            let choice = entry.choice_of(instance);
            let power = self.fleet.cluster.node_of(choice.kind).gpu.power.as_ref()?.value;
            let held = Seconds::new((entry.end - entry.start) as f64 * choice.gpus as f64);
            Some(energy(held, power, pue))
        };
        schedule.placed.iter().map(of).sum()
    }
}

/// Whether a job ends with an entry.
fn is_last(schedule: &Schedule, entry: &Placed) -> bool {
    schedule.placed.iter().all(|other| other.job != entry.job || other.start <= entry.start)
}

/// Nodes and, for a part of one, its GPUs: `0-3`, `2: GPUs 0-1`.
fn place(entry: &Placed, per_node: usize) -> String {
    let nodes = ranges(&entry.nodes);
    if entry.gpus.len() == per_node { nodes } else { format!("{nodes}: GPUs {}", ranges(&entry.gpus)) }
}

/// `0-3, 5`.
fn ranges(numbers: &[usize]) -> String {
    let runs = numbers.chunk_by(|one, other| one + 1 == *other);
    let word = |run: &[usize]| match run {
        [one] => one.to_string(),
        _ => format!("{}-{}", run[0], run[run.len() - 1]),
    };
    runs.map(word).collect::<Vec<_>>().join(", ")
}

/// Seconds up to two minutes, then minutes up to two hours, then hours.
fn time(seconds: u64) -> String {
    match seconds {
        0 => "0".into(),
        1..120 => format!("{seconds} s"),
        120..7200 => format!("{:.1} min", seconds as f64 / 60.0),
        _ => format!("{:.2} h", seconds as f64 / 3600.0),
    }
}

fn percent(ours: u64, other: u64) -> String {
    if ours == other {
        return String::new();
    }
    format!("{:.1} %", 100.0 * (1.0 - ours as f64 / other.max(1) as f64))
}
