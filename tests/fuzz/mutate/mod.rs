//! Damage to files, as the same seed does it every time: a file for each kind of structure.

pub mod bytes;
pub mod database;
pub mod numbers;
pub mod table;
pub mod text;
pub mod trace;
pub mod tree;

use std::collections::BTreeSet;

/// Bytes of an input at most: lines that are doubled twice a thousand times say nothing new.
pub const LONGEST: usize = 1 << 20;

/// Damages an intact file; `None` where it has not the structure.
pub type Damage = fn(&[u8], &Words, &mut Draws) -> Option<Vec<u8>>;

/// Draws that follow from a seed.
///
/// Source of the numbers: Steele, Lea & Flood 2014, Fast splittable pseudorandom number generators, OOPSLA (SplitMix64).
pub struct Draws(pub u64);

impl Draws {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut number = self.0;
        number = (number ^ number >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        number = (number ^ number >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        number ^ number >> 31
    }

    /// A number below `end`, which is not 0.
    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    pub fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }
}

/// A dictionary: words that a reader knows.
pub struct Words(Vec<String>);

impl Words {
    /// Those of the intact files, and further ones.
    pub fn of(files: &[Vec<u8>], further: &[&str]) -> Self {
        let mut words: BTreeSet<String> = further.iter().map(|word| word.to_string()).collect();
        for file in files {
            let text = String::from_utf8_lossy(&file[..file.len().min(1 << 16)]);
            let letters = |letter: char| letter.is_alphabetic() || "_-".contains(letter);
            let spans = text::spans(&text, letters).into_iter();
            words.extend(spans.filter(|(start, end)| end - start < 40).map(|(s, e)| text[s..e].to_string()));
        }
        words.insert("a".into());
        Self(words.into_iter().collect())
    }

    pub fn draw(&self, draws: &mut Draws) -> &str {
        &self.0[draws.below(self.0.len())]
    }
}

/// A file that has parts of two.
pub fn spliced(one: &[u8], other: &[u8], draws: &mut Draws) -> Vec<u8> {
    let end = draws.below(one.len() + 1);
    let start = draws.below(other.len() + 1);
    [&one[..end], &other[start..]].concat()
}
