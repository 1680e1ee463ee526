//! Messages straight from each rank to those it has something for.

use super::placement::ramped;
use super::{Algorithm, Call, Placement, Protocol};
use trainwright_spec::collective::CollectiveKind;
use trainwright_spec::units::{BytesPerSecond, Seconds};

/// All-to-all and send-receive.
#[derive(Debug, Clone, Copy)]
pub struct Direct;

impl Algorithm for Direct {
    fn name(&self) -> &'static str {
        "direct"
    }

    /// As `time`: NCCL has no other way, so it expects nothing.
    fn expected(&self, call: &Call, placement: &Placement) -> Option<Seconds> {
        self.time(call, placement)
    }

    /// In a node T = T₀ + V + 2 √(d V); between nodes T = max(T₁ + (p − k) m, T₁ + 2 α + V + 2 √(d V))
    ///
    /// T₁ is the start of the GPU's kernel and of NCCL's messages, T₀ the same; d the ramp of the links or of the NICs,
    /// α what NICs and fabric add to a step. A send-receive is V = n / β: β the links to one peer, between nodes one GPU's share
    /// of the NICs, up to what its channels carry on those NICs, without ramp; between nodes all messages but those of the last
    /// rank of a node are faster. An all-to-all of p ranks, k of them on each node, is
    /// V = max((k − 1) n / (p β_inside), n / β_away), β_away = p β_share / (p − k) where no fabric is narrower than the
    /// NICs (`Way`); for each of the p − k messages to other nodes the host's thread needs m, whatever their size.
    /// Source: volumes from nccl-tests src/alltoall.cu and src/sendrecv.cu; the shape from the rows aws-p5 of
    /// traces/published/collectives.csv, which grow with the ranks on other nodes at small sizes.
    fn time(&self, call: &Call, placement: &Placement) -> Option<Seconds> {
        let direct = &placement.nccl.direct;
        if call.protocol != Protocol::Simple || placement.ranks < 2 {
            return None;
        }
        let start = placement.start + direct.start.value;
        let (p, k) = (placement.ranks as f64, placement.ranks_per_node as f64);
        match (call.kind, placement.between) {
            (CollectiveKind::SendReceive, None) => {
                Some(start + ramped(call.bytes / placement.pair, placement.ramp))
            }
            (CollectiveKind::SendReceive, Some(between)) => {
                let share = between.bandwidth / k;
                let channels = self.channels(call, placement) as f64;
                let bandwidth =
                    placement.network_channel.map_or(share, |channel| share.min(channels * channel));
                Some(start + 2.0 * between.latency + call.bytes / bandwidth)
            }
            (CollectiveKind::AllToAll, None) => Some(start + ramped(inside(call, placement), placement.ramp)),
            (CollectiveKind::AllToAll, Some(between)) => {
                let away = call.bytes / placement.away;
                let transfer = ramped(away.max(inside(call, placement)), placement.exchange_ramp);
                let messages = (p - k) * placement.message;
                Some(start + messages.max(2.0 * between.latency + transfer))
            }
            _ => None,
        }
    }

    /// Channels to one peer: NCCL halves them until all peers' together are at most as many as it has.
    fn channels(&self, call: &Call, placement: &Placement) -> usize {
        let direct = &placement.nccl.direct;
        call.channels.unwrap_or_else(|| {
            let mut channels = direct.channels_per_peer.value;
            while channels > 1 && channels * placement.ranks > direct.channels.value {
                channels /= 2;
            }
            channels
        })
    }
}

/// Time of the part of an all-to-all that stays in the node.
fn inside(call: &Call, placement: &Placement) -> Seconds {
    let part = (placement.ranks_per_node as f64 - 1.0) / placement.ranks as f64;
    let bandwidth: BytesPerSecond = placement.exchange;
    part * call.bytes / bandwidth
}
