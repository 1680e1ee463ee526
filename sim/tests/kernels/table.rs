//! Errors by GPU, kernel and source, as lines of a Markdown table.

use super::Measured;
use std::collections::BTreeMap;
use std::fmt;

/// Errors in percent.
pub struct Line {
    names: [String; 3],
    rows: usize,
    median: f64,
    p90: f64,
    bias: f64,
}

/// The lines in the order of their names.
pub fn table(measured: &[Measured]) -> Vec<Line> {
    let mut groups: BTreeMap<[String; 3], Vec<f64>> = BTreeMap::new();
    for row in measured {
        let names = [row.gpu.clone(), row.kernel.clone(), short(&row.source)];
        groups.entry(names).or_default().push(row.error());
    }
    groups.into_iter().map(|(names, errors)| Line::of(names, errors)).collect()
}

/// Owner and repository of a file on GitHub, else the authors and the year.
fn short(source: &str) -> String {
    let end = |text: &str, stop: &[char]| text.split(stop).next().unwrap_or(text).trim().to_string();
    match source.strip_prefix("github:") {
        Some(rest) => end(rest, &['@', ':']),
        None => end(source, &[',']),
    }
}

fn quantile(sorted: &[f64], part: f64) -> f64 {
    sorted[((sorted.len() - 1) as f64 * part).round() as usize]
}

impl Line {
    fn of(names: [String; 3], mut errors: Vec<f64>) -> Line {
        errors.sort_by(f64::total_cmp);
        let bias = 100.0 * quantile(&errors, 0.5);
        let rows = errors.len();
        errors.iter_mut().for_each(|error| *error = error.abs());
        errors.sort_by(f64::total_cmp);
        let [median, p90] = [0.5, 0.9].map(|part| 100.0 * quantile(&errors, part));
        Line { names, rows, median, p90, bias }
    }

    /// A line of the page's table; `None` if it is something else.
    pub fn parse(text: &str) -> Option<Line> {
        let cells: Vec<&str> =
            text.strip_prefix("| ")?.strip_suffix(" |")?.split(" | ").map(str::trim).collect();
        let [gpu, kernel, source, rows, median, p90, bias] = cells[..] else { return None };
        let names = [gpu, kernel, source].map(String::from);
        let number = |cell: &str| cell.parse().ok();
        Some(Line {
            names,
            rows: rows.parse().ok()?,
            median: number(median)?,
            p90: number(p90)?,
            bias: number(bias)?,
        })
    }

    pub fn names(&self) -> &[String; 3] {
        &self.names
    }

    pub fn worse_than(&self, other: &Line, margin: f64) -> bool {
        self.rows != other.rows || self.median > other.median + margin || self.p90 > other.p90 + margin
    }
}

impl fmt::Display for Line {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        let Line { names: [gpu, kernel, source], rows, median, p90, bias } = self;
        write!(out, "| {gpu} | {kernel} | {source} | {rows} | {median:.1} | {p90:.1} | {bias:+.1} |")
    }
}
