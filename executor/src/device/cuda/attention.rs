//! Attention of packed rows, and of rows that came apart.

mod trial;

use super::super::{
    AttentionGradient, AttentionOps, AttentionOutput, AttentionTile, DeviceSlice, Numbers, Slice, SliceMut,
};
use super::structs::{attention_between, attention_of, int, parts};
use super::{Address, Cuda, Number};
use crate::device::AttentionBy;
use trainwright_kernels::attention::{Attention, ScoreRules};
use trainwright_kernels::cuda::attention::{self, Join, Pass};
use trainwright_kernels::cuda::dropout::Drops;
use trial::{Array, Tried, Written};

/// Whose kernels have done attention so far.
pub(super) struct Attending {
    asked: Asked,
    /// Whether a library has done any forward, and any backward.
    fused: [bool; 2],
    /// Why it did not do some: the first reason.
    refused: [Option<String>; 2],
    /// Whether gradients are to have the same bits in every run.
    deterministic: bool,
    /// Whether some may not have.
    any_order: bool,
    /// The attentions that it was asked for so far.
    tried: Vec<Tried>,
}

/// Whether a library is asked for attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    Yes,
    NobodyWants,
    NotInF32,
}

impl Attending {
    /// For a plan whose activations are of type `number`.
    pub fn new(by: AttentionBy, number: Number, deterministic: bool) -> Self {
        let asked = match (by, number) {
            (AttentionBy::Ours, _) => Asked::NobodyWants,
            (AttentionBy::Cudnn, Number::F32) => Asked::NotInF32,
            (AttentionBy::Cudnn, Number::Bf16) => Asked::Yes,
        };
        Self {
            asked,
            fused: [false; 2],
            refused: [None, None],
            tried: Vec::new(),
            deterministic,
            any_order: false,
        }
    }

    /// The pass that makes gradients.
    fn backward(&self) -> Pass {
        if self.deterministic { Pass::DeterministicBackward } else { Pass::Backward }
    }

    /// Whether all that was done so far has the same bits in every run.
    pub fn is_deterministic(&self) -> bool {
        !self.any_order
    }

    /// Whose, and why not a library's of that name.
    pub fn summary(&self, library: &str) -> String {
        match self.asked {
            Asked::Yes if self.fused != [false; 2] => {
                let passes = self.refused.iter().zip(self.fused).zip(["forward", "backward"]);
                let rest = passes.filter_map(|((reason, fused), pass)| {
                    let some = if fused { "in some of " } else { "" };
                    Some(format!("; own {some}{pass}, because {}", reason.as_ref()?))
                });
                format!("{library}{}", rest.collect::<String>())
            }
            Asked::Yes => match self.refused.iter().flatten().next() {
                Some(reason) => format!("own, because {reason}"),
                None => "own".into(),
            },
            Asked::NobodyWants => "own".into(),
            Asked::NotInF32 => "own, because the plan is in fp32".into(),
        }
    }
}

impl Cuda {
    /// Where everything but the outputs is.
    fn tile_of(layer: &Attention, tile: AttentionTile) -> attention::Attention {
        let rows = layer.columns();
        let positions = |slice: Slice, row: usize| slice.len() / row / layer.batch;
        let output = [positions(tile.queries, rows[0]), positions(tile.keys, rows[1])];
        let [q, k, v] = [tile.queries, tile.keys, tile.values].map(|slice| slice.device().at);
        attention::Attention { q, k, v, ..attention_between(layer, rows, output) }
    }

    fn forward(&self, layer: &Attention, operands: attention::Attention) -> [Numbers; 2] {
        let tokens = operands.queries as usize * layer.batch;
        let row = layer.output_row();
        let heads = self.allocate(tokens * row, self.number);
        let logarithms = self.allocate(tokens * layer.heads, Number::F32);
        let into = |at: &[Address]| attention::Attention { o: at[0], logarithms: at[1], ..operands };
        let written = Written {
            buffers: vec![heads, logarithms],
            into: &into,
            arrays: vec![Array::outputs("outputs", 0, row, 0..row), Array::logarithms(1)],
        };
        if !self.fused(Pass::Forward, &written) {
            self.attention_by_our_kernels(&written.attention(), Pass::Forward);
        }
        [heads, logarithms].map(Numbers::on_device)
    }

    pub(super) fn backward(
        &self,
        operands: attention::Attention,
        output: AttentionOutput,
        written: Gradients,
    ) {
        let (_dots, dots) = self.scratch(output.left.len());
        let into = |at: &[Address]| {
            let [q_gradient, k_gradient, v_gradient] = (written.parts)(at);
            attention::Attention {
                o: output.heads.device().at,
                logarithms: output.left.device().at,
                o_gradient: output.gradient.device().at,
                dots,
                q_gradient,
                k_gradient,
                v_gradient,
                ..operands
            }
        };
        let written = Written { buffers: written.buffers, into: &into, arrays: written.arrays };
        let pass = self.attending.borrow().backward();
        if !self.fused(pass, &written) {
            self.attention_by_our_kernels(&written.attention(), pass);
        }
    }

    /// Does it by our fastest kernels.
    fn attention_by_our_kernels(&self, operands: &attention::Attention, pass: Pass) {
        let launches = match pass {
            Pass::Forward => operands.forward(self.number).pop().into_iter().collect(),
            Pass::Backward | Pass::DeterministicBackward => {
                operands.backward(self.number).pop().expect("the simple version does all")
            }
        };
        launches.iter().for_each(|launch| self.launch(launch));
    }
}

/// Where the gradients of queries, keys and values begin in some buffers.
type Parts<'a> = Box<dyn Fn(&[Address]) -> [Address; 3] + 'a>;

/// The gradients that backward writes.
pub(super) struct Gradients<'a> {
    buffers: Vec<DeviceSlice>,
    parts: Parts<'a>,
    arrays: Vec<Array>,
}

/// What these arrays are called.
const GRADIENTS: [&str; 3] = ["gradients of queries", "gradients of keys", "gradients of values"];

impl<'a> Gradients<'a> {
    /// Side by side in the rows of a buffer.
    pub fn packed(layer: &'a Attention, to_qkv: DeviceSlice) -> Self {
        let [queries, keys, values] = layer.columns();
        let columns = [0..queries, queries..queries + keys, queries + keys..queries + keys + values];
        let arrays = GRADIENTS.into_iter().zip(columns);
        Self {
            buffers: vec![to_qkv],
            parts: Box::new(move |at| parts(layer, DeviceSlice { at: at[0], ..to_qkv })),
            arrays: arrays.map(|(name, columns)| Array::outputs(name, 0, layer.row(), columns)).collect(),
        }
    }

    /// Each in a separate buffer.
    pub fn apart(layer: &Attention, made: [DeviceSlice; 3]) -> Self {
        let arrays = GRADIENTS.into_iter().zip(layer.columns()).enumerate();
        Self {
            buffers: made.to_vec(),
            parts: Box::new(|at| [at[0], at[1], at[2]]),
            arrays: arrays.map(|(buffer, (name, row))| Array::outputs(name, buffer, row, 0..row)).collect(),
        }
    }
}

/// An attention with dropout of its probabilities.
fn dropping(operands: attention::Attention, rules: ScoreRules) -> attention::Attention {
    assert!(rules.documents.is_none(), "a run with a document mask is refused on GPUs");
    let drops = rules.dropout.map_or(operands.drops, |drops| Drops::of(&drops.dropout, drops.first));
    attention::Attention { drops, ..operands }
}

impl AttentionOps for Cuda {
    fn attention(&self, layer: &Attention, rules: ScoreRules, qkv: Slice) -> [Numbers; 2] {
        self.forward(layer, dropping(attention_of(layer, qkv.device()), rules))
    }

    fn attention_gradient(
        &self,
        layer: &Attention,
        rules: ScoreRules,
        gradient: AttentionGradient,
    ) -> Numbers {
        let AttentionGradient { qkv, output } = gradient;
        let to_qkv = self.allocate(qkv.len(), self.number);
        let operands = dropping(attention_of(layer, qkv.device()), rules);
        self.backward(operands, output, Gradients::packed(layer, to_qkv));
        Numbers::on_device(to_qkv)
    }

    fn attend(&self, layer: &Attention, rules: ScoreRules, tile: AttentionTile) -> [Numbers; 2] {
        self.forward(layer, dropping(Self::tile_of(layer, tile), rules))
    }

    fn attend_gradient(
        &self,
        layer: &Attention,
        rules: ScoreRules,
        tile: AttentionTile,
        output: AttentionOutput,
    ) -> [Numbers; 3] {
        let made =
            [tile.queries, tile.keys, tile.values].map(|slice| self.allocate(slice.len(), self.number));
        self.backward(dropping(Self::tile_of(layer, tile), rules), output, Gradients::apart(layer, made));
        made.map(Numbers::on_device)
    }

    fn join(&self, layer: &Attention, [heads, logarithms]: [SliceMut; 2], other: [Slice; 2]) {
        let (heads, logarithms) = (heads.device(), logarithms.device());
        let [other, other_logarithms] = other.map(|slice| slice.device().at);
        let kernel = Join {
            o: heads.at,
            logarithms: logarithms.at,
            other,
            other_logarithms,
            o_row: layer.output_row() as i64,
            batch: int(layer.batch),
            heads: int(layer.heads),
            queries: int(logarithms.length / layer.batch / layer.heads),
            value_head_dim: int(layer.value_head_dim),
        };
        self.launch(&kernel.launch(heads.number));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whose_kernels_is_told_with_the_first_reason() {
        let check = |by, number, fused, refused: [Option<&str>; 2], expected| {
            let refused = refused.map(|reason| reason.map(String::from));
            let attending = Attending { fused, refused, ..Attending::new(by, number, false) };
            assert_eq!(attending.summary("cuDNN 9.10.2"), expected);
        };
        let (cudnn, bf16) = (AttentionBy::Cudnn, Number::Bf16);
        check(AttentionBy::Ours, bf16, [false; 2], [None; 2], "own");
        check(cudnn, Number::F32, [false; 2], [None; 2], "own, because the plan is in fp32");
        check(cudnn, bf16, [true; 2], [None; 2], "cuDNN 9.10.2");
        check(cudnn, bf16, [false; 2], [Some("of this"), Some("of that")], "own, because of this");
        let some = [Some("of this"), Some("of that")];
        let expected = "cuDNN 9.10.2; own in some of forward, because of this; own backward, because of that";
        check(cudnn, bf16, [true, false], some, expected);
    }
}
