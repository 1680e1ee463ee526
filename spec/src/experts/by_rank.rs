//! A token goes to each rank once, and is copied there for its experts.

use super::{Dispatcher, Move, Visits};
use crate::units::Bytes;

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

    fn needs_kernels(&self) -> bool {
        true
    }

    fn moves(&self, visits: &Visits) -> Vec<Move> {
        let once = Bytes::new((visits.rank_rows * visits.token.get()).ceil());
        visits.by_kernels(once, None)
    }
}
