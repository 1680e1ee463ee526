//! What policies made of a trace of jobs.

use super::table::Table;
use serde_json::{Value, json};
use trainwright_fleet::online::stats::Stats;
use trainwright_fleet::online::{Outcome, Question};
use trainwright_fleet::policies::Policy;
use trainwright_spec::units::Seconds;

/// Outcomes with their question.
pub struct Page<'a> {
    /// What was asked.
    pub question: &'a Question<'a>,
    /// Each policy.
    pub ran: &'a [Ran],
}

/// A policy and what became of the jobs.
pub struct Ran {
    /// The policy.
    pub policy: &'static dyn Policy,
    /// Its outcome.
    pub outcome: Outcome,
    /// The figures of this.
    pub stats: Stats,
}

impl Page<'_> {
    /// For a terminal.
    pub fn text(&self) -> String {
        let jobs = self.question.jobs.len();
        let many = if jobs == 1 { "" } else { "s" };
        let mut text = format!(
            "{jobs} job{many} on {} ({} GPUs), rounds of {} s, restarts of {} s where the trace has none\n\n",
            self.nodes().join(" + "),
            self.gpus(),
            self.question.round.get(),
            self.question.restart.get()
        );
        for user in self.question.users {
            let most = user.max_gpus.unwrap_or(self.gpus());
            text += &format!("jobs of {} hold {most} GPUs at most\n", user.name);
        }
        if !self.question.users.is_empty() {
            text.push('\n');
        }
        let ran: Vec<&Ran> = self.ran.iter().collect();
        text += &Table::of(&ran)
            .left("policy", |ran| ran.policy.name())
            .right("mean JCT", |ran| time(ran.stats.mean))
            .right("P50", |ran| time(ran.stats.quantiles[0]))
            .right("P90", |ran| time(ran.stats.quantiles[1]))
            .right("P99", |ran| time(ran.stats.quantiles[2]))
            .right("waiting", |ran| time(ran.stats.waiting))
            .right("makespan", |ran| time(ran.stats.makespan))
            .right("utilisation", |ran| format!("{:.1} %", 100.0 * ran.stats.utilisation))
            .right("restarts", |ran| ran.stats.restarts)
            .text();
        text += "JCT: from arrival to end; waiting: from arrival to the first start; utilisation: GPU-time that jobs hold\n";
        for ran in self.ran {
            text += &format!("{}: {}\n", ran.policy.name(), ran.policy.summary());
        }
        text
    }

    fn gpus(&self) -> usize {
        self.question.kinds.iter().map(|kind| kind.nodes * kind.gpus).sum()
    }

    fn nodes(&self) -> Vec<String> {
        self.question.kinds.iter().map(|kind| format!("{}:{}x{}", kind.name, kind.nodes, kind.gpus)).collect()
    }

    /// As JSON.
    pub fn json(&self) -> Value {
        let of = |ran: &Ran| {
            let job = |(of, done): (
                &trainwright_fleet::online::trace::Arrival,
                &trainwright_fleet::online::Done,
            )| {
                json!({
                    "job": of.name,
                    "user": of.user,
                    "arrival_s": of.arrival.get(),
                    "start_s": done.start.get(),
                    "end_s": done.end.get(),
                    "restarts": done.restarts,
                })
            };
            let jobs: Vec<Value> = self.question.jobs.iter().zip(&ran.outcome.jobs).map(job).collect();
            let stats = &ran.stats;
            json!({
                "policy": ran.policy.name(),
                "mean_jct_s": stats.mean.get(),
                "weighted_mean_jct_s": stats.weighted.get(),
                "p50_jct_s": stats.quantiles[0].get(),
                "p90_jct_s": stats.quantiles[1].get(),
                "p99_jct_s": stats.quantiles[2].get(),
                "mean_waiting_s": stats.waiting.get(),
                "makespan_s": stats.makespan.get(),
                "utilisation": stats.utilisation,
                "restarts": stats.restarts,
                "jobs": jobs,
            })
        };
        json!({
            "nodes": self.nodes(),
            "gpus": self.gpus(),
            "round_s": self.question.round.get(),
            "restart_s": self.question.restart.get(),
            "quotas": self.question.users.iter().map(|user| json!({
                "user": user.name,
                "max_gpus": user.max_gpus,
            })).collect::<Vec<_>>(),
            "policies": self.ran.iter().map(of).collect::<Vec<_>>(),
        })
    }
}

/// Seconds up to two minutes, then minutes up to two hours, then hours.
fn time(seconds: Seconds) -> String {
    match seconds.get() {
        seconds if seconds < 120.0 => format!("{seconds:.1} s"),
        seconds if seconds < 7200.0 => format!("{:.1} min", seconds / 60.0),
        seconds => format!("{:.2} h", seconds / 3600.0),
    }
}
