//! Models by what stands after `--model`, and the headers of weights beside their files.

use super::text;
use crate::error::{CliError, refuse};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use trainwright_spec::model::hf::{Shapes, from_files};
use trainwright_spec::model::{Model, preset};

/// Bytes of a safetensors header at most, as its format has it.
const LONGEST_HEADER: u64 = 100_000_000;

/// A preset; or a config.json, if the name has a `/` or ends with `.json`; or a folder with one, and with the weights.
///
/// # Errors
/// A file that cannot be read, or says something that no model has.
pub fn model(reference: &str) -> Result<Model, CliError> {
    mapped(reference, &[])
}

/// The same with keys of the configuration in the place of others.
///
/// # Errors
/// As `model`; keys for a preset.
pub fn mapped(reference: &str, map: &[(String, String)]) -> Result<Model, CliError> {
    let failed = |error| CliError::of_input(Some("--model"), error);
    if reference == "-" || reference.contains('/') || reference.ends_with(".json") {
        let folder = Path::new(reference);
        let (file, shapes) = match folder.is_dir() {
            true => (folder.join("config.json").display().to_string(), shapes(folder)?),
            false => (reference.to_string(), None),
        };
        let text = text(Some("--model"), &file)?;
        return from_files(&text, &file, map, shapes.as_ref()).map_err(failed);
    }
    if let Some((key, _)) = map.first() {
        let allowed = format!("{reference} is in the catalog: map keys of a config.json");
        return Err(refuse("--map", key, allowed));
    }
    preset::preset(reference).map_err(failed)
}

/// The shapes of the weights in a folder's safetensors files; `None` without any.
fn shapes(folder: &Path) -> Result<Option<Shapes>, CliError> {
    let failed = |path: &Path, source| CliError::Reading {
        argument: Some("--model"),
        path: path.display().to_string(),
        source,
    };
    let entries = folder.read_dir().map_err(|error| failed(folder, error))?;
    let mut files: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    files.retain(|path| path.extension().is_some_and(|end| end == "safetensors"));
    files.sort();
    let mut shapes = Shapes::default();
    for path in &files {
        let header = header(path).map_err(|error| failed(path, error))?;
        let added = shapes.add_header(&header, &path.display().to_string());
        added.map_err(|error| CliError::of_input(Some("--model"), error))?;
    }
    Ok((!files.is_empty()).then_some(shapes))
}

/// A safetensors file's header: its length in 8 bytes, little-endian, then as many bytes of JSON.
fn header(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let mut length = [0; 8];
    file.read_exact(&mut length)?;
    let length = u64::from_le_bytes(length);
    if length > LONGEST_HEADER {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("a header of {length} bytes")));
    }
    let mut header = vec![0; length as usize];
    file.read_exact(&mut header)?;
    Ok(header)
}
