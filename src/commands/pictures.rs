//! Pictures of a plan's pipeline, for `plan` and `simulate`.

use crate::arguments::PictureArguments;
use crate::error::CliError;
use crate::output;
use crate::render::words;
use trainwright_pictures::picture::{png, svg};
use trainwright_spec::plan::Plan;
use trainwright_timeline::timeline::Timeline;

/// The requested files, by argument.
pub fn files(arguments: &PictureArguments) -> [(&'static str, &Option<String>); 3] {
    [("--picture", &arguments.picture), ("--svg", &arguments.svg), ("--png", &arguments.png)]
}

/// Whether there is one.
pub fn are_wanted(arguments: &PictureArguments) -> bool {
    files(arguments).iter().any(|(_, path)| path.is_some())
}

/// Writes them.
///
/// # Errors
/// `Writing`.
pub fn write(arguments: &PictureArguments, plan: &Plan, timeline: &Timeline) -> Result<(), CliError> {
    let title = format!("{} on {}: {}", plan.model.name, plan.cluster.name, words::mesh(&plan.mesh));
    for (argument, path) in files(arguments) {
        let Some(path) = path else { continue };
        let bitmap = match argument {
            "--picture" => path.to_lowercase().ends_with(".png"),
            _ => argument == "--png",
        };
        let picture = if bitmap { png(timeline, &title) } else { svg(timeline, &title).into_bytes() };
        output::save(argument, path, picture)?;
    }
    Ok(())
}
