//! Why a run does not begin, or ends early.

mod checkpoint;

pub use checkpoint::CheckpointError;

use std::time::Duration;
use thiserror::Error;
use trainwright_kernels::cuda::DeviceError;
use trainwright_spec::units::Bytes;

/// Everything that ends a run before its last step.
#[derive(Debug, Error, PartialEq)]
pub enum RunError {
    /// The plan asks for something that the executor has not.
    #[error("the executor does not run this plan: `{key}` is {value}; {allowed}")]
    Refused {
        /// The part of the plan.
        key: String,
        /// What it is.
        value: String,
        /// What there is instead.
        allowed: String,
    },
    /// The tokens do not suit the plan.
    #[error("the data does not suit the plan: {0}")]
    Data(String),
    /// The processes of a run did not find each other.
    #[error("rank {rank} did not find the others at {master}: {reason}")]
    Rendezvous {
        /// This process's.
        rank: usize,
        /// Where the rendezvous was.
        master: String,
        /// What happened.
        reason: String,
    },
    /// The ranks of this host need more memory than it has.
    #[error(
        "the {ranks} ranks on this host need {needed} of memory, of which {available} are available: \
         use more hosts, a smaller model, or a plan whose ranks hold less"
    )]
    Memory {
        /// How many ranks share the host.
        ranks: usize,
        /// At their peaks.
        needed: Bytes,
        /// To new programs, when the run was to begin.
        available: Bytes,
    },
    /// A process of the run has other settings, another plan or other data than rank 0.
    #[error("rank {rank} cannot train with rank 0: {differences}")]
    Differs {
        /// Its rank.
        rank: usize,
        /// What differs, with both values.
        differences: String,
    },
    /// The device is not there.
    #[error("the device `{name}` cannot be used: {reason}")]
    Device {
        /// Its kind.
        name: &'static str,
        /// What is missing.
        reason: String,
    },
    /// The system gives no more threads.
    #[error("cannot start a thread for each rank: {0}")]
    Threads(String),
    /// A tokenizer that cannot be used.
    #[error("cannot use the tokenizer {path}: {reason}")]
    Tokenizer {
        /// Its file.
        path: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A checkpoint cannot be used or written.
    #[error(transparent)]
    Checkpoint(Box<CheckpointError>),
    /// A rank could not go on.
    #[error("rank {rank} stopped in step {step} at `{op}`: {fault}")]
    Rank {
        /// Which one.
        rank: usize,
        /// The step, from 1.
        step: usize,
        /// The op it was at.
        op: String,
        /// What happened.
        fault: Fault,
    },
}

impl RunError {
    /// Whether another rank than `rank`, whose process has this error, is at fault, as far as that process knows.
    pub fn is_of_peer(&self, rank: usize) -> bool {
        match self {
            RunError::Rendezvous { .. } => true,
            // The same steps have the same numbers whichever ranks there are.
            RunError::Rank { fault: Fault::NotFinite { .. }, .. } => false,
            RunError::Rank { fault: Fault::Lost { .. } | Fault::Aborted, .. } => true,
            // NCCL on other ranks notices a rank that fails.
            RunError::Rank { fault: Fault::Device(DeviceError::Communicator(_)), .. } => true,
            RunError::Rank { rank: at_fault, .. } => *at_fault != rank,
            _ => false,
        }
    }
}

/// What stops a rank.
#[derive(Debug, Clone, Error, PartialEq)]
pub enum Fault {
    /// A number that is NaN or infinite.
    #[error("{what} is not a finite number (NaN or infinity): lower the learning rate")]
    NotFinite {
        /// Which number.
        what: &'static str,
    },
    /// The device.
    #[error("the device: {0}")]
    Device(DeviceError),
    /// The offload store could not be written or read.
    #[error("the file that stands in for NVMe: {0}")]
    Drive(String),
    /// A bug.
    #[error("it panicked: {0}")]
    Panic(String),
    /// The process of another rank is gone, or the connection to it.
    #[error("rank {rank} is gone: {how}")]
    Lost {
        /// Which one.
        rank: usize,
        /// What the system said, and when.
        how: String,
    },
    /// It makes no progress any more.
    #[error("nothing has happened on any rank for {} s; it is the one that does not wait for another", .0.as_secs_f64())]
    Stalled(Duration),
    /// Its process does not answer any more, though the connection stands.
    #[error("nothing has come from its process for {} s: it or its host hangs", .0.as_secs_f64())]
    Silent(Duration),
    /// Tokens that cannot be read, or that no vocabulary has.
    #[error("{0}")]
    Data(String),
    /// A checkpoint that cannot be written.
    #[error(transparent)]
    Checkpoint(Box<CheckpointError>),
    /// Another rank stopped.
    #[error("another rank stopped")]
    Aborted,
}

impl From<CheckpointError> for RunError {
    fn from(error: CheckpointError) -> Self {
        RunError::Checkpoint(Box::new(error))
    }
}

impl From<CheckpointError> for Fault {
    fn from(error: CheckpointError) -> Self {
        Fault::Checkpoint(Box::new(error))
    }
}
