//! Options by name, and the arguments of the command line that they stand for.

use crate::arguments::Arguments;
use clap::{Arg, ArgAction, Command, CommandFactory};
use serde_json::{Map, Value, json};

/// Commands that train, measure, serve or look around on this machine, and those of a shell: they need a process of their own.
const PROCESSES: [&str; 9] =
    ["run", "generate", "calibrate", "validate", "fleet-run", "serve-bench", "doctor", "completions", "man"];

/// The commands that the library answers.
pub fn commands() -> Vec<String> {
    let names = Arguments::command();
    let names = names.get_subcommands().map(|command| command.get_name().to_string());
    names.filter(|name| !PROCESSES.contains(&name.as_str())).collect()
}

/// The options of a command: `{ "about", "options": [ { "name", "help", "kind", "values", "default", "required" } ] }`.
///
/// `kind` is `flag`, `one`, `several`, `pairs` or `positional`; `values` are the only ones that are allowed, null if there are others.
///
/// # Errors
/// The commands that there are, if this is none of them.
pub fn options(name: &str) -> Result<Value, String> {
    let command = command(name)?;
    let option = |arg: &Arg| {
        let values: Vec<String> =
            arg.get_possible_values().iter().map(|value| value.get_name().to_string()).collect();
        let default: Vec<String> =
            arg.get_default_values().iter().map(|value| value.to_string_lossy().into_owned()).collect();
        let help = arg.get_help().map(|help| help.to_string()).unwrap_or_default();
        json!({
            "name": name_of(arg),
            "help": help,
            "kind": kind(arg),
            "values": (!is_flag(arg) && !values.is_empty()).then_some(values),
            "default": if is_flag(arg) { None } else { default.first() },
            "required": arg.is_required_set(),
        })
    };
    let about = command.get_about().map(|about| about.to_string()).unwrap_or_default();
    let options: Vec<Value> = command.get_arguments().filter(|arg| is_option(arg)).map(option).collect();
    Ok(json!({ "about": about, "options": options }))
}

/// The arguments of the program, its name first. An option that the command does not have is given as it is: the command
/// line then says which one is nearest.
pub fn arguments(name: &str, options: &Map<String, Value>) -> Result<Vec<String>, String> {
    let mut arguments = vec!["trainwright".to_string(), name.into()];
    if command(name)?.get_arguments().any(|arg| arg.get_long() == Some("json")) {
        arguments.push("--json".into());
    }
    arguments.extend(words(&command(name)?, options)?);
    Ok(arguments)
}

/// Options of any command as they are typed.
pub fn typed(name: &str, options: &Map<String, Value>) -> Result<Vec<String>, String> {
    let mut all = Arguments::command();
    all.build();
    words(all.find_subcommand(name).expect("a command that is given is known"), options)
}

fn words(command: &Command, options: &Map<String, Value>) -> Result<Vec<String>, String> {
    let (mut arguments, mut positional) = (Vec::new(), Vec::new());
    for (key, value) in options.iter().filter(|(_, value)| !value.is_null()) {
        let long = key.replace('_', "-");
        let arg = command.get_arguments().find(|arg| match arg.get_long() {
            Some(name) => name == long,
            None => arg.is_positional() && arg.get_id() == key.as_str(),
        });
        match (arg, value) {
            (Some(arg), _) if arg.is_positional() => positional.extend(texts(key, value)?),
            (Some(arg), Value::Bool(given)) if is_flag(arg) => {
                given.then(|| arguments.push(format!("--{long}")));
            }
            (Some(arg), _) if is_flag(arg) => {
                return Err(format!("`--{long}` is {value}; give true or false"));
            }
            (Some(arg), Value::Array(_)) if !is_repeated(arg) => {
                arguments.push(format!("--{long}={}", texts(key, value)?.join(",")));
            }
            (Some(arg), Value::Object(pairs)) => {
                arguments.extend(pairs_of(arg, pairs)?.iter().map(|pair| format!("--{long}={pair}")));
            }
            _ => arguments.extend(texts(key, value)?.iter().map(|text| format!("--{long}={text}"))),
        }
    }
    if !positional.is_empty() {
        arguments.push("--".into());
    }
    arguments.append(&mut positional);
    Ok(arguments)
}

fn command(name: &str) -> Result<Command, String> {
    let known = commands();
    if !known.iter().any(|known| known == name) {
        return Err(format!("there is no command `{name}`; known are {}", known.join(", ")));
    }
    let mut all = Arguments::command();
    all.build();
    Ok(all.find_subcommand(name).expect("it is known").clone())
}

/// Options of the terminal are none of a call.
fn is_option(arg: &Arg) -> bool {
    !["help", "version", "quiet", "format", "json"].contains(&arg.get_id().as_str())
}

fn name_of(arg: &Arg) -> String {
    arg.get_long().map_or_else(|| arg.get_id().to_string(), |long| long.replace('-', "_"))
}

fn kind(arg: &Arg) -> &'static str {
    match arg {
        arg if arg.is_positional() => "positional",
        arg if is_flag(arg) => "flag",
        arg if is_pair(arg, "=") => "pairs",
        arg if is_repeated(arg) => "several",
        _ => "one",
    }
}

fn is_flag(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::SetTrue)
}

fn is_repeated(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::Append)
}

/// Whether the option takes pairs; `ends` is the end of what help calls them.
fn is_pair(arg: &Arg, ends: &str) -> bool {
    let mut names = arg.get_value_names().unwrap_or_default().iter();
    names.any(|name| name.contains('=') && (ends == "=" || name.ends_with(ends)))
}

/// `KEY=VALUE` for each pair. Of several values there is one pair each, unless the option takes `VALUES`.
fn pairs_of(arg: &Arg, pairs: &Map<String, Value>) -> Result<Vec<String>, String> {
    let takes_list = is_pair(arg, "=VALUES");
    let mut all = Vec::new();
    for (key, value) in pairs {
        let values = texts(key, value)?;
        match takes_list {
            true => all.push(format!("{key}={}", values.join(","))),
            false => all.extend(values.iter().map(|value| format!("{key}={value}"))),
        }
    }
    Ok(all)
}

/// A value, or each of a list, as it is typed.
fn texts(key: &str, value: &Value) -> Result<Vec<String>, String> {
    match value {
        Value::String(text) => Ok(vec![text.clone()]),
        Value::Bool(_) | Value::Number(_) => Ok(vec![value.to_string()]),
        Value::Array(values) if values.iter().all(|value| !value.is_array()) => {
            let texts: Vec<Vec<String>> =
                values.iter().map(|value| texts(key, value)).collect::<Result<_, _>>()?;
            Ok(texts.concat())
        }
        other => Err(format!("`{key}` is {other}; give a number, a text, or a list of them")),
    }
}
