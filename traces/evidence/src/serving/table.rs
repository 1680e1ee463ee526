//! Tables of serving runs, read by their columns and written with their forecasts.

use super::case::ServingCase;
use super::figures::{FIGURES, Figure};
use super::forecast::{ServingForecast, forecast};
use crate::columns::{UnknownColumn, unknown};
use crate::kernels::{Cells, NoCase};
use crate::runs::table::not_csv;
use csv::{ReaderBuilder, StringRecord, Trim, Writer};
use rayon::prelude::*;
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use thiserror::Error;
use trainwright_spec::serving::ServingRanges;

/// The columns that a table must have.
const NEEDED: [&str; 5] = ["model_name", "gpu", "engine", "input_len", "output_len"];

/// The other columns that rows are read from, and those that say which row it is.
const READ: [&str; 14] = [
    "id",
    "source",
    "quality",
    "gpus",
    "tp",
    "pp",
    "ep",
    "dp",
    "precision_weights",
    "precision_kv",
    "date",
    "batch",
    "concurrency",
    "request_rate",
];

/// Columns of the published tables that no forecast is made from, besides the figures.
const NOT_READ: [&str; 1] = ["engine_version"];

/// A table of serving runs.
#[derive(Debug)]
pub struct ServingTable {
    headers: StringRecord,
    records: Vec<StringRecord>,
    columns: BTreeMap<String, usize>,
}

/// Why a table cannot be used.
#[derive(Debug, Error)]
pub enum ServingTableError {
    /// It is not CSV, or not text.
    #[error("{}", not_csv(.0))]
    Csv(#[from] csv::Error),
    /// It lacks a column.
    #[error("it has no column `{0}`; needed are {NEEDED:?}")]
    Lacks(&'static str),
    /// It has a column that a forecast would add.
    #[error("the column `{0}` is there already: a forecast adds it")]
    Taken(String),
}

impl ServingTable {
    /// Reads a table.
    ///
    /// # Errors
    /// `ServingTableError`.
    pub fn read(from: impl Read) -> Result<Self, ServingTableError> {
        let mut reader = ReaderBuilder::new().trim(Trim::Headers).from_reader(from);
        let headers = reader.headers()?.clone();
        let columns: BTreeMap<String, usize> =
            headers.iter().enumerate().map(|(index, name)| (name.to_string(), index)).collect();
        if let Some(lacks) = NEEDED.into_iter().find(|column| !columns.contains_key(*column)) {
            return Err(ServingTableError::Lacks(lacks));
        }
        if let Some(taken) = added().into_iter().find(|column| columns.contains_key(column)) {
            return Err(ServingTableError::Taken(taken));
        }
        let records = reader.records().collect::<Result<Vec<StringRecord>, csv::Error>>()?;
        Ok(Self { headers, records, columns })
    }

    /// Its columns that are not known, of which nothing is read.
    pub fn unknown_columns(&self) -> Vec<UnknownColumn> {
        let figures = FIGURES.iter().map(|figure| figure.column);
        unknown(self.headers.iter(), NEEDED.into_iter().chain(READ).chain(NOT_READ).chain(figures))
    }

    /// Forecasts of all rows.
    pub fn forecasts(&self) -> Vec<Result<ServingForecast, NoCase>> {
        (0..self.len()).into_par_iter().map(|row| forecast(&self.case(row)?)).collect()
    }

    /// How many rows it has.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Whether it has no row.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// The case of a row.
    ///
    /// # Errors
    /// `Unsupported` for what is not known, `Invalid` for cells that make no sense.
    pub fn case(&self, row: usize) -> Result<ServingCase, NoCase> {
        ServingCase::of(&Cells::new(&self.columns, &self.records[row]))
    }

    /// A cell of a row.
    pub fn text(&self, row: usize, column: &str) -> &str {
        Cells::new(&self.columns, &self.records[row]).text(column)
    }

    /// Writes the rows with their forecasts.
    ///
    /// # Errors
    /// Those of writing.
    pub fn write(&self, forecasts: &[Result<ServingForecast, NoCase>], to: impl Write) -> io::Result<()> {
        let ranges = ServingRanges::of_catalog();
        let mut writer = Writer::from_writer(to);
        let added = added();
        writer.write_record(self.headers.iter().chain(added.iter().map(String::as_str)))?;
        for (record, forecast) in self.records.iter().zip(forecasts) {
            let mut cells: Vec<String> = match forecast {
                Ok(forecast) => vec!["ok".into(), forecast.assumed.clone()],
                Err(NoCase::Unsupported(reason)) => vec!["unsupported".into(), reason.clone()],
                Err(NoCase::Invalid(reason)) => vec!["invalid".into(), reason.clone()],
            };
            for figure in &FIGURES {
                cells.extend(figure_cells(figure, forecast.as_ref().ok(), ranges));
            }
            writer.write_record(record.iter().chain(cells.iter().map(String::as_str)))?;
        }
        writer.flush()
    }
}

/// A figure's forecast and the ends of its range, which are blank if there is none.
fn figure_cells(figure: &Figure, forecast: Option<&ServingForecast>, ranges: &ServingRanges) -> [String; 3] {
    let Some(forecast) = forecast else { return [const { String::new() }; 3] };
    let expected = (figure.of)(forecast);
    let ends = match figure.range {
        "latency" => ranges
            .of_latency(&forecast.engine, [forecast.ttft, forecast.latency].map(|time| 1e3 * time.get())),
        name => ranges.of(name, &forecast.engine).map(|range| [expected * range.low, expected * range.high]),
    };
    let end = |index: usize| ends.map(|ends| format!("{:.6}", ends[index])).unwrap_or_default();
    [format!("{expected:.6}"), end(0), end(1)]
}

/// The columns that a forecast adds.
fn added() -> Vec<String> {
    let of = |figure: &Figure| ["", "_p10", "_p90"].map(|end| format!("predicted_{}{end}", figure.column));
    ["status", "reason"].map(String::from).into_iter().chain(FIGURES.iter().flat_map(of)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_of_the_published_table_are_known() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../published/inference/serving.csv");
        let table = ServingTable::read(std::fs::File::open(path).unwrap()).unwrap();
        assert_eq!(table.unknown_columns(), []);
        let headers = "model_name,gpu,engine,input_len,output_len,concurency\n";
        let unknown = ServingTable::read(headers.as_bytes()).unwrap().unknown_columns();
        let names: Vec<(&str, Option<&str>)> =
            unknown.iter().map(|column| (column.name.as_str(), column.nearest.as_deref())).collect();
        assert_eq!(names, [("concurency", Some("concurrency"))]);
    }
}
