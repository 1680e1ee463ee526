//! Every reader of something from outside: a line each.

mod commands;
mod executor;
mod measured;
mod spec;
mod tables;
mod tools;

use crate::mutate::{Damage, bytes, database, table, text, trace, tree};

/// A reader, what it reads, and how that is damaged.
pub struct Target {
    /// Its name, and that of its folder in `corpus/`.
    pub name: String,
    /// Valid inputs. Each must be read.
    pub seeds: Box<dyn Fn() -> Vec<Vec<u8>>>,
    /// How they are damaged, one way for each input.
    pub damages: &'static [Damage],
    /// Words of the format that no seed has.
    pub words: &'static [&'static str],
    /// Reads an input and goes on with what was read; why it is refused.
    pub read: Box<Reading>,
    /// Inputs of an ordinary run.
    pub inputs: u64,
}

/// From bytes to why they are refused.
type Reading = dyn Fn(&[u8]) -> Result<(), String>;

const TEXT: &[Damage] = &[text::text, text::text, bytes::bytes];
const JSON: &[Damage] = &[tree::json, tree::json, text::text, bytes::bytes];
const JSON_LINES: &[Damage] = &[tree::json_lines, tree::json_lines, text::text, bytes::bytes];
const TOML: &[Damage] = &[tree::toml, tree::toml, text::text, bytes::bytes];
const CSV: &[Damage] = &[table::csv, table::csv, table::csv, text::text, bytes::bytes];
const BYTES: &[Damage] = &[bytes::bytes];
const SAFETENSORS: &[Damage] = &[bytes::with_json_header, bytes::with_json_header, bytes::bytes];
const SQLITE: &[Damage] = &[database::sqlite, database::sqlite, bytes::bytes];
const CHAKRA: &[Damage] = &[trace::chakra, trace::chakra, bytes::bytes];
const FRAMES: &[Damage] = &[bytes::with_checksum, bytes::bytes];

/// All targets.
pub fn targets() -> Vec<Target> {
    [
        spec::targets(),
        tools::targets(),
        measured::targets(),
        tables::targets(),
        executor::targets(),
        commands::targets(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// A target of a reader of this process, cheap enough for thousands of inputs.
fn reader(
    name: &str,
    seeds: impl Fn() -> Vec<Vec<u8>> + 'static,
    damages: &'static [Damage],
    words: &'static [&'static str],
    read: impl Fn(&[u8]) -> Result<(), String> + 'static,
) -> Target {
    Target { name: name.into(), seeds: Box::new(seeds), damages, words, read: Box::new(read), inputs: 1500 }
}

/// The same, of a reader of text: other bytes are refused before it.
fn of_text(
    name: &str,
    seeds: impl Fn() -> Vec<String> + 'static,
    damages: &'static [Damage],
    words: &'static [&'static str],
    read: impl Fn(&str) -> Result<(), String> + 'static,
) -> Target {
    let seeds = move || seeds().into_iter().map(String::into_bytes).collect();
    reader(name, seeds, damages, words, move |bytes| {
        read(std::str::from_utf8(bytes).map_err(|error| error.to_string())?)
    })
}

/// The kind of outcome, without the answer.
fn fate<T>(read: Result<T, impl ToString>) -> Result<(), String> {
    read.map(|_| ()).map_err(|error| error.to_string())
}

/// A file of the repository.
fn file(path: &str) -> Vec<u8> {
    let path = format!("{}/{path}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The header and some rows of a table of the repository, every `step`-th.
fn rows(path: &str, step: usize) -> Vec<u8> {
    let text = String::from_utf8(file(path)).expect("tables are text");
    let mut lines = text.lines();
    let header = lines.next().expect("a table has a header");
    let rows = lines.step_by(step.max(1)).take(12);
    std::iter::once(header).chain(rows).flat_map(|line| [line, "\n"]).collect::<String>().into_bytes()
}
