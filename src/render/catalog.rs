//! Tables of the catalog's files, and entries as TOML. Every error is one of the catalog's files, which its tests exclude, or
//! `UnknownName` with the nearest names.

pub mod network;
pub mod registries;

use super::table::Table;
use super::words::{billions, dash};
use serde_json::Value;
use trainwright_spec::catalog;
use trainwright_spec::cluster::{Cluster, Fabric, Gpu, Nics, Node};
use trainwright_spec::error::SpecError;
use trainwright_spec::model::preset::{preset, presets};
use trainwright_spec::model::{Block, Mlp, Model};
use trainwright_spec::precision::Precision;
use trainwright_spec::reliability::Reliability;
use trainwright_spec::rl::{Controller, SyncMethod};
use trainwright_spec::serving::Engine;
use trainwright_spec::stack::Stack;
use trainwright_spec::toml_text::TomlText;
use trainwright_spec::units::{BytesPerSecond, Seconds};

/// The text that `show` prints.
pub type Shown = Result<String, SpecError>;

/// Every preset.
pub fn models() -> Shown {
    let models = presets().map(|(name, file)| Ok((name, preset(name)?, file.source)));
    let models: Vec<(&str, Model, String)> = models.collect::<Result<_, SpecError>>()?;
    // Of the run with most blocks: DeepSeek's first few are dense.
    let cell = |model: &Model, cell: fn(&Block) -> String| {
        let longest = model.blocks.iter().max_by_key(|run| run.count);
        longest.map_or_else(dash, |run| cell(&run.block))
    };
    let ffn = |block: &Block| match &block.mlp {
        Mlp::Dense(mlp) => mlp.width.to_string(),
        Mlp::Experts(experts) => format!("{}×{}", experts.count, experts.expert.width),
    };
    Ok(Table::of(&models)
        .left("model", |(name, ..)| name)
        .right("parameters", |(_, model, _)| billions(model.parameters()))
        .right("blocks", |(_, model, _)| model.layers())
        .right("hidden", |(_, model, _)| model.hidden)
        .right("heads", |(_, model, _)| cell(model, |block| block.attention.heads.to_string()))
        .right("kv", |(_, model, _)| cell(model, |block| block.attention.kv_heads.to_string()))
        .right("ffn", |(_, model, _)| cell(model, ffn))
        .right("vocab", |(_, model, _)| model.vocab)
        .left("source", |(_, _, source)| source)
        .cut())
}

/// Every GPU.
pub fn gpus() -> Shown {
    let gpus = read("gpus", |name| {
        Gpu::read(catalog::text("gpu", name)?)
            .map_err(|error| SpecError::Syntax { origin: name.into(), message: error.message().into() })
    })?;
    let mut table = Table::of(&gpus)
        .left("GPU", |(name, _)| name)
        .right("GiB", |(_, gpu)| format!("{:.1}", gpu.memory.value.as_gib()))
        .right("GB/s", |(_, gpu)| format!("{:.0}", gpu.memory_bandwidth.value.get() / 1e9));
    for precision in Precision::ALL {
        table = table.right(precision.name(), |(_, gpu)| {
            gpu.peak.get(&precision).map_or_else(dash, |peak| format!("{:.0}", peak.value.get() / 1e12))
        });
    }
    Ok(table.left("source", |(_, gpu)| &gpu.memory.source).cut()
        + "fp32 to int8: published dense peak in TFLOP/s; GB/s: of the memory\n")
}

/// Every node.
pub fn nodes() -> Shown {
    let nodes = read("nodes", Node::from_name)?;
    let nics = |node: &Node, cell: fn(&Nics) -> String| node.nics.as_ref().map_or_else(dash, cell);
    Ok(Table::of(&nodes)
        .left("node", |(name, _)| name)
        .right("GPUs", |(_, node)| node.gpus.value)
        .left("GPU", |(_, node)| &node.gpu.name)
        .left("interconnect", |(_, node)| &node.interconnect.kind)
        .right("GB/s", |(_, node)| format!("{:.0}", node.interconnect.bandwidth.value.get() / 1e9))
        .left("NICs", |(_, node)| nics(node, |nics| format!("{} {}", nics.count.value, nics.kind)))
        .right("GB/s", |(_, node)| nics(node, |nics| gigabytes(nics.bandwidth.value)))
        .left("source", |(_, node)| &node.gpus.source)
        .cut()
        + "GB/s: published, in one direction, of one GPU on the interconnect and of one NIC\n")
}

/// Every cluster.
pub fn clusters() -> Shown {
    let clusters = read("clusters", Cluster::from_name)?;
    let last_taper = |fabric: &Fabric| fabric.tapers().pop().map(|taper| taper.oversubscription);
    Ok(Table::of(&clusters)
        .left("cluster", |(name, _)| name)
        .right("nodes", |(_, cluster)| cluster.nodes)
        .right("GPUs", |(_, cluster)| cluster.gpus())
        .left("GPU", |(_, cluster)| &cluster.node.gpu.name)
        .left("node", |(_, cluster)| &cluster.node.name)
        .left("fabric", |(_, cluster)| cluster.fabric.kind())
        .right("oversubscription", |(_, cluster)| {
            last_taper(&cluster.fabric).map_or_else(dash, |factor| factor.value.to_string())
        })
        .left("source", |(_, cluster)| {
            last_taper(&cluster.fabric).map_or_else(String::new, |factor| factor.source)
        })
        .cut()
        + "any node of `trainwright show nodes` makes a cluster too: dgx-h100:16\n")
}

/// Every stack.
pub fn stacks() -> Shown {
    Ok(Table::of(&read("stacks", Stack::from_name)?)
        .left("stack", |(name, _)| name)
        .left("summary", |(_, stack)| &stack.summary)
        .left("source", |(_, stack)| &stack.source)
        .wrapped())
}

/// Every inference engine.
pub fn engines() -> Shown {
    Ok(Table::of(&read("engines", Engine::from_name)?)
        .left("engine", |(name, _)| name)
        .left("kernels of", |(_, engine)| &engine.library)
        .left("batching", |(_, engine)| &engine.batching.policy)
        .right("sequences", |(_, engine)| engine.batching.max_sequences.value)
        .right("tokens/step", |(_, engine)| engine.batching.max_tokens.value)
        .wrapped())
}

/// Every controller of a reinforcement-learning loop.
pub fn controllers() -> Shown {
    Ok(Table::of(&read("controllers", Controller::from_name)?)
        .left("controller", |(name, _)| name)
        .left("weights to the engine by", |(_, controller)| {
            controller.sync.map_or("broadcast", SyncMethod::name)
        })
        .wrapped())
}

/// How often GPUs and nodes were seen to fail.
pub fn reliabilities() -> Shown {
    let days = |time: Seconds| format!("{:.0} d", time.as_days());
    Ok(Table::of(&read("reliabilities", Reliability::from_name)?)
        .left("reliability", |(name, _)| name)
        .right("of a GPU", |(_, failing)| {
            failing.gpu_failures.as_ref().map_or("with its node".into(), |between| days(between.value))
        })
        .right("of a node", |(_, failing)| days(failing.node_failures.value))
        .left("summary", |(_, failing)| &failing.summary)
        .wrapped())
}

/// The entries of a folder of the catalog, with their names.
fn read<E>(
    folder: &str,
    read: impl Fn(&str) -> Result<E, SpecError>,
) -> Result<Vec<(&'static str, E)>, SpecError> {
    catalog::names(folder).into_iter().map(|name| Ok((name, read(name)?))).collect()
}

fn gigabytes(bandwidth: BytesPerSecond) -> String {
    format!("{:.1}", bandwidth.get() / 1e9)
}

/// An entry as TOML, in the order of its keys; keys without a value are left out.
fn print(mut entry: Value) -> String {
    if let Value::Object(keys) = &mut entry {
        keys.retain(|_, value| !value.is_null());
    }
    toml::to_string(&entry).expect("entries have only tables, text and numbers")
}
