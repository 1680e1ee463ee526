//! Models of another size in the shape of a given one.

use super::{Change, amount};
use crate::scenario::Scenario;
use trainwright_spec::model::{FeedForward, Mlp, Model};

/// Query heads, and so tensor ranks, come in multiples of this: a node's GPUs can then share each layer.
const HEADS: usize = 8;

/// Inner widths come in multiples of this, as those of published models do.
const WIDTH: usize = 256;

/// `30B` or `x2`.
pub(super) fn set(scenario: &mut Scenario, value: &str) -> Result<(), String> {
    let model = scenario.model();
    let parameters = match Change::parse(value)? {
        Change::Times(factor) => factor * model.parameters() as f64,
        Change::To(text) => amount(&text)?,
    };
    let model = scaled(model, parameters)?;
    *scenario.model_mut() = model;
    Ok(())
}

/// A model in the shape of `model` with about this number of parameters.
///
/// Width and depth grow alike: the width with the cube root of the parameters, in whole multiples of heads and of the
/// heads that share keys, and then as many blocks as come nearest. Heads keep their width, embeddings their vocabulary.
/// Source of the shape: Kaplan et al. 2020, arXiv 2001.08361, section 3.1, who find that width over depth matters little.
///
/// # Errors
/// A model that has not one kind of blocks, or is not made of heads as wide as its residual stream, or is to be smaller
/// than a single block of the least width.
pub fn scaled(model: &Model, parameters: f64) -> Result<Model, String> {
    if parameters == model.parameters() as f64 {
        return Ok(model.clone());
    }
    let [run] = model.blocks.as_slice() else {
        return Err(format!(
            "{} has {} kinds of blocks: only one can be scaled",
            model.name,
            model.blocks.len()
        ));
    };
    let attention = &run.block.attention;
    let narrow =
        model.embedding.width.is_some() || attention.latent.is_some() || attention.recurrence.is_some();
    if narrow || run.block.cross_attention.is_some() {
        return Err(format!("{} is not made of plain heads: it cannot be scaled", model.name));
    }
    // Hidden width of a head; it need not be the width of a query.
    let heads = attention.heads;
    let per_head = model.hidden / heads;
    if per_head * heads != model.hidden {
        return Err(format!("{} is not as wide as its heads: it cannot be scaled", model.name));
    }
    let unit = if attention.kv_heads == heads { HEADS } else { lcm(HEADS, attention.kv_heads) };
    let ratio = libm::cbrt(parameters / model.parameters() as f64);
    let wanted = heads as f64 * ratio / unit as f64;
    let other_heads = unit * (wanted.round() as usize).max(1);

    let mut scaled = model.clone();
    let factor = other_heads as f64 / heads as f64;
    scaled.hidden = per_head * other_heads;
    let run = &mut scaled.blocks[0];
    let attention = &mut run.block.attention;
    if attention.kv_heads == attention.heads {
        attention.kv_heads = other_heads;
    }
    attention.heads = other_heads;
    let widen = |mlp: &mut FeedForward| {
        mlp.width = WIDTH * ((mlp.width as f64 * factor / WIDTH as f64).round() as usize).max(1);
    };
    match &mut run.block.mlp {
        Mlp::Dense(mlp) => widen(mlp),
        Mlp::Experts(experts) => {
            widen(&mut experts.expert);
            experts.shared.iter_mut().for_each(widen);
        }
    }
    run.count = 1;
    let one = scaled.parameters() as f64;
    scaled.blocks[0].count = 2;
    let block = scaled.parameters() as f64 - one;
    let count = 1.0 + (parameters - one) / block;
    if count < 0.5 {
        return Err(format!(
            "{parameters:.3e} parameters are less than a single block in the shape of {}",
            model.name
        ));
    }
    scaled.blocks[0].count = (count.round() as usize).max(1);
    scaled.name = format!("{} scaled to {}", model.name, short(scaled.parameters() as f64));
    Ok(scaled)
}

fn short(parameters: f64) -> String {
    match parameters {
        p if p >= 1e12 => format!("{:.2}T", p / 1e12),
        p if p >= 1e9 => format!("{:.1}B", p / 1e9),
        p => format!("{:.0}M", p / 1e6),
    }
}

fn lcm(a: usize, b: usize) -> usize {
    let (mut x, mut y) = (a, b);
    while y > 0 {
        (x, y) = (y, x % y);
    }
    a / x * b
}
