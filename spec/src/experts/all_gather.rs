//! Every rank gets every token and picks those of its experts.

use super::{Dispatcher, Move, Visits};
use crate::collective::CollectiveKind;
use crate::program::Axis;

/// All-gathers over the expert axis and among the ranks of an expert; reduce-scatters on the way back.
///
/// A rank sends (E − 1) · T · h · e bytes over the expert axis each way and (F − 1) · E · T · h · e among the ranks of an
/// expert, whatever experts the tokens visit: less than an all-to-all where k > E, and never more rows for the busiest.
pub struct AllGather;

impl Dispatcher for AllGather {
    fn name(&self) -> &'static str {
        "all-gather"
    }

    fn summary(&self) -> &'static str {
        "all tokens go to all ranks, which pick those of their experts: (E - 1) T h e bytes a rank each way"
    }

    fn source(&self) -> &'static str {
        "Megatron-Core MoEAllGatherTokenDispatcher (--moe-token-dispatcher-type allgather)"
    }

    fn moves(&self, visits: &Visits) -> Vec<Move> {
        let gather = |axis, ranks, tokens| Move::exchange(CollectiveKind::AllGather, axis, ranks, tokens);
        let of_axis = (visits.tokens * visits.expert) as f64 * visits.token;
        let all = visits.expert_tensor as f64 * of_axis;
        let rows = visits.rows as f64 * visits.token;
        let gathers = [
            gather(Axis::Expert, visits.expert, of_axis),
            gather(Axis::ExpertTensor, visits.expert_tensor, all),
        ];
        gathers.into_iter().flatten().chain([Move::Copy { tokens: all, copies: rows }]).collect()
    }
}
