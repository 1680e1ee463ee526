//! Measured times of kernels on a GPU, read from a CSV and kept with the GPU.
//!
//! ```csv
//! gpu,kernel,shape,precision,time_us,source,date,versions
//! a100-80gb-sxm,gemm,m=8192 n=8192 k=8192,bf16,4334,local log,2025-11-02,CUDA 12.4
//! a100-80gb-sxm,attention-forward,batch=8 heads=16 kv_heads=16 queries=2048 keys=2048 head_dim=128 mask=causal,bf16,410,,,
//! a100-80gb-sxm,elementwise,bytes=1073741824,bf16,660,,,
//! ```
//!
//! `gpu` is the catalog's name; rows of other GPUs are passed over. `source`, `date` and `versions` are for people, and
//! may be empty. A gemm may have `count`, 1 if left out; attention `value_head_dim`, else that of the head, and `version`
//! (`flash-1`, `flash-2`, `flash-3`), else the best; `mask` is `full`, `causal` or `window:N`. `reduction` is as
//! `elementwise`. What a cost makes of it is the simulator's business.

mod shape;

use super::{Cluster, Gpu};
use crate::error::SpecError;
use crate::precision::Precision;
use crate::program::Kernel;
use crate::units::Seconds;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// No kernel of a benchmark takes longer.
const LONGEST: Seconds = Seconds::new(3600.0);

/// Kernels as they were measured on one GPU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceProfile {
    /// Where the numbers are from.
    pub source: String,
    /// Each shape once.
    pub kernels: Vec<MeasuredKernel>,
    /// Each op and shape once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ops: Vec<MeasuredOp>,
}

/// A kernel call that was timed as a certain op of a program.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeasuredOp {
    /// Module and pass, as `Op::kind` has them.
    pub op: String,
    /// The call and its time.
    pub measured: MeasuredKernel,
}

/// A kernel call and how long it took, launch gap included.
///
/// Files hold microseconds to the picosecond.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "Written")]
pub struct MeasuredKernel {
    /// The call.
    pub kernel: Kernel,
    /// The time; of several measurements of one shape their median.
    pub time: Seconds,
}

/// Kernel, shape, precision, microseconds.
#[derive(Clone, Serialize, Deserialize)]
struct Written(String, String, Precision, f64);

impl TryFrom<Written> for MeasuredKernel {
    type Error = String;

    fn try_from(Written(kind, shape, precision, microseconds): Written) -> Result<Self, String> {
        Ok(Self { kernel: shape::read(&kind, &shape, precision)?, time: measured(microseconds)? })
    }
}

impl From<MeasuredKernel> for Written {
    fn from(MeasuredKernel { kernel, time }: MeasuredKernel) -> Self {
        let (kind, shape, precision) = shape::write(&kernel);
        Written(kind.into(), shape, precision, (time.get() * 1e12).round() / 1e6)
    }
}

fn measured(microseconds: f64) -> Result<Seconds, String> {
    let time = Seconds::new(microseconds * 1e-6);
    match time > Seconds::ZERO && time <= LONGEST {
        true => Ok(time),
        false => Err(format!("a time is above 0 and at most an hour, not {microseconds} us")),
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    gpu: String,
    kernel: String,
    shape: String,
    precision: Precision,
    time_us: f64,
    #[serde(default)]
    op: String,
    #[serde(default)]
    source: String,
    #[serde(default)]
    #[expect(dead_code, reason = "a column for people")]
    date: String,
    #[serde(default)]
    #[expect(dead_code, reason = "a column for people")]
    versions: String,
}

impl DeviceProfile {
    /// Reads the rows of `gpu` in a CSV; `origin` names it in messages.
    ///
    /// # Errors
    /// `Syntax` with the line, or `BadValue` if no row is of that GPU.
    pub fn from_csv(text: &str, origin: &str, gpu: &str) -> Result<Self, SpecError> {
        let mut times: BTreeMap<(String, String, String, Precision), Vec<f64>> = BTreeMap::new();
        let mut sources: Vec<String> = Vec::new();
        let mut others: Vec<String> = Vec::new();
        let mut reader = csv::ReaderBuilder::new().comment(Some(b'#')).from_reader(text.as_bytes());
        let headers = reader.headers().cloned().map_err(|error| unreadable(origin, &error))?;
        for record in reader.records() {
            let record = record.map_err(|error| unreadable(origin, &error))?;
            let line = record.position().map_or(0, csv::Position::line);
            let refuse = |message: String| SpecError::Syntax { origin: format!("{origin}:{line}"), message };
            let row: Row = record.deserialize(Some(&headers)).map_err(|error| refuse(reason(&error)))?;
            if row.gpu != gpu {
                others.push(row.gpu);
                continue;
            }
            let kernel = shape::read(&row.kernel, &row.shape, row.precision).map_err(refuse)?;
            measured(row.time_us).map_err(refuse)?;
            let (kind, shape, precision) = shape::write(&kernel);
            times.entry((row.op, kind.into(), shape, precision)).or_default().push(row.time_us);
            if !row.source.is_empty() && !sources.contains(&row.source) {
                sources.push(row.source);
            }
        }
        if times.is_empty() {
            others.sort_unstable();
            others.dedup();
            let allowed = match others.is_empty() {
                true => "the file has no rows".to_string(),
                false => format!("the file has rows of {} only", others.join(", ")),
            };
            let (origin, key) = (origin.into(), "gpu".into());
            return Err(SpecError::BadValue { origin, key, value: gpu.into(), allowed });
        }
        let source = if sources.is_empty() { origin.to_string() } else { sources.join("; ") };
        let mut profile = Self { source, kernels: Vec::new(), ops: Vec::new() };
        for ((op, kind, shape, precision), times) in times {
            let written = Written(kind, shape, precision, median(times));
            let measured =
                MeasuredKernel::try_from(written).expect("the median of readable times is readable");
            match op.is_empty() {
                true => profile.kernels.push(measured),
                false => profile.ops.push(MeasuredOp { op, measured }),
            }
        }
        Ok(profile)
    }

    /// A profile's rows as a CSV that `from_csv` reads; `date` and `versions` are the same in all.
    pub fn to_csv(&self, gpu: &str, [date, versions]: [&str; 2]) -> String {
        let mut writer = csv::Writer::from_writer(Vec::new());
        let header = ["gpu", "kernel", "shape", "precision", "time_us", "op", "source", "date", "versions"];
        let plain = self.kernels.iter().map(|measured| ("", measured));
        let of_ops = self.ops.iter().map(|row| (row.op.as_str(), &row.measured));
        let rows = plain.chain(of_ops).map(|(op, measured)| {
            let Written(kind, shape, precision, time) = Written::from(*measured);
            let time = time.to_string();
            let cells = [gpu, &kind, &shape, precision.name(), &time, op, &self.source, date, versions];
            cells.map(str::to_string)
        });
        let all = std::iter::once(header.map(str::to_string)).chain(rows);
        all.for_each(|row| writer.write_record(row).expect("a vector takes every row"));
        let bytes = writer.into_inner().expect("a vector takes every row");
        String::from_utf8(bytes).expect("cells are text")
    }

    /// The profile of a GPU whose kernels were timed call by call. Calls that `from_csv` would refuse are left out: those of
    /// empty tensors, and those that took less than a picosecond or more than an hour.
    pub fn of_calls(calls: &[MeasuredKernel], source: &str) -> Self {
        let mut times: BTreeMap<(String, String, Precision), Vec<f64>> = BTreeMap::new();
        for call in calls {
            let written = Written::from(*call);
            if MeasuredKernel::try_from(written.clone()).is_ok() {
                let Written(kind, shape, precision, microseconds) = written;
                times.entry((kind, shape, precision)).or_default().push(microseconds);
            }
        }
        Self { source: source.into(), kernels: medians(times), ops: Vec::new() }
    }
}

/// Each shape once, with the median of its microseconds.
fn medians(times: BTreeMap<(String, String, Precision), Vec<f64>>) -> Vec<MeasuredKernel> {
    let of_shape = |((kind, shape, precision), times)| {
        let written = Written(kind, shape, precision, median(times));
        MeasuredKernel::try_from(written).expect("the median of readable times is readable")
    };
    times.into_iter().map(of_shape).collect()
}

/// The middle of some numbers, the mean of both middle ones of an even count.
fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    let half = times.len() / 2;
    if times.len() % 2 == 1 { times[half] } else { 0.5 * (times[half - 1] + times[half]) }
}

fn unreadable(origin: &str, error: &csv::Error) -> SpecError {
    let line = error.position().map(|position| format!(":{}", position.line())).unwrap_or_default();
    SpecError::Syntax { origin: format!("{origin}{line}"), message: reason(error) }
}

/// An error without its place in the file.
fn reason(error: &csv::Error) -> String {
    match error.kind() {
        csv::ErrorKind::Deserialize { err, .. } => err.kind().to_string(),
        csv::ErrorKind::UnequalLengths { expected_len, len, .. } => {
            format!("{len} cells where the header has {expected_len}")
        }
        _ => error.to_string(),
    }
}

impl Cluster {
    /// This cluster with kernels that were measured on its GPU, a CSV; `origin` names it in messages.
    ///
    /// # Errors
    /// As `DeviceProfile::from_csv`.
    pub fn with_device_profile(self, text: &str, origin: &str) -> Result<Self, SpecError> {
        let profile = Some(DeviceProfile::from_csv(text, origin, &self.node.gpu.name)?);
        let node = super::Node { gpu: Gpu { profile, ..self.node.gpu }, ..self.node };
        Ok(Self { node, ..self })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "gpu,kernel,shape,precision,time_us,source,date,versions\n";
    const ROWS: &str = "a100-80gb-sxm,gemm,m=8 n=8 k=8,bf16,4,log,,\n\
                        a100-80gb-sxm,gemm,k=8 m=8 n=8 count=1,bf16,8,log,,\n\
                        a100-80gb-sxm,gemm,m=8 n=8 k=8 adds_to=4,bf16,7,log,,\n\
                        a100-80gb-sxm,attention-backward,batch=2 heads=4 kv_heads=2 queries=64 keys=64 head_dim=32 \
                        mask=window:16 version=flash-2,fp16,9.5,,2025-01-01,CUDA 12\n\
                        a100-80gb-sxm,reduction,bytes=1048576,bf16,3,,,\n\
                        h100-80gb-sxm,gemm,m=8 n=8 k=8,bf16,1,,,\n";

    #[test]
    fn rows_of_the_gpu_are_read_and_written_back() {
        let text = format!("{HEADER}{ROWS}");
        let cluster = Cluster::from_name("dgx-a100").unwrap().with_device_profile(&text, "rows.csv").unwrap();
        let profile = cluster.node.gpu.profile.clone().unwrap();
        assert_eq!((profile.kernels.len(), profile.source.as_str()), (4, "log"));
        let gemm = Kernel::Gemm { count: 1, m: 8, n: 8, k: 8, precision: Precision::Bf16, adds_to: None };
        let found = profile.kernels.iter().find(|measured| measured.kernel == gemm).unwrap();
        assert_eq!(found.time, Seconds::new(6e-6), "the median of 4 and 8");
        let text = toml::to_string(&cluster).unwrap();
        assert_eq!(Cluster::from_toml(&text, "cluster.toml").unwrap(), cluster);
        let rows = profile.to_csv("a100-80gb-sxm", [""; 2]);
        assert_eq!(DeviceProfile::from_csv(&rows, "rows.csv", "a100-80gb-sxm").unwrap(), profile);
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_its_line() {
        let check = |row: &str, message: &str| {
            let text = format!("{HEADER}{row}\n");
            let error = DeviceProfile::from_csv(&text, "rows.csv", "gb200").unwrap_err();
            assert_eq!(error.to_string(), message);
        };
        let known = "expected one of gemm, attention-forward, attention-backward, elementwise, reduction";
        check("gb200,conv,m=1,bf16,1,,,", &format!("rows.csv:2: unknown kernel `conv`, {known}"));
        check("gb200,gemm,m=1 n=2,bf16,1,,,", "rows.csv:2: a gemm needs `k`");
        check("gb200,gemm,m=1 n=2 k=0,bf16,1,,,", "rows.csv:2: `k=0` is no whole number above 0");
        check("gb200,gemm,m=1 n=2 k=3 l=4,bf16,1,,,", "rows.csv:2: a gemm has no `l`");
        check("gb200,gemm,m=1 m=2 n=2 k=3,bf16,1,,,", "rows.csv:2: `m` is given twice");
        check("gb200,gemm,m,bf16,1,,,", "rows.csv:2: `m` is not `name=value`");
        check(
            "gb200,gemm,m=1 n=2 k=3,bf16,0,,,",
            "rows.csv:2: a time is above 0 and at most an hour, not 0 us",
        );
        check("gb200,gemm,m=1 n=2 k=3,bf16", "rows.csv:2: 4 cells where the header has 8");
        check("h20,gemm,m=1 n=2 k=3,bf16,1,,,", "rows.csv: `gpu` is gb200; the file has rows of h20 only");
    }

    #[test]
    fn calls_that_no_profile_may_have_are_left_out() {
        let gemm = |k: usize, seconds: f64| MeasuredKernel {
            kernel: Kernel::Gemm { count: 1, m: 8, n: 8, k, precision: Precision::Bf16, adds_to: None },
            time: Seconds::new(seconds),
        };
        let calls = [gemm(8, 2e-6), gemm(8, 1e-15), gemm(8, 1e9), gemm(0, 2e-6), gemm(8, 4e-6)];
        let profile = DeviceProfile::of_calls(&calls, "a trace");
        assert_eq!(profile.kernels, [gemm(8, 3e-6)]);
    }
}
