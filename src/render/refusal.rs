//! The planner's answer when nothing fits: which limits are broken by how much, and which changes would help.

use super::plans::{limit_in_words, search};
use super::table::Table;
use super::words::{heading, job_in_words, memory_of_gpus, wrap};
use trainwright_planner::{Infeasible, Question, Search};

/// Everything that a person wants to know.
pub fn page(question: &Question, infeasible: &Infeasible) -> String {
    let Question { model, cluster, job, stack, .. } = question;
    let mut page = wrap(&job_in_words(model, cluster, job, &stack.name), 0);
    page.push_str(&heading("Nothing fits"));
    let table = Table::of(&infeasible.broken)
        .left("plans", |broken| &broken.plans)
        .left("limit", |broken| &broken.limit)
        .right("needs", |broken| broken.needs)
        .right("has", |broken| broken.has)
        .right("lacks", |broken| broken.needs - broken.has);
    page.push_str(&table.wrapped());
    if let Some(limit) = limit_in_words(question) {
        let memory = memory_of_gpus(cluster);
        page.push_str(&wrap(&format!("has: what a plan may use of a GPU, {limit}; {memory} GiB"), 0));
    }
    if !infeasible.remedies.is_empty() {
        page.push_str(&heading("What would help"));
        page.extend(infeasible.remedies.iter().map(|remedy| wrap(&format!("- {remedy}"), 2)));
    }
    page.push_str(&heading("Search"));
    page.push_str(&search(&infeasible.search));
    page
}

/// The time was up before a plan that fits was found.
pub fn out_of_time(question: &Question, so_far: &Search) -> String {
    let Question { model, cluster, job, stack, .. } = question;
    let mut page = wrap(&job_in_words(model, cluster, job, &stack.name), 0);
    page.push_str(&heading("No plan was found in time"));
    page.push_str(&wrap("Allow more time, or pin some choices.", 0));
    page.push_str(&heading("Search"));
    page.push_str(&search(so_far));
    page
}
