//! A process of a run whose supervisor may start it again: where it begins, and how it hears of signals.

use crate::error::{CliError, refuse};
use crate::output;
use std::io::{ErrorKind, Read, stdin};
use std::path::Path;
use trainwright_executor::{RunError, Settings, Start, last_checkpoint};

/// The variable of a supervised process: how often the run was started again before.
pub const ATTEMPT: &str = "TRAINWRIGHT_ATTEMPT";

/// The variable of a supervised process with the file of its plan, where that is another than the command's.
pub const PLAN: &str = "TRAINWRIGHT_PLAN";

/// The file of a run's plan: that of the attempt, else the command's.
pub fn plan(attempt: Option<usize>, given: &str) -> String {
    attempt.and_then(|_| std::env::var(PLAN).ok()).unwrap_or_else(|| given.into())
}

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

/// The error of an attempt of rank `rank`. Another attempt may go well where ranks did not go on from the same checkpoint,
/// since one began before rank 0 had finished its last one, and where the device of a rank was there before.
pub fn error(attempt: Option<usize>, rank: usize, error: RunError) -> CliError {
    match (attempt, error) {
        (Some(_), error) if error.is_of_peer(rank) => CliError::OfPeer(error),
        (Some(1..), error @ (RunError::Differs { .. } | RunError::Device { .. })) => {
            CliError::OfAttempt(error)
        }
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
    use trainwright_executor::Fault;

    #[test]
    fn an_error_is_of_the_input_of_the_attempt_of_this_rank_or_of_another() {
        let check = |attempt, error_of_run, expected| {
            assert_eq!(error(attempt, 1, error_of_run).outcome(), expected);
        };
        let differs = || RunError::Differs { rank: 1, differences: "`start` is step 2".into() };
        check(None, differs(), Outcome::BadInput);
        check(Some(0), differs(), Outcome::BadInput);
        check(Some(1), differs(), Outcome::Failure);
        check(Some(1), RunError::Data("none".into()), Outcome::BadInput);
        let device = || RunError::Device { name: "cuda", reason: "there is no GPU 1".into() };
        check(Some(0), device(), Outcome::BadInput);
        check(Some(1), device(), Outcome::Failure);
        let stopped = |rank, fault| RunError::Rank { rank, step: 3, op: "start".into(), fault };
        let panic = || Fault::Panic("a drill".into());
        check(Some(0), stopped(1, panic()), Outcome::Failure);
        check(Some(0), stopped(0, panic()), Outcome::PeerFailed);
        check(Some(0), stopped(1, Fault::Aborted), Outcome::PeerFailed);
        check(Some(0), stopped(1, Fault::Lost { rank: 0, how: "closed".into() }), Outcome::PeerFailed);
        // Without a supervisor nobody asks who it was.
        check(None, stopped(0, panic()), Outcome::Failure);
        check(Some(0), stopped(0, Fault::NotFinite { what: "a gradient" }), Outcome::Diverged);
    }
}
