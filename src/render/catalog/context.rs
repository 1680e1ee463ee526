//! Context schemes: all of them as a table, one as TOML.

use super::print;
use crate::render::table::Column::Left;
use crate::render::table::wrapped_table;
use serde::Serialize;
use trainwright_spec::context::{CONTEXT_SCHEMES, ContextScheme, SharedAttention, Step};
use trainwright_spec::model::Mask;
use trainwright_spec::stack::AttentionKernel;

/// Every context scheme.
pub fn list() -> String {
    let rows = CONTEXT_SCHEMES.iter();
    let rows = rows.map(|scheme| [scheme.name(), scheme.summary(), scheme.formula(), scheme.source()]);
    let rows = rows.map(|row| row.map(str::to_string).into()).collect();
    let columns = [Left("scheme"), Left("summary"), Left("each rank sends"), Left("source")];
    wrapped_table(&columns, rows)
        + "elements for each layer and microbatch: c context ranks, u of them inner ones, r = c/u; b sequences of s tokens;\n\
           h, k, v: widths of all query, key, value heads of a tensor rank\n"
}

/// A context scheme with the steps of a small layer.
pub fn entry(scheme: &dyn ContextScheme) -> String {
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
