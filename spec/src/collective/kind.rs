//! Which group operation: its names, and what its bandwidth is measured by.

use crate::error::SpecError;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A group operation over p ranks.
///
/// The size of a collective is that of the full tensor, the largest buffer that any member has; each kind
/// says which that is. It is what nccl-tests prints as size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CollectiveKind {
    /// Everyone gets the sum. Size: each rank's input, as long as its output.
    AllReduce,
    /// Everyone gets everyone's part. Size: each rank's output, the p parts together.
    AllGather,
    /// Everyone gets its part of the sum. Size: each rank's input, the p parts together.
    ReduceScatter,
    /// Everyone gets what rank 0 has. Size: the root's buffer, as long as everyone's.
    Broadcast,
    /// Rank 0 gets the sum. Size: each rank's input.
    Reduce,
    /// Everyone gets a part from everyone: the i-th part that rank j sends is the j-th that rank i receives. Size:
    /// each rank's send buffer, the p parts together, its part among them.
    AllToAll,
    /// Each rank sends to the next one and receives from the one before, all at once. Size: one message.
    SendReceive,
    /// Nobody goes on before everybody is there. Size: nothing.
    Barrier,
}

impl CollectiveKind {
    /// Every kind, in the order of tables.
    pub const ALL: [CollectiveKind; 8] = [
        CollectiveKind::AllReduce,
        CollectiveKind::AllGather,
        CollectiveKind::ReduceScatter,
        CollectiveKind::Broadcast,
        CollectiveKind::Reduce,
        CollectiveKind::AllToAll,
        CollectiveKind::SendReceive,
        CollectiveKind::Barrier,
    ];

    /// The name in spans, tables and files.
    pub fn name(self) -> &'static str {
        match self {
            CollectiveKind::AllReduce => "all-reduce",
            CollectiveKind::AllGather => "all-gather",
            CollectiveKind::ReduceScatter => "reduce-scatter",
            CollectiveKind::Broadcast => "broadcast",
            CollectiveKind::Reduce => "reduce",
            CollectiveKind::AllToAll => "all-to-all",
            CollectiveKind::SendReceive => "send-receive",
            CollectiveKind::Barrier => "barrier",
        }
    }

    /// Bus bandwidth over algorithm bandwidth (size / time), for a group of `ranks`.
    ///
    /// 2 (p − 1)/p for an all-reduce; (p − 1)/p for an all-gather, a reduce-scatter and an all-to-all; 1 for a
    /// broadcast, a reduce and a send-receive; 0 for a barrier, which moves no data, and in a group of one.
    ///
    /// p ranks. The bus bandwidth is what each rank's link would carry in each direction, were the collective done
    /// by sends and receives alone, so it can be held against the hardware's whatever p is. (Switches that add can
    /// exceed it.)
    /// Source: nccl-tests doc/PERFORMANCE.md; src/sendrecv.cu and src/alltoall.cu for those two.
    pub fn bus_factor(self, ranks: usize) -> f64 {
        if ranks <= 1 {
            return 0.0;
        }
        let others = (ranks as f64 - 1.0) / ranks as f64;
        match self {
            CollectiveKind::AllReduce => 2.0 * others,
            CollectiveKind::AllGather | CollectiveKind::ReduceScatter | CollectiveKind::AllToAll => others,
            CollectiveKind::Broadcast | CollectiveKind::Reduce | CollectiveKind::SendReceive => 1.0,
            CollectiveKind::Barrier => 0.0,
        }
    }

    /// Its other names, in nccl-tests and torch.distributed, without hyphens, underscores and case.
    fn other_names(self) -> &'static [&'static str] {
        match self {
            CollectiveKind::AllReduce => &[],
            CollectiveKind::AllGather => &["allgatherintotensor"],
            CollectiveKind::ReduceScatter => &["reducescattertensor"],
            CollectiveKind::Broadcast => &["bcast"],
            CollectiveKind::Reduce => &[],
            CollectiveKind::AllToAll => &["alltoallsingle", "all2all"],
            CollectiveKind::SendReceive => &["sendrecv", "p2p"],
            CollectiveKind::Barrier => &[],
        }
    }
}

impl fmt::Display for CollectiveKind {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for CollectiveKind {
    type Err = SpecError;

    /// Reads `all-reduce`, and what nccl-tests and torch.distributed write: `all_reduce`, `AllReduce`, `allreduce`,
    /// `all_reduce_perf`, `alltoall`, `sendrecv`.
    fn from_str(text: &str) -> Result<Self, SpecError> {
        let letters = |name: &str| name.to_lowercase().replace(['-', '_'], "");
        let given = letters(text);
        let given = given.strip_suffix("perf").unwrap_or(&given);
        let is_meant =
            |kind: &CollectiveKind| letters(kind.name()) == given || kind.other_names().contains(&given);
        CollectiveKind::ALL.into_iter().find(is_meant).ok_or_else(|| SpecError::BadValue {
            origin: "argument".into(),
            key: "collective".into(),
            value: format!("`{text}`"),
            allowed: format!("there are {}", CollectiveKind::ALL.map(CollectiveKind::name).join(", ")),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::CollectiveKind::{self, *};

    #[test]
    fn each_kind_is_read_as_everyone_writes_it() {
        let check = |kind: CollectiveKind, spellings: &[&str]| {
            for spelling in spellings.iter().copied().chain([kind.name()]) {
                assert_eq!(spelling.parse::<CollectiveKind>().unwrap(), kind, "{spelling}");
            }
        };
        check(AllReduce, &["all_reduce", "allreduce", "AllReduce", "all_reduce_perf"]);
        check(AllGather, &["all_gather", "AllGather", "all_gather_into_tensor"]);
        check(ReduceScatter, &["reduce_scatter", "ReduceScatter", "reduce_scatter_tensor"]);
        check(Broadcast, &["bcast", "broadcast_perf"]);
        check(Reduce, &["Reduce", "reduce_perf"]);
        check(AllToAll, &["alltoall", "all_to_all", "all_to_all_single", "alltoall_perf"]);
        check(SendReceive, &["sendrecv", "send_receive", "SendRecv"]);
        check(Barrier, &["Barrier"]);
        for kind in CollectiveKind::ALL {
            let written = serde_json::to_string(&kind).unwrap();
            assert_eq!(written, format!("\"{}\"", kind.name()));
        }
    }

    #[test]
    fn what_is_no_collective_is_refused_with_all_there_are() {
        for text in ["all", "perf", "", "allreduceperfperf"] {
            assert_eq!(
                text.parse::<CollectiveKind>().unwrap_err().to_string(),
                format!(
                    "argument: `collective` is `{text}`; there are all-reduce, all-gather, reduce-scatter, broadcast, \
                     reduce, all-to-all, send-receive, barrier"
                ),
            );
        }
    }

    #[test]
    fn bus_bandwidth_is_that_of_nccl_tests() {
        // Of 8 ranks: 2 · 7/8, 7/8 and 1.
        let check = |kind: CollectiveKind, of_eight: f64| {
            assert_eq!(kind.bus_factor(8), of_eight, "{kind}");
            assert_eq!(kind.bus_factor(1), 0.0, "{kind}");
        };
        check(AllReduce, 1.75);
        check(AllGather, 0.875);
        check(ReduceScatter, 0.875);
        check(AllToAll, 0.875);
        check(Broadcast, 1.0);
        check(Reduce, 1.0);
        check(SendReceive, 1.0);
        check(Barrier, 0.0);
    }
}
