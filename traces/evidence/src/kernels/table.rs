//! Tables of measured kernels, read by their columns and written with their forecasts.

use super::cells::Cells;
use super::kinds::{KINDS, Kind};
use csv::{ReaderBuilder, StringRecord, Trim, Writer};
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::sync::Arc;
use thiserror::Error;
use trainwright_sim::libraries::{Call, Chip, Wanted, estimate_with};
use trainwright_sim::network::Placement;
use trainwright_spec::cluster::Cluster;
use trainwright_spec::collective::CollectiveKind;
use trainwright_spec::library::{self, Library};
use trainwright_spec::units::{Bytes, Seconds};

/// The columns that a forecast adds.
const FORECAST_COLUMNS: [&str; 4] = ["predicted_ms", "error_pct", "status", "reason"];

/// A table of measured kernels.
#[derive(Debug)]
pub struct KernelTable {
    headers: StringRecord,
    records: Vec<StringRecord>,
    /// A row each: its call, or why it has none.
    pub cases: Vec<Result<Case, NoCase>>,
}

/// A measured call.
#[derive(Debug, Clone, PartialEq)]
pub struct Case {
    /// Name of the row.
    pub id: String,
    /// What the table calls the GPU.
    pub machine: String,
    /// The kind of row.
    pub kind: &'static str,
    /// The library, as `trtllm`.
    pub library: String,
    /// The library's name of the kernel.
    pub kernel: String,
    /// What was measured.
    pub work: Work,
    /// The measured time; `None` if the row has none.
    pub measured: Option<Seconds>,
    /// The cluster with its GPUs.
    pub cluster: Arc<Cluster>,
}

/// What was measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Work {
    /// A kernel of a library.
    Kernel(Call),
    /// A collective of NCCL over the first GPUs of a node.
    Collective {
        /// Which.
        kind: CollectiveKind,
        /// Its size, see `CollectiveKind`.
        bytes: Bytes,
        /// How many GPUs.
        gpus: usize,
    },
}

/// The forecast of a row.
#[derive(Debug, Clone, PartialEq)]
pub struct Forecast {
    /// The time.
    pub time: Seconds,
    /// What it follows from.
    pub from: String,
}

/// Why a row has no forecast.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NoCase {
    /// Something that is not known here.
    #[error("{0}")]
    Unsupported(String),
    /// A cell that makes no sense.
    #[error("{0}")]
    Invalid(String),
}

/// Why a table cannot be used.
#[derive(Debug, Error)]
pub enum KernelTableError {
    /// It is not CSV, or not text.
    #[error("{0}")]
    Csv(#[from] csv::Error),
    /// Its columns are of no known kind.
    #[error("its columns are of no kind of kernel table; known are {known}")]
    Kind {
        /// The kinds with their columns.
        known: String,
    },
    /// It has a column that a forecast would add.
    #[error("the column `{0}` is there already: a forecast adds it")]
    Taken(&'static str),
}

impl KernelTable {
    /// Reads a table.
    ///
    /// # Errors
    /// `KernelTableError`.
    pub fn read(from: impl Read) -> Result<Self, KernelTableError> {
        let mut reader = ReaderBuilder::new().trim(Trim::Headers).from_reader(from);
        let headers = reader.headers()?.clone();
        let columns: BTreeMap<String, usize> =
            headers.iter().enumerate().map(|(index, name)| (name.to_string(), index)).collect();
        let suits = |kind: &&Kind| kind.columns.iter().all(|column| columns.contains_key(*column));
        let kinds: Vec<&'static Kind> = KINDS.iter().filter(suits).collect();
        if kinds.is_empty() {
            let kind = |kind: &Kind| format!("{} ({})", kind.name, kind.columns.join(", "));
            let known = KINDS.iter().map(kind).collect::<Vec<_>>().join("; ");
            return Err(KernelTableError::Kind { known });
        }
        if let Some(taken) = FORECAST_COLUMNS.into_iter().find(|column| columns.contains_key(*column)) {
            return Err(KernelTableError::Taken(taken));
        }
        let records: Vec<StringRecord> = reader.records().collect::<Result<_, _>>()?;
        let mut machines = BTreeMap::new();
        let cases =
            records.iter().map(|record| case(&Cells::new(&columns, record), &kinds, &mut machines)).collect();
        Ok(Self { headers, records, cases })
    }

    /// Forecasts of its rows with these libraries.
    pub fn forecasts(&self, libraries: &[Library]) -> Vec<Result<Forecast, NoCase>> {
        let forecast = |case: &Result<Case, NoCase>| case.clone().and_then(|case| case.forecast(libraries));
        self.cases.iter().map(forecast).collect()
    }

    /// Writes the table with its forecasts: milliseconds, their errors, `ok`, `unsupported` or `invalid`, and why.
    ///
    /// # Errors
    /// Of the writer.
    pub fn write(&self, forecasts: &[Result<Forecast, NoCase>], out: impl Write) -> io::Result<()> {
        let mut writer = Writer::from_writer(out);
        writer.write_record(self.headers.iter().chain(FORECAST_COLUMNS))?;
        for ((record, case), forecast) in self.records.iter().zip(&self.cases).zip(forecasts) {
            let measured = case.as_ref().ok().and_then(|case| case.measured);
            let added = match forecast {
                Ok(Forecast { time, from }) => {
                    let error = measured.map(|measured| format!("{:.2}", 100.0 * (*time / measured - 1.0)));
                    [format!("{:.6}", 1e3 * time.get()), error.unwrap_or_default(), "ok".into(), from.clone()]
                }
                Err(fault) => {
                    let status = match fault {
                        NoCase::Unsupported(_) => "unsupported",
                        NoCase::Invalid(_) => "invalid",
                    };
                    [String::new(), String::new(), status.into(), fault.to_string()]
                }
            };
            writer.write_record(record.iter().chain(added.iter().map(String::as_str)))?;
        }
        writer.flush()
    }
}

impl Case {
    /// Its forecast with these libraries; that of a collective does not need them.
    ///
    /// # Errors
    /// `Unsupported` if no kernel of its family and format was measured, or the GPU lacks the format, or the node the GPUs.
    pub fn forecast(&self, libraries: &[Library]) -> Result<Forecast, NoCase> {
        match &self.work {
            Work::Kernel(call) => {
                let wanted =
                    Wanted { library: Some(&self.library), kernel: Some(&self.kernel), latency: None };
                let estimate = estimate_with(libraries, call, &Chip::of(&self.cluster), &wanted)
                    .map_err(|unknown| NoCase::Unsupported(unknown.to_string()))?;
                let from = format!(
                    "fit of {} {} on {}",
                    estimate.library, estimate.fitted.kernel, estimate.fitted.on
                );
                Ok(Forecast { time: estimate.time.total(), from })
            }
            Work::Collective { kind, bytes, gpus } => {
                let here = self.cluster.node.gpus.value;
                if !(2..=here).contains(gpus) {
                    return Err(NoCase::Unsupported(format!(
                        "{gpus} GPUs; a node of {} has {here}",
                        self.machine
                    )));
                }
                let ranks: Vec<usize> = (0..*gpus).collect();
                let time = Placement::new(&ranks, &self.cluster).collective_time(*kind, *bytes);
                Ok(Forecast { time, from: format!("NCCL on {}", self.cluster.name) })
            }
        }
    }
}

/// The call of a row.
fn case(
    cells: &Cells,
    kinds: &[&'static Kind],
    machines: &mut BTreeMap<String, Option<Arc<Cluster>>>,
) -> Result<Case, NoCase> {
    let kind = kinds.iter().find(|kind| (kind.is_of)(cells));
    let kind = kind.ok_or_else(|| NoCase::Unsupported("the row is of no known kind of kernel".into()))?;
    let machine = cells.text("system").to_string();
    let cluster = machines.entry(machine.clone()).or_insert_with(|| cluster(&machine)).clone();
    let cluster = cluster
        .ok_or_else(|| NoCase::Unsupported(format!("the catalog has no GPU that tables call `{machine}`")))?;
    let work = (kind.call)(cells)?;
    let of_exchange = [cells.text("comm_backend"), cells.text("phase")];
    let kernel = match of_exchange {
        [backend, phase] if !backend.is_empty() => format!("{backend} {phase}"),
        _ => cells.text("kernel_source").to_string(),
    };
    let measured = match cells.text("transmit_us") {
        "" => cells.time("latency_ms", 1e-3)?,
        _ => cells.time("transmit_us", 1e-6)?,
    };
    Ok(Case {
        id: cells.text("id").into(),
        machine,
        kind: kind.name,
        library: cells.text("engine").into(),
        kernel,
        work,
        measured: measured.map(Seconds::new),
        cluster,
    })
}

/// The cluster that a table calls `machine`.
fn cluster(machine: &str) -> Option<Arc<Cluster>> {
    Cluster::from_name(library::machine(machine)?).ok().map(Arc::new)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "id,system,engine,kernel_source,gemm_dtype,m,n,k,latency_ms\n";

    fn written(rows: &str) -> String {
        let table = KernelTable::read(format!("{HEADER}{rows}").as_bytes()).unwrap();
        let mut out = Vec::new();
        table.write(&table.forecasts(Library::all()), &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn rows_keep_their_cells_and_get_a_forecast_or_a_reason() {
        let check = |row: &str, status: &str, reason: &str| {
            let text = written(&format!("{row}\n"));
            let line = text.lines().nth(1).unwrap();
            assert!(line.starts_with(row) && line.contains(status) && line.contains(reason), "{line}");
        };
        let fit = "fit of vllm torch.nn.functional.linear on hopper";
        check("a,H100 SXM,vllm,torch.nn.functional.linear,bfloat16,16,8192,8192,0.05", ",ok,", fit);
        check("a,Z9,vllm,x,bfloat16,16,8192,8192,1", ",unsupported,", "no GPU that tables call `Z9`");
        check("a,H100 SXM,vllm,x,int3,16,8192,8192,1", ",unsupported,", "`gemm_dtype` is int3");
        check("a,H100 SXM,vllm,x,nvfp4,16,8192,8192,1", ",unsupported,", "lacks the number format nvfp4");
        check("a,H100 SXM,vllm,x,bfloat16,0,8192,8192,1", ",invalid,", "`m` is 0");
        check("a,H100 SXM,vllm,x,bfloat16,1.5,8192,8192,1", ",invalid,", "`m` is 1.5");
        check("a,H100 SXM,vllm,x,bfloat16,,8192,8192,1", ",invalid,", "`m` is blank");
        check("a,H100 SXM,vllm,x,bfloat16,1e99,8192,8192,1", ",invalid,", "`m` is 1e99");
        check("a,H100 SXM,vllm,x,bfloat16,16,8192,8192,-1", ",invalid,", "`latency_ms` is -1");
    }

    #[test]
    fn errors_are_relative_to_the_measured_time() {
        let row = |time: &str| {
            let text = written(&format!("a,H100 SXM,vllm,x,bfloat16,16,8192,8192,{time}\n"));
            let line = text.lines().nth(1).unwrap().to_string();
            line.split(',').skip(9).take(2).map(str::to_string).collect::<Vec<_>>()
        };
        let forecast = row("")[0].clone();
        assert_eq!(row(""), [forecast.clone(), String::new()], "nothing measured, no error");
        let error: f64 = row(&forecast)[1].parse().unwrap();
        assert!(error.abs() < 0.01, "{error}");
    }

    #[test]
    fn tables_of_no_known_kind_are_refused() {
        let refusal = |text: &str| KernelTable::read(text.as_bytes()).unwrap_err().to_string();
        assert!(refusal("a,b\n1,2\n").starts_with("its columns are of no kind of kernel table"));
        let taken = refusal("gemm_dtype,m,n,k,status\n");
        assert_eq!(taken, "the column `status` is there already: a forecast adds it");
        assert!(refusal("gemm_dtype,m,n,k\n1,2\n").contains("CSV"), "rows of different lengths");
    }

    #[test]
    fn collectives_of_nccl_need_no_library() {
        let text = "id,system,engine,op_name,nccl_dtype,num_gpus,message_size,latency_ms\n\
                    a,H100 SXM,nccl,all_reduce,half,8,67108864,0.5\na,H100 SXM,nccl,all_reduce,half,16,64,0.5\n";
        let table = KernelTable::read(text.as_bytes()).unwrap();
        let forecasts = table.forecasts(&[]);
        // 128 MiB in a ring at 450 GB/s take 522 us at least.
        let time = forecasts[0].as_ref().unwrap().time;
        assert!((250e-6..1000e-6).contains(&time.get()), "{time}");
        assert_eq!(forecasts[1].as_ref().unwrap_err().to_string(), "16 GPUs; a node of H100 SXM has 8");
    }
}
