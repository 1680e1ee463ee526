//! What the catalog and the registries have, as tables, and single entries of the registries as TOML.

pub mod choices;
pub mod context;
pub mod data;
pub mod dispatchers;
pub mod network;
pub mod optimizers;
pub mod schedules;
pub mod tensor;
pub mod tools;

use super::table::{Column, cut_table, wrapped_table};
use super::words::billions;
use Column::{Left, Right};
use serde::Serialize;
use trainwright_spec::catalog;
use trainwright_spec::cluster::{Cluster, Gpu, Node};
use trainwright_spec::error::SpecError;
use trainwright_spec::model::preset::{preset, presets};
use trainwright_spec::model::{Mlp, Model};
use trainwright_spec::precision::Precision;
use trainwright_spec::stack::Stack;
use trainwright_spec::toml_text::TomlText;
use trainwright_spec::units::Bytes;

/// Every preset.
///
/// # Errors
/// Those of the catalog's files, which its tests exclude.
pub fn models() -> Result<String, SpecError> {
    let columns = [
        Left("model"),
        Right("parameters"),
        Right("blocks"),
        Right("hidden"),
        Right("heads"),
        Right("kv"),
        Right("ffn"),
        Right("vocab"),
        Left("source"),
    ];
    list(&columns, presets().map(|(name, file)| Ok(model_row(name, &preset(name)?, file.source))))
}

fn model_row(name: &str, model: &Model, source: String) -> Vec<String> {
    // Of the run with most blocks: DeepSeek's first few are dense.
    let block = model.blocks.iter().max_by_key(|run| run.count).map(|run| &run.block);
    let of_block =
        |value: &dyn Fn(&trainwright_spec::model::Block) -> String| block.map_or_else(|| "-".into(), value);
    vec![
        name.into(),
        billions(model.parameters()),
        model.layers().to_string(),
        model.hidden.to_string(),
        of_block(&|block| block.attention.heads.to_string()),
        of_block(&|block| block.attention.kv_heads.to_string()),
        of_block(&|block| match &block.mlp {
            Mlp::Dense(mlp) => mlp.width.to_string(),
            Mlp::Experts(experts) => format!("{}×{}", experts.count, experts.expert.width),
        }),
        model.vocab.to_string(),
        source,
    ]
}

/// Every GPU.
///
/// # Errors
/// Those of the catalog's files, which its tests exclude.
pub fn gpus() -> Result<String, SpecError> {
    let columns = [
        Left("GPU"),
        Right("GiB"),
        Right("GB/s"),
        Right("fp32"),
        Right("tf32"),
        Right("fp16"),
        Right("bf16"),
        Right("fp8"),
        Right("fp8-block"),
        Right("mxfp8"),
        Right("nvfp4"),
        Right("int8"),
        Left("source"),
    ];
    let rows = catalog::names("gpus").into_iter().map(|name| {
        let gpu = gpu(name)?;
        let mut row = vec![
            name.to_string(),
            format!("{:.1}", gpu.memory.value / Bytes::GIB),
            format!("{:.0}", gpu.memory_bandwidth.value.get() / 1e9),
        ];
        row.extend(Precision::ALL.map(|precision| match gpu.peak.get(&precision) {
            Some(peak) => format!("{:.0}", peak.value.get() / 1e12),
            None => "-".into(),
        }));
        row.push(gpu.memory.source);
        Ok(row)
    });
    Ok(list(&columns, rows)? + "fp32 to int8: published dense peak in TFLOP/s; GB/s: of the memory\n")
}

fn gpu(name: &str) -> Result<Gpu, SpecError> {
    Gpu::read(catalog::text("gpu", name)?)
        .map_err(|error| SpecError::Syntax { origin: name.into(), message: error.message().into() })
}

/// Every node.
///
/// # Errors
/// Those of the catalog's files, which its tests exclude.
pub fn nodes() -> Result<String, SpecError> {
    let columns = [
        Left("node"),
        Right("GPUs"),
        Left("GPU"),
        Left("interconnect"),
        Right("GB/s"),
        Left("NICs"),
        Right("GB/s"),
        Left("source"),
    ];
    let rows = catalog::names("nodes").into_iter().map(|name| {
        let node = Node::from_name(name)?;
        let (nics, nic) = nics(&node);
        Ok(vec![
            name.to_string(),
            node.gpus.value.to_string(),
            node.gpu.name,
            node.interconnect.kind,
            format!("{:.0}", node.interconnect.bandwidth.value.get() / 1e9),
            nics,
            nic,
            node.gpus.source,
        ])
    });
    Ok(list(&columns, rows)?
        + "GB/s: published, in one direction, of one GPU on the interconnect and of one NIC\n")
}

fn nics(node: &Node) -> (String, String) {
    match &node.nics {
        Some(nics) => (
            format!("{} {}", nics.count.value, nics.kind),
            format!("{:.1}", nics.bandwidth.value.get() / 1e9),
        ),
        None => ("-".into(), "-".into()),
    }
}

/// Every cluster.
///
/// # Errors
/// Those of the catalog's files, which its tests exclude.
pub fn clusters() -> Result<String, SpecError> {
    let columns = [
        Left("cluster"),
        Right("nodes"),
        Right("GPUs"),
        Left("GPU"),
        Left("node"),
        Left("fabric"),
        Right("oversubscription"),
        Left("source"),
    ];
    let rows = catalog::names("clusters").into_iter().map(|name| {
        let cluster = Cluster::from_name(name)?;
        let (oversubscription, source) = match cluster.fabric.tapers().pop() {
            Some(taper) => (taper.oversubscription.value.to_string(), taper.oversubscription.source),
            None => ("-".into(), String::new()),
        };
        Ok(vec![
            name.to_string(),
            cluster.nodes.to_string(),
            cluster.gpus().to_string(),
            cluster.node.gpu.name,
            cluster.node.name,
            cluster.fabric.kind().to_string(),
            oversubscription,
            source,
        ])
    });
    Ok(list(&columns, rows)? + "any node of `trainwright show nodes` makes a cluster too: dgx-h100:16\n")
}

/// Every stack.
///
/// # Errors
/// Those of the catalog's files, which its tests exclude.
pub fn stacks() -> Result<String, SpecError> {
    let rows = catalog::names("stacks").into_iter().map(|name| {
        let stack = Stack::from_name(name)?;
        Ok(vec![name.to_string(), stack.summary, stack.source])
    });
    Ok(wrapped_table(&[Left("stack"), Left("summary"), Left("source")], rows.collect::<Result<_, _>>()?))
}

fn list(
    columns: &[Column],
    rows: impl Iterator<Item = Result<Vec<String>, SpecError>>,
) -> Result<String, SpecError> {
    Ok(cut_table(columns, rows.collect::<Result<_, _>>()?))
}

fn print(entry: &impl Serialize) -> String {
    toml::to_string(entry).expect("entries have only tables, text and numbers")
}
