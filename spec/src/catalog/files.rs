//! The catalog's files, folder by folder.

use include_dir::{Dir, include_dir};

pub(crate) static CATALOG: Dir = include_dir!("$CARGO_MANIFEST_DIR/catalog");

/// The names in a folder of the catalog (`gpus`, `interconnects`, `nics`, `nodes`, …), in alphabetical order.
pub fn names(folder: &str) -> Vec<&'static str> {
    let files = CATALOG.get_dir(folder).into_iter().flat_map(|dir| dir.files());
    let mut names: Vec<&str> = files
        .filter(|file| file.path().extension().is_some_and(|extension| extension == "toml"))
        .filter_map(|file| file.path().file_stem()?.to_str())
        .collect();
    names.sort_unstable();
    names
}

/// The word for all entries, by the word for one.
pub(crate) fn folder(kind: &str) -> String {
    if CATALOG.get_dir(kind).is_some() { kind.into() } else { format!("{kind}s") }
}
