//! The command line: reads arguments and files, calls the libraries, prints.
//!
//! ```text
//! arguments ─► inputs ─► commands ─► planner, sim, spec
//!                           └─► render ─► output
//! ```

mod arguments;
mod commands;
mod error;
mod inputs;
mod output;
mod progress;
mod render;

use arguments::{Arguments, Command};
use clap::Parser;
use error::{CliError, Outcome};
use std::process::ExitCode;

fn main() -> ExitCode {
    let outcome = match run() {
        Ok(outcome) => outcome,
        Err(CliError::Usage(error)) if !error.use_stderr() => {
            // Help and version; a reader that closed the pipe has seen enough.
            let _ = error.print();
            Outcome::Done
        }
        Err(error) => {
            output::say(&format!("error: {error}"));
            error.outcome()
        }
    };
    ExitCode::from(outcome as u8)
}

fn run() -> Result<Outcome, CliError> {
    match Arguments::try_parse()?.command {
        Command::Plan(arguments) => commands::plan::run(&arguments),
        Command::Simulate(arguments) => commands::simulate::run(&arguments),
        Command::Run(arguments) => commands::run::run(&arguments),
        Command::Network(arguments) => commands::network::run(&arguments),
        Command::Show(arguments) => commands::show::run(&arguments),
    }
}
