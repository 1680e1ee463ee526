//! One file per command: its calls, their order, and its exit code.

pub mod calibrate;
mod chakra;
pub mod compare;
pub mod curves;
pub mod doctor;
pub mod export;
pub mod fit;
pub mod fleet;
pub mod fleet_online;
pub mod fleet_run;
pub mod generate;
pub mod goodput;
pub mod import;
pub mod kernel;
mod kernel_tables;
pub mod network;
mod on_device;
mod other_programs;
mod pictures;
pub mod plan;
pub mod predict;
pub mod profile;
pub mod replay;
pub mod rl;
pub mod run;
pub mod schema;
pub mod serve;
pub mod serve_bench;
pub mod serve_plan;
mod serving_tables;
pub mod shell;
pub mod show;
pub mod simulate;
pub mod stragglers;
pub mod validate;
pub mod what_if;

use crate::arguments::Command;
use crate::error::{CliError, Outcome};

/// Runs a command.
///
/// # Errors
/// Those of the command.
pub fn run(command: Command) -> Result<Outcome, CliError> {
    match command {
        Command::Plan(arguments) => plan::run(&arguments),
        Command::Simulate(arguments) => simulate::run(&arguments),
        Command::Predict(arguments) => predict::run(&arguments),
        Command::Fit(arguments) => fit::run(&arguments),
        Command::Run(arguments) => self::run::run(&arguments),
        Command::Generate(arguments) => generate::run(&arguments),
        Command::Curves(arguments) => curves::run(&arguments),
        Command::Calibrate(arguments) => calibrate::run(&arguments),
        Command::Validate(arguments) => validate::run(&arguments),
        Command::WhatIf(arguments) => what_if::run(&arguments),
        Command::Network(arguments) => network::run(&arguments),
        Command::Kernel(arguments) => kernel::run(&arguments),
        Command::Serve(arguments) => serve::run(&arguments),
        Command::ServePlan(arguments) => serve_plan::run(&arguments),
        Command::Fleet(arguments) => fleet::run(&arguments),
        Command::FleetOnline(arguments) => fleet_online::run(&arguments),
        Command::FleetRun(arguments) => fleet_run::run(&arguments),
        Command::Rl(arguments) => rl::run(&arguments),
        Command::ServeBench(arguments) => serve_bench::run(&arguments),
        Command::Export(arguments) => export::run(&arguments),
        Command::Import(arguments) => import::run(&arguments),
        Command::Compare(arguments) => compare::run(&arguments),
        Command::Profile(arguments) => profile::run(&arguments),
        Command::Replay(arguments) => replay::run(&arguments),
        Command::Stragglers(arguments) => stragglers::run(&arguments),
        Command::Goodput(arguments) => goodput::run(&arguments),
        Command::Schema(arguments) => schema::run(&arguments),
        Command::Completions(arguments) => shell::completions(&arguments),
        Command::Man(arguments) => shell::man(&arguments),
        Command::Show(arguments) => show::run(&arguments),
        Command::Doctor(arguments) => doctor::run(&arguments),
    }
}
