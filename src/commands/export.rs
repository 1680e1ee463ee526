//! `export`: a plan as another tool reads it.

use crate::arguments::ExportArguments;
use crate::error::{CliError, Outcome};
use crate::{inputs, output};
use std::path::Path;
use trainwright_formats::details::Details;
use trainwright_formats::export::{
    CHANGES, Effect, Exported, ExportedFile, Request, exporter, write as write_plan,
};
use trainwright_spec::model::Model;

/// Runs the command.
///
/// # Errors
/// Bad input and files that cannot be read or written.
pub fn run(arguments: &ExportArguments) -> Result<Outcome, CliError> {
    let plan = inputs::plan(&arguments.plan, &[], None)?;
    let exporter = exporter(&arguments.to).map_err(|error| CliError::of_input(Some("--to"), error))?;
    let mut request = Request::new(&plan);
    if let Some(path) = &arguments.model {
        request.details = Some(details(path, &plan.model)?);
    }
    for setting in &arguments.set {
        let (key, value) = setting.split_once('=').unwrap_or((setting, ""));
        if !exporter.settings().contains(&key) || value.is_empty() {
            let allowed = match exporter.settings() {
                [] => format!("{} has no settings", exporter.name()),
                known => format!("KEY=VALUE with a key of {}", known.join(", ")),
            };
            return Err(CliError::Argument { argument: "--set".into(), value: setting.clone(), allowed });
        }
        request.settings.insert(key.into(), value.into());
    }
    let exported = write_plan(&request, exporter);
    if !arguments.lossy {
        refuse(&exported, &arguments.to)?;
    }
    for omission in &exported.omissions {
        let kind = match omission.effect {
            Effect::Elsewhere => "to be said elsewhere",
            Effect::Speed | Effect::Training => "not expressible",
        };
        output::remark(&format!("{kind}: {omission}"));
    }
    exported.remarks.iter().for_each(|remark| output::remark(remark));
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

/// An error if the files would train something else than the plan, or not run.
fn refuse(exported: &Exported, tool: &str) -> Result<(), CliError> {
    let faults: Vec<String> =
        exported.faults().iter().map(|fault| fault.to_string().replace(CHANGES, "")).collect();
    match faults.is_empty() {
        true => Ok(()),
        false => Err(CliError::Argument {
            argument: "--to".into(),
            value: tool.into(),
            allowed: format!(
                "its files would train something else or not run: {}; --lossy writes them all the same",
                faults.join(", ")
            ),
        }),
    }
}

/// What the `config.json` of the plan's model says beyond the plan.
fn details(path: &str, planned: &Model) -> Result<Details, CliError> {
    let model = inputs::model(path)?;
    if (Model { name: planned.name.clone(), ..model.clone() }) != *planned {
        let allowed = format!("the plan has another model, {}", planned.name);
        return Err(CliError::Argument { argument: "--model".into(), value: path.into(), allowed });
    }
    match Details::of_catalog(&model) {
        Some(details) => Ok(details),
        None => {
            let text = inputs::text(Some("--model"), path)?;
            Details::of_config(&text, path).map_err(|error| CliError::of_input(Some("--model"), error))
        }
    }
}

fn write(path: &str, file: &ExportedFile) -> Result<(), CliError> {
    output::save("--out", path, &file.text)
}
