//! `completions` and `man`: a shell's completions and the manual page.

use crate::arguments::{Arguments, CompletionsArguments, ManArguments};
use crate::error::{CliError, Outcome, refuse};
use crate::output;
use clap::CommandFactory;
use clap_mangen::Man;

/// Prints a script that completes the program's arguments.
///
/// # Errors
/// Those of standard output.
pub fn completions(arguments: &CompletionsArguments) -> Result<Outcome, CliError> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut Arguments::command(), "trainwright", &mut script);
    output::print(&String::from_utf8_lossy(&script))?;
    Ok(Outcome::Done)
}

/// Prints the manual page of the program or of one of its commands.
///
/// # Errors
/// `Argument` for a command that does not exist, and those of standard output.
pub fn man(arguments: &ManArguments) -> Result<Outcome, CliError> {
    let mut command = Arguments::command();
    command.build();
    if let Some(name) = &arguments.command {
        let names: Vec<&str> = command.get_subcommands().map(clap::Command::get_name).collect();
        let refused = || refuse("COMMAND", name, format!("known are {}", names.join(", ")));
        let found =
            command.get_subcommands().find(|command| command.get_name() == name).ok_or_else(refused)?;
        command = found.clone().version(env!("CARGO_PKG_VERSION"));
    }
    let mut page = Vec::new();
    let written = Man::new(command).render(&mut page);
    written.map_err(|source| CliError::Writing { argument: "man", path: "-".into(), source })?;
    output::print(&String::from_utf8_lossy(&page))?;
    Ok(Outcome::Done)
}
