//! The planner's question: what to train, on what, with which choices made already.

use crate::risk::Risk;
use trainwright_spec::cluster::Cluster;
use trainwright_spec::job::Job;
use trainwright_spec::model::Model;
use trainwright_spec::plan::Recompute;
use trainwright_spec::stack::Stack;

/// What is to be planned.
#[derive(Debug, Clone, PartialEq)]
pub struct Question {
    /// What is trained.
    pub model: Model,
    /// On what.
    pub cluster: Cluster,
    /// How much.
    pub job: Job,
    /// By which software.
    pub stack: Stack,
    /// Choices that are made already.
    pub pins: Pins,
    /// How the errors of forecasts count.
    pub risk: Risk,
}

/// Choices that the planner must not change; a choice that is `None` is free.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pins {
    /// Ranks of the tensor axis.
    pub tensor: Option<usize>,
    /// Ranks of the pipeline axis.
    pub pipeline: Option<usize>,
    /// Ranks of the data axis.
    pub data: Option<usize>,
    /// Stages on each pipeline rank.
    pub virtual_stages: Option<usize>,
    /// Sequences in a microbatch.
    pub micro_batch: Option<usize>,
    /// Name of the schedule.
    pub schedule: Option<String>,
    /// Whether norms and dropouts are split along the sequence.
    pub sequence_parallel: Option<bool>,
    /// Name of the data-parallel scheme.
    pub data_sharding: Option<String>,
    /// The same recompute choice for every block.
    pub recompute: Option<Recompute>,
    /// Any choice by its key (see `pin_choices`) with a value that it may have; several values of a key leave the choice
    /// among them.
    pub only: Vec<(String, String)>,
    /// Any choice by its key with a value that it must not have.
    pub never: Vec<(String, String)>,
    /// How wide choices are that neither names.
    pub breadth: Breadth,
}

/// How much of the space is searched where nothing is pinned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Breadth {
    /// What suits the model: the core, expert parallelism for mixtures, context parallelism for long sequences, and fully sharded
    /// data parallelism. Offload where nothing else fits.
    #[default]
    Auto,
    /// Tensor, pipeline and data parallelism: 1-D tensor parallelism, GPipe, 1F1B and interleaved schedules, the optimizer
    /// sharded or not, everything on the GPUs.
    Core,
    /// What most software can do: context and expert parallelism and every data-parallel scheme of the stack too.
    Usual,
    /// Grids of tensor ranks, every schedule and offload too.
    Whole,
}

impl Pins {
    /// Nothing pinned, and everything tried.
    pub fn whole() -> Self {
        Self { breadth: Breadth::Whole, ..Self::default() }
    }

    /// The value that a field pins, by key.
    fn field(&self, key: &str) -> Option<String> {
        let number = |pin: Option<usize>| pin.map(|size| size.to_string());
        match key {
            "tensor" => number(self.tensor),
            "pipeline" => number(self.pipeline),
            "data" => number(self.data),
            "virtual-stages" => number(self.virtual_stages),
            "micro-batch" => number(self.micro_batch),
            "schedule" => self.schedule.clone(),
            "sequence-parallel" => self.sequence_parallel.map(|on| on.to_string()),
            "data-sharding" => self.data_sharding.clone(),
            "recompute" => self.recompute.map(|choice| choice.to_string()),
            _ => None,
        }
    }

    /// The only values that a choice may have; `None` if it is free.
    pub(crate) fn pinned(&self, key: &str) -> Option<Vec<String>> {
        if let Some(value) = self.field(key) {
            return Some(vec![value]);
        }
        let of_key = self.only.iter().filter(|(name, _)| name == key);
        let values: Vec<String> = of_key.map(|(_, value)| value.clone()).collect();
        (!values.is_empty()).then_some(values)
    }

    /// Whether some value of a choice is forbidden.
    pub(crate) fn forbids_some(&self, key: &str) -> bool {
        self.never.iter().any(|(name, _)| name == key)
    }

    /// Whether a choice must not have a value.
    pub(crate) fn forbids(&self, key: &str, value: &str) -> bool {
        self.never.iter().any(|(name, never)| name == key && never == value)
    }

    /// Whether a choice may have a value.
    pub(crate) fn allows(&self, key: &str, value: &str) -> bool {
        !self.forbids(key, value)
            && self.pinned(key).is_none_or(|pinned| pinned.iter().any(|pin| pin == value))
    }

    /// What they say about a choice, in words.
    pub(crate) fn words_of(&self, key: &str) -> String {
        let never = self.never.iter().filter(|(name, _)| name == key);
        let never: Vec<&str> = never.map(|(_, value)| value.as_str()).collect();
        match (self.pinned(key), never.as_slice()) {
            (Some(pinned), []) => format!("only {} is allowed", pinned.join(" or ")),
            (Some(pinned), never) => {
                format!("only {} is allowed, and {} is forbidden", pinned.join(" or "), never.join(" and "))
            }
            (None, never) => format!("{} is forbidden", never.join(" and ")),
        }
    }
}
