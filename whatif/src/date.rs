//! Days between two dates, for runs that must end by one.

/// Days from the first to the second date, both as 2026-12-31.
///
/// # Errors
/// What is no date, or a second date that is not after the first.
pub fn days_between(from: &str, to: &str) -> Result<f64, String> {
    let (first, last) = (day_number(from)?, day_number(to)?);
    match last > first {
        true => Ok((last - first) as f64),
        false => Err(format!("`{to}` is not after `{from}`")),
    }
}

/// Days of a date since 1 March of the year 0, in the Gregorian calendar.
///
/// Counted in years that start in March, so that the leap day is the last: 365 y + ⌊y/4⌋ − ⌊y/100⌋ + ⌊y/400⌋ days
/// before year y, and ⌊(153 m + 2) / 5⌋ days before month m, March being 0.
fn day_number(date: &str) -> Result<i64, String> {
    let refuse = || format!("`{date}` is not a date such as 2026-12-31");
    let parts: Vec<&str> = date.split('-').collect();
    let [year, month, day] = parts.as_slice() else { return Err(refuse()) };
    let number = |text: &str, most: i64| text.parse::<i64>().ok().filter(|n| (1..=most).contains(n));
    let (year, month, day) = match (number(year, 9999), number(month, 12), number(day, 31)) {
        (Some(year), Some(month), Some(day)) if day <= days_in(year, month) => (year, month, day),
        _ => return Err(refuse()),
    };
    let year = if month < 3 { year - 1 } else { year };
    let month = (month + 9) % 12;
    Ok(365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1)
}

fn days_in(year: i64, month: i64) -> i64 {
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    match month {
        2 if leap => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_those_of_the_calendar() {
        let check = |from, to, days| assert_eq!(days_between(from, to), Ok(days), "{from} {to}");
        check("2026-11-21", "2026-11-22", 1.0);
        check("2026-12-31", "2027-01-01", 1.0);
        check("2027-02-28", "2027-03-01", 1.0);
        check("2028-02-28", "2028-03-01", 2.0);
        check("1900-01-01", "2000-01-01", 36_524.0);
        check("2000-01-01", "2001-01-01", 366.0);
    }

    #[test]
    fn what_is_no_date_is_refused() {
        for date in ["2026-13-01", "2026-02-29", "tomorrow", "2026-1", "0-1-1"] {
            assert!(days_between("2020-01-01", date).is_err(), "{date}");
        }
        assert_eq!(
            days_between("2026-01-02", "2026-01-02"),
            Err("`2026-01-02` is not after `2026-01-02`".into())
        );
    }
}
