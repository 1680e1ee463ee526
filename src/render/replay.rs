//! A replay of execution traces on a cluster.

use super::table::Table;
use super::words;
use trainwright_timeline::report::Report;
use trainwright_timeline::workload::Workload;

/// Ranks listed.
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
    let listed = &report.ranks[..report.ranks.len().min(LISTED)];
    let mut text = words::heading(&title) + &words::pairs(pairs) + "\n";
    text += &Table::of(listed)
        .right("rank", |rank| rank.rank)
        .right("compute", |rank| rank.time.compute)
        .right("exposed", |rank| rank.time.exposed)
        .right("waiting", |rank| rank.time.bubble)
        .text();
    if let Some(more) = report.ranks.len().checked_sub(LISTED).filter(|more| *more > 0) {
        text += &format!("and {more} more\n");
    }
    text
}
