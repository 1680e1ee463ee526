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
mod logs;
mod output;
mod progress;
mod rank_serving;
mod render;

use arguments::{Arguments, Command};
use clap::Parser;
use error::{CliError, Outcome};
use std::process::ExitCode;

fn main() -> ExitCode {
    // Before any thread and the driver: both would be too late.
    trainwright_executor::ask_for_queues();
    let outcome = match run() {
        Ok(outcome) => outcome,
        Err(CliError::Usage(error)) if !error.use_stderr() => {
            // Help and version; a reader that closed the pipe has seen enough.
            let _ = error.print();
            Outcome::Done
        }
        Err(error) => {
            output::end_if_interrupted();
            // One line, even if the quoted part of a file has several.
            let line = error.to_string().replace(['\n', '\r'], " ");
            output::say(&format!("error: {line}"));
            error.outcome()
        }
    };
    trainwright_executor::leave_processes();
    ExitCode::from(outcome as u8)
}

fn run() -> Result<Outcome, CliError> {
    let arguments = Arguments::try_parse()?;
    output::be_quiet(arguments.quiet);
    if matches!(arguments.command, Command::Plan(_)) {
        commands::plan::answer_when_interrupted();
    }
    output::leave_nothing_when_interrupted();
    match arguments.command {
        Command::Plan(arguments) => commands::plan::run(&arguments),
        Command::Simulate(arguments) => commands::simulate::run(&arguments),
        Command::Predict(arguments) => commands::predict::run(&arguments),
        Command::Fit(arguments) => commands::fit::run(&arguments),
        Command::Run(arguments) => commands::run::run(&arguments),
        Command::Generate(arguments) => commands::generate::run(&arguments),
        Command::Curves(arguments) => commands::curves::run(&arguments),
        Command::Calibrate(arguments) => commands::calibrate::run(&arguments),
        Command::Validate(arguments) => commands::validate::run(&arguments),
        Command::WhatIf(arguments) => commands::what_if::run(&arguments),
        Command::Network(arguments) => commands::network::run(&arguments),
        Command::Kernel(arguments) => commands::kernel::run(&arguments),
        Command::Serve(arguments) => commands::serve::run(&arguments),
        Command::ServePlan(arguments) => commands::serve_plan::run(&arguments),
        Command::ServeBench(arguments) => commands::serve_bench::run(&arguments),
        Command::Export(arguments) => commands::export::run(&arguments),
        Command::Import(arguments) => commands::import::run(&arguments),
        Command::Compare(arguments) => commands::compare::run(&arguments),
        Command::Profile(arguments) => commands::profile::run(&arguments),
        Command::Replay(arguments) => commands::replay::run(&arguments),
        Command::Stragglers(arguments) => commands::stragglers::run(&arguments),
        Command::Goodput(arguments) => commands::goodput::run(&arguments),
        Command::Completions(arguments) => commands::shell::completions(&arguments),
        Command::Man(arguments) => commands::shell::man(&arguments),
        Command::Show(arguments) => commands::show::run(&arguments),
    }
}
