//! Attention of packed rows, and of rows that came apart.

use super::super::{AttentionGradient, AttentionOps, AttentionTile, Met, Numbers, Slice, SliceMut};
use super::structs::{attention_between, attention_of, int, parts};
use super::{Address, Cuda, Number};
use crate::settings::AttentionBy;
use trainwright_kernels::attention::Attention;
use trainwright_kernels::cuda::attention::{self, Join, Pass};

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
}

/// Whether a library is asked for attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    Yes,
    NobodyWants,
    NotInF32,
}

impl Attending {
    /// Of a plan in such numbers.
    pub fn new(by: AttentionBy, number: Number, deterministic: bool) -> Self {
        let asked = match (by, number) {
            (AttentionBy::Own, _) => Asked::NobodyWants,
            (AttentionBy::Cudnn, Number::F32) => Asked::NotInF32,
            (AttentionBy::Cudnn, Number::Bf16) => Asked::Yes,
        };
        Self { asked, fused: [false; 2], refused: [None, None], deterministic, any_order: false }
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
    pub fn told(&self, library: &str) -> String {
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
    pub(super) fn tile_of(layer: &Attention, tile: AttentionTile) -> attention::Attention {
        let rows = layer.columns();
        let positions = |slice: Slice, row: usize| slice.len() / row / layer.batch;
        let met = [positions(tile.queries, rows[0]), positions(tile.keys, rows[1])];
        let [q, k, v] = [tile.queries, tile.keys, tile.values].map(|slice| slice.device().at);
        attention::Attention { q, k, v, ..attention_between(layer, rows, met) }
    }

    /// Lets a library do it, if it is asked and can; whether it did.
    fn fused(&self, own: &attention::Attention, pass: Pass) -> bool {
        let mut attending = self.attending.borrow_mut();
        if attending.asked != Asked::Yes {
            return false;
        }
        let found = self.memory.borrow_mut().device.fuses(own, pass);
        match found {
            Ok(bytes) => {
                let (_workspace, at) = self.scratch(bytes.div_ceil(size_of::<f32>()));
                self.run(|memory| memory.device.attend(own, pass, at));
                attending.fused[usize::from(pass.is_backward())] = true;
                attending.any_order |= pass == Pass::Backward;
                true
            }
            Err(reason) => {
                attending.refused[usize::from(pass.is_backward())].get_or_insert(reason);
                false
            }
        }
    }

    pub(super) fn forward(&self, layer: &Attention, own: attention::Attention) -> [Numbers; 2] {
        let tokens = own.queries as usize * layer.batch;
        let heads = self.far(tokens * layer.output_row(), self.number);
        let (logarithms, at) = self.scratch(tokens * layer.heads);
        let own = attention::Attention { o: heads.at, logarithms: at, ..own };
        if !self.fused(&own, Pass::Forward) {
            self.launch(own.forward(self.number).last().expect("the simple version does all"));
        }
        [Numbers::far(heads), logarithms]
    }

    pub(super) fn backward(&self, own: attention::Attention, met: Met, gradients: [Address; 3]) {
        let (_dots, dots) = self.scratch(met.left.len());
        let [q_gradient, k_gradient, v_gradient] = gradients;
        let own = attention::Attention {
            o: met.heads.device().at,
            logarithms: met.left.device().at,
            o_gradient: met.gradient.device().at,
            dots,
            q_gradient,
            k_gradient,
            v_gradient,
            ..own
        };
        let pass = self.attending.borrow().backward();
        if self.fused(&own, pass) {
            return;
        }
        let fastest = own.backward(self.number).pop().expect("the simple version does all");
        fastest.iter().for_each(|launch| self.launch(launch));
    }
}

impl AttentionOps for Cuda {
    fn attention(&self, layer: &Attention, qkv: Slice) -> [Numbers; 2] {
        self.forward(layer, attention_of(layer, qkv.device()))
    }

    fn attention_gradient(&self, layer: &Attention, gradient: AttentionGradient) -> Numbers {
        let AttentionGradient { qkv, met } = gradient;
        let to_qkv = self.far(qkv.len(), self.number);
        self.backward(attention_of(layer, qkv.device()), met, parts(layer, to_qkv));
        Numbers::far(to_qkv)
    }

    fn attend(&self, layer: &Attention, tile: AttentionTile) -> [Numbers; 2] {
        self.forward(layer, Self::tile_of(layer, tile))
    }

    fn attend_gradient(&self, layer: &Attention, tile: AttentionTile, met: Met) -> [Numbers; 3] {
        let made = [tile.queries, tile.keys, tile.values].map(|slice| self.far(slice.len(), self.number));
        self.backward(Self::tile_of(layer, tile), met, made.map(|far| far.at));
        made.map(Numbers::far)
    }

    fn join(&self, layer: &Attention, [heads, logarithms]: [SliceMut; 2], other: [Slice; 2]) {
        let (heads, logarithms) = (heads.device(), logarithms.device());
        let [other, other_logarithms] = other.map(|slice| slice.device().at);
        let own = Join {
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
        self.launch(&own.launch(heads.number));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whose_kernels_is_told_with_the_first_reason() {
        let check = |by, number, fused, refused: [Option<&str>; 2], expected| {
            let refused = refused.map(|reason| reason.map(String::from));
            let own = Attending { fused, refused, ..Attending::new(by, number, false) };
            assert_eq!(own.told("cuDNN 9.10.2"), expected);
        };
        let (cudnn, bf16) = (AttentionBy::Cudnn, Number::Bf16);
        check(AttentionBy::Own, bf16, [false; 2], [None; 2], "own");
        check(cudnn, Number::F32, [false; 2], [None; 2], "own, because the plan is in fp32");
        check(cudnn, bf16, [true; 2], [None; 2], "cuDNN 9.10.2");
        check(cudnn, bf16, [false; 2], [Some("of this"), Some("of that")], "own, because of this");
        let some = [Some("of this"), Some("of that")];
        let expected = "cuDNN 9.10.2; own in some of forward, because of this; own backward, because of that";
        check(cudnn, bf16, [true, false], some, expected);
    }
}
