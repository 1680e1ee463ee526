//! Plans of training for a loop: those that the planner finds for its updates.
//!
//! How samples are packed into microbatches depends on the data ranks and on the tokens that a microbatch may have. For each
//! number of data ranks that divides the GPUs, each such limit and each way to share the state, the planner is asked for the fastest
//! plans of an update. Other models, a reference or a critic, hold memory beside training; how much depends on the plan. While
//! plans that do not fit beside them are faster than those that do, the planner is asked again with less memory. Where state stays beside
//! the engine, or is on the host meanwhile, the planner gets the rest of the memory as a limit: it finds the fastest plans that fit there too.
//!
//! All are asked for quickly first. Those of the fastest loops are then asked for as `plan` answers.

use super::RlQuestion;
use super::loops::loop_of;
use crate::bound::LeastWork;
use crate::candidate::Candidate;
use crate::cost::CachedCosts;
use crate::explore::SearchSpace;
use crate::question::{Pins, Question};
use crate::risk::{Idle, IdlePlace, Risk};
use crate::search::{Cutoff, Effort, PartAnswer, plan_part};
use crate::space::{OFFLOAD, divisors};
use crate::verdict::{Finalist, PlannerError};
use rayon::prelude::*;
use std::sync::Mutex;
use trainwright_lower::memory::plan_memory;
use trainwright_sim::rl::{
    EqualSamples, SEQUENCE_UNIT, TrainingTimes, microbatches_of_updates, sync_time, training_memory,
    training_times,
};
use trainwright_sim::{Stop, fullest};
use trainwright_spec::cluster::Cluster;
use trainwright_spec::data::{Divided, data_scheme};
use trainwright_spec::job::Job;
use trainwright_spec::plan::Plan;
use trainwright_spec::rl::{Mode, Phase, RlPlan};
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
    /// Where its state is during generation; `None` if it has GPUs of its own.
    idle: Option<Idle>,
    asked: Vec<Asked>,
    /// By question, what is known with the stages of the integer program.
    quick: Vec<Option<Known>>,
    /// What is known with the whole effort, in the order in which that was asked.
    whole: Vec<(usize, Known)>,
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
#[derive(Default)]
struct Answer {
    fit: Vec<Update>,
    closest: Vec<Update>,
    /// How many times the memory is needed, if the planner finds nothing; else without end.
    short: f64,
}

/// What is known of a question: its plans for loops whose passes of training take less than a cutoff.
struct Known {
    below: Seconds,
    answer: Answer,
}

/// Answers of the planner, for questions that several modes ask.
#[derive(Default)]
pub(super) struct Parts(Mutex<Vec<(PartKey, Seconds, PartAnswer)>>);

/// GPUs, question, what others hold of a GPU's memory, where state is during generation, and effort.
type PartKey = (usize, Asked, Bytes, Option<Idle>, Effort);

impl Parts {
    fn known(&self, key: &PartKey, below: Seconds) -> Option<PartAnswer> {
        let known = self.0.lock().expect("no holder of the lock panics");
        known.iter().find(|(of, up_to, _)| of == key && *up_to >= below).map(|(.., answer)| answer.clone())
    }

    fn add(&self, key: PartKey, below: Seconds, answer: &PartAnswer) {
        self.0.lock().expect("no holder of the lock panics").push((key, below, answer.clone()));
    }
}

/// Without a limit.
pub(super) const ANY: Seconds = Seconds::new(f64::INFINITY);

impl<'a> Training<'a> {
    /// `engine` is what the engine needs of a GPU's memory, where it shares it with training.
    pub fn new(question: &'a RlQuestion, mode: Mode, cluster: &Cluster, engine: Bytes) -> Self {
        let (mut cluster, mut stack) = (cluster.clone(), question.stack.clone());
        if let Some(calibration) = &question.calibration {
            calibration.apply(&mut cluster, &mut stack);
        }
        let (asked, quick, whole) = (Vec::new(), Vec::new(), Vec::new());
        let idle = idle(question, mode, engine);
        let mut training = Self { question, mode, cluster, stack, idle, asked, quick, whole };
        training.asked = training.all();
        training.quick = training.asked.iter().map(|_| None).collect();
        training
    }

    /// The questions, the most promising first.
    pub fn by_promise(&self) -> Vec<usize> {
        let costs = CachedCosts::new(&self.cluster);
        let promised = |(index, asked): (usize, &Asked)| {
            let question = self.question(asked, Memory::of(&self.cluster));
            let space = SearchSpace::sharing(&question, costs.clone());
            (space.map_or(ANY, |space| space.rough_times().0), index)
        };
        let mut all: Vec<(Seconds, usize)> = self.asked.par_iter().enumerate().map(promised).collect();
        all.sort_by(|one, other| one.0.get().total_cmp(&other.0.get()));
        all.into_iter().map(|(_, index)| index).collect()
    }

    /// Asks questions, each for loops whose passes of training take less than a limit, as far as that is not known.
    ///
    /// # Errors
    /// Bad pins, and a deadlock of a schedule.
    pub fn ask(
        &mut self,
        wanted: &[(usize, Seconds)],
        parts: &Parts,
        stop: Stop,
    ) -> Result<(), PlannerError> {
        let is_known = |index: usize, below: Seconds| {
            self.quick[index].as_ref().is_some_and(|known| known.below >= below)
        };
        let open: Vec<(usize, Seconds)> =
            wanted.iter().copied().filter(|(index, below)| !is_known(*index, *below)).collect();
        let costs = CachedCosts::new(&self.cluster);
        let answer = |(index, below): &(usize, Seconds)| {
            let answer = self.answer(self.asked[*index], Effort::Quick, *below, (parts, &costs), stop)?;
            Ok((*index, Known { below: *below, answer }))
        };
        let answers: Vec<Result<(usize, Known), PlannerError>> = open.par_iter().map(answer).collect();
        for answer in answers {
            let (index, known) = answer?;
            self.quick[index] = Some(known);
        }
        Ok(())
    }

    /// Asks a question with the whole effort, for loops whose passes of training take less than a limit; whether that was still to be
    /// done.
    ///
    /// # Errors
    /// As `ask`.
    pub fn refine(
        &mut self,
        index: usize,
        below: Seconds,
        parts: &Parts,
        stop: Stop,
    ) -> Result<bool, PlannerError> {
        let known = self.whole.iter().position(|(of, _)| *of == index);
        if known.is_some_and(|known| self.whole[known].1.below >= below) {
            return Ok(false);
        }
        let costs = CachedCosts::new(&self.cluster);
        let answer = self.answer(self.asked[index], Effort::Whole, below, (parts, &costs), stop)?;
        let answer = Known { below, answer };
        match known {
            Some(known) => self.whole[known].1 = answer,
            None => self.whole.push((index, answer)),
        }
        Ok(true)
    }

    /// How many questions there are.
    pub fn questions(&self) -> usize {
        self.asked.len()
    }

    /// Whether a question was asked with the whole effort.
    pub fn is_refined(&self, index: usize) -> bool {
        self.whole.iter().any(|(of, _)| *of == index)
    }

    /// The plans that fit and are known for a question.
    pub fn fit(&self, index: usize) -> impl Iterator<Item = &Update> {
        self.quick[index].iter().flat_map(|known| &known.answer.fit)
    }

    /// Those that are known since it was asked with the whole effort.
    pub fn refined(&self, index: usize) -> impl Iterator<Item = &Update> {
        let of_question = move |(of, _): &&(usize, Known)| *of == index;
        self.whole.iter().filter(of_question).flat_map(|(_, known)| &known.answer.fit)
    }

    /// The plans that come closest, where all questions are known without a limit and nothing fits.
    ///
    /// # Errors
    /// As `ask`.
    pub fn closest(&self, stop: Stop) -> Result<Vec<Update>, PlannerError> {
        let answers: Vec<&Answer> = self.quick.iter().flatten().map(|known| &known.answer).collect();
        if answers.iter().any(|answer| !answer.fit.is_empty()) {
            return Ok(Vec::new());
        }
        let mut closest: Vec<Update> = answers.iter().flat_map(|answer| answer.closest.clone()).collect();
        if !closest.is_empty() {
            return Ok(closest);
        }
        let mut short: Vec<(f64, Asked)> =
            answers.iter().zip(&self.asked).map(|(answer, asked)| (answer.short, *asked)).collect();
        short.sort_by(|one, other| one.0.total_cmp(&other.0));
        let costs = CachedCosts::new(&self.cluster);
        // What is short by a bound may be shorter.
        let mut least = f64::INFINITY;
        for (short, asked) in short {
            if short >= least {
                break;
            }
            let (needed, updates) = self.with_more_memory(asked, short, &costs, stop)?;
            if needed < least {
                (least, closest) = (needed, updates);
            }
        }
        Ok(closest)
    }

    /// No hand-over of the weights that plans of a question give takes less, to one of these engines.
    pub fn least_sync(&self, index: usize, engine: &ServingPlan, generation: &Cluster) -> Seconds {
        let Asked { data, sharding, .. } = self.asked[index];
        let job = Job::new(1, 1, self.question.precision);
        let model = self.question.model.clone();
        let mut actor = Plan::plain(model, self.stack.clone(), self.cluster.clone(), job);
        // The hand-over depends on how many data ranks hold different weights.
        let divides = data_scheme(sharding).is_ok_and(|scheme| scheme.divides() >= Divided::Weights);
        let experts = self.question.model.fewest_experts().map_or(Vec::new(), divisors);
        let shards = if divides { divisors(data) } else { vec![1] };
        let mut shards: Vec<usize> =
            shards.into_iter().chain(experts.into_iter().map(|ranks| ranks.min(data))).collect();
        shards.sort_unstable();
        shards.dedup();
        actor.mesh.data = data;
        let sync = |shards: usize| {
            actor.mesh.expert = shards;
            let plan = loop_of(self.question, self.mode, actor.clone(), generation, engine.clone());
            sync_time(&plan)
        };
        shards.into_iter().map(sync).reduce(Seconds::min).unwrap_or(Seconds::ZERO)
    }

    /// The cutoff of a question for loops whose passes of training take less than `below`: forward passes, and the time.
    ///
    /// a e (n t + Σ W) + f F < B (s / s₀)²
    ///
    /// t the planner's time of the longest update, of which there are n among those of an epoch, W what the products of the others
    /// take at the highest rate of the GPUs, a models that are trained, e epochs; f forward passes of time F, which is bounded by the
    /// layers' times if its samples are those of the updates, else by its products at that rate; B is `below`.
    ///
    /// s are the tokens of the question's samples, s₀ the fewest with which one of its plans is timed: of these a step takes (s₀ / s)²
    /// of its time or more, as that of attention grows with the square of the tokens and nothing else grows faster. Tiles of products
    /// may break that by a part of the rounding, which is below 1 / `ROUNDING`; where s = s₀, the limit is exact.
    fn limit(&self, asked: &Asked, below: Seconds) -> (f64, Seconds) {
        if below.get().is_infinite() {
            return (0.0, below);
        }
        let job = &self.question.job;
        let count = |of: &[Phase]| job.phases().filter(|phase| of.contains(phase)).count() as f64;
        let models = count(&[Phase::ActorUpdate, Phase::CriticUpdate]);
        let forwards = count(&[Phase::OldLogProb, Phase::RefLogProb, Phase::Values]);
        let balance = self.question.controller.balance_in(self.mode);
        let updates = microbatches_of_updates(job, asked.data, asked.pack, balance);
        let longest = asked.samples.microbatches;
        let [longer, shorter]: [Vec<usize>; 2] =
            [true, false].map(|long| updates.iter().copied().filter(|of| (*of == longest) == long).collect());
        let products = |samples: EqualSamples| {
            let question = self.question(&Asked { samples, ..*asked }, Memory::of(&self.cluster));
            LeastWork::new(&question).gpu_time(self.question.precision) / self.cluster.gpus() as f64
        };
        let of_updates =
            |unit: usize| EqualSamples::of_updates(job, asked.data, asked.pack, balance, unit).sequence;
        let fewest = of_updates(SEQUENCE_UNIT);
        let below = below * (asked.samples.sequence as f64 / fewest as f64).powi(2);
        let others: f64 = shorter.iter().map(|of| *of as f64 / longest as f64).sum();
        let times = models * job.epochs as f64 * longer.len() as f64;
        let rest = below / times
            - (others / longer.len() as f64) * products(EqualSamples { sequence: fewest, ..asked.samples });
        let of_forward = EqualSamples::of_forward(job, asked.data, asked.pack, SEQUENCE_UNIT);
        let is_alike = of_forward.micro_batch == asked.samples.micro_batch && of_forward.sequence >= fewest;
        match is_alike {
            true => (forwards / times * of_forward.microbatches as f64 / longest as f64, rest),
            false => (0.0, rest - (forwards / times / 3.0) * products(of_forward)),
        }
    }

    /// Every question: the same microbatches are asked for once.
    fn all(&self) -> Vec<Asked> {
        let job = &self.question.job;
        let balance = self.question.controller.balance_in(self.mode);
        let longest = job.sample_lengths().into_iter().max().unwrap_or(1);
        let mut asked: Vec<Asked> = Vec::new();
        for data in divisors(self.cluster.gpus()) {
            for pack in packs(longest, self.question.pack) {
                let samples = EqualSamples::of_updates(job, data, pack, balance, unit(longest));
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
        memory: Memory,
        effort: Effort,
        below: Seconds,
        costs: &CachedCosts,
        stop: Stop,
    ) -> Result<PartAnswer, PlannerError> {
        let mut question = self.question(asked, memory);
        question.pins.virtual_stages = (effort == Effort::Quick).then_some(1);
        // Where context ranks do not divide the tokens of a microbatch, more may be packed than the question says.
        let is_timed_so = |candidate: &Candidate| asked.pack.is_multiple_of(candidate.mesh.context);
        let (forwards, below) = self.limit(asked, below);
        let cutoff = Cutoff { applies_to: &is_timed_so, forwards, below };
        plan_part(&question, effort, cutoff, costs.clone(), stop)
    }

    fn question(&self, asked: &Asked, memory: Memory) -> Question {
        let Memory { cluster, held, idle } = memory;
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
            risk: Risk { residuals: self.question.residuals.clone(), held, idle, ..Risk::default() },
        }
    }

    fn answer(
        &self,
        asked: Asked,
        effort: Effort,
        below: Seconds,
        (parts, costs): (&Parts, &CachedCosts),
        stop: Stop,
    ) -> Result<Answer, PlannerError> {
        let mut held = Bytes::ZERO;
        let mut answer = Answer { short: f64::INFINITY, ..Answer::default() };
        for _ in 0..ROUNDS {
            let key = (self.cluster.gpus(), asked, held, self.idle, effort);
            let memory = Memory { cluster: &self.cluster, held, idle: self.idle };
            let planned = match parts.known(&key, below) {
                Some(known) => Ok(known),
                None => self.planned(&asked, memory, effort, below, costs, stop),
            };
            if let Ok(planned) = &planned
                && !stop()
            {
                parts.add(key, below, planned);
            }
            match planned {
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

    /// What fits with `short` times the memory or a little more, to say what it lacks; and with how many times.
    fn with_more_memory(
        &self,
        asked: Asked,
        mut short: f64,
        costs: &CachedCosts,
        stop: Stop,
    ) -> Result<(f64, Vec<Update>), PlannerError> {
        let mut larger = self.cluster.clone();
        // Where hosts lack memory, the GPUs may have enough.
        let mut hosts_alone = self.idle.is_some_and(|idle| idle.place == IdlePlace::Host);
        let mut times = 1.0;
        for _ in 0..ROUNDS {
            if stop() || !short.is_finite() {
                break;
            }
            let growth = short.max(GROWTH);
            times *= growth;
            if let Some(processors) = &mut larger.node.processors {
                processors.memory.value = processors.memory.value * growth;
            }
            if !hosts_alone {
                larger.node.gpu.memory.value = larger.node.gpu.memory.value * growth;
            }
            hosts_alone = false;
            let memory = Memory { idle: self.idle, ..Memory::of(&larger) };
            match self.planned(&asked, memory, Effort::Quick, ANY, costs, stop)? {
                PartAnswer::Plans(plans) => return Ok((times, self.timed(asked, Bytes::ZERO, plans))),
                PartAnswer::Short(more) => short = more,
            }
        }
        Ok((f64::INFINITY, Vec::new()))
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
            Some(Update { plan, times, room, alone })
        });
        timed.collect()
    }
}

/// The memory that a question of the planner has.
#[derive(Clone, Copy)]
struct Memory<'c> {
    cluster: &'c Cluster,
    held: Bytes,
    idle: Option<Idle>,
}

impl<'c> Memory<'c> {
    /// All of a cluster's.
    fn of(cluster: &'c Cluster) -> Self {
        Self { cluster, held: Bytes::ZERO, idle: None }
    }
}

/// Where the state of training is during generation, beside an engine that needs `engine` of each GPU; that of a reference and of a
/// critic, which have the actor's layout, is there too.
fn idle(question: &RlQuestion, mode: Mode, engine: Bytes) -> Option<Idle> {
    let algorithm = question.job.algorithm;
    let count = |of: bool| f64::from(u8::from(of));
    let trained = 1.0 + count(algorithm.has_critic());
    let models = trained + count(algorithm.has(Phase::RefLogProb));
    let place = match mode {
        Mode::Colocated { offload: true } => IdlePlace::Host,
        Mode::Colocated { offload: false } => IdlePlace::Gpu(engine),
        Mode::Disaggregated | Mode::Streamed { .. } | Mode::OneStepOff | Mode::Async { .. } => return None,
    };
    Some(Idle { place, models, trained })
}

/// What the tokens of the planner's samples are a multiple of, so that plans with many ranks for a sample are possible.
fn unit(longest: usize) -> usize {
    let mut unit = SEQUENCE_UNIT;
    while 2 * unit <= longest / ROUNDING {
        unit *= 2;
    }
    unit
}

/// Tokens of a microbatch at most: of the longest sample, twice, four times as many, … and as many as are allowed.
fn packs(longest: usize, most: usize) -> Vec<usize> {
    let doubled = (0..).map(|power| longest << power).take_while(|pack| *pack < most);
    doubled.chain([most.max(longest)]).collect()
}
