//! `run --launch` and `run --restarts`: starts the processes of a run, and starts all of them again after one has died.
//!
//! ```text
//! supervisor ── starts, with TRAINWRIGHT_ATTEMPT ──► the process of each rank, or one whose threads are the ranks
//!     │ ▲─────────────── exit status ────────────────────┘ ▲
//!     └── a pipe to its standard input: a byte is a signal to end; its end means that the supervisor is gone
//! ```
//!
//! The supervisor reads no data and trains nothing. It knows of a run what its processes' exit codes and its folder of
//! checkpoints say. A stuck rank is found by the run's own heartbeats, which end its process.

use super::elastic::Crew;
use super::supervised::{ATTEMPT, PLAN};
use crate::arguments::{RunArguments, TransportChoice};
use crate::error::{CliError, Outcome, refuse};
use crate::{inputs, output};
use std::collections::BTreeSet;
use std::io::Write;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use trainwright_executor::{Token, last_checkpoint};

/// Between two looks at the processes.
const INTERVAL: Duration = Duration::from_millis(20);

/// The longest time after which a process whose peers are gone notices it, and half of that to end.
const LONGEST_END: Duration = Duration::from_secs(20);

/// Whether the arguments ask for a supervisor.
pub fn is_wanted(arguments: &RunArguments) -> bool {
    arguments.launch || arguments.restarts > 0
}

/// Runs the command in processes of its own.
///
/// # Errors
/// Arguments that do not go together, and processes that cannot be started.
pub fn run(arguments: &RunArguments) -> Result<Outcome, CliError> {
    check(arguments)?;
    let mut crew = match arguments.launch {
        true => Some(Crew::new(inputs::plan(&arguments.plan, &[], None)?, arguments)?),
        false => None,
    };
    let pipes = Arc::new(Mutex::new(Pipes::default()));
    let signalled = Arc::clone(&pipes);
    output::when_interrupted(move || lock(&signalled).interrupt());
    let grace = Duration::from_secs(arguments.patience as u64).min(LONGEST_END) * 3 / 2;
    for attempt in 0.. {
        let mut processes = start(crew.as_ref(), attempt, &pipes)?;
        let (ends, hung) = wait(&mut processes, grace);
        let outcome = outcome(&ends);
        let is_interrupted = lock(&pipes).close();
        if outcome != Outcome::Failure || is_interrupted {
            return Ok(outcome);
        }
        let why = killed(&ends).map_or_else(String::new, |why| format!(": {why}"));
        if attempt == arguments.restarts {
            output::say(&format!("error: the run failed, after {attempt} restarts{why}"));
            return Ok(outcome);
        }
        if crew.is_none() && inputs::launched::transport(arguments.transport) == TransportChoice::Tcp {
            // Ranks that other supervisors started end meanwhile, and rank 0 may finish a checkpoint.
            std::thread::sleep(grace);
        }
        if let (Some(crew), Some(least)) = (&mut crew, arguments.elastic)
            && let Some(change) = crew.after(&at_fault(&ends, &hung), least)?
        {
            output::remark(&change);
        }
        let saved = arguments.save.as_deref().and_then(|folder| last_checkpoint(Path::new(folder)));
        let from = saved.map_or("the beginning".into(), |step| format!("step {step}"));
        let (next, most) = (attempt + 1, arguments.restarts);
        output::remark(&format!("restart {next} of {most} from {from}{why}"));
    }
    unreachable!("some attempt is the last one")
}

/// Refuses what a process that is started again would not find again, and ranks that somebody else starts.
fn check(arguments: &RunArguments) -> Result<(), CliError> {
    let asked = if arguments.launch { "--launch" } else { "--restarts" };
    let inputs = [Some(&arguments.plan), arguments.data.validation_data.as_ref()];
    if inputs.into_iter().flatten().chain(&arguments.data.data).any(|path| path == "-") {
        let allowed = format!("`{asked}` starts other processes, which have no standard input: name a file");
        return Err(refuse("-", "standard input", allowed));
    }
    let transport = inputs::launched::transport(arguments.transport);
    if transport == TransportChoice::Mpi {
        let allowed =
            "MPI starts its processes itself and ends all with the first: start them again with --resume";
        return Err(refuse("--transport", "mpi", allowed));
    }
    match inputs::launched::rank_variable() {
        Some(name) if arguments.launch => {
            let allowed = "it starts the processes of all ranks itself: leave one of them out";
            Err(refuse("--launch", format!("given where a launcher has set {name}"), allowed))
        }
        _ => Ok(()),
    }
}

/// The standard inputs of the processes, and the number of signals to end.
#[derive(Default)]
struct Pipes {
    signals: usize,
    inputs: Vec<ChildStdin>,
}

impl Pipes {
    /// Hands a signal on; false if there is no process that could end.
    fn interrupt(&mut self) -> bool {
        self.signals += 1;
        // A process that has ended does not read any more.
        self.inputs.iter_mut().for_each(|input| drop(input.write_all(b"e")));
        !self.inputs.is_empty()
    }

    /// All processes have ended; whether there was a signal.
    fn close(&mut self) -> bool {
        self.inputs.clear();
        self.signals > 0
    }
}

fn lock(pipes: &Mutex<Pipes>) -> MutexGuard<'_, Pipes> {
    pipes.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts the processes of an attempt: one for each rank of a crew, or one alone.
fn start(crew: Option<&Crew>, attempt: usize, pipes: &Mutex<Pipes>) -> Result<Vec<Child>, CliError> {
    let failed = |error: std::io::Error| CliError::Starting { reason: error.to_string() };
    let place = crew.map(Place::new).transpose().map_err(failed)?;
    let program = std::env::current_exe().map_err(failed)?;
    // A signal waits until it finds all processes.
    let mut pipes = lock(pipes);
    let mut processes: Vec<Child> = Vec::new();
    for rank in 0..crew.map_or(1, Crew::ranks) {
        let mut command = Command::new(&program);
        command.args(std::env::args_os().skip(1)).env(ATTEMPT, attempt.to_string()).stdin(Stdio::piped());
        // The supervisor alone gets the terminal's Ctrl-C, and hands it on once.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        if let Some(place) = &place {
            command.envs(place.variables(rank));
        }
        match command.spawn() {
            Ok(mut process) => {
                pipes.inputs.extend(process.stdin.take());
                processes.push(process);
            }
            Err(error) => {
                kill(&mut processes);
                return Err(failed(error));
            }
        }
    }
    Ok(processes)
}

/// Where the processes of this machine find each other, and what strangers do not know.
struct Place<'a> {
    crew: &'a Crew,
    port: u16,
    token: Token,
}

impl<'a> Place<'a> {
    /// A free port and a new secret.
    fn new(crew: &'a Crew) -> std::io::Result<Self> {
        let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
        Ok(Self { crew, port, token: Token::random()? })
    }

    /// The variables of a rank's process, by torchrun's names.
    fn variables(&self, rank: usize) -> Vec<(&'static str, String)> {
        let ranks = self.crew.ranks().to_string();
        let mut variables = vec![
            ("RANK", rank.to_string()),
            ("LOCAL_RANK", self.crew.local_rank(rank).to_string()),
            ("WORLD_SIZE", ranks.clone()),
            ("LOCAL_WORLD_SIZE", ranks),
            ("MASTER_ADDR", "127.0.0.1".into()),
            ("MASTER_PORT", self.port.to_string()),
            (inputs::launched::TOKEN, self.token.secret().into()),
        ];
        variables.extend(self.crew.plan_file().map(|file| (PLAN, file.into())));
        variables
    }
}

/// The ends of all processes, and which of them this had to kill: after the first that fails, the others have `grace` to
/// notice it and to say why.
fn wait(processes: &mut [Child], grace: Duration) -> (Vec<ExitStatus>, BTreeSet<usize>) {
    let mut failed: Option<Instant> = None;
    let mut hung = BTreeSet::new();
    loop {
        // A process that cannot be waited for is one that was waited for: its status is kept.
        let ends: Vec<Option<ExitStatus>> =
            processes.iter_mut().map(|process| process.try_wait().ok().flatten()).collect();
        if ends.iter().flatten().any(|end| !end.success()) {
            let since = failed.get_or_insert_with(Instant::now);
            if since.elapsed() > grace {
                hung.extend((0..ends.len()).filter(|process| ends[*process].is_none()));
                kill(processes);
            }
        }
        if let Some(ends) = ends.into_iter().collect() {
            return (ends, hung);
        }
        std::thread::sleep(INTERVAL);
    }
}

/// The ranks whose processes failed or were killed by others; if there is none, those that hung.
fn at_fault(ends: &[ExitStatus], hung: &BTreeSet<usize>) -> BTreeSet<usize> {
    let failed = |end: &ExitStatus| end.code().is_none_or(|code| code == Outcome::Failure as i32);
    let failed = (0..ends.len()).filter(|rank| failed(&ends[*rank]) && !hung.contains(rank));
    let failed: BTreeSet<usize> = failed.collect();
    if failed.is_empty() { hung.clone() } else { failed }
}

fn kill(processes: &mut [Child]) {
    // One that has ended meanwhile is no fault.
    processes.iter_mut().for_each(|process| drop(process.kill()));
}

/// How a run ends: what a restart would not change comes before a failure.
fn outcome(ends: &[ExitStatus]) -> Outcome {
    use Outcome::{BadInput, Diverged, Done, Interrupted, NothingFits};
    let ended = |outcome: &Outcome| ends.iter().any(|end| end.code() == Some(*outcome as i32));
    match ends.iter().all(ExitStatus::success) {
        true => Done,
        false => {
            [Interrupted, BadInput, NothingFits, Diverged].into_iter().find(ended).unwrap_or(Outcome::Failure)
        }
    }
}

/// Which process ended without having said why.
fn killed(ends: &[ExitStatus]) -> Option<String> {
    let (rank, end) = ends.iter().enumerate().find(|(_, end)| end.code().is_none())?;
    let of = if ends.len() > 1 { format!(" of rank {rank}") } else { String::new() };
    Some(format!("the process{of} ended with {end}"))
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    #[test]
    fn the_rank_at_fault_is_the_one_that_failed_or_was_killed_and_only_else_one_that_hung() {
        // As the system reports them.
        let (failed, peer_failed, killed) = (1 << 8, 5 << 8, 9);
        let check = |ends: &[i32], hung: &[usize], expected: &[usize]| {
            let ends: Vec<ExitStatus> = ends.iter().map(|end| ExitStatus::from_raw(*end)).collect();
            let at_fault = at_fault(&ends, &hung.iter().copied().collect());
            assert_eq!(at_fault.into_iter().collect::<Vec<_>>(), expected, "{ends:?}");
            assert_eq!(outcome(&ends), Outcome::Failure);
        };
        check(&[peer_failed, killed, peer_failed], &[], &[1]);
        check(&[failed, peer_failed], &[], &[0]);
        // Stopped by a signal: the supervisor kills it.
        check(&[peer_failed, peer_failed, killed], &[2], &[2]);
        // Too slow to notice that rank 0 is gone.
        check(&[killed, peer_failed, killed], &[2], &[0]);
        // The network between them.
        check(&[peer_failed, peer_failed], &[], &[]);
    }
}
