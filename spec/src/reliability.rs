//! How often hardware fails, and what it takes to go on: what was seen on clusters that exist.

use crate::catalog;
use crate::cluster::Cluster;
use crate::error::SpecError;
use crate::sourced::Sourced;
use crate::units::{BytesPerSecond, Seconds};
use serde::{Deserialize, Serialize};

/// Failures and checkpoints of a cluster, per GPU and per node, so that they hold for others.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reliability {
    /// Name in the catalog.
    #[serde(default)]
    pub name: String,
    /// One line for `show reliabilities`.
    pub summary: String,
    /// Mean time between failures of a GPU; `None` if they are counted with their node's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_failures: Option<Sourced<Seconds>>,
    /// Mean time between failures of a node and its part of network and software, its GPUs aside if they have theirs.
    pub node_failures: Sourced<Seconds>,
    /// At which a node writes its part of a checkpoint while others do so too.
    pub checkpoint_bandwidth: Sourced<BytesPerSecond>,
    /// From a failure to the first step after it, without the steps that are done again.
    pub restart: Sourced<Seconds>,
}

impl Reliability {
    /// One of the catalog.
    ///
    /// # Errors
    /// `UnknownName` with the nearest names.
    pub fn from_name(name: &str) -> Result<Reliability, SpecError> {
        let text = catalog::text("reliabilities", name)?;
        let read: Reliability = toml::from_str(text).map_err(|error| SpecError::Syntax {
            origin: format!("reliability {name}"),
            message: error.to_string(),
        })?;
        Ok(Reliability { name: name.into(), ..read })
    }

    /// Mean time between failures of a job that needs every GPU of a cluster.
    ///
    /// M = 1 / (G / m_g + N / m_n)
    ///
    /// G GPUs and N nodes; m_g, m_n the mean time between failures of one of them. Assumes that failures are
    /// independent and their rate does not change.
    pub fn between_failures(&self, cluster: &Cluster) -> Seconds {
        let rate = |count: usize, each: &Sourced<Seconds>| count as f64 / each.value.get();
        let gpus = self.gpu_failures.as_ref().map_or(0.0, |each| rate(cluster.gpus(), each));
        Seconds::new(1.0 / (gpus + rate(cluster.nodes, &self.node_failures)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_entry_of_the_catalog_is_read_and_has_sources() {
        let names = catalog::names("reliabilities");
        assert!(names.contains(&"llama-3"), "{names:?}");
        for name in names {
            let Reliability { gpu_failures, node_failures, checkpoint_bandwidth, restart, .. } =
                Reliability::from_name(name).unwrap();
            let sources = [node_failures.source, checkpoint_bandwidth.source, restart.source];
            let of_gpu = gpu_failures.map(|each| each.source);
            assert!(sources.iter().chain(&of_gpu).all(|source| !source.is_empty()), "{name}");
        }
    }

    #[test]
    fn failures_are_as_often_as_they_were() {
        let hours = |name: &str, cluster: &str| {
            let cluster = Cluster::from_name(cluster).unwrap();
            Reliability::from_name(name).unwrap().between_failures(&cluster).get() / 3600.0
        };
        // 54 days / 419 = 3.09 hours.
        assert!((hours("llama-3", "dgx-h100:2048") - 3.09).abs() < 0.01);
        // 2048 nodes x 6.50 in 1000 days: 13.3 a day; the paper projects 1.8 hours for 16,384 GPUs.
        assert!((hours("meta-rsc-1", "dgx-a100:2048") - 1.80).abs() < 0.01);
    }
}
