//! All flows are known before the first starts.

use super::{Error, FlowId, Link, LinkId, Network, Reason};
use trainwright_spec::units::{Bytes, BytesPerSecond, Picoseconds, Seconds};

/// A flow and when it starts.
#[derive(Debug, Clone, PartialEq)]
pub struct Transfer {
    /// When it sets out.
    pub start: Seconds,
    /// How long after that the first byte moves; it holds no link meanwhile.
    pub latency: Seconds,
    /// The flow.
    pub amount: Bytes,
    /// Links with weights, as in `Flow`.
    pub path: Vec<(LinkId, f64)>,
    /// The greatest rate.
    pub cap: Option<BytesPerSecond>,
}

/// When each transfer is complete, in their order.
///
/// # Errors
/// The first transfer that cannot be simulated, and why.
pub fn completion_times(links: &[Link], transfers: &[Transfer]) -> Result<Vec<Picoseconds>, Error> {
    let mut starts = Vec::with_capacity(transfers.len());
    for (flow, transfer) in transfers.iter().enumerate() {
        let seconds = (transfer.start + transfer.latency).get();
        if !(transfer.start.get() >= 0.0 && transfer.latency.get() >= 0.0 && seconds.is_finite()) {
            return Err(Error { flow, reason: Reason::Start(seconds) });
        }
        starts.push((Picoseconds::from(Seconds::new(seconds)), flow));
    }
    starts.sort_unstable();

    let mut network = Network::new(links.to_vec());
    let mut ends = vec![None; transfers.len()];
    let mut record = |ended: Vec<FlowId>, now| {
        for FlowId(order) in ended {
            ends[starts[order as usize].1] = Some(now);
        }
    };
    let mut waiting = starts.iter().peekable();
    while let Some(now) = earlier(waiting.peek().map(|(start, _)| *start), network.next_end()) {
        record(network.advance(now), now);
        while let Some((start, flow)) = waiting.next_if(|(start, _)| *start == now) {
            let Transfer { amount, path, cap, .. } = &transfers[*flow];
            let cap = cap.map_or(f64::INFINITY, BytesPerSecond::get);
            let started = network.start_on(*start, amount.get(), path, cap);
            started.map_err(|error| Error { flow: *flow, ..error })?;
        }
    }
    ends.iter().enumerate().map(|(flow, end)| end.ok_or(Error { flow, reason: Reason::TooLong })).collect()
}

fn earlier(one: Option<Picoseconds>, other: Option<Picoseconds>) -> Option<Picoseconds> {
    one.into_iter().chain(other).min()
}
