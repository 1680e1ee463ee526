//! In how many bits the weights of products are kept while they generate.

use crate::train::parameters::{Parameter, ParameterName};
use crate::train::state::Loaded;
use serde::Serialize;
use trainwright_kernels::packed::{PackedWeight, int8_scale};

/// How weights are kept. Sums are of 32 bits in each case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub enum WeightFormat {
    /// As checkpoints have them.
    #[default]
    Fp32,
    /// Tables and matrices rounded to bf16.
    Bf16,
    /// Tables and matrices rounded to 8 bits, with a scale for each row: max |w| / 127.
    Int8,
}

impl WeightFormat {
    /// All of them.
    pub const ALL: [WeightFormat; 3] = [WeightFormat::Fp32, WeightFormat::Bf16, WeightFormat::Int8];

    /// The name for people.
    pub fn name(self) -> &'static str {
        match self {
            WeightFormat::Fp32 => "fp32",
            WeightFormat::Bf16 => "bf16",
            WeightFormat::Int8 => "int8",
        }
    }

    /// Bytes of a rank's part of a parameter.
    pub(crate) fn bytes(self, parameter: &Parameter) -> usize {
        match self {
            _ if !is_packed(parameter.name) => 4 * parameter.length,
            WeightFormat::Fp32 => 4 * parameter.length,
            WeightFormat::Bf16 => 2 * parameter.length,
            WeightFormat::Int8 => parameter.length + 4 * parameter.local_rows().count(),
        }
    }

    /// The rank's elements of a loaded parameter; `None` if it stays in 32 bits. A row's scale is that of all its columns,
    /// however many the rank has, so that every plan rounds alike.
    pub(crate) fn pack(self, parameter: &Parameter, loaded: &Loaded, local: &[f32]) -> Option<PackedWeight> {
        if !is_packed(parameter.name) {
            return None;
        }
        let [rows, columns] = parameter.full_shape;
        let scale = |row: usize| match row < rows {
            true => int8_scale(&loaded.weights[row * columns..(row + 1) * columns]),
            // Padding of the vocabulary.
            false => 0.0,
        };
        match self {
            WeightFormat::Fp32 => None,
            WeightFormat::Bf16 => Some(PackedWeight::bf16(local)),
            WeightFormat::Int8 => {
                Some(PackedWeight::int8(local, parameter.local_rows().map(scale).collect()))
            }
        }
    }
}

/// Whether a parameter is what a token reads most of. Vectors, positions and routers stay as they are.
fn is_packed(name: ParameterName) -> bool {
    use ParameterName::{ExpertFc1, ExpertFc2, Fc1, Fc2, Head, Projection, Qkv, TokenEmbedding};
    matches!(name, TokenEmbedding | Qkv | Projection | Fc1 | Fc2 | ExpertFc1 | ExpertFc2 | Head)
}
