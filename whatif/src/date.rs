//! Days between two dates, for runs that must end by one.

use jiff::civil::Date;

/// Days from the first to the second date, both as 2026-12-31.
///
/// # Errors
/// Text that is not a date, or a second date that is not after the first.
pub fn days_between(from: &str, to: &str) -> Result<f64, String> {
    let days = date(from)?.duration_until(date(to)?).as_hours() / 24;
    match days > 0 {
        true => Ok(days as f64),
        false => Err(format!("`{to}` is not after `{from}`")),
    }
}

fn date(text: &str) -> Result<Date, String> {
    let date = Date::strptime("%Y-%m-%d", text).ok().filter(|date| date.year() > 0);
    date.ok_or_else(|| format!("`{text}` is not a date such as 2026-12-31"))
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
        check("2026-1-5", "9999-12-31", 2_912_438.0);
    }

    #[test]
    fn other_text_is_refused() {
        for text in [
            "2026-13-01",
            "2026-02-29",
            "tomorrow",
            "2026-1",
            "0-1-1",
            "2026-12-31 ",
            "2026-12-31x",
            "-1-1-1",
            "",
        ] {
            assert_eq!(date(text), Err(format!("`{text}` is not a date such as 2026-12-31")));
        }
        assert_eq!(
            days_between("2026-01-02", "2026-01-02"),
            Err("`2026-01-02` is not after `2026-01-02`".into())
        );
    }
}
