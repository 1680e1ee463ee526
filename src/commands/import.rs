//! `import`: a plan from another tool's configuration.

use crate::arguments::ImportArguments;
use crate::error::{CliError, Outcome};
use crate::{inputs, output};
use trainwright_formats::import::{Request, importer};
use trainwright_spec::stack::Stack;

/// Runs the command.
///
/// # Errors
/// Bad input and files that cannot be read or written.
pub fn run(arguments: &ImportArguments) -> Result<Outcome, CliError> {
    let importer = importer(&arguments.from).map_err(|error| CliError::of_input(Some("--from"), error))?;
    let stack = arguments.stack.as_deref().unwrap_or(importer.stack());
    let schedule = arguments.schedule_csv.as_deref().map(|path| inputs::text(Some("--schedule-csv"), path));
    let request = Request {
        text: &inputs::text(None, &arguments.file)?,
        origin: if arguments.file == "-" { "standard input" } else { &arguments.file },
        cluster: inputs::cluster(&arguments.cluster, &[])?,
        stack: Stack::from_name(stack).map_err(|error| CliError::of_input(Some("--stack"), error))?,
        model: arguments.model.as_deref().map(inputs::model).transpose()?,
        sequence: arguments.seq,
        schedule: schedule.transpose()?,
        settings: arguments.set.iter().map(|text| setting(text)).collect::<Result<_, _>>()?,
    };
    let imported = importer.read(&request).map_err(|error| CliError::of_input(None, error))?;
    if !imported.unread.is_empty() {
        output::remark(&format!("not read: {}", imported.unread.join(", ")));
    }
    if !imported.assumed.is_empty() {
        output::remark(&format!("assumed: {}", imported.assumed.join(", ")));
    }
    let plan = &imported.plan;
    let text = if arguments.inline { plan.to_toml() } else { plan.to_short_toml() };
    output::save("--out", &arguments.out, text)?;
    Ok(Outcome::Done)
}

/// A key with its value.
fn setting(text: &str) -> Result<(String, String), CliError> {
    match text.split_once('=').filter(|(key, _)| !key.is_empty()) {
        Some((key, value)) => Ok((key.into(), value.into())),
        None => Err(CliError::Argument {
            argument: "--set".into(),
            value: text.into(),
            allowed: "KEY=VALUE with a key or argument of the file".into(),
        }),
    }
}
