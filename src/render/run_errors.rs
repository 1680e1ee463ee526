//! Errors of forecasts as a page and as JSON.

use super::table::{Column, table};
use super::words::heading;
use trainwright_evidence::summary::{Group, Outcomes, Summary, TimeErrors};

/// The page.
pub fn summary(summary: &Summary) -> String {
    let mut page = format!(
        "{} rows: {} forecast, {} unsupported, {} invalid\n",
        summary.rows, summary.forecast, summary.unsupported, summary.invalid
    );
    for (by, title) in [
        ("all", "All"),
        ("quality", "By quality"),
        ("source", "By source"),
        ("gpu", "By GPU"),
        ("precision", "By precision"),
        ("stack", "By stack"),
    ] {
        let groups: Vec<&Group> = summary.groups.iter().filter(|group| group.by == by).collect();
        page.push_str(&heading(title));
        page.push_str(&groups_table(&groups));
    }
    page
}

/// The same as data.
pub fn json(summary: &Summary) -> String {
    let mut text = serde_json::to_string_pretty(summary).expect("a summary has only text and numbers");
    text.push('\n');
    text
}

fn groups_table(groups: &[&Group]) -> String {
    let columns = [
        Column::Left(""),
        Column::Right("n"),
        Column::Right("median %"),
        Column::Right("mean %"),
        Column::Right("signed %"),
        Column::Right("p90 %"),
        Column::Right("τ"),
        Column::Right("null %"),
        Column::Right("memory n"),
        Column::Right("mean %"),
        Column::Right("signed %"),
        Column::Right("fits ✓/✗"),
        Column::Right("oom ✓/✗"),
    ];
    table(&columns, groups.iter().map(|group| cells(group)).collect())
}

fn cells(group: &Group) -> Vec<String> {
    let blank = String::new;
    let percent = |part: f64| format!("{:.1}", 100.0 * part);
    let signed = |part: f64| format!("{:+.1}", 100.0 * part);
    let time = group.time.as_ref();
    let of_time = |of: &dyn Fn(&TimeErrors) -> String| time.map_or_else(blank, of);
    let memory = group.memory.as_ref();
    let Outcomes { fits, false_alarms, missed, out_of_memory } = group.outcomes;
    let pair = |right: usize, wrong: usize| match right + wrong {
        0 => blank(),
        _ => format!("{right}/{wrong}"),
    };
    vec![
        if group.name.is_empty() { "(blank)".into() } else { group.name.clone() },
        of_time(&|time| time.rows.to_string()),
        of_time(&|time| percent(time.median)),
        of_time(&|time| percent(time.mean)),
        of_time(&|time| signed(time.signed)),
        of_time(&|time| percent(time.p90)),
        of_time(&|time| time.order.map_or_else(blank, |order| format!("{order:.2}"))),
        group.null.map_or_else(blank, |null| percent(null.median)),
        memory.map_or_else(blank, |memory| memory.rows.to_string()),
        memory.map_or_else(blank, |memory| percent(memory.mean)),
        memory.map_or_else(blank, |memory| signed(memory.signed)),
        pair(fits, false_alarms),
        pair(out_of_memory, missed),
    ]
}
