//! A token goes to each node once, and inside it to its experts.

use super::{Dispatcher, Move, Visits};
use crate::collective::CollectiveKind;
use crate::model::Experts;
use crate::program::Axis;

/// An all-to-all between the nodes, to the rank in the same place there, then one inside each node.
///
/// A rank sends (N − 1)/N · T · D · h · e bytes between nodes and (g − 1)/g · T · k · h · e inside its node each way: N
/// nodes of g = E/N ranks, D ≤ min(N, k) the nodes that a token's experts are on (`nodes_of_a_token`). An all-to-all
/// among all ranks sends (E − g)/E · T · k · h · e between nodes. That a token is copied in the node it comes to is
/// counted as one pass over the copies, before they leave.
pub struct ByNode;

impl Dispatcher for ByNode {
    fn name(&self) -> &'static str {
        "by-node"
    }

    fn summary(&self) -> &'static str {
        "a token goes to each node once and is copied there: (N - 1)/N T D h e bytes a rank between N nodes, D of a token"
    }

    fn source(&self) -> &'static str {
        "DeepSeek-AI 2024, DeepSeek-V3 (arXiv 2412.19437), section 3.2.2; github.com/deepseek-ai/DeepEP"
    }

    fn tells_nodes(&self) -> bool {
        true
    }

    fn moves(&self, visits: &Visits) -> Vec<Move> {
        let nodes = visits.expert / visits.inner;
        let away = (visits.node_rows * visits.token.get()).ceil();
        let received = visits.rows as f64 / visits.expert_tensor as f64 * visits.token;
        let all_to_all = |axis, ranks, bytes| Move::exchange(CollectiveKind::AllToAll, axis, ranks, bytes);
        let exchanges = [
            all_to_all(Axis::ExpertOuter, nodes, crate::units::Bytes::new(away)),
            all_to_all(Axis::ExpertInner, visits.inner, received),
        ];
        let moves = std::iter::once(visits.copy()).chain(exchanges.into_iter().flatten());
        moves.chain(visits.join_rows()).chain(visits.sort()).collect()
    }
}

/// On how many of `nodes` the experts of a token are on average, D, where all choices are as likely.
///
/// D = N Σ_j H(j) (1 − C(n − j c/a, k) / C(n, k)),  H(j) = C(a, j) C(G − a, M − j) / C(G, M)
///
/// N nodes with c = experts / N each; G groups of experts of which a token visits M (one of one without a limit), a =
/// max(1, G/N) of them on a node; n experts in M groups, k visited. H is the chance that a token may visit j of a node's
/// groups.
/// Source: counted; the limit is that of DeepSeek-AI 2024, DeepSeek-V3 (arXiv 2412.19437), section 2.1.2.
pub fn nodes_of_a_token(experts: &Experts, nodes: usize) -> f64 {
    let (groups, visited) = experts.group_limit.map_or((1, 1), |limit| (limit.groups, limit.per_token));
    let on_node = (groups / nodes).max(1);
    let open = visited * experts.count / groups;
    let of_group = (experts.count / nodes) as f64 / on_node as f64;
    let reached = |chosen: usize| {
        let of_chosen = chosen as f64 * of_group;
        let missed = |pick: usize| ((open - pick) as f64 - of_chosen).max(0.0) / (open - pick) as f64;
        1.0 - (0..experts.per_token).map(missed).product::<f64>()
    };
    let chance = |chosen: usize| {
        choose(on_node, chosen) * choose(groups - on_node, visited - chosen) / choose(groups, visited)
    };
    let of_node: f64 = (0..=on_node.min(visited)).map(|chosen| chance(chosen) * reached(chosen)).sum();
    nodes as f64 * of_node
}

/// C(n, k); `None` if k > n.
fn choose(n: usize, k: usize) -> f64 {
    if k > n {
        return 0.0;
    }
    (0..k).map(|i| (n - i) as f64 / (i + 1) as f64).product()
}
