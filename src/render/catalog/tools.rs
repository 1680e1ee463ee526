//! The tools that plans go to and come from, and how often what fails.

use super::super::table::{Column, wrapped_table};
use Column::{Left, Right};
use trainwright_formats::export::{EXPORTERS, Exporter};
use trainwright_formats::import::{IMPORTERS, Importer};
use trainwright_spec::catalog;
use trainwright_spec::error::SpecError;
use trainwright_spec::reliability::Reliability;
use trainwright_spec::units::Seconds;

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

/// What was seen to fail how often.
///
/// # Errors
/// Those of the catalog's files, which its tests exclude.
pub fn reliabilities() -> Result<String, SpecError> {
    let row = |name: &&str| {
        let own = Reliability::from_name(name)?;
        let days = |time: &Seconds| format!("{:.0} d", time.get() / 86_400.0);
        let gpus = own.gpu_failures.as_ref().map_or("with its node".into(), |each| days(&each.value));
        Ok(vec![own.name, gpus, days(&own.node_failures.value), own.summary])
    };
    let rows = catalog::names("reliabilities").iter().map(row).collect::<Result<Vec<_>, SpecError>>()?;
    Ok(wrapped_table(&[Left("reliability"), Right("of a GPU"), Right("of a node"), Left("summary")], rows))
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
