//! The catalog's and the registries' entries about networks and collectives.

use super::{Shown, Table, gigabytes, print, read};
use crate::render::words::yes_no;
use serde_json::json;
use std::collections::BTreeSet;
use trainwright_sim::network::{self, Call, Placement, Protocol};
use trainwright_spec::catalog::{self, nearest};
use trainwright_spec::cluster::{Cluster, Fabric, Interconnect, Nics};
use trainwright_spec::collective::{self, CollectiveKind, Layout};
use trainwright_spec::error::SpecError;
use trainwright_spec::nccl::Nccl;
use trainwright_spec::sourced::Sourced;
use trainwright_spec::toml_text::TomlText;
use trainwright_spec::units::{Bytes, Seconds};

/// Every interconnect.
pub fn interconnects() -> Shown {
    let interconnects = read("interconnects", |name| file::<Interconnect>("interconnect", name, &[]))?;
    Ok(Table::of(&interconnects)
        .left("interconnect", |(name, _)| name)
        .right("GB/s", |(_, each)| gigabytes(each.bandwidth.value))
        .right("reached", |(_, each)| each.efficiency.value)
        .right("step (µs)", |(_, each)| microseconds(&each.latency))
        .left("adds", |(_, each)| yes_no(each.in_switch.is_some()))
        .left("source", |(_, each)| &each.bandwidth.source)
        .cut()
        + "GB/s: published, of one GPU in one direction; reached: the part of it that large collectives reach;\n\
           step: of a ring, with an empty message; adds: whether its switches sum for all-reduces\n")
}

/// Every NIC.
pub fn nics() -> Shown {
    // The count stands in the node's file.
    let nics = read("nics", |name| file::<Nics>("nic", name, &[("count", 1)]))?;
    Ok(Table::of(&nics)
        .left("NIC", |(name, _)| name)
        .right("GB/s", |(_, nic)| gigabytes(nic.bandwidth.value))
        .right("reached", |(_, nic)| nic.efficiency.value)
        .right("adds (µs)", |(_, nic)| microseconds(&nic.latency))
        .left("in order", |(_, nic)| yes_no(nic.ordered))
        .left("source", |(_, nic)| &nic.bandwidth.source)
        .cut()
        + "GB/s: published, of one NIC in one direction; reached: the part of it that large collectives reach;\n\
           adds: what NIC and fabric add to each step; in order: whether NCCL's LL128 can be used\n")
}

/// A file of the catalog that leaves out its name and the keys that stand where it is used.
fn file<T: TomlText>(kind: &'static str, name: &str, counts: &[(&str, i64)]) -> Result<T, SpecError> {
    let syntax =
        |error: toml::de::Error| SpecError::Syntax { origin: name.into(), message: error.message().into() };
    let mut table: toml::Table = catalog::text(kind, name)?.parse().map_err(syntax)?;
    table.insert("kind".into(), name.into());
    table.extend(counts.iter().map(|(key, count)| (key.to_string(), (*count).into())));
    T::read(&table.to_string()).map_err(syntax)
}

/// Every version of NCCL.
pub fn nccl() -> Shown {
    let versions: Vec<_> = Nccl::all().map(|version| (version.name(), version.constants())).collect();
    Ok(Table::of(&versions)
        .left("NCCL", |(name, _)| name)
        .right("LL", |(_, nccl)| microseconds(&nccl.base.ring.ll))
        .right("LL128", |(_, nccl)| microseconds(&nccl.base.ring.ll128))
        .right("Simple", |(_, nccl)| microseconds(&nccl.base.ring.simple))
        .right("NVLink", |(_, nccl)| microseconds(&nccl.steps.nvlink.ring.simple))
        .right("network", |(_, nccl)| microseconds(&nccl.steps.network.ring.simple))
        .right("channels", |(_, nccl)| nccl.channels.most.value)
        .left("source", |(_, nccl)| &nccl.base.source)
        .cut()
        + "LL, LL128, Simple: what it counts with before a ring's first step, in µs; NVLink, network: for a step of a\n\
           ring with Simple, in µs; channels: the most that there are\n")
}

/// Every pattern of a fabric.
pub fn fabrics() -> Shown {
    let fabrics = Fabric::KINDS.iter().map(|(kind, summary)| {
        let clusters: Vec<String> = clusters_with(kind)?.into_iter().map(|cluster| cluster.name).collect();
        Ok((kind, summary, clusters.join(", ")))
    });
    Ok(Table::of(&fabrics.collect::<Result<Vec<_>, SpecError>>()?)
        .left("fabric", |(kind, ..)| kind)
        .left("what it is", |(_, summary, _)| summary)
        .left("clusters of the catalog", |(.., clusters)| clusters)
        .wrapped())
}

/// A pattern of a fabric, as a cluster of the catalog has it.
pub fn fabric(name: &str) -> Shown {
    let names = Fabric::KINDS.iter().map(|(kind, _)| *kind);
    let kind = Fabric::KINDS.iter().find(|(kind, _)| *kind == name);
    let (kind, summary) = kind.ok_or_else(|| unknown("fabric", name, names))?;
    let clusters = clusters_with(kind)?;
    Ok(print(json!({
        "name": kind,
        "summary": summary,
        "clusters": clusters.iter().map(|cluster| &cluster.name).collect::<Vec<_>>(),
        "fabric": clusters.first().map(|cluster| &cluster.fabric),
    })))
}

fn clusters_with(fabric: &str) -> Result<Vec<Cluster>, SpecError> {
    let mut clusters: Vec<Cluster> =
        catalog::names("clusters").into_iter().map(Cluster::from_name).collect::<Result<_, _>>()?;
    clusters.retain(|cluster| cluster.fabric.kind() == fabric);
    Ok(clusters)
}

/// Every algorithm, of NCCL and step by step.
pub fn algorithms() -> Shown {
    let words = |kinds: &[&str]| if kinds.is_empty() { "-".into() } else { kinds.join(", ") };
    Ok(Table::of(&Algorithm::all()?)
        .left("algorithm", |algorithm| algorithm.name)
        .left("as NCCL does it", |algorithm| words(&names(&algorithm.nccl)))
        .left("step by step", |algorithm| words(&names(&algorithm.by_steps)))
        .wrapped()
        + "what each can do over some group; `trainwright network --algorithm NAME`, with `--by-steps` step by step\n")
}

/// An algorithm with its steps over two nodes of two ranks, or one node of four.
pub fn algorithm(name: &str) -> Shown {
    let all = Algorithm::all()?;
    let found = all.iter().find(|algorithm| algorithm.name == name);
    let found =
        found.ok_or_else(|| unknown("algorithm", name, all.iter().map(|algorithm| algorithm.name)))?;
    let stepwise = collective::ALGORITHMS.iter().find(|algorithm| algorithm.name() == name);
    let example = stepwise.and_then(|algorithm| {
        let cases = small_layouts().flat_map(|layout| CollectiveKind::ALL.map(|kind| (layout, kind)));
        cases.into_iter().find_map(|(layout, kind)| {
            Some(json!({
                "collective": kind.name(),
                "nodes": layout.nodes(),
                "ranks": layout.ranks(),
                "steps": algorithm.steps(kind, layout)?.to_string(),
            }))
        })
    });
    Ok(print(json!({
        "name": found.name,
        "nccl": names(&found.nccl),
        "by_steps": names(&found.by_steps),
        "example": example,
    })))
}

/// Every collective.
pub fn collectives() -> Shown {
    let all = Algorithm::all()?;
    Ok(Table::of(&CollectiveKind::ALL)
        .left("collective", |kind| kind)
        .right("busbw", |kind| kind.bus_factor(8))
        .left("as NCCL does it", |kind| algorithms_for(*kind, &all)[0].join(", "))
        .left("step by step", |kind| algorithms_for(*kind, &all)[1].join(", "))
        .wrapped()
        + "busbw: over algbw, which is size / time, with 8 ranks\n")
}

/// A collective with the algorithms for it.
pub fn collective(name: &str) -> Shown {
    let names = CollectiveKind::ALL.map(CollectiveKind::name);
    let kind: CollectiveKind = name.parse().map_err(|_| unknown("collective", name, names.into_iter()))?;
    let [nccl, by_steps] = algorithms_for(kind, &Algorithm::all()?);
    Ok(print(json!({
        "name": kind.name(),
        "busbw_over_algbw_of_8_ranks": kind.bus_factor(8),
        "nccl": nccl,
        "by_steps": by_steps,
    })))
}

/// The algorithms that can do a collective: as NCCL does it, and step by step.
fn algorithms_for(kind: CollectiveKind, all: &[Algorithm]) -> [Vec<&'static str>; 2] {
    let with = |kinds: fn(&Algorithm) -> &[CollectiveKind]| {
        all.iter().filter(|each| kinds(each).contains(&kind)).map(|each| each.name).collect()
    };
    [with(|each| &each.nccl), with(|each| &each.by_steps)]
}

/// An algorithm with the collectives that it can do.
struct Algorithm {
    name: &'static str,
    /// As NCCL does it, on nodes with every hardware feature that it uses.
    nccl: Vec<CollectiveKind>,
    /// By a list of steps, over one node or several.
    by_steps: Vec<CollectiveKind>,
}

impl Algorithm {
    /// NCCL's first.
    fn all() -> Result<Vec<Algorithm>, SpecError> {
        let mut names: Vec<&str> = network::ALGORITHMS.iter().map(|algorithm| algorithm.name()).collect();
        names.extend(collective::ALGORITHMS.iter().map(|algorithm| algorithm.name()));
        let mut seen = BTreeSet::new();
        names.retain(|name| seen.insert(*name));
        let cluster = Cluster::from_name("dgx-h100:2")?;
        Ok(names
            .into_iter()
            .map(|name| Algorithm { name, nccl: of_nccl(name, &cluster), by_steps: by_steps(name) })
            .collect())
    }
}

fn of_nccl(name: &str, cluster: &Cluster) -> Vec<CollectiveKind> {
    let Some(algorithm) = network::ALGORITHMS.iter().find(|algorithm| algorithm.name() == name) else {
        return Vec::new();
    };
    let gpus = cluster.node.gpus.value;
    let placements = [gpus, 2 * gpus].map(|ranks| Placement::new(&(0..ranks).collect::<Vec<_>>(), cluster));
    let can = |kind: &CollectiveKind| {
        placements.iter().any(|placement| {
            Protocol::ALL.into_iter().any(|protocol| {
                let call = Call { kind: *kind, bytes: Bytes::GIB, protocol, channels: None };
                algorithm.expected(&call, placement).is_some()
            })
        })
    };
    CollectiveKind::ALL.into_iter().filter(can).collect()
}

fn by_steps(name: &str) -> Vec<CollectiveKind> {
    let Some(algorithm) = collective::ALGORITHMS.iter().find(|algorithm| algorithm.name() == name) else {
        return Vec::new();
    };
    let can = |kind: &CollectiveKind| small_layouts().any(|layout| algorithm.steps(*kind, layout).is_some());
    CollectiveKind::ALL.into_iter().filter(can).collect()
}

/// Four ranks on two nodes, and on one.
fn small_layouts() -> impl Iterator<Item = Layout> {
    [2, 4].into_iter().filter_map(|per_node| Layout::new(4, per_node, 1).ok())
}

fn names(kinds: &[CollectiveKind]) -> Vec<&'static str> {
    kinds.iter().map(|kind| kind.name()).collect()
}

fn unknown<'a>(kind: &'static str, name: &str, names: impl Iterator<Item = &'a str>) -> SpecError {
    SpecError::UnknownName { kind, name: name.into(), nearest: nearest(name, names) }
}

fn microseconds(time: &Sourced<Seconds>) -> String {
    format!("{:.1}", time.value.get() * 1e6)
}
