//! Two calls that run as one joint pass: whose ops come when in the streams of their rank.
//!
//! ```text
//! forward    f0 ─ dispatch ─► f1 ─ combine ─► f2          compute | f0   b0   f1   b1   f2   b2
//! backward   b0 ─ dispatch ─► b1 ─ combine ─► b2          layer   |    dF   dB   cF   cB
//! ```
//!
//! A pass that waits for its tokens leaves the compute stream to the other pass. Both keep their own order, so an
//! exchange overlaps kernels because of streams and dependencies alone.

use crate::template::{Node, NodeId};
use std::ops::Range;
use trainwright_spec::program::{Axis, Call, Stream};
use trainwright_timeline::timeline::Activity;

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
    let [first, second] = calls.map(runs);
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

/// Whether any joint calls of a rank take turns, of which `templates` has the nodes by segment. If not, they run one after
/// the other.
pub(crate) fn any_take_turns(calls: &[Call], templates: &[Vec<Node>]) -> bool {
    let is_cut = |call: &Call| runs(&templates[call.segment]).len() > 1;
    calls.windows(2).any(|pair| pair[0].joint && pair.iter().any(is_cut))
}

/// The nodes of a call, cut before each kernel that waits for an exchange of tokens.
fn runs(nodes: &[Node]) -> Vec<Range<usize>> {
    let waits = |node: &Node| node.after.iter().any(|earlier| exchanges_tokens(nodes, *earlier));
    let cuts = nodes.iter().enumerate().filter(|(_, node)| node.stream == Stream::Compute && waits(node));
    let mut ends: Vec<usize> = cuts.map(|(index, _)| index).filter(|index| *index > 0).collect();
    ends.push(nodes.len());
    let starts = std::iter::once(0).chain(ends.clone());
    starts.zip(ends).map(|(start, end)| start..end).collect()
}

fn exchanges_tokens(nodes: &[Node], node: NodeId) -> bool {
    let node = &nodes[usize::from(node)];
    let over_experts = matches!(
        node.activity,
        Activity::Communication(Axis::Expert | Axis::ExpertInner | Axis::ExpertOuter | Axis::ExpertTensor)
    );
    node.stream == Stream::Layer && over_experts
}
