//! Clusters with nodes of several kinds: which kind the first pipeline ranks are on.
//!
//! Ranks are numbered along the nodes, and a pipeline along the ranks. Early stages hold more microbatches, the first and the
//! last have embedding and head, so that it matters which of them the larger or faster GPUs are. Every order of the kinds
//! is another question; the answer is the best of theirs.

use crate::explain::thinned;
use crate::question::Question;
use crate::verdict::{Alternative, Found, KEPT, PlannerError, Ranked, Search, Verdict};
use trainwright_spec::cluster::Cluster;

/// Kinds of which every order is tried; with more only the given one and the reverse.
const MOST_ORDERED: usize = 3;

/// The question with the kinds of nodes in each order, the given one first.
pub(super) fn node_orders(question: &Question) -> Vec<Question> {
    let kinds = question.cluster.others.len() + 1;
    let given: Vec<usize> = (0..kinds).collect();
    let all = match kinds {
        1 => vec![given],
        kinds if kinds > MOST_ORDERED => vec![given.clone(), given.into_iter().rev().collect()],
        kinds => permutations(kinds),
    };
    let turned =
        |order: Vec<usize>| Question { cluster: question.cluster.in_order(&order), ..question.clone() };
    all.into_iter().map(turned).collect()
}

/// In lexicographic order.
fn permutations(count: usize) -> Vec<Vec<usize>> {
    (0..count).fold(vec![Vec::new()], |begun, _| {
        let longer = |start: &Vec<usize>| -> Vec<Vec<usize>> {
            let left = (0..count).filter(|next| !start.contains(next));
            left.map(|next| start.iter().copied().chain([next]).collect()).collect()
        };
        begun.iter().flat_map(longer).collect()
    })
}

/// The best of the answers to a question in several orders.
///
/// # Errors
/// The first one's if none of them has an answer.
pub(super) fn best_of(
    answers: Vec<(Cluster, Result<Verdict, PlannerError>)>,
) -> Result<Verdict, PlannerError> {
    let mut found: Vec<(Cluster, Found)> = Vec::new();
    let mut without: Vec<Result<Verdict, PlannerError>> = Vec::new();
    let mut searches: Vec<Search> = Vec::new();
    for (cluster, answer) in answers {
        match answer {
            Ok(Verdict::Found(answer)) => {
                searches.push(answer.search);
                found.push((cluster, answer));
            }
            Ok(Verdict::Infeasible(answer)) => {
                searches.push(answer.search);
                without.push(Ok(Verdict::Infeasible(answer)));
            }
            Ok(Verdict::OutOfTime(search)) => {
                searches.push(search);
                without.push(Ok(Verdict::OutOfTime(search)));
            }
            Err(error) => without.push(Err(error)),
        }
    }
    let search = searches.into_iter().reduce(Search::together);
    let step = |found: &Found| found.ranked[0].expected;
    // Stable: of equal ones the order that was tried first.
    found.sort_by(|a, b| step(&a.1).get().total_cmp(&step(&b.1).get()));
    let mut found = found.into_iter();
    let Some((_, best)) = found.next() else {
        // A limit that is broken says more than a choice that cannot be made.
        let position = without.iter().position(Result::is_ok).unwrap_or(0);
        return without.swap_remove(position).map(|verdict| verdict.with_search(search));
    };
    let least = step(&best);
    let mut best = Found { search: search.unwrap_or(best.search), ..best };
    for (cluster, other) in found {
        let kinds: Vec<&str> = cluster.kinds().map(|(_, node)| node.name.as_str()).collect();
        let Ranked { forecast, limited_by: limited, .. } = &other.ranked[0];
        let (time, slower) = (forecast.step_time, 100.0 * (step(&other) / least - 1.0));
        best.alternatives.push(Alternative {
            choice: format!("{} in this order", kinds.join(", ")),
            reason: format!("{time}, {slower:+.1} %: {limited}"),
        });
        best = with_ranked(best, other);
    }
    Ok(Verdict::Found(best))
}

/// An answer with the plans of another one among its own.
pub(super) fn with_ranked(mut best: Found, other: Found) -> Found {
    best.ranked.extend(other.ranked);
    best.tied = Ranked::sort(&mut best.ranked, |ranked| ranked).min(KEPT);
    best.ranked.truncate(KEPT);
    best.front.extend(other.front);
    best.front.sort_by(|a, b| a.expected.get().total_cmp(&b.expected.get()));
    best.front = thinned(std::mem::take(&mut best.front));
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_order_is_there_once() {
        assert_eq!(permutations(1), [[0]]);
        assert_eq!(permutations(2), [[0, 1], [1, 0]]);
        let three = permutations(3);
        assert_eq!((three.len(), &three[0][..], &three[5][..]), (6, &[0, 1, 2][..], &[2, 1, 0][..]));
    }
}
