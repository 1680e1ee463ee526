//! Reads an export of Nsight Systems: an SQLite database (`nsys export --type sqlite`, or `nsys profile --export sqlite`).
//!
//! ```text
//! CUPTI_ACTIVITY_KIND_KERNEL ── correlationId ──► CUPTI_ACTIVITY_KIND_RUNTIME ── globalTid, start ──► NVTX_EVENTS
//!   start, end, name                                thread and time of launch                             `aten::mm, … sizes = …`
//! ```
//!
//! Kernels have no shapes. Where PyTorch wrote the sizes of its operators into ranges (`torch.autograd.profiler.emit_nvtx`
//! with `record_shapes`), a kernel gets the shape of the innermost operator that launched it. Ranges called `step` or
//! `iteration` with a number mark the steps.
//!
//! Tables: NVIDIA Nsight Systems user guide, section "SQLite Schema Reference".

use crate::measured::{Call, Device, MeasuredStep, Recording, sizes};
use rusqlite::limits::Limit;
use rusqlite::{Connection, Result as Sql};
use std::collections::{BTreeMap, BTreeSet};
use thiserror::Error;
use trainwright_spec::precision::Precision;
use trainwright_spec::program::Kernel;
use trainwright_spec::units::Seconds;

/// The first bytes of every SQLite database.
pub const MAGIC: &[u8] = b"SQLite format 3\0";

/// Why an export cannot be used.
#[derive(Debug, Error)]
pub enum NsightError {
    /// It is no export of Nsight Systems.
    #[error("{origin}: not an SQLite export of Nsight Systems: {message}")]
    Database {
        /// The file.
        origin: String,
        /// The problem.
        message: String,
    },
    /// It has no kernels.
    #[error("{origin}: the export has no kernels: record with `nsys profile --trace cuda,nvtx`")]
    Empty {
        /// The file.
        origin: String,
    },
    /// More than one GPU was recorded, or not the requested one.
    #[error("{origin}: kernels of the devices {devices}: choose one of them by --device")]
    Devices {
        /// The file.
        origin: String,
        /// Which ones.
        devices: String,
    },
}

/// The part of an export that is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Choice {
    /// CUDA's number of the GPU; `None` if there is only one.
    pub device: Option<u32>,
    /// The number format of products and tensors, which ranges lack.
    pub precision: Option<Precision>,
}

/// The tables that are read.
const TABLES: [&str; 6] = [
    "StringIds",
    "CUPTI_ACTIVITY_KIND_KERNEL",
    "CUPTI_ACTIVITY_KIND_MEMCPY",
    "CUPTI_ACTIVITY_KIND_MEMSET",
    "CUPTI_ACTIVITY_KIND_RUNTIME",
    "NVTX_EVENTS",
];

/// Bytes of a value: the longest names of kernels have some thousands.
const LONGEST_VALUE: i32 = 1 << 24;

/// Seconds in the unit of an export's times.
const NANOSECONDS: f64 = 1e-9;

/// Process and thread of a `globalTid` share all but its last 24 bits with the `globalPid` of the process.
const OF_PROCESS: i64 = 0x100_0000;

/// Reads an export. `origin` names the file in messages.
///
/// # Errors
/// See `NsightError`.
pub fn read(database: &[u8], origin: &str, choice: Choice) -> Result<MeasuredStep, NsightError> {
    let failed =
        |error: rusqlite::Error| NsightError::Database { origin: origin.into(), message: message(&error) };
    let export = Export::open(database).map_err(failed)?;
    if let Some(what) = export.computed().map_err(failed)? {
        let message = format!("{what}, where a table of rows should be");
        return Err(NsightError::Database { origin: origin.into(), message });
    }
    let kernels = export.kernels().map_err(failed)?;
    let devices: BTreeSet<i64> = kernels.iter().map(|kernel| kernel.device).collect();
    let device = match (choice.device.map(i64::from), devices.len()) {
        (_, 0) => return Err(NsightError::Empty { origin: origin.into() }),
        (Some(device), _) if devices.contains(&device) => device,
        (None, 1) => devices.first().copied().unwrap_or_default(),
        _ => {
            let devices: Vec<String> = devices.iter().map(i64::to_string).collect();
            return Err(NsightError::Devices { origin: origin.into(), devices: devices.join(", ") });
        }
    };
    let kernels: Vec<DeviceOp> = kernels.into_iter().filter(|kernel| kernel.device == device).collect();
    let copies = export.copies(device).map_err(failed)?;
    let ranges = export.ranges().map_err(failed)?;
    let shaped = export.shaped(&kernels, &ranges, choice.precision).map_err(failed)?;
    let all = || kernels.iter().chain(&copies);
    let extent = (
        all().map(|op| op.start).min().unwrap_or_default() as f64,
        all().map(|op| op.end).max().unwrap_or_default() as f64,
    );
    let marks = ranges.iter().filter(|range| is_step(&range.text));
    // Every process marks its steps: one process is enough.
    let of_process = |thread: i64| thread / OF_PROCESS;
    let first = marks.clone().map(|range| of_process(range.thread)).min();
    let recording = Recording {
        device: Device::Gpu,
        ops: all().map(|op| (op.name.clone(), op.time())).collect(),
        kernels: shaped,
        steps: marks
            .filter(|range| Some(of_process(range.thread)) == first)
            .map(|range| (range.start as f64, range.end as f64))
            .collect(),
        extent,
        unit: NANOSECONDS,
    };
    Ok(recording.step())
}

/// A range called `step 12`, `iteration_3`, `ProfilerStep#4`.
fn is_step(text: &str) -> bool {
    let name =
        text.trim_end_matches(|c: char| c.is_ascii_digit()).trim_end_matches([' ', '#', '_', ':', '-']);
    let numbered = name.len() < text.len();
    let known = ["step", "iteration", "iter", "train_step", "training_step", "profilerstep"];
    numbered && known.contains(&name.to_lowercase().as_str())
}

/// The message in one line: SQLite quotes its input.
fn message(error: &rusqlite::Error) -> String {
    let text = match error {
        rusqlite::Error::SqliteFailure(_, Some(text)) => text.clone(),
        other => other.to_string(),
    };
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A kernel, copy or fill on a GPU.
struct DeviceOp {
    name: String,
    start: i64,
    end: i64,
    device: i64,
    process: Option<i64>,
    correlation: i64,
}

impl DeviceOp {
    fn time(&self) -> Seconds {
        Seconds::new(self.end.saturating_sub(self.start).max(0) as f64 * NANOSECONDS)
    }
}

/// A range of NVTX.
struct Range {
    start: i64,
    end: i64,
    thread: i64,
    text: String,
}

impl Range {
    /// `aten::mm, seq = 5, op_id = 12, sizes = [[4, 8], [8, 2]]`
    fn call(&self) -> Option<Call> {
        let (_, after) = self.text.split_once("sizes = ")?;
        // Input ids may follow.
        let end = after.find("]]").map_or(after.len(), |end| end + 2);
        let name = self.text.split(',').next()?.trim().to_string();
        Some(Call { name, sizes: sizes(&after[..end])?, ..Call::default() })
    }
}

struct Export(Connection);

impl Export {
    fn open(database: &[u8]) -> Sql<Export> {
        let mut connection = Connection::open_in_memory()?;
        connection.deserialize_read_exact(rusqlite::MAIN_DB, database, database.len(), true)?;
        connection.set_limit(Limit::SQLITE_LIMIT_LENGTH, LONGEST_VALUE)?;
        // SQLite reads the file only now.
        connection.query_row("SELECT count(*) FROM sqlite_master", [], |_| Ok(()))?;
        Ok(Export(connection))
    }

    /// What stands in the place of a table that is read and is none: a view or a virtual table computes its rows, without
    /// end if it likes, and so do generated columns.
    fn computed(&self) -> Sql<Option<String>> {
        let mut statement = self.0.prepare("SELECT name, type, coalesce(sql, '') FROM sqlite_master")?;
        let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
        for row in rows {
            let (name, kind, sql): (String, String, String) = row?;
            let is_read = TABLES.iter().any(|table| table.eq_ignore_ascii_case(&name));
            let hidden = "SELECT count(*) FROM pragma_table_xinfo(?1) WHERE hidden <> 0";
            let is_virtual = sql.to_uppercase().starts_with("CREATE VIRTUAL");
            if is_read && kind == "table" && !is_virtual {
                let generated: i64 = self.0.query_row(hidden, [&name], |row| row.get(0))?;
                if generated > 0 {
                    return Ok(Some(format!("`{name}` has generated columns")));
                }
            } else if is_read {
                return Ok(Some(format!("`{name}` is {}", if is_virtual { "virtual" } else { "a view" })));
            }
        }
        Ok(None)
    }

    fn columns(&self, table: &str) -> Sql<BTreeSet<String>> {
        let mut statement = self.0.prepare(&format!("PRAGMA table_info({table})"))?;
        statement.query_map([], |row| row.get(1))?.collect()
    }

    fn kernels(&self) -> Sql<Vec<DeviceOp>> {
        let columns = self.columns("CUPTI_ACTIVITY_KIND_KERNEL")?;
        if columns.is_empty() {
            return Ok(Vec::new());
        }
        let process = if columns.contains("globalPid") { "k.globalPid" } else { "NULL" };
        let name = if columns.contains("demangledName") { "demangledName" } else { "shortName" };
        self.device_ops(&format!(
            "SELECT s.value, k.start, k.end, k.deviceId, {process}, k.correlationId
             FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN StringIds s ON s.id = k.{name} ORDER BY k.start, k.correlationId"
        ))
    }

    /// Copies and fills.
    fn copies(&self, device: i64) -> Sql<Vec<DeviceOp>> {
        let mut all = Vec::new();
        if !self.columns("CUPTI_ACTIVITY_KIND_MEMCPY")?.is_empty() {
            all = self.device_ops(&format!(
                "SELECT CASE copyKind WHEN 1 THEN 'Memcpy HtoD' WHEN 2 THEN 'Memcpy DtoH' ELSE 'Memcpy DtoD' END,
                 start, end, deviceId, NULL, correlationId
                 FROM CUPTI_ACTIVITY_KIND_MEMCPY WHERE deviceId = {device} ORDER BY start, correlationId"
            ))?;
        }
        if !self.columns("CUPTI_ACTIVITY_KIND_MEMSET")?.is_empty() {
            all.extend(self.device_ops(&format!(
                "SELECT 'Memset', start, end, deviceId, NULL, correlationId
                 FROM CUPTI_ACTIVITY_KIND_MEMSET WHERE deviceId = {device} ORDER BY start, correlationId"
            ))?);
        }
        Ok(all)
    }

    fn device_ops(&self, query: &str) -> Sql<Vec<DeviceOp>> {
        let mut statement = self.0.prepare(query)?;
        let rows = statement.query_map([], |row| {
            Ok(DeviceOp {
                name: row.get(0)?,
                start: row.get(1)?,
                end: row.get(2)?,
                device: row.get(3)?,
                process: row.get(4)?,
                correlation: row.get(5)?,
            })
        })?;
        rows.collect()
    }

    /// The ranges that ended, by thread and start, those outside before those inside.
    fn ranges(&self) -> Sql<Vec<Range>> {
        let columns = self.columns("NVTX_EVENTS")?;
        if columns.is_empty() {
            return Ok(Vec::new());
        }
        // Newer versions keep long texts with all other strings.
        let (text, join) = match columns.contains("textId") {
            true => ("coalesce(n.text, s.value)", "LEFT JOIN StringIds s ON s.id = n.textId"),
            false => ("n.text", ""),
        };
        let mut statement = self.0.prepare(&format!(
            "SELECT n.start, n.end, n.globalTid, {text} FROM NVTX_EVENTS n {join}
             WHERE n.end IS NOT NULL AND n.globalTid IS NOT NULL AND {text} IS NOT NULL
             ORDER BY n.globalTid, n.start, n.end DESC"
        ))?;
        let rows = statement.query_map([], |row| {
            Ok(Range { start: row.get(0)?, end: row.get(1)?, thread: row.get(2)?, text: row.get(3)? })
        })?;
        rows.collect()
    }

    /// Kernels by the innermost range with sizes in which they were launched, those of a range together.
    fn shaped(
        &self,
        kernels: &[DeviceOp],
        ranges: &[Range],
        precision: Option<Precision>,
    ) -> Sql<Vec<(Kernel, Seconds)>> {
        if precision.is_none() || self.columns("CUPTI_ACTIVITY_KIND_RUNTIME")?.is_empty() {
            return Ok(Vec::new());
        }
        let mut of_call: BTreeMap<(i64, i64), &DeviceOp> = BTreeMap::new();
        for kernel in kernels {
            let process = kernel.process.map_or(0, |process| process / OF_PROCESS);
            of_call.insert((kernel.correlation, process), kernel);
        }
        let known_process = kernels.iter().all(|kernel| kernel.process.is_some());
        let mut statement = self.0.prepare(
            "SELECT start, globalTid, correlationId FROM CUPTI_ACTIVITY_KIND_RUNTIME
             WHERE globalTid IS NOT NULL ORDER BY globalTid, start",
        )?;
        let calls = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
        let mut times: BTreeMap<usize, Seconds> = BTreeMap::new();
        let with_sizes: Vec<(usize, Call)> =
            ranges.iter().enumerate().filter_map(|(index, range)| Some((index, range.call()?))).collect();
        let mut next = 0;
        let mut open: Vec<usize> = Vec::new();
        for call in calls {
            let (start, thread, correlation): (i64, i64, i64) = call?;
            let process = if known_process { thread / OF_PROCESS } else { 0 };
            let Some(kernel) = of_call.get(&(correlation, process)) else { continue };
            let range = |place: usize| &ranges[with_sizes[place].0];
            while next < with_sizes.len() && (range(next).thread, range(next).start) <= (thread, start) {
                open.push(next);
                next += 1;
            }
            open.retain(|place| range(*place).thread == thread && range(*place).end >= start);
            if let Some(innermost) = open.last() {
                *times.entry(*innermost).or_insert(Seconds::ZERO) += kernel.time();
            }
        }
        let shaped = times
            .into_iter()
            .filter_map(|(place, time)| Some((with_sizes[place].1.kernel(precision)?, time)));
        Ok(shaped.collect())
    }
}
