//! What stands before the first and after the last block.

use crate::elementwise::hidden_norm;
use crate::linear::{Numbers, head, lowered, replicated};
use crate::part::Part;
use crate::shape::Shape;
use crate::step::Step;
use trainwright_spec::collective::CollectiveKind;
use trainwright_spec::model::{Model, Norm, Position};
use trainwright_spec::program::{Does, Module, Value};
use trainwright_spec::stack::Fusion;
use trainwright_spec::units::Bytes;

/// The embedding: look-up in this rank's part of the vocabulary, sum over the tensor axis, positions, dropout.
pub(crate) fn embedding_parts(shape: &Shape, model: &Model) -> Vec<Part> {
    let shape = &shape.base();
    let width = model.embedding.width.unwrap_or(shape.hidden);
    let vocabulary = shape.stack.padded_vocabulary(model.vocab, shape.tensor);
    let steps = shape.scheme.look_up(&shape.grid, shape.all_tokens(), [vocabulary, width]);
    let found = shape.activations(steps.tokens * steps.width);
    let gradients = shape.gradient_bytes() * (steps.tokens * steps.width) as f64;
    let around = |[before, after]: &[Vec<_>; 2], kernel, [into, out]: [Value; 2]| {
        let numbers =
            Numbers { module: "embedding", product: shape.precision, gathered: shape.activations(1) };
        let before = lowered(shape, numbers, before, [into; 2]);
        [before, vec![kernel], lowered(shape, numbers, after, [out; 2])].concat()
    };
    let forward = Step::streaming("embedding", found, found);
    let backward = Step::streaming("embedding", found + gradients, gradients);
    let look_up = Part {
        forward: around(&steps.forward, forward, [Value::Input, Value::Output]),
        backward: around(&steps.backward, backward, [Value::OutputGradient, Value::InputGradient]),
        // Token ids, 8 bytes each.
        kept: Bytes::new(8.0 * steps.tokens as f64),
        module: Module::LookUp,
        ..Part::default()
    };
    // An encoder-decoder looks up two sequences.
    let mut parts = vec![look_up; if model.decodes() { 2 } else { 1 }];
    if model.embedding.width.is_some() {
        parts.push(replicated(shape, "embedding projection", width, shape.hidden));
    }
    let elements = shape.local_tokens() * shape.local_hidden();
    let activations = shape.activations(elements);
    let added = usize::from(matches!(model.embedding.position, Position::Learned(_)))
        + usize::from(model.embedding.token_types > 0);
    if added > 0 {
        let add = vec![Step::streaming("positions", (1.0 + added as f64) * activations, activations)];
        let part = Part { forward: add.clone(), backward: add, ..Part::default() };
        parts.push(part.named(Module::Positions));
    }
    if let Some(norm) = model.embedding.norm {
        parts.push(hidden_norm(shape, norm));
    }
    if shape.dropout {
        let mask = Bytes::new(elements as f64);
        parts.push(Part {
            forward: vec![Step::streaming("dropout", activations, activations + mask)],
            backward: vec![Step::streaming("dropout", activations + mask, activations)],
            kept: mask,
            ..Part::default()
        });
    }
    parts
}

/// The head: final norm, projection to this rank's part of the vocabulary, cross entropy over all parts.
pub(crate) fn head_parts(shape: &Shape, model: &Model) -> Vec<Part> {
    let shape = &shape.base();
    let mut parts = Vec::new();
    if let Some(norm) = model.final_norm {
        parts.push(hidden_norm(shape, norm).named(Module::FinalNorm));
    }
    if model.head.transform {
        parts.push(replicated(shape, "transform", shape.hidden, shape.hidden));
        parts.push(hidden_norm(shape, Norm::LayerNorm));
    }
    let width = model.embedding.width.unwrap_or(shape.hidden);
    if width != shape.hidden {
        parts.push(replicated(shape, "head projection", shape.hidden, width));
    }
    let local_vocabulary = shape.share(shape.stack.padded_vocabulary(model.vocab, shape.tensor));
    parts.push(head(shape, [width, local_vocabulary], model.head.bias).named(Module::Logits));
    let loss = match shape.stack.gathers_logits && shape.tensor > 1 {
        true => gathered_cross_entropy(shape, local_vocabulary * shape.parts.width),
        false => cross_entropy(shape, local_vocabulary),
    };
    parts.push(loss.named(Module::Loss));
    parts
}

/// Cross entropy on every rank of the tensor axis over logits that it gathers from all; each needs only its part of the
/// gradients.
fn gathered_cross_entropy(shape: &Shape, vocabulary: usize) -> Part {
    let alone = Shape { tensor: 1, ..*shape };
    let logits = shape.activations(shape.tokens() * vocabulary);
    let (axis, does) = (shape.scheme.vocabulary_axis(), Does::Move(Value::Statistic));
    let gather = Step::collective("gather logits", CollectiveKind::AllGather, axis, logits, does);
    let mut part = cross_entropy(&alone, vocabulary);
    part.forward.insert(0, gather);
    part.kept += logits;
    part
}

/// Cross entropy over a vocabulary split by the tensor axis, in fp32: a cast, the maximum, the shifted exponentials
/// and their sum, the division; the tensor axis exchanges three numbers per token. Keeps the fp32 probabilities, which
/// are written over the fp32 logits. Beside them live, as long as the loss is computed, the logits that were cast, or
/// the fp32 logits where the software writes the probabilities elsewhere
/// (Shoeybi et al. 2019, arXiv 1909.08053, section 3; Korthikanti et al. 2022, arXiv 2205.05198, section 4.3;
/// NVIDIA/Megatron-LM, `megatron/core/tensor_parallel/cross_entropy.py`).
fn cross_entropy(shape: &Shape, local_vocabulary: usize) -> Part {
    let elements = shape.tokens() * local_vocabulary;
    let logits = shape.activations(elements);
    let wide = Bytes::new(4.0 * elements as f64);
    let (axis, does) = (shape.scheme.vocabulary_axis(), Does::Move(Value::Statistic));
    let numbers = Bytes::new(4.0 * shape.tokens() as f64);
    let exchange = Step::collective("reduce loss", CollectiveKind::AllReduce, axis, numbers, does);
    let exchange = |steps: &mut Vec<Step>| steps.extend((shape.tensor > 1).then_some(exchange));
    if shape.stack.cross_entropy == Fusion::Fused {
        // The maximum and the sum of exponentials in one pass over the logits, which stay for backward.
        let mut forward = vec![Step::reduction("loss", logits, Bytes::ZERO)];
        (0..3).for_each(|_| exchange(&mut forward));
        let gradient = Step::streaming("loss", logits, logits);
        let backward = vec![if shape.stack.loss_in_place { gradient.in_place() } else { gradient }];
        return Part { forward, backward, kept: logits, ..Part::default() };
    }
    let held = if shape.stack.loss_copies_logits { wide } else { logits };
    let over_kept = |step: Step| step.in_place().holding(held);
    let cast = over_kept(Step::streaming("loss cast", logits, wide));
    let mut forward = vec![cast, Step::reduction("loss max", wide, Bytes::ZERO).holding(held)];
    exchange(&mut forward);
    forward.push(over_kept(Step::reduction("loss exp", 2.0 * wide, wide)));
    exchange(&mut forward);
    exchange(&mut forward);
    forward.push(over_kept(Step::streaming("loss divide", wide, wide)));
    // Beside autograd's gradients the logits live that the training loop holds, as large as the gradient that they get.
    let gradients = if shape.stack.loss_by_autograd { 2.0 * wide } else { Bytes::ZERO };
    let backward = vec![Step::streaming("loss", wide, logits).holding(gradients)];
    Part { forward, backward, kept: wide, ..Part::default() }
}
