//! Prefill and decode apart: what each pool is asked, and how long keys and values move.

use trainwright_sim::network::collective_time;
use trainwright_sim::serving::{Instance, Load, Request};
use trainwright_spec::collective::CollectiveKind;
use trainwright_spec::units::Seconds;

/// What a pool of prefill is asked: every request's prompt and first token.
pub(super) fn prefill_load(load: Load) -> Load {
    changed(load, |request| Request { output: 1, ..*request })
}

/// What a pool of decode is asked: with the prompt's keys and values there, the first token is computed, and so on to the last.
/// A request whose first token is its last is not asked.
pub(super) fn decode_load(load: Load) -> Load {
    let load = changed(load, |request| Request {
        input: request.input + 1,
        cached: request.input,
        output: request.output.saturating_sub(1),
        ..*request
    });
    match load {
        Load::Open(requests) => {
            Load::Open(requests.into_iter().filter(|request| request.output > 0).collect())
        }
        closed => closed,
    }
}

fn changed(load: Load, change: impl Fn(&Request) -> Request) -> Load {
    let all = |requests: Vec<Request>| requests.iter().map(&change).collect();
    match load {
        Load::Open(requests) => Load::Open(all(requests)),
        Load::Closed { clients, requests } => Load::Closed { clients, requests: all(requests) },
    }
}

/// How long the keys and values of `tokens` tokens move to an instance of decode: every GPU receives its part at once, from
/// another node where there is one.
pub(super) fn kv_move(instance: &Instance, tokens: usize) -> Seconds {
    let cluster = instance.steps.cluster();
    let per_node = cluster.node.gpus.value;
    let from = match cluster.gpus() {
        gpus if gpus > per_node => per_node,
        gpus if gpus > 1 => 1,
        _ => return Seconds::ZERO,
    };
    let bytes = tokens as f64 * instance.memory.token + instance.memory.sequence;
    collective_time(CollectiveKind::SendReceive, bytes, &[0, from], cluster)
}
