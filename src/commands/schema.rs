//! `schema`: the JSON Schema of a command's JSON.

use crate::arguments::SchemaArguments;
use crate::error::{CliError, Outcome, refuse};
use crate::output;
use include_dir::{Dir, include_dir};

/// A file for each command that has JSON. `tests/cli/schemas.rs` compares them with real answers, and makes them.
static SCHEMAS: Dir = include_dir!("$CARGO_MANIFEST_DIR/src/schemas");

/// Prints the schema of a command's JSON, or the commands that have one.
///
/// # Errors
/// `Argument` for a command without JSON, and those of standard output.
pub fn run(arguments: &SchemaArguments) -> Result<Outcome, CliError> {
    let names: Vec<&str> = SCHEMAS.files().filter_map(|file| file.path().file_stem()?.to_str()).collect();
    let Some(name) = &arguments.of else {
        output::print(&names.iter().map(|name| format!("{name}\n")).collect::<String>())?;
        return Ok(Outcome::Done);
    };
    let file = SCHEMAS.get_file(format!("{name}.json"));
    let text = file.and_then(|file| file.contents_utf8());
    let text = text.ok_or_else(|| refuse("COMMAND", name, format!("JSON have {}", names.join(", "))))?;
    output::print(text)?;
    Ok(Outcome::Done)
}
