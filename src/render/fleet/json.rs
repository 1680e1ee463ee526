//! A schedule as JSON.

use super::{Change, Changed, Page, is_last};
use serde_json::{Value, json};
use trainwright_fleet::Rival;
use trainwright_fleet::schedule::{Placed, Schedule};
use trainwright_fleet::uncertain::quantile;

impl Page<'_> {
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
        let (mut nodes, mut deadlines) = (Vec::new(), Vec::new());
        for Change { what, answer } in self.changes {
            let value = answer.as_ref().map(|found| found.score.value());
            let bound = answer.as_ref().map(|found| found.bound);
            match what {
                Changed::Node { change, kind } => {
                    nodes.push(json!({ "change": change, "node": kind, "value": value, "bound": bound }));
                }
                Changed::Deadline(job) => {
                    deadlines.push(json!({ "job": job, "value": value, "bound": bound }))
                }
            }
        }
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
            "makespan_p50_s": quantile(self.samples, 0.5),
            "makespan_p90_s": quantile(self.samples, 0.9),
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
            "other_nodes": nodes,
            "without_deadlines": deadlines,
        })
    }
}
