//! The shape of a kernel from the operator that launched it: its name, the sizes of its inputs, and its scalars.
//!
//! Operators are those of PyTorch (`aten/src/ATen/native/native_functions.yaml`) and of flash-attn. If two
//! sizes do not match, or the operator is unknown, there is no shape, and no guess.

use trainwright_spec::limits;
use trainwright_spec::model::Mask;
use trainwright_spec::precision::Precision;
use trainwright_spec::program::{Access, Direction, FlashVersion, FusedAttention, Kernel};

/// A call of an operator.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Call {
    /// Its name: `aten::mm`.
    pub name: String,
    /// The sizes of each input; empty if it is no tensor.
    pub sizes: Vec<Vec<usize>>,
    /// The precision of the first tensor, if the profiler recorded it.
    pub precision: Option<Precision>,
    /// Inputs that are no tensors, as text: `True`.
    pub scalars: Vec<String>,
}

/// Where an operator of attention has its inputs.
struct Attention {
    names: &'static [&'static str],
    direction: Direction,
    /// Input of the queries; keys and values follow.
    first: usize,
    /// Input of the flag that masks later keys.
    causal: usize,
    layout: Layout,
}

/// The order of the dims of queries, keys and values.
enum Layout {
    /// Batch, heads, sequence, width.
    HeadsFirst,
    /// Batch, sequence, heads, width.
    SequenceFirst,
}

const ATTENTION: &[Attention] = &[
    Attention {
        names: &[
            "aten::_scaled_dot_product_flash_attention",
            "aten::_scaled_dot_product_flash_attention_for_cpu",
        ],
        direction: Direction::Forward,
        first: 0,
        causal: 4,
        layout: Layout::HeadsFirst,
    },
    Attention {
        names: &[
            "aten::_scaled_dot_product_efficient_attention",
            "aten::_scaled_dot_product_cudnn_attention",
        ],
        direction: Direction::Forward,
        first: 0,
        causal: 6,
        layout: Layout::HeadsFirst,
    },
    Attention {
        names: &["aten::_scaled_dot_product_flash_attention_backward"],
        direction: Direction::Backward,
        first: 1,
        causal: 11,
        layout: Layout::HeadsFirst,
    },
    Attention {
        names: &["aten::_scaled_dot_product_flash_attention_for_cpu_backward"],
        direction: Direction::Backward,
        first: 1,
        causal: 7,
        layout: Layout::HeadsFirst,
    },
    Attention {
        names: &["aten::_scaled_dot_product_efficient_attention_backward"],
        direction: Direction::Backward,
        first: 1,
        causal: 11,
        layout: Layout::HeadsFirst,
    },
    Attention {
        names: &["flash_attn::_flash_attn_forward"],
        direction: Direction::Forward,
        first: 0,
        causal: 5,
        layout: Layout::SequenceFirst,
    },
    Attention {
        names: &["flash_attn::_flash_attn_backward"],
        direction: Direction::Backward,
        first: 1,
        causal: 11,
        layout: Layout::SequenceFirst,
    },
];

/// Operators that read their tensors and write one like the largest of them, element by element.
const ELEMENTWISE: &[&str] = &[
    "add",
    "sub",
    "mul",
    "div",
    "gelu",
    "silu",
    "relu",
    "tanh",
    "sigmoid",
    "copy",
    "clone",
    "dropout",
    "sqrt",
    "lerp",
    "addcmul",
    "addcdiv",
    "gelu_backward",
    "silu_backward",
    "threshold_backward",
];

/// Elementwise operators with sums along a dim.
const REDUCTION: &[&str] = &[
    "native_layer_norm",
    "_fused_rms_norm",
    "_softmax",
    "_log_softmax",
    "_softmax_backward_data",
    "_log_softmax_backward_data",
];

impl Call {
    /// The kernel that it calls, if its shape is known; `None` also for tensors of more than `limits::BYTES` elements, which
    /// no GPU holds. `otherwise` is the precision if the profiler recorded none.
    pub fn kernel(&self, otherwise: Option<Precision>) -> Option<Kernel> {
        let precision = self.precision.or(otherwise)?;
        if self.sizes.iter().any(|sizes| elements(sizes) > limits::BYTES) {
            return None;
        }
        match self.name.as_str() {
            "aten::mm" => self.gemm(0, precision),
            "aten::addmm" => self.gemm(1, precision),
            "aten::bmm" => self.gemm(0, precision),
            "aten::baddbmm" => self.gemm(1, precision),
            name => match ATTENTION.iter().find(|known| known.names.contains(&name)) {
                Some(known) => self.attention(known, precision),
                None => self.streaming(precision),
            },
        }
    }

    fn gemm(&self, first: usize, precision: Precision) -> Option<Kernel> {
        match (self.sizes.get(first)?.as_slice(), self.sizes.get(first + 1)?.as_slice()) {
            ([m, k], [k_right, n]) if k == k_right => {
                Some(Kernel::Gemm { count: 1, m: *m, n: *n, k: *k, precision, adds_to: None })
            }
            ([count, m, k], [count_right, k_right, n]) if k == k_right && count == count_right => {
                Some(Kernel::Gemm { count: *count, m: *m, n: *n, k: *k, precision, adds_to: None })
            }
            _ => None,
        }
    }

    fn attention(&self, known: &Attention, precision: Precision) -> Option<Kernel> {
        let dims = |input: usize| -> Option<[usize; 4]> {
            let dims: [usize; 4] = self.sizes.get(known.first + input)?.as_slice().try_into().ok()?;
            Some(match known.layout {
                Layout::HeadsFirst => dims,
                Layout::SequenceFirst => [dims[0], dims[2], dims[1], dims[3]],
            })
        };
        let ([batch, heads, queries, head_dim], [_, kv_heads, keys, _], [_, _, _, value_head_dim]) =
            (dims(0)?, dims(1)?, dims(2)?);
        let mask = match self.scalars.get(known.causal).map(String::as_str) {
            Some("True") => Mask::Causal,
            Some("False") => Mask::Full,
            _ => return None,
        };
        Some(Kernel::FusedAttention(FusedAttention {
            direction: known.direction,
            batch,
            heads,
            kv_heads,
            queries,
            keys,
            head_dim,
            value_head_dim,
            mask,
            precision,
            version: FlashVersion::Best,
        }))
    }

    fn streaming(&self, precision: Precision) -> Option<Kernel> {
        let name = self.name.strip_prefix("aten::")?;
        // Operators in place have a trailing underscore.
        let name = name.strip_suffix('_').unwrap_or(name);
        let access = match name {
            _ if ELEMENTWISE.contains(&name) => Access::Elementwise,
            _ if REDUCTION.contains(&name) => Access::Reduction,
            _ => return None,
        };
        let read: f64 = self.sizes.iter().map(|sizes| elements(sizes)).sum();
        let largest = self.sizes.iter().map(|sizes| elements(sizes)).fold(0.0, f64::max);
        // A copy's first input is its destination.
        let read = if name == "copy" { read - largest } else { read };
        let element = precision.base().storage_bytes();
        let (read, written) = (element * read, element * largest);
        (largest > 0.0).then_some(Kernel::Streaming { access, read, written })
    }
}

/// Elements of a tensor of these sizes; 0 without sizes.
fn elements(sizes: &[usize]) -> f64 {
    if sizes.is_empty() { 0.0 } else { sizes.iter().map(|size| *size as f64).product() }
}

/// The sizes in the text of a range: `[[4096, 1024], [], [1024, 512]]`.
pub(crate) fn sizes(text: &str) -> Option<Vec<Vec<usize>>> {
    serde_json::from_str(text).ok()
}

/// PyTorch's names of number formats.
pub(crate) fn precision(name: &str) -> Option<Precision> {
    Some(match name {
        "c10::BFloat16" => Precision::Bf16,
        "c10::Half" => Precision::Fp16,
        "float" => Precision::Fp32,
        "c10::Float8_e4m3fn" | "c10::Float8_e5m2" => Precision::Fp8,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use trainwright_spec::units::Bytes;

    fn call(name: &str, sizes_of: &str, scalars: &[&str]) -> Call {
        Call {
            name: name.into(),
            sizes: sizes(sizes_of).unwrap(),
            precision: Some(Precision::Bf16),
            scalars: scalars.iter().map(|text| text.to_string()).collect(),
        }
    }

    fn product(count: usize, m: usize, n: usize, k: usize) -> Kernel {
        Kernel::Gemm { count, m, n, k, precision: Precision::Bf16, adds_to: None }
    }

    #[test]
    fn products_are_read_from_both_operands() {
        let check = |name: &str, sizes: &str, expected: Option<Kernel>| {
            assert_eq!(call(name, sizes, &[]).kernel(None), expected, "{name} {sizes}");
        };
        check("aten::mm", "[[16, 8], [8, 4]]", Some(product(1, 16, 4, 8)));
        check("aten::addmm", "[[4], [16, 8], [8, 4], [], []]", Some(product(1, 16, 4, 8)));
        check("aten::bmm", "[[3, 16, 8], [3, 8, 4]]", Some(product(3, 16, 4, 8)));
        check("aten::mm", "[[16, 8], [4, 8]]", None);
        check("aten::mm", "[[16, 8]]", None);
        check("aten::linear", "[[2, 16, 8], [4, 8], [4]]", None);
        let most = usize::MAX;
        check("aten::mm", &format!("[[{most}, {most}], [{most}, {most}]]"), None);
        check("aten::add", &format!("[[{most}, 2], []]"), None);
    }

    #[test]
    fn attention_knows_its_mask_and_its_direction() {
        let flash = "aten::_scaled_dot_product_flash_attention";
        let qkv = "[[2, 8, 64, 32], [2, 4, 64, 32], [2, 4, 64, 32], [], []]";
        let expected = |direction, mask| {
            Some(Kernel::FusedAttention(FusedAttention {
                direction,
                batch: 2,
                heads: 8,
                kv_heads: 4,
                queries: 64,
                keys: 64,
                head_dim: 32,
                value_head_dim: 32,
                mask,
                precision: Precision::Bf16,
                version: FlashVersion::Best,
            }))
        };
        let found = call(flash, qkv, &["", "", "", "0.", "True", "False"]).kernel(None);
        assert_eq!(found, expected(Direction::Forward, Mask::Causal));
        assert_eq!(call(flash, qkv, &["", "", ""]).kernel(None), None, "it is unknown whether it is causal");
        let ours = "[[2, 64, 8, 32], [2, 64, 4, 32], [2, 64, 4, 32]]";
        let found = call("flash_attn::_flash_attn_forward", ours, &["", "", "", "0.", "0.1", "False"]);
        assert_eq!(found.kernel(None), expected(Direction::Forward, Mask::Full));
        let back = "[[2, 8, 64, 32], [2, 8, 64, 32], [2, 4, 64, 32], [2, 4, 64, 32]]";
        let scalars = ["", "", "", "", "", "", "0.", "True"];
        let found = call("aten::_scaled_dot_product_flash_attention_for_cpu_backward", back, &scalars);
        assert_eq!(found.kernel(None), expected(Direction::Backward, Mask::Causal));
    }

    #[test]
    fn what_goes_through_memory_reads_its_inputs_and_writes_one_like_the_largest() {
        let check = |name: &str, sizes: &str, access, read: f64, written: f64| {
            let expected = Kernel::Streaming { access, read: Bytes::new(read), written: Bytes::new(written) };
            assert_eq!(call(name, sizes, &[]).kernel(None), Some(expected), "{name}");
        };
        check("aten::add", "[[4, 8], [8], []]", Access::Elementwise, 80.0, 64.0);
        check("aten::mul_", "[[4, 8], []]", Access::Elementwise, 64.0, 64.0);
        check("aten::copy_", "[[4, 8], [4, 8], []]", Access::Elementwise, 64.0, 64.0);
        check("aten::native_layer_norm", "[[4, 8], [], [8], [8], []]", Access::Reduction, 96.0, 64.0);
        assert_eq!(call("aten::view", "[[4, 8]]", &[]).kernel(None), None);
    }
}
