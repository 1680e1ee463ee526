//! What the configuration that a plan's model came from says beyond the model.

use serde_json::Value;
use std::fs::File;
use std::io::Read;
use trainwright_executor::{PositionLimit, untrained};
use trainwright_spec::catalog;
use trainwright_spec::model::hf::from_hugging_face;
use trainwright_spec::model::{Model, preset};

/// Longer files are no configurations.
const MOST_BYTES: u64 = 1 << 20;

/// A remark on what the executor computes otherwise than the configuration says, if it is at hand: the file that the model
/// is named after, or the catalog's entry.
pub fn remark(model: &Model) -> Option<String> {
    let (key, value, why) = untrained(&configuration(model)?, model)?;
    Some(format!("{}: `{key}` is {value}; {why}: it trains without that", model.name))
}

/// The most tokens of a sequence that the configuration states, if it is at hand and describes the model.
pub fn position_limit(model: &Model) -> Option<PositionLimit> {
    let config = configuration(model)?;
    if model.name.ends_with(".json") {
        let read = from_hugging_face(&config.to_string(), &model.name).ok()?;
        let (dropout, dropout_rates) = (model.dropout, model.dropout_rates);
        if (Model { dropout, dropout_rates, ..read }) != *model {
            return None;
        }
    }
    PositionLimit::of(&config, &model.name)
}

fn configuration(model: &Model) -> Option<Value> {
    if let Ok(known) = preset::preset(&model.name) {
        let is_known = known == Model { name: known.name.clone(), ..model.clone() };
        let text = catalog::text("model", &known.name).ok().filter(|_| is_known)?;
        return toml::from_str::<Value>(text).ok()?.get("config").cloned();
    }
    if !model.name.ends_with(".json") {
        return None;
    }
    let mut text = String::new();
    File::open(&model.name).ok()?.take(MOST_BYTES).read_to_string(&mut text).ok()?;
    serde_json::from_str(&text).ok()
}
