//! The data of a training run.

use super::bytes;
use crate::arguments::DataArguments;
use crate::error::{CliError, refuse};
use std::path::Path;
use trainwright_executor::{DataFile, DataOptions, Tokens, Validation};
use trainwright_spec::plan::Plan;

/// The tokens to train on, and those that are held out.
///
/// # Errors
/// Files that cannot be read or are not of their format, and arguments that do not go together.
pub fn data(arguments: &DataArguments, plan: &Plan) -> Result<(Tokens, Option<Validation>), CliError> {
    let all = training(arguments, plan)?;
    let Some(every) = arguments.validate_every else { return Ok((all, None)) };
    let batches = arguments.validation_batches;
    let (training, tokens) = match (&arguments.validation_data, arguments.validation_fraction) {
        (Some(path), _) => (all, open(arguments, "--validation-data", std::slice::from_ref(path), &[])?),
        (None, Some(fraction)) => all.hold_out(fraction)?.into(),
        (None, None) => {
            let allowed = "say what is held out: --validation-data FILE, or --validation-fraction 0.05";
            return Err(refuse("--validate-every", every, allowed));
        }
    };
    Ok((training, Some(Validation { tokens, every, batches })))
}

fn training(arguments: &DataArguments, plan: &Plan) -> Result<Tokens, CliError> {
    let (files, weights) = (&arguments.data, &arguments.data_weights);
    if files.is_empty() {
        let count = plan.job.tokens().saturating_mul(32).min(MOST_MADE_UP);
        // Always the same ones, so that a resumed run finds them again.
        return Ok(Tokens::synthetic(plan.model.vocab, count.max(plan.job.sequence + 1), 0));
    }
    if !weights.is_empty() && weights.len() != files.len() {
        let allowed = format!("there are {} of --data: give a number for each", files.len());
        return Err(refuse("--data-weights", format!("{} numbers", weights.len()), allowed));
    }
    open(arguments, "--data", files, weights)
}

/// The tokens of files; without `weights`, by their numbers of tokens.
fn open(
    arguments: &DataArguments,
    argument: &'static str,
    files: &[String],
    weights: &[f64],
) -> Result<Tokens, CliError> {
    let tokenizer = arguments.tokenizer.as_deref().map(Path::new);
    if let [path] = files
        && (path == "-" || (Path::new(path).exists() && !Path::new(path).is_file()))
    {
        // Standard input and pipes are read once, to memory.
        let text = bytes(Some(argument), path)?;
        return Ok(match tokenizer {
            Some(tokenizer) => Tokens::tokenized(&text, tokenizer)?,
            None => Tokens::bytes(&text),
        });
    }
    let mut opened = Vec::new();
    for (number, path) in files.iter().enumerate() {
        let (format, weight) = (arguments.data_format, weights.get(number).copied());
        opened.push(DataFile { path: Path::new(path), format, weight });
    }
    let end_of_document = arguments.end_of_document.as_deref();
    let options = DataOptions { tokenizer, end_of_document, documents: arguments.document_mask };
    Ok(Tokens::open(&opened, &options)?)
}

/// Made-up tokens are in memory, 4 bytes each.
const MOST_MADE_UP: usize = 1 << 26;
