//! Plans of training for a loop: those that the planner finds for its updates.
//!
//! How samples are packed into microbatches depends on the data ranks and on the tokens that a microbatch may have. For each
//! number of data ranks that divides the GPUs, each such limit and each way to share the state, the planner is asked for the fastest
//! plans of an update. Other models, a reference or a critic, hold memory beside training; how much depends on the plan. While
//! plans that do not fit beside them are faster than those that do, the planner is asked again with less memory.
//!
//! All are asked for quickly first. Those of the fastest loops are then asked for as `plan` answers.

use super::RlQuestion;
use super::loops::loop_of;
use crate::cost::CachedCosts;
use crate::question::{Pins, Question};
use crate::risk::Risk;
use crate::search::{Effort, PartAnswer, plan_part};
use crate::space::{OFFLOAD, divisors};
use crate::verdict::{Finalist, PlannerError};
use rayon::prelude::*;
use trainwright_lower::memory::plan_memory;
use trainwright_sim::rl::{EqualSamples, SEQUENCE_UNIT, TrainingTimes, training_memory, training_times};
use trainwright_sim::{Stop, fullest};
use trainwright_spec::cluster::Cluster;
use trainwright_spec::job::Job;
use trainwright_spec::rl::{Mode, RlPlan};
use trainwright_spec::serving::ServingPlan;
use trainwright_spec::stack::Stack;
use trainwright_spec::units::{Bytes, Seconds};

/// How often the planner is asked with another memory.
const ROUNDS: usize = 6;

/// A sample's tokens are rounded up by at most this part of them, to be divisible by the ranks that share a sample.
const ROUNDING: usize = 64;

/// By how much the memory grows at least, in search of the plan that comes closest.
const GROWTH: f64 = 1.02;

/// A plan of training in a loop, with the time of its passes.
#[derive(Debug, Clone)]
pub(super) struct Update {
    /// The loop; its engine is any.
    pub plan: RlPlan,
    /// What its passes take.
    pub times: TrainingTimes,
    /// What training may use of a GPU, to fit with the probability that is asked for.
    pub room: Bytes,
    /// What the planner takes it to need, without other models.
    alone: Bytes,
    /// What the planner was asked.
    asked: Asked,
}

impl Update {
    /// What the updates take.
    fn time(&self) -> Seconds {
        self.times.update.into_iter().sum()
    }

    /// By how much the fullest phase of training is beyond what it may use; none if all fit.
    fn beyond(&self) -> Option<Bytes> {
        let memory = training_memory(&self.plan, &self.times.actor, self.times.critic.as_ref());
        let beyond = memory.iter().map(|phase| phase.total() - self.room);
        beyond.filter(|beyond| *beyond > Bytes::ZERO).max_by(|one, other| one.get().total_cmp(&other.get()))
    }
}

/// Training on all GPUs of a cluster, in loops of a mode.
pub(super) struct Training<'a> {
    question: &'a RlQuestion,
    mode: Mode,
    cluster: Cluster,
    stack: Stack,
    /// The plans that fit, or, if there is none, those that come closest.
    pub updates: Vec<Update>,
    /// What was asked with the whole effort.
    refined: Vec<Asked>,
}

/// What is asked.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Asked {
    data: usize,
    sharding: &'static str,
    pack: usize,
    samples: EqualSamples,
}

/// What became of it.
struct Answer {
    fit: Vec<Update>,
    closest: Vec<Update>,
    /// How many times the memory is needed, if the planner finds nothing; else without end.
    short: f64,
}

impl<'a> Training<'a> {
    /// Asks for every number of data ranks, as far as the time goes.
    ///
    /// # Errors
    /// Bad pins, and a deadlock of a schedule.
    pub fn new(
        question: &'a RlQuestion,
        mode: Mode,
        cluster: &Cluster,
        stop: Stop,
    ) -> Result<Self, PlannerError> {
        let (mut cluster, mut stack) = (cluster.clone(), question.stack.clone());
        if let Some(calibration) = &question.calibration {
            calibration.apply(&mut cluster, &mut stack);
        }
        let mut training = Self { question, mode, cluster, stack, updates: Vec::new(), refined: Vec::new() };
        training.updates = training.first(stop)?;
        Ok(training)
    }

    fn first(&self, stop: Stop) -> Result<Vec<Update>, PlannerError> {
        let costs = CachedCosts::new(&self.cluster);
        let asked = self.all();
        let answers: Vec<Result<_, PlannerError>> =
            asked.par_iter().map(|asked| self.answer(*asked, Effort::Quick, &costs, stop)).collect();
        let answers = answers.into_iter().collect::<Result<Vec<Answer>, PlannerError>>()?;
        let fit: Vec<Update> = answers.iter().flat_map(|answer| answer.fit.clone()).collect();
        if !fit.is_empty() {
            return Ok(fit);
        }
        let closest: Vec<Update> = answers.iter().flat_map(|answer| answer.closest.clone()).collect();
        let least = answers.iter().zip(&asked).min_by(|one, other| one.0.short.total_cmp(&other.0.short));
        match least {
            Some((answer, asked)) if closest.is_empty() => {
                self.with_more_memory(*asked, answer.short, &costs, stop)
            }
            _ => Ok(closest),
        }
    }

    /// Asks for what gave an update with the whole effort; whether that was still to be done.
    ///
    /// # Errors
    /// As `new`.
    pub fn refine(&mut self, update: usize, stop: Stop) -> Result<bool, PlannerError> {
        let asked = self.updates[update].asked;
        if self.refined.contains(&asked) {
            return Ok(false);
        }
        let answer = self.answer(asked, Effort::Whole, &CachedCosts::new(&self.cluster), stop)?;
        self.updates.extend(answer.fit);
        self.refined.push(asked);
        Ok(true)
    }

    /// Every question: the same microbatches are asked for once.
    fn all(&self) -> Vec<Asked> {
        let job = &self.question.job;
        let balance = self.question.controller.balance_in(self.mode);
        let longest = job.sample_lengths().into_iter().max().unwrap_or(1);
        let mut asked: Vec<Asked> = Vec::new();
        let mut unit = SEQUENCE_UNIT;
        while 2 * unit <= longest / ROUNDING {
            unit *= 2;
        }
        for data in divisors(self.cluster.gpus()) {
            for pack in packs(longest, self.question.pack) {
                let samples = EqualSamples::of_updates(job, data, pack, balance, unit);
                let known = |asked: &Asked| asked.data == data && asked.samples == samples;
                if asked.iter().any(known) {
                    continue;
                }
                let of = |sharding| Asked { data, sharding, pack, samples };
                asked.extend(self.shardings(data).into_iter().map(of));
            }
        }
        asked
    }

    /// How data ranks share state: the optimizer's alone if the stack can, and all of it.
    fn shardings(&self, data: usize) -> Vec<&'static str> {
        if data == 1 {
            return vec!["none"];
        }
        let optimizer = if self.stack.sharded_optimizer { "zero1" } else { "none" };
        let whole = ["fsdp", "zero3"].into_iter().find(|scheme| self.stack.has_data_scheme(scheme));
        [Some(optimizer), whole].into_iter().flatten().collect()
    }

    /// The planner's answer; a quick one has one stage on each rank.
    fn planned(
        &self,
        asked: &Asked,
        held: Bytes,
        cluster: &Cluster,
        effort: Effort,
        costs: &CachedCosts,
        stop: Stop,
    ) -> Result<PartAnswer, PlannerError> {
        let mut question = self.question(asked, held, cluster);
        question.pins.virtual_stages = (effort == Effort::Quick).then_some(1);
        plan_part(&question, effort, costs.clone(), stop)
    }

    fn question(&self, asked: &Asked, held: Bytes, cluster: &Cluster) -> Question {
        let EqualSamples { sequence, micro_batch, microbatches } = asked.samples;
        let pins = &self.question.pins;
        let only = [
            ("data-sharding", Some(asked.sharding.to_string())),
            ("expert", pins.expert.map(|ranks| ranks.to_string())),
            (OFFLOAD, Some("none".to_string())),
        ];
        let only = only.into_iter().filter_map(|(key, value)| Some((key.to_string(), value?)));
        let global_batch = asked.data * micro_batch * microbatches;
        Question {
            model: self.question.model.clone(),
            cluster: cluster.clone(),
            job: Job::new(sequence, global_batch, self.question.precision),
            stack: self.stack.clone(),
            pins: Pins {
                tensor: pins.tensor,
                pipeline: pins.pipeline,
                data: Some(asked.data),
                micro_batch: Some(micro_batch),
                only: only.collect(),
                ..Pins::default()
            },
            risk: Risk { residuals: self.question.residuals.clone(), held, ..Risk::default() },
        }
    }

    fn answer(
        &self,
        asked: Asked,
        effort: Effort,
        costs: &CachedCosts,
        stop: Stop,
    ) -> Result<Answer, PlannerError> {
        let mut held = Bytes::ZERO;
        let mut answer = Answer { fit: Vec::new(), closest: Vec::new(), short: f64::INFINITY };
        for _ in 0..ROUNDS {
            match self.planned(&asked, held, &self.cluster, effort, costs, stop) {
                Ok(PartAnswer::Plans(plans)) => answer.closest = self.timed(asked, held, plans),
                Ok(PartAnswer::Short(short)) => {
                    answer.short = short;
                    break;
                }
                Err(PlannerError::NoCandidate { .. }) => break,
                Err(error) => return Err(error),
            }
            let (fit, beyond): (Vec<Update>, Vec<Update>) =
                answer.closest.iter().cloned().partition(|update| update.beyond().is_none());
            answer.fit.extend(fit);
            // With so much less memory one of those that would be faster becomes another.
            let fastest =
                answer.fit.iter().map(Update::time).min_by(|one, other| one.get().total_cmp(&other.get()));
            let faster = beyond.iter().filter(|update| fastest.is_none_or(|fastest| update.time() < fastest));
            let needed =
                faster.map(|update| update.room - update.alone + update.beyond().unwrap_or_default());
            let Some(least) = needed.min_by(|one, other| one.get().total_cmp(&other.get())) else { break };
            held = held.max(least);
        }
        if !answer.fit.is_empty() {
            answer.closest.clear();
        }
        Ok(answer)
    }

    /// What fits with `short` times the memory or a little more, to say what it lacks.
    fn with_more_memory(
        &self,
        asked: Asked,
        mut short: f64,
        costs: &CachedCosts,
        stop: Stop,
    ) -> Result<Vec<Update>, PlannerError> {
        let mut larger = self.cluster.clone();
        for _ in 0..ROUNDS {
            if stop() || !short.is_finite() {
                break;
            }
            let memory = &mut larger.node.gpu.memory.value;
            *memory = *memory * short.max(GROWTH);
            match self.planned(&asked, Bytes::ZERO, &larger, Effort::Quick, costs, stop)? {
                PartAnswer::Plans(plans) => return Ok(self.timed(asked, Bytes::ZERO, plans)),
                PartAnswer::Short(more) => short = more,
            }
        }
        Ok(Vec::new())
    }

    /// The plans on the GPUs as they are, with the samples of a step, as far as they are possible.
    fn timed(&self, asked: Asked, held: Bytes, plans: Vec<Finalist>) -> Vec<Update> {
        let timed = plans.into_par_iter().filter_map(|found| {
            let memory = plan_memory(&found.plan);
            let alone = memory[fullest(&found.plan, &memory)].total();
            let mut actor = found.plan;
            actor.cluster = self.cluster.clone();
            let engine = ServingPlan::new(self.question.engine.clone());
            let plan = loop_of(self.question, self.mode, actor, &self.cluster, engine);
            let plan = RlPlan { pack: asked.pack, ..plan };
            let times = training_times(&plan).ok()?;
            // The plan with the samples' microbatches is the one to show.
            let plan = RlPlan { actor: times.actor.clone(), critic: times.critic.clone(), ..plan };
            let room = found.outlook.room(self.cluster.node.gpu.memory.value) + held;
            Some(Update { plan, times, room, alone, asked })
        });
        timed.collect()
    }
}

/// Tokens of a microbatch at most: of the longest sample, twice, four times as many, … and as many as are allowed.
fn packs(longest: usize, most: usize) -> Vec<usize> {
    let doubled = (0..).map(|power| longest << power).take_while(|pack| *pack < most);
    doubled.chain([most.max(longest)]).collect()
}
