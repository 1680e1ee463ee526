//! Files from outside, damaged in every way: readers answer or refuse in one line, and never panics, hangs or
//! asks for memory without bound.
//!
//! ```text
//! a valid file, a seed ─► mutate ─► a reader of the libraries, in this process
//!                               └─► a command, with limits on its memory and processor time
//! ```
//!
//! Seeds are fixed. `TRAINWRIGHT_MUTATIONS=n` makes n times as many, with more seeds.

mod commands;
mod files;
#[path = "../common/long.rs"]
mod long;
mod mutate;
mod readers;

use long::cases;
use mutate::Draws;

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
        let mut draws = Draws(seed);
        match self {
            Content::Text(text) => mutate::text(text, &mut draws).into_bytes(),
            Content::Bytes(bytes) => mutate::bytes(bytes, &mut draws),
        }
    }

    fn bytes(&self) -> Vec<u8> {
        match self {
            Content::Text(text) => text.clone().into_bytes(),
            Content::Bytes(bytes) => bytes.clone(),
        }
    }
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
