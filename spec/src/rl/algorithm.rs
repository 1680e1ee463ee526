//! The algorithms, each a list of phases.

/// A part of a step of the loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// The engine answers the prompts.
    Generation,
    /// Answers are judged, by rules: no GPU works.
    Reward,
    /// Forward of the actor before its update over all answers.
    OldLogProb,
    /// Forward of the frozen first actor over all answers.
    RefLogProb,
    /// Forward of the critic over all answers.
    Values,
    /// Training of the critic.
    CriticUpdate,
    /// Training of the actor.
    ActorUpdate,
    /// The actor's weights go to the engine.
    WeightSync,
}

impl Phase {
    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Phase::Generation => "generation",
            Phase::Reward => "reward",
            Phase::OldLogProb => "old log-probabilities",
            Phase::RefLogProb => "reference log-probabilities",
            Phase::Values => "values",
            Phase::CriticUpdate => "critic update",
            Phase::ActorUpdate => "actor update",
            Phase::WeightSync => "weight sync",
        }
    }
}

/// An algorithm.
#[derive(Debug, PartialEq, Eq)]
pub struct Algorithm {
    /// Its name in arguments and tables.
    pub name: &'static str,
    /// The phases of a step, in order.
    pub phases: &'static [Phase],
}

impl Algorithm {
    /// Whether a step has a phase.
    pub fn has(&self, phase: Phase) -> bool {
        self.phases.contains(&phase)
    }

    /// Whether there is a critic.
    pub fn has_critic(&self) -> bool {
        self.has(Phase::CriticUpdate)
    }
}

use Phase::{ActorUpdate, CriticUpdate, Generation, OldLogProb, RefLogProb, Reward, Values, WeightSync};

const WITH_REFERENCE: &[Phase] = &[Generation, Reward, OldLogProb, RefLogProb, ActorUpdate, WeightSync];
const WITHOUT_REFERENCE: &[Phase] = &[Generation, Reward, OldLogProb, ActorUpdate, WeightSync];
const WITH_CRITIC: &[Phase] =
    &[Generation, Reward, OldLogProb, RefLogProb, Values, CriticUpdate, ActorUpdate, WeightSync];

/// Every algorithm. Sources: PPO for language models arXiv 2203.02155, GRPO 2402.03300, DAPO 2503.14476 (no KL term, so no
/// reference), Dr. GRPO 2503.20783 (neither), RLOO 2402.14740, REINFORCE++ 2501.03262, GSPO 2507.18071.
pub const ALGORITHMS: &[Algorithm] = &[
    Algorithm { name: "grpo", phases: WITH_REFERENCE },
    Algorithm { name: "ppo", phases: WITH_CRITIC },
    Algorithm { name: "dapo", phases: WITHOUT_REFERENCE },
    Algorithm { name: "dr-grpo", phases: WITHOUT_REFERENCE },
    Algorithm { name: "gspo", phases: WITH_REFERENCE },
    Algorithm { name: "rloo", phases: WITH_REFERENCE },
    Algorithm { name: "reinforce", phases: WITH_REFERENCE },
];

/// The algorithm of that name; `None` if there is none.
pub fn algorithm(name: &str) -> Option<&'static Algorithm> {
    ALGORITHMS.iter().find(|known| known.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_algorithm_generates_first_trains_and_hands_its_weights_over_last() {
        for known in ALGORITHMS {
            assert_eq!(known.phases.first(), Some(&Generation), "{}", known.name);
            assert_eq!(known.phases.last(), Some(&WeightSync), "{}", known.name);
            assert!(known.phases.is_sorted() && known.has(ActorUpdate), "{}", known.name);
            assert_eq!(known.has(Values), known.has_critic(), "{}", known.name);
            assert_eq!(algorithm(known.name), Some(known));
        }
        assert_eq!(algorithm("grop"), None);
    }
}
