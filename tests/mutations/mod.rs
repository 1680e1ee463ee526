//! Damaged files into the program: it answers, or refuses in one line, within limits of memory and processor time.
//!
//! `tests/fuzz` damages the same files for the readers in one process. Here the whole program reads them, with its streams and
//! its exit code. Seeds are fixed; `TRAINWRIGHT_MUTATIONS=n` makes n times as many.

mod commands;
#[expect(dead_code, reason = "its other files are for tests/fuzz")]
#[path = "../fuzz/files.rs"]
mod files;
#[expect(dead_code, reason = "its other kinds of damage are for tests/fuzz")]
#[path = "../fuzz/mutate/mod.rs"]
mod mutate;

use crate::long::cases;
use mutate::{Draws, Words};

/// The content of a file.
#[derive(Clone)]
pub enum Content {
    /// Lines, words and numbers.
    Text(String),
    /// Anything else.
    Bytes(Vec<u8>),
}

impl Content {
    fn damaged(&self, seed: u64) -> Vec<u8> {
        let (mut draws, intact) = (Draws(seed), self.bytes());
        let words = Words::of(std::slice::from_ref(&intact), &[]);
        let damage: mutate::Damage = match self {
            Content::Text(_) => mutate::text::text,
            Content::Bytes(_) => mutate::bytes::bytes,
        };
        damage(&intact, &words, &mut draws).expect("text and bytes can be damaged")
    }

    fn bytes(&self) -> Vec<u8> {
        match self {
            Content::Text(text) => text.clone().into_bytes(),
            Content::Bytes(bytes) => bytes.clone(),
        }
    }
}

/// A file of the readers' tests.
pub fn fixture(name: &str) -> Content {
    let path = format!("{}/traces/formats/tests/data/{name}", env!("CARGO_MANIFEST_DIR"));
    Content::Bytes(std::fs::read(path).unwrap())
}

/// Seeds of `count` mutations of a file, or of more if the environment says so.
fn seeds(name: &str, count: u64) -> impl Iterator<Item = u64> {
    let times = cases("TRAINWRIGHT_MUTATIONS", 1, 2) as u64;
    // FNV-1a, so that two formats are not damaged alike.
    let first = name
        .bytes()
        .fold(0xCBF2_9CE4_8422_2325u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3));
    (0..count * times).map(move |index| first.wrapping_add(index))
}
