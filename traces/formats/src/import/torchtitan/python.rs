//! torchtitan's configuration from version 0.3 on: functions of Python that return a `Trainer.Config`.
//!
//! Only calls with literal arguments, assignments of literals and calls of other functions of the file are read.

use super::super::Request;
use super::super::tables::set;
use crate::export::FLAVORS;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use trainwright_spec::error::SpecError;

/// Whether a text is Python rather than TOML.
pub fn is_python(text: &str) -> bool {
    text.contains("Trainer.Config")
}

/// How many functions may call each other.
const DEEPEST: usize = 16;

/// The tables of the function that `--set config=NAME` names, or of the only one, with the keys of the TOML files.
///
/// # Errors
/// `MissingKey` with the functions of the file if there are several.
pub fn tables(request: &Request) -> Result<Value, SpecError> {
    let functions = functions(request.text);
    let named = request.settings.iter().find(|(key, _)| key == "config").map(|(_, name)| name.as_str());
    let names = || functions.keys().cloned().collect::<Vec<String>>().join(", ");
    let name = match (named, functions.len()) {
        (Some(name), _) if functions.contains_key(name) => name.to_string(),
        (Some(name), _) => {
            return Err(request.bad_text("config", name, format!("a function of {}", names())));
        }
        (None, 1) => functions.keys().next().cloned().unwrap_or_default(),
        (None, _) => return Err(request.missing("config", format!("--set config=NAME, one of {}", names()))),
    };
    let mut root = Value::Object(Map::new());
    read(request.text, &functions, &name, &mut root, 0);
    set(&mut root, "config", Value::String(name));
    Ok(root)
}

/// The functions that make a configuration, with their bodies.
fn functions(text: &str) -> BTreeMap<String, String> {
    let mut functions = BTreeMap::new();
    let mut current: Option<(String, String)> = None;
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("def ") {
            functions.extend(current.take());
            let name = rest.split('(').next().unwrap_or_default();
            current = Some((name.to_string(), String::new()));
        } else if line.starts_with(|letter: char| !letter.is_whitespace() && letter != ')' && letter != '#') {
            functions.extend(current.take());
        } else if let Some((_, body)) = &mut current {
            body.push_str(line.split(" #").next().unwrap_or_default());
            body.push('\n');
        }
    }
    functions.extend(current);
    functions.retain(|_, body| {
        body.contains("Trainer.Config") || body.contains("config = ") || body.contains("config.")
    });
    functions
}

fn read(text: &str, functions: &BTreeMap<String, String>, name: &str, root: &mut Value, depth: usize) {
    let Some(body) = functions.get(name).filter(|_| depth < DEEPEST) else { return };
    for line in body.lines().map(str::trim) {
        if let Some(other) = line.strip_prefix("config = ").and_then(|call| call.strip_suffix("()")) {
            read(text, functions, other, root, depth + 1);
        }
    }
    if let Some(arguments) = call(body, "model_registry(") {
        let flavor = arguments.first().and_then(|argument| literal(argument)).unwrap_or(Value::Null);
        set(root, "model.flavor", flavor);
        set(root, "model.name", Value::String(module(text, name)));
    }
    let converters: Vec<&str> =
        [("Float8Linear", "quantize.linear.float8"), ("MXFP8Linear", "quantize.linear.mx")]
            .into_iter()
            .filter(|(class, _)| body.contains(&format!("{class}Converter")))
            .map(|(_, name)| name)
            .collect();
    if !converters.is_empty() {
        set(root, "model.converters", json!(converters));
    }
    for (class, section) in [
        ("TrainingConfig(", "training"),
        ("ParallelismConfig(", "parallelism"),
        ("CompileConfig(", "compile"),
    ] {
        for argument in call(body, class).unwrap_or_default() {
            if let Some((key, value)) = argument.split_once('=') {
                let value = literal(value).unwrap_or(Value::Null);
                set(root, &format!("{section}.{}", key.trim()), value);
            }
        }
    }
    let compile = call(body, "CompileConfig(").unwrap_or_default();
    if compile.iter().any(|argument| argument.replace(' ', "") == "enable_async_tensor_parallel=True") {
        set(root, "parallelism.enable_async_tensor_parallel", Value::Bool(true));
    }
    let policy = ["FullAC.Config(", "SelectiveAC.Config(", "activation_checkpoint=None"]
        .iter()
        .position(|name| body.contains(name));
    // Without one it is selective.
    let mode = match policy {
        Some(0) => "full",
        Some(2) => "none",
        _ => "selective",
    };
    if policy.is_some() || depth == 0 && root.pointer("/activation_checkpoint/mode").is_none() {
        set(root, "activation_checkpoint.mode", mode.into());
        set(root, "activation_checkpoint.selective_ac_option", "op".into());
    }
    for line in body.lines().map(str::trim) {
        let assigned = line.strip_prefix("config.").and_then(|rest| rest.split_once(" = "));
        if let Some((path, value)) = assigned
            && ["training.", "parallelism.", "compile."].iter().any(|section| path.starts_with(section))
            && let Some(value) = literal(value)
        {
            set(root, path, value);
        }
    }
}

/// The package of the registry: imported by name, or the beginning of the function's name.
fn module(text: &str, function: &str) -> String {
    let imported = text.lines().find_map(|line| {
        let rest = line.strip_prefix("from torchtitan.models.")?;
        rest.strip_suffix(" import model_registry")
    });
    let known = || FLAVORS.iter().map(|flavor| flavor.name.0).find(|name| function.starts_with(name));
    imported.or_else(known).unwrap_or(function).to_string()
}

/// The arguments of the first call, split at its commas.
fn call(body: &str, name: &str) -> Option<Vec<String>> {
    let start = body.find(name)? + name.len();
    let mut arguments = Vec::new();
    let (mut depth, mut quoted, mut current) = (0usize, false, String::new());
    for letter in body[start..].chars() {
        match letter {
            '"' => quoted = !quoted,
            '(' | '[' | '{' if !quoted => depth += 1,
            ')' | ']' | '}' if !quoted && depth == 0 => break,
            ')' | ']' | '}' if !quoted => depth -= 1,
            ',' if !quoted && depth == 0 => {
                arguments.push(std::mem::take(&mut current).trim().to_string());
                continue;
            }
            _ => {}
        }
        current.push(letter);
    }
    arguments.push(current.trim().to_string());
    arguments.retain(|argument| !argument.is_empty());
    Some(arguments)
}

/// A literal of Python that is one of JSON too, but for the names of its constants.
fn literal(text: &str) -> Option<Value> {
    match text.trim() {
        "True" => Some(Value::Bool(true)),
        "False" => Some(Value::Bool(false)),
        "None" => Some(Value::Null),
        other => serde_json::from_str(&other.replace(",]", "]").replace('\'', "\"")).ok(),
    }
}
