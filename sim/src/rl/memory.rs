//! What a GPU holds in each phase, in the first step and from the second one on: moments of the optimizer are made by the first
//! update, so that a loop may run out of memory in its second step. And what a node's host holds while models are offloaded.

use super::generation::Generated;
use std::collections::BTreeSet;
use trainwright_lower::memory::{RankMemory, most_on_a_node, plan_memory};
use trainwright_spec::optimizer::Rule;
use trainwright_spec::plan::{Plan, Recompute};
use trainwright_spec::rl::{Mode, Phase, RlPlan};
use trainwright_spec::units::Bytes;

/// The fullest GPU of a phase.
#[derive(Debug, Clone, PartialEq)]
pub struct PhaseMemory {
    /// Which phase.
    pub phase: Phase,
    /// Weights, gradients and optimizer state of training that stay on the GPU, from the second step on.
    pub state: Bytes,
    /// Of these, what the first step does not have yet.
    pub moments: Bytes,
    /// Weights of other models: the reference, the critic.
    pub others: Bytes,
    /// What the phase itself takes: activations and buffers, or the engine's share.
    pub working: Bytes,
    /// What the GPU has, or what of it the phase may use.
    pub limit: Bytes,
}

impl PhaseMemory {
    /// In the first step.
    pub fn first(&self) -> Bytes {
        self.total() - self.moments
    }

    /// From the second step on; of the first update too, at its end.
    pub fn total(&self) -> Bytes {
        self.state + self.others + self.working
    }

    /// Why it does not fit; `None` if it does.
    pub fn fault(&self) -> Option<String> {
        if self.total() <= self.limit {
            return None;
        }
        let name = self.phase.name();
        let needs = format!("{name} needs {} of {}", gib(self.total()), gib(self.limit));
        let parts = format!(
            "state of training {}, other models {}, the phase itself {}",
            gib(self.state),
            gib(self.others),
            gib(self.working)
        );
        Some(match self.first() <= self.limit {
            true => format!(
                "{needs}, from the second step on: the first update makes {} of moments ({parts})",
                gib(self.moments)
            ),
            false => format!("{needs} ({parts})"),
        })
    }
}

fn gib(bytes: Bytes) -> String {
    format!("{:.1} GiB", bytes.as_gib())
}

/// The fullest host of a loop whose models are offloaded during generation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HostMemory {
    /// What the models of its GPUs need of its memory, from the second step on.
    pub needs: Bytes,
    /// Its memory.
    pub has: Bytes,
}

impl HostMemory {
    /// Why it does not fit; `None` if it does.
    pub fn fault(&self) -> Option<String> {
        let Self { needs, has } = *self;
        (needs > has).then(|| {
            format!("memory of a node's host needs {} of {} for what is offloaded", gib(needs), gib(has))
        })
    }
}

/// The memory of a loop.
#[derive(Debug, Clone, PartialEq)]
pub struct LoopMemory {
    /// Of every phase that runs on GPUs.
    pub phases: Vec<PhaseMemory>,
    /// Of a node's host; `None` if nothing is offloaded, or if the catalog does not know the host.
    pub host: Option<HostMemory>,
}

/// The memory of a loop. `actor` and `critic` are the plans of training with the samples' microbatches.
pub fn loop_memory(plan: &RlPlan, actor: &Plan, critic: Option<&Plan>, generated: &Generated) -> LoopMemory {
    let models = Models::new(plan, actor, critic);
    let memory = |phase: Phase| match phase {
        Phase::Generation => Some(models.generation(plan, generated)),
        phase => models.training(phase),
    };
    LoopMemory { phases: plan.job.phases().filter_map(memory).collect(), host: models.host() }
}

/// The memory of the phases on the GPUs of training, without generation.
pub fn training_memory(plan: &RlPlan, actor: &Plan, critic: Option<&Plan>) -> Vec<PhaseMemory> {
    let models = Models::new(plan, actor, critic);
    plan.job.phases().filter_map(|phase| models.training(phase)).collect()
}

/// The models of a loop on the GPUs of training.
struct Models<'a> {
    /// Whether what a phase does not need is on the host.
    offload: bool,
    /// Whether there is a reference, which has the actor's layout.
    has_reference: bool,
    actor: Trained<'a>,
    critic: Option<Trained<'a>>,
    /// The pipeline ranks of actor and critic that GPUs have.
    gpus: BTreeSet<[usize; 2]>,
}

/// A model that is trained.
struct Trained<'a> {
    plan: &'a Plan,
    /// By pipeline rank.
    ranks: Vec<RankMemory>,
    /// By pipeline rank, what a forward pass takes besides state.
    forward: Vec<Bytes>,
    /// The part of the optimizer's state that the first update makes.
    moments: f64,
}

/// A model that is trained, on one GPU.
#[derive(Clone, Copy, Default)]
struct OnGpu {
    weights: Bytes,
    state: Bytes,
    moments: Bytes,
    /// What an update takes besides state.
    update: Bytes,
    /// What a forward pass takes besides state.
    forward: Bytes,
}

impl<'a> Trained<'a> {
    fn new(plan: &'a Plan) -> Self {
        let matrices = plan.job.trained_matrices(&plan.model);
        let others = plan.job.trained_parameters(&plan.model) - matrices;
        // What the first update makes, and all of it.
        let mut made = [Bytes::ZERO; 2];
        for (rule, parameters) in [(Rule::Elements, others), (Rule::Matrices, matrices)] {
            let bytes = plan.state_bytes_by(rule);
            made[0] += bytes.moments * parameters as f64;
            made[1] += bytes.optimizer() * parameters as f64;
        }
        Self {
            plan,
            ranks: plan_memory(plan),
            forward: forward_working(plan),
            moments: made[0] / made[1].max(Bytes::new(1e-9)),
        }
    }

    fn on(&self, rank: usize) -> OnGpu {
        let memory = &self.ranks[rank];
        let state = memory.weights + memory.gradients + memory.optimizer;
        OnGpu {
            weights: memory.weights,
            state,
            moments: memory.optimizer * self.moments,
            update: memory.total() - state,
            forward: self.forward[rank],
        }
    }
}

impl<'a> Models<'a> {
    fn new(plan: &RlPlan, actor: &'a Plan, critic: Option<&'a Plan>) -> Self {
        let rank_of = |of: &Plan, gpu: usize| of.mesh.coordinates(gpu).pipeline;
        let gpus = (0..actor.mesh.ranks())
            .map(|gpu| [rank_of(actor, gpu), critic.map_or(0, |critic| rank_of(critic, gpu))])
            .collect();
        Self {
            offload: matches!(plan.mode, Mode::Colocated { offload: true }),
            has_reference: plan.job.algorithm.has(Phase::RefLogProb),
            actor: Trained::new(actor),
            critic: critic.map(Trained::new),
            gpus,
        }
    }

    /// The GPU that is fullest in a phase.
    fn fullest(&self, phase: impl Fn(OnGpu, OnGpu) -> PhaseMemory) -> PhaseMemory {
        let on = |[actor, critic]: &[usize; 2]| {
            let of_critic = self.critic.as_ref().map(|trained| trained.on(*critic));
            phase(self.actor.on(*actor), of_critic.unwrap_or_default())
        };
        let all = self.gpus.iter().map(on);
        all.reduce(|most, next| if next.total() > most.total() { next } else { most })
            .expect("a plan has ranks")
    }

    fn reference(&self, actor: OnGpu) -> Bytes {
        if self.has_reference { actor.weights } else { Bytes::ZERO }
    }

    fn generation(&self, plan: &RlPlan, generated: &Generated) -> PhaseMemory {
        let gpu = plan.generation.node.gpu.memory.value;
        let stays = !plan.mode.splits_gpus() && !self.offload;
        let or_none = |bytes: Bytes| if stays { bytes } else { Bytes::ZERO };
        self.fullest(|actor, critic| PhaseMemory {
            phase: Phase::Generation,
            state: or_none(actor.state + critic.state),
            moments: or_none(actor.moments + critic.moments),
            others: or_none(self.reference(actor)),
            working: generated.needs(&plan.engine, gpu),
            limit: gpu,
        })
    }

    /// `None` if the phase is not one of training, or the loop lacks it.
    fn training(&self, phase: Phase) -> Option<PhaseMemory> {
        let is_lacking = match phase {
            Phase::Generation | Phase::Reward | Phase::WeightSync => true,
            Phase::Values | Phase::CriticUpdate => self.critic.is_none(),
            Phase::OldLogProb | Phase::RefLogProb | Phase::ActorUpdate => false,
        };
        if is_lacking {
            return None;
        }
        // Without offload all that is trained stays on the training GPUs.
        let rest = |bytes: Bytes| if self.offload { Bytes::ZERO } else { bytes };
        Some(self.fullest(|actor, critic| {
            // Whose state the phase needs, and what else it takes.
            let (needs_actor, needs_critic, needs_reference, working) = match phase {
                Phase::RefLogProb => (false, false, true, actor.forward),
                Phase::Values => (false, true, false, critic.forward),
                Phase::CriticUpdate => (false, true, false, critic.update),
                Phase::ActorUpdate => (true, false, false, actor.update),
                _ => (true, false, false, actor.forward),
            };
            let of = |needed: bool, bytes: Bytes| if needed { bytes } else { rest(bytes) };
            PhaseMemory {
                phase,
                state: of(needs_actor, actor.state) + of(needs_critic, critic.state),
                moments: of(needs_actor, actor.moments) + of(needs_critic, critic.moments),
                others: of(needs_reference, self.reference(actor)),
                working,
                limit: self.actor.plan.cluster.node.gpu.memory.value,
            }
        }))
    }

    /// Weights and optimizer state of all models on the GPUs of a node: gradients are made anew.
    fn host(&self) -> Option<HostMemory> {
        let node = &self.actor.plan.cluster.node;
        let has = node.processors.as_ref().filter(|_| self.offload)?.memory.value;
        let of_actor = |gpu: usize| {
            let memory = &self.actor.ranks[self.actor.plan.mesh.coordinates(gpu).pipeline];
            let reference = if self.has_reference { memory.weights } else { Bytes::ZERO };
            memory.weights + memory.optimizer + memory.host + reference
        };
        let of_critic = |gpu: usize| {
            self.critic.as_ref().map_or(Bytes::ZERO, |critic| {
                let memory = &critic.ranks[critic.plan.mesh.coordinates(gpu).pipeline];
                memory.weights + memory.optimizer + memory.host
            })
        };
        let needs = most_on_a_node(self.actor.plan, |gpu| of_actor(gpu) + of_critic(gpu));
        Some(HostMemory { needs, has })
    }
}

/// By pipeline rank, what a forward pass takes besides state, at most: one microbatch whose blocks keep their inputs alone, the largest
/// temporary, libraries. Temporaries of a backward pass stand for those of forward.
fn forward_working(plan: &Plan) -> Vec<Bytes> {
    let mut alone = plan.clone();
    alone.job.global_batch = plan.micro_batch * plan.mesh.data * plan.mesh.pipeline;
    for stage in &mut alone.stages {
        stage.0.iter_mut().for_each(|block| *block = Recompute::Full);
    }
    let besides = |memory: &RankMemory| memory.total() - memory.weights - memory.gradients - memory.optimizer;
    plan_memory(&alone).iter().map(besides).collect()
}
