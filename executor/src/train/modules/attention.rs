//! From queries, keys and values to the heads' outputs.

use super::dropout::of_probabilities;
use super::operator::{Operator, Step};
use crate::device::tensor::Tensor;
use crate::device::{AttentionGradient, AttentionOutput, Numbers};
use crate::train::data::documents::PackedDocuments;
use trainwright_kernels::attention::{self, ScoreRules};
use trainwright_spec::model::Mask;

/// The logarithms of the sums of exponentials that its kernel leaves for backward.
#[derive(Debug, Default)]
struct LogSums(Numbers);

pub(super) struct Attention;

impl Operator for Attention {
    fn forward(&self, step: &mut Step, input: Tensor) -> Tensor {
        let kernel = kernel(step);
        let window = match step.block().attention.mask {
            Mask::Window(window) => Some(window),
            Mask::Causal | Mask::Full => None,
        };
        if let Some(sequences) = &mut step.frame.sequences {
            let (mut heads, mut at) = (Vec::with_capacity(input.rows() * kernel.output_row()), 0);
            for sequence in sequences {
                let rows = input.slice().part(at * kernel.row()..(at + sequence.rows) * kernel.row());
                let cache = sequence.key_values.of(step.place.0);
                heads.extend(step.device.attention_cached(&kernel, rows, cache, window));
                at += sequence.rows;
            }
            return Tensor::of(heads, kernel.output_row());
        }
        let dropout = of_probabilities(step, &kernel);
        let documents = step.frame.documents.as_deref().map(PackedDocuments::view);
        let rules = ScoreRules { dropout, documents };
        let [heads, left] = step.device.attention(&kernel, rules, input.slice());
        let output = Tensor::of(heads, kernel.output_row());
        if step.keeps {
            let kept = step.kept();
            kept.output = Some(output.clone());
            kept.module_state::<LogSums>().0 = left;
        }
        output
    }

    fn backward(&self, step: &mut Step, gradient: Tensor) -> Option<Tensor> {
        let (kernel, device) = (kernel(step), step.device);
        let dropout = of_probabilities(step, &kernel);
        let documents = step.frame.documents.clone();
        let rules = ScoreRules { dropout, documents: documents.as_deref().map(PackedDocuments::view) };
        let input = step.kept_input();
        let kept = step.kept();
        let output = kept.output.clone().expect("attention keeps its output or makes it again");
        let (heads, left) = (output.slice(), kept.module_state::<LogSums>().0.slice());
        let output = AttentionOutput { heads, left, gradient: gradient.slice() };
        let gradient = AttentionGradient { qkv: input.slice(), output };
        Some(Tensor::of(device.attention_gradient(&kernel, rules, gradient), kernel.row()))
    }
}

pub(super) fn kernel(step: &Step) -> attention::Attention {
    let layer = &step.block().attention;
    attention::Attention {
        batch: step.sizes.batch,
        heads: layer.heads / step.sizes.parts,
        kv_heads: layer.kv_heads / step.sizes.parts,
        head_dim: layer.head_dim,
        value_head_dim: layer.value_head_dim,
        mask: if layer.mask == Mask::Full { attention::Mask::Full } else { attention::Mask::Causal },
    }
}
