//! Options that a file or the environment gives to commands that do not name them.
//!
//! ```toml
//! # trainwright.toml
//! cluster = "dgx-h100:16"     # of every command with the option
//! [plan]
//! space = "whole"             # of `plan` alone
//! ```
//!
//! An option of the command line goes before the variable `TRAINWRIGHT_DEFAULT_CLUSTER`, that before the file's table of the command, and
//! that before the file's own keys. What does not go with the command line, as a cluster beside a plan that has one, is left out.

use crate::arguments::Arguments;
use crate::error::CliError;
use crate::library;
use clap::error::ErrorKind;
use clap::{Command, CommandFactory, Parser};
use serde_json::{Map, Value};
use std::path::Path;
use trainwright_spec::catalog::nearest;

/// Names another file than `trainwright.toml`; empty: no defaults.
pub const FILE: &str = "TRAINWRIGHT_DEFAULTS";

/// What the names of variables of single options begin with.
const PREFIX: &str = "TRAINWRIGHT_DEFAULT_";

/// The file that is read where it is there.
const USUAL: &str = "trainwright.toml";

/// A command line with its defaults.
pub struct Given {
    /// All arguments, the program's name first.
    pub arguments: Vec<String>,
    /// Those that are defaults, and where they are from; empty without any.
    pub remark: String,
}

/// The command line, with the defaults of the environment and of a file.
///
/// # Errors
/// A file that cannot be read, or that has keys which are no options.
pub fn given(arguments: Vec<String>) -> Result<Given, CliError> {
    let plain = |arguments| Ok(Given { arguments, remark: String::new() });
    let all = Arguments::command();
    // The first word that is neither an option nor a format.
    let is_command = |at: &usize| !arguments[*at].starts_with('-') && arguments[*at - 1] != "--format";
    let at = (1..arguments.len()).find(is_command);
    let Some((at, command)) = at.and_then(|at| Some((at, all.find_subcommand(&arguments[at])?))) else {
        return plain(arguments);
    };
    let file = std::env::var(FILE).ok();
    if file.as_deref() == Some("") {
        return plain(arguments);
    }
    let mut options = match file.as_deref().or(Path::new(USUAL).exists().then_some(USUAL)) {
        Some(path) => of_file(path, &all, command)?,
        None => Map::new(),
    };
    options.extend(of_environment(command));
    let (mut line, mut added) = (arguments, Vec::new());
    for (key, value) in options {
        let long = format!("--{}", key.replace('_', "-"));
        let is_given = |word: &String| *word == long || word.starts_with(&format!("{long}="));
        if line[at..].iter().any(is_given) {
            continue;
        }
        let one = Map::from_iter([(key, value)]);
        let words =
            library::typed(command.get_name(), &one).map_err(|message| CliError::Defaults { message })?;
        let mut with = line.clone();
        with.splice(at + 1..at + 1, words.iter().cloned());
        let conflicts =
            Arguments::try_parse_from(&with).is_err_and(|error| error.kind() == ErrorKind::ArgumentConflict);
        if !conflicts {
            (line, added) = (with, [added, words].concat());
        }
    }
    let remark = if added.is_empty() { String::new() } else { format!("by default {}", added.join(" ")) };
    Ok(Given { arguments: line, remark })
}

/// The options that a file has for a command.
fn of_file(path: &str, all: &Command, command: &Command) -> Result<Map<String, Value>, CliError> {
    let failed = |source| CliError::Reading { argument: Some(FILE), path: path.into(), source };
    let text = std::fs::read_to_string(path).map_err(failed)?;
    let fault = |message: String| CliError::Defaults { message: format!("{path}: {message}") };
    let table: Map<String, Value> =
        toml::from_str(&text).map_err(|error| fault(error.message().replace('\n', " ")))?;
    let (tables, mut options): (Map<_, _>, Map<_, _>) =
        table.into_iter().partition(|(_, value)| value.is_object());
    for key in options.keys() {
        if !all.get_subcommands().any(|command| has(command, key)) {
            return Err(fault(unknown(key, all.get_subcommands())));
        }
    }
    options.retain(|key, _| has(command, key));
    for (name, table) in tables {
        let Some(of) = all.find_subcommand(&name) else {
            let near = nearest(&name, all.get_subcommands().map(Command::get_name));
            return Err(fault(format!("`[{name}]` is no command; the nearest are {}", near.join(", "))));
        };
        for (key, value) in table.as_object().into_iter().flatten() {
            if !has(of, key) {
                return Err(fault(unknown(&format!("{name}.{key}"), [of].into_iter())));
            }
            if name == command.get_name() {
                options.insert(key.clone(), value.clone());
            }
        }
    }
    Ok(options)
}

/// The options that variables give to a command.
fn of_environment(command: &Command) -> Map<String, Value> {
    let option = |(name, value): (String, String)| {
        let key = name.strip_prefix(PREFIX)?.to_lowercase();
        let value = value.parse().map_or(Value::String(value), Value::Bool);
        has(command, &key).then_some((key, value))
    };
    let mut options: Vec<(String, Value)> = std::env::vars().filter_map(option).collect();
    options.sort_by(|one, other| one.0.cmp(&other.0));
    options.into_iter().collect()
}

/// Whether a command has the option with that key.
fn has(command: &Command, key: &str) -> bool {
    let long = key.replace('_', "-");
    command.get_arguments().any(|option| option.get_long() == Some(&long))
}

fn unknown<'a>(key: &str, commands: impl Iterator<Item = &'a Command>) -> String {
    let options: Vec<String> = commands
        .flat_map(|command| command.get_arguments().filter_map(|option| option.get_long()))
        .map(|long| long.replace('-', "_"))
        .collect();
    let last = key.rsplit('.').next().unwrap_or(key);
    match nearest(last, options.iter().map(String::as_str)).as_slice() {
        [] => format!("`{key}` is no option"),
        near => {
            let mut near = near.to_vec();
            near.dedup();
            format!("`{key}` is no option; the nearest are {}", near.join(", "))
        }
    }
}
