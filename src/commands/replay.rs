//! `replay`: Chakra execution traces on a cluster.

use crate::arguments::ReplayArguments;
use crate::error::{CliError, Outcome};
use crate::render::json;
use crate::render::replay::page;
use crate::{inputs, output};
use std::collections::BTreeMap;
use std::path::Path;
use trainwright_formats::chakra::{self, workload};
use trainwright_sim::costs::ClusterCosts;
use trainwright_sim::replay::replay;
use trainwright_spec::error::SpecError;
use trainwright_spec::stack::Stack;
use trainwright_timeline::chrome::write_chrome;
use trainwright_timeline::report::Report;

/// A stack for which nothing is asked.
const ANY_STACK: &str = "megatron-core";

/// Runs the command.
///
/// # Errors
/// Bad input and files that cannot be read or written.
pub fn run(arguments: &ReplayArguments) -> Result<Outcome, CliError> {
    let alone = output::stdout_is_taken(&[("--trace", &arguments.trace)], arguments.json)?;
    let mut cluster = match (&arguments.plan, &arguments.cluster) {
        (Some(plan), _) => inputs::plan(plan, &arguments.profile, None)?.cluster,
        (None, cluster) => inputs::cluster(cluster.as_deref().unwrap_or_default(), &arguments.profile)?,
    };
    // Traces contain what the software does; only the cluster's factors count.
    let stack = &mut Stack::from_name(ANY_STACK).expect("it is in the catalog");
    inputs::calibration::calibrate(arguments.calibration.given(), &mut cluster, stack)?;
    let files = files(&arguments.traces)?;
    let read = |path: &String| {
        let (metadata, nodes) = chakra::read(&inputs::bytes(None, path)?, path)?;
        Ok((path.clone(), metadata, nodes))
    };
    let traces = files.iter().map(read).collect::<Result<Vec<_>, CliError>>()?;
    let workload = workload::workload(&traces, &groups(arguments, &files)?)?;
    let timeline = replay(&workload, cluster.gpus(), &ClusterCosts::new(&cluster))?;
    if let Some(path) = &arguments.trace {
        output::write("--trace", path, |mut out| write_chrome(&timeline, &mut out))?;
    }
    let report = Report::new(&timeline);
    if arguments.json {
        output::print(&json::print(&report))?;
    } else if !alone {
        output::print(&page(&workload, &report, &cluster.name))?;
    }
    Ok(Outcome::Done)
}

/// The named files, and every .et file of the named folders.
fn files(named: &[String]) -> Result<Vec<String>, CliError> {
    let mut files = Vec::new();
    for path in named {
        if !Path::new(path).is_dir() {
            files.push(path.clone());
            continue;
        }
        let failed = |source| CliError::Reading { argument: None, path: path.clone(), source };
        let mut traces = Vec::new();
        for entry in std::fs::read_dir(path).map_err(failed)? {
            let file = entry.map_err(failed)?.path();
            if file.extension().is_some_and(|ending| ending == "et") {
                traces.push(file.to_string_lossy().into_owned());
            }
        }
        if traces.is_empty() {
            let reason = format!("{path}: the folder has no execution traces, files ending in .et");
            return Err(CliError::NoAnswer { reason });
        }
        traces.sort();
        files.extend(traces);
    }
    Ok(files)
}

fn groups(arguments: &ReplayArguments, files: &[String]) -> Result<BTreeMap<String, Vec<usize>>, CliError> {
    let default = files.first().map(|file| Path::new(file).with_file_name("groups.json"));
    let path = match (&arguments.groups, default) {
        (Some(path), _) => path.clone(),
        (None, Some(path)) if path.exists() => path.to_string_lossy().into_owned(),
        _ => return Ok(BTreeMap::new()),
    };
    let argument = Some("--groups");
    serde_json::from_str(&inputs::text(argument, &path)?).map_err(|error| {
        let message = format!("{error}; it must be {{\"0\": [0, 1], …}}, the ranks of each group");
        CliError::of_input(argument, SpecError::Syntax { origin: path, message })
    })
}
