//! The registries of schemes and tools: each as a table, and single entries as TOML, most with an example.

use super::{Shown, Table, print};
use serde_json::json;
use trainwright_formats::export::{EXPORTERS, Exporter};
use trainwright_formats::import::{IMPORTERS, Importer};
use trainwright_planner::pin_choices;
use trainwright_spec::catalog;
use trainwright_spec::context::{CONTEXT_SCHEMES, ContextScheme, SharedAttention, Step};
use trainwright_spec::data::{DATA_SCHEMES, DataScheme, Divided};
use trainwright_spec::error::SpecError;
use trainwright_spec::experts::{DISPATCHERS, Dispatcher, Move, Visits};
use trainwright_spec::mesh::Mesh;
use trainwright_spec::model::Mask;
use trainwright_spec::optimizer::{OPTIMIZERS, Optimizer, Rule, state_bytes};
use trainwright_spec::precision::Precision;
use trainwright_spec::schedule::{PipelineShape, SCHEDULES, Schedule, text};
use trainwright_spec::stack::AttentionKernel;
use trainwright_spec::tensor::{
    Between, Input, Linear, Output, Overlap, Role, TENSOR_SCHEMES, TensorGrid, TensorScheme,
};
use trainwright_spec::units::Bytes;

/// Every choice that a plan makes.
pub fn choices() -> Shown {
    Ok(Table::of(&pin_choices())
        .left("key", |choice| choice.key)
        .left("what it is", |choice| choice.summary)
        .left("values", |choice| &choice.values)
        .wrapped())
}

/// A choice with its possible values.
pub fn choice(key: &str) -> Shown {
    let known = pin_choices();
    let nearest = catalog::nearest(key, known.iter().map(|choice| choice.key));
    let found = known.into_iter().find(|choice| choice.key == key);
    let found = found.ok_or_else(|| SpecError::UnknownName { kind: "choice", name: key.into(), nearest })?;
    Ok(print(json!(found)))
}

/// Every schedule.
pub fn schedules() -> Shown {
    Ok(Table::of(SCHEDULES)
        .left("schedule", |schedule| schedule.name())
        .left("bubble over work", |schedule| schedule.bubble())
        .left("summary", |schedule| schedule.summary())
        .left("source", |schedule| schedule.source())
        .wrapped()
        + "p pipeline ranks, v stages on each, m microbatches; F, I, W: time of forward, gradient of the input, of the \
           weights\n")
}

/// A schedule with its actions on a small pipeline.
pub fn schedule(schedule: &dyn Schedule) -> String {
    let shapes = [1, 2].map(|virtual_stages| PipelineShape { ranks: 4, virtual_stages, microbatches: 8 });
    let shape = shapes.into_iter().find(|shape| schedule.check(*shape).is_ok());
    print(json!({
        "name": schedule.name(),
        "summary": schedule.summary(),
        "bubble": schedule.bubble(),
        "source": schedule.source(),
        "example": shape.map(|shape| json!({
            "ranks": shape.ranks,
            "virtual_stages": shape.virtual_stages,
            "microbatches": shape.microbatches,
            "bubble_over_work": schedule.bubble_over_work(shape),
            "actions": text::lines(&schedule.lists(shape)),
        })),
    }))
}

/// Every tensor scheme.
pub fn tensor_schemes() -> Shown {
    Ok(Table::of(TENSOR_SCHEMES)
        .left("scheme", |scheme| scheme.name())
        .left("summary", |scheme| scheme.summary())
        .left("source", |scheme| scheme.source())
        .wrapped())
}

/// A tensor scheme with the elements that the four products of a GPT block move on the smallest of its grids.
pub fn tensor_scheme(scheme: &dyn TensorScheme) -> String {
    let grids =
        [(4, 1), (4, 2), (8, 2)].map(|(tensor, rows)| Mesh { tensor_rows: rows, ..Mesh::new(tensor, 1, 1) });
    let (tokens, hidden) = (8192, 4096);
    let example = grids.into_iter().find(|mesh| scheme.check(mesh).is_ok()).map(|mesh| {
        let grid = TensorGrid::of(&mesh, Between::Whole, Overlap::Waited);
        let column = |outer| Linear { tokens, inner: hidden, outer, role: Role::Column(Input::Region) };
        let row = |inner| Linear { tokens, inner, outer: hidden, role: Role::Row(Output::Leaves) };
        let layers = [column(3 * hidden), row(hidden), column(4 * hidden), row(4 * hidden)];
        let volumes = layers.map(|layer| scheme.volume(&grid, &layer));
        json!({
            "tensor": mesh.tensor,
            "tensor_rows": mesh.tensor_rows,
            "tokens": tokens,
            "hidden": hidden,
            "forward_elements_received": volumes.iter().map(|volume| volume.forward).sum::<f64>(),
            "backward_elements_received": volumes.iter().map(|volume| volume.backward).sum::<f64>(),
        })
    });
    print(json!({
        "name": scheme.name(),
        "summary": scheme.summary(),
        "source": scheme.source(),
        "gpt_block": example,
    }))
}

/// Every context scheme.
pub fn context_schemes() -> Shown {
    Ok(Table::of(CONTEXT_SCHEMES)
        .left("scheme", |scheme| scheme.name())
        .left("summary", |scheme| scheme.summary())
        .left("each rank sends", |scheme| scheme.formula())
        .left("source", |scheme| scheme.source())
        .wrapped()
        + "elements for each layer and microbatch: c context ranks, u of them inner ones, r = c/u; b sequences of s tokens;\n\
           h, k, v: widths of all query, key, value heads of a tensor rank\n")
}

/// A context scheme with the steps of a small layer.
pub fn context_scheme(scheme: &dyn ContextScheme) -> String {
    let layers = [2, 1].map(|inner| SharedAttention {
        batch: 1,
        sequence: 4096,
        heads: 16,
        kv_heads: 4,
        head_dim: 128,
        value_head_dim: 128,
        mask: Mask::Causal,
        ranks: 4,
        inner,
    });
    let layer = layers.into_iter().find(|layer| scheme.check(layer, AttentionKernel::Flash).is_ok());
    let lines = |steps: Vec<Step>| steps.iter().map(|step| format!("{step}\n")).collect::<String>();
    print(json!({
        "name": scheme.name(),
        "summary": scheme.summary(),
        "source": scheme.source(),
        "formula": scheme.formula(),
        "example": layer.map(|layer| json!({
            "sequence": layer.sequence,
            "heads": layer.heads,
            "kv_heads": layer.kv_heads,
            "head_dim": layer.head_dim,
            "context": layer.ranks,
            "context_inner": layer.inner,
            "sent_forward": scheme.volume(&layer).forward,
            "sent_backward": scheme.volume(&layer).backward,
            "forward": lines(scheme.forward(&layer)),
            "backward": lines(scheme.backward(&layer)),
        })),
    }))
}

/// Every data-parallel scheme.
pub fn data_schemes() -> Shown {
    Ok(Table::of(DATA_SCHEMES)
        .left("scheme", |scheme| scheme.name())
        .left("divided", |scheme| divided(*scheme))
        .left("summary", |scheme| scheme.summary())
        .left("source", |scheme| scheme.source())
        .wrapped()
        + "divided: what each rank holds only a part of; O optimizer state, G gradients, W weights\n")
}

/// A data-parallel scheme with the state that it divides.
pub fn data_scheme(scheme: &dyn DataScheme) -> String {
    print(json!({
        "name": scheme.name(),
        "summary": scheme.summary(),
        "source": scheme.source(),
        "divided": divided(scheme),
        "reduces": scheme.reduction(),
        "reshards": (scheme.divides() == Divided::Weights).then(|| scheme.reshard()),
    }))
}

fn divided(scheme: &dyn DataScheme) -> &'static str {
    match scheme.divides() {
        Divided::Nothing => "-",
        Divided::Optimizer => "O",
        Divided::Gradients => "OG",
        Divided::Weights => "OGW",
    }
}

/// Every dispatcher.
pub fn dispatchers() -> Shown {
    Ok(Table::of(DISPATCHERS)
        .left("dispatcher", |dispatcher| dispatcher.name())
        .left("summary", |dispatcher| dispatcher.summary())
        .left("source", |dispatcher| dispatcher.source())
        .wrapped()
        + "T tokens of a rank, each to k experts; h hidden width, e bytes of an element, E expert ranks\n")
}

/// A dispatcher with its exchanges for DeepSeek-V3's experts.
pub fn dispatcher(dispatcher: &dyn Dispatcher) -> String {
    let (tokens, per_token, nodes_per_token, hidden, expert, inner) = (4096, 8, 4, 7168, 64, 8);
    let visits = Visits {
        token: Bytes::new(2.0 * hidden as f64),
        tokens,
        sent: tokens * per_token,
        rows: tokens * per_token,
        node_rows: (nodes_per_token * tokens) as f64,
        rank_rows: (per_token * tokens) as f64,
        expert,
        inner,
        expert_tensor: 1,
    };
    let exchange = |each: Move| match each {
        Move::Exchange { kind, axis, bytes } => {
            Some(json!({ "collective": kind.name(), "axis": axis.name(), "bytes": bytes }))
        }
        Move::Tokens { axis, bytes, over_nodes } => Some(match over_nodes {
            None => json!({ "kernel": "tokens", "axis": axis.name(), "bytes": bytes }),
            Some(over) => {
                json!({ "kernel": "tokens", "axis": axis.name(), "bytes": bytes, "over_nodes": over })
            }
        }),
        Move::Copy { .. } | Move::Sort(_) => None,
    };
    print(json!({
        "name": dispatcher.name(),
        "summary": dispatcher.summary(),
        "source": dispatcher.source(),
        "example": {
            "tokens": tokens,
            "per_token": per_token,
            "nodes_per_token": nodes_per_token,
            "hidden": hidden,
            "expert": expert,
            "expert_inner": inner,
            "exchanges": dispatcher.moves(&visits).into_iter().filter_map(exchange).collect::<Vec<_>>(),
        },
    }))
}

/// Every optimizer.
pub fn optimizers() -> Shown {
    Ok(Table::of(OPTIMIZERS)
        .left("optimizer", |optimizer| optimizer.name())
        .right("bf16", |optimizer| state_bytes(*optimizer, Rule::Elements, Precision::Bf16).get())
        .right("fp32", |optimizer| state_bytes(*optimizer, Rule::Elements, Precision::Fp32).get())
        .right("matrices", |optimizer| match optimizer.of_matrices() {
            Some(_) => state_bytes(*optimizer, Rule::Matrices, Precision::Bf16).get().to_string(),
            None => String::new(),
        })
        .left("summary", |optimizer| optimizer.summary())
        .left("source", |optimizer| optimizer.source())
        .wrapped()
        + "bf16, fp32: bytes of state per parameter, fp32 master weights included; matrices: of those in blocks, in bf16\n")
}

/// An optimizer with its bytes for each parameter.
pub fn optimizer(optimizer: &dyn Optimizer) -> String {
    print(json!({
        "name": optimizer.name(),
        "summary": optimizer.summary(),
        "source": optimizer.source(),
        "moment_bytes": optimizer.moment_bytes(),
        "extra_traffic_bytes": optimizer.extra_traffic(),
        "extra_passes": optimizer.extra_passes(),
        "matrices": optimizer.of_matrices().map(|rule| json!({
            "moment_bytes": rule.moment_bytes(),
            "factor_bytes": rule.factor_bytes(),
            "needs_whole": rule.needs_whole(),
        })),
    }))
}

/// Every tool that `export` writes for.
pub fn exporters() -> Shown {
    Ok(Table::of(EXPORTERS)
        .left("exporter", |tool| tool.name())
        .left("summary", |tool| tool.summary())
        .left("read by", |tool| tool.source())
        .wrapped())
}

/// A tool that `export` writes for.
pub fn exporter(tool: &dyn Exporter) -> String {
    print(json!({ "name": tool.name(), "summary": tool.summary(), "source": tool.source() }))
}

/// Every tool that `import` reads from.
pub fn importers() -> Shown {
    Ok(Table::of(IMPORTERS)
        .left("importer", |tool| tool.name())
        .left("summary", |tool| tool.summary())
        .left("stack", |tool| tool.stack())
        .wrapped())
}

/// A tool that `import` reads from.
pub fn importer(tool: &dyn Importer) -> String {
    print(json!({ "name": tool.name(), "summary": tool.summary(), "stack": tool.stack() }))
}
