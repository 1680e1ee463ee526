//! The weight tensors of a model, and how tensor parallelism splits each.
//!
//! The split is Megatron's (arXiv 1909.08053, section 3): the first matrix of attention and of the MLP is cut by
//! column together with its bias, the second by row; what is added after the row-parallel product, and every norm,
//! is on all ranks. Data, pipeline and expert parallelism are not known here.

use super::{Attention, Block, Experts, FeedForward, Latent, Mlp, Model, Norm, Position};

/// One weight tensor, or several of the same shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Weight {
    /// What it is for; two weights of a block never share it.
    pub name: &'static str,
    /// Elements of one copy.
    pub elements: u64,
    /// How many there are: one for each norm of a kind, one for each routed expert.
    pub copies: u64,
    /// How tensor parallelism divides each copy.
    pub split: Split,
    /// Whether each copy belongs to a routed expert, so that expert parallelism spreads the copies over ranks.
    pub routed: bool,
}

/// How tensor parallelism of degree t divides a weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Split {
    /// Every rank holds all of it.
    Replicated,
    /// Every rank holds 1/t.
    Tensor,
    /// Key and value heads: every rank holds 1/min(t, heads), so that beyond `heads` ranks some hold the same head.
    KeyValue {
        /// Key and value heads.
        heads: usize,
    },
}

impl Weight {
    fn new(name: &'static str, shape: &[usize], split: Split) -> Self {
        Self { name, elements: elements(shape), copies: 1, split, routed: false }
    }

    /// Elements of all copies together.
    pub fn total(&self) -> u64 {
        self.elements.saturating_mul(self.copies)
    }

    /// Elements that one of `tensor` ranks of the tensor axis holds, all copies together; each copy rounds up.
    pub fn elements_on_rank(&self, tensor: usize) -> u64 {
        let ranks = match self.split {
            Split::Replicated => 1,
            Split::Tensor => tensor,
            Split::KeyValue { heads } => tensor.min(heads),
        };
        self.elements.div_ceil(ranks.max(1) as u64).saturating_mul(self.copies)
    }
}

impl Block {
    /// The weights of one block of a model whose residual stream is `hidden` wide.
    pub fn weights(&self, hidden: usize) -> Vec<Weight> {
        let mut weights = norm_weights(self.norm, hidden, self.norms);
        attention_weights(&self.attention, hidden, &SELF_ATTENTION, &mut weights);
        if let Some(cross) = &self.cross_attention {
            attention_weights(cross, hidden, &CROSS_ATTENTION, &mut weights);
        }
        match &self.mlp {
            Mlp::Dense(mlp) => feed_forward_weights(mlp, hidden, &DENSE, &mut weights),
            Mlp::Experts(experts) => expert_weights(experts, hidden, &mut weights),
        }
        weights
    }

    /// Parameters of one block that take part in the forward pass of one token: all but the experts it skips.
    fn active_parameters(&self, hidden: usize) -> u64 {
        let visited = match &self.mlp {
            Mlp::Dense(_) => 1,
            Mlp::Experts(experts) => experts.per_token as u64,
        };
        let active = |weight: &Weight| Weight { copies: visited, ..*weight }.total();
        sum(self
            .weights(hidden)
            .iter()
            .map(|weight| if weight.routed { active(weight) } else { weight.total() }))
    }
}

impl Model {
    /// What stands before the first block, with a token embedding of `vocab` entries (the padded vocabulary).
    pub fn embedding_weights(&self, vocab: usize) -> Vec<Weight> {
        let embedding = &self.embedding;
        let width = embedding.width.unwrap_or(self.hidden);
        let mut weights = vec![Weight::new("token embedding", &[vocab, width], Split::Tensor)];
        if embedding.width.is_some() {
            let shape = [width, self.hidden];
            weights.push(Weight::new("embedding projection", &shape, Split::Replicated));
        }
        match embedding.position {
            Position::Learned(positions) => {
                let shape = [positions, self.hidden];
                weights.push(Weight::new("position embedding", &shape, Split::Replicated));
            }
            Position::RelativeBias { buckets, heads, stacks } => {
                let table = Weight::new("relative bias", &[buckets, heads], Split::Replicated);
                weights.push(Weight { copies: stacks as u64, ..table });
            }
            Position::Rotary | Position::Alibi => {}
        }
        if embedding.token_types > 0 {
            let shape = [embedding.token_types, self.hidden];
            weights.push(Weight::new("token type embedding", &shape, Split::Replicated));
        }
        if let Some(norm) = embedding.norm {
            weights.extend(norm_weights(norm, self.hidden, 1));
        }
        weights
    }

    /// The norm after the last block; in an encoder-decoder also the one after the encoder.
    pub fn final_weights(&self) -> Vec<Weight> {
        let decodes = self.blocks.iter().any(|run| run.block.cross_attention.is_some());
        let stacks = if decodes { 2 } else { 1 };
        self.final_norm.map(|norm| norm_weights(norm, self.hidden, stacks)).unwrap_or_default()
    }

    /// What stands after the final norm, with `vocab` outputs (the padded vocabulary).
    ///
    /// A tied projection is the token embedding and not listed here.
    pub fn head_weights(&self, vocab: usize) -> Vec<Weight> {
        let hidden = self.hidden;
        let width = self.embedding.width.unwrap_or(hidden);
        let mut weights = Vec::new();
        if self.head.pooler {
            weights.push(Weight::new("pooler", &[hidden, hidden], Split::Replicated));
            weights.push(Weight::new("pooler bias", &[hidden], Split::Replicated));
        }
        if self.head.transform {
            weights.push(Weight::new("head transform", &[hidden, hidden], Split::Replicated));
            weights.push(Weight::new("head transform bias", &[hidden], Split::Replicated));
            weights.extend(norm_weights(Norm::LayerNorm, hidden, 1));
        }
        if self.embedding.width.is_some() {
            weights.push(Weight::new("head narrowing", &[hidden, width], Split::Replicated));
        }
        if !self.head.tied {
            weights.push(Weight::new("head", &[width, vocab], Split::Tensor));
        }
        if self.head.bias {
            weights.push(Weight::new("head bias", &[vocab], Split::Tensor));
        }
        weights
    }

    /// Parameters, each shared one counted once and the vocabulary unpadded. `u64::MAX` if there are more.
    pub fn parameters(&self) -> u64 {
        self.count(|block| sum(block.weights(self.hidden).iter().map(Weight::total)))
    }

    /// Parameters that take part in the forward pass of one token: of the experts, only those it visits.
    ///
    /// Embeddings count whole, as in the figures that mixture-of-experts models are published with.
    pub fn active_parameters(&self) -> u64 {
        self.count(|block| block.active_parameters(self.hidden))
    }

    fn count(&self, of_block: impl Fn(&Block) -> u64) -> u64 {
        let runs = self.blocks.iter().map(|run| of_block(&run.block).saturating_mul(run.count as u64));
        let ends = [self.embedding_weights(self.vocab), self.final_weights(), self.head_weights(self.vocab)];
        sum(runs.chain(ends.iter().flatten().map(Weight::total)))
    }
}

/// What the weights of an attention are called.
struct AttentionNames {
    query: &'static str,
    query_bias: &'static str,
    key_value: &'static str,
    key_value_bias: &'static str,
    qk_norm: &'static str,
    output: &'static str,
    output_bias: &'static str,
}

const SELF_ATTENTION: AttentionNames = AttentionNames {
    query: "query",
    query_bias: "query bias",
    key_value: "key and value",
    key_value_bias: "key and value bias",
    qk_norm: "query and key norm",
    output: "attention output",
    output_bias: "attention output bias",
};

const CROSS_ATTENTION: AttentionNames = AttentionNames {
    query: "cross query",
    query_bias: "cross query bias",
    key_value: "cross key and value",
    key_value_bias: "cross key and value bias",
    qk_norm: "cross query and key norm",
    output: "cross attention output",
    output_bias: "cross attention output bias",
};

fn attention_weights(a: &Attention, hidden: usize, names: &AttentionNames, weights: &mut Vec<Weight>) {
    match &a.latent {
        Some(latent) => latent_weights(a, latent, hidden, weights),
        None => {
            let queries = a.heads.saturating_mul(a.head_dim);
            let keys_values = a.kv_heads.saturating_mul(a.head_dim.saturating_add(a.value_head_dim));
            let by_head = Split::KeyValue { heads: a.kv_heads };
            weights.push(Weight::new(names.query, &[hidden, queries], Split::Tensor));
            weights.push(Weight::new(names.key_value, &[hidden, keys_values], by_head));
            if a.qkv_bias {
                weights.push(Weight::new(names.query_bias, &[queries], Split::Tensor));
                weights.push(Weight::new(names.key_value_bias, &[keys_values], by_head));
            }
        }
    }
    if a.qk_norm {
        let gain = Weight::new(names.qk_norm, &[a.head_dim], Split::Replicated);
        weights.push(Weight { copies: 2, ..gain });
    }
    weights.push(Weight::new(names.output, &[a.heads, a.value_head_dim, hidden], Split::Tensor));
    if a.output_bias {
        weights.push(Weight::new(names.output_bias, &[hidden], Split::Replicated));
    }
}

/// Multi-head latent attention up to its output projection (arXiv 2405.04434, section 2.1 and appendix C): the
/// projections down to the ranks are on every tensor rank, those up to the heads are divided.
fn latent_weights(a: &Attention, latent: &Latent, hidden: usize, weights: &mut Vec<Weight>) {
    use Split::{Replicated, Tensor};
    match latent.query_rank {
        Some(rank) => {
            weights.push(Weight::new("query down", &[hidden, rank], Replicated));
            weights.push(Weight::new("query rank norm", &[rank], Replicated));
            weights.push(Weight::new("query up", &[rank, a.heads, a.head_dim], Tensor));
            if a.qkv_bias {
                weights.push(Weight::new("query down bias", &[rank], Replicated));
            }
        }
        None => weights.push(Weight::new("query", &[hidden, a.heads, a.head_dim], Tensor)),
    }
    let compressed = latent.kv_rank.saturating_add(latent.rotary_head_dim);
    let expanded = a.head_dim.saturating_sub(latent.rotary_head_dim).saturating_add(a.value_head_dim);
    weights.push(Weight::new("key and value down", &[hidden, compressed], Replicated));
    weights.push(Weight::new("key and value rank norm", &[latent.kv_rank], Replicated));
    weights.push(Weight::new("key and value up", &[latent.kv_rank, a.heads, expanded], Tensor));
    if a.qkv_bias {
        weights.push(Weight::new("key and value down bias", &[compressed], Replicated));
    }
}

/// What the weights of a feed-forward layer are called.
struct FeedForwardNames {
    first: &'static str,
    first_bias: &'static str,
    second: &'static str,
    second_bias: &'static str,
}

const DENSE: FeedForwardNames =
    FeedForwardNames { first: "fc1", first_bias: "fc1 bias", second: "fc2", second_bias: "fc2 bias" };

const EXPERT: FeedForwardNames = FeedForwardNames {
    first: "expert fc1",
    first_bias: "expert fc1 bias",
    second: "expert fc2",
    second_bias: "expert fc2 bias",
};

const SHARED_EXPERT: FeedForwardNames = FeedForwardNames {
    first: "shared expert fc1",
    first_bias: "shared expert fc1 bias",
    second: "shared expert fc2",
    second_bias: "shared expert fc2 bias",
};

fn feed_forward_weights(
    mlp: &FeedForward,
    hidden: usize,
    names: &FeedForwardNames,
    weights: &mut Vec<Weight>,
) {
    let inputs = if mlp.gated { 2 } else { 1 };
    weights.push(Weight::new(names.first, &[inputs, hidden, mlp.width], Split::Tensor));
    if mlp.bias {
        weights.push(Weight::new(names.first_bias, &[inputs, mlp.width], Split::Tensor));
    }
    weights.push(Weight::new(names.second, &[mlp.width, hidden], Split::Tensor));
    if mlp.bias {
        weights.push(Weight::new(names.second_bias, &[hidden], Split::Replicated));
    }
}

fn expert_weights(experts: &Experts, hidden: usize, weights: &mut Vec<Weight>) {
    weights.push(Weight::new("router", &[hidden, experts.count], Split::Replicated));
    if experts.router_bias {
        weights.push(Weight::new("router bias", &[experts.count], Split::Replicated));
    }
    let mut routed = Vec::new();
    feed_forward_weights(&experts.expert, hidden, &EXPERT, &mut routed);
    weights.extend(routed.iter().map(|w| Weight { copies: experts.count as u64, routed: true, ..*w }));
    if let Some(shared) = &experts.shared {
        feed_forward_weights(shared, hidden, &SHARED_EXPERT, weights);
    }
    if experts.shared_gate {
        weights.push(Weight::new("shared expert gate", &[hidden], Split::Replicated));
    }
}

fn norm_weights(norm: Norm, width: usize, copies: usize) -> Vec<Weight> {
    let names: &[&'static str] = match norm {
        Norm::LayerNorm => &["norm gain", "norm bias"],
        Norm::LayerNormPlain => &[],
        Norm::RmsNorm => &["norm gain"],
    };
    let one = |name: &&'static str| Weight::new(name, &[width], Split::Replicated);
    names.iter().map(|name| Weight { copies: copies as u64, ..one(name) }).collect()
}

/// The product of a shape's dims. A shape too large to count saturates, so that no input can overflow.
fn elements(shape: &[usize]) -> u64 {
    shape.iter().fold(1, |product: u64, dim| product.saturating_mul(*dim as u64))
}

fn sum(counts: impl Iterator<Item = u64>) -> u64 {
    counts.fold(0, u64::saturating_add)
}
