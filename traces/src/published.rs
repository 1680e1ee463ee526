//! Published measurements that ship with the program.
//!
//! Each row has the source that it is from. Nothing here knows what a forecast says of it.

use serde::{Deserialize, Deserializer};
use std::sync::LazyLock;
use trainwright_spec::collective::CollectiveKind;
use trainwright_spec::units::{Bytes, Seconds};

/// One size of a measured sweep.
#[derive(Debug, Clone, PartialEq)]
pub struct PublishedTime {
    /// Name of the sweep.
    pub sweep: String,
    /// The node, or the cluster, of the catalog that it was measured on.
    pub cluster: String,
    /// Nodes that the group is on.
    pub nodes: usize,
    /// Ranks of the group, as many on each node.
    pub ranks: usize,
    /// Groups on the same nodes that did the same at the same time, this one among them.
    pub groups: usize,
    /// Which collective.
    pub collective: CollectiveKind,
    /// The size.
    pub bytes: Bytes,
    /// The time.
    pub time: Seconds,
    /// The algorithm, if it was forced.
    pub forced: Option<String>,
    /// What measured it.
    pub software: String,
    /// What the host takes of each call with this software; it is in `time`.
    pub host: Seconds,
    /// Who published it.
    pub source: String,
}

/// The measured collectives that are good enough to judge a forecast by: on a machine of the catalog, by its own
/// links, with a known method.
pub fn collectives() -> &'static [PublishedTime] {
    static ROWS: LazyLock<Vec<PublishedTime>> = LazyLock::new(|| {
        let table = include_str!("../published/collectives.csv");
        let mut rows = csv::Reader::from_reader(table.as_bytes());
        let rows = rows.deserialize().map(|row| row.expect("the table is part of the program"));
        rows.filter_map(Row::judged).collect()
    });
    &ROWS
}

/// A row as it is written. A collective that is none of `CollectiveKind` is of a library of its own.
#[derive(Deserialize)]
struct Row {
    sweep: String,
    cluster: String,
    nodes: usize,
    ranks: usize,
    #[serde(deserialize_with = "collective")]
    collective: Option<CollectiveKind>,
    bytes: f64,
    time_us: Option<f64>,
    software: String,
    groups: usize,
    forced: String,
    judged: String,
    source: String,
}

impl Row {
    fn judged(self) -> Option<PublishedTime> {
        let (collective, microseconds) = (self.collective?, self.time_us?);
        (self.judged == "yes").then(|| PublishedTime {
            sweep: self.sweep,
            cluster: self.cluster,
            nodes: self.nodes,
            ranks: self.ranks,
            groups: self.groups,
            collective,
            bytes: Bytes::new(self.bytes),
            time: Seconds::new(microseconds * 1e-6),
            forced: (!self.forced.is_empty()).then_some(self.forced),
            host: host(&self.software),
            software: self.software,
            source: self.source,
        })
    }
}

/// A way of measuring; its other columns are for tests.
#[derive(Deserialize)]
struct Method {
    software: String,
    host_us: f64,
}

fn host(software: &str) -> Seconds {
    static METHODS: LazyLock<Vec<Method>> = LazyLock::new(|| {
        let table = include_str!("../published/collective_methods.csv");
        let mut rows = csv::Reader::from_reader(table.as_bytes());
        rows.deserialize().map(|row| row.expect("the table is part of the program")).collect()
    });
    let method = METHODS.iter().find(|method| method.software == software);
    method.map_or(Seconds::ZERO, |method| Seconds::new(method.host_us * 1e-6))
}

fn collective<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<CollectiveKind>, D::Error> {
    Ok(String::deserialize(deserializer)?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use trainwright_spec::cluster::Cluster;

    #[test]
    fn every_row_is_of_a_group_on_a_machine_of_the_catalog() {
        assert!(collectives().len() > 1500, "{} rows", collectives().len());
        for row in collectives() {
            let name = format!("{}:{}", row.cluster, row.nodes);
            let cluster = Cluster::from_name(&name).unwrap_or_else(|error| panic!("{}: {error}", row.sweep));
            assert!(row.ranks.is_multiple_of(row.nodes) && row.ranks > 1, "{}", row.sweep);
            assert!(row.ranks / row.nodes * row.groups <= cluster.node.gpus.value, "{}", row.sweep);
            assert!(row.bytes > Bytes::ZERO && row.time > Seconds::ZERO, "{}", row.sweep);
            assert!(!row.source.is_empty(), "{}", row.sweep);
        }
    }
}
