//! The answer for one scenario: its best plan with a forecast, or why there is none.

use crate::input::words;
use crate::run::{Pace, Run, Steps};
use crate::scenario::{Base, Scenario};
use trainwright_planner::{Infeasible, Question, Scope, Verdict, plan_within};
use trainwright_sim::costs::ClusterCosts;
use trainwright_sim::{Forecast, forecast};
use trainwright_spec::model::flops::AttentionCount;
use trainwright_spec::plan::Plan;
use trainwright_spec::units::Seconds;

/// A plan that was found or given, with its forecast; or why there is none, in one line.
pub type Outcome = Result<Planned, String>;

/// A plan with its forecast.
#[derive(Debug, Clone, PartialEq)]
pub struct Planned {
    /// The plan.
    pub plan: Plan,
    /// Its simulated step.
    pub forecast: Forecast,
    /// The limits of its speed; empty if no planner looked at it.
    pub limited_by: String,
}

/// A scenario with what becomes of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// The values that were varied, in the order of the axes.
    pub point: Vec<String>,
    /// The scenario; `None` if these values cannot go together.
    pub scenario: Option<Scenario>,
    /// Its plan, or why there is none.
    pub outcome: Outcome,
}

/// The default number of tokens for comparing runs.
pub const BILLION: f64 = 1e9;

impl Answer {
    /// Time, cost and energy of a billion tokens, if the scenario has a plan.
    pub fn billion(&self) -> Option<Run> {
        self.run_of(BILLION, Steps::Fraction)
    }

    fn run_of(&self, tokens: f64, steps: Steps) -> Option<Run> {
        let (scenario, planned) = (self.scenario.as_ref()?, self.outcome.as_ref().ok()?);
        let pace =
            Pace { cluster: scenario.cluster(), job: scenario.job(), step: planned.forecast.step_time };
        Some(Run::of(tokens, steps, &pace, &scenario.rates))
    }

    /// The run whose tokens were given, if the scenario has a plan and they were.
    pub fn whole_run(&self) -> Option<Run> {
        self.run_of(self.scenario.as_ref()?.rates.tokens?, Steps::Whole)
    }

    /// The run whose tokens were given, or what a billion take.
    pub fn wanted_run(&self) -> Option<Run> {
        self.whole_run().or_else(|| self.billion())
    }

    /// Model FLOP/s of all GPUs over their peak, as the plan's forecast counts them with causal attention halved.
    pub fn mfu(&self) -> Option<f64> {
        self.outcome.as_ref().ok().map(|planned| planned.forecast.mfu_causal_attention)
    }
}

/// The plan of a question, the best in a time if one is given, or the forecast of a plan. This alone calls the planner.
pub(crate) fn outcome(base: &Base, time: Option<Seconds>) -> Outcome {
    match base {
        Base::Question(question) => best(question, time),
        Base::Plan(plan) => simulated(plan),
    }
}

fn best(question: &Question, time: Option<Seconds>) -> Outcome {
    sensible(question)?;
    match plan_within(question, Scope { time, ..Scope::BEST }, &|_| {}) {
        Ok(Verdict::Found(found)) => {
            let best = found.ranked.into_iter().next();
            let best = best.ok_or("the planner found no plan that it could rank")?;
            Ok(Planned { plan: best.plan, forecast: best.forecast, limited_by: best.limited_by })
        }
        Ok(Verdict::Infeasible(infeasible)) => Err(least_broken(&infeasible)),
        Ok(Verdict::OutOfTime(_)) => Err("the time limit came before any plan that fits".into()),
        Err(error) => Err(error.to_string()),
    }
}

/// Steps that the simulator's clock, which ends after 213 days, would not hold.
fn sensible(question: &Question) -> Result<(), String> {
    let flops = question.job.step_flops(&question.model, AttentionCount::CausalHalved);
    let gpu = &question.cluster.node.gpu;
    let Some(peak) = gpu.peak.get(&question.job.precision) else {
        return Err(format!("{} does not compute in {}", gpu.name, question.job.precision));
    };
    let step = flops / (question.cluster.gpus() as f64 * peak.value);
    match step > Seconds::of_days(1.0) {
        true => Err(format!(
            "a step takes {:.0} days at the peak of all GPUs, at most one is simulated",
            step.as_days()
        )),
        false => Ok(()),
    }
}

fn least_broken(infeasible: &Infeasible) -> String {
    match infeasible.broken.first() {
        Some(broken) => format!(
            "does not fit: {} needs {} of {}, {} more ({})",
            broken.limit,
            broken.needs,
            broken.has,
            broken.needs - broken.has,
            broken.plans
        ),
        None => "does not fit".into(),
    }
}

fn simulated(plan: &Plan) -> Outcome {
    plan.check("plan").map_err(words)?;
    let (forecast, _) =
        forecast(plan, &ClusterCosts::new(&plan.cluster)).map_err(|error| error.to_string())?;
    match forecast.fits {
        true => Ok(Planned { plan: plan.clone(), forecast, limited_by: String::new() }),
        false => Err(format!("does not fit: needs {} of {}", forecast.peak_memory, forecast.gpu_memory)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trainwright_planner::{Pins, Risk, plan};
    use trainwright_spec::cluster::Cluster;
    use trainwright_spec::job::Job;
    use trainwright_spec::model::preset::preset;
    use trainwright_spec::precision::Precision;
    use trainwright_spec::stack::Stack;

    /// Without the reasons for rejected alternatives, which take most of the planner's time; the plan is the same.
    #[test]
    fn a_point_has_the_plan_that_the_planner_ranks_first() {
        for (model, cluster, global_batch) in
            [("gpt2", "dgx-a100", 64), ("gpt2-xl", "dgx-1v:2", 32), ("llama-3-8b", "dgx-h100", 16)]
        {
            let question = Question {
                model: preset(model).unwrap(),
                cluster: Cluster::from_name(cluster).unwrap(),
                job: Job::new(1024, global_batch, Precision::Fp16),
                stack: Stack::from_name("megatron-core").unwrap(),
                pins: Pins::default(),
                risk: Risk::default(),
            };
            let Ok(Verdict::Found(found)) = plan(&question, &|_| {}) else { panic!("{model} has a plan") };
            let first = &found.ranked[0];
            let alone = best(&question, None).unwrap();
            assert_eq!(alone.plan, first.plan, "{model}");
            assert_eq!(alone.forecast, first.forecast, "{model}");
        }
    }
}
