//! Cores that several ranks share: those of a node's processors, whose threads the ranks are if there is no GPU, or GPUs each of
//! which counts as one core; and the times of steps of collectives on them.
//!
//! It knows what was measured, not what ranks do with it.

use super::profile::MeasuredTime;
use crate::collective::CollectiveKind;
use crate::sourced::Sourced;
use crate::units::{Bytes, Seconds};
use serde::{Deserialize, Serialize};

/// The cores of a node whose ranks compute on them, or its GPUs where ranks share these. There may be more ranks than cores.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cores {
    /// How many there are.
    pub count: Sourced<usize>,
    /// Threads that each rank computes with.
    pub threads: Sourced<usize>,
    /// Whether all nodes are on one machine, as emulated hosts are: then all of them share these cores.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub emulated: bool,
    /// Times of steps of collectives without a network.
    pub steps: StepTimes,
    /// Work of the operating system on them for a network; left out, none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<NetworkWork>,
    /// How much longer ops take where threads outnumber cores, as a part of their times, for each thread a core beyond the first:
    /// they find others' numbers in the caches. Negative where other programs were busy too when it was measured.
    #[serde(default, skip_serializing_if = "is_nothing")]
    pub crowding: f64,
    /// How threads take turns where they outnumber cores, each rank having one; left out, they share cores all the time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turns: Option<CoreTurns>,
    /// How unsteady ops are: parts of their means that they took, of equal probability and with the mean 1, the shortest
    /// first; left out, all take their means.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub jitter: Vec<f64>,
    /// Collectives that were timed as ops of a program, with the work that an op adds to the exchange.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exchanges: Vec<MeasuredExchange>,
}

/// How an operating system's scheduler lets threads take turns on cores, each of which has a separate queue.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CoreTurns {
    /// How long a thread keeps its core while others wait for it.
    pub slice: Sourced<Seconds>,
    /// After how long a core that ran out of threads takes one that waits at another core.
    pub balance: Sourced<Seconds>,
}

impl CoreTurns {
    /// The default of Linux on this number of cores.
    ///
    /// Source: linux 6.18, kernel/sched/fair.c: a slice is 0.7 ms (1 + ⌊log₂ n⌋), n at most 8 cores; idle cores are looked
    /// after in the ticks of busy ones (`nohz_balancer_kick`), 250 a second by kernel/Kconfig.hz.
    pub fn of_linux(cores: usize) -> Self {
        let slice = 0.7e-3 * f64::from(1 + cores.clamp(1, 8).ilog2());
        let sourced =
            |value, what: &str| Sourced::new(Seconds::new(value), format!("assumed: linux 6.18, {what}"));
        Self { slice: sourced(slice, "sysctl_sched_base_slice"), balance: sourced(4e-3, "a tick at HZ=250") }
    }
}

fn is_nothing(part: &f64) -> bool {
    *part == 0.0
}

/// Work of operating systems for bytes that go through a network, on the cores that ranks compute on: packets, timers and
/// interrupts, and the copies of the processes that send and receive them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NetworkWork {
    /// Where the numbers are from.
    pub source: String,
    /// Bytes that left a node, and the time of one core that this took there. Where all nodes are on one machine, it did the
    /// receiver's work meanwhile.
    #[serde(rename = "sent_bytes_and_us")]
    pub sent: MeasuredTime,
    /// Bytes that came to a node, and the time of one core that this took there; nothing if all nodes are on one machine.
    #[serde(rename = "received_bytes_and_us")]
    pub received: MeasuredTime,
}

impl NetworkWork {
    /// Several measurements as one; `None` without any.
    pub fn sum(all: &[NetworkWork]) -> Option<NetworkWork> {
        let of = |part: fn(&NetworkWork) -> &MeasuredTime| MeasuredTime {
            bytes: all.iter().map(|one| part(one).bytes).sum(),
            time: all.iter().map(|one| part(one).time).sum(),
        };
        let source = all.first()?.source.clone();
        Some(NetworkWork { source, sent: of(|one| &one.sent), received: of(|one| &one.received) })
    }

    /// Time of one core of the sender's node, and of the receiver's, for `bytes`.
    ///
    /// T = n T_i / n_i
    pub fn of(&self, bytes: Bytes) -> [Seconds; 2] {
        [&self.sent, &self.received].map(|measured| match measured.bytes {
            Bytes::ZERO => Seconds::ZERO,
            all => (bytes / all) * measured.time,
        })
    }
}

/// A collective that was timed as a certain op of a program, on ranks with a core each.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeasuredExchange {
    /// Module and pass, as `Op::kind` has them.
    pub op: String,
    /// Which collective.
    pub collective: CollectiveKind,
    /// Ranks of the group.
    pub ranks: usize,
    /// Size and time, as bytes and microseconds.
    #[serde(rename = "bytes_and_us")]
    pub measured: MeasuredTime,
}

/// Times of one step of a collective that ranks perform themselves, by the bytes that each of them passes on: sending,
/// waking, and taking what arrived.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StepTimes {
    /// Where the numbers are from.
    pub source: String,
    /// Steps whose receiver copies: bytes and microseconds, each size larger than the one before.
    pub copies: Vec<MeasuredTime>,
    /// Steps whose receiver adds.
    pub adds: Vec<MeasuredTime>,
}

/// Time of a step of `bytes` by measured ones.
///
/// T = T₀ + (T₁ − T₀) (n − n₀) / (n₁ − n₀) between two measured sizes n₀ and n₁; below the smallest size its time, and
/// beyond the largest one in proportion to the bytes.
pub fn step_time(measured: &[MeasuredTime], bytes: Bytes) -> Seconds {
    let (Some(first), Some(last)) = (measured.first(), measured.last()) else { return Seconds::ZERO };
    if bytes <= first.bytes {
        return first.time;
    }
    let pair = measured.windows(2).find(|pair| bytes <= pair[1].bytes);
    let Some([below, above]) = pair else { return (bytes / last.bytes) * last.time };
    let weight = (bytes - below.bytes) / (above.bytes - below.bytes);
    below.time + weight * (above.time - below.time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_for_a_network_is_in_proportion_to_bytes() {
        let row = |bytes, time| MeasuredTime { bytes: Bytes::new(bytes), time: Seconds::new(time) };
        let work = |sent, received| NetworkWork { source: "a test".into(), sent, received };
        let of = |work: &NetworkWork| work.of(Bytes::new(10.0)).map(Seconds::get);
        let first = work(row(100.0, 1.0), row(0.0, 0.0));
        assert_eq!(of(&first), [0.1, 0.0]);
        let both = NetworkWork::sum(&[first, work(row(100.0, 3.0), row(50.0, 5.0))]).unwrap();
        assert_eq!(of(&both), [0.2, 1.0]);
        assert_eq!(NetworkWork::sum(&[]), None);
    }

    #[test]
    fn turns_are_written_and_read_and_have_a_length() {
        use crate::cluster::Cluster;
        let one = |value| Sourced::new(value, "a test");
        let row = MeasuredTime { bytes: Bytes::new(8.0), time: Seconds::new(1e-6) };
        let of_slice = |slice| {
            let linux = CoreTurns::of_linux(2);
            let mut cluster = Cluster::from_name("dgx-a100").unwrap();
            cluster.node.cores = Some(Cores {
                count: one(2),
                threads: one(1),
                emulated: false,
                steps: StepTimes { source: "a test".into(), copies: vec![row], adds: vec![row] },
                network: None,
                crowding: 0.0,
                turns: Some(CoreTurns {
                    slice: Sourced { value: Seconds::new(slice), ..linux.slice },
                    ..linux
                }),
                jitter: Vec::new(),
                exchanges: Vec::new(),
            });
            let text = toml::to_string(&cluster).unwrap();
            (cluster, Cluster::from_toml(&text, "cluster.toml").map_err(|error| error.to_string()))
        };
        assert_eq!(CoreTurns::of_linux(2).slice.value, Seconds::new(1.4e-3));
        let (cluster, read) = of_slice(1.4e-3);
        assert_eq!(read, Ok(cluster));
        let refused = of_slice(0.0).1.unwrap_err();
        assert!(
            refused.contains("node.cores.turns.slice") && refused.contains("from 1 us to 1 s"),
            "{refused}"
        );
    }

    #[test]
    fn steps_lie_on_straight_lines_between_the_measured_sizes() {
        let row = |bytes, time| MeasuredTime { bytes: Bytes::new(bytes), time: Seconds::new(time) };
        let measured = [row(10.0, 2.0), row(20.0, 4.0), row(40.0, 5.0)];
        for (bytes, time) in [(0.0, 2.0), (10.0, 2.0), (15.0, 3.0), (30.0, 4.5), (40.0, 5.0), (80.0, 10.0)] {
            assert_eq!(step_time(&measured, Bytes::new(bytes)), Seconds::new(time), "{bytes}");
        }
    }
}
