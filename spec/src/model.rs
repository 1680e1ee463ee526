//! The model that is trained: the architecture of a transformer, from its embedding to its head.
//!
//! A `Model` is a description, not weights: a few runs of identical blocks. It knows its weight tensors, its
//! parameter count and its FLOPs; it does not know how it is split over ranks.

pub mod flops;
pub mod hf;
pub mod preset;
mod recurrence;
mod sparse;
pub mod weights;

pub use recurrence::{Recurrence, Rule};
pub use sparse::Indexer;

use serde::{Deserialize, Serialize};

/// A transformer to train.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Model {
    /// Name in the catalog or of the file it came from.
    pub name: String,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Entries of the vocabulary, unpadded.
    pub vocab: usize,
    /// Whether training drops out activations (GPT-2, GPT-3 and BERT do; LLaMA and its kin do not).
    pub dropout: bool,
    /// How much of them, if it is not a tenth everywhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dropout_rates: Option<DropoutRates>,
    /// The layers before the first block.
    pub embedding: Embedding,
    /// Norm after the last block; `None` in post-norm models such as BERT.
    pub final_norm: Option<Norm>,
    /// ε of every norm, which is added to the variance or the mean square; 10⁻⁵ if it is not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub norm_epsilon: Option<f64>,
    /// The layers after the last block.
    pub head: Head,
    /// Runs of identical blocks, in the order of execution. In an encoder-decoder the encoder comes first.
    pub blocks: Vec<BlockRun>,
}

/// Probabilities of being dropped out, from 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DropoutRates {
    /// Of what goes into the first block.
    pub embedding: f64,
    /// Of attention's probabilities.
    pub attention: f64,
    /// Of what each sublayer adds to the residual stream.
    pub residual: f64,
}

impl Model {
    /// How much is dropped out, which is nothing where the model does not say that anything is.
    pub fn drops_out(&self) -> DropoutRates {
        match self.dropout {
            true => self.dropout_rates.unwrap_or(DropoutRates::all(0.1)),
            false => DropoutRates::all(0.0),
        }
    }
}

impl DropoutRates {
    /// All alike.
    pub fn all(rate: f64) -> Self {
        Self { embedding: rate, attention: rate, residual: rate }
    }
}

/// `count` identical blocks in a row.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BlockRun {
    /// How many.
    pub count: usize,
    /// Each of them.
    pub block: Block,
}

/// One transformer block.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Block {
    /// The kind of its norms over the hidden dim.
    pub norm: Norm,
    /// How many norms over the hidden dim: 2 before attention and MLP, 1 if both share it (GPT-J, Falcon 7B),
    /// 3 with cross-attention, 4 with norms after each part too (Gemma 2).
    pub norms: usize,
    /// Whether attention and MLP both read the block's input, so that one reduction serves both (GPT-NeoX, Falcon).
    pub parallel: bool,
    /// Self-attention.
    pub attention: Attention,
    /// Attention over the encoder's output, in the decoder of an encoder-decoder.
    pub cross_attention: Option<Attention>,
    /// The feed-forward part.
    pub mlp: Mlp,
}

impl Block {
    /// A norm and attention, then a norm and the feed-forward part.
    pub fn sequential(norm: Norm, attention: Attention, mlp: Mlp) -> Self {
        Self { norm, norms: 2, parallel: false, attention, cross_attention: None, mlp }
    }
}

/// A normalisation over the last dim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Norm {
    /// Mean and variance, with gain and bias.
    LayerNorm,
    /// Mean and variance, without gain and bias.
    LayerNormPlain,
    /// Root mean square, with gain.
    RmsNorm,
}

/// Multi-head attention of any kind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attention {
    /// Query heads.
    pub heads: usize,
    /// Key and value heads: equal to `heads` in multi-head, fewer in grouped-query, 1 in multi-query attention.
    pub kv_heads: usize,
    /// Width of a query or key head (with latent attention: its rotary and its other part together).
    pub head_dim: usize,
    /// Width of a value head.
    pub value_head_dim: usize,
    /// Which keys a query sees.
    pub mask: Mask,
    /// Whether queries and keys are rotated by position.
    pub rotary: bool,
    /// Columns of each query and key head that are rotated; all of them if not given. Latent attention says how many in `latent`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rotary_head_dim: Option<usize>,
    /// θ of the rotation; 10,000 if it is not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rotary_base: Option<f64>,
    /// Bias on the query, key and value projections.
    pub qkv_bias: bool,
    /// Bias on the output projection.
    pub output_bias: bool,
    /// RMSNorm of each query and key head (Qwen 3).
    pub qk_norm: bool,
    /// Low-rank queries, keys and values (DeepSeek's multi-head latent attention).
    pub latent: Option<Latent>,
    /// A gate on each element of the heads' outputs, projected with the queries (Qwen3-Next).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub output_gate: bool,
    /// A small attention that picks the keys which this one sees (DeepSeek-V3.2).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub indexer: Option<Indexer>,
    /// A state of fixed size in place of keys and values of all tokens: linear attention, Mamba-2. `heads` are then those of
    /// values and states, `kv_heads` those of queries and keys.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recurrence: Option<Recurrence>,
}

/// The ranks of multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Latent {
    /// Rank of the query compression; queries are projected directly without it.
    pub query_rank: Option<usize>,
    /// Rank of the joint key and value compression.
    pub kv_rank: usize,
    /// The part of a head's width that carries rotary positions, shared by all key heads.
    pub rotary_head_dim: usize,
}

/// Which keys a query may attend to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mask {
    /// Every key: encoders and cross-attention.
    Full,
    /// The keys up to the query's position.
    Causal,
    /// The last `n` keys up to the query's position.
    Window(usize),
}

/// The feed-forward part of a block.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mlp {
    /// One for all tokens.
    Dense(FeedForward),
    /// Mixture of experts.
    Experts(Experts),
}

/// Two matrices around an activation, or three with a gate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FeedForward {
    /// Inner width.
    pub width: usize,
    /// Whether a third matrix gates the inner layer (SwiGLU, GeGLU).
    pub gated: bool,
    /// The nonlinearity.
    pub activation: Activation,
    /// Biases on the matrices.
    pub bias: bool,
}

/// The nonlinearity of a feed-forward layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Activation {
    /// Gaussian error linear unit, exact or by tanh.
    Gelu,
    /// x·σ(x); gated it is SwiGLU.
    Silu,
    /// max(0, x).
    Relu,
    /// max(0, x)².
    SquaredRelu,
}

/// A mixture-of-experts layer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experts {
    /// Routed experts.
    pub count: usize,
    /// How many of them each token visits.
    pub per_token: usize,
    /// Each of them.
    pub expert: FeedForward,
    /// Experts that every token visits, as one feed-forward layer of their joint width.
    pub shared: Option<FeedForward>,
    /// A learned gate on the shared expert (Qwen 2 MoE).
    pub shared_gate: bool,
    /// A correction bias per expert in the router (DeepSeek-V3).
    pub router_bias: bool,
    /// Experts in groups of which a token visits only some (DeepSeek's device- and node-limited routing).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group_limit: Option<GroupLimit>,
}

/// Groups of experts of which a token visits only some.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupLimit {
    /// Groups of equal numbers of experts.
    pub groups: usize,
    /// How many of them a token visits at most.
    pub per_token: usize,
}

/// The layers before the first block.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Embedding {
    /// How positions enter.
    pub position: Position,
    /// Width of the token embedding where it differs from `hidden`; a projection bridges them (OPT 350M).
    pub width: Option<usize>,
    /// Sentence types with an embedding each (BERT: 2).
    pub token_types: usize,
    /// Norm after the embedding (BLOOM, BERT).
    pub norm: Option<Norm>,
}

/// How a model knows where a token stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Position {
    /// A learned vector for each of `n` positions (counted as stored: OPT keeps two more than it uses).
    Learned(usize),
    /// Queries and keys are rotated.
    Rotary,
    /// A bias linear in the distance.
    Alibi,
    /// Learned biases per head for `buckets` of distance, shared by the blocks of a stack (T5).
    RelativeBias {
        /// Buckets of distance.
        buckets: usize,
        /// Heads with a bias each.
        heads: usize,
        /// Stacks with a table each: 2 in an encoder-decoder.
        stacks: usize,
    },
}

/// The layers after the last block.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Head {
    /// Whether the output projection is the token embedding itself.
    pub tied: bool,
    /// Bias on the output projection.
    pub bias: bool,
    /// A dense layer, an activation and a norm before the projection (BERT's masked-language head).
    pub transform: bool,
    /// A dense layer over the first token (BERT's pooler).
    pub pooler: bool,
}

impl Model {
    /// Blocks in all.
    pub fn layers(&self) -> usize {
        self.blocks.iter().map(|run| run.count).sum()
    }

    /// The fewest experts of a block that has some; `None` in a dense model.
    pub fn fewest_experts(&self) -> Option<usize> {
        let counts = self.blocks.iter().filter_map(|run| match &run.block.mlp {
            Mlp::Experts(experts) => Some(experts.count),
            Mlp::Dense(_) => None,
        });
        counts.min()
    }

    /// Every attention of every kind of block.
    pub fn attentions(&self) -> impl Iterator<Item = &Attention> {
        self.blocks
            .iter()
            .flat_map(|run| std::iter::once(&run.block.attention).chain(&run.block.cross_attention))
    }

    /// Whether this number of tensor ranks of an inference engine have as many heads each: query heads are divided, those of
    /// keys and values are divided or, where they are fewer than ranks, repeated.
    pub fn shares_heads(&self, tensor: usize) -> bool {
        self.attentions().all(|attention| {
            let kv = attention.kv_heads;
            attention.heads.is_multiple_of(tensor) && (kv.is_multiple_of(tensor) || tensor.is_multiple_of(kv))
        })
    }

    /// Whether it is an encoder-decoder: some block reads the encoder's output.
    pub fn decodes(&self) -> bool {
        self.blocks.iter().any(|run| run.block.cross_attention.is_some())
    }
}
