//! Plans that people published against the planner's under the same model, cluster, batch and software, and whatever
//! choices of the published plan outside the core of the space.

use rayon::prelude::*;
use trainwright_evidence::runs::{Outcome, Run};
use trainwright_evidence::statistics::{mean, median};
use trainwright_lower::memory::{RankMemory, plan_memory};
use trainwright_planner::{Pins, Question, Risk, Verdict, plan};
use trainwright_sim::costs::ClusterCosts;
use trainwright_sim::step_time_for_ranking;
use trainwright_spec::plan::{Plan, Recompute, ScheduleChoice};
use trainwright_spec::units::{Bytes, Seconds};

/// A published run whose plan fits by its forecast.
pub struct Compared {
    /// Its name.
    pub id: String,
    /// Forecast of the published plan.
    pub published: Seconds,
    /// Forecast of the planner's; `None` if it found no plan.
    pub planned: Option<Seconds>,
}

impl Compared {
    /// Whether the planner's plan is forecast to be slower, beyond the simulator's clock.
    pub fn is_slower(&self) -> bool {
        self.planned.is_none_or(|planned| planned > self.published * (1.0 + 1e-9))
    }
}

/// The question that the published plan answers.
fn question(plan: &Plan) -> Option<Question> {
    let ScheduleChoice::Named(schedule) = &plan.schedule else { return None };
    let mut only: Vec<(String, String)> = Vec::new();
    let mut among = |key: &str, usual: &[&str], published: String| {
        let mut values: Vec<String> = usual.iter().map(ToString::to_string).collect();
        if !values.contains(&published) {
            values.push(published);
        }
        only.extend(values.into_iter().map(|value| (key.to_string(), value)));
    };
    among("schedule", &["gpipe", "1f1b", "interleaved"], schedule.clone());
    among("data-sharding", &["none", "zero1"], plan.data_sharding.clone());
    among("context", &["1"], plan.mesh.context.to_string());
    among("context-scheme", &[], plan.context_scheme.clone());
    among("expert", &["1"], plan.mesh.expert.to_string());
    among("expert-tensor", &["1", "2", "4", "8"], plan.mesh.expert_tensor().to_string());
    if let Some(shard) = plan.mesh.shard {
        among("shard", &[], shard.to_string());
    }
    if !plan.offload.is_none() {
        among("offload", &["none"], "optimizer".into());
    }
    let recompute_choices = plan.stages.iter().flat_map(|stage| &stage.0);
    let mut choices = vec![Recompute::None, Recompute::Full];
    if plan.stack.selective_recompute {
        choices.push(Recompute::Selective);
    }
    for choice in recompute_choices {
        if !choices.contains(choice) {
            choices.push(*choice);
        }
    }
    only.extend(choices.into_iter().map(|choice| ("recompute".to_string(), choice.to_string())));
    Some(Question {
        model: plan.model.clone(),
        cluster: plan.cluster.clone(),
        job: plan.job.clone(),
        stack: plan.stack.clone(),
        pins: Pins { only, ..Pins::default() },
        risk: Risk::default(),
    })
}

/// One of `every` runs of quality A that ran, with those whose plan does not fit by its forecast left out.
pub fn compared(runs: &[Run], every: usize) -> Vec<Compared> {
    let counts = |run: &&Run| run.quality == "A" && run.outcome() == Some(Outcome::Fits);
    let plans = runs.iter().filter(counts).step_by(every).filter_map(|run| Some((run, run.plan().ok()?)));
    let fits = |plan: &Plan| {
        let used = plan_memory(plan).iter().map(RankMemory::total).fold(Bytes::ZERO, Bytes::max);
        used <= plan.cluster.node.gpu.memory.value
    };
    let plans: Vec<(&Run, Plan)> = plans.filter(|(_, plan)| fits(plan)).collect();
    // Many runs are answers to the same question.
    let mut questions: Vec<(Question, Vec<usize>)> = Vec::new();
    for (index, (_, plan)) in plans.iter().enumerate() {
        let Some(question) = question(plan) else { continue };
        match questions.iter_mut().find(|(known, _)| *known == question) {
            Some((_, answers)) => answers.push(index),
            None => questions.push((question, vec![index])),
        }
    }
    let time = |plan: &Plan| {
        let costs = ClusterCosts::new(&plan.cluster);
        step_time_for_ranking(plan, &costs).ok().map(Seconds::from)
    };
    let answer = |(question, answers): &(Question, Vec<usize>)| -> Vec<(usize, Compared)> {
        let planned = match plan(question, &|_| {}) {
            Ok(Verdict::Found(found)) => {
                found.ranked.iter().filter_map(|ranked| time(&ranked.plan)).reduce(Seconds::min)
            }
            Ok(_) | Err(_) => None,
        };
        let of = |index: &usize| {
            let (run, plan) = &plans[*index];
            Some((*index, Compared { id: run.id.clone(), published: time(plan)?, planned }))
        };
        answers.iter().filter_map(of).collect()
    };
    let mut all: Vec<(usize, Compared)> = questions.par_iter().flat_map_iter(answer).collect();
    all.sort_by_key(|(index, _)| *index);
    all.into_iter().map(|(_, compared)| compared).collect()
}

/// How much faster than theirs the planner's plans are, in a sentence, and those that are not.
pub fn summary(all: &[Compared]) -> String {
    let gain = |one: &Compared| one.planned.map(|planned| 1.0 - planned / one.published);
    let gains: Vec<f64> = all.iter().filter_map(gain).collect();
    let slower = all.iter().filter(|one| one.is_slower()).count();
    let mut text = format!(
        "{} published plans that fit by their forecast: the planner's is forecast to be slower than {slower} of them; the \
         time saved is {:.1} % in the mean, {:.1} % in the median.\n",
        all.len(),
        100.0 * mean(&gains),
        100.0 * median(&gains),
    );
    for one in all.iter().filter(|one| one.is_slower()) {
        let planned = one.planned.map_or_else(|| "nothing".into(), |planned| planned.to_string());
        text += &format!("- {}: published {}, planned {planned}\n", one.id, one.published);
    }
    text
}
