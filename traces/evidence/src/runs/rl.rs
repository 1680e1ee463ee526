//! Rows of loops with generation: the training part as a run of its own, and what the loop has beside it.
//!
//! ```text
//! Run ─► the same with training's GPUs and packed sequences ─► Completed ─► Plan ─┐
//!   └──► samples, lengths, mode, engine ─────────────────────────────────────────┴─► RlPlan
//! ```

use super::assumptions::{Completed, Kind};
use super::cluster::NODES;
use super::{NoPlan, Run};
use crate::serving::names;
use trainwright_lower::memory::plan_memory;
use trainwright_sim::serving::memory;
use trainwright_spec::cluster::Cluster;
use trainwright_spec::model::Model;
use trainwright_spec::plan::{Plan, Recompute};
use trainwright_spec::rl::{Controller, Mode, Phase, ResponseLengths, RlJob, RlPlan, SyncMethod, algorithm};
use trainwright_spec::serving::{Engine, ServingPlan};

/// Tokens of a prompt in the mean, where nothing is said: assumed, prompts of mathematics have 100 to 200.
const PROMPT: usize = 150;
/// Tokens of an answer in the mean, where nothing is said and the limit is at least twice as much: the geometric mean over the
/// eight models and programs of traces/published/post_training/rl.csv whose means are printed, which are 144 to 5,560.
const RESPONSE: f64 = 1100.0;
/// Samples of a step, where nothing is said: DAPO's 512 prompts with 16 answers each (arXiv 2503.14476, section 4.1).
const SAMPLES: usize = 8192;
/// Parts of a step that is trained on as its answers are complete: `trigger_parameter_sync_step` in verl's recipe of this kind.
const STREAMED: usize = 4;
/// Updates of a step, where nothing is said of its batch.
const MINI_BATCHES: usize = 1;
/// The part of a GPU that a colocated engine takes, where its software is not known: as NeMo-RL.
const COLOCATED_SHARE: f64 = 0.6;
/// Tokens of a microbatch at most, where the software is not known.
const PACK: usize = 16_384;

/// A loop with what the row does not say of it.
#[derive(Debug, Clone)]
pub struct RlCase {
    /// The loop.
    pub plan: RlPlan,
    /// Training's row with its blanks filled.
    pub completed: Completed,
    /// Whether the row measures the hand-over of weights alone.
    pub sync_only: bool,
}

impl Run {
    /// Whether it is a loop with generation.
    pub fn is_rl(&self) -> bool {
        ["grpo", "ppo"].contains(&self.kind.as_str())
    }

    /// The loop of a row.
    ///
    /// # Errors
    /// As `completed` and `plan`; `Unsupported` for an engine or number format that is not known.
    pub fn rl(&self) -> Result<RlCase, NoPlan> {
        let mut assumed: Vec<(Kind, String)> = Vec::new();
        let mut assume = |kind: Kind, text: String| assumed.push((kind, text));
        let sync_only = self.outcome.contains("weight sync");
        let mode = self.mode();
        let [training, generation] = self.gpus_of_phases(mode, &mut assume)?;
        let job = self.rl_job(&mut assume);
        let framework = self.framework.to_lowercase();
        let known = Controller::of_framework(&framework);
        let controller = known.cloned().unwrap_or_else(Controller::plain);
        let longest = job.prompt + job.responses.most;
        let shards = self.shards(&controller, longest, training);
        let context = shards.map_or(self.cp.unwrap_or(1).max(1), |shards| shards.context);
        let pack = match (known, self.seq_len) {
            (Some(Controller { pack: None, .. }), Some(length)) => length * self.micro_batch.unwrap_or(1),
            (Some(Controller { pack: Some(most), .. }), _) => context * most.value.max(longest / context),
            _ => PACK.max(longest),
        };
        let recompute = match self.recompute.is_empty() {
            true => controller.recompute.clone(),
            false => self.recompute.clone(),
        };
        let own = Run {
            kind: String::new(),
            gpus: Some(training),
            dp: None,
            cp: shards.map_or(self.cp, |shards| Some(shards.context)),
            data_sharding: shards.map_or(self.data_sharding.clone(), |shards| shards.scheme()),
            seq_len: Some(pack.next_multiple_of(64 * context * self.tp.unwrap_or(1).max(1))),
            mean_seq_len: None,
            packed: None,
            micro_batch: Some(1),
            global_batch: Some(4 * training),
            gpu: if self.gpu.is_empty() { "h100-80gb-sxm".into() } else { self.gpu.clone() },
            intra_node: self.nvlink_domain(),
            model_name: plain_name(&self.model_name),
            recompute,
            ..self.clone()
        };
        if self.gpu.is_empty() {
            assume(Kind::Gpu, "`gpu` h100-80gb-sxm".into());
        }
        let own = own.on_its_gpus(training, &mut assume);
        let mut completed = own.completed()?;
        completed.assumptions.extend(
            std::mem::take(&mut assumed).into_iter().map(|(kind, text)| super::Assumption { kind, text }),
        );
        let mut actor = completed.run.plan()?;
        if self.recompute.is_empty() && !fits(&actor) {
            for stage in &mut actor.stages {
                stage.0.iter_mut().for_each(|block| *block = Recompute::Full);
            }
            completed.assume(Kind::Memory, "`recompute` full: it does not fit without".into());
        }
        let of_engine =
            Run { gpus: Some(generation), gpus_per_node: self.gpus_per_node, ..completed.run.clone() };
        let cluster = of_engine.on_its_gpus(generation, &mut |_, _| ()).cluster()?;
        let engine = self.engine(&actor.model, &cluster, mode, &controller, longest, &mut completed)?;
        let critic = job.algorithm.has_critic().then(|| actor.clone());
        if critic.is_some() {
            completed.assume(Kind::Sizes, "a critic of the actor's size".into());
        }
        let sync = match controller.sync {
            _ if framework.contains("reshard") => SyncMethod::Reshard,
            Some(sync) if !self.notes.contains("full experts") => sync,
            _ => SyncMethod::Broadcast,
        };
        let padded = self.prompt_len.unwrap_or(job.prompt) + job.responses.most;
        let generation = if mode.splits_gpus() { cluster } else { actor.cluster.clone() };
        Ok(RlCase {
            plan: RlPlan { job, mode, actor, critic, pack, engine, generation, sync, controller, padded },
            completed,
            sync_only,
        })
    }

    fn mode(&self) -> Mode {
        let apart = self.gen_gpus.is_some() || self.off_policy_steps.is_some_and(|steps| steps > 0.0);
        if self.colocated.unwrap_or(!apart) {
            return Mode::Colocated { offload: true };
        }
        match (self.off_policy_steps, self.staleness) {
            (_, Some(staleness)) if staleness > 0.0 => Mode::Async { staleness },
            (None, Some(_)) => Mode::Streamed { parts: STREAMED },
            (Some(steps), _) if steps > 1.0 => Mode::Async { staleness: steps },
            (Some(0.0), None) => Mode::Disaggregated,
            _ => Mode::OneStepOff,
        }
    }

    /// GPUs of training and of generation.
    fn gpus_of_phases(
        &self,
        mode: Mode,
        assume: &mut impl FnMut(Kind, String),
    ) -> Result<[usize; 2], NoPlan> {
        let axes = [self.tp, self.pp, self.cp, self.ep].into_iter().flatten().product::<usize>();
        let stated = match (self.gpus, self.train_gpus, self.gen_gpus) {
            (_, Some(training), Some(generation)) => return Ok([training, generation]),
            (Some(all), _, _) => all,
            (None, _, _) if self.pp.is_some() => {
                // Experts are on the tensor and data ranks of a stage.
                let training = axes;
                let generation = self.gen_tp.unwrap_or(1) * noted(&self.notes, "xDP").unwrap_or(1);
                assume(Kind::Layout, format!("`train_gpus` {training}, `gen_gpus` {generation}"));
                return Ok([training, generation]);
            }
            _ => return Err(NoPlan::missing("gpus")),
        };
        if !mode.splits_gpus() {
            return Ok([stated; 2]);
        }
        let training = self.train_gpus.or(self.gen_gpus.map(|gpus| stated.saturating_sub(gpus)));
        let Some(training) = training else {
            if stated < 2 {
                return Err(NoPlan::Invalid("`gpus` is 1; generation has GPUs of its own".into()));
            }
            assume(Kind::Layout, format!("`train_gpus` {}, half of the GPUs", stated / 2));
            return Ok([stated / 2, stated - stated / 2]);
        };
        if training == 0 || training >= stated {
            return Err(NoPlan::Invalid(format!("`train_gpus` is {training} of {stated} `gpus`")));
        }
        Ok([training, stated - training])
    }

    /// The row of training with nodes that its GPUs fill and experts over no more ranks than there are.
    fn on_its_gpus(mut self, gpus: usize, assume: &mut impl FnMut(Kind, String)) -> Self {
        let node = self.node_size().unwrap_or(gpus);
        if gpus > node && !gpus.is_multiple_of(node) {
            let even = (1..=node).rev().find(|size| gpus.is_multiple_of(*size)).unwrap_or(1);
            assume(
                Kind::Layout,
                format!("`gpus_per_node` {even}: {gpus} GPUs of training do not fill nodes of {node}"),
            );
            self.gpus_per_node = Some(even);
        }
        let shared = self.tp.unwrap_or(1) * self.pp.unwrap_or(1) * self.cp.unwrap_or(1);
        let stage = gpus / self.pp.unwrap_or(1).max(1);
        if let Some(experts) = self.ep.filter(|experts| !stage.is_multiple_of(*experts) && shared <= gpus) {
            let fewer = (1..=experts).rev().find(|ranks| stage.is_multiple_of(*ranks)).unwrap_or(1);
            assume(Kind::Layout, format!("`ep` {fewer} for {experts}: a stage has {stage} GPUs of training"));
            self.ep = Some(fewer);
        }
        self
    }

    /// GPUs of a node as the row or the catalog says it.
    fn node_size(&self) -> Option<usize> {
        let gpu = super::names::gpu(&self.gpu).unwrap_or(&self.gpu);
        let alike = NODES.iter().filter(|node| node.gpu.name == gpu);
        self.gpus_per_node.or(alike.map(|node| node.gpus.value).max())
    }

    fn rl_job(&self, assume: &mut impl FnMut(Kind, String)) -> RlJob {
        let notes = self.notes.to_lowercase();
        let named =
            ["dapo", "dr-grpo", "gspo", "rloo", "reinforce"].into_iter().find(|name| notes.contains(name));
        let algorithm = algorithm(named.unwrap_or(&self.kind)).expect("kinds of loops are algorithms");
        let prompt = match (noted(&notes, "mean prompt "), self.prompt_len) {
            (Some(mean), _) => mean,
            (None, Some(most)) if self.response_len == Some(most) => most,
            (None, most) => {
                let mean = most.map_or(PROMPT, |most| PROMPT.min(most));
                assume(Kind::Sequence, format!("prompts of {mean} tokens in the mean"));
                mean
            }
        };
        let left = self.seq_len.map(|length| length.saturating_sub(prompt).max(1));
        let most = self.response_len.or(left).unwrap_or_else(|| {
            let most = self.mean_response_len.map_or(8192, |mean| 4 * mean as usize);
            assume(Kind::Sequence, format!("`response_len` {most}"));
            most
        });
        let stated = self.mean_seq_len.map(|mean| mean.saturating_sub(prompt).max(1) as f64);
        let mean = self.mean_response_len.or(stated).unwrap_or_else(|| {
            let all = self.prompt_len == Some(most);
            let mean = if all { most as f64 } else { RESPONSE.min(most as f64 / 2.0) };
            assume(Kind::Sequence, format!("`mean_response_len` {mean:.0}"));
            mean
        });
        let rollouts =
            self.rollouts_per_prompt.unwrap_or_else(|| if algorithm.has_critic() { 1 } else { 16 });
        let stated = self.prompts_per_step.map(|prompts| prompts * rollouts);
        let samples =
            stated.or(noted(&notes, "generation batch ")).or(noted(&notes, "global batch at most "));
        let samples = samples.or(self.global_batch).unwrap_or_else(|| {
            assume(Kind::Batch, format!("{SAMPLES} samples a step"));
            SAMPLES
        });
        let batch = self.global_batch.map(|batch| {
            if notes.contains("prompts stored as global_batch") { batch * rollouts } else { batch }
        });
        RlJob {
            algorithm,
            prompts: (samples / rollouts).max(1),
            rollouts: rollouts.min(samples),
            prompt: prompt.max(1),
            responses: ResponseLengths::new(mean, most),
            mini_batches: batch.map_or(MINI_BATCHES, |batch| samples.div_ceil(batch.max(1))),
            epochs: 1,
            engine_log_probs: self.engine_log_probs(),
        }
    }

    /// Whether the engine's log-probabilities stand for the actor's: verl's asynchronous trainer (`use_rollout_log_probs`).
    fn engine_log_probs(&self) -> bool {
        self.staleness.is_some() && self.framework.to_lowercase().starts_with("verl")
    }

    /// How training is divided that shares its weights over data ranks, where the row says no more than that.
    fn shards(&self, controller: &Controller, longest: usize, training: usize) -> Option<Shards> {
        let blank = [self.tp, self.pp, self.cp].into_iter().all(|ranks| ranks.is_none());
        let ranks = controller.shard_ranks.as_ref()?.value;
        let context = controller.ranks_of_sample(longest);
        let divides = training > ranks && training.is_multiple_of(ranks * context);
        let shares = ["fsdp", "fsdp2", "zero3"].contains(&self.data_sharding.as_str());
        (blank && shares && divides).then_some(Shards { context, ranks })
    }

    fn engine(
        &self,
        model: &Model,
        cluster: &Cluster,
        mode: Mode,
        controller: &Controller,
        longest: usize,
        completed: &mut Completed,
    ) -> Result<ServingPlan, NoPlan> {
        let spelling = if self.inference_engine.is_empty() { "vllm" } else { &self.inference_engine };
        let mut engine = Engine::of_table(spelling, &self.date).cloned().unwrap_or_else(|| {
            completed.assume(Kind::Software, format!("vllm-v1 for the engine `{spelling}`"));
            Engine::from_name("vllm-v1").expect("the catalog has it")
        });
        let share = match mode.splits_gpus() {
            true => controller.own_share.as_ref().map(|share| share.value),
            false => controller.colocated_share.as_ref().map(|share| share.value).or(Some(COLOCATED_SHARE)),
        };
        engine.batching.memory_share.value = share.unwrap_or(engine.batching.memory_share.value);
        let precision = if self.precision.is_empty() { "bf16" } else { &self.precision };
        let formats = names::formats(precision, model, cluster)
            .ok_or_else(|| NoPlan::Unsupported(format!("`precision` is `{precision}`")))?;
        let [weights, expert_weights] = formats.map(String::from);
        let log_probs = controller.returns_log_probs || self.engine_log_probs();
        let plan = ServingPlan { weights, expert_weights, log_probs, ..ServingPlan::new(engine) };
        let of_node = cluster.node.gpus.value;
        let room = 0.5 * cluster.node.gpu.memory.value;
        let fits = |tensor: &usize| {
            let plan = plan.clone().with_tensor(*tensor);
            memory(model, &plan, cluster, 1, 1).is_ok_and(|memory| memory.weights <= room)
        };
        let powers = (0..).map(|power| 1usize << power).take_while(|tensor| *tensor <= cluster.gpus());
        let tensor = self.gen_tp.unwrap_or_else(|| {
            let least = controller.ranks_of_sample(longest).min(cluster.gpus());
            let tensor = powers.clone().find(|tensor| *tensor >= least && fits(tensor)).unwrap_or(of_node);
            completed.assume(Kind::Layout, format!("`gen_tp` {tensor}"));
            tensor
        });
        if tensor > cluster.gpus() {
            return Err(NoPlan::Invalid(format!(
                "`gen_tp` is {tensor}, generation has {} GPUs",
                cluster.gpus()
            )));
        }
        Ok(plan.with_tensor(tensor))
    }

    /// A node that is a part of a larger domain of NVLink counts as that domain.
    fn nvlink_domain(&self) -> String {
        let alike = || NODES.iter().filter(|node| node.gpu.name == self.gpu);
        let largest = alike().map(|node| node.gpus.value).max();
        match (largest, self.gpus_per_node) {
            (Some(all), Some(stated))
                if self.intra_node.is_empty() && alike().all(|node| node.gpus.value > stated) && all > 8 =>
            {
                format!("nvl{all}")
            }
            _ => self.intra_node.clone(),
        }
    }
}

/// A division of training over context ranks and over ranks that share weights.
#[derive(Debug, Clone, Copy)]
struct Shards {
    context: usize,
    ranks: usize,
}

impl Shards {
    /// As the column `data_sharding` spells it.
    fn scheme(self) -> String {
        format!("zero3:{}", self.ranks)
    }
}

/// A model's name without its publisher, what follows in brackets or behind the actor's, and endings that say nothing of its shape.
fn plain_name(name: &str) -> String {
    let name = name.split(" (").next().unwrap_or(name);
    let name = name.split(" actor").next().unwrap_or(name).trim();
    let mut name = name.rsplit_once('/').map_or(name, |(_, own)| own);
    while let Some(shorter) = ["-Base", "-Instruct", "-it"].iter().find_map(|end| name.strip_suffix(end)) {
        name = shorter;
    }
    name.to_string()
}

/// The whole number behind these words of the notes.
fn noted(notes: &str, words: &str) -> Option<usize> {
    let rest = &notes[notes.find(words)? + words.len()..];
    let digits: String =
        rest.chars().take_while(|letter| letter.is_ascii_digit() || *letter == ',').collect();
    digits.replace(',', "").parse().ok().filter(|number| *number > 0)
}

fn fits(plan: &Plan) -> bool {
    let room = plan.cluster.node.gpu.memory.value;
    plan_memory(plan).iter().all(|rank| rank.total() <= room)
}

/// Columns of phases, measured and forecast, and the phases that each sums.
pub const PHASE_COLUMNS: [(&str, &[Phase]); 5] = [
    ("generation_time_s", &[Phase::Generation]),
    ("training_time_s", &[Phase::ActorUpdate, Phase::CriticUpdate]),
    ("weight_sync_s", &[Phase::WeightSync]),
    ("logprob_time_s", &[Phase::OldLogProb]),
    ("ref_time_s", &[Phase::RefLogProb]),
];

/// The forecast of a loop's phases.
#[derive(Debug, Clone, PartialEq)]
pub struct RlFigures {
    /// Seconds by `PHASE_COLUMNS`, each with its 10th and 90th percentile; `None` where a row has no such phase.
    pub phases: [Option<[f64; 3]>; PHASE_COLUMNS.len()],
    /// Why it does not fit, phase by phase.
    pub faults: Vec<String>,
}

impl RlFigures {
    pub(super) fn cells(&self) -> Vec<String> {
        let cell = |seconds: &Option<[f64; 3]>| {
            seconds.map_or([const { String::new() }; 3], |all| all.map(|time| format!("{time:.6}")))
        };
        self.phases.iter().flat_map(cell).collect()
    }
}

/// The columns that forecasts of loops add: each phase with its percentiles.
pub(super) fn phase_headers() -> impl Iterator<Item = String> {
    PHASE_COLUMNS.iter().flat_map(|(column, _)| {
        [format!("predicted_{column}"), format!("p10_{column}"), format!("p90_{column}")]
    })
}
