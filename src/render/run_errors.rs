//! Errors of forecasts as a page and as JSON.

use super::table::Table;
use super::words::heading;
use trainwright_evidence::summary::{Group, MemoryErrors, Summary, TimeErrors};

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

fn groups_table(groups: &[&Group]) -> String {
    let percent = |part: f64| format!("{:.1}", 100.0 * part);
    let signed = |part: f64| format!("{:+.1}", 100.0 * part);
    let time = |group: &Group, cell: &dyn Fn(&TimeErrors) -> String| {
        group.time.as_ref().map(cell).unwrap_or_default()
    };
    let memory = |group: &Group, cell: &dyn Fn(&MemoryErrors) -> String| {
        group.memory.as_ref().map(cell).unwrap_or_default()
    };
    let pair = |right: usize, wrong: usize| match right + wrong {
        0 => String::new(),
        _ => format!("{right}/{wrong}"),
    };
    Table::of(groups)
        .left("", |group| if group.name.is_empty() { "(blank)" } else { &group.name })
        .right("n", |group| time(group, &|time| time.rows.to_string()))
        .right("median %", |group| time(group, &|time| percent(time.median)))
        .right("mean %", |group| time(group, &|time| percent(time.mean)))
        .right("signed %", |group| time(group, &|time| signed(time.signed)))
        .right("p90 %", |group| time(group, &|time| percent(time.p90)))
        .right("τ", |group| {
            time(group, &|time| time.order.map(|order| format!("{order:.2}")).unwrap_or_default())
        })
        .right("null %", |group| group.null.as_ref().map(|null| percent(null.median)).unwrap_or_default())
        .right("memory n", |group| memory(group, &|memory| memory.rows.to_string()))
        .right("mean %", |group| memory(group, &|memory| percent(memory.mean)))
        .right("signed %", |group| memory(group, &|memory| signed(memory.signed)))
        .right("fits ✓/✗", |group| pair(group.outcomes.fits, group.outcomes.false_alarms))
        .right("oom ✓/✗", |group| pair(group.outcomes.out_of_memory, group.outcomes.missed))
        .text()
}
