//! Versions of NCCL: the constants by which each chooses how to do a collective.
//!
//! Nothing here knows how they are used; the catalog's folder `nccl` holds one file for each version.

use crate::catalog;
use crate::cluster::Generation;
use crate::error::SpecError;
use crate::sourced::Sourced;
use crate::units::{Bytes, BytesPerSecond, Seconds};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use std::sync::OnceLock;

/// A version of NCCL by its name in the catalog, `2.27`. The default is the newest.
#[derive(Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Nccl(&'static Constants);

/// The constants of a version of NCCL. Each table says where its numbers are from.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Constants {
    /// Name in the catalog.
    pub name: String,
    /// Time before the first step.
    pub base: ByAlgorithm,
    /// Time of one step with an empty message.
    pub steps: Steps,
    /// Reduction in the NVLink switches; none in versions that know none.
    pub nvls: Option<Nvls>,
    /// The most bandwidth that a protocol reaches.
    pub caps: Caps,
    /// Parts of the links' bandwidth that are expected, and of latencies.
    pub factors: Factors,
    /// Parts of its bandwidth that a tree is expected to reach with messages of 64 B, 128 B, 256 B, …
    pub tree_corrections: Corrections,
    /// Channels, each with a thread block on every GPU.
    pub channels: Channels,
    /// Messages between pairs.
    pub direct: Direct,
    /// Measured times where they differ from the expected ones.
    pub achieved: AchievedProtocols,
}

/// A time for each protocol.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ByProtocol {
    /// Every second word is a flag.
    pub ll: Sourced<Seconds>,
    /// Eight of 128 bytes are a flag.
    pub ll128: Sourced<Seconds>,
    /// No flags in the data.
    pub simple: Sourced<Seconds>,
}

/// Times of rings and trees.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ByAlgorithm {
    /// The ring.
    pub ring: ByProtocol,
    /// The tree.
    pub tree: ByProtocol,
    /// Where they are from.
    pub source: String,
}

/// Times of a step by the link it crosses.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Steps {
    /// NVLink.
    pub nvlink: ByAlgorithm,
    /// PCI Express.
    pub pci: ByAlgorithm,
    /// The network between nodes, without what NIC and fabric add.
    pub network: ByAlgorithm,
}

/// Expectations of reduction in the switches.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Nvls {
    /// Latency inside a node.
    pub inside: Sourced<Seconds>,
    /// Latency of a step between nodes.
    pub between: Sourced<Seconds>,
    /// Part of the links' bandwidth.
    pub efficiency: ByGeneration<f64>,
    /// Part of that which is left for data.
    pub factor: f64,
    /// Where they are from.
    pub source: String,
}

/// A value for each generation of GPUs.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ByGeneration<T> {
    volta: T,
    ampere: T,
    hopper: T,
    blackwell: T,
    /// Where they are from; left out where the table around them says it.
    #[serde(default)]
    pub source: String,
}

/// A bandwidth by how many nodes a group is on.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ByNodes {
    one_node: Sourced<BytesPerSecond>,
    two_nodes: Sourced<BytesPerSecond>,
    more_nodes: Sourced<BytesPerSecond>,
}

/// The most bandwidth that protocols reach.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Caps {
    /// LL, all channels together.
    pub ll: ByGeneration<ByNodes>,
    /// A channel of a ring with LL128.
    pub ring_ll128: ByGeneration<ByNodes>,
    /// A channel of a tree with LL128.
    pub tree_ll128: ByGeneration<ByNodes>,
    /// A channel of a tree.
    pub tree: ByGeneration<ByNodes>,
}

/// Parts of the links' bandwidth that NCCL expects, and of latencies.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Factors {
    /// Ring with LL.
    pub ring_ll: f64,
    /// Ring with LL128.
    pub ring_ll128: f64,
    /// Tree.
    pub tree: f64,
    /// Tree with LL.
    pub tree_ll: f64,
    /// Tree with LL128 in one node, of what a tree is expected to reach.
    pub tree_ll128_one_node: f64,
    /// Tree with LL128 over several nodes, of what a tree is expected to reach.
    pub tree_ll128: f64,
    /// Trees whose nodes enter and leave by one GPU.
    pub tree_unbalanced: f64,
    /// How much longer the latency of a ring all-reduce with Simple over several nodes is expected to be.
    pub ring_plateau: ByGeneration<f64>,
    /// Least time of a ring's step over several nodes; three times with Simple.
    pub network_overhead: Sourced<Seconds>,
    /// Where they are from.
    pub source: String,
}

/// Parts of its bandwidth that a tree is expected to reach by message size.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Corrections {
    /// With LL.
    pub ll: Vec<f64>,
    /// With LL128.
    pub ll128: Vec<f64>,
    /// With Simple.
    pub simple: Vec<f64>,
    /// Where they are from.
    pub source: String,
}

/// Channels: how many there are, and how many a message uses.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Channels {
    /// Bandwidth for which there is one channel.
    pub bandwidth: Sourced<BytesPerSecond>,
    /// At least.
    pub least: Sourced<usize>,
    /// At most.
    pub most: Sourced<usize>,
    /// Bytes of a message for which one more is used.
    pub bytes: BytesByProtocol,
    /// Where those are from.
    pub source: String,
}

/// A size for each protocol.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BytesByProtocol {
    /// LL.
    pub ll: Sourced<Bytes>,
    /// LL128.
    pub ll128: Sourced<Bytes>,
    /// Simple.
    pub simple: Sourced<Bytes>,
}

/// Messages between pairs.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Direct {
    /// Time before the first byte.
    pub start: Sourced<Seconds>,
    /// Channels to all peers together.
    pub channels: Sourced<usize>,
    /// Channels to one peer on another node, at most.
    pub channels_per_peer: Sourced<usize>,
}

/// Measured times where they differ from those that NCCL expects.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AchievedProtocols {
    /// Part of the links' bandwidth that LL128 reaches.
    pub ll128: Sourced<f64>,
}

impl Nccl {
    /// A version of the catalog.
    ///
    /// # Errors
    /// `UnknownName` with the nearest names.
    pub fn from_name(name: &str) -> Result<Self, SpecError> {
        match versions().iter().find(|version| version.name == name) {
            Some(version) => Ok(Self(version)),
            None => Err(catalog::text("nccl", name).err().unwrap_or_else(|| SpecError::UnknownName {
                kind: "nccl",
                name: name.into(),
                nearest: Vec::new(),
            })),
        }
    }

    /// Every version of the catalog, the oldest first.
    pub fn all() -> impl Iterator<Item = Self> {
        versions().iter().map(Self)
    }

    /// Name in the catalog.
    pub fn name(self) -> &'static str {
        &self.0.name
    }

    /// Its constants.
    pub fn constants(self) -> &'static Constants {
        self.0
    }
}

impl Default for Nccl {
    fn default() -> Self {
        Self(versions().last().expect("the catalog has versions of NCCL"))
    }
}

impl fmt::Debug for Nccl {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "Nccl({})", self.name())
    }
}

impl fmt::Display for Nccl {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Nccl {
    type Err = SpecError;

    fn from_str(name: &str) -> Result<Self, SpecError> {
        Self::from_name(name)
    }
}

impl TryFrom<String> for Nccl {
    type Error = SpecError;

    fn try_from(name: String) -> Result<Self, SpecError> {
        Self::from_name(&name)
    }
}

impl From<Nccl> for String {
    fn from(version: Nccl) -> String {
        version.name().into()
    }
}

impl<T> ByGeneration<T> {
    /// That of one generation.
    pub fn of(&self, generation: Generation) -> &T {
        match generation {
            Generation::Volta => &self.volta,
            Generation::Ampere => &self.ampere,
            Generation::Hopper => &self.hopper,
            Generation::Blackwell => &self.blackwell,
        }
    }
}

impl ByNodes {
    /// That of a group on this many nodes.
    pub fn on(&self, nodes: usize) -> BytesPerSecond {
        match nodes {
            0 | 1 => self.one_node.value,
            2 => self.two_nodes.value,
            _ => self.more_nodes.value,
        }
    }
}

/// The catalog's versions, the oldest first.
fn versions() -> &'static [Constants] {
    static VERSIONS: OnceLock<Vec<Constants>> = OnceLock::new();
    VERSIONS.get_or_init(|| {
        let read = |name: &str| {
            let text = catalog::text("nccl", name).expect("a listed entry is there");
            toml::from_str(text).unwrap_or_else(|error| panic!("catalog/nccl/{name}.toml: {error}"))
        };
        let mut versions: Vec<Constants> = catalog::names("nccl").into_iter().map(read).collect();
        versions.sort_by_cached_key(|version| numbers(&version.name));
        versions
    })
}

/// The numbers of a version, by which 2.9 is older than 2.12.
fn numbers(version: &str) -> Vec<u32> {
    let number = |part: &str| {
        part.parse().unwrap_or_else(|_| panic!("catalog/nccl/{version}.toml: `{part}` is no number"))
    };
    version.split('.').map(number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_version_is_read_and_the_last_is_the_default() {
        let names: Vec<&str> = Nccl::all().map(Nccl::name).collect();
        for name in catalog::names("nccl") {
            assert!(names.contains(&name) && Nccl::from_name(name).unwrap().name() == name);
        }
        assert_eq!(Nccl::default().name(), *names.last().unwrap());
        assert!(names.len() >= 5);
    }

    #[test]
    fn versions_are_ordered_as_numbers() {
        let mut versions = ["2.12", "2.9", "2.27", "2.9.6", "10.1", "2.3"];
        versions.sort_by_key(|version| numbers(version));
        assert_eq!(versions, ["2.3", "2.9", "2.9.6", "2.12", "2.27", "10.1"]);
        assert!(Nccl::all().map(|version| numbers(version.name())).is_sorted());
    }

    #[test]
    fn reduction_in_the_switches_came_after_2_12() {
        let without: Vec<&str> =
            Nccl::all().filter(|version| version.constants().nvls.is_none()).map(Nccl::name).collect();
        assert_eq!(without, ["2.12"]);
    }

    #[test]
    fn an_unknown_version_names_the_nearest() {
        let message = Nccl::from_name("2.27.7").unwrap_err().to_string();
        assert!(message.contains("2.27.7") && message.contains("2.27"), "{message}");
    }

    /// Every table of numbers says where it is from, itself or by each number.
    #[test]
    fn every_number_has_a_source() {
        fn check(path: &str, table: &toml::Table) {
            let sourced =
                table.get("source").and_then(|source| source.as_str()).is_some_and(|s| s.len() > 10);
            for (key, value) in table {
                match value {
                    toml::Value::Table(inner) if !sourced => check(&format!("{path}.{key}"), inner),
                    toml::Value::Table(_) => {}
                    _ => assert!(sourced || path.is_empty() && key == "name", "{path}.{key}"),
                }
            }
        }
        for name in catalog::names("nccl") {
            check("", &toml::from_str(catalog::text("nccl", name).unwrap()).unwrap());
        }
    }
}
