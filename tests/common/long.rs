//! How much of a long test runs.

/// The value of `variable`, if set; else `long` with `TRAINWRIGHT_LONG=1`, and `ordinary` without.
///
/// # Panics
/// If one of them is set to something else than a number.
pub fn cases(variable: &str, ordinary: usize, long: usize) -> usize {
    let number = |name: &str| {
        let text = std::env::var(name).ok()?;
        Some(text.parse::<usize>().unwrap_or_else(|_| panic!("{name} is `{text}`, which is not a number")))
    };
    let is_long = number("TRAINWRIGHT_LONG").is_some_and(|value| value > 0);
    number(variable).unwrap_or(if is_long { long } else { ordinary })
}
