//! Choices that a plan makes: all of them as a table, one as TOML.

use super::print;
use crate::render::table::Column::Left;
use crate::render::table::wrapped_table;
use trainwright_planner::pin_choices;
use trainwright_spec::catalog;
use trainwright_spec::error::SpecError;

/// Every choice that a plan makes.
pub fn list() -> String {
    let rows = pin_choices().into_iter();
    let rows = rows.map(|choice| vec![choice.key.to_string(), choice.summary.to_string(), choice.values]);
    wrapped_table(&[Left("key"), Left("what it is"), Left("values")], rows.collect())
}

/// A choice with what it can be.
///
/// # Errors
/// `UnknownName` with the nearest keys.
pub fn entry(key: &str) -> Result<String, SpecError> {
    let known = pin_choices();
    let nearest = catalog::nearest(key, known.iter().map(|choice| choice.key));
    let found = known.into_iter().find(|choice| choice.key == key);
    found.map(|choice| print(&choice)).ok_or_else(|| SpecError::UnknownName {
        kind: "choice",
        name: key.into(),
        nearest,
    })
}
