//! Rotation of queries and keys by position.

use super::operator::{Operator, Step};
use crate::device::tensor::Tensor;
use crate::device::{Positions, Rotation};
use crate::train::data::documents::PackedDocuments;
use trainwright_kernels::rotary::{Heads, Turn};

pub(super) struct Rotary;

/// θ where the model says nothing: that of LLaMA and LLaMA 2 (arXiv 2104.09864, section 3.2.2).
const BASE: f64 = 10_000.0;

impl Operator for Rotary {
    fn reads_input(&self) -> bool {
        false
    }

    fn forward(&self, step: &mut Step, input: Tensor) -> Tensor {
        turn(step, input, Turn::There)
    }

    fn backward(&self, step: &mut Step, gradient: Tensor) -> Option<Tensor> {
        Some(turn(step, gradient, Turn::Back))
    }
}

/// Query heads and key heads stand next to each other.
fn turn(step: &Step, mut x: Tensor, turn: Turn) -> Tensor {
    let attention = &step.block().attention;
    let (sizes, width) = (step.sizes, attention.head_dim);
    let count = (attention.heads + attention.kv_heads) / sizes.parts;
    let heads = Heads { row: x.width(), first: 0, count, width };
    let base = attention.rotary_base.unwrap_or(BASE);
    let rotated = attention.rotary_head_dim.unwrap_or(width);
    let rotation = Rotation { heads, rotated, base, sequence: sizes.sequence, turn };
    let documents = step.frame.documents.as_deref().map(PackedDocuments::view);
    let positions = Positions { of: sizes.local_positions(), batch: sizes.batch, documents };
    step.device.rotate(x.slice_mut(), rotation, positions);
    x
}
