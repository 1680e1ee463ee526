//! The names of a layer's parameters.

use trainwright_spec::program::Axis;

/// A parameter of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ParameterName {
    /// Rows of the vocabulary.
    TokenEmbedding,
    /// Rows of positions.
    PositionEmbedding,
    /// Gain of the norm of that index.
    NormGain(usize),
    /// Bias of the norm of that index.
    NormBias(usize),
    /// Query rows, then key rows, then value rows.
    Qkv,
    /// Its bias.
    QkvBias,
    /// The joining of the heads.
    Projection,
    /// Its bias.
    ProjectionBias,
    /// The first matrix of the feed-forward layer; a gate's rows first.
    Fc1,
    /// Its bias.
    Fc1Bias,
    /// The second one.
    Fc2,
    /// Its bias.
    Fc2Bias,
    /// Gain of the norm after the last block.
    FinalNormGain,
    /// Its bias.
    FinalNormBias,
    /// A row of scores for each expert.
    Router,
    /// The first matrices of all experts below each other.
    ExpertFc1,
    /// The second ones.
    ExpertFc2,
    /// The output embedding, where it is not the input's.
    Head,
    /// Its bias.
    HeadBias,
}

/// Which ranks hold the same elements of a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sharing {
    /// Those of the data axis.
    Dense,
    /// Those with the same experts, if those are other ranks.
    Routed,
}

impl Sharing {
    /// Of what moves along an axis.
    pub fn of(axis: Axis) -> Self {
        if axis == Axis::ExpertData { Sharing::Routed } else { Sharing::Dense }
    }
}

impl ParameterName {
    /// Whether it is a table of tokens or positions.
    pub fn is_embedding(self) -> bool {
        matches!(self, ParameterName::TokenEmbedding | ParameterName::PositionEmbedding)
    }

    /// A number below 64, another for each name.
    pub(super) fn number(self) -> u64 {
        match self {
            ParameterName::TokenEmbedding => 0,
            ParameterName::PositionEmbedding => 1,
            ParameterName::Qkv => 2,
            ParameterName::QkvBias => 3,
            ParameterName::Projection => 4,
            ParameterName::ProjectionBias => 5,
            ParameterName::Fc1 => 6,
            ParameterName::Fc1Bias => 7,
            ParameterName::Fc2 => 8,
            ParameterName::Fc2Bias => 9,
            ParameterName::FinalNormGain => 10,
            ParameterName::FinalNormBias => 11,
            ParameterName::Head => 12,
            ParameterName::HeadBias => 13,
            ParameterName::Router => 60,
            ParameterName::ExpertFc1 => 61,
            ParameterName::ExpertFc2 => 62,
            ParameterName::NormGain(index) => 14 + 2 * index as u64,
            ParameterName::NormBias(index) => 15 + 2 * index as u64,
        }
    }
}
