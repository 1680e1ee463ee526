//! A table of measured speeds, which stands in for forecasts: `profile,gpus,steps_per_s` and, for several kinds of nodes, `node`.

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
    /// Its speed; zero: it does not run there.
    pub steps_per_s: f64,
}

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
        if row.gpus == 0 || !(0.0..=1e12).contains(&row.steps_per_s) {
            let line = index + 2;
            return Err(format!("line {line}: gpus should be 1 or more, steps_per_s from 0 to 1e12"));
        }
        rows.push(row);
    }
    if rows.is_empty() { Err("there is no row".into()) } else { Ok(rows) }
}
