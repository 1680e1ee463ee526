//! Lists of values, with `..` for a continued progression.

/// The values of `8,16,..2048` (each twice the one before), `4,8,..24` (each 4 more) or any list.
///
/// Where the two numbers before `..` allow both, that way is meant which meets the end, doubling before adding.
///
/// # Errors
/// An empty list, or a progression that does not meet its end.
pub fn values(text: &str) -> Result<Vec<String>, String> {
    let mut values: Vec<String> = Vec::new();
    for item in text.split(',').map(str::trim) {
        match item.strip_prefix("..") {
            Some(end) => values.extend(continued(&values, end)?),
            None if item.is_empty() => return Err(format!("`{text}` has an empty value")),
            None => values.push(item.into()),
        }
    }
    Ok(values)
}

/// More than any sweep needs; it keeps a slip of the pen from asking for millions of points.
const MOST: usize = 10_000;

fn continued(before: &[String], end: &str) -> Result<Vec<String>, String> {
    let refuse = || {
        let before = before.iter().rev().take(2).rev().cloned().collect::<Vec<_>>().join(",");
        format!(
            "`{before},..{end}` does not go on to its end: before `..` stand two numbers, as in 8,16,..64"
        )
    };
    let number = |text: &str| text.parse::<u64>().ok();
    let [.., a, b] = before else { return Err(refuse()) };
    let (Some(a), Some(b), Some(end)) = (number(a), number(b), number(end)) else { return Err(refuse()) };
    if a == 0 || b <= a || end <= b {
        return Err(refuse());
    }
    let step = |next: &dyn Fn(u64) -> Option<u64>| {
        let steps = std::iter::successors(next(b), |last| next(*last)).take(MOST);
        let all: Vec<u64> = steps.take_while(|value| *value <= end).collect();
        (all.last() == Some(&end)).then_some(all)
    };
    let times = if b.is_multiple_of(a) { step(&|last| last.checked_mul(b / a)) } else { None };
    let found = times.or_else(|| step(&|last| last.checked_add(b - a)));
    found.map(|all| all.iter().map(u64::to_string).collect()).ok_or_else(refuse)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progressions_go_on_to_their_end() {
        let check = |text, expected: &str| assert_eq!(values(text).unwrap().join(" "), expected);
        check("8,16,..64", "8 16 32 64");
        check("4,8,..24", "4 8 12 16 20 24");
        check("10,20,..50", "10 20 30 40 50");
        check("1, 2,..8,12", "1 2 4 8 12");
        check("x1,x2,80GiB", "x1 x2 80GiB");
        check("dgx-h100:4", "dgx-h100:4");
    }

    #[test]
    fn others_are_refused() {
        for text in ["", "8,,16", "8,..64", "8,16,..60", "16,8,..1", "a,b,..c", "0,1,..4"] {
            assert!(values(text).is_err(), "{text}");
        }
    }
}
