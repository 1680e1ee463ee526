//! Tables of runs, read and written with all columns that they had.

use super::columns::known;
use super::rl::{PHASE_COLUMNS, RlFigures, phase_headers};
use super::{NoPlan, Outcome, Run};
use crate::columns::{UnknownColumn, unknown};
use csv::{ReaderBuilder, StringRecord, Trim, Writer};
use std::io::{self, Read, Write};
use thiserror::Error;
use trainwright_spec::calibration::residuals::Traits;

/// The columns that a forecast adds.
pub const FORECAST_COLUMNS: [&str; 14] = [
    "predicted_step_time_s",
    "predicted_tokens_per_s_per_gpu",
    "predicted_mfu_pct",
    "predicted_peak_memory_gb",
    "predicted_outcome",
    "bubble_pct",
    "exposed_comm_pct",
    "error_pct",
    "status",
    "reason",
    "predicted_used_memory_gb",
    "stack",
    "p10_step_time_s",
    "p90_step_time_s",
];

/// A table of runs.
#[derive(Debug, Clone)]
pub struct Table {
    headers: StringRecord,
    rows: Vec<StringRecord>,
}

/// The forecast of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Prediction {
    /// The stack of the row.
    pub stack: String,
    /// What the forecast does not have from the row, if anything: `Completed::remark`.
    pub remark: Option<String>,
    /// Time of a step, in seconds.
    pub step_seconds: f64,
    /// Tokens of a step for each GPU; of a batch or length that stands in, if the row's is blank.
    pub tokens_per_gpu: f64,
    /// 10th and 90th percentile of measured over forecast step times.
    pub band: Option<(f64, f64)>,
    /// 10th and 90th percentile of measured over forecast peak memory.
    pub memory_band: Option<(f64, f64)>,
    /// The fractions of runs like this one whose measured over forecast step time and memory is below this run's; each
    /// `None` if not measured or without residuals.
    pub places: [Option<f64>; 2],
    /// The probability that it fits, by the residuals of memory.
    pub fits_with: Option<f64>,
    /// The properties by which other runs resemble it.
    pub traits: Traits,
    /// Time of a step at the peak of the matrix units with the pipeline's bubble, without other losses.
    pub ideal_seconds: f64,
    /// MFU (full attention) in percent.
    pub mfu_percent: f64,
    /// Peak memory as the software would print it: see `trainwright_spec::stack::MemoryReport`.
    pub peak_memory_gb: f64,
    /// What the framework's allocator has reserved at its peak, in the software's unit, where `peak_memory_gb` is not that of
    /// a peak but of a time between steps; `None` elsewhere.
    pub reserved_gb: Option<f64>,
    /// Memory of the fullest GPU, in 10⁹ bytes.
    pub used_memory_gb: f64,
    /// Whether that fits.
    pub outcome: Outcome,
    /// Part of the step in which ranks do nothing, in percent, in the mean over ranks.
    pub bubble_percent: f64,
    /// Part of the step in which ranks communicate and run no kernel, in percent, in the mean over ranks.
    pub exposed_percent: f64,
    /// The phases of a loop with generation; `None` of plain training.
    pub rl: Option<RlFigures>,
}

/// Why a table cannot be used.
#[derive(Debug, Error)]
pub enum TableError {
    /// It is not CSV, or not text.
    #[error("{}", not_csv(.0))]
    Csv(#[from] csv::Error),
    /// It lacks a column without which no row has a plan.
    #[error(
        "the column `{0}` is missing; needed are `gpu`, and `model_name` or `params_b` or both `layers` and `hidden`"
    )]
    Column(&'static str),
    /// It has a column that a forecast would add.
    #[error("the column `{0}` is there already: a forecast adds it")]
    Taken(String),
}

/// Why text is no table, in words of the table: its first line is that of the columns.
pub(crate) fn not_csv(error: &csv::Error) -> String {
    let place = error.position().map_or_else(String::new, |position| format!("line {}: ", position.line()));
    match error.kind() {
        csv::ErrorKind::UnequalLengths { expected_len, len, .. } => {
            format!("{place}the row has {len} cells; the first line names {expected_len} columns")
        }
        csv::ErrorKind::Utf8 { .. } => format!("{place}it is no text in UTF-8; a table is CSV"),
        _ => format!("{place}{error}; a table is CSV"),
    }
}

impl Table {
    /// Reads a table.
    ///
    /// # Errors
    /// `Csv` for what is no CSV or has rows of different lengths, `Column` and `Taken` for its columns.
    pub fn read(from: impl Read) -> Result<Self, TableError> {
        let mut reader = ReaderBuilder::new().trim(Trim::Headers).from_reader(from);
        let headers = reader.headers()?.clone();
        let has = |column: &str| headers.iter().any(|header| header == column);
        // Of several ways to say a size, the one that the table has a part of lacks the rest.
        let sizes: &[&str] = match ["model_name", "params_b", "layers", "hidden"].map(has) {
            [false, false, false, false] => &["model_name"],
            [false, false, ..] => &["layers", "hidden"],
            _ => &[],
        };
        if let Some(column) = sizes.iter().chain(&["gpu"]).find(|column| !has(column)) {
            return Err(TableError::Column(column));
        }
        if let Some(taken) = FORECAST_COLUMNS.into_iter().find(|column| has(column)) {
            return Err(TableError::Taken(taken.into()));
        }
        if let Some(taken) = phase_headers().find(|column| has(column)) {
            return Err(TableError::Taken(taken));
        }
        let rows = reader.records().collect::<Result<_, _>>()?;
        Ok(Self { headers, rows })
    }

    /// The run of each row.
    pub fn runs(&self) -> impl Iterator<Item = Result<Run, NoPlan>> {
        self.rows.iter().map(|row| {
            row.deserialize(Some(&self.headers)).map_err(|error| NoPlan::Invalid(self.cell(row, &error)))
        })
    }

    /// The cells of a column that runs do not have, by row; blank if the table lacks it.
    pub fn column(&self, name: &str) -> Vec<&str> {
        let index = self.headers.iter().position(|header| header == name);
        self.rows.iter().map(|row| index.and_then(|index| row.get(index)).unwrap_or_default()).collect()
    }

    /// Its columns that are not known, of which nothing is read.
    pub fn unknown_columns(&self) -> Vec<UnknownColumn> {
        unknown(self.headers.iter(), known())
    }

    /// Which cell cannot be read, and why.
    fn cell(&self, row: &StringRecord, error: &csv::Error) -> String {
        // Errors of a cell's deserializer have no column: each cell is read alone to find it.
        let fault = |(header, cell): (&str, &str)| {
            let (header, cell) = (StringRecord::from(vec![header]), StringRecord::from(vec![cell]));
            let fault = cell.deserialize::<Run>(Some(&header)).err()?;
            let csv::ErrorKind::Deserialize { err, .. } = fault.kind() else { return None };
            Some(format!("`{}`: {}", &header[0], err.kind()))
        };
        self.headers.iter().zip(row).find_map(fault).unwrap_or_else(|| error.to_string())
    }

    /// Writes the table with a forecast, or a refusal, for each of its rows in order.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write(&self, predictions: &[Result<Prediction, NoPlan>], out: impl Write) -> io::Result<()> {
        let mut writer = Writer::from_writer(out);
        // A table without such loops has no columns for their phases.
        let loops = self.runs().any(|run| run.is_ok_and(|run| run.is_rl()));
        let phases: Vec<String> = if loops { phase_headers().collect() } else { Vec::new() };
        let headers = self.headers.iter().chain(FORECAST_COLUMNS);
        writer.write_record(headers.chain(phases.iter().map(String::as_str)))?;
        for ((row, run), prediction) in self.rows.iter().zip(self.runs()).zip(predictions) {
            let cells = match (prediction, run) {
                (Ok(prediction), Ok(run)) => prediction.cells(&run),
                (Err(refusal), _) => refused(refusal),
                (_, Err(refusal)) => refused(&refusal),
            };
            let figures = prediction.as_ref().ok().and_then(|prediction| prediction.rl.as_ref());
            let cells_of_phases = match (loops, figures) {
                (false, _) => Vec::new(),
                (true, None) => vec![String::new(); 3 * PHASE_COLUMNS.len()],
                (true, Some(figures)) => figures.cells(),
            };
            writer.write_record(row.iter().map(str::to_string).chain(cells).chain(cells_of_phases))?;
        }
        writer.flush()
    }
}

impl Prediction {
    /// The forecast over the measurement, less one: of the step time, or of the time for a token where the row does not
    /// state the tokens of a step.
    pub fn error(&self, run: &Run) -> Option<f64> {
        let by_rate =
            || Some(self.tokens_per_gpu / run.measured_tokens_per_s_per_gpu.filter(|rate| *rate > 0.0)?);
        Some(self.step_seconds / run.step_seconds().or_else(by_rate)? - 1.0)
    }

    /// Measured over forecast peak memory; `None` if the row has no peak.
    pub fn memory_ratio(&self, run: &Run) -> Option<f64> {
        match self.reserved_gb {
            Some(forecast) => Some(run.reserved_gb()? / forecast),
            None => {
                let measured = run.measured_peak_memory_gb.filter(|memory| *memory > 0.0)?;
                Some(measured / self.peak_memory_gb)
            }
        }
    }

    fn cells(&self, run: &Run) -> [String; FORECAST_COLUMNS.len()] {
        let error = self.error(run).map(|error| 100.0 * error);
        let percent = |value: f64| format!("{value:.2}");
        let end = |of: fn((f64, f64)) -> f64| {
            self.band.map_or_else(String::new, |band| format!("{:.6}", self.step_seconds * of(band)))
        };
        [
            format!("{:.6}", self.step_seconds),
            format!("{:.2}", self.tokens_per_gpu / self.step_seconds),
            percent(self.mfu_percent),
            format!("{:.3}", self.peak_memory_gb),
            self.outcome.name().into(),
            percent(self.bubble_percent),
            percent(self.exposed_percent),
            error.map_or_else(String::new, percent),
            "ok".into(),
            self.remark.clone().unwrap_or_default(),
            format!("{:.3}", self.used_memory_gb),
            self.stack.clone(),
            end(|(low, _)| low),
            end(|(_, high)| high),
        ]
    }
}

fn refused(refusal: &NoPlan) -> [String; FORECAST_COLUMNS.len()] {
    let mut cells = [const { String::new() }; FORECAST_COLUMNS.len()];
    let status = match refusal {
        NoPlan::Invalid(_) => "invalid",
        NoPlan::Unsupported(_) => "unsupported",
    };
    for (column, cell) in FORECAST_COLUMNS.iter().zip(&mut cells) {
        match *column {
            "status" => *cell = status.into(),
            "reason" => *cell = refusal.to_string(),
            _ => {}
        }
    }
    cells
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forecasts::forecasts;
    use trainwright_spec::calibration::Calibration;

    /// A row of software that prints memory between steps, and its forecast.
    fn row(notes: &str) -> (Run, Prediction) {
        let table = format!(
            "id,gpu,gpus,layers,hidden,vocab,seq_len,gated_mlp,tp,micro_batch,global_batch,framework,measured_peak_memory_gb,notes\n\
             a-1,h100-80gb-sxm,8,16,2048,32000,4096,yes,8,1,8,nanotron,4.5,{notes}\n"
        );
        let table = Table::read(table.as_bytes()).unwrap();
        let runs: Vec<_> = table.runs().collect();
        let prediction = forecasts(&runs, &Calibration::default()).remove(0).unwrap();
        (runs[0].clone().unwrap(), prediction)
    }

    /// Each cell that cannot be read is named, though another one before it has the same text.
    #[test]
    fn a_cell_that_cannot_be_read_is_named_with_what_is_allowed() {
        let header = "id,notes,gpu,gpus,layers,hidden,seq_len,tp,packed,params_b";
        let count = "is not a whole number from 1 to 1000000000";
        for (row, expected) in [
            ("a,,x,0,2,64,8,1,yes,", format!("`gpus`: `0` {count}")),
            ("a,-8,x,-8,2,64,8,1,yes,", format!("`gpus`: `-8` {count}")),
            ("0,0,x,8,2,64,0,1,yes,", format!("`seq_len`: `0` {count}")),
            ("a,,x,8,2,64,8,0,yes,", format!("`tp`: `0` {count}")),
            ("a,,x,8,2.5,64,8,1,yes,", format!("`layers`: `2.5` {count}")),
            ("many,many,x,8,many,64,8,1,yes,", "`layers`: `many` is not a number".into()),
            ("a,,x,8,2,64,8,1,maybe,", "`packed`: `maybe` is neither yes nor no".into()),
            ("a,,x,8,2,64,8,1,yes,-1", "`params_b`: `-1` is not a number from 0 on".into()),
        ] {
            let table = Table::read(format!("{header}\n{row}\n").as_bytes()).unwrap();
            assert_eq!(table.runs().next().unwrap(), Err(NoPlan::Invalid(expected)), "{row}");
        }
    }

    #[test]
    fn what_is_no_table_of_runs_says_so_in_one_line() {
        let check = |text: &[u8], expected: &str| {
            assert_eq!(Table::read(text).unwrap_err().to_string(), expected);
        };
        let needed =
            "is missing; needed are `gpu`, and `model_name` or `params_b` or both `layers` and `hidden`";
        check(b"a,b\n", &format!("the column `model_name` {needed}"));
        check(b"model_name\n", &format!("the column `gpu` {needed}"));
        check(b"gpu,hidden\n", &format!("the column `layers` {needed}"));
        check(b"gpu,layers\n", &format!("the column `hidden` {needed}"));
        check(b"gpu,params_b\nx,1,2\n", "line 2: the row has 3 cells; the first line names 2 columns");
        check(b"gpu,params_b\nx,\xff\n", "line 2: it is no text in UTF-8; a table is CSV");
    }

    /// Memory between steps says nothing of the peak; what the allocator has reserved does.
    #[test]
    fn the_ratio_of_memory_is_that_of_peaks() {
        let (run, prediction) = row("reserved 12.5 GB; fp32 gradients");
        assert_eq!(run.reserved_gb(), Some(12.5));
        assert_eq!(prediction.memory_ratio(&run), Some(12.5 / prediction.reserved_gb.unwrap()));
        assert!(prediction.reserved_gb.unwrap() > prediction.peak_memory_gb);
        let (run, prediction) = row("reserved much");
        assert_eq!((run.reserved_gb(), prediction.memory_ratio(&run)), (None, None));
        let peak = Prediction { reserved_gb: None, ..prediction };
        assert_eq!(peak.memory_ratio(&run), Some(4.5 / peak.peak_memory_gb));
    }
}
