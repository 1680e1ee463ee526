//! The tools that plans go to and come from.

use super::super::table::{Column, wrapped_table};
use Column::Left;
use trainwright_traces::export::{EXPORTERS, Exporter};
use trainwright_traces::import::{IMPORTERS, Importer};

/// Every tool that `export` writes for.
pub fn exporters() -> String {
    let row = |tool: &&dyn Exporter| [tool.name(), tool.summary(), tool.source()].map(String::from).to_vec();
    wrapped_table(&[Left("exporter"), Left("summary"), Left("read by")], EXPORTERS.iter().map(row).collect())
}

/// Every tool that `import` reads from.
pub fn importers() -> String {
    let row = |tool: &&dyn Importer| [tool.name(), tool.summary(), tool.stack()].map(String::from).to_vec();
    wrapped_table(&[Left("importer"), Left("summary"), Left("stack")], IMPORTERS.iter().map(row).collect())
}

/// One tool that `export` writes for, as TOML.
pub fn exporter_entry(tool: &dyn Exporter) -> String {
    entry(&[("name", tool.name()), ("summary", tool.summary()), ("source", tool.source())])
}

/// One tool that `import` reads from, as TOML.
pub fn importer_entry(tool: &dyn Importer) -> String {
    entry(&[("name", tool.name()), ("summary", tool.summary()), ("stack", tool.stack())])
}

fn entry(keys: &[(&str, &str)]) -> String {
    keys.iter().map(|(key, value)| format!("{key} = {}\n", toml::Value::from(*value))).collect()
}
