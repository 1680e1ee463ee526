//! The planner's plans against published plans.

#[path = "../../examples/authors/table.rs"]
mod authors;
mod published;
#[path = "../../examples/rivals/table.rs"]
mod rivals;
mod sweeps;

use std::collections::BTreeMap;
use std::path::Path;
use trainwright_evidence::runs::{Run, Table};

/// One of this number of published runs is planned again, unless the variable says otherwise.
const EVERY: usize = 97;

/// Names another number of runs than that; 1 compares all, and with `--nocapture` the mean gain is printed.
const EVERY_VARIABLE: &str = "TRAINWRIGHT_PUBLISHED_EVERY";

fn file(path: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

fn runs() -> Vec<Run> {
    let text = file("traces/published/training.csv");
    Table::read(text.as_bytes()).unwrap().runs().filter_map(Result::ok).collect()
}

#[test]
fn the_pick_among_measured_layouts_loses_little() {
    let mut forecasts = BTreeMap::new();
    for line in file("docs/scoreboard/forecasts.csv").lines().skip(1) {
        let cells: Vec<&str> = line.split(',').collect();
        if cells[3] == "ok" {
            forecasts.insert(cells[0].to_string(), cells[1].parse().unwrap());
        }
    }
    let sweeps = sweeps::sweeps(&runs(), &forecasts);
    let layouts: usize = sweeps.iter().map(|sweep| sweep.layouts).sum();
    assert!(sweeps.len() >= 10 && layouts >= 240, "{} sweeps of {layouts} layouts", sweeps.len());
    assert!(sweeps::mean_loss(&sweeps) <= 0.03, "{}", sweeps.iter().map(sweeps::row).collect::<String>());
}

#[test]
fn no_published_plan_is_faster_than_the_planner_s() {
    let every = std::env::var(EVERY_VARIABLE).ok().and_then(|text| text.parse().ok()).unwrap_or(EVERY);
    let compared = published::compared(&runs(), every);
    println!("{}", published::summary(&compared));
    assert!(compared.len() >= 3, "only {} compared", compared.len());
    assert!(compared.iter().all(|one| !one.is_slower()), "{}", published::summary(&compared));
}

#[test]
fn gpipe_zero_and_fsdp_each_win_somewhere() {
    let page = file("docs/planner.md");
    let settings = rivals::settings();
    // One that each wins, made again.
    for rival in ["GPipe", "ZeRO", "FSDP"] {
        let wins = |line: &&str| line.starts_with("| g") && line.ends_with(&format!("| {rival} |"));
        let line = page.lines().find(wins).unwrap_or_else(|| panic!("{rival} wins nowhere"));
        let made = settings.iter().filter(|setting| line.starts_with(&setting.begins())).map(rivals::row);
        assert_eq!(made.collect::<Vec<String>>(), [format!("{line}\n")]);
    }
}

/// Runs whose rows take a second.
const QUICK: [&str; 2] = ["llama2-70b-2048", "korthikanti22-t5-175b-selective-sp-64"];

#[test]
fn the_page_of_published_runs_has_todays_plans() {
    let page = file("docs/plans.md");
    assert!(page.contains(authors::HEAD), "the page has another head than {}", authors::HEAD);
    for id in authors::RUNS {
        assert!(page.contains(&format!("| {id} |")), "the page lacks {id}");
    }
    for id in QUICK {
        let row = authors::row(id);
        assert!(page.contains(&row), "docs/plans.md is out of date:\n{row}");
    }
}
