//! The choices that pins can name: every dimension, and the recompute that each layer chooses for itself.

use super::dimension::{Dimension, Values};
use super::dimensions::all;
use crate::question::Question;
use crate::verdict::PlannerError;
use serde::Serialize;
use trainwright_spec::plan::Recompute;

/// The key of the one choice that each layer makes for itself.
pub(super) const RECOMPUTE: &str = "recompute";

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

/// Checks that the pins of a question have keys and values that exist.
///
/// # Errors
/// `BadPin` for the first that has not.
pub(super) fn check_pins(question: &Question) -> Result<(), PlannerError> {
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

/// The recompute choices that each layer may make.
pub(crate) fn recompute_choices(question: &Question) -> Vec<Recompute> {
    let has = |choice: &Recompute| choice.name() != "selective" || question.stack.selective_recompute;
    let choices = match question.pins.pinned(RECOMPUTE) {
        Some(pinned) => pinned.iter().filter_map(|text| text.parse().ok()).collect(),
        None => Recompute::ALL.into_iter().filter(has).collect::<Vec<_>>(),
    };
    choices.into_iter().filter(|choice| question.pins.allows(RECOMPUTE, &choice.to_string())).collect()
}
