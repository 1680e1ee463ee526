//! `doctor`: what this build can do on this machine.

use crate::arguments::DoctorArguments;
use crate::error::{CliError, Outcome};
use crate::output;
use crate::render::doctor::{Program, json, page};
use std::process::Command;
use trainwright_executor::abilities;

/// Programs of this machine that commands or the ways to start ranks use: what for, the program, and how it tells its version.
const PROGRAMS: [(&str, &str, &str); 4] = [
    ("ranks by MPI", "mpirun", "--version"),
    ("ranks on several machines", "srun", "--version"),
    ("the emulated GPU", "c++", "--version"),
    ("the Python package", "python3", "--version"),
];

/// Prints what it finds.
///
/// # Errors
/// Those of standard output.
pub fn run(arguments: &DoctorArguments) -> Result<Outcome, CliError> {
    let found = abilities();
    let programs =
        PROGRAMS.map(|(purpose, name, option)| Program { purpose, name, version: version(name, option) });
    output::print(&if arguments.json { json(&found, &programs) } else { page(&found, &programs) })?;
    Ok(Outcome::Done)
}

/// The first line that a program prints of its version; `None` if it does not start.
fn version(name: &str, option: &str) -> Option<String> {
    let ran = Command::new(name).arg(option).output().ok().filter(|ran| ran.status.success())?;
    let text = String::from_utf8_lossy(&ran.stdout).into_owned();
    Some(text.lines().next().unwrap_or_default().trim().to_string())
}
