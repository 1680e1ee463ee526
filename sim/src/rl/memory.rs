//! What a GPU holds in each phase, in the first step and from the second one on: moments of the optimizer are made by the first
//! update, so that a loop may run out of memory in its second step.

use super::generation::Generated;
use crate::fullest;
use trainwright_lower::memory::{RankMemory, plan_memory};
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
        let gib = |bytes: Bytes| format!("{:.1} GiB", bytes.as_gib());
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

/// The memory of every phase that runs on GPUs. `actor` and `critic` are the plans of training with the samples' microbatches.
pub fn phase_memory(
    plan: &RlPlan,
    actor: &Plan,
    critic: Option<&Plan>,
    generated: &Generated,
) -> Vec<PhaseMemory> {
    let models = Models::new(plan, actor, critic);
    let memory = |phase: Phase| match phase {
        Phase::Generation => Some(models.generation(plan, generated)),
        phase => models.training(phase),
    };
    plan.job.phases().filter_map(memory).collect()
}

/// The memory of the phases on the GPUs of training, without generation.
pub fn training_memory(plan: &RlPlan, actor: &Plan, critic: Option<&Plan>) -> Vec<PhaseMemory> {
    let models = Models::new(plan, actor, critic);
    plan.job.phases().filter_map(|phase| models.training(phase)).collect()
}

/// What the models of a loop hold on the fullest GPU of training.
struct Models<'a> {
    /// Whether what a phase does not need is on the host.
    offload: bool,
    actor: Trained<'a>,
    critic: Option<Trained<'a>>,
    /// Weights of the reference.
    reference: Bytes,
}

/// A model that is trained.
struct Trained<'a> {
    plan: &'a Plan,
    all: Bytes,
    weights: Bytes,
    state: Bytes,
    moments: Bytes,
}

impl<'a> Trained<'a> {
    fn new(plan: &'a Plan) -> Self {
        let memory = of(plan);
        let bytes = plan.state_bytes();
        Self {
            plan,
            all: memory.total(),
            weights: memory.weights,
            state: memory.weights + memory.gradients + memory.optimizer,
            moments: memory.optimizer * (bytes.moments / bytes.optimizer().max(Bytes::new(1e-9))),
        }
    }
}

impl<'a> Models<'a> {
    fn new(plan: &RlPlan, actor: &'a Plan, critic: Option<&'a Plan>) -> Self {
        let actor = Trained::new(actor);
        let reference = match plan.job.algorithm.has(Phase::RefLogProb) {
            true => actor.weights,
            false => Bytes::ZERO,
        };
        let offload = matches!(plan.mode, Mode::Colocated { offload: true });
        Self { offload, actor, critic: critic.map(Trained::new), reference }
    }

    /// Without offload all that is trained stays on the training GPUs.
    fn rest(&self, others: Bytes) -> Bytes {
        if self.offload { Bytes::ZERO } else { others }
    }

    /// State and moments of the critic.
    fn critic_holds(&self) -> [Bytes; 2] {
        self.critic.as_ref().map_or([Bytes::ZERO; 2], |critic| [critic.state, critic.moments])
    }

    fn generation(&self, plan: &RlPlan, generated: &Generated) -> PhaseMemory {
        let gpu = plan.generation.node.gpu.memory.value;
        let share = plan.engine.engine.batching.memory_share.value * gpu;
        let stays = !plan.mode.splits_gpus() && !self.offload;
        let or_none = |bytes: Bytes| if stays { bytes } else { Bytes::ZERO };
        let critic = self.critic_holds();
        PhaseMemory {
            phase: Phase::Generation,
            state: or_none(self.actor.state + critic[0]),
            moments: or_none(self.actor.moments + critic[1]),
            others: or_none(self.reference),
            working: share.max(generated.memory.weights + generated.memory.working),
            limit: gpu,
        }
    }

    /// `None` if the phase is not one of training, or the loop lacks it.
    fn training(&self, phase: Phase) -> Option<PhaseMemory> {
        let actor = [self.actor.state, self.actor.moments];
        let critic = self.critic_holds();
        let none = [Bytes::ZERO; 2];
        let (working, own, other, others) = match phase {
            Phase::Generation | Phase::Reward | Phase::WeightSync => return None,
            Phase::OldLogProb => (forward_working(self.actor.plan), actor, critic, self.rest(self.reference)),
            Phase::RefLogProb => {
                let stays = actor.map(|bytes| self.rest(bytes));
                (forward_working(self.actor.plan), stays, critic, self.reference)
            }
            Phase::Values => {
                (forward_working(self.critic.as_ref()?.plan), critic, actor, self.rest(self.reference))
            }
            Phase::ActorUpdate => {
                (self.actor.all - self.actor.state, actor, critic, self.rest(self.reference))
            }
            Phase::CriticUpdate => {
                let of_critic = self.critic.as_ref()?;
                (of_critic.all - of_critic.state, critic, actor, self.rest(self.reference))
            }
        };
        let other = if self.offload { none } else { other };
        Some(PhaseMemory {
            phase,
            state: own[0] + other[0],
            moments: own[1] + other[1],
            others,
            working,
            limit: self.actor.plan.cluster.node.gpu.memory.value,
        })
    }
}

/// The rank with least memory left.
fn of(plan: &Plan) -> RankMemory {
    let memory = plan_memory(plan);
    memory[fullest(plan, &memory)]
}

/// What a forward pass takes besides state, at most: one microbatch whose blocks keep their inputs alone, the largest temporary,
/// libraries. Temporaries of a backward pass stand for those of forward.
fn forward_working(plan: &Plan) -> Bytes {
    let mut alone = plan.clone();
    alone.job.global_batch = plan.micro_batch * plan.mesh.data * plan.mesh.pipeline;
    for stage in &mut alone.stages {
        stage.0.iter_mut().for_each(|block| *block = Recompute::Full);
    }
    let memory = of(&alone);
    memory.total() - memory.weights - memory.gradients - memory.optimizer
}
