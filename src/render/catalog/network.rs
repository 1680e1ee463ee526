//! What the catalog and the registries have of networks and collectives.

use super::{list, print};
use crate::render::table::{Column, wrapped_table};
use Column::{Left, Right};
use serde::Serialize;
use trainwright_sim::network::{self, Call, Placement, Protocol};
use trainwright_spec::catalog::{self, nearest};
use trainwright_spec::cluster::{Cluster, Fabric, Interconnect, Nics};
use trainwright_spec::collective::{self, CollectiveKind, Layout};
use trainwright_spec::error::SpecError;
use trainwright_spec::nccl::Nccl;
use trainwright_spec::toml_text::TomlText;
use trainwright_spec::units::{Bytes, BytesPerSecond, Seconds};

/// Every interconnect.
///
/// # Errors
/// Those of the catalog's files, which its tests exclude.
pub fn interconnects() -> Result<String, SpecError> {
    let columns = [
        Left("interconnect"),
        Right("GB/s"),
        Right("reached"),
        Right("step (µs)"),
        Left("adds"),
        Left("source"),
    ];
    let rows = catalog::names("interconnects").into_iter().map(|name| {
        let interconnect: Interconnect = file("interconnect", name, &[])?;
        Ok(vec![
            name.to_string(),
            gigabytes(interconnect.bandwidth.value),
            interconnect.efficiency.value.to_string(),
            microseconds(interconnect.latency.value),
            if interconnect.in_switch.is_some() { "yes" } else { "no" }.into(),
            interconnect.bandwidth.source,
        ])
    });
    Ok(list(&columns, rows)?
        + "GB/s: published, of one GPU in one direction; reached: the part of it that large collectives reach;\n\
           step: of a ring, with an empty message; adds: whether its switches sum for all-reduces\n")
}

/// Every NIC.
///
/// # Errors
/// Those of the catalog's files, which its tests exclude.
pub fn nics() -> Result<String, SpecError> {
    let columns =
        [Left("NIC"), Right("GB/s"), Right("reached"), Right("adds (µs)"), Left("in order"), Left("source")];
    let rows = catalog::names("nics").into_iter().map(|name| {
        // How many there are stands in the node's file.
        let nics: Nics = file("nic", name, &[("count", 1)])?;
        Ok(vec![
            name.to_string(),
            gigabytes(nics.bandwidth.value),
            nics.efficiency.value.to_string(),
            microseconds(nics.latency.value),
            if nics.ordered { "yes" } else { "no" }.into(),
            nics.bandwidth.source,
        ])
    });
    Ok(list(&columns, rows)?
        + "GB/s: published, of one NIC in one direction; reached: the part of it that large collectives reach;\n\
           adds: what NIC and fabric add to each step; in order: whether NCCL's LL128 can be used\n")
}

/// A file of the catalog that leaves out its own name and what stands where it is used.
fn file<T: TomlText>(kind: &'static str, name: &str, counts: &[(&str, i64)]) -> Result<T, SpecError> {
    let syntax =
        |error: toml::de::Error| SpecError::Syntax { origin: name.into(), message: error.message().into() };
    let mut table: toml::Table = catalog::text(kind, name)?.parse().map_err(syntax)?;
    table.insert("kind".into(), name.into());
    table.extend(counts.iter().map(|(key, count)| (key.to_string(), (*count).into())));
    T::read(&table.to_string()).map_err(syntax)
}

/// Every version of NCCL.
///
/// # Errors
/// Those of the catalog's files, which its tests exclude.
pub fn nccl() -> Result<String, SpecError> {
    let columns = [
        Left("NCCL"),
        Right("LL"),
        Right("LL128"),
        Right("Simple"),
        Right("NVLink"),
        Right("network"),
        Right("channels"),
        Left("source"),
    ];
    let rows = Nccl::all().map(|version| {
        let constants = version.constants();
        let base = &constants.base.ring;
        let mut row = vec![version.name().to_string()];
        let steps = [&constants.steps.nvlink.ring.simple, &constants.steps.network.ring.simple];
        row.extend([&base.ll, &base.ll128, &base.simple].map(|time| microseconds(time.value)));
        row.extend(steps.map(|time| microseconds(time.value)));
        row.extend([constants.channels.most.value.to_string(), constants.base.source.clone()]);
        Ok(row)
    });
    Ok(list(&columns, rows)?
        + "LL, LL128, Simple: what it counts with before a ring's first step, in µs; NVLink, network: for a step of a\n\
           ring with Simple, in µs; channels: the most that there are\n")
}

/// Every pattern of a fabric.
///
/// # Errors
/// Those of the catalog's files, which its tests exclude.
pub fn fabrics() -> Result<String, SpecError> {
    let rows = Fabric::KINDS.iter().map(|(kind, summary)| {
        let clusters: Vec<String> = of_kind(kind)?.into_iter().map(|cluster| cluster.name).collect();
        Ok(vec![kind.to_string(), summary.to_string(), clusters.join(", ")])
    });
    let columns = [Left("fabric"), Left("what it is"), Left("clusters of the catalog")];
    Ok(wrapped_table(&columns, rows.collect::<Result<_, SpecError>>()?))
}

/// A pattern of a fabric, as a cluster of the catalog has it.
///
/// # Errors
/// `UnknownName`.
pub fn fabric_entry(name: &str) -> Result<String, SpecError> {
    let names = Fabric::KINDS.iter().map(|(kind, _)| *kind);
    let kind = Fabric::KINDS.iter().find(|(kind, _)| *kind == name);
    let (kind, summary) = kind.ok_or_else(|| unknown("fabric", name, names))?;
    let clusters = of_kind(kind)?;
    Ok(print(&FabricEntry {
        name: kind,
        summary,
        clusters: clusters.iter().map(|cluster| cluster.name.as_str()).collect(),
        fabric: clusters.first().map(|cluster| &cluster.fabric),
    }))
}

fn of_kind(kind: &str) -> Result<Vec<Cluster>, SpecError> {
    let clusters = catalog::names("clusters").into_iter().map(Cluster::from_name);
    let of_kind = |cluster: &Result<Cluster, SpecError>| {
        cluster.as_ref().map_or(true, |cluster| cluster.fabric.kind() == kind)
    };
    clusters.filter(of_kind).collect()
}

/// Every algorithm, of NCCL and step by step.
///
/// # Errors
/// Those of the catalog's files, which its tests exclude.
pub fn algorithms() -> Result<String, SpecError> {
    let rows = algorithm_names().into_iter().map(|name| {
        let [nccl, by_steps] = [kinds_of_nccl(name)?, kinds_by_steps(name)].map(|kinds| words(&kinds));
        Ok(vec![name.to_string(), nccl, by_steps])
    });
    let columns = [Left("algorithm"), Left("as NCCL does it"), Left("step by step")];
    Ok(wrapped_table(&columns, rows.collect::<Result<_, SpecError>>()?)
        + "what each can do over some group; `trainwright network --algorithm NAME`, with `--by-steps` step by step\n")
}

/// An algorithm with its steps over two nodes of two ranks, or one node of four.
///
/// # Errors
/// `UnknownName`.
pub fn algorithm_entry(name: &str) -> Result<String, SpecError> {
    let names = algorithm_names();
    let found = names.iter().find(|known| **known == name);
    let name = *found.ok_or_else(|| unknown("algorithm", name, names.iter().copied()))?;
    let example =
        collective::ALGORITHMS.iter().find(|algorithm| algorithm.name() == name).and_then(|algorithm| {
            let layouts = [2, 4].into_iter().filter_map(|per_node| Layout::new(4, per_node, 1).ok());
            let cases = layouts.flat_map(|layout| CollectiveKind::ALL.map(|kind| (layout, kind)));
            cases.into_iter().find_map(|(layout, kind)| {
                let steps = algorithm.steps(kind, layout)?.to_string();
                Some(StepsExample {
                    collective: kind.name(),
                    nodes: layout.nodes(),
                    ranks: layout.ranks(),
                    steps,
                })
            })
        });
    let of = |kinds: Vec<CollectiveKind>| kinds.into_iter().map(CollectiveKind::name).collect();
    Ok(print(&AlgorithmEntry {
        name,
        nccl: of(kinds_of_nccl(name)?),
        by_steps: of(kinds_by_steps(name)),
        example,
    }))
}

/// Every collective.
///
/// # Errors
/// Those of the catalog's files, which its tests exclude.
pub fn collectives() -> Result<String, SpecError> {
    let rows = CollectiveKind::ALL.into_iter().map(|kind| {
        let CollectiveEntry { busbw_over_algbw_of_8_ranks: factor, nccl, by_steps, .. } = collective(kind)?;
        Ok(vec![kind.to_string(), factor.to_string(), nccl.join(", "), by_steps.join(", ")])
    });
    let columns = [Left("collective"), Right("busbw"), Left("as NCCL does it"), Left("step by step")];
    Ok(wrapped_table(&columns, rows.collect::<Result<_, SpecError>>()?)
        + "busbw: over algbw, which is size / time, with 8 ranks\n")
}

/// A collective with who can do it.
///
/// # Errors
/// `UnknownName`.
pub fn collective_entry(name: &str) -> Result<String, SpecError> {
    let names = CollectiveKind::ALL.map(CollectiveKind::name);
    let kind = name.parse().map_err(|_| unknown("collective", name, names.into_iter()))?;
    collective(kind).map(|entry| print(&entry))
}

fn collective(kind: CollectiveKind) -> Result<CollectiveEntry, SpecError> {
    let (mut nccl, mut by_steps) = (Vec::new(), Vec::new());
    for name in algorithm_names() {
        if kinds_of_nccl(name)?.contains(&kind) {
            nccl.push(name);
        }
        if kinds_by_steps(name).contains(&kind) {
            by_steps.push(name);
        }
    }
    Ok(CollectiveEntry { name: kind.name(), busbw_over_algbw_of_8_ranks: kind.bus_factor(8), nccl, by_steps })
}

/// NCCL's first.
fn algorithm_names() -> Vec<&'static str> {
    let mut names: Vec<&str> = network::ALGORITHMS.iter().map(|algorithm| algorithm.name()).collect();
    for algorithm in collective::ALGORITHMS {
        if !names.contains(&algorithm.name()) {
            names.push(algorithm.name());
        }
    }
    names
}

/// What NCCL does by an algorithm, on nodes that can do all that it knows.
fn kinds_of_nccl(name: &str) -> Result<Vec<CollectiveKind>, SpecError> {
    let Some(algorithm) = network::ALGORITHMS.iter().find(|algorithm| algorithm.name() == name) else {
        return Ok(Vec::new());
    };
    let cluster = Cluster::from_name("dgx-h100:2")?;
    let gpus = cluster.node.gpus.value;
    let placements = [gpus, 2 * gpus].map(|ranks| Placement::new(&(0..ranks).collect::<Vec<_>>(), &cluster));
    let does = |kind: &CollectiveKind| {
        placements.iter().any(|placement| {
            Protocol::ALL.into_iter().any(|protocol| {
                let call = Call { kind: *kind, bytes: Bytes::GIB, protocol, channels: None };
                algorithm.expected(&call, placement).is_some()
            })
        })
    };
    Ok(CollectiveKind::ALL.into_iter().filter(does).collect())
}

/// What has a list of steps, over one node or several.
fn kinds_by_steps(name: &str) -> Vec<CollectiveKind> {
    let Some(algorithm) = collective::ALGORITHMS.iter().find(|algorithm| algorithm.name() == name) else {
        return Vec::new();
    };
    let layouts: Vec<Layout> =
        [2, 4].into_iter().filter_map(|per_node| Layout::new(4, per_node, 1).ok()).collect();
    let does = |kind: &CollectiveKind| layouts.iter().any(|layout| algorithm.steps(*kind, *layout).is_some());
    CollectiveKind::ALL.into_iter().filter(does).collect()
}

fn words(kinds: &[CollectiveKind]) -> String {
    if kinds.is_empty() {
        return "-".into();
    }
    kinds.iter().map(|kind| kind.name()).collect::<Vec<_>>().join(", ")
}

fn unknown<'a>(kind: &'static str, name: &str, names: impl Iterator<Item = &'a str>) -> SpecError {
    SpecError::UnknownName { kind, name: name.into(), nearest: nearest(name, names) }
}

fn gigabytes(bandwidth: BytesPerSecond) -> String {
    format!("{:.1}", bandwidth.get() / 1e9)
}

fn microseconds(time: Seconds) -> String {
    format!("{:.1}", time.get() * 1e6)
}

#[derive(Serialize)]
struct FabricEntry<'a> {
    name: &'static str,
    summary: &'static str,
    clusters: Vec<&'a str>,
    fabric: Option<&'a Fabric>,
}

#[derive(Serialize)]
struct AlgorithmEntry {
    name: &'static str,
    nccl: Vec<&'static str>,
    by_steps: Vec<&'static str>,
    example: Option<StepsExample>,
}

#[derive(Serialize)]
struct StepsExample {
    collective: &'static str,
    nodes: usize,
    ranks: usize,
    steps: String,
}

#[derive(Serialize)]
struct CollectiveEntry {
    name: &'static str,
    busbw_over_algbw_of_8_ranks: f64,
    nccl: Vec<&'static str>,
    by_steps: Vec<&'static str>,
}
