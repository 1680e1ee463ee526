//! Two calls that run as one joint pass: whose ops come when in the streams of their rank.
//!
//! ```text
//! forward    f0 ─ dispatch ─► f1 ─ combine ─► f2          compute | f0   b0   f1   b1   f2   b2
//! backward   b0 ─ dispatch ─► b1 ─ combine ─► b2          layer   |    dF   dB   cF   cB
//! ```
//!
//! A pass that waits for its tokens leaves the compute stream to the other pass. Both keep their own order, so an
//! exchange overlaps kernels because of streams and dependencies alone.

use crate::template::{Node, runs_between_exchanges};
use std::ops::Range;

/// A run of a call's nodes: which of the two calls, and which nodes of it.
pub(crate) type Turn = (usize, Range<usize>);

/// The order in which the nodes of two joint calls enter the streams.
///
/// Each call is cut before every kernel that waits for an exchange of tokens between experts. The calls take turns, the
/// first call first, one run each; what one call has more runs of follows at the end.
///
/// Source: DeepSeek-AI 2024, arXiv 2412.19437, section 3.2.1 and figure 4 (attention, dispatch, MLP and combine of a
/// forward and a backward chunk alternate).
pub(crate) fn turns(calls: [&[Node]; 2]) -> Vec<Turn> {
    let [first, second] = calls.map(runs_between_exchanges);
    let mut turns = Vec::with_capacity(first.len() + second.len());
    let (mut first, mut second) = (first.into_iter(), second.into_iter());
    loop {
        let next = [first.next(), second.next()];
        if next.iter().all(Option::is_none) {
            return turns;
        }
        turns.extend(next.into_iter().enumerate().filter_map(|(call, run)| Some((call, run?))));
    }
}
