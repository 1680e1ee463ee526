//! The commands: read arguments and files, call the libraries, answer.
//!
//! ```text
//! arguments ─► inputs ─► commands ─► planner, sim, spec
//!                           └─► render ─► output
//! ```
//!
//! [`main`] runs them as a program, with its streams and signals. [`answer`] runs one of them for a caller of this library,
//! such as the Python package: it prints nothing, and gives back what the program would print.

mod arguments;
mod calls;
mod commands;
mod defaults;
mod error;
mod fleet_run;
mod inputs;
mod library;
mod logs;
mod output;
mod progress;
mod rank_serving;
mod render;

pub use calls::Watch;
pub use library::{Answer, Failure, Request, answer, commands, options, toml_of};

use arguments::{Arguments, Command};
use clap::Parser;
use error::{CliError, Outcome};
use std::process::ExitCode;

/// The program `trainwright`: runs the command of the process's arguments.
pub fn main() -> ExitCode {
    // Before any thread and the driver: both would be too late.
    trainwright_executor::ask_for_queues();
    say_nothing_of_contained_panics();
    let outcome = match run() {
        Ok(outcome) => outcome,
        Err(CliError::Usage(error)) if !error.use_stderr() => {
            // Help and version; a reader that closed the pipe has seen enough.
            let _ = error.print();
            Outcome::Done
        }
        Err(error) => {
            output::end_if_interrupted();
            output::say(&format!("error: {}", error.line()));
            error.outcome()
        }
    };
    trainwright_executor::leave_processes();
    ExitCode::from(outcome as u8)
}

/// Panics that become errors are told as such.
fn say_nothing_of_contained_panics() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if !trainwright_executor::is_contained() {
            usual(panic);
        }
    }));
}

fn run() -> Result<Outcome, CliError> {
    let words: Vec<std::ffi::OsString> = std::env::args_os().collect();
    // Arguments that are not UTF-8 (paths) go to the parser as they are, without defaults.
    let texts: Option<Vec<String>> = words.iter().map(|word| word.to_str().map(String::from)).collect();
    let (arguments, remark) = match texts.map(|texts| defaults::given(output::as_json(texts))).transpose()? {
        Some(given) => (Arguments::try_parse_from(given.arguments)?, given.remark),
        None => (Arguments::try_parse_from(words)?, String::new()),
    };
    output::be_quiet(arguments.quiet);
    output::write_tables_as(arguments.format.as_deref());
    if !remark.is_empty() && std::env::var_os(commands::run::ATTEMPT).is_none() {
        output::remark(&remark);
    }
    if matches!(arguments.command, Command::Plan(_)) {
        commands::plan::answer_when_interrupted();
    }
    output::leave_nothing_when_interrupted();
    commands::run(arguments.command)
}
