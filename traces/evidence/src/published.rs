//! Published measurements that ship with the program.
//!
//! Each row names its source. Nothing here knows forecasts.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};
use std::sync::LazyLock;
use trainwright_spec::collective::CollectiveKind;
use trainwright_spec::nccl::Nccl;
use trainwright_spec::units::{Bytes, BytesPerSecond, Seconds};

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
    /// Groups on these nodes that ran the collective at the same time, including this one.
    pub groups: usize,
    /// Which collective.
    pub collective: CollectiveKind,
    /// The size.
    pub bytes: Bytes,
    /// The time.
    pub time: Seconds,
    /// The algorithm, if it was forced.
    pub forced: Option<String>,
    /// The software that measured it.
    pub software: String,
    /// The catalog's version of NCCL that is the newest up to the one stated, if one is.
    pub nccl: Option<Nccl>,
    /// The overhead of the measurement method; `None` if it has none.
    pub method: Option<&'static Method>,
    /// Why no forecast is judged by it; `None` if forecasts are.
    pub left_out: Option<String>,
    /// The publication.
    pub source: String,
}

/// Overhead of a measurement method over the time of a collective.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Method {
    /// Time of the host for each call.
    #[serde(rename = "host_s")]
    pub host: Seconds,
    /// Time of one launch where one process drives all GPUs.
    #[serde(rename = "launch_s")]
    pub launch: Seconds,
    /// Time of one launch of an all-to-all.
    #[serde(rename = "launch_all_to_all_s")]
    pub launch_all_to_all: Seconds,
    /// Copies of the tensor to, or from, a list of its parts, by collectives that take a list.
    pub copies: f64,
    /// Source of the numbers.
    #[serde(skip)]
    pub source: String,
}

/// A measured call of a collective.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MeasuredCall {
    /// Which collective.
    pub collective: CollectiveKind,
    /// Its size.
    pub bytes: Bytes,
    /// Ranks of the group.
    pub ranks: usize,
    /// Time from the call to the collective's first step, which is part of the collective's time.
    pub start: Seconds,
    /// Memory bandwidth that a GPU reaches, read and written bytes together.
    pub memory: BytesPerSecond,
}

impl Method {
    /// The overhead of the method for a call.
    ///
    /// T = h + max(0, p l − t₀) + 2 c n / M
    ///
    /// h the host's time, p ranks, l the time of a launch, t₀ the start that the collective has anyway, c copies of n
    /// bytes, M bandwidth of the memory, which a copy reads and writes.
    /// Assumes that launches follow each other and that no rank starts before the last of them; that copies overlap
    /// with nothing.
    /// Source: the rows of `collective_methods.csv`.
    pub fn adds(&self, call: &MeasuredCall) -> Seconds {
        let launches = call.ranks as f64 * self.launch_of(call.collective);
        let copies = self.copies_of(call.collective) * (2.0 * call.bytes / call.memory);
        self.host + (launches.max(call.start) - call.start) + copies
    }

    /// Time of one launch of a collective.
    pub fn launch_of(&self, collective: CollectiveKind) -> Seconds {
        match collective {
            CollectiveKind::AllToAll => self.launch_all_to_all,
            _ => self.launch,
        }
    }

    /// Copies of the tensor by a collective: none if it takes no list.
    pub fn copies_of(&self, collective: CollectiveKind) -> f64 {
        match collective {
            CollectiveKind::AllGather | CollectiveKind::ReduceScatter | CollectiveKind::AllToAll => {
                self.copies
            }
            _ => 0.0,
        }
    }
}

/// The measured collectives on machines of the catalog, including those that no forecast is judged by.
pub fn all() -> &'static [PublishedTime] {
    static ROWS: LazyLock<Vec<PublishedTime>> = LazyLock::new(|| {
        let rows = table::<Row>(include_str!("../../published/collectives.csv"));
        rows.into_iter().filter_map(Row::published).collect()
    });
    &ROWS
}

/// The measured collectives that are good enough to judge a forecast by: on a machine of the catalog, by its
/// links, with a known measurement method.
pub fn collectives() -> impl Iterator<Item = &'static PublishedTime> {
    all().iter().filter(|row| row.left_out.is_none())
}

/// A row of the file. `collective` is `None` for kinds that are none of `CollectiveKind`.
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
    nccl: Option<Nccl>,
    groups: usize,
    forced: String,
    judged: String,
    source: String,
}

impl Row {
    fn published(self) -> Option<PublishedTime> {
        let (collective, microseconds) = (self.collective?, self.time_us?);
        (!self.cluster.is_empty()).then(|| PublishedTime {
            sweep: self.sweep,
            cluster: self.cluster,
            nodes: self.nodes,
            ranks: self.ranks,
            groups: self.groups,
            collective,
            bytes: Bytes::new(self.bytes),
            time: Seconds::new(microseconds * 1e-6),
            forced: (!self.forced.is_empty()).then_some(self.forced),
            method: method(&self.software),
            software: self.software,
            nccl: self.nccl,
            left_out: (self.judged != "yes").then_some(self.judged),
            source: self.source,
        })
    }
}

/// A measurement method in the file.
#[derive(Deserialize)]
struct WrittenMethod {
    software: String,
    host_us: f64,
    launch_us: f64,
    launch_all_to_all_us: f64,
    copies: f64,
    source: String,
}

fn method(software: &str) -> Option<&'static Method> {
    static METHODS: LazyLock<Vec<(String, Method)>> = LazyLock::new(|| {
        let microseconds = |time: f64| Seconds::new(time * 1e-6);
        let rows = table::<WrittenMethod>(include_str!("../../published/collective_methods.csv"));
        let methods = rows.into_iter().map(|row| {
            let method = Method {
                host: microseconds(row.host_us),
                launch: microseconds(row.launch_us),
                launch_all_to_all: microseconds(row.launch_all_to_all_us),
                copies: row.copies,
                source: row.source,
            };
            (row.software, method)
        });
        methods.collect()
    });
    METHODS.iter().find(|(of, _)| of == software).map(|(_, method)| method)
}

fn table<T: DeserializeOwned>(text: &str) -> Vec<T> {
    let rows = csv::Reader::from_reader(text.as_bytes()).into_deserialize();
    rows.map(|row| row.expect("the table is part of the program")).collect()
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
        assert!(collectives().count() > 1500, "{} rows", collectives().count());
        for row in collectives() {
            let name = format!("{}:{}", row.cluster, row.nodes);
            let cluster = Cluster::from_name(&name).unwrap_or_else(|error| panic!("{}: {error}", row.sweep));
            assert!(row.ranks.is_multiple_of(row.nodes) && row.ranks > 1, "{}", row.sweep);
            assert!(row.ranks / row.nodes * row.groups <= cluster.node.gpus.value, "{}", row.sweep);
            assert!(row.bytes > Bytes::ZERO && row.time > Seconds::ZERO, "{}", row.sweep);
            assert!(!row.source.is_empty(), "{}", row.sweep);
        }
    }

    /// Host 10 µs; 8 launches of 4 µs, of which the collective has 6 µs anyway; 1 MB read and written at 1 TB/s, 2 µs,
    /// where there is a list.
    #[test]
    fn the_overhead_of_a_method_by_hand() {
        let microseconds = |time: f64| Seconds::new(time * 1e-6);
        let method = Method {
            host: microseconds(10.0),
            launch: microseconds(4.0),
            launch_all_to_all: microseconds(0.5),
            copies: 1.0,
            source: "by hand".into(),
        };
        let check = |collective, expected: f64| {
            let memory = BytesPerSecond::new(1e12);
            let call = MeasuredCall {
                collective,
                bytes: Bytes::new(1e6),
                ranks: 8,
                start: microseconds(6.0),
                memory,
            };
            let added = method.adds(&call).get() * 1e6;
            assert!((added - expected).abs() < 1e-9, "{collective}: {added} µs");
        };
        check(CollectiveKind::AllReduce, 10.0 + 32.0 - 6.0);
        check(CollectiveKind::AllGather, 10.0 + 32.0 - 6.0 + 2.0);
        // Its 8 launches are done before it would start.
        check(CollectiveKind::AllToAll, 10.0 + 2.0);
    }

    #[test]
    fn every_method_is_one_that_rows_were_measured_by() {
        let methods = table::<WrittenMethod>(include_str!("../../published/collective_methods.csv"));
        for method in &methods {
            assert!(collectives().any(|row| row.software == method.software), "{}", method.software);
            assert!(!method.source.is_empty(), "{}", method.software);
        }
    }
}
