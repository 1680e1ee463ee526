//! Cells of a row by the names of their columns.

use super::NoCase;
use csv::StringRecord;
use std::collections::BTreeMap;

/// No count of a table is larger.
const MOST: f64 = 1e12;

/// A row of a table.
pub struct Cells<'a> {
    columns: &'a BTreeMap<String, usize>,
    record: &'a StringRecord,
}

impl<'a> Cells<'a> {
    /// The row `record` of a table with these columns.
    pub fn new(columns: &'a BTreeMap<String, usize>, record: &'a StringRecord) -> Self {
        Self { columns, record }
    }

    /// A cell; blank if the table has no such column.
    pub fn text(&self, column: &str) -> &'a str {
        let index = self.columns.get(column).copied();
        index.and_then(|index| self.record.get(index)).unwrap_or_default().trim()
    }

    /// A whole number of at least `least`, which may be written `8.0`; `None` if the cell is blank.
    ///
    /// # Errors
    /// `Invalid` for anything else.
    pub fn maybe(&self, column: &str, least: f64) -> Result<Option<usize>, NoCase> {
        match self.text(column) {
            "" => Ok(None),
            text => match text.parse::<f64>() {
                Ok(number) if (least..=MOST).contains(&number) && number.fract() == 0.0 => {
                    Ok(Some(number as usize))
                }
                _ => Err(NoCase::Invalid(format!(
                    "`{column}` is {text}, no whole number from {least} to {MOST}"
                ))),
            },
        }
    }

    /// A whole number above 0.
    ///
    /// # Errors
    /// `Invalid` if it is blank or none.
    pub fn count(&self, column: &str) -> Result<usize, NoCase> {
        self.maybe(column, 1.0)?.ok_or_else(|| NoCase::Invalid(format!("`{column}` is blank")))
    }

    /// A measured time in seconds, the cell in units of `unit`; `None` if it is blank.
    ///
    /// # Errors
    /// `Invalid` if it is no number above 0.
    pub fn time(&self, column: &str, unit: f64) -> Result<Option<f64>, NoCase> {
        match self.text(column) {
            "" => Ok(None),
            text => match text.parse::<f64>() {
                Ok(number) if number > 0.0 && number.is_finite() => Ok(Some(number * unit)),
                _ => Err(NoCase::Invalid(format!("`{column}` is {text}, no time above 0"))),
            },
        }
    }
}
