//! A schedule of several jobs, what is proved of it, and what heuristics do.

use super::table::Table;
use crate::inputs::fleet::Fleet;
use serde_json::{Value, json};
use trainwright_fleet::instance::User;
use trainwright_fleet::objective::Objective;
use trainwright_fleet::schedule::{Placed, Schedule};
use trainwright_fleet::uncertain::quantile;
use trainwright_fleet::{Answer, Rival};
use trainwright_pictures::gantt::{Gantt, GanttBox};
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
    /// Makespans of samples, ascending; empty where jobs move.
    pub samples: &'a [u64],
    /// Answers with other numbers of nodes.
    pub other_nodes: &'a [OtherNodes],
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

/// The answer with another number of nodes.
pub struct OtherNodes {
    /// `one more`.
    pub change: &'static str,
    /// The kind of the node.
    pub kind: String,
    /// The answer; `None` if some job does not fit then.
    pub answer: Option<Answer>,
}

impl Page<'_> {
    /// For a terminal.
    pub fn text(&self) -> String {
        let (instance, answer) = (&self.fleet.instance, self.answer);
        let schedule = &answer.schedule;
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
        let mut entries: Vec<&Placed> = schedule.placed.iter().collect();
        entries.sort_by_key(|entry| (entry.start, entry.job));
        let user = |entry: &Placed| {
            instance.jobs[entry.job].user.map_or("", |user| instance.users[user].name.as_str())
        };
        let mut table = Table::of(&entries).left("job", |entry| &instance.jobs[entry.job].name);
        if !instance.users.is_empty() {
            table = table.left("user", |entry| user(entry));
        }
        text += &table
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
            .text();
        text += &format!(
            "\nmakespan     {}, set by {}\n",
            time(schedule.makespan()),
            self.critical().join(" after ")
        );
        if self.samples.first() != self.samples.last() {
            text += &format!(
                "P50, P90     {}, {}: {} samples of the errors of similar measured runs, shared by jobs of one model\n",
                time(quantile(self.samples, 0.5)),
                time(quantile(self.samples, 0.9)),
                self.samples.len()
            );
        }
        let moves = schedule.placed.len() - instance.jobs.len();
        if self.may_move && moves > 0 {
            text += &format!("moves        {moves}; {}\n", self.restarts());
        }
        text += &format!("completion   {} in the mean, ", time(schedule.mean_completion() as u64));
        text += &format!("Σ weight · end {:.1} h\n", schedule.weighted_completion(instance) / 3600.0);
        text += &format!(
            "utilisation  {:.1} % of the GPUs' time until then\n",
            100.0 * schedule.utilisation(instance)
        );
        if let Some(cost) = self.cost(schedule) {
            text += &format!("cost         {cost:.0} USD for the GPUs that jobs hold\n");
        }
        if let Some(energy) = self.energy(schedule) {
            text += &format!("energy       {:.0} kWh\n", energy.get() / 3.6e6);
        }
        for of in self.users() {
            let UserPage { user, held, jobs, .. } = &of;
            let many = if *jobs == 1 { "" } else { "s" };
            let quota = user.max_gpus.map_or(String::new(), |most| format!(" of {most}"));
            text += &format!(
                "user         {}: {jobs} job{many}, {held}{quota} GPUs at most, {} the mean end\n",
                user.name,
                time(of.mean_end as u64)
            );
        }
        text += &self.proof();
        text += "\nBeside it\n";
        let ours = Rival {
            name: "trainwright",
            summary: "the schedule above",
            is_current_practice: false,
            schedule: schedule.clone(),
            score: answer.score,
        };
        let all: Vec<&Rival> = std::iter::once(&ours).chain(&answer.heuristics).collect();
        text += &Table::of(&all)
            .left("method", |rival| match rival.is_current_practice {
                true => format!("{} *", rival.name),
                false => rival.name.to_string(),
            })
            .right("makespan", |rival| time(rival.schedule.makespan()))
            .right("ours less by", |rival| percent(schedule.makespan(), rival.schedule.makespan()))
            .right("mean end", |rival| time(rival.schedule.mean_completion() as u64))
            .right("utilisation", |rival| format!("{:.1} %", 100.0 * rival.schedule.utilisation(instance)))
            .right("late", |rival| rival.schedule.missed(instance).len())
            .text();
        text += "*: current practice; every method has the same plans to choose from\n";
        for other in self.other_nodes {
            text += &match &other.answer {
                None => {
                    format!("{} {}: some job does not fit or keep its deadline\n", other.change, other.kind)
                }
                Some(found) => format!(
                    "{} {}: {} (proved: not below {})\n",
                    other.change,
                    other.kind,
                    self.value(found.score.value()),
                    self.value(found.bound)
                ),
            };
        }
        text
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
    fn proof(&self) -> String {
        let answer = self.answer;
        let missed = answer.score.0[0];
        let preemption = if self.may_move { "with preemption" } else { "without preemption" };
        let whose = format!("with these plans on these numbers of GPUs, and {preemption}");
        let mut text = match (missed > 0.0, answer.is_proved()) {
            (true, _) => {
                let missed = answer.schedule.missed(&self.fleet.instance).len();
                let which = if answer.keeps_none { "that is proved" } else { "none was found" };
                format!("deadlines    {missed} missed; no schedule keeps all: {which}\n")
            }
            (false, true) => format!("proof        no schedule has less, {whose}\n"),
            (false, false) => format!(
                "gap          {:.1} %: proved is that no schedule has less than {}, {whose}\n",
                100.0 * answer.gap(),
                self.value(answer.bound)
            ),
        };
        if let Some(tried) = answer.program {
            text += &format!(
                "program      {} columns, {} nodes of branch and bound\n",
                tried.columns, tried.nodes
            );
        }
        text
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

    /// The schedule as a picture.
    pub fn picture(&self) -> Gantt {
        let instance = &self.fleet.instance;
        let kinds = instance.nodes();
        let name = |(node, kind): (usize, &usize)| (format!("node {node}"), instance.kinds[*kind].gpus);
        let boxes = self.answer.schedule.placed.iter().flat_map(|entry| {
            let of = &instance.jobs[entry.job];
            let choice = entry.choice_of(instance);
            let (start, end) = (entry.start as f64 / 3600.0, entry.end as f64 / 3600.0);
            entry.nodes.iter().map(move |node| GanttBox {
                name: of.name.clone(),
                tip: format!(
                    "{}: {} GPUs, {}, {} to {}",
                    of.name,
                    choice.gpus,
                    choice.plan,
                    time(entry.start),
                    time(entry.end)
                ),
                colour: entry.job,
                node: *node,
                gpus: entry.gpus.clone(),
                hours: (start, end),
            })
        });
        Gantt {
            title: format!(
                "{} jobs on {}: {}",
                instance.jobs.len(),
                self.fleet.cluster.name,
                time(self.answer.schedule.makespan())
            ),
            nodes: kinds.iter().enumerate().map(name).collect(),
            boxes: boxes.collect(),
        }
    }

    /// As JSON.
    pub fn json(&self) -> Value {
        let (instance, answer) = (&self.fleet.instance, self.answer);
        let schedule = &answer.schedule;
        let job = |entry: &Placed| {
            let (of, choice) = (&instance.jobs[entry.job], entry.choice_of(instance));
            json!({
                "job": of.name,
                "user": of.user.map(|user| &instance.users[user].name),
                "plan": choice.plan,
                "node": instance.kinds[choice.kind].name,
                "gpus": choice.gpus,
                "nodes": entry.nodes,
                "gpus_of_each_node": entry.gpus,
                "start_s": entry.start,
                "end_s": entry.end,
                "deadline_s": of.deadline,
                "weight": of.weight,
                "cost_usd": self.fleet.prices[choice.kind].map(|_| entry.cost(instance)),
                "is_last": is_last(schedule, entry),
            })
        };
        let of = |schedule: &Schedule| {
            json!({
                "makespan_s": schedule.makespan(),
                "mean_completion_s": schedule.mean_completion(),
                "weighted_completion_s": schedule.weighted_completion(instance),
                "utilisation": schedule.utilisation(instance),
                "cost_usd": self.cost(schedule),
                "energy_j": self.energy(schedule),
                "missed_deadlines": schedule.missed(instance).len(),
            })
        };
        let rival = |rival: &Rival| {
            json!({
                "method": rival.name,
                "is_current_practice": rival.is_current_practice,
                "schedule": of(&rival.schedule),
            })
        };
        let sampled = |part: f64| (!self.samples.is_empty()).then(|| quantile(self.samples, part));
        json!({
            "cluster": self.fleet.cluster.name,
            "gpus": instance.gpus(),
            "now_s": self.now,
            "objective": self.objective.name(),
            "value": answer.score.value(),
            "bound": answer.bound,
            "gap": answer.gap(),
            "proved": answer.is_proved(),
            "no_schedule_keeps_deadlines": answer.keeps_none,
            "schedule": of(schedule),
            "may_move": self.may_move,
            "makespan_p50_s": sampled(0.5),
            "makespan_p90_s": sampled(0.9),
            "critical": self.critical(),
            "users": self.users().iter().map(|of| json!({
                "user": of.user.name,
                "max_gpus": of.user.max_gpus,
                "jobs": of.jobs,
                "most_gpus_at_a_time": of.held,
                "mean_completion_s": of.mean_end,
            })).collect::<Vec<_>>(),
            "jobs": schedule.placed.iter().map(job).collect::<Vec<_>>(),
            "heuristics": answer.heuristics.iter().map(rival).collect::<Vec<_>>(),
            "other_nodes": self.other_nodes.iter().map(|other| json!({
                "change": other.change,
                "node": other.kind,
                "value": other.answer.as_ref().map(|found| found.score.value()),
                "bound": other.answer.as_ref().map(|found| found.bound),
            })).collect::<Vec<_>>(),
        })
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
