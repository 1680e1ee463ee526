//! What became of all candidates of a space.

use super::branch_and_bound::Explored;
use super::candidate_trial::Trial;
use super::space_size::unseen;
use crate::question::Question;
use crate::space::LegalCandidates;
use crate::verdict::Search;

/// What became of all candidates.
pub(crate) fn search_summary(question: &Question, legal: &LegalCandidates, explored: &Explored) -> Search {
    let count = |kind: fn(&Trial) -> bool| explored.seen.iter().filter(|seen| kind(&seen.trial)).count();
    let unseen = unseen(question, legal);
    let solved_out = count(|trial| matches!(trial, Trial::OutOfMemory(_)));
    let too_slow = count(|trial| matches!(trial, Trial::TooSlow(_)));
    let solved = explored.seen.len();
    let out_of_memory = explored.state_out_of_memory + explored.activations_out_of_memory + solved_out;
    let rest = unseen.candidates - (out_of_memory + solved - solved_out);
    Search {
        out_of_memory,
        state_out_of_memory: explored.state_out_of_memory,
        bounded_out: too_slow + if explored.ended { rest } else { 0 },
        solved,
        simulated: count(|trial| matches!(trial, Trial::Simulated { .. })),
        unseen: if explored.ended { 0 } else { rest },
        bound: explored.bound,
        ..unseen
    }
}
