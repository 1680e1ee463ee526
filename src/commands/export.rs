//! `export`: a plan as another tool reads it.

use crate::arguments::ExportArguments;
use crate::error::{CliError, Outcome};
use crate::{inputs, output};
use std::path::Path;
use trainwright_formats::export::{ExportedFile, export, exporter};

/// Runs the command.
///
/// # Errors
/// Bad input and files that cannot be read or written.
pub fn run(arguments: &ExportArguments) -> Result<Outcome, CliError> {
    let plan = inputs::plan(&arguments.plan, &[], None)?;
    let exporter = exporter(&arguments.to).map_err(|error| CliError::of_input(Some("--to"), error))?;
    let exported = export(&plan, exporter);
    for omission in &exported.omissions {
        output::remark(&format!("not expressible: {omission}"));
    }
    for (index, file) in exported.files.iter().enumerate() {
        match (index, arguments.out.as_str()) {
            (0, "-") => output::print(&file.text)?,
            (0, path) => write(path, file)?,
            (_, "-") => {
                output::remark(&format!("not written: {}, which needs `--out` with a file", file.name))
            }
            (_, path) => {
                let sibling = Path::new(path).with_file_name(&file.name);
                write(&sibling.to_string_lossy(), file)?;
                output::remark(&format!("also written: {}", sibling.display()));
            }
        }
    }
    Ok(Outcome::Done)
}

fn write(path: &str, file: &ExportedFile) -> Result<(), CliError> {
    output::save("--out", path, &file.text)
}
