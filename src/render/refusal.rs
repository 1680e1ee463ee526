//! The planner's answer when nothing fits: which limits are broken by how much, and what would mend it.

use super::plans::search;
use super::table::{Column, wrapped_table};
use super::words::{heading, question as asked, wrap};
use Column::{Left, Right};
use trainwright_planner::{Infeasible, Question, Search};

/// Everything that a person wants to know.
pub fn page(question: &Question, infeasible: &Infeasible) -> String {
    let Question { model, cluster, job, stack, .. } = question;
    let mut page = wrap(&asked(model, cluster, job, &stack.name), 0);
    page.push_str(&heading("Nothing fits"));
    let columns = [Left("plans"), Left("limit"), Right("needs"), Right("has"), Right("lacks")];
    let rows = infeasible.broken.iter().map(|broken| {
        vec![
            broken.plans.clone(),
            broken.limit.clone(),
            broken.needs.to_string(),
            broken.has.to_string(),
            (broken.needs - broken.has).to_string(),
        ]
    });
    page.push_str(&wrapped_table(&columns, rows.collect()));
    if !infeasible.remedies.is_empty() {
        page.push_str(&heading("What would mend it"));
        page.extend(infeasible.remedies.iter().map(|remedy| wrap(&format!("- {remedy}"), 2)));
    }
    page.push_str(&heading("Search"));
    page.push_str(&search(&infeasible.search));
    page
}

/// The time was up before a plan that fits was found.
pub fn out_of_time(question: &Question, so_far: &Search) -> String {
    let Question { model, cluster, job, stack, .. } = question;
    let mut page = wrap(&asked(model, cluster, job, &stack.name), 0);
    page.push_str(&heading("No plan was found in time"));
    page.push_str(&wrap("Allow more time, or pin some choices.", 0));
    page.push_str(&heading("Search"));
    page.push_str(&search(so_far));
    page
}
