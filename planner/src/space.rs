//! The space of plans as data: a list of dimensions, each of which says what it can be once those before it are given.
//!
//! ```text
//! LAYOUT   precision, tensor, context, pipeline, data, expert, … , micro-batch   how a rank runs its layers
//! PIPELINE schedule, virtual-stages                                              in which order
//! STATE    data-sharding, shard, offload                                         where the training state is
//! ```
//!
//! A layout together with any pipeline and state that go with it is a candidate. A new dimension is a file in `space/`
//! and a line here. Nothing here decides what is legal: `legal` asks `Plan::check`.

mod context;
mod context_inner;
mod context_scheme;
mod data;
mod data_sharding;
mod dispatcher;
mod expert;
mod expert_tensor;
pub(crate) mod legal;
mod micro_batch;
mod offload;
mod order;
mod pipeline;
mod precision;
mod schedule;
mod sequence_parallel;
mod shard;
mod tensor;
mod tensor_scheme;
#[cfg(test)]
mod tests;
mod virtual_stages;
mod why;

use crate::candidate::Candidate;
use crate::verdict::{Breadth, PlannerError, Question};
use serde::Serialize;
use trainwright_spec::plan::Recompute;

/// One choice that a plan makes.
pub(crate) trait Dimension: Sync {
    /// Its name in pins.
    fn key(&self) -> &'static str;

    /// One line that says what it is.
    fn summary(&self) -> &'static str;

    /// What a pin of it can be.
    fn values(&self) -> Values;

    /// `draft` with each value worth trying, or with those that are pinned, if that is possible at all.
    fn options(&self, given: &Given, draft: &Candidate) -> Vec<Candidate>;

    /// Its value in a candidate, as pins write it.
    fn value(&self, candidate: &Candidate) -> String;
}

/// What the values of a dimension are.
pub(crate) enum Values {
    /// Whole numbers from 1.
    Number,
    /// Some of these.
    Names(Vec<&'static str>),
}

/// What the options of a dimension follow from, beside the draft.
pub(crate) struct Given<'a> {
    pub question: &'a Question,
    /// The only values that it may have; none if it is free.
    pub pinned: Option<Vec<String>>,
}

impl Given<'_> {
    /// Whether everything is tried.
    pub fn is_whole(&self) -> bool {
        self.question.pins.breadth == Breadth::Whole
    }

    /// Whether no more than tensor, pipeline and data parallelism are tried.
    pub fn is_core(&self) -> bool {
        self.question.pins.breadth == Breadth::Core
    }

    /// Whether a choice may have a value, and is not held to others.
    pub fn tries(&self, key: &str, value: &str) -> bool {
        self.question.pins.allows(key, value) && (self.is_whole() || self.question.pins.pinned(key).is_some())
    }

    /// Pinned numbers.
    pub fn numbers(&self) -> Option<Vec<usize>> {
        self.pinned.as_ref().map(|pinned| pinned.iter().filter_map(|text| text.parse().ok()).collect())
    }

    /// Those of `known` that are pinned, or else those of `tried`.
    pub fn names(&self, known: &[&'static str], tried: &[&'static str]) -> Vec<&'static str> {
        match &self.pinned {
            Some(pinned) => {
                known.iter().copied().filter(|name| pinned.iter().any(|pin| pin == name)).collect()
            }
            None => tried.to_vec(),
        }
    }
}

/// How a rank runs its layers.
pub(crate) static LAYOUT: &[&dyn Dimension] = &[
    &precision::NumberFormat,
    &tensor::Tensor,
    &tensor_scheme::Scheme,
    &sequence_parallel::SequenceParallel,
    &context::Context,
    &context_inner::ContextInner,
    &context_scheme::Scheme,
    &pipeline::Pipeline,
    &data::Data,
    &order::Order,
    &expert::Expert,
    &expert_tensor::ExpertTensor,
    &dispatcher::Dispatch,
    &micro_batch::MicroBatch,
];

/// In which order.
pub(crate) static PIPELINE: &[&dyn Dimension] = &[&schedule::Order, &virtual_stages::VirtualStages];

/// Where the training state is.
pub(crate) static STATE: &[&dyn Dimension] = &[&data_sharding::DataSharding, &shard::Shard, &offload::Beside];

/// The key of the one choice that each layer makes for itself.
const RECOMPUTE: &str = "recompute";

fn all() -> impl Iterator<Item = &'static dyn Dimension> {
    LAYOUT.iter().chain(PIPELINE).chain(STATE).copied()
}

/// A choice that can be pinned or forbidden.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PinChoice {
    /// Its key.
    pub key: &'static str,
    /// What it is, in a line.
    pub summary: &'static str,
    /// What its value can be, in words.
    pub values: String,
}

/// Every choice that can be pinned or forbidden.
pub fn pin_choices() -> Vec<PinChoice> {
    let values = |dimension: &dyn Dimension| match dimension.values() {
        Values::Number => "a whole number from 1".to_string(),
        Values::Names(names) => names.join(", "),
    };
    let choice = |dimension: &'static dyn Dimension| PinChoice {
        key: dimension.key(),
        summary: dimension.summary(),
        values: values(dimension),
    };
    let recompute = PinChoice {
        key: RECOMPUTE,
        summary: "what blocks compute again in backward; each block by itself, if several are left",
        values: "full, selective, none, or pieces as in selective(norm+activation)".into(),
    };
    all().map(choice).chain([recompute]).collect()
}

/// Whether the pins of a question have keys and values that exist.
///
/// # Errors
/// `BadPin` for the first that has not.
pub(crate) fn check_pins(question: &Question) -> Result<(), PlannerError> {
    let pins = &question.pins;
    for (key, value) in pins.only.iter().chain(&pins.never) {
        let bad =
            |allowed: String| Err(PlannerError::BadPin { key: key.clone(), value: value.clone(), allowed });
        if key == RECOMPUTE {
            match value.parse::<Recompute>() {
                Ok(_) => continue,
                Err(allowed) => return bad(allowed),
            }
        }
        let Some(dimension) = all().find(|dimension| dimension.key() == key) else {
            let keys: Vec<&str> = all().map(|dimension| dimension.key()).chain([RECOMPUTE]).collect();
            return bad(format!("the key must be one of {}", keys.join(", ")));
        };
        match dimension.values() {
            Values::Number if value.parse::<usize>().is_ok_and(|number| number > 0) => {}
            Values::Number => return bad("it must be a whole number from 1".into()),
            Values::Names(names) if names.contains(&value.as_str()) => {}
            Values::Names(names) => return bad(format!("known are {}", names.join(", "))),
        }
    }
    Ok(())
}

/// `drafts` with every combination of what `dimensions` can be, as far as the pins allow.
pub(crate) fn extended(
    question: &Question,
    dimensions: &[&dyn Dimension],
    drafts: Vec<Candidate>,
) -> Vec<Candidate> {
    dimensions.iter().fold(drafts, |drafts, dimension| {
        let pinned = question.pins.pinned(dimension.key());
        let given = Given { question, pinned: pinned.clone() };
        let free = pinned.is_none() && !question.pins.forbids_some(dimension.key());
        let allowed = |candidate: &Candidate| {
            free || question.pins.allows(dimension.key(), &dimension.value(candidate))
        };
        let options = |draft: &Candidate| dimension.options(&given, draft);
        drafts.iter().flat_map(options).filter(allowed).collect()
    })
}

/// The recompute choices that each layer may make.
pub(crate) fn recompute_choices(question: &Question) -> Vec<Recompute> {
    let has = |choice: &Recompute| choice.name() != "selective" || question.stack.selective_recompute;
    let choices = match question.pins.pinned(RECOMPUTE) {
        Some(pinned) => pinned.iter().filter_map(|text| text.parse().ok()).collect(),
        None => Recompute::ALL.into_iter().filter(has).collect::<Vec<_>>(),
    };
    choices.into_iter().filter(|choice| question.pins.allows(RECOMPUTE, &choice.to_string())).collect()
}

/// The divisors of a number, ascending.
pub(crate) fn divisors(number: usize) -> Vec<usize> {
    let small = (1..=number.isqrt()).filter(|divisor| number.is_multiple_of(*divisor));
    let mut divisors: Vec<usize> = small.flat_map(|divisor| [divisor, number / divisor]).collect();
    divisors.sort_unstable();
    divisors.dedup();
    divisors
}
