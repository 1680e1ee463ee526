//! Everything that ends the program early, each as one line and with its exit code.

use crate::arguments::Arguments;
use clap::CommandFactory;
use clap::error::ErrorKind;
use std::io;
use thiserror::Error;
use trainwright_evidence::kernels::KernelTableError;
use trainwright_evidence::runs::TableError;
use trainwright_evidence::serving::ServingTableError;
use trainwright_executor::{Fault, RunError};
use trainwright_fleet::instance::FleetError;
use trainwright_fleet::jobs::JobFileError;
use trainwright_fleet::online::OnlineError;
use trainwright_formats::chakra::ChakraError;
use trainwright_formats::kineto::KinetoError;
use trainwright_formats::nccl_tests::LogError;
use trainwright_formats::nsight::NsightError;
use trainwright_planner::PlannerError;
use trainwright_sim::Deadlock;
use trainwright_sim::replay::ReplayError;
use trainwright_sim::serving::ServingError;
use trainwright_spec::error::SpecError;
use trainwright_whatif::stragglers::StragglerError;

/// Letters of a message at most. The longest list of names has half of it.
const LONGEST_LINE: usize = 4000;

/// How the program ends; the number is its exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The answer was printed or written.
    Done = 0,
    /// A file could not be written, or the program is wrong.
    Failure = 1,
    /// An argument or a file cannot be read or says something that makes no sense.
    BadInput = 2,
    /// The plan, or every plan, needs more memory than the GPUs or this host have; or there is none to try, or no time for it.
    NothingFits = 3,
    /// A number of a training is not finite: the same steps again would give it again.
    Diverged = 4,
    /// Another rank stopped this one: of a supervised process alone, so that its supervisor knows that this rank is well.
    PeerFailed = 5,
    /// A signal ended a run early, with a checkpoint.
    Interrupted = 130,
}

/// Why there is no answer. The message is one line, without the leading `error:`.
#[derive(Debug, Error)]
pub enum CliError {
    /// Arguments that clap does not accept; also `--help`, which is not an error.
    #[error("{}", one_line(.0))]
    Usage(#[from] clap::Error),
    /// Defaults that are none.
    #[error("{message}")]
    Defaults {
        /// File, key and what is allowed.
        message: String,
    },
    /// An argument with a value that does not suit the others.
    #[error("`{argument}` is {value}; {allowed}")]
    Argument {
        /// As it is typed: `--tensor`.
        argument: String,
        /// The given value.
        value: String,
        /// The allowed values.
        allowed: String,
    },
    /// A file that cannot be read.
    #[error("{}cannot read {path}: {}", prefix(.argument), reason(.source))]
    Reading {
        /// Which argument named it, if it has a name.
        argument: Option<&'static str>,
        /// The file as it was given.
        path: String,
        /// The system's error.
        source: io::Error,
    },
    /// A file that cannot be written.
    #[error("{argument}: cannot write {path}: {}", reason(.source))]
    Writing {
        /// Which argument named it.
        argument: &'static str,
        /// The file as it was given.
        path: String,
        /// The system's error.
        source: io::Error,
    },
    /// The content of an argument or of the file that it names.
    #[error("{}{source}", prefix(.argument))]
    Content {
        /// Which argument, if it has a name.
        argument: Option<&'static str>,
        /// Its fault.
        source: SpecError,
    },
    /// An input or a value that cannot be varied so.
    #[error("--vary {reason}")]
    Vary {
        /// Input, value, and fault.
        reason: String,
    },
    /// A question that has no answer.
    #[error("{reason}")]
    NoAnswer {
        /// Why.
        reason: String,
    },
    /// A log that cannot be used.
    #[error("--log: {0}")]
    Log(#[from] LogError),
    /// A table of runs that cannot be used.
    #[error("{path}: {source}")]
    Table {
        /// The file as it was given.
        path: String,
        /// Its fault.
        source: TableError,
    },
    /// A table of kernels that cannot be used.
    #[error("--kernels: {path}: {source}")]
    KernelTable {
        /// The file as it was given.
        path: String,
        /// Its fault.
        source: KernelTableError,
    },
    /// A table of serving runs that cannot be used.
    #[error("--inference: {path}: {source}")]
    ServingTable {
        /// The file as it was given.
        path: String,
        /// Its fault.
        source: ServingTableError,
    },
    /// A trace that cannot be used.
    #[error(transparent)]
    Kineto(#[from] KinetoError),
    /// An export of Nsight Systems that cannot be used.
    #[error(transparent)]
    Nsight(#[from] NsightError),
    /// An execution trace that cannot be used.
    #[error(transparent)]
    Chakra(#[from] ChakraError),
    /// Execution traces that cannot be replayed.
    #[error(transparent)]
    Replay(#[from] ReplayError),
    /// Steps that cannot be drawn.
    #[error(transparent)]
    Stragglers(#[from] StragglerError),
    /// Requests that cannot be served.
    #[error(transparent)]
    Serving(#[from] ServingError),
    /// No plan can exist.
    #[error(transparent)]
    Planner(#[from] PlannerError),
    /// A file of jobs that cannot be used.
    #[error(transparent)]
    JobFile(#[from] JobFileError),
    /// Jobs that cannot be scheduled.
    #[error(transparent)]
    Fleet(#[from] FleetError),
    /// A trace of jobs that cannot be run.
    #[error(transparent)]
    FleetOnline(#[from] OnlineError),
    /// A run that does not begin, or ends early.
    #[error(transparent)]
    Run(#[from] RunError),
    /// Another rank of a supervised run is at fault.
    #[error(transparent)]
    OfPeer(RunError),
    /// A fault of a later attempt that an attempt after it need not have.
    #[error(transparent)]
    OfAttempt(RunError),
    /// A run of which so many ranks are gone that there is no plan for the others.
    #[error("{reason}")]
    NoPlanLeft {
        /// Which are gone and how many are left.
        reason: String,
    },
    /// A process of a run that cannot be started.
    #[error("cannot start the processes of the run: {reason}")]
    Starting {
        /// What the system said.
        reason: String,
    },
    /// A plan whose passes wait for each other.
    #[error(transparent)]
    Deadlock(#[from] Deadlock),
}

impl CliError {
    /// The error of reading what `argument` names.
    pub fn of_input(argument: Option<&'static str>, error: SpecError) -> CliError {
        match error {
            SpecError::File { path, source } => {
                CliError::Reading { argument, path: path.display().to_string(), source }
            }
            SpecError::BadValue { origin, key, value, allowed } if origin == "argument" => {
                let argument = argument.map_or(key, str::to_string);
                CliError::Argument { argument, value, allowed }
            }
            source => CliError::Content { argument, source },
        }
    }

    /// The message as one line of at most `LONGEST_LINE` letters, even if the quoted part of a file has more. Control
    /// characters of a file are escaped: a terminal would obey them.
    pub fn line(&self) -> String {
        let (text, mut line) = (self.to_string(), String::new());
        let end = text.char_indices().nth(LONGEST_LINE).map_or(text.len(), |(end, _)| end);
        for letter in text[..end].chars() {
            match letter {
                '\n' | '\r' | '\t' => line.push(' '),
                letter if letter.is_control() => line.extend(letter.escape_default()),
                letter => line.push(letter),
            }
        }
        if end < text.len() {
            line.push('…');
        }
        line
    }

    /// How the program ends.
    pub fn outcome(&self) -> Outcome {
        match self {
            CliError::Writing { .. } | CliError::Starting { .. } => Outcome::Failure,
            CliError::OfAttempt(_) | CliError::Deadlock(_) => Outcome::Failure,
            CliError::OfPeer(_) => Outcome::PeerFailed,
            CliError::Stragglers(StragglerError::Deadlock(_)) => Outcome::Failure,
            CliError::Planner(PlannerError::Deadlock(_)) => Outcome::Failure,
            CliError::Planner(PlannerError::NoCandidate { .. }) => Outcome::NothingFits,
            CliError::FleetOnline(OnlineError::NeverFits { .. } | OnlineError::ExceedsQuota { .. }) => {
                Outcome::NothingFits
            }
            CliError::Fleet(FleetError::NeverFits { .. } | FleetError::Deadline { .. }) => {
                Outcome::NothingFits
            }
            CliError::Run(RunError::Rank { fault: Fault::NotFinite { .. }, .. }) => Outcome::Diverged,
            CliError::Run(RunError::Rank { .. } | RunError::Rendezvous { .. }) => Outcome::Failure,
            CliError::Run(RunError::Memory { .. }) | CliError::NoPlanLeft { .. } => Outcome::NothingFits,
            CliError::Usage(error) if !error.use_stderr() => Outcome::Done,
            _ => Outcome::BadInput,
        }
    }
}

fn prefix(argument: &Option<&str>) -> String {
    argument.map_or_else(String::new, |name| format!("{name}: "))
}

/// Clap's message without the usage that follows it, its lines joined.
fn one_line(error: &clap::Error) -> String {
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        let command = Arguments::command();
        let names: Vec<&str> = command.get_subcommands().map(clap::Command::get_name).collect();
        let (last, others) = names.split_last().expect("there are commands");
        let others = others.join(", ");
        return format!("a command is missing: {others} or {last}; `trainwright --help` explains them");
    }
    let text = error.to_string();
    let message = text.lines().take_while(|line| !line.starts_with("Usage:"));
    let words: Vec<&str> = message
        .filter(|line| !line.starts_with("For more information"))
        .map(|line| line.trim().trim_start_matches("error: "))
        .filter(|line| !line.is_empty())
        .collect();
    words.join(" ").replace(" tip: ", "; ")
}

/// `Argument`.
pub fn refuse(argument: &str, value: impl ToString, allowed: impl Into<String>) -> CliError {
    CliError::Argument { argument: argument.into(), value: value.to_string(), allowed: allowed.into() }
}

/// The system's message, without its error number.
fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    let mut letters = text.chars();
    letters.next().map_or(String::new(), |first| first.to_lowercase().chain(letters).collect())
}
