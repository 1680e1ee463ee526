//! Logs of nccl-tests and rccl-tests, read and written.
//!
//! ```text
//! # nThread 1 nGpus 1 minBytes 1024 …                                 how it was called
//! # Using devices
//! #  Rank  0 Group  0 Pid  4711 on  node-a device  0 [0x0f] GPU       one line for each rank
//! #       size  count  type  redop  root  time  algbw  busbw  #wrong  time  algbw  busbw  #wrong
//! #        (B)  …                         (us)  (GB/s) (GB/s)         (in place)
//!         1024    256  float   sum    -1  21.3   0.05   0.08       0  …
//! # Avg bus bandwidth    : …
//! ```
//!
//! Versions differ in the columns, and launchers put prefixes before every line. Columns are found by their names,
//! prefixes by where the line of names starts. Nothing here knows a cluster or forecasts anything.

mod devices;
mod infer;
mod read;
mod write;

pub use read::read;
pub use write::{Forecast, write};

use thiserror::Error;
use trainwright_spec::collective::CollectiveKind;
use trainwright_spec::units::{Bytes, Seconds};

/// One table of a log.
#[derive(Debug, Clone, PartialEq)]
pub struct LoggedSweep {
    /// Line of the log in which its column names stand.
    pub line: usize,
    /// The collective; `None` if the log neither names it nor has bandwidths that imply it.
    pub collective: Option<CollectiveKind>,
    /// The group; `None` if the log does not list all ranks.
    pub group: Option<LoggedGroup>,
    /// The name of the first rank's GPU.
    pub gpu: Option<String>,
    /// Versions, if the log has them: `NCCL 2.20.5+cuda12.4, nccl-tests 2.17.6`.
    pub software: Option<String>,
    /// The day, if the rows have timestamps.
    pub date: Option<String>,
    /// The rows in their order, without those of no bytes.
    pub rows: Vec<LoggedTime>,
}

/// The group of a sweep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoggedGroup {
    /// Nodes that the group is on.
    pub nodes: usize,
    /// Ranks of the group on each of them.
    pub ranks_per_node: usize,
    /// Groups on these nodes that ran the collective at the same time (`NCCL_TESTS_SPLIT`), including this one.
    pub groups: usize,
}

/// A row of a log.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LoggedTime {
    /// Line of the log.
    pub line: usize,
    /// The size, as `CollectiveKind` counts it.
    pub bytes: Bytes,
    /// Time with separate input and output buffers; in place if only that was measured.
    pub time: Seconds,
}

/// Why a log cannot be used.
#[derive(Debug, Error, PartialEq)]
pub enum LogError {
    /// There is nothing to read.
    #[error(
        "{origin}: no table of nccl-tests in it: no line has the column names `size`, `count`, `time`, `algbw` and \
         `busbw`"
    )]
    NoTable {
        /// The file.
        origin: String,
    },
    /// Column names without rows.
    #[error("{origin}:{line}: no rows follow these column names; was the run cut off?")]
    NoRows {
        /// The file.
        origin: String,
        /// Line of the column names.
        line: usize,
    },
    /// A row that is not complete.
    #[error("{origin}:{line}: `{text}` is no row of the table; expected {expected}")]
    Row {
        /// The file.
        origin: String,
        /// Line of the row.
        line: usize,
        /// The row.
        text: String,
        /// The expected text.
        expected: String,
    },
    /// A run that computed something else.
    #[error(
        "{origin}:{line}: {wrong} values are wrong after the collective: times of a faulty run are no measurement"
    )]
    Wrong {
        /// The file.
        origin: String,
        /// Line of the row.
        line: usize,
        /// How many.
        wrong: f64,
    },
    /// Processes that ran separately.
    #[error(
        "{origin}:{line}: rank {rank} is listed twice; nccl-tests that is built without MPI=1 runs each process by \
         itself"
    )]
    Twice {
        /// The file.
        origin: String,
        /// Line of the second.
        line: usize,
        /// Which rank.
        rank: usize,
    },
    /// A group that is spread unevenly.
    #[error(
        "{origin}: the group has {most} ranks on one node and {fewest} on another; expected as many on each"
    )]
    Uneven {
        /// The file.
        origin: String,
        /// Ranks on the node that has most of them.
        most: usize,
        /// Ranks on the node that has the fewest.
        fewest: usize,
    },
}
