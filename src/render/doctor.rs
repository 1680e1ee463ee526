//! What a build can do on a machine.

use super::words::{gib, pairs};
use serde::Serialize;
use serde_json::{Value, json};
use trainwright_executor::Abilities;
use trainwright_spec::catalog;

/// A program of the machine.
#[derive(Debug, Serialize)]
pub struct Program {
    /// What it is used for.
    pub purpose: &'static str,
    /// Its file.
    pub name: &'static str,
    /// The first line that it prints of its version; `None` if it does not start.
    pub version: Option<String>,
}

/// For people.
pub fn page(found: &Abilities, programs: &[Program]) -> String {
    let mut lines: Vec<(String, String)> = Vec::new();
    let mut add = |name: &str, words: String| lines.push((name.to_string(), words));
    add("trainwright", format!("{}, {}", env!("CARGO_PKG_VERSION"), catalog_in_words()));
    let instructions = match found.instructions.last() {
        Some(_) => found.instructions.join(", "),
        None => "no vector instructions that the kernels know".into(),
    };
    add("processor", format!("{}, {} cores for this process; {instructions}", found.processor, found.cores));
    let bytes = |bytes: Option<_>| bytes.map_or("unknown".into(), |bytes| format!("{} GiB", gib(bytes)));
    add("memory", format!("{}, {} available", bytes(found.memory), bytes(found.available)));
    match &found.gpus {
        Ok(gpus) => {
            gpus.iter().enumerate().for_each(|(index, gpu)| add(&format!("GPU {index}"), gpu.clone()))
        }
        Err(reason) => add("GPUs", format!("none: {reason}")),
    }
    for (name, version) in &found.libraries {
        add(name, version.clone().unwrap_or_else(|reason| format!("not usable: {reason}")));
    }
    for (name, is_there, purpose) in &found.features {
        let state = if *is_there { "built in" } else { "left out of this build" };
        add(&format!("--features {name}"), format!("{state}: {purpose}"));
    }
    for Program { purpose, name, version } in programs {
        let version = version.clone().unwrap_or_else(|| "not found".into());
        add(name, format!("{version} ({purpose})"));
    }
    pairs(lines.iter().map(|(name, words)| (name.as_str(), words.clone())))
}

/// For machines.
pub fn json(found: &Abilities, programs: &[Program]) -> String {
    let Abilities { processor, cores, instructions, memory, available, features, gpus, libraries } = found;
    let feature = |(name, is_there, purpose): &(&str, bool, &str)| json!({ "name": name, "built_in": is_there, "purpose": purpose });
    let library = |(name, version): &(&str, Result<String, String>)| json!({ "name": name, "version": version.as_ref().ok(), "reason": version.as_ref().err() });
    let answer: Value = json!({
        "program": env!("CARGO_PKG_VERSION"),
        "processor": processor,
        "cores": cores,
        "instructions": instructions,
        "memory_bytes": memory,
        "available_bytes": available,
        "gpus": gpus.as_ref().map_or(&[][..], Vec::as_slice),
        "no_gpus_because": gpus.as_ref().err(),
        "libraries": libraries.iter().map(library).collect::<Vec<_>>(),
        "features": features.iter().map(feature).collect::<Vec<_>>(),
        "programs": programs,
    });
    super::json::print(&answer)
}

/// How much the catalog has.
fn catalog_in_words() -> String {
    let [models, gpus, nodes] = ["models", "gpus", "nodes"].map(|kind| catalog::names(kind).len());
    format!("with {models} models, {gpus} GPUs and {nodes} nodes in its catalog")
}
