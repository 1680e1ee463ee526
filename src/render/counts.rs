//! How many rows of tables have a forecast.

use serde_json::{Value, json};
use trainwright_evidence::kernels::NoCase;

/// Rows by what became of them.
#[derive(Debug, Default)]
pub struct Counts {
    forecast: usize,
    unsupported: usize,
    invalid: usize,
}

impl Counts {
    /// Of the rows of all tables.
    pub fn of<'a, T: 'a>(forecasts: impl Iterator<Item = &'a Result<T, NoCase>>) -> Self {
        let mut counts = Self::default();
        for forecast in forecasts {
            match forecast {
                Ok(_) => counts.forecast += 1,
                Err(NoCase::Unsupported(_)) => counts.unsupported += 1,
                Err(NoCase::Invalid(_)) => counts.invalid += 1,
            }
        }
        counts
    }

    /// For a terminal, with the end of the line.
    pub fn line(&self) -> String {
        let Self { forecast, unsupported, invalid } = self;
        let rows = forecast + unsupported + invalid;
        format!("{rows} rows: {forecast} forecast, {unsupported} unsupported, {invalid} invalid\n")
    }

    /// As JSON, with the scores of the rows.
    pub fn json(&self, scores: Vec<Value>) -> Value {
        let Self { forecast, unsupported, invalid } = self;
        json!({ "forecast": forecast, "unsupported": unsupported, "invalid": invalid, "scores": scores })
    }
}
