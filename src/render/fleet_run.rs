//! A fleet that this machine carried out, beside its forecast.

use super::table::Table;
use super::words;
use crate::fleet_run::Prepared;
use serde_json::{Value, json};
use trainwright_fleet::execute::{FleetOutcome, JobRun};
use trainwright_fleet::objective::Objective;
use trainwright_pictures::gantt::{Gantt, GanttBox};
use trainwright_pictures::html::{Section, page};

/// How it went, and how it was expected to.
pub struct Page<'a> {
    /// The jobs.
    pub prepared: &'a Prepared,
    /// What is least.
    pub objective: Objective,
    /// The end of the last job in the schedule without moves, in seconds.
    pub scheduled: u64,
    /// Whether no schedule without moves has less of the objective.
    pub is_proved: bool,
    /// Runs of jobs if all take what was forecast.
    pub expected: &'a [JobRun],
    /// Runs as they were.
    pub measured: &'a [JobRun],
    /// What went wrong.
    pub carried: &'a FleetOutcome,
    /// The part of all cores' time that other programs took in this call, 0 to 1; `None` if the system does not say.
    pub others: Option<f64>,
}

/// A job: its runs as forecast and as they were.
struct Row<'a> {
    job: usize,
    name: &'a str,
    plans: String,
    expected: Span,
    measured: Span,
    runs: usize,
    state: &'static str,
    /// Seconds by which it ended after its deadline.
    late: Option<f64>,
}

/// From a first start to a last end, in seconds.
#[derive(Clone, Copy, Default)]
struct Span {
    start: Option<f64>,
    end: Option<f64>,
}

impl Span {
    fn of<'p>(pieces: impl Iterator<Item = &'p JobRun>) -> Self {
        let mut span = Self::default();
        for piece in pieces {
            span.start = span.start.or(Some(piece.start));
            span.end = piece.end.filter(|_| piece.is_last);
        }
        span
    }
}

/// The last end of jobs that are done, if all of them are.
fn makespan(rows: &[Row], span: fn(&Row) -> Span) -> Option<f64> {
    rows.iter().map(|row| span(row).end).try_fold(0.0, |most: f64, end| Some(most.max(end?)))
}

impl Page<'_> {
    fn rows(&self) -> Vec<Row<'_>> {
        let instance = &self.prepared.instance;
        let row = |job: usize| {
            let of = |pieces: &'_ [JobRun]| Span::of(pieces.iter().filter(|piece| piece.job == job));
            let runs: Vec<&JobRun> = self.measured.iter().filter(|piece| piece.job == job).collect();
            let mut plans: Vec<String> = runs.iter().map(|piece| self.plan(piece)).collect();
            plans.dedup();
            let state = match self.carried.failed.iter().find(|(failed, _)| *failed == job) {
                Some(_) => "failed",
                None if self.carried.skipped.contains(&job) => "skipped",
                None if runs.iter().any(|piece| piece.is_last) => "done",
                None => "stopped",
            };
            let measured = of(self.measured);
            let deadline = instance.jobs[job].deadline.map(|deadline| deadline as f64);
            Row {
                job,
                late: measured.end.zip(deadline).map(|(end, limit)| end - limit).filter(|late| *late > 0.0),
                name: &instance.jobs[job].name,
                plans: plans.join(", then "),
                expected: of(self.expected),
                measured,
                runs: runs.len(),
                state,
            }
        };
        let mut rows: Vec<Row> = (0..instance.jobs.len()).map(row).collect();
        let start = |row: &Row| row.measured.start.unwrap_or(f64::INFINITY);
        rows.sort_by(|one, other| start(one).total_cmp(&start(other)));
        rows
    }

    /// A plan in words, as `one core`.
    fn plan(&self, piece: &JobRun) -> String {
        let choices = &self.prepared.instance.jobs[piece.job].choices;
        choices.iter().find(|choice| choice.gpus == piece.gpus).map_or(String::new(), |of| of.plan.clone())
    }

    /// For a terminal.
    pub fn text(&self) -> String {
        let rows = self.rows();
        let cores = self.prepared.instance.gpus();
        let mut text = format!(
            "{} on {} of this machine, least {}\n\n",
            words::count(rows.len(), "job"),
            words::count(cores, "core"),
            self.objective.name()
        );
        text += &self.jobs(&rows).text();
        let figures = self.figures(&rows);
        text += if figures.is_empty() { "" } else { "\n" };
        for (name, words) in figures {
            text += &format!("{name:<11}{words}\n");
        }
        text
    }

    fn jobs<'a>(&self, rows: &'a [Row<'a>]) -> Table<'a, Row<'a>> {
        let time = |time: Option<f64>| time.map_or("–".into(), |time| format!("{time:.1}"));
        Table::of(rows)
            .left("job", |row| row.name)
            .left("plan", |row| row.plans.as_str())
            .right("start, s: forecast", |row| time(row.expected.start))
            .right("measured", |row| time(row.measured.start))
            .right("end, s: forecast", |row| time(row.expected.end))
            .right("measured", |row| time(row.measured.end))
            .right("runs", |row| row.runs)
            .left("", |row| match row.late {
                Some(late) => format!("{}, {late:.1} s late", row.state),
                None => row.state.to_string(),
            })
    }

    /// What there is to say of both schedules, each with its name.
    fn figures(&self, rows: &[Row]) -> Vec<(&'static str, String)> {
        let mut all = Vec::new();
        if let Some(expected) = makespan(rows, |row| row.expected) {
            let proof = match self.is_proved {
                true => format!("; its {} is proved least for these forecasts", self.objective.name()),
                false => String::new(),
            };
            all.push(("schedule", format!("{} s without moves{proof}", self.scheduled)));
            let moves = "with jobs that move to other cores where that is faster";
            all.push(("forecast", format!("{expected:.1} s, {moves}")));
            if let Some(measured) = makespan(rows, |row| row.measured) {
                let error = 100.0 * (expected / measured - 1.0);
                all.push(("measured", format!("{measured:.1} s: the forecast is {error:+.1} % off")));
            }
        }
        if let Some(others) = self.others {
            all.push(("others", format!("took {:.0} % of the cores' time in this call", 100.0 * others)));
        }
        for (job, why) in &self.carried.failed {
            all.push(("failed", format!("{}: {why}", self.prepared.instance.jobs[*job].name)));
        }
        if self.carried.is_interrupted {
            all.push(("stopped", "the same command goes on".into()));
        }
        all
    }

    /// A page for a browser.
    pub fn html(&self) -> String {
        let (rows, picture) = (self.rows(), self.picture());
        let title = picture.title.clone();
        let mut sections = vec![Section::Gantt(picture)];
        let figures = self.figures(&rows).into_iter();
        sections.extend(figures.map(|(name, words)| Section::Text(format!("{name}: {words}"))));
        sections.extend([Section::Heading("Jobs".into()), self.jobs(&rows).section()]);
        page(&title, &sections)
    }

    /// Both schedules over one axis of time.
    pub fn picture(&self) -> Gantt {
        let cores = self.prepared.instance.gpus();
        let last = self.measured.iter().filter_map(|piece| piece.end).fold(0.0, f64::max);
        let boxes = |pieces: &[JobRun], node: usize| -> Vec<GanttBox> {
            let mut free = vec![0.0; cores];
            let mut order: Vec<&JobRun> = pieces.iter().collect();
            order.sort_by(|one, other| one.start.total_cmp(&other.start));
            let of = |piece: &&JobRun| {
                let end = piece.end.unwrap_or(last);
                let idle = (0..cores).filter(|core| free[*core] <= piece.start + 1e-9);
                let gpus: Vec<usize> = idle.take(piece.gpus).collect();
                gpus.iter().for_each(|core| free[*core] = end);
                let name = self.prepared.instance.jobs[piece.job].name.clone();
                let tip = format!("{name}: {}, {:.1} s to {end:.1} s", self.plan(piece), piece.start);
                GanttBox {
                    name,
                    tip,
                    colour: piece.job,
                    node,
                    gpus,
                    hours: (piece.start / 3600.0, end / 3600.0),
                }
            };
            order.iter().map(of).collect()
        };
        Gantt {
            title: format!(
                "{} on {}",
                words::count(self.prepared.instance.jobs.len(), "job"),
                words::count(cores, "core")
            ),
            nodes: vec![("forecast".into(), cores), ("measured".into(), cores)],
            boxes: [boxes(self.expected, 0), boxes(self.measured, 1)].concat(),
        }
    }

    /// As JSON.
    pub fn json(&self) -> Value {
        let rows = self.rows();
        let runs = |pieces: &[JobRun], job: usize| -> Vec<Value> {
            let of = pieces.iter().filter(|piece| piece.job == job);
            of.map(|piece| {
                json!({
                    "cores": piece.gpus,
                    "plan": self.plan(piece),
                    "start_s": piece.start,
                    "end_s": piece.end,
                })
            })
            .collect()
        };
        let [expected, measured] = [makespan(&rows, |row| row.expected), makespan(&rows, |row| row.measured)];
        json!({
            "cores": self.prepared.instance.gpus(),
            "objective": self.objective.name(),
            "schedule_makespan_s": self.scheduled,
            "proved": self.is_proved,
            "makespan_s": {
                "forecast": expected,
                "measured": measured,
                "error_percent": expected.zip(measured).map(|(of, to)| 100.0 * (of / to - 1.0)),
            },
            "other_programs": self.others,
            "interrupted": self.carried.is_interrupted,
            "jobs": rows.iter().map(|row| json!({
                "job": row.name,
                "state": row.state,
                "steps": self.prepared.steps[row.job],
                "deadline_s": self.prepared.instance.jobs[row.job].deadline,
                "late_s": row.late,
                "reason": self.carried.failed.iter().find(|(job, _)| *job == row.job).map(|(_, why)| why),
                "forecast": runs(self.expected, row.job),
                "measured": runs(self.measured, row.job),
            })).collect::<Vec<_>>(),
        })
    }
}
