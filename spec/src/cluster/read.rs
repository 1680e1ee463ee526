//! Clusters from the catalog's names and from people's files.
//!
//! A cluster is written as TOML. At each level a name of the catalog may stand for the whole table, and an
//! interconnect or NIC of a `kind` that the catalog knows needs to say only what differs from it:
//!
//! ```toml
//! nodes = 16
//! fabric = { oversubscription = 2 } # left out: non-blocking
//!
//! [node]                            # or only a name: node = "dgx-a100"
//! gpu = "a100-80gb-sxm"
//! gpus = 8
//! interconnect = "nvlink3-nvswitch"
//! nics = { kind = "infiniband-hdr", count = 4 }
//!
//! [[others]]                        # the last 8 of the 16; left out: all nodes are alike
//! nodes = 8
//! node = "dgx-h100"
//! ```

use super::check::{Fault, check};
use super::document::Document;
use super::{Cluster, Fabric, Node, Others, Shape};
use crate::catalog;
use crate::error::SpecError;
use crate::nccl::Nccl;
use std::borrow::Cow;
use std::path::Path;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

impl Cluster {
    /// A cluster from what stands after `--cluster`: a path if it has a `/` or ends with `.toml`, else a name.
    ///
    /// # Errors
    /// Those of `from_file` and `from_name`.
    pub fn reference(text: &str) -> Result<Self, SpecError> {
        match text.contains('/') || text.ends_with(".toml") {
            true => Self::from_file(Path::new(text)),
            false => Self::from_name(text),
        }
    }

    /// A cluster of the catalog (`selene`), a part of one (`selene:16`), a node of the catalog (`dgx-h100`) or
    /// several of them on a non-blocking fabric or on their torus (`dgx-h100:16`), of several kinds too (`dgx-h100:8+dgx-a100:8`).
    ///
    /// # Errors
    /// `UnknownName` with the nearest names; `BadValue` for a count that is no number, zero, or more than there are.
    pub fn from_name(text: &str) -> Result<Self, SpecError> {
        if text.contains('+') {
            return Self::mixed(text);
        }
        let (name, count) = match text.split_once(':') {
            Some((name, count)) => (name, Some(count)),
            None => (text, None),
        };
        let refuse = |allowed: String| SpecError::BadValue {
            origin: "argument".into(),
            key: "cluster".into(),
            value: format!("`{text}`"),
            allowed,
        };
        let count = match count.map(str::parse::<usize>) {
            None => None,
            Some(Ok(count)) if count > 0 => Some(count),
            Some(_) => return Err(refuse("after the colon stands a number of nodes, at least 1".into())),
        };
        let mut cluster = if catalog::names("clusters").contains(&name) {
            let named = Self::from_toml(catalog::text("cluster", name)?, name)?;
            if count.is_some_and(|count| count > named.nodes) {
                return Err(refuse(format!("{name} has {} nodes", named.nodes)));
            }
            let nodes = count.unwrap_or(named.nodes);
            let part = match &named.fabric.shape {
                Shape::Torus(torus) if nodes != named.nodes => {
                    Some(Shape::Torus(torus.of_nodes(nodes, named.node.gpus.value)))
                }
                _ => None,
            };
            let shape = part.unwrap_or_else(|| named.fabric.shape.clone());
            Cluster { nodes, fabric: Fabric { shape, ..named.fabric.clone() }, ..named }
        } else if catalog::names("nodes").contains(&name) {
            let (nodes, node) = (count.unwrap_or(1), Node::from_name(name)?);
            let on_torus = node.nics.is_none() && nodes > 1;
            let torus = on_torus.then(|| Fabric::of_torus_nodes(name, nodes)).flatten();
            Cluster {
                name: text.into(),
                nodes,
                calibration: None,
                fabric: torus.unwrap_or_else(Fabric::non_blocking),
                nccl: Nccl::default(),
                node,
                others: Vec::new(),
                profile: None,
            }
        } else {
            let mut known = catalog::names("clusters");
            known.extend(catalog::names("nodes"));
            let nearest = catalog::nearest(name, known.into_iter());
            return Err(SpecError::UnknownName { kind: "cluster", name: name.into(), nearest });
        };
        cluster.name = text.into();
        check(&cluster)
            .map_err(|Fault { key, value, allowed }| refuse(format!("`{key}` is {value}; {allowed}")))?;
        Ok(cluster)
    }

    /// Runs of several kinds of nodes on the fabric of the first.
    fn mixed(text: &str) -> Result<Self, SpecError> {
        let parts = text.split('+').map(|part| Self::from_name(part.trim()));
        let parts: Vec<Self> = parts.collect::<Result<_, _>>()?;
        let nodes = parts.iter().map(|part| part.nodes).sum();
        let mut parts = parts.into_iter();
        let first = parts.next().expect("splitting gives one part or more");
        let others = parts.map(|part| Others { nodes: part.nodes, node: part.node }).collect();
        let cluster = Cluster { name: text.into(), nodes, others, ..first };
        check(&cluster).map_err(|Fault { key, value, allowed }| SpecError::BadValue {
            origin: "argument".into(),
            key: "cluster".into(),
            value: format!("`{text}`"),
            allowed: format!("`{key}` is {value}; {allowed}"),
        })?;
        Ok(cluster)
    }

    /// A cluster from a TOML file.
    ///
    /// # Errors
    /// `File` if it cannot be read, and those of `from_toml`.
    pub fn from_file(path: &Path) -> Result<Self, SpecError> {
        let text =
            std::fs::read_to_string(path).map_err(|source| SpecError::File { path: path.into(), source })?;
        Self::from_toml(&text, &path.display().to_string())
    }

    /// A cluster from TOML text; `origin` names it in messages, and in the cluster where the text has no `name`.
    ///
    /// # Errors
    /// `Syntax` for text that is no TOML or has a key missing or unknown, `BadValue` for a value that makes no
    /// sense; each with line, key and what is allowed.
    pub fn from_toml(text: &str, origin: &str) -> Result<Self, SpecError> {
        let document = Document::parse(text, origin)?;
        let mut tables = document.tables();
        let root = tables.get_mut();
        let stem = Path::new(origin).file_stem().map_or(origin.into(), |stem| stem.to_string_lossy());
        default(root, "name", text_value(&stem));
        default(root, "fabric", unwritten(DeValue::Table(DeTable::new())));
        complete(root, &["node", "gpu"], String::new(), &document)?;
        if let Some(DeValue::Table(node)) = root.get_mut("node").map(Spanned::get_mut) {
            complete_links(node, "node.", &document)?;
        }
        if let Some(DeValue::Array(others)) = root.get_mut("others").map(Spanned::get_mut) {
            for (index, other) in others.iter_mut().enumerate() {
                let DeValue::Table(other) = other.get_mut() else { continue };
                let path = format!("others.{index}");
                complete(other, &["node", "gpu"], path.clone(), &document)?;
                if let Some(DeValue::Table(node)) = other.get_mut("node").map(Spanned::get_mut) {
                    complete_links(node, &format!("{path}.node."), &document)?;
                }
            }
        }
        let cluster: Cluster = document.read(tables)?;
        check(&cluster).map_err(|Fault { key, value, allowed }| {
            let shorthand = document.has("fabric.oversubscription");
            let key = if shorthand { in_shorthand(&key) } else { key };
            document.refuse(&key, value, allowed)
        })?;
        Ok(cluster)
    }
}

/// The key by which the author of a shorthand fabric, `fabric = { oversubscription = 2, pod_nodes = 8 }`, knows a key
/// of the fat tree that it stands for.
fn in_shorthand(key: &str) -> String {
    match key {
        "fabric.fat_tree.levels.0.oversubscription" => "fabric.oversubscription".into(),
        "fabric.fat_tree.levels.0.nodes" => "fabric.pod_nodes".into(),
        other => other.into(),
    }
}

impl Node {
    /// A node of the catalog.
    ///
    /// # Errors
    /// `UnknownName` with the nearest names.
    pub fn from_name(name: &str) -> Result<Self, SpecError> {
        let text = catalog::text("node", name)?;
        let document = Document::parse(text, name)?;
        let mut tables = document.tables();
        default(tables.get_mut(), "name", text_value(name));
        complete(tables.get_mut(), &["gpu"], String::new(), &document)?;
        complete_links(tables.get_mut(), "", &document)?;
        document.read(tables)
    }
}

/// Puts the catalog's table where a name stands for it, and a name where a table has none; `levels` are the keys
/// that may hold such tables, each inside the one before.
fn complete(
    table: &mut DeTable,
    levels: &[&'static str],
    path: String,
    document: &Document,
) -> Result<(), SpecError> {
    let Some((&kind, deeper)) = levels.split_first() else { return Ok(()) };
    let Some(value) = table.get_mut(kind) else { return Ok(()) };
    let path = if path.is_empty() { kind.to_string() } else { format!("{path}.{kind}") };
    let mut name = "custom".to_string();
    if let DeValue::String(reference) = value.get_ref() {
        name = reference.to_string();
        let text = catalog::text(kind, &name)
            .map_err(|unknown| document.refuse(&path, format!("`{name}`"), unknown.to_string()))?;
        *value.get_mut() = DeValue::Table(Document::parse(text, &name)?.tables().into_inner());
    }
    if let DeValue::Table(inner) = value.get_mut() {
        default(inner, "name", text_value(&name));
        complete(inner, deeper, path, document)?;
    }
    Ok(())
}

/// Fills in what a node's interconnect, host, NICs and processors leave to the catalog's entry of their `kind`; a name may stand for
/// the whole table. A kind that the catalog does not know is the author's and needs every key.
fn complete_links(node: &mut DeTable, path: &str, document: &Document) -> Result<(), SpecError> {
    let kinds = [
        ("interconnect", "interconnect"),
        ("host", "interconnect"),
        ("nics", "nic"),
        ("processors", "processors"),
    ];
    for (key, entry) in kinds {
        let Some(value) = node.get_mut(key) else { continue };
        if let DeValue::String(kind) = value.get_ref() {
            let kind = kind.to_string();
            catalog::text(entry, &kind).map_err(|unknown| {
                document.refuse(&format!("{path}{key}"), format!("`{kind}`"), unknown.to_string())
            })?;
            let mut table = DeTable::new();
            default(&mut table, "kind", text_value(&kind));
            *value.get_mut() = DeValue::Table(table);
        }
        let DeValue::Table(table) = value.get_mut() else { continue };
        let kind = match table.get("kind").map(Spanned::get_ref) {
            Some(DeValue::String(kind)) => kind.to_string(),
            _ => continue,
        };
        let Ok(text) = catalog::text(entry, &kind) else { continue };
        for (key, value) in Document::parse(text, &kind)?.tables().into_inner() {
            table.entry(unwritten(key.into_inner())).or_insert(value);
        }
    }
    Ok(())
}

/// Sets a key that the author left out.
fn default<'a>(table: &mut DeTable<'a>, key: &'static str, value: Spanned<DeValue<'a>>) {
    if !table.contains_key(key) {
        table.insert(unwritten(Cow::Borrowed(key)), value);
    }
}

/// A key or value that nobody wrote: it stands at the start of the text.
fn unwritten<T>(value: T) -> Spanned<T> {
    Spanned::new(0..0, value)
}

fn text_value<'a>(text: &str) -> Spanned<DeValue<'a>> {
    unwritten(DeValue::String(Cow::Owned(text.into())))
}
