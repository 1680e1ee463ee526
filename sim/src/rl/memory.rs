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
    /// What the GPU has.
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
        let needs = format!("{name} needs {}, the GPU has {}", gib(self.total()), gib(self.limit));
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
    let offload = matches!(plan.mode, Mode::Colocated { offload: true });
    let of_actor = of(actor);
    let of_critic = critic.map(of);
    let state = |memory: &RankMemory| memory.weights + memory.gradients + memory.optimizer;
    let moments = |plan: &Plan, memory: &RankMemory| {
        let bytes = plan.state_bytes();
        memory.optimizer * (bytes.moments / bytes.optimizer().max(Bytes::new(1e-9)))
    };
    let reference = match plan.job.algorithm.has(Phase::RefLogProb) {
        true => of_actor.weights,
        false => Bytes::ZERO,
    };
    // Without offload all that is trained stays on the training GPUs.
    let [critic_state, critic_moments] = match (critic, &of_critic) {
        (Some(plan), Some(memory)) => [state(memory), moments(plan, memory)],
        _ => [Bytes::ZERO; 2],
    };
    let [actor_state, actor_moments] = [state(&of_actor), moments(actor, &of_actor)];
    let rest = |others: Bytes| if offload { Bytes::ZERO } else { others };
    let limit = actor.cluster.node.gpu.memory.value;
    let forward = |plan: &Plan| forward_working(plan);
    let memory = |phase: Phase| {
        let training = |working: Bytes, own: [Bytes; 2], other: [Bytes; 2], weights: Bytes| PhaseMemory {
            phase,
            state: own[0] + rest(other[0]),
            moments: own[1] + rest(other[1]),
            others: weights,
            working,
            limit,
        };
        let own = [actor_state, actor_moments];
        let of_critic_state = [critic_state, critic_moments];
        Some(match phase {
            Phase::Reward | Phase::WeightSync => return None,
            Phase::Generation => {
                let gpu = plan.generation.node.gpu.memory.value;
                let share = plan.engine.engine.batching.memory_share.value * gpu;
                let stays = !plan.mode.splits_gpus() && !offload;
                let or_none = |bytes: Bytes| if stays { bytes } else { Bytes::ZERO };
                PhaseMemory {
                    phase,
                    state: or_none(actor_state + critic_state),
                    moments: or_none(actor_moments + critic_moments),
                    others: or_none(reference),
                    working: share.max(generated.memory.weights + generated.memory.working),
                    limit: gpu,
                }
            }
            Phase::OldLogProb => training(forward(actor), own, of_critic_state, rest(reference)),
            Phase::RefLogProb => {
                let none = [rest(own[0]), rest(own[1])];
                training(forward(actor), none, of_critic_state, reference)
            }
            Phase::Values => {
                let all = [of_critic_state[0], of_critic_state[1]];
                training(forward(critic?), all, own, rest(reference))
            }
            Phase::ActorUpdate => {
                let working = of_actor.total() - actor_state;
                training(working, own, of_critic_state, rest(reference))
            }
            Phase::CriticUpdate => {
                let working = of_critic?.total() - critic_state;
                training(working, of_critic_state, own, rest(reference))
            }
        })
    };
    plan.job.phases().filter_map(memory).collect()
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
