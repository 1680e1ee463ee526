//! What is trained where a model's weights are frozen, from arguments.

use crate::arguments::QuestionArguments;
use crate::error::{CliError, refuse};
use trainwright_spec::adapters::Adapters;
use trainwright_spec::model::Model;
use trainwright_spec::plan::adapters_allowed;

/// What is trained instead of the model. `all` are the matrices that the model has by themselves.
pub fn of(arguments: &QuestionArguments, model: &Model) -> Result<Option<Adapters>, CliError> {
    let Some(rank) = arguments.lora else { return Ok(None) };
    let (text, base) = (&arguments.lora_targets, arguments.base_format);
    let adapters = match text.as_str() {
        "all" => Adapters::of_all(rank, base, model),
        _ => Adapters {
            rank,
            targets: Adapters::targets(text).map_err(|allowed| refuse("--lora-targets", text, allowed))?,
            base,
        },
    };
    match adapters_allowed(&adapters, model) {
        Ok(()) => Ok(Some(adapters)),
        Err(allowed) => Err(refuse("--lora", &adapters, allowed)),
    }
}
