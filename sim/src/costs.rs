//! What an op costs: the seam between a program and the hardware it runs on.

mod cluster;
mod measured;

pub use cluster::ClusterCosts;
pub use measured::{measured_sweep, measured_time};

use crate::engine::{Load, Traffic};
use trainwright_spec::collective::CollectiveKind;
use trainwright_spec::program::{Group, Kernel};
use trainwright_spec::units::{Bytes, Seconds};

/// Durations of ops on some hardware, each alone, and what they do to others that run at the same time.
pub trait Costs {
    /// A kernel call.
    fn kernel(&self, kernel: &Kernel) -> Seconds;

    /// A collective of `bytes` (the whole tensor) over a group.
    fn collective(&self, kind: CollectiveKind, bytes: Bytes, group: &Group) -> Seconds;

    /// A message between two global ranks.
    fn message(&self, bytes: Bytes, from: usize, to: usize) -> Seconds;

    /// What a kernel call that takes `time` alone needs of its GPU while it runs; nothing unless said otherwise.
    fn kernel_load(&self, _kernel: &Kernel, _time: Seconds) -> Load {
        Load::default()
    }

    /// What a collective that takes `time` alone takes of each member's GPU and links; nothing unless said otherwise.
    fn collective_traffic(
        &self,
        _kind: CollectiveKind,
        _bytes: Bytes,
        _group: &Group,
        _time: Seconds,
    ) -> Traffic {
        Traffic::default()
    }

    /// What a message that takes `time` alone takes of the sender's GPU and links, and of the receiver's GPU; nothing
    /// unless said otherwise.
    fn message_traffic(&self, _bytes: Bytes, _from: usize, _to: usize, _time: Seconds) -> Traffic {
        Traffic::default()
    }
}
