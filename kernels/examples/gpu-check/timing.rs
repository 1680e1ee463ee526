//! Measurements as lines of a table, with what they say of a GPU's rates.

use super::record::{Failure, Table};
use std::fmt;
use std::path::Path;
use trainwright_kernels::cuda::measure::{Bench, Timed};
use trainwright_kernels::cuda::{Device, DeviceError, Launch};

/// A measurement.
#[derive(Debug, Clone)]
pub struct Row {
    /// What ran.
    pub kernel: String,
    /// Its sizes.
    pub shape: String,
    /// What it took.
    pub timed: Timed,
    /// Of a run.
    pub amount: Amount,
}

/// The measurements, each of which is printed and written as soon as it is there.
pub struct Rows {
    table: Table,
    failure: Option<Failure>,
}

impl Rows {
    /// A new table; prints its head.
    pub fn new(folder: &Path) -> Result<Self, Failure> {
        println!("{:44} {:34} {:>10} {:>12}", "kernel", "shape", "µs", "rate");
        Ok(Self { table: Table::new(folder, "versions.csv", Row::HEADER)?, failure: None })
    }

    /// One more. Whether it could be written is said by `end`.
    pub fn push(&mut self, row: Row) {
        println!("{row}");
        if let Err(failure) = self.table.line(&row.line()) {
            self.failure.get_or_insert(failure);
        }
    }

    /// Notes how a group of measurements ended; the next groups follow, if the device still works.
    pub fn ended(&mut self, group: &str, end: Result<(), DeviceError>) {
        if let Err(error) = end {
            println!("{group} ended early: {error}");
            self.failure.get_or_insert(error.into());
        }
    }

    /// The first failure, if any.
    pub fn end(self) -> Result<(), Failure> {
        self.failure.map_or(Ok(()), Err)
    }
}

/// What a run does, for its rates.
#[derive(Debug, Clone, Copy, Default)]
pub struct Amount {
    /// Operations.
    pub flops: f64,
    /// Bytes that must move.
    pub bytes: f64,
}

impl Row {
    /// Columns of a line.
    pub const HEADER: &'static str = "kernel,shape,seconds,spread,flops,bytes";

    /// For a file.
    pub fn line(&self) -> String {
        let Self { kernel, shape, timed: Timed { seconds, spread }, amount: Amount { flops, bytes } } = self;
        format!("{kernel},\"{shape}\",{seconds:e},{spread:.4},{flops:e},{bytes:e}")
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kernel, shape, timed: Timed { seconds, .. }, amount: Amount { flops, bytes } } = self;
        let rate = match *flops > 0.0 {
            true => format!("{:.1} TFLOP/s", flops / seconds / 1e12),
            false if *bytes > 0.0 => format!("{:.0} GB/s", bytes / seconds / 1e9),
            false => String::new(),
        };
        write!(f, "{kernel:44} {shape:34} {:10.2} {rate:>12}", seconds * 1e6)
    }
}

/// Times the work that `work` enqueues.
pub fn time(
    bench: &mut Bench,
    [kernel, shape]: [&str; 2],
    amount: Amount,
    work: impl FnMut(&mut dyn Device) -> Result<(), DeviceError>,
) -> Result<Row, DeviceError> {
    let timed = bench.time(work)?;
    Ok(Row { kernel: kernel.into(), shape: shape.into(), timed, amount })
}

/// Measures launches, one after the other.
pub fn time_launches(
    bench: &mut Bench,
    launches: &[Launch],
    shape: &str,
    amount: Amount,
) -> Result<Row, DeviceError> {
    // The last one is what distinguishes versions that begin alike.
    let name = launches.last().map_or("", |launch| launch.kernel.as_str());
    time(bench, [name, shape], amount, |device| launches.iter().try_for_each(|launch| device.launch(launch)))
}
