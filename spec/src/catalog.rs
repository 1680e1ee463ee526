//! The TOML files that ship with the program: GPUs, interconnects, NICs, nodes, clusters, versions of
//! NCCL, models and stacks.
//!
//! A new entry is a new file in `spec/catalog`; no Rust is touched.

pub(crate) mod files;

pub use files::names;

use crate::error::SpecError;
use files::{CATALOG, folder};
use std::collections::BTreeMap;
use std::sync::LazyLock;

/// The text of a catalog file.
///
/// # Errors
/// `UnknownName` with the nearest names; `kind` is the word for one entry, `model` for the folder `models`, or the
/// name of a folder.
pub fn text(kind: &'static str, name: &str) -> Result<&'static str, SpecError> {
    let folder = folder(kind);
    CATALOG.get_file(format!("{folder}/{name}.toml")).and_then(|file| file.contents_utf8()).ok_or_else(|| {
        SpecError::UnknownName { kind, name: name.into(), nearest: nearest(name, names(&folder).into_iter()) }
    })
}

/// The text of a file beside the catalog's folders, such as `caches.toml`.
pub(crate) fn file(name: &str) -> &'static str {
    CATALOG.get_file(name).and_then(|file| file.contents_utf8()).expect("the file is compiled in")
}

/// The name of a GPU in the catalog by what its driver calls it: `NVIDIA H100 80GB HBM3`.
pub fn gpu_of_driver(name: &str) -> Option<&'static str> {
    static NAMES: LazyLock<BTreeMap<String, String>> =
        LazyLock::new(|| toml::from_str(file("drivers.toml")).expect("the catalog's table is one of names"));
    NAMES.get(name).map(String::as_str)
}

/// Letters of the longest name that is compared with others: the time of it grows with the square.
const LONGEST_NAME: usize = 200;

/// Up to three of `names` that are spelt most like `name`, the closest first; none where `name` is longer than any name.
pub fn nearest<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> Vec<String> {
    if name.len() > LONGEST_NAME {
        return Vec::new();
    }
    let lower = name.to_lowercase();
    let mut scored: Vec<(f64, &str)> = names
        .map(|candidate| (strsim::jaro_winkler(&lower, candidate), candidate))
        .filter(|(score, _)| *score > 0.7)
        .collect();
    scored.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(b.1)));
    scored.into_iter().take(3).map(|(_, candidate)| candidate.to_string()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_drivers_call_gpus_leads_to_the_catalog() {
        assert_eq!(gpu_of_driver("NVIDIA H100 80GB HBM3"), Some("h100-80gb-sxm"));
        assert_eq!(gpu_of_driver("NVIDIA Z9"), None);
        let table: BTreeMap<String, String> =
            toml::from_str(CATALOG.get_file("drivers.toml").unwrap().contents_utf8().unwrap()).unwrap();
        for (driver, name) in table {
            assert!(names("gpus").contains(&name.as_str()), "{driver}: {name} is not in the catalog");
        }
    }
}
