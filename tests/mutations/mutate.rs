//! Damage to text and bytes, as the same seed does it every time.

/// Replacements of numbers.
const NUMBERS: [&str; 24] = [
    "0",
    "-1",
    "1",
    "2",
    "3",
    "4097",
    "10000000",
    "1000000000",
    "4294967296",
    "9223372036854775807",
    "18446744073709551615",
    "18446744073709551616",
    "99999999999999999999999999",
    "1e18",
    "1e308",
    "1e-308",
    "-1e18",
    "0.5",
    "NaN",
    "nan",
    "inf",
    "-inf",
    "",
    "many",
];

/// Replacements of values.
const VALUES: [&str; 10] =
    ["null", "true", "{}", "[]", "\"\"", "[[[]]]", "\"\\u0000\"", "1.5", "{\"a\": 1}", "-"];

/// How deep a value is nested at most.
const DEEP: usize = 20_000;

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

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }
}

/// Text with one to three damages, half of them numbers replaced by others.
pub fn text(intact: &str, draws: &mut Draws) -> String {
    let mut text = intact.to_string();
    for _ in 0..1 + draws.below(3) {
        let (numbers, words) = (spans(&text, is_of_number), spans(&text, is_of_word));
        text = match draws.below(12) {
            0..6 => replaced(&text, &numbers, draws.of(&NUMBERS), draws),
            6 => replaced(&text, &words, draws.of(&VALUES), draws),
            7 if words.is_empty() => text,
            7 => {
                let (start, end) = draws.of(&words);
                replaced(&text, &words, &text[start..end], draws)
            }
            8 => lines(&text, draws),
            9 => {
                let depth = draws.of(&[3, 200, DEEP]);
                let (open, close) = draws.of(&[("[", "]"), ("{\"a\":", "}"), ("(", ")")]);
                let nested = format!("{}1{}", open.repeat(depth), close.repeat(depth));
                replaced(&text, &numbers, &nested, draws)
            }
            10 => {
                let end = draws.below(text.len() + 1);
                String::from_utf8_lossy(&text.as_bytes()[..end]).into_owned()
            }
            _ => String::from_utf8_lossy(&flipped(text.as_bytes(), draws)).into_owned(),
        };
    }
    text
}

fn is_of_number(letter: char) -> bool {
    letter.is_ascii_digit() || letter == '.'
}

fn is_of_word(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || "._\"'".contains(letter)
}

/// The text with other words in one of the places, if there is one.
fn replaced(text: &str, places: &[(usize, usize)], with: &str, draws: &mut Draws) -> String {
    if places.is_empty() {
        return text.into();
    }
    let (start, end) = draws.of(places);
    format!("{}{with}{}", &text[..start], &text[end..])
}

/// Bytes of which some are flipped, cut off, doubled or set.
pub fn bytes(intact: &[u8], draws: &mut Draws) -> Vec<u8> {
    let mut bytes = intact.to_vec();
    for _ in 0..1 + draws.below(3) {
        if bytes.is_empty() {
            return bytes;
        }
        let at = draws.below(bytes.len());
        let some = (at + 1 + draws.below(16)).min(bytes.len());
        match draws.below(6) {
            0 | 1 => bytes = flipped(&bytes, draws),
            2 => bytes.truncate(at),
            3 => bytes[at..some].fill(0xff),
            4 => bytes[at..some].fill(0),
            _ => {
                let doubled = bytes[at..some].to_vec();
                bytes.splice(at..at, doubled);
            }
        }
    }
    bytes
}

fn flipped(bytes: &[u8], draws: &mut Draws) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for _ in 0..1 + draws.below(4) {
        if !bytes.is_empty() {
            let at = draws.below(bytes.len());
            bytes[at] ^= 1 << draws.below(8);
        }
    }
    bytes
}

/// A line deleted, doubled a thousand times or put elsewhere.
fn lines(text: &str, draws: &mut Draws) -> String {
    let mut lines: Vec<&str> = text.lines().collect();
    if lines.is_empty() {
        return String::new();
    }
    let (one, other) = (draws.below(lines.len()), draws.below(lines.len()));
    match draws.below(4) {
        0 => drop(lines.remove(one)),
        1 => lines.insert(one, lines[other]),
        2 => lines.swap(one, other),
        _ => drop(lines.splice(one..one, vec![lines[other]; 1000])),
    }
    lines.join("\n")
}

/// Where letters of a kind stand together.
fn spans(text: &str, kind: impl Fn(char) -> bool) -> Vec<(usize, usize)> {
    let mut spans: Vec<(usize, usize)> = Vec::new();
    for (at, letter) in text.char_indices().filter(|(_, letter)| kind(*letter)) {
        match spans.last_mut() {
            Some((_, end)) if *end == at => *end += letter.len_utf8(),
            _ => spans.push((at, at + letter.len_utf8())),
        }
    }
    spans
}
