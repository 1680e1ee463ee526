//! Damage to any text: numbers, words, lines and nesting.

use super::{Draws, LONGEST, Words, bytes, numbers};

/// Replacements of values.
const VALUES: [&str; 10] =
    ["null", "true", "{}", "[]", "\"\"", "[[[]]]", "\"\\u0000\"", "1.5", "{\"a\": 1}", "-"];

/// How deep a value is nested at most.
const DEEP: usize = 20_000;

/// `damaged`, of bytes that are UTF-8; `None` if they are not.
pub fn text(intact: &[u8], words: &Words, draws: &mut Draws) -> Option<Vec<u8>> {
    Some(damaged(std::str::from_utf8(intact).ok()?, words, draws).into_bytes())
}

/// Text with one to three damages, half of them numbers replaced by others.
pub fn damaged(intact: &str, dictionary: &Words, draws: &mut Draws) -> String {
    let mut text = intact.to_string();
    for _ in 0..1 + draws.below(3) {
        let (numbers, words) = (spans(&text, is_of_number), spans(&text, is_of_word));
        text = match draws.below(14) {
            0..6 => replaced(&text, &numbers, draws, numbers::written),
            6 => replaced(&text, &words, draws, |_, draws| draws.of(&VALUES).into()),
            7 if words.is_empty() => text,
            7 => {
                let (start, end) = draws.of(&words);
                replaced(&text, &words, draws, |_, _| text[start..end].into())
            }
            8 => lines(&text, draws),
            9 => {
                let depth = draws.of(&[3, 200, DEEP]);
                let (open, close) = draws.of(&[("[", "]"), ("{\"a\":", "}"), ("(", ")"), ("- ", "")]);
                let nested = format!("{}1{}", open.repeat(depth), close.repeat(depth));
                replaced(&text, &numbers, draws, |_, _| nested.clone())
            }
            10 => {
                let end = draws.below(text.len() + 1);
                String::from_utf8_lossy(&text.as_bytes()[..end]).into_owned()
            }
            11 => replaced(&text, &words, draws, |_, draws| dictionary.draw(draws).into()),
            12 => replaced(&text, &words, draws, |_, draws| numbers::odd(draws)),
            _ => String::from_utf8_lossy(&bytes::flipped(text.as_bytes(), draws)).into_owned(),
        };
    }
    text
}

fn is_of_number(letter: char) -> bool {
    letter.is_ascii_digit() || letter == '.'
}

fn is_of_word(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || "._-\"'".contains(letter)
}

/// The text with another one in one of the places, if there is one.
fn replaced(
    text: &str,
    places: &[(usize, usize)],
    draws: &mut Draws,
    with: impl Fn(&str, &mut Draws) -> String,
) -> String {
    if places.is_empty() {
        return text.into();
    }
    let (start, end) = draws.of(places);
    let with = with(&text[start..end], draws);
    format!("{}{with}{}", &text[..start], &text[end..])
}

/// A line deleted, doubled up to a thousand times or put elsewhere.
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
        _ => {
            // No more of a long line than an input keeps: what is cut off again would only take time.
            let copies = draws.of(&[3, 30, 1000]).min(LONGEST / lines[other].len().max(1));
            drop(lines.splice(one..one, vec![lines[other]; copies]));
        }
    }
    lines.join("\n")
}

/// Where letters of a kind stand together.
pub fn spans(text: &str, kind: impl Fn(char) -> bool) -> Vec<(usize, usize)> {
    let mut spans: Vec<(usize, usize)> = Vec::new();
    for (at, letter) in text.char_indices().filter(|(_, letter)| kind(*letter)) {
        match spans.last_mut() {
            Some((_, end)) if *end == at => *end += letter.len_utf8(),
            _ => spans.push((at, at + letter.len_utf8())),
        }
    }
    spans
}
