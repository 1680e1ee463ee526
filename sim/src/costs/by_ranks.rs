//! Collectives that ranks perform themselves, step by step along a ring, where they are threads of processors.
//!
//! This knows what a step takes inside a node and what it adds between nodes. It does not know who else uses the cores.

use crate::network::{Link, Placement};
use trainwright_spec::cluster::{Cores, MeasuredExchange, NetworkWork, StepTimes, step_time};
use trainwright_spec::collective::CollectiveKind;
use trainwright_spec::units::{Bytes, Seconds};

/// Time of a collective over a tensor of `bytes`.
///
/// T = Σ over its steps of t(takes, n)
///
/// p ranks, n bytes, t the time of a step (`step`). A ring has p − 1 steps of n / p bytes whose receivers add, and as many
/// whose receivers copy, for an all-reduce; one of them for its halves, copies for an all-to-all; a broadcast and a reduce
/// pass on the whole tensor p − 1 times.
/// Assumes that members start together, a core for each, and a pause before it in which shapers become full.
pub(super) fn collective_time(
    kind: CollectiveKind,
    bytes: Bytes,
    placement: &Placement,
    (steps, burst): (&StepTimes, Bytes),
) -> Seconds {
    let mut network = placement.between.map(|link| Network { link, burst, left: burst });
    sum(kind, bytes, placement.ranks, |takes, bytes| step(takes, bytes, network.as_mut(), steps))
}

/// The time of one core that each member takes for it.
///
/// T = Σ over its steps of max(t_copy(n), w n) + t_add(n) − t_copy(n)
///
/// w what the operating system works for a byte between nodes, both copies of it included, 0 inside a node.
pub(super) fn collective_work(
    kind: CollectiveKind,
    bytes: Bytes,
    ranks: usize,
    (steps, network): (&StepTimes, Option<&NetworkWork>),
) -> Seconds {
    sum(kind, bytes, ranks, |takes, bytes| {
        let more = network.map_or(Seconds::ZERO, |network| {
            let [sent, received] = network.of(bytes);
            sent + received - step_time(&steps.copies, bytes)
        });
        step(takes, bytes, None, steps) + more.max(Seconds::ZERO)
    })
}

/// Times of one core of the sender's and the receiver's node for a message between nodes.
///
/// T = max(t_copy(n), w_s n), and w_r n: what the sender does itself is part of what its node does
pub(super) fn message_work(bytes: Bytes, cores: &Cores) -> [Seconds; 2] {
    let [sent, received] = cores.network.as_ref().map_or([Seconds::ZERO; 2], |network| network.of(bytes));
    [sent.max(step_time(&cores.steps.copies, bytes)), received]
}

/// Time of the work that an op adds to its exchange, such as packing what is sent: in proportion to the bytes, the time of the
/// measured ops of its kind less that of their exchanges (`alone`).
///
/// T = n Σ (T_i − F_i) / Σ n_i, at least 0
///
/// n bytes of the op; T_i and n_i times and bytes of the measured ops of its kind; F_i times of their exchanges alone.
pub(super) fn added_work(
    op: &str,
    (kind, bytes): (CollectiveKind, Bytes),
    measured: &[MeasuredExchange],
    alone: impl Fn(CollectiveKind, Bytes, usize) -> Seconds,
) -> Seconds {
    let of_op = || measured.iter().filter(|row| row.op == op && row.collective == kind);
    let all: Bytes = of_op().map(|row| row.measured.bytes).sum();
    if all == Bytes::ZERO {
        return Seconds::ZERO;
    }
    let more: Seconds =
        of_op().map(|row| row.measured.time - alone(kind, row.measured.bytes, row.ranks)).sum();
    ((bytes / all) * more).max(Seconds::ZERO)
}

/// The part of a node's cores that is busy with `work` out of `time`, all of them at most.
pub(super) fn cores(work: Seconds, time: Seconds, cores: &Cores) -> f64 {
    let count = cores.count.value as f64;
    // What takes no time at all is one thread's.
    let busy = if time > Seconds::ZERO { (work / time).min(count) } else { 1.0 };
    busy / count
}

/// Time of a message: inside a node it changes hands, between nodes it is copied into the receiver's memory.
pub(super) fn message_time(
    bytes: Bytes,
    placement: &Placement,
    (steps, burst): (&StepTimes, Bytes),
) -> Seconds {
    match (placement.ranks, placement.between) {
        (0 | 1, _) => Seconds::ZERO,
        (_, None) => step_time(&steps.copies, Bytes::ZERO),
        (_, Some(link)) => step(Takes::Copies, bytes, Some(&mut Network { link, burst, left: burst }), steps),
    }
}

/// The route between two nodes, with the state that earlier messages left.
struct Network {
    link: Link,
    /// See `Nics::burst`.
    burst: Bytes,
    /// The part of it that is left.
    left: Bytes,
}

impl Network {
    /// Time that the link holds a message up which takes `least` in any case: what the bucket has goes through at once.
    ///
    /// T = max(n − b, 0) / β, and b becomes min(b − n + β max(T, T_least), B)
    ///
    /// n bytes, β the link's bandwidth, b what the bucket has, B its depth.
    fn carries(&mut self, bytes: Bytes, least: Seconds) -> Seconds {
        let held = (bytes - self.left.min(bytes)) / self.link.bandwidth;
        let filled = Bytes::new(self.link.bandwidth.get() * held.max(least).get());
        self.left = (self.left - bytes + filled).max(Bytes::ZERO).min(self.burst);
        held
    }
}

/// How a receiver uses the bytes that arrive.
#[derive(Clone, Copy, PartialEq)]
enum Takes {
    Copies,
    Adds,
}

fn sum(
    kind: CollectiveKind,
    bytes: Bytes,
    ranks: usize,
    mut step: impl FnMut(Takes, Bytes) -> Seconds,
) -> Seconds {
    if ranks <= 1 {
        return Seconds::ZERO;
    }
    let part = bytes / ranks as f64;
    let mut rounds = |takes, bytes| -> Seconds { (1..ranks).map(|_| step(takes, bytes)).sum() };
    match kind {
        CollectiveKind::AllReduce => rounds(Takes::Adds, part) + rounds(Takes::Copies, part),
        CollectiveKind::ReduceScatter => rounds(Takes::Adds, part),
        CollectiveKind::AllGather | CollectiveKind::AllToAll => rounds(Takes::Copies, part),
        CollectiveKind::Broadcast => rounds(Takes::Copies, bytes),
        CollectiveKind::Reduce => rounds(Takes::Adds, bytes),
        CollectiveKind::SendReceive => step(Takes::Copies, bytes),
        CollectiveKind::Barrier => rounds(Takes::Copies, Bytes::ZERO) + rounds(Takes::Copies, Bytes::ZERO),
    }
}

/// Time of one step in which everyone passes on `bytes`.
///
/// T = t_copy(n) inside a node, α + max(t_copy(n), t_link(n)) between nodes; t_add(n) − t_copy(n) more where it is added
///
/// n bytes, α the latency between nodes, t_link the time on the link (`Network::carries`). What arrives is copied while the
/// rest is on its way, and added when all is there. A step between nodes is as long as its slowest transfer.
fn step(takes: Takes, bytes: Bytes, between: Option<&mut Network>, steps: &StepTimes) -> Seconds {
    let copied = step_time(&steps.copies, bytes);
    let added = match takes {
        Takes::Copies => Seconds::ZERO,
        Takes::Adds => step_time(&steps.adds, bytes) - copied,
    };
    match between {
        None => copied + added,
        Some(network) => {
            let added = added.max(Seconds::ZERO);
            let held = network.carries(bytes, network.link.latency + copied + added);
            network.link.latency + copied.max(held) + added
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trainwright_spec::cluster::{Cluster, MeasuredTime};
    use trainwright_spec::units::BytesPerSecond;

    fn steps() -> StepTimes {
        let row = |bytes, time| MeasuredTime { bytes: Bytes::new(bytes), time: Seconds::new(time) };
        StepTimes {
            source: "a test".into(),
            copies: vec![row(1.0, 1.0), row(1001.0, 2.0)],
            adds: vec![row(1.0, 2.0), row(1001.0, 4.0)],
        }
    }

    #[test]
    fn collectives_are_as_many_steps_as_their_lists_have() {
        let cluster = Cluster::from_name("dgx-a100").unwrap();
        let placement = Placement::new(&[0, 1, 2, 3], &cluster);
        let check = |kind, expected: f64| {
            let time = collective_time(kind, Bytes::new(4004.0), &placement, (&steps(), Bytes::ZERO));
            assert!((time.get() - expected).abs() < 1e-12, "{kind}: {time}");
        };
        // 3 steps of 1001 bytes each: 2 s where they copy, 4 s where they add.
        check(CollectiveKind::AllGather, 6.0);
        check(CollectiveKind::ReduceScatter, 12.0);
        check(CollectiveKind::AllReduce, 18.0);
        assert_eq!(
            message_time(Bytes::new(1e9), &placement, (&steps(), Bytes::ZERO)),
            Seconds::new(1.0),
            "it changes hands"
        );
    }

    #[test]
    fn what_an_op_does_beside_its_exchange_grows_with_its_bytes() {
        let row = |bytes: f64, time: f64| MeasuredExchange {
            op: "reduce update".into(),
            collective: CollectiveKind::AllReduce,
            ranks: 2,
            measured: MeasuredTime { bytes: Bytes::new(bytes), time: Seconds::new(time) },
        };
        // 3 s and 7 s where 1 s and 2 s were the exchange: 7 s for 300 bytes.
        let rows = [row(100.0, 3.0), row(200.0, 7.0)];
        let alone = |_, bytes: Bytes, _| Seconds::new(bytes.get() / 100.0);
        let of =
            |op, bytes| added_work(op, (CollectiveKind::AllReduce, Bytes::new(bytes)), &rows, alone).get();
        assert!((of("reduce update", 600.0) - 14.0).abs() < 1e-12);
        assert_eq!(of("reduce loss forward", 600.0), 0.0);
    }

    #[test]
    fn between_nodes_what_takes_longer_counts() {
        let cluster = Cluster::from_name("dgx-a100:2").unwrap();
        let placement = Placement::new(&[0, 8], &cluster);
        let link = placement.between.unwrap();
        let time = |bytes| message_time(Bytes::new(bytes), &placement, (&steps(), Bytes::ZERO)).get();
        assert!((time(1001.0) - 2.0 - link.latency.get()).abs() < 1e-12);
        // Copies take a second for each 500 bytes here, so that only an empty link is faster.
        let mut slow = placement.clone();
        slow.between = Some(Link { bandwidth: link.bandwidth / 1e12, ..link });
        let expected = link.latency.get() + (Bytes::new(1001.0) / link.bandwidth).get() * 1e12;
        let found = message_time(Bytes::new(1001.0), &slow, (&steps(), Bytes::ZERO)).get();
        assert!((found / expected - 1.0).abs() < 1e-9, "{found}, not {expected}");
    }

    #[test]
    fn a_shaper_lets_a_burst_through_at_once() {
        let cluster = Cluster::from_name("dgx-a100:2").unwrap();
        let link = Placement::new(&[0, 8], &cluster).between.unwrap();
        let link = Link { bandwidth: BytesPerSecond::new(100.0), ..link };
        let burst = Bytes::new(1000.0);
        let mut network = Network { link, burst, left: burst };
        let mut held = |bytes, least| network.carries(Bytes::new(bytes), Seconds::new(least)).get();
        // 600 of 1000 go at once, and while that takes 1 s another 100 come; of the next 600, 100 wait for a second.
        assert_eq!([held(600.0, 1.0), held(600.0, 0.0)], [0.0, 1.0]);
        // The bucket is empty then: 300 take 3 s. In a pause of 100 s it becomes full, and never more than that.
        assert_eq!([held(300.0, 0.0), held(0.0, 100.0), held(1500.0, 0.0)], [3.0, 0.0, 5.0]);
    }

    #[test]
    fn a_shaper_fills_while_members_add() {
        let cluster = Cluster::from_name("dgx-a100:2").unwrap();
        let mut placement = Placement::new(&[0, 8], &cluster);
        let between = Link { bandwidth: BytesPerSecond::new(10.0), latency: Seconds::new(1.0) };
        placement.between = Some(between);
        // Two steps of 1001 bytes. The first goes through at once: 1 s + 2 s + 2 s of adding, in which 50 bytes come to the
        // 499 that are left of 1500. The second waits for the other 452 for 45.2 s, and 1 s.
        let time = collective_time(
            CollectiveKind::AllReduce,
            Bytes::new(2002.0),
            &placement,
            (&steps(), Bytes::new(1500.0)),
        );
        assert!((time.get() - 51.2).abs() < 1e-9, "{time}");
    }
}
