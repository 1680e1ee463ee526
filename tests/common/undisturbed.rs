//! Costs of ops that do not mind what runs beside them.

use trainwright_sim::costs::{ClusterCosts, Costs};
use trainwright_spec::collective::CollectiveKind;
use trainwright_spec::program::{CopyDirection, Group, HostUpdate, Kernel, Place};
use trainwright_spec::units::{Bytes, Seconds};

/// The durations of a cluster, but nothing slows anything.
pub struct Undisturbed<'a>(pub ClusterCosts<'a>);

impl Costs for Undisturbed<'_> {
    fn kernel(&self, kernel: &Kernel) -> Seconds {
        self.0.kernel(kernel)
    }

    fn collective(&self, kind: CollectiveKind, bytes: Bytes, group: &Group) -> Seconds {
        self.0.collective(kind, bytes, group)
    }

    fn message(&self, bytes: Bytes, from: usize, to: usize) -> Seconds {
        self.0.message(bytes, from, to)
    }

    fn copy(&self, direction: CopyDirection, place: Place, bytes: Bytes) -> Seconds {
        self.0.copy(direction, place, bytes)
    }

    fn host_update(&self, update: &HostUpdate) -> Seconds {
        self.0.host_update(update)
    }
}
