//! A token goes to each rank once, and is copied there for its experts.

use super::{Dispatcher, Move, Visits};
use crate::collective::CollectiveKind;
use crate::program::Axis;

/// An exchange by special kernels, an all-gather among the ranks of an expert, then the copies.
///
/// A rank sends (E − 1)/E · T · D · h · e bytes each way, D ≤ min(E, k) the ranks that a token's experts are on
/// (`nodes_of_a_token`, with ranks for nodes); an all-to-all sends k for D. The stack says on how many multiprocessors
/// the kernels run.
pub struct ByRank;

impl Dispatcher for ByRank {
    fn name(&self) -> &'static str {
        "by-rank"
    }

    fn summary(&self) -> &'static str {
        "a token goes to each rank once, in special kernels, and is copied there: (E - 1)/E T D h e bytes a rank each way, D ranks of a token"
    }

    fn source(&self) -> &'static str {
        "github.com/deepseek-ai/DeepEP, csrc/kernels/intranode.cu (get_dispatch_layout: is_token_in_rank)"
    }

    fn moves(&self, visits: &Visits) -> Vec<Move> {
        let once = crate::units::Bytes::new((visits.rank_rows * visits.token.get()).ceil());
        let joined = visits.expert_tensor as f64 * once;
        let sent = (visits.expert > 1).then_some(Move::Tokens { axis: Axis::Expert, bytes: once });
        let join =
            Move::exchange(CollectiveKind::AllGather, Axis::ExpertTensor, visits.expert_tensor, joined);
        let copies = visits.rows as f64 * visits.token;
        sent.into_iter().chain(join).chain([Move::Copy { tokens: joined, copies }]).collect()
    }
}
