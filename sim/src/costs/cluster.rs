//! Costs from the published and measured figures of a cluster.

use super::{Costs, measured_sweep, measured_time};
use crate::{compute, network};
use trainwright_spec::cluster::Cluster;
use trainwright_spec::collective::CollectiveKind;
use trainwright_spec::program::{Group, Kernel};
use trainwright_spec::units::{Bytes, Seconds};

/// The costs of a cluster: kernels from the GPU's figures, communication from its links, or from its profile where
/// it has measured the collective.
#[derive(Debug, Clone, Copy)]
pub struct ClusterCosts<'a> {
    /// The hardware.
    pub cluster: &'a Cluster,
}

impl Costs for ClusterCosts<'_> {
    fn kernel(&self, kernel: &Kernel) -> Seconds {
        compute::kernel_time(kernel, &self.cluster.node.gpu)
    }

    fn collective(&self, kind: CollectiveKind, bytes: Bytes, group: &Group) -> Seconds {
        let forecast = |bytes| network::collective_time(kind, bytes, &group.ranks, self.cluster);
        match measured_sweep(kind, &group.ranks, self.cluster) {
            Some(sweep) if bytes > Bytes::ZERO => measured_time(sweep, bytes, forecast),
            _ => forecast(bytes),
        }
    }

    fn message(&self, bytes: Bytes, from: usize, to: usize) -> Seconds {
        network::message_time(bytes, from, to, self.cluster)
    }
}
