//! `docs/parallelism.md`, `docs/gpu.md` and `docs/using.md` say of the plans in `examples/plans` the same as the program.
//!
//! A table of a page whose first column is `change` belongs to the plan named above it. A row's changes are lines of
//! the plan's file; its `step time` and `GiB`, or its `refused`, are what `simulate` answers to the plan with these lines.
//! With `TRAINWRIGHT_BLESS` set the test writes today's figures into the pages instead.

use crate::Folder;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::Mutex;
use trainwright_spec::units::Seconds;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

const PAGES: [&str; 3] = ["docs/using.md", "docs/parallelism.md", "docs/gpu.md"];

/// A row of a table: the plan it is about, its cells by column.
struct Row {
    plan: String,
    cells: Vec<(String, String)>,
}

impl Row {
    fn cell(&self, column: &str) -> Option<&str> {
        self.cells.iter().find(|(name, _)| name == column).map(|(_, cell)| cell.as_str())
    }

    /// The plan's text with the row's lines.
    fn text(&self) -> String {
        let file = fs::read_to_string(Path::new(ROOT).join("examples/plans").join(&self.plan)).unwrap();
        let changes = self.cell("change").unwrap().split('`').skip(1).step_by(2);
        changes.fold(file, |text, change| changed(&text, change))
    }

    /// The program's figures for the row's columns.
    fn said(&self) -> Vec<(&'static str, String)> {
        // The forecasts of runs on GPUs, made before any run, are of the catalog alone.
        let calibration = if self.plan.starts_with("gpu-") { " --calibration none" } else { "" };
        let ran = Folder::new().run_with_input(&format!("simulate - --json{calibration}"), &self.text());
        let all = match self.cell("refused") {
            Some(_) => vec![("refused", ran.stderr.trim().replace("error: standard input: ", ""))],
            None => {
                let answer: Value = serde_json::from_str(&ran.stdout).unwrap_or_default();
                let fits = if ran.code == 3 { ", does not fit" } else { "" };
                figures(&answer["forecast"], fits)
            }
        };
        all.into_iter().filter(|(column, _)| self.cell(column).is_some()).collect()
    }

    /// The wrong cells of the row.
    fn wrong(&self) -> Option<String> {
        let wrong = self.said().into_iter().find(|(column, said)| self.cell(column) != Some(said))?;
        let (column, said) = wrong;
        let change = self.cell("change").unwrap();
        let page = self.cell(column);
        Some(format!("{} with {change}: {column} is {said}, the page says {page:?}", self.plan))
    }

    /// The row as it stands in the page.
    fn line<'a>(cells: impl Iterator<Item = &'a str>) -> String {
        format!("| {} |", cells.collect::<Vec<_>>().join(" | "))
    }

    /// The row as it stands in the page, and as it should.
    fn blessed(&self) -> [String; 2] {
        let said = self.said();
        let of = |column: &str| said.iter().find(|(name, _)| *name == column).map(|(_, said)| said.as_str());
        let written = self.cells.iter().map(|(_, cell)| cell.as_str());
        let right = self.cells.iter().map(|(column, cell)| of(column).unwrap_or(cell));
        [Self::line(written), Self::line(right)]
    }
}

/// The cells of a forecast by the columns of a table.
fn figures(forecast: &Value, fits: &str) -> Vec<(&'static str, String)> {
    let number = |value: &Value| value.as_f64().unwrap_or(f64::NAN);
    let gib = |value: &Value| format!("{:.1}", number(value) / 1_073_741_824.0);
    let ranks = forecast["memory_bytes_by_pipeline_rank"].as_array().cloned().unwrap_or_default();
    let most = |key: &str| {
        let of_ranks = ranks.iter().map(|rank| &rank[key]);
        of_ranks.max_by(|a, b| number(a).total_cmp(&number(b))).map_or("0.0".into(), gib)
    };
    let report = &forecast["report"];
    let mean = &report["mean"];
    let bubbles = report["ranks"].as_array().into_iter().flatten().map(|rank| number(&rank["bubble_share"]));
    let step = number(&forecast["step_time_s"]);
    vec![
        ("step time", Seconds::new(step).to_string()),
        ("GiB", gib(&forecast["peak_memory_bytes"]) + fits),
        ("bubble %", format!("{:.1}", 100.0 * bubbles.fold(0.0, f64::max))),
        ("exposed %", format!("{:.1}", 100.0 * number(&mean["exposed_s"]) / step)),
        ("tokens/s", thousands(number(&forecast["tokens_per_s"]))),
        ("MFU %", format!("{:.1}", 100.0 * number(&forecast["mfu_causal_attention"]))),
        ("HFU %", format!("{:.1}", 100.0 * number(&forecast["hfu"]))),
        ("activations GiB", most("activations")),
        ("host GiB", most("host")),
    ]
}

/// `1,234,567`
fn thousands(number: f64) -> String {
    let digits = format!("{number:.0}");
    let cut = |(index, digit): (usize, char)| {
        let comma = index > 0 && (digits.len() - index).is_multiple_of(3);
        [comma.then_some(','), Some(digit)].into_iter().flatten()
    };
    digits.chars().enumerate().flat_map(cut).collect()
}

/// The text with the line of this key replaced, or with a new line.
fn changed(text: &str, change: &str) -> String {
    let key = |line: &str| line.split_once('=').map(|(key, _)| key.trim().to_string());
    let changed = key(change);
    let others = text.lines().filter(|line| key(line) != changed);
    std::iter::once(change).chain(others).collect::<Vec<_>>().join("\n")
}

/// The rows of the page's tables that speak of plans.
fn rows(page: &str) -> Vec<Row> {
    let mut rows = Vec::new();
    let (mut plan, mut columns) = (String::new(), Vec::new());
    for (index, line) in page.lines().enumerate() {
        if let Some((_, rest)) = line.split_once("examples/plans/").filter(|_| line.contains("](")) {
            plan = rest.split(')').next().unwrap().to_string();
        }
        let Some(inside) = line.strip_prefix("| ").and_then(|line| line.strip_suffix(" |")) else {
            columns.clear();
            continue;
        };
        let cells: Vec<String> = inside.split(" | ").map(|cell| cell.trim().to_string()).collect();
        if columns.is_empty() {
            columns = cells;
        } else if columns[0] == "change" && !cells[0].starts_with("---") {
            assert_eq!(cells.len(), columns.len(), "line {}", index + 1);
            let cells = columns.iter().cloned().zip(cells).collect();
            rows.push(Row { plan: plan.clone(), cells });
        }
    }
    rows
}

/// The results of `check` for all of `items`, on every core.
fn each<T: Sync>(items: &[T], check: impl Fn(&T) -> Option<String> + Sync) -> Vec<String> {
    let (next, found) = (Mutex::new(items.iter()), Mutex::new(Vec::new()));
    let threads = std::thread::available_parallelism().map_or(1, |threads| threads.get());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let Some(item) = next.lock().unwrap().next() else { break };
                    found.lock().unwrap().extend(check(item));
                }
            });
        }
    });
    let mut found = found.into_inner().unwrap();
    found.sort();
    found
}

/// The page with today's figures.
fn blessed(page: &str) -> String {
    rows(page).iter().fold(page.to_string(), |page, row| {
        let [old, right] = row.blessed();
        page.replacen(&old, &right, 1)
    })
}

#[test]
fn the_pages_about_parallelism_say_what_the_program_says() {
    let read = |path: &str| fs::read_to_string(Path::new(ROOT).join(path)).unwrap();
    let pages = PAGES.map(read);
    if std::env::var_os("TRAINWRIGHT_BLESS").is_some() {
        for (path, page) in PAGES.iter().zip(&pages) {
            fs::write(Path::new(ROOT).join(path), blessed(page)).unwrap();
        }
        return;
    }
    let rows: Vec<Row> = pages.iter().flat_map(|page| rows(page)).collect();
    let wrong = each(&rows, Row::wrong);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));

    let used: BTreeSet<String> = rows.iter().map(|row| row.plan.clone()).collect();
    let files = fs::read_dir(Path::new(ROOT).join("examples/plans")).unwrap();
    let files: BTreeSet<String> =
        files.map(|file| file.unwrap().file_name().to_string_lossy().into_owned()).collect();
    assert_eq!(files, used, "every plan of examples/plans is in a table");
    let shown = read("examples/plans/data.toml");
    assert!(pages[..2].iter().all(|page| page.contains(&shown)), "the pages show data.toml as it is");
    assert!(rows.len() > 60, "{} rows", rows.len());
}
