//! What an op costs: the seam between a program and the hardware it runs on.

mod cluster;
mod measured;

pub use cluster::ClusterCosts;
pub use measured::{measured_sweep, measured_time};

use trainwright_spec::collective::CollectiveKind;
use trainwright_spec::program::{Group, Kernel};
use trainwright_spec::units::{Bytes, Seconds};

/// Durations of ops on some hardware.
pub trait Costs {
    /// A kernel call.
    fn kernel(&self, kernel: &Kernel) -> Seconds;

    /// A collective of `bytes` (the whole tensor) over a group.
    fn collective(&self, kind: CollectiveKind, bytes: Bytes, group: &Group) -> Seconds;

    /// A message between two global ranks.
    fn message(&self, bytes: Bytes, from: usize, to: usize) -> Seconds;
}
