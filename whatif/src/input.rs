//! The inputs of a sweep: names for the common ones, and a path for every other one.
//!
//! ```text
//! nodes=8,16,..2048      nic-bandwidth=x1,x2      gpu=h100-80gb-sxm,h200-sxm
//! cluster.node.nics.count=4,8                     offload.optimizer=host   (with a plan)
//! ```

mod model_size;
mod path;
mod values;

pub use model_size::scaled;
pub use values::values;

use crate::price::Price;
use crate::scenario::{Base, Scenario};
pub(crate) use path::words;

use path::Change;
use std::str::FromStr;
use trainwright_spec::catalog;
use trainwright_spec::cluster::{Cluster, Gpu, Shape, Wiring};
use trainwright_spec::model::preset::preset;
use trainwright_spec::precision::Precision;
use trainwright_spec::stack::Stack;
use trainwright_spec::toml_text::TomlText;
use trainwright_spec::units::DollarsPerHour;

/// An input with a name.
pub struct Input {
    /// As it stands after `--vary`.
    pub name: &'static str,
    /// Its meaning, and the form of its values.
    pub summary: &'static str,
    how: How,
}

/// How an input is set.
enum How {
    /// A key of the question or the plan.
    Path(&'static str),
    /// By a function.
    With(fn(&mut Scenario, &str) -> Result<(), String>),
}

use How::{Path, With};

/// Every input with a name, in the order of `--help`.
pub const INPUTS: &[Input] = &[
    Input { name: "gpus", summary: "GPUs in all: whole nodes, or a part of one", how: With(gpus) },
    Input { name: "nodes", summary: "nodes", how: Path("cluster.nodes") },
    Input { name: "cluster", summary: "clusters as after --cluster", how: With(cluster) },
    Input { name: "node", summary: "nodes of the catalog, with as many GPUs in all", how: With(node) },
    Input { name: "gpu", summary: "GPUs of the catalog, in the same nodes", how: With(gpu) },
    Input { name: "memory", summary: "memory of a GPU: 80GiB, x2", how: Path("cluster.node.gpu.memory") },
    Input {
        name: "memory-bandwidth",
        summary: "its bandwidth: x1.5",
        how: Path("cluster.node.gpu.memory_bandwidth"),
    },
    Input { name: "peak", summary: "peak of all precisions: x2", how: With(peak) },
    Input {
        name: "nic-bandwidth",
        summary: "bandwidth of a NIC: 50GB/s, x2",
        how: Path("cluster.node.nics.bandwidth"),
    },
    Input { name: "nics", summary: "NICs of a node", how: Path("cluster.node.nics.count") },
    Input { name: "nic-latency", summary: "x0.5, 5us", how: Path("cluster.node.nics.latency") },
    Input {
        name: "interconnect-bandwidth",
        summary: "of a GPU's links inside the node: x2",
        how: Path("cluster.node.interconnect.bandwidth"),
    },
    Input {
        name: "oversubscription",
        summary: "of the outermost level of the fabric",
        how: With(oversubscription),
    },
    Input { name: "seq", summary: "tokens in a sequence", how: Path("job.sequence") },
    Input { name: "global-batch", summary: "sequences in a step", how: Path("job.global_batch") },
    Input { name: "precision", summary: "number format of the matrix products", how: With(precision) },
    Input { name: "optimizer", summary: "as after --optimizer", how: Path("job.optimizer") },
    Input { name: "stack", summary: "software, as after --stack", how: With(stack) },
    Input { name: "model", summary: "presets", how: With(model) },
    Input {
        name: "model-size",
        summary: "parameters, in the shape of the model: 30B, x2",
        how: With(model_size::set),
    },
    Input { name: "layers", summary: "blocks of the model, all alike", how: With(layers) },
    Input {
        name: "tensor",
        summary: "a choice made for the planner, as after --tensor; so are:",
        how: With(tensor),
    },
    Input { name: "pipeline", summary: "", how: With(pipeline) },
    Input { name: "data", summary: "", how: With(data) },
    Input { name: "virtual-stages", summary: "", how: With(virtual_stages) },
    Input { name: "micro-batch", summary: "", how: With(micro_batch) },
    Input { name: "schedule", summary: "", how: With(schedule) },
    Input { name: "sequence-parallel", summary: "", how: With(sequence_parallel) },
    Input { name: "data-sharding", summary: "", how: With(data_sharding) },
    Input { name: "recompute", summary: "", how: With(recompute) },
    Input { name: "price", summary: "US dollars for a GPU and hour", how: With(price) },
    Input { name: "pue", summary: "power usage effectiveness", how: With(pue) },
    Input { name: "tokens", summary: "tokens of the run: 15T", how: With(tokens) },
];

/// Sets the input `name` to `value`: one of `INPUTS`, or the path of a key of the question or the plan.
///
/// # Errors
/// The fault of the name or the value, or why the scenario cannot have it.
pub fn set(scenario: &mut Scenario, name: &str, value: &str) -> Result<(), String> {
    match INPUTS.iter().find(|input| input.name == name) {
        Some(Input { how: Path(path), .. }) => path::set(scenario, path, &Change::parse(value)?),
        Some(Input { how: With(set), .. }) => set(scenario, value),
        None if name.contains('.') || matches!(scenario.base, Base::Plan(_)) => {
            path::set(scenario, name, &Change::parse(value)?)
        }
        None => Err(unknown(name)),
    }?;
    match scenario.job().sequence.min(scenario.job().global_batch) {
        0 => Err(format!("`{name}` is {value}; it should be 1 or more")),
        _ => Ok(()),
    }
}

fn unknown(name: &str) -> String {
    let names = INPUTS.iter().map(|input| input.name);
    let nearest = match catalog::nearest(name, names.clone()).as_slice() {
        [] => names.collect::<Vec<_>>().join(", "),
        close => close.join(", "),
    };
    format!(
        "no input is called `{name}` (nearest: {nearest}); any key has a path, such as cluster.node.nics.count"
    )
}

/// A count as people write it: `512`, `15T`, `70B`, `1.5e12`.
///
/// # Errors
/// Text that is no number above zero.
pub fn amount(text: &str) -> Result<f64, String> {
    let scales = [('K', 1e3), ('M', 1e6), ('B', 1e9), ('G', 1e9), ('T', 1e12)];
    let upper = text.trim().to_uppercase();
    let (digits, scale) = match scales.iter().find(|(letter, _)| upper.ends_with(*letter)) {
        Some((_, scale)) => (&upper[..upper.len() - 1], *scale),
        None => (upper.as_str(), 1.0),
    };
    let number = digits.parse::<f64>().ok().map(|number| number * scale);
    number
        .filter(|number| number.is_finite() && *number > 0.0)
        .ok_or_else(|| format!("`{text}` is not a number above zero, such as 512, 15T or 1.5e12"))
}

fn positive(text: &str) -> Result<usize, String> {
    text.parse()
        .ok()
        .filter(|number| *number > 0)
        .ok_or_else(|| format!("`{text}` is not a whole number above zero"))
}

fn gpus(scenario: &mut Scenario, value: &str) -> Result<(), String> {
    let gpus = positive(value)?;
    let cluster = scenario.cluster();
    let of_node = cluster.node.gpus.value;
    if gpus.is_multiple_of(of_node) {
        return path::set(scenario, "cluster.nodes", &Change::parse(&(gpus / of_node).to_string())?);
    }
    match gpus < of_node {
        true => {
            path::set(scenario, "cluster.nodes", &Change::parse("1")?)?;
            // Links to GPUs that are left out.
            if let Wiring::Pairs(pairs) = &mut scenario.cluster_mut().node.interconnect.wiring {
                pairs.links.retain(|[one, other, _]| *one.max(other) < gpus);
            }
            path::set(scenario, "cluster.node.gpus", &Change::parse(value)?)
        }
        false => Err(format!("{gpus} GPUs are no whole number of nodes of {of_node}")),
    }
}

fn cluster(scenario: &mut Scenario, value: &str) -> Result<(), String> {
    *scenario.cluster_mut() = Cluster::reference(value).map_err(|error| error.to_string())?;
    Ok(())
}

fn node(scenario: &mut Scenario, value: &str) -> Result<(), String> {
    let gpus = scenario.cluster().gpus();
    let other = Cluster::reference(value).map_err(|error| error.to_string())?;
    let of_node = other.node.gpus.value;
    if !gpus.is_multiple_of(of_node) {
        return Err(format!("{gpus} GPUs are no whole number of {value}, which has {of_node}"));
    }
    let nodes = gpus / of_node;
    *scenario.cluster_mut() = Cluster { nodes, name: format!("{value}:{nodes}"), ..other };
    Ok(())
}

fn gpu(scenario: &mut Scenario, value: &str) -> Result<(), String> {
    let text = catalog::text("gpu", value).map_err(|error| error.to_string())?;
    let gpu = Gpu::read(text).map_err(|error| error.message().to_string())?;
    scenario.cluster_mut().node.gpu = gpu;
    path::check_cluster(scenario)
}

/// Multiplies the peaks; the kernels' efficiencies and overheads stay.
fn peak(scenario: &mut Scenario, value: &str) -> Result<(), String> {
    let Change::Times(factor) = Change::parse(value)? else {
        return Err(format!("`{value}` is not a factor such as x2: each precision has a separate peak"));
    };
    for peak in scenario.cluster_mut().node.gpu.peak.values_mut() {
        peak.value = factor * peak.value;
        peak.source = format!("varied: x{factor}");
    }
    path::check_cluster(scenario)
}

fn oversubscription(scenario: &mut Scenario, value: &str) -> Result<(), String> {
    let path = match &scenario.cluster().fabric.shape {
        Shape::FatTree(tree) => {
            format!("cluster.fabric.fat_tree.levels.{}.oversubscription", tree.levels.len().saturating_sub(1))
        }
        Shape::RailOptimised(_) => "cluster.fabric.rail_optimised.oversubscription".into(),
        Shape::Dragonfly(_) => "cluster.fabric.dragonfly.global_oversubscription".into(),
        Shape::Torus(_) | Shape::Links(_) => {
            return Err(format!("a {} has no oversubscription", scenario.cluster().fabric.kind()));
        }
    };
    path::set(scenario, &path, &Change::parse(value)?)
}

fn precision(scenario: &mut Scenario, value: &str) -> Result<(), String> {
    let gpu = &scenario.cluster().node.gpu;
    let known = gpu.peak.keys().map(|precision| precision.name());
    match Precision::ALL.iter().find(|precision| precision.name() == value) {
        Some(precision) if gpu.peak.contains_key(precision) => {
            path::set(scenario, "job.precision", &Change::parse(value)?)
        }
        _ => Err(format!(
            "{} computes in {}, not in `{value}`",
            gpu.name,
            known.collect::<Vec<_>>().join(", ")
        )),
    }
}

fn stack(scenario: &mut Scenario, value: &str) -> Result<(), String> {
    let stack = Stack::from_name(value).map_err(|error| error.to_string())?;
    match &mut scenario.base {
        Base::Question(question) => question.stack = stack,
        Base::Plan(plan) => plan.stack = stack,
    }
    Ok(())
}

fn model(scenario: &mut Scenario, value: &str) -> Result<(), String> {
    *scenario.model_mut() = preset(value).map_err(|error| error.to_string())?;
    Ok(())
}

fn layers(scenario: &mut Scenario, value: &str) -> Result<(), String> {
    let count = positive(value)?;
    let model = scenario.model_mut();
    let [run] = model.blocks.as_mut_slice() else {
        let runs = model.blocks.len();
        return Err(format!("the blocks of {} are of {runs} kinds: give model.blocks.0.count", model.name));
    };
    run.count = count;
    model.name = format!("{} with {count} layers", model.name);
    Ok(())
}

/// A choice for the planner; a plan has made it already, under the name `in_plan`.
fn pin(
    scenario: &mut Scenario,
    in_plan: &str,
    set: impl FnOnce(&mut trainwright_planner::Pins) -> Result<(), String>,
) -> Result<(), String> {
    match &mut scenario.base {
        Base::Question(question) => set(&mut question.pins),
        Base::Plan(_) => Err(format!("a plan's key for it is `{in_plan}`")),
    }
}

macro_rules! pinned {
    ($($name:ident, $in_plan:literal, $read:expr;)*) => {
        $(fn $name(scenario: &mut Scenario, value: &str) -> Result<(), String> {
            let read: fn(&str) -> Result<_, String> = $read;
            pin(scenario, $in_plan, |pins| {
                pins.$name = Some(read(value)?);
                Ok(())
            })
        })*
    };
}

pinned! {
    tensor, "mesh.tensor", positive;
    pipeline, "mesh.pipeline", positive;
    data, "mesh.data", positive;
    virtual_stages, "virtual_stages", positive;
    micro_batch, "micro_batch", positive;
    schedule, "schedule", |text| {
        trainwright_spec::schedule::schedule(text).map(|known| known.name().to_string()).map_err(|e| e.to_string())
    };
    sequence_parallel, "sequence_parallel", |text| {
        text.parse().map_err(|_| format!("`{text}` is neither true nor false"))
    };
    data_sharding, "data_sharding", |text| {
        trainwright_spec::data::data_scheme(text).map(|known| known.name().to_string()).map_err(|e| e.to_string())
    };
    recompute, "stages", |text| FromStr::from_str(text).map_err(|error| format!("`{text}`: {error}"));
}

fn price(scenario: &mut Scenario, value: &str) -> Result<(), String> {
    let per_gpu = DollarsPerHour::new(amount(value)?);
    scenario.rates.price = Some(Price { per_gpu, source: "as given".into() });
    Ok(())
}

fn pue(scenario: &mut Scenario, value: &str) -> Result<(), String> {
    let pue = amount(value)?;
    if pue < 1.0 {
        return Err(format!("`{value}` is below 1: a facility draws at least what its GPUs draw"));
    }
    scenario.rates.pue = pue;
    Ok(())
}

fn tokens(scenario: &mut Scenario, value: &str) -> Result<(), String> {
    scenario.rates.tokens = Some(amount(value)?);
    Ok(())
}

#[cfg(test)]
mod tests;
