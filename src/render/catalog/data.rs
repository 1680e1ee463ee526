//! Data-parallel schemes: all of them as a table, one as TOML.

use super::print;
use crate::render::table::Column::Left;
use crate::render::table::wrapped_table;
use serde::Serialize;
use trainwright_spec::data::{DATA_SCHEMES, DataScheme, Divided, Reduction, Reshard};

/// Every data-parallel scheme.
pub fn list() -> String {
    let rows = DATA_SCHEMES.iter().map(|scheme| {
        let divided = divided(*scheme).into();
        vec![scheme.name().to_string(), divided, scheme.summary().to_string(), scheme.source().to_string()]
    });
    let columns = [Left("scheme"), Left("divided"), Left("summary"), Left("source")];
    wrapped_table(&columns, rows.collect())
        + "divided: what each rank holds only a part of; O optimizer state, G gradients, W weights\n"
}

/// A data-parallel scheme with what it divides.
pub fn entry(scheme: &dyn DataScheme) -> String {
    print(&DataSchemeEntry {
        name: scheme.name(),
        summary: scheme.summary(),
        source: scheme.source(),
        divided: divided(scheme),
        reduces: scheme.reduction(),
        reshards: (scheme.divides() == Divided::Weights).then(|| scheme.reshard()),
    })
}

#[derive(Serialize)]
struct DataSchemeEntry {
    name: &'static str,
    summary: &'static str,
    source: &'static str,
    divided: &'static str,
    reduces: Reduction,
    #[serde(skip_serializing_if = "Option::is_none")]
    reshards: Option<Reshard>,
}

fn divided(scheme: &dyn DataScheme) -> &'static str {
    match scheme.divides() {
        Divided::Nothing => "-",
        Divided::Optimizer => "O",
        Divided::Gradients => "OG",
        Divided::Weights => "OGW",
    }
}
