//! The weight tensors of a model, and how tensor parallelism splits each.
//!
//! The split is Megatron's (arXiv 1909.08053, section 3): the first matrix of attention and of the MLP is cut by
//! column together with its bias, the second by row; what is added after the row-parallel product, and every norm,
//! is on all ranks. Expert parallelism spreads the routed experts' copies. Data and pipeline parallelism are not known
//! here.

mod block;

use super::{Block, Model, Norm, Position};

/// One weight tensor, or several of the same shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Weight {
    /// Its purpose; two weights of a block never share it.
    pub name: &'static str,
    /// Elements of one copy.
    pub elements: u64,
    /// How many there are: one for each norm of a kind, one for each routed expert.
    pub copies: u64,
    /// How tensor parallelism divides each copy.
    pub split: Split,
    /// Whether each copy belongs to a routed expert, so that expert parallelism spreads the copies over ranks.
    pub routed: bool,
    /// Rows and columns of each matrix that a copy is made of; `None` of vectors.
    pub matrix: Option<[u64; 2]>,
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
        let matrix = match *shape {
            [] | [_] => None,
            [.., rows, columns] => Some([rows as u64, columns as u64]),
        };
        Self { name, elements: elements(shape), copies: 1, split, routed: false, matrix }
    }

    /// A matrix.
    pub(crate) fn matrix(name: &'static str, shape: [usize; 2], split: Split) -> Self {
        Self::new(name, &shape, split)
    }

    /// Elements of all copies together.
    pub fn total(&self) -> u64 {
        self.elements.saturating_mul(self.copies)
    }

    /// Whether it is added to what passes or scales it, element by element: norms, biases, positions. A grid of tensor
    /// ranks cuts it in one direction only.
    pub fn is_vector(&self) -> bool {
        self.split == Split::Replicated
            || ["bias", "gain", "decay"].iter().any(|end| self.name.ends_with(end))
    }

    /// Rows and columns of each matrix that takes part in products; `None` of vectors and of convolutions, which work on each
    /// channel by itself.
    pub fn multiplied(&self) -> Option<[u64; 2]> {
        let by_channel = ["bias", "norm", "convolution"].iter().any(|end| self.name.ends_with(end));
        self.matrix.filter(|_| !by_channel)
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

    /// Elements of a routed weight that a rank holds where `expert` ranks share the copies and `expert_tensor` ranks
    /// each of them.
    pub fn routed_on_rank(&self, expert: usize, expert_tensor: usize) -> u64 {
        let copies = self.copies.div_ceil(expert.max(1) as u64);
        Weight { copies, ..*self }.elements_on_rank(expert_tensor)
    }
}

impl Model {
    /// The layers before the first block, with a token embedding of `vocab` entries (the padded vocabulary).
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

    /// The layers after the final norm, with `vocab` outputs (the padded vocabulary).
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
    /// Embeddings count in full, as in the figures that mixture-of-experts models are published with.
    pub fn active_parameters(&self) -> u64 {
        self.count(|block| block.active_parameters(self.hidden))
    }

    fn count(&self, of_block: impl Fn(&Block) -> u64) -> u64 {
        let runs = self.blocks.iter().map(|run| of_block(&run.block).saturating_mul(run.count as u64));
        let ends = [self.embedding_weights(self.vocab), self.final_weights(), self.head_weights(self.vocab)];
        sum(runs.chain(ends.iter().flatten().map(Weight::total)))
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
