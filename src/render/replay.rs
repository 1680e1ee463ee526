//! What execution traces do on a cluster.

use super::table::{Column, table};
use super::words;
use Column::Right;
use trainwright_timeline::report::{RankReport, Report};
use trainwright_timeline::workload::Workload;

/// So many ranks are listed.
const LISTED: usize = 16;

/// The page of `replay`.
pub fn page(workload: &Workload, report: &Report, cluster: &str) -> String {
    let tasks: usize = workload.ranks.iter().map(|rank| rank.tasks.len()).sum();
    let title = format!("{} traces on {cluster}", workload.ranks.len());
    let pairs = [
        ("step", report.step_time.to_string()),
        ("nodes", words::grouped(tasks as f64)),
        ("compute", format!("{} in the mean", report.mean.compute)),
        ("exposed", format!("{} of communication and copies in the mean", report.mean.exposed)),
        ("waiting", format!("{} in the mean, {:.1} %", report.mean.bubble, 100.0 * report.mean.bubble_share)),
    ];
    let row = |rank: &RankReport| {
        let time = &rank.time;
        [rank.rank.to_string(), time.compute.to_string(), time.exposed.to_string(), time.bubble.to_string()]
            .to_vec()
    };
    let rows = report.ranks.iter().take(LISTED).map(row).collect();
    let mut text = words::heading(&title) + &words::pairs(pairs) + "\n";
    text += &table(&[Right("rank"), Right("compute"), Right("exposed"), Right("waiting")], rows);
    if let Some(more) = report.ranks.len().checked_sub(LISTED).filter(|more| *more > 0) {
        text += &format!("and {more} more\n");
    }
    text
}

/// The same as JSON.
pub fn json(report: &Report) -> String {
    serde_json::to_string_pretty(report).expect("reports have only text keys") + "\n"
}
