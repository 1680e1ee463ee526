//! What the catalog and the registries have, as tables, and single entries of the registries as TOML.

pub mod network;

use super::table::{Column, cut_table, wrapped_table};
use super::words::billions;
use Column::{Left, Right};
use serde::Serialize;
use trainwright_planner::pin_choices;
use trainwright_spec::catalog;
use trainwright_spec::cluster::{Cluster, Gpu, Node};
use trainwright_spec::context::{CONTEXT_SCHEMES, ContextScheme, SharedAttention, Step};
use trainwright_spec::data::{DATA_SCHEMES, DataScheme, Divided, Reduction, Reshard};
use trainwright_spec::error::SpecError;
use trainwright_spec::experts::{DISPATCHERS, Dispatcher, Move, Visits};
use trainwright_spec::mesh::Mesh;
use trainwright_spec::model::preset::{preset, presets};
use trainwright_spec::model::{Mask, Mlp, Model};
use trainwright_spec::optimizer::{OPTIMIZERS, Optimizer, state_bytes};
use trainwright_spec::precision::Precision;
use trainwright_spec::schedule::{PipelineShape, SCHEDULES, Schedule, text};
use trainwright_spec::stack::{AttentionKernel, Stack};
use trainwright_spec::tensor::{
    Between, Input, Linear, Output, Overlap, Role, TENSOR_SCHEMES, TensorGrid, TensorScheme,
};
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
    toml::from_str(catalog::text("gpu", name)?)
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

/// Every schedule.
pub fn schedules() -> String {
    let rows = SCHEDULES.iter();
    let rows =
        rows.map(|schedule| [schedule.name(), schedule.bubble(), schedule.summary(), schedule.source()]);
    let rows = rows.map(|row| row.map(str::to_string).into()).collect();
    let columns = [Left("schedule"), Left("bubble over work"), Left("summary"), Left("source")];
    wrapped_table(&columns, rows)
        + "p pipeline ranks, v stages on each, m microbatches; F, I, W: time of forward, gradient of the input, of the \
           weights\n"
}

/// Every context scheme.
pub fn context_schemes() -> String {
    let rows = CONTEXT_SCHEMES.iter();
    let rows = rows.map(|scheme| [scheme.name(), scheme.summary(), scheme.formula(), scheme.source()]);
    let rows = rows.map(|row| row.map(str::to_string).into()).collect();
    let columns = [Left("scheme"), Left("summary"), Left("each rank sends"), Left("source")];
    wrapped_table(&columns, rows)
        + "elements for each layer and microbatch: c context ranks, u of them inner ones, r = c/u; b sequences of s tokens;\n\
           h, k, v: widths of all query, key, value heads of a tensor rank\n"
}

/// Every data-parallel scheme.
pub fn data_schemes() -> String {
    let rows = DATA_SCHEMES.iter().map(|scheme| {
        let divided = divided(*scheme).into();
        vec![scheme.name().to_string(), divided, scheme.summary().to_string(), scheme.source().to_string()]
    });
    let columns = [Left("scheme"), Left("divided"), Left("summary"), Left("source")];
    wrapped_table(&columns, rows.collect())
        + "divided: what each rank holds only a part of; O optimizer state, G gradients, W weights\n"
}

fn divided(scheme: &dyn DataScheme) -> &'static str {
    match scheme.divides() {
        Divided::Nothing => "-",
        Divided::Optimizer => "O",
        Divided::Gradients => "OG",
        Divided::Weights => "OGW",
    }
}

/// A data-parallel scheme with what it divides.
pub fn data_scheme_entry(scheme: &dyn DataScheme) -> String {
    print(&DataSchemeEntry {
        name: scheme.name(),
        summary: scheme.summary(),
        source: scheme.source(),
        divided: divided(scheme),
        reduces: scheme.reduction(),
        reshards: (scheme.divides() == Divided::Weights).then(|| scheme.reshard()),
    })
}

#[derive(Serialize)]
struct DataSchemeEntry {
    name: &'static str,
    summary: &'static str,
    source: &'static str,
    divided: &'static str,
    reduces: Reduction,
    #[serde(skip_serializing_if = "Option::is_none")]
    reshards: Option<Reshard>,
}

/// Every tensor scheme.
pub fn tensor_schemes() -> String {
    let rows = TENSOR_SCHEMES.iter();
    let rows = rows.map(|scheme| [scheme.name(), scheme.summary(), scheme.source()]);
    let rows = rows.map(|row| row.map(str::to_string).into()).collect();
    wrapped_table(&[Left("scheme"), Left("summary"), Left("source")], rows)
}

/// Every choice that a plan makes.
pub fn choices() -> String {
    let rows = pin_choices().into_iter();
    let rows = rows.map(|choice| vec![choice.key.to_string(), choice.summary.to_string(), choice.values]);
    wrapped_table(&[Left("key"), Left("what it is"), Left("values")], rows.collect())
}

/// A choice as TOML.
///
/// # Errors
/// `UnknownName` with the nearest keys.
pub fn choice_entry(key: &str) -> Result<String, SpecError> {
    let known = pin_choices();
    let nearest = catalog::nearest(key, known.iter().map(|choice| choice.key));
    let found = known.into_iter().find(|choice| choice.key == key);
    found.map(|choice| print(&choice)).ok_or_else(|| SpecError::UnknownName {
        kind: "choice",
        name: key.into(),
        nearest,
    })
}

/// Every optimizer.
pub fn optimizers() -> String {
    let rows = OPTIMIZERS.iter().map(|optimizer| {
        let bytes = |precision| state_bytes(*optimizer, precision).get().to_string();
        vec![
            optimizer.name().to_string(),
            bytes(Precision::Bf16),
            bytes(Precision::Fp32),
            optimizer.summary().to_string(),
            optimizer.source().to_string(),
        ]
    });
    let columns = [Left("optimizer"), Right("bf16"), Right("fp32"), Left("summary"), Left("source")];
    wrapped_table(&columns, rows.collect())
        + "bf16, fp32: bytes of state per parameter, fp32 master weights included\n"
}

/// Every dispatcher.
pub fn dispatchers() -> String {
    let rows = DISPATCHERS.iter();
    let rows = rows.map(|dispatcher| [dispatcher.name(), dispatcher.summary(), dispatcher.source()]);
    let rows = rows.map(|row| row.map(str::to_string).into()).collect();
    wrapped_table(&[Left("dispatcher"), Left("summary"), Left("source")], rows)
        + "T tokens of a rank, each to k experts; h hidden width, e bytes of an element, E expert ranks\n"
}

/// A dispatcher with its moves for DeepSeek-V3's experts.
pub fn dispatcher_entry(dispatcher: &dyn Dispatcher) -> String {
    let (own, per_token, expert, inner) = (4096, 8, 64, 8);
    let visits = Visits {
        token: Bytes::new(2.0 * 7168.0),
        own,
        sent: own * per_token,
        rows: own * per_token,
        node_rows: 4.0 * own as f64,
        expert,
        inner,
        expert_tensor: 1,
    };
    let exchange = |each: Move| match each {
        Move::Exchange { kind, axis, bytes } => {
            Some(DispatcherExchange { collective: kind.name(), axis: axis.name(), bytes: bytes.get() })
        }
        Move::Copy { .. } | Move::Sort(_) => None,
    };
    print(&DispatcherEntry {
        name: dispatcher.name(),
        summary: dispatcher.summary(),
        source: dispatcher.source(),
        example: DispatcherExample {
            tokens: own,
            per_token,
            nodes_per_token: 4,
            hidden: 7168,
            expert,
            expert_inner: inner,
            exchanges: dispatcher.moves(&visits).into_iter().filter_map(exchange).collect(),
        },
    })
}

/// A schedule with its actions on a small pipeline.
pub fn schedule_entry(schedule: &dyn Schedule) -> String {
    let shapes = [1, 2].map(|virtual_stages| PipelineShape { ranks: 4, virtual_stages, microbatches: 8 });
    let shape = shapes.into_iter().find(|shape| schedule.check(*shape).is_ok());
    let example = shape.map(|shape| Example {
        ranks: shape.ranks,
        virtual_stages: shape.virtual_stages,
        microbatches: shape.microbatches,
        bubble_over_work: schedule.bubble_over_work(shape),
        actions: text::lines(&schedule.lists(shape)),
    });
    print(&ScheduleEntry {
        name: schedule.name(),
        summary: schedule.summary(),
        bubble: schedule.bubble(),
        source: schedule.source(),
        example,
    })
}

/// A tensor scheme with what the four products of a GPT block move on the least of its grids.
pub fn tensor_scheme_entry(scheme: &dyn TensorScheme) -> String {
    let grids =
        [(4, 1), (4, 2), (8, 2)].map(|(tensor, rows)| Mesh { tensor_rows: rows, ..Mesh::new(tensor, 1, 1) });
    let (tokens, hidden) = (8192, 4096);
    let example = grids.into_iter().find(|mesh| scheme.check(mesh).is_ok()).map(|mesh| {
        let Mesh { tensor, tensor_rows, .. } = mesh;
        let grid = TensorGrid::of(&mesh, Between::Whole, Overlap::Waited);
        let column = |outer| Linear { tokens, inner: hidden, outer, role: Role::Column(Input::Region) };
        let row = |inner| Linear { tokens, inner, outer: hidden, role: Role::Row(Output::Leaves) };
        let layers = [column(3 * hidden), row(hidden), column(4 * hidden), row(4 * hidden)];
        let volumes = layers.map(|layer| scheme.volume(&grid, &layer));
        GridExample {
            tensor,
            tensor_rows,
            tokens,
            hidden,
            forward_elements_received: volumes.iter().map(|volume| volume.forward).sum(),
            backward_elements_received: volumes.iter().map(|volume| volume.backward).sum(),
        }
    });
    print(&TensorSchemeEntry {
        name: scheme.name(),
        summary: scheme.summary(),
        source: scheme.source(),
        gpt_block: example,
    })
}

/// A context scheme with the steps of a small layer.
pub fn context_scheme_entry(scheme: &dyn ContextScheme) -> String {
    let layer = |inner| SharedAttention {
        batch: 1,
        sequence: 4096,
        heads: 16,
        kv_heads: 4,
        head_dim: 128,
        value_head_dim: 128,
        mask: Mask::Causal,
        ranks: 4,
        inner,
    };
    let allowed = |layer: &SharedAttention| scheme.check(layer, AttentionKernel::Flash).is_ok();
    let layer = [layer(2), layer(1)].into_iter().find(allowed);
    let example = layer.map(|layer| {
        let steps = |steps: Vec<Step>| steps.iter().map(|step| format!("{step}\n")).collect();
        let volume = scheme.volume(&layer);
        ContextExample {
            sequence: layer.sequence,
            heads: layer.heads,
            kv_heads: layer.kv_heads,
            head_dim: layer.head_dim,
            context: layer.ranks,
            context_inner: layer.inner,
            sent_forward: volume.forward,
            sent_backward: volume.backward,
            forward: steps(scheme.forward(&layer)),
            backward: steps(scheme.backward(&layer)),
        }
    });
    print(&ContextEntry {
        name: scheme.name(),
        summary: scheme.summary(),
        source: scheme.source(),
        formula: scheme.formula(),
        example,
    })
}

/// An optimizer with its bytes.
pub fn optimizer_entry(optimizer: &dyn Optimizer) -> String {
    print(&OptimizerEntry {
        name: optimizer.name(),
        summary: optimizer.summary(),
        source: optimizer.source(),
        moment_bytes: optimizer.moment_bytes().get(),
        extra_traffic_bytes: optimizer.extra_traffic().get(),
    })
}

#[derive(Serialize)]
struct ScheduleEntry<'a> {
    name: &'a str,
    summary: &'a str,
    bubble: &'a str,
    source: &'a str,
    example: Option<Example>,
}

#[derive(Serialize)]
struct Example {
    ranks: usize,
    virtual_stages: usize,
    microbatches: usize,
    bubble_over_work: f64,
    actions: Vec<String>,
}

#[derive(Serialize)]
struct DispatcherEntry {
    name: &'static str,
    summary: &'static str,
    source: &'static str,
    example: DispatcherExample,
}

#[derive(Serialize)]
struct DispatcherExample {
    tokens: usize,
    per_token: usize,
    nodes_per_token: usize,
    hidden: usize,
    expert: usize,
    expert_inner: usize,
    exchanges: Vec<DispatcherExchange>,
}

#[derive(Serialize)]
struct DispatcherExchange {
    collective: &'static str,
    axis: &'static str,
    bytes: f64,
}

#[derive(Serialize)]
struct ContextEntry {
    name: &'static str,
    summary: &'static str,
    source: &'static str,
    formula: &'static str,
    example: Option<ContextExample>,
}

#[derive(Serialize)]
struct ContextExample {
    sequence: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    context: usize,
    context_inner: usize,
    sent_forward: usize,
    sent_backward: usize,
    forward: String,
    backward: String,
}

#[derive(Serialize)]
struct TensorSchemeEntry {
    name: &'static str,
    summary: &'static str,
    source: &'static str,
    gpt_block: Option<GridExample>,
}

#[derive(Serialize)]
struct GridExample {
    tensor: usize,
    tensor_rows: usize,
    tokens: usize,
    hidden: usize,
    forward_elements_received: f64,
    backward_elements_received: f64,
}

#[derive(Serialize)]
struct OptimizerEntry {
    name: &'static str,
    summary: &'static str,
    source: &'static str,
    moment_bytes: f64,
    extra_traffic_bytes: f64,
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
