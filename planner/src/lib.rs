//! The planner: which plan is best, and why.

mod verdict;

pub use verdict::{
    Alternative, BrokenLimit, Found, Infeasible, Pins, PlannerError, Progress, Question, Ranked, Search,
    Verdict,
};

/// The best plans for a question. `watch` is told how far the search is, from several threads.
///
/// # Errors
/// `NoCandidate` if no combination of choices is legal; what does not fit in memory is a verdict, not an error.
pub fn plan(_question: &Question, _watch: &(dyn Fn(Progress) + Sync)) -> Result<Verdict, PlannerError> {
    Err(PlannerError::NoCandidate { reason: "the search is not written yet".into() })
}
