//! Each rank sends each copy of a token straight to its expert's rank.

use super::{Dispatcher, Move, Visits};
use crate::collective::CollectiveKind;
use crate::program::Axis;

/// Copies, one all-to-all, and an all-gather among the ranks of an expert.
///
/// A rank sends (E − 1)/E · T · k · h · e bytes each way. The busiest rank receives `rows` of them instead of T · k, and
/// all wait for it.
pub struct AllToAll;

impl Dispatcher for AllToAll {
    fn name(&self) -> &'static str {
        "all-to-all"
    }

    fn summary(&self) -> &'static str {
        "each copy of a token goes straight to its expert: (E - 1)/E T k h e bytes a rank each way"
    }

    fn source(&self) -> &'static str {
        "Lepikhin et al. 2020, GShard (arXiv 2006.16668), section 3; Megatron-Core MoEAlltoAllTokenDispatcher"
    }

    fn moves(&self, visits: &Visits) -> Vec<Move> {
        let received = visits.rows as f64 / visits.expert_tensor as f64 * visits.token;
        let exchange = Move::exchange(CollectiveKind::AllToAll, Axis::Expert, visits.expert, received);
        std::iter::once(visits.copy())
            .chain(exchange)
            .chain(visits.join_rows())
            .chain(visits.sort())
            .collect()
    }
}
