//! A table of measured speeds, which stands in for forecasts: `profile,gpus,steps_per_s` and, for several kinds of nodes, `node`;
//! with `nodes` a row holds for GPUs that are spread over that number of nodes.

use serde::Deserialize;

/// A measured speed.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Throughput {
    /// What ran.
    pub profile: String,
    /// The kind of node by its name; `None`: any.
    #[serde(default)]
    pub node: Option<String>,
    /// On how many GPUs.
    pub gpus: usize,
    /// On how many nodes these are; `None`: on as few as have them.
    #[serde(default)]
    pub nodes: Option<usize>,
    /// Its speed; zero: it does not run there.
    pub steps_per_s: f64,
}

/// The most rows of a table.
pub const MOST_ROWS: usize = 1_000_000;

/// The rows of a table.
///
/// # Errors
/// The first line that makes no sense, in words.
pub fn read(text: &str) -> Result<Vec<Throughput>, String> {
    let mut reader = csv::ReaderBuilder::new().trim(csv::Trim::All).from_reader(text.as_bytes());
    let mut rows = Vec::new();
    for (index, row) in reader.deserialize::<Throughput>().enumerate() {
        let row =
            row.map_err(|error| format!("line {}: {}", index + 2, error.to_string().replace('\n', " ")))?;
        let line = index + 2;
        if row.gpus == 0 || !(0.0..=1e12).contains(&row.steps_per_s) {
            return Err(format!("line {line}: gpus should be 1 or more, steps_per_s from 0 to 1e12"));
        }
        if row.nodes.is_some_and(|nodes| nodes == 0 || nodes > row.gpus) {
            return Err(format!("line {line}: nodes should be from 1 to gpus"));
        }
        if rows.len() == MOST_ROWS {
            return Err(format!("line {line}: there are more than {MOST_ROWS} rows"));
        }
        rows.push(row);
    }
    if rows.is_empty() { Err("there is no row".into()) } else { Ok(rows) }
}
