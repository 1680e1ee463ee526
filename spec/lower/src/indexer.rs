//! The indexer of sparse attention as a part: its projections, its scores of all pairs, and the choice of the keys.
//!
//! Every tensor rank runs all of it. It learns from the attention's scores and not through them, so its backward has the
//! products of its own loss (arXiv 2512.02556, section 2.1.1).

use crate::linear::{replicated, replicated_of_kept_input};
use crate::part::Part;
use crate::shape::Shape;
use crate::step::Step;
use trainwright_spec::model::{Attention, Indexer};
use trainwright_spec::units::Bytes;

/// The parts of the indexer of a layer.
pub(crate) fn indexer(shape: &Shape, attention: &Attention, indexer: &Indexer) -> Vec<Part> {
    let Indexer { heads, head_dim, .. } = *indexer;
    let from = attention.latent.as_ref().and_then(|latent| latent.query_rank);
    let queries = replicated(shape, "indexer query", from.unwrap_or(shape.hidden), heads * head_dim);
    let keys = replicated_of_kept_input(shape, "indexer key", shape.hidden, head_dim + heads);
    let base = shape.precision.base();
    let size = [shape.sequence, shape.sequence, head_dim];
    let scores = |size| Step::gemm("indexer scores", shape.batch * heads, size, base).in_place();
    let scored = Bytes::new(4.0 * (shape.batch * shape.sequence * shape.sequence) as f64);
    let [m, n, k] = size;
    let kept = shape.activations(shape.tokens() * (heads + 1) * head_dim);
    let choice = Part {
        forward: vec![scores(size), Step::reduction("pick keys", scored, Bytes::ZERO)],
        backward: vec![scores(size), scores([m, k, n]), scores([k, n, m])],
        kept,
        ..Part::default()
    };
    vec![queries, keys, choice]
}
