//! A process of a run whose supervisor may start it again: where it begins, and how it hears of signals.

use crate::error::{CliError, refuse};
use crate::output;
use std::io::{ErrorKind, Read, stdin};
use std::path::Path;
use trainwright_executor::{RunError, Settings, Start, last_checkpoint};

/// The variable of a supervised process: how often the run was started again before.
pub const ATTEMPT: &str = "TRAINWRIGHT_ATTEMPT";

/// How often a supervisor has started this run again; `None` if nobody supervises this process.
///
/// # Errors
/// `Argument` if the variable is no number.
pub fn attempt() -> Result<Option<usize>, CliError> {
    let Ok(text) = std::env::var(ATTEMPT) else { return Ok(None) };
    let attempt = text.parse().map_err(|_| {
        refuse("--restarts", &text, format!("{ATTEMPT} is a number that the program sets itself: unset it"))
    })?;
    Ok(Some(attempt))
}

/// The settings of an attempt. A later one goes on from the last checkpoint, if there is one, and has no drill: the fault
/// has happened.
pub fn settings(attempt: usize, settings: Settings) -> Settings {
    let saved = settings.saving.as_ref().map(|saving| saving.folder.as_path());
    match (attempt, saved) {
        (0, _) => settings,
        (_, Some(folder)) if last_checkpoint(folder).is_some() => {
            Settings { start: Start::Resume(folder.into()), fault: None, ..settings }
        }
        _ => Settings { fault: None, ..settings },
    }
}

/// Whether an earlier attempt has saved the last step, so that nothing is left to do.
pub fn is_complete(attempt: usize, settings: &Settings) -> bool {
    let saved = settings.saving.as_ref().and_then(|saving| last_checkpoint(Path::new(&saving.folder)));
    attempt > 0 && saved >= Some(settings.steps)
}

/// The error of an attempt. Where each host has a supervisor, a rank may begin again before rank 0 has finished its last
/// checkpoint, and find an earlier one: that differs in this attempt alone.
pub fn error(attempt: Option<usize>, error: RunError) -> CliError {
    match (attempt, error) {
        (Some(1..), error @ RunError::Differs { .. }) => CliError::Disagreement(error),
        (_, error) => CliError::Run(error),
    }
}

/// Takes each byte on standard input, and its end, as a signal to end: the supervisor writes one for each that it gets,
/// and the end means that the supervisor is gone.
pub fn listen_to_supervisor() {
    let listen = || {
        loop {
            match stdin().read(&mut [0]) {
                Ok(1) => output::interrupt(),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                _ => return output::interrupt(),
            }
        }
    };
    // A process that cannot have this thread cannot have those of its ranks either, and says so.
    let _ = std::thread::Builder::new().name("supervisor".into()).spawn(listen);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Outcome;

    #[test]
    fn only_later_attempts_may_try_again_after_they_differ() {
        let differs = || RunError::Differs { rank: 1, differences: "`start` is step 2".into() };
        let check = |attempt, expected| assert_eq!(error(attempt, differs()).outcome(), expected);
        check(None, Outcome::BadInput);
        check(Some(0), Outcome::BadInput);
        check(Some(1), Outcome::Failure);
        let data = RunError::Data("none".into());
        assert_eq!(error(Some(1), data).outcome(), Outcome::BadInput);
    }
}
