//! Measured times of collectives on a cluster, kept as a TOML file next to the log that they are from.
//!
//! ```toml
//! kind = "network"
//! cluster = "dgx-a100:2"             # what was measured, for people
//! gpus_per_node = 8
//! gpu = "NVIDIA A100-SXM4-80GB"      # as the log names it; may be left out, as may date and versions
//! date = "2024-03-05"
//! versions = "NCCL 2.20.5"
//! source = "all_reduce.log"
//!
//! [[sweeps]]
//! collective = "all-reduce"
//! nodes = 2
//! ranks_per_node = 8
//! groups = 1                         # how many such groups did the same at the same time
//! bytes_and_us = [[1024, 30.5], [1048576, 95.0]]
//! ```
//!
//! Costs from it are computed by the simulator.

use super::check::{Fault, fault};
use super::document::Document;
use super::{Cluster, check};
use crate::collective::CollectiveKind;
use crate::error::SpecError;
use crate::units::{Bytes, Seconds};
use serde::{Deserialize, Serialize};

/// No collective of a benchmark takes longer.
const LONGEST: Seconds = Seconds::new(86_400.0);

/// Measurements of a cluster's network.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NetworkProfile {
    /// Distinguishes this file from other profiles.
    pub kind: ProfileKind,
    /// The cluster it is of, for people.
    pub cluster: String,
    /// GPUs in each of its nodes.
    pub gpus_per_node: usize,
    /// The name of its GPUs in the log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<String>,
    /// The day of the measurement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub date: Option<String>,
    /// The software that was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub versions: Option<String>,
    /// Where the numbers are from.
    pub source: String,
    /// The sweeps, each of one collective over one group.
    pub sweeps: Vec<MeasuredSweep>,
}

/// The cluster that a profile is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProfileKind {
    /// Collectives on a network.
    Network,
}

/// One collective over one group, by size.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeasuredSweep {
    /// Which collective.
    pub collective: CollectiveKind,
    /// Nodes that the group is on.
    pub nodes: usize,
    /// Ranks of the group on each of them.
    pub ranks_per_node: usize,
    /// Groups of this shape on the same nodes that did the same at the same time, this one among them.
    #[serde(default = "alone")]
    pub groups: usize,
    /// Sizes, each larger than the one before, and their times.
    #[serde(rename = "bytes_and_us")]
    pub rows: Vec<MeasuredTime>,
}

/// A size of `CollectiveKind` and how long it took.
///
/// Files hold whole bytes and microseconds to the picosecond, so that what is written is read back bit for bit.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(from = "Written", into = "Written")]
pub struct MeasuredTime {
    /// The size.
    pub bytes: Bytes,
    /// The time.
    pub time: Seconds,
}

/// Bytes and microseconds.
#[derive(Serialize, Deserialize)]
struct Written(u64, f64);

fn alone() -> usize {
    1
}

impl From<Written> for MeasuredTime {
    fn from(Written(bytes, microseconds): Written) -> Self {
        Self { bytes: Bytes::new(bytes as f64), time: Seconds::new(microseconds * 1e-6) }
    }
}

impl From<MeasuredTime> for Written {
    fn from(row: MeasuredTime) -> Self {
        Self(row.bytes.get() as u64, (row.time.get() * 1e12).round() / 1e6)
    }
}

impl NetworkProfile {
    /// Reads a profile; `origin` names it in messages.
    ///
    /// # Errors
    /// `Syntax` and `BadValue`, with line and key.
    pub fn from_toml(text: &str, origin: &str) -> Result<Self, SpecError> {
        let document = Document::parse(text, origin)?;
        let profile: Self = document.read(document.tables())?;
        profile.check().map_err(|Fault { key, value, allowed }| document.refuse(&key, value, allowed))?;
        Ok(profile)
    }

    /// The profile as a file.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("a profile has only text, numbers and tables")
    }

    /// Every value by itself.
    pub(super) fn check(&self) -> Result<(), Fault> {
        if self.gpus_per_node == 0 {
            return Err(fault("gpus_per_node", "0".into(), "at least 1"));
        }
        for sweep in &self.sweeps {
            let MeasuredSweep { collective, nodes, ranks_per_node, groups, rows } = sweep;
            let what = format!("{collective} over {nodes} x {ranks_per_node} ranks");
            let refuse = |allowed: &str| Err(fault("sweeps", what.clone(), allowed));
            let whole_node = |groups: &usize| ranks_per_node.checked_mul(*groups);
            if !whole_node(groups).is_some_and(|ranks| (1..=self.gpus_per_node).contains(&ranks)) {
                return refuse(&format!(
                    "`ranks_per_node` times `groups` is from 1 to `gpus_per_node`, {}",
                    self.gpus_per_node
                ));
            }
            if nodes.saturating_mul(*ranks_per_node) < 2 {
                return refuse("a group has at least 2 ranks");
            }
            if rows.is_empty() {
                return refuse("`bytes_and_us` needs at least one size");
            }
            if rows[0].bytes == Bytes::ZERO || rows.windows(2).any(|pair| pair[0].bytes >= pair[1].bytes) {
                return refuse("the sizes in `bytes_and_us` are above 0, each larger than the one before");
            }
            if rows.iter().any(|row| !(row.time > Seconds::ZERO && row.time <= LONGEST)) {
                return refuse("every time in `bytes_and_us` is above 0, and below a day");
            }
        }
        Ok(())
    }
}

impl Cluster {
    /// This cluster with measured collectives; `origin` names the profile in messages.
    ///
    /// # Errors
    /// `BadValue` if its nodes have another number of GPUs than those that were measured.
    pub fn with_profile(self, profile: NetworkProfile, origin: &str) -> Result<Self, SpecError> {
        let cluster = Cluster { profile: Some(profile), ..self };
        match check(&cluster) {
            Ok(()) => Ok(cluster),
            Err(Fault { key, value, allowed }) => Err(SpecError::BadValue {
                origin: origin.into(),
                key: key.trim_start_matches("profile.").into(),
                value,
                allowed,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "kind = \"network\"\ncluster = \"dgx-a100:2\"\ngpus_per_node = 8\nsource = \"a.log\"\n\n\
                        [[sweeps]]\ncollective = \"all-reduce\"\nnodes = 2\nranks_per_node = 8\n\
                        bytes_and_us = [[8, 20.1], [1048576, 95]]\n";

    #[test]
    fn what_is_written_is_read_back_bit_for_bit() {
        let profile = NetworkProfile::from_toml(TEXT, "a.toml").unwrap();
        assert_eq!(profile.sweeps[0].rows[0].time, Seconds::new(20.1e-6));
        assert_eq!(NetworkProfile::from_toml(&profile.to_toml(), "again").unwrap(), profile);
        let cluster = Cluster::from_name("dgx-a100:4").unwrap().with_profile(profile, "a.toml").unwrap();
        let text = toml::to_string(&cluster).unwrap();
        assert_eq!(Cluster::from_toml(&text, "cluster.toml").unwrap(), cluster);
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_file_line_and_key() {
        let check = |old: &str, new: &str, message: &str| {
            assert!(TEXT.contains(old), "{old}");
            let error = NetworkProfile::from_toml(&TEXT.replace(old, new), "a.toml").unwrap_err();
            assert_eq!(error.to_string(), message);
        };
        let sweep = "a.toml:6: `sweeps` is all-reduce over";
        check("\"network\"", "\"gpu\"", "a.toml:1: `kind`: unknown variant `gpu`, expected `network`");
        check("gpus_per_node = 8", "gpus_per_node = 0", "a.toml:3: `gpus_per_node` is 0; at least 1");
        check(
            "source",
            "sauce",
            "a.toml:4: `sauce`: unknown field `sauce`, expected one of `kind`, `cluster`, `gpus_per_node`, `gpu`, `date`, `versions`, `source`, `sweeps`",
        );
        let too_many =
            format!("{sweep} 2 x 9 ranks; `ranks_per_node` times `groups` is from 1 to `gpus_per_node`, 8");
        check("ranks_per_node = 8", "ranks_per_node = 9", &too_many);
        let too_many =
            format!("{sweep} 2 x 4 ranks; `ranks_per_node` times `groups` is from 1 to `gpus_per_node`, 8");
        check("ranks_per_node = 8", "ranks_per_node = 4\ngroups = 3", &too_many);
        check(
            "nodes = 2\nranks_per_node = 8",
            "nodes = 1\nranks_per_node = 1",
            &format!("{sweep} 1 x 1 ranks; a group has at least 2 ranks"),
        );
        check(
            "[8,",
            "[2000000,",
            &format!(
                "{sweep} 2 x 8 ranks; the sizes in `bytes_and_us` are above 0, each larger than the one before"
            ),
        );
        check(
            "20.1",
            "0",
            &format!("{sweep} 2 x 8 ranks; every time in `bytes_and_us` is above 0, and below a day"),
        );
        check(
            "20.1",
            "nan",
            &format!("{sweep} 2 x 8 ranks; every time in `bytes_and_us` is above 0, and below a day"),
        );
    }

    #[test]
    fn a_profile_of_other_nodes_is_refused() {
        let profile = NetworkProfile::from_toml(TEXT, "a.toml").unwrap();
        let refused = Cluster::from_name("gb200-nvl72").unwrap().with_profile(profile, "a.toml").unwrap_err();
        assert_eq!(
            refused.to_string(),
            "a.toml: `gpus_per_node` is 8; the profile is of dgx-a100:2, and a node of gb200-nvl72 has 72 GPUs"
        );
    }
}
