//! How large a space is.

use crate::question::Question;
use crate::space::{LegalCandidates, recompute_choices};
use crate::verdict::Search;

/// The search that has looked at no candidate.
pub(super) fn unseen(question: &Question, legal: &LegalCandidates) -> Search {
    let candidates = legal.layouts.iter().map(|layout| legal.count(layout)).sum();
    Search {
        layouts: legal.layouts.len(),
        candidates,
        plans_log10: plans_log10(question, legal),
        unseen: candidates,
        ..Search::default()
    }
}

/// The decimal logarithm of Σ C(L + 1, S − 1) Rᴸ over all candidates: S stages of L blocks, one or more on each but the first
/// and the last, and R recompute choices for each block. One stage has all blocks.
fn plans_log10(question: &Question, legal: &LegalCandidates) -> f64 {
    let layers = question.model.layers();
    let most = layers + 2;
    let mut splits = vec![0.0; most];
    for number in 1..most {
        splits[number] = splits[number - 1] + libm::log10((most - number) as f64 / number as f64);
    }
    let mut of_stages = vec![0usize; most + 1];
    for stages in legal.layouts.iter().flat_map(|layout| legal.stages(layout)) {
        of_stages[stages] += 1;
    }
    let logs = (1..=most).filter(|stages| of_stages[*stages] > 0);
    let logs: Vec<f64> =
        logs.map(|stages| libm::log10(of_stages[stages] as f64) + splits[stages - 1]).collect();
    let largest = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = logs.iter().map(|log| libm::pow(10.0, log - largest)).sum();
    largest + libm::log10(sum) + layers as f64 * libm::log10(recompute_choices(question).len() as f64)
}
