//! A call of NCCL, what the user may force on it, and what it chooses.

use super::{ALGORITHMS, Algorithm, Placement};
use std::fmt;
use std::str::FromStr;
use trainwright_spec::collective::CollectiveKind;
use trainwright_spec::error::SpecError;
use trainwright_spec::nccl::{ByProtocol, BytesByProtocol};
use trainwright_spec::units::{Bytes, Seconds};

/// How the receiver learns that data have come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// Every second word is a flag: the fastest for small messages, half of the bandwidth. NCCL's LL.
    LowLatency,
    /// Eight of 128 bytes are a flag; needs stores of 128 bytes to arrive at once. NCCL's LL128.
    LowLatency128,
    /// No flags in the data but a counter after each chunk: all of the bandwidth. NCCL's Simple.
    Simple,
}

/// A collective as one algorithm would run it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Call {
    /// Which collective.
    pub kind: CollectiveKind,
    /// Size of the tensor; see `CollectiveKind`.
    pub bytes: Bytes,
    /// With which protocol.
    pub protocol: Protocol,
    /// With how many channels; `None` for as many as are useful.
    pub channels: Option<usize>,
}

/// Settings that the user forces on NCCL: its NCCL_ALGO, NCCL_PROTO and NCCL_NCHANNELS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Forced {
    /// Name of the algorithm.
    pub algorithm: Option<&'static str>,
    /// The protocol.
    pub protocol: Option<Protocol>,
    /// How many channels, at least 1.
    pub channels: Option<usize>,
}

/// How a collective is done, and how long it takes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Choice {
    /// Name of the algorithm.
    pub algorithm: &'static str,
    /// The protocol.
    pub protocol: Protocol,
    /// Channels in use.
    pub channels: usize,
    /// Time from the call to the end.
    pub time: Seconds,
}

impl Placement {
    /// The choice of NCCL for a collective over a tensor of `bytes`: the algorithm and protocol of which it
    /// expects the least time, among those that `forced` allows; `None` if that leaves nothing.
    ///
    /// One rank alone does nothing, by whatever algorithm. Nor do several with an empty tensor, which NCCL drops
    /// before it starts a kernel; a barrier is more than its tensor.
    /// Source of that: taskAppend in NCCL's src/enqueue.cc.
    pub fn choose(&self, kind: CollectiveKind, bytes: Bytes, forced: &Forced) -> Option<Choice> {
        let channels = forced.channels.map(|channels| channels.max(1));
        let calls = Protocol::ALL
            .into_iter()
            .filter(|protocol| forced.protocol.is_none_or(|only| only == *protocol) && self.allows(*protocol))
            .map(|protocol| Call { kind, bytes, protocol, channels });
        let algorithms = ALGORITHMS
            .into_iter()
            .filter(|algorithm| forced.algorithm.is_none_or(|only| only == algorithm.name()))
            .filter(|algorithm| algorithm.is_in(self.nccl));
        let mut ways = calls.flat_map(|call| algorithms.clone().map(move |algorithm| (algorithm, call)));
        if self.ranks <= 1 {
            let (algorithm, call) = ways.next()?;
            let (algorithm, protocol) = (algorithm.name(), call.protocol);
            return Some(Choice {
                algorithm,
                protocol,
                channels: channels.unwrap_or(1),
                time: Seconds::ZERO,
            });
        }
        let mut least: Option<(Seconds, &dyn Algorithm, Call)> = None;
        for (algorithm, call) in ways {
            let Some(expected) = algorithm.expected(&call, self) else { continue };
            if least.is_none_or(|(time, ..)| expected < time) {
                least = Some((expected, algorithm, call));
            }
        }
        let (_, algorithm, call) = least?;
        let is_dropped = bytes == Bytes::ZERO && kind != CollectiveKind::Barrier;
        Some(Choice {
            algorithm: algorithm.name(),
            protocol: call.protocol,
            channels: algorithm.channels(&call, self),
            time: if is_dropped { Seconds::ZERO } else { algorithm.time(&call, self)? },
        })
    }
}

impl Protocol {
    /// Every protocol, in the order of tables.
    pub const ALL: [Protocol; 3] = [Protocol::LowLatency, Protocol::LowLatency128, Protocol::Simple];

    /// NCCL's name.
    pub fn name(self) -> &'static str {
        match self {
            Protocol::LowLatency => "LL",
            Protocol::LowLatency128 => "LL128",
            Protocol::Simple => "Simple",
        }
    }

    /// This protocol's entry of a table of times.
    pub(super) fn time(self, table: &ByProtocol) -> Seconds {
        match self {
            Protocol::LowLatency => table.ll.value,
            Protocol::LowLatency128 => table.ll128.value,
            Protocol::Simple => table.simple.value,
        }
    }

    /// This protocol's entry of a table of sizes.
    pub(super) fn bytes(self, table: &BytesByProtocol) -> Bytes {
        match self {
            Protocol::LowLatency => table.ll.value,
            Protocol::LowLatency128 => table.ll128.value,
            Protocol::Simple => table.simple.value,
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Protocol {
    type Err = SpecError;

    /// Reads NCCL's names in any case.
    fn from_str(text: &str) -> Result<Self, SpecError> {
        let meant = |protocol: &Protocol| protocol.name().eq_ignore_ascii_case(text);
        Protocol::ALL.into_iter().find(meant).ok_or_else(|| SpecError::BadValue {
            origin: "argument".into(),
            key: "protocol".into(),
            value: format!("`{text}`"),
            allowed: format!("there are {}", Protocol::ALL.map(Protocol::name).join(", ")),
        })
    }
}
