//! What an op costs: the seam between a program and the hardware it runs on.

mod by_ranks;
mod cluster;
mod measured;

pub use cluster::ClusterCosts;
pub use measured::{measured_sweep, measured_time};

use crate::engine::{Load, Scheduling, Traffic};
use trainwright_spec::collective::CollectiveKind;
use trainwright_spec::program::{CopyDirection, Group, HostUpdate, Kernel, Op, Place};
use trainwright_spec::units::{Bytes, Seconds};

/// Durations of ops on some hardware, each alone, and what they do to others that run at the same time.
pub trait Costs {
    /// The kind of device that a global rank has; 0 unless said otherwise.
    fn device(&self, _rank: usize) -> usize {
        0
    }

    /// The same costs with the kernels and copies of a kind of device; none if these are of the only one, as they are
    /// unless said otherwise.
    fn on(&self, _device: usize) -> Option<Self>
    where
        Self: Sized,
    {
        None
    }

    /// A kernel call.
    fn kernel(&self, kernel: &Kernel) -> Seconds;

    /// A kernel call as a certain op of a program; its kernel's time unless said otherwise.
    fn op(&self, _op: &Op, kernel: &Kernel) -> Seconds {
        self.kernel(kernel)
    }

    /// Whether ops with the same kernel may take different times.
    fn tells_ops_apart(&self) -> bool {
        false
    }

    /// The machine whose cores a global rank computes on together with others; none unless said otherwise.
    fn machine(&self, _rank: usize) -> Option<usize> {
        None
    }

    /// How ranks that outnumber a machine's cores take turns on them; none where they share them at every moment.
    fn scheduling(&self) -> Option<Scheduling> {
        None
    }

    /// Parts of their times that ops of a rank take which computes on cores, of equal probability and with the mean 1; none
    /// where all take their times.
    fn jitter(&self) -> &[f64] {
        &[]
    }

    /// The part of its machine's cores that each member of a collective takes while it lasts; none unless said
    /// otherwise.
    fn collective_cores(&self, _kind: CollectiveKind, _bytes: Bytes, _group: &Group, _time: Seconds) -> f64 {
        0.0
    }

    /// The parts of the sender's machine's cores and of the receiver's that a message takes while it lasts; none unless said
    /// otherwise.
    fn message_cores(&self, _bytes: Bytes, _from: usize, _to: usize, _time: Seconds) -> [f64; 2] {
        [0.0; 2]
    }

    /// A collective of `bytes` (the whole tensor) over a group.
    fn collective(&self, kind: CollectiveKind, bytes: Bytes, group: &Group) -> Seconds;

    /// The same as a certain op of a program, which may do more than to exchange; the collective's time unless said
    /// otherwise.
    fn collective_op(&self, _op: &Op, kind: CollectiveKind, bytes: Bytes, group: &Group) -> Seconds {
        self.collective(kind, bytes, group)
    }

    /// A message between two global ranks.
    fn message(&self, bytes: Bytes, from: usize, to: usize) -> Seconds;

    /// When a message's sender may go on, which is on its way then, and the part of its machine's cores that it takes until
    /// then; none where that is when it has arrived, as it is unless said otherwise.
    fn handed_over(&self, _bytes: Bytes, _from: usize, _to: usize) -> Option<(Seconds, f64)> {
        None
    }

    /// A copy between a GPU and a place beside it; no time unless said otherwise.
    fn copy(&self, _direction: CopyDirection, _place: Place, _bytes: Bytes) -> Seconds {
        Seconds::ZERO
    }

    /// Work of a node's processors for one of its ranks, while they do the same for the others; no time unless said
    /// otherwise.
    fn host_update(&self, _update: &HostUpdate) -> Seconds {
        Seconds::ZERO
    }

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

    /// What a copy between a GPU and a place beside it, of `bytes` in `time`, takes of the GPU; nothing unless said
    /// otherwise.
    fn copy_traffic(&self, _bytes: Bytes, _time: Seconds) -> Traffic {
        Traffic::default()
    }
}
