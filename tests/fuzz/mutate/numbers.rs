//! Extreme numbers and odd texts, in place of those of a file.

use super::Draws;

/// Whole numbers: zero, one more and one less than limits of types and of `limits.rs`.
const WHOLE: [u64; 21] = [
    0,
    1,
    2,
    3,
    7,
    255,
    4097,
    65_536,
    1_000_000,
    10_000_000,
    10_000_001,
    100_000_000,
    1_000_000_000,
    2_147_483_647,
    2_147_483_648,
    4_294_967_296,
    1 << 53,
    1_000_000_000_000_000,
    9_223_372_036_854_775_807,
    9_223_372_036_854_775_808,
    u64::MAX,
];

/// Numbers that no integer is, or none that a reader may take.
const SPELLED: [&str; 30] = [
    "-1",
    "18446744073709551616",
    "99999999999999999999999999",
    "7.4e19",
    "1e15",
    "1e18",
    "1e308",
    "1.7976931348623157e308",
    "1e309",
    "1e-308",
    "4.9e-324",
    "-1e18",
    "-9223372036854775808",
    "0.5",
    "0.30000000000000004",
    "1e-9",
    "-0",
    "-0.0",
    "NaN",
    "nan",
    "inf",
    "-inf",
    "infinity",
    "1_000",
    "0x10",
    "+5",
    "",
    "١٢",
    "1e",
    "many",
];

/// Texts that a name or a path seldom is.
const TEXTS: [&str; 18] = [
    "",
    " ",
    "\u{0}",
    "a\nb",
    "a\r\nb",
    "\u{1b}[31m",
    "\u{202e}abc",
    "\u{feff}",
    "é🦀",
    "<script>alert(1)</script>",
    "\"'`",
    "../../etc/passwd",
    "/dev/zero",
    "-",
    "%s%n",
    "$HOME",
    "null",
    "dgx-a100:4000000000",
];

/// A number as it is written, extreme or near another.
pub fn written(old: &str, draws: &mut Draws) -> String {
    match (draws.below(8), old.parse::<u64>()) {
        (0, Ok(old)) => old.wrapping_add(1).to_string(),
        (1, Ok(old)) => old.wrapping_sub(1).to_string(),
        (2, Ok(old)) => old.saturating_mul(10u64.pow(draws.below(13) as u32)).to_string(),
        (3, _) => format!("{old}e{}", draws.below(640) as i64 - 320),
        (4, _) => draws.of(&SPELLED).into(),
        (5, Ok(old)) => (old / 2).to_string(),
        (5, Err(_)) => format!("-{old}"),
        _ => whole(draws).to_string(),
    }
}

/// An extreme whole number.
pub fn whole(draws: &mut Draws) -> u64 {
    draws.of(&WHOLE)
}

/// An odd text, sometimes a very long one.
pub fn odd(draws: &mut Draws) -> String {
    match draws.below(TEXTS.len() + 3) {
        0 => "a".repeat(70_000),
        1 => "🦀".repeat(300),
        2 => draws.of(&SPELLED).into(),
        other => TEXTS[other - 3].into(),
    }
}
