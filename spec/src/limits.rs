//! The largest sizes that are read from outside. Whoever reads a size checks it here before anything is made of it: a list
//! as long as a number in a file says would fill any memory.
//!
//! | size | most | why that is generous |
//! | --- | --- | --- |
//! | ranks, sequences of a batch, tokens of a sequence, requests | 10⁷ | fifty times the largest machine |
//! | width of the residual stream, heads, ranks of compressions | 10⁶ | fifty times GPT-3's 12,288 |
//! | inner width of a feed-forward layer | 10⁷ | |
//! | vocabulary | 10⁸ | four hundred times Gemma's 256,000 |
//! | blocks | 2,000 | twice DeepNet's; planning time grows with the square |
//! | experts | 10⁵ | |
//! | parameters of a bucket | 10¹⁵ | |
//! | parameters of a model | 10¹⁷ | a hundred thousand times the largest |
//! | bytes of a transfer or a kernel | 10¹⁵ | a thousand times the memory of the largest GPU |
//! | time of an op, a message or a step in a trace | a day | the simulator's clock ends after 213 days |

use crate::units::Seconds;

/// What an integer counts, and its limits.
///
/// The upper limits are far above any model and small enough to catch typing errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Count {
    /// The counted thing, with its article.
    pub meaning: &'static str,
    /// The least that makes sense.
    pub least: u64,
    /// The most.
    pub most: u64,
}

impl Count {
    /// The same count, with 0 allowed.
    pub const fn or_zero(self) -> Self {
        Self { least: 0, ..self }
    }

    /// Whether a number is between the limits.
    pub fn allows(&self, number: u64) -> bool {
        (self.least..=self.most).contains(&number)
    }

    /// What a number outside of the limits should have been.
    pub fn expected(&self) -> String {
        format!("it holds {}, a whole number from {} to {}", self.meaning, self.least, self.most)
    }
}

/// The largest count in a plan, such as of ranks and sequences.
pub const MOST: usize = 10_000_000;

/// The most bytes of a transfer or a kernel that a trace names.
pub const BYTES: f64 = 1e15;

/// The most microbatches times blocks of a step that is simulated op by op: each takes some 6 KiB. The largest published
/// runs have about a hundredth of it.
pub const BLOCK_PASSES: usize = 1_000_000;

/// The longest time of a single thing that a trace names.
pub const LONGEST: Seconds = Seconds::new(86_400.0);

const fn count(meaning: &'static str, most: u64) -> Count {
    Count { meaning, least: 1, most }
}

/// Width of the residual stream.
pub const HIDDEN: Count = count("the width of the residual stream", 1_000_000);
/// Blocks. DeepNet has 1,000 (arXiv 2203.00555), and planning time grows with the square of them.
pub const LAYERS: Count = count("the number of blocks", 2_000);
/// Query heads.
pub const HEADS: Count = count("the number of attention heads", 1_000_000);
/// Key and value heads.
pub const KV_HEADS: Count = count("the number of key and value heads", 1_000_000);
/// Width of a head, or of a part of it.
pub const HEAD_DIM: Count = count("the width of a head or of a part of it", 100_000);
/// Rank of a low-rank projection.
pub const RANK: Count = count("the rank of a compression", 1_000_000);
/// Inner width of a feed-forward layer.
pub const INNER: Count = count("the inner width of a feed-forward layer", 10_000_000);
/// Vocabulary.
pub const VOCAB: Count = count("the number of entries of the vocabulary", 100_000_000);
/// Positions with a learned embedding.
pub const POSITIONS: Count = count("the number of positions", 1_000_000_000);
/// Width of an embedding that is not the residual stream's.
pub const EMBEDDING: Count = count("the width of the token embedding", 1_000_000);
/// Sentence types.
pub const TOKEN_TYPES: Count = count("the number of sentence types", 1_000_000);
/// Keys that a query sees.
pub const WINDOW: Count = count("the number of keys that a query sees", 1_000_000_000);
/// Tokens that a causal convolution sees.
pub const CONVOLUTION: Count = count("the number of tokens that the convolution sees", 10_000);
/// Routed or shared experts.
pub const EXPERTS: Count = count("the number of experts", 100_000);
/// Routed experts of a token.
pub const EXPERTS_PER_TOKEN: Count = count("the number of experts that a token visits", 100_000);
/// An index of a block or a distance between blocks.
pub const BLOCK: Count = count("a number of blocks", 1_000_000);
/// Norms of a block.
pub const NORMS: Count = Count { meaning: "the number of norms in a parallel block", least: 1, most: 2 };
/// Buckets of distance.
pub const BUCKETS: Count = count("the number of buckets of distance", 1_000_000);
/// Ranks along an axis.
pub const RANKS: Count = count("the number of ranks along an axis", MOST as u64);
/// Sequences of a step or of a part of it.
pub const SEQUENCES: Count = count("the number of sequences", MOST as u64);
/// Tokens of a sequence.
pub const TOKENS: Count = count("the tokens of a sequence", MOST as u64);
/// Requests to an inference engine.
pub const REQUESTS: Count = count("the number of requests", MOST as u64);
/// Parameters of a bucket of gradients.
pub const BUCKET: Count = count("the parameters of a bucket", 1_000_000_000_000_000);
/// Parameters of a model. Sums of their bytes, some twenty each, stay below 2⁶⁴.
pub const PARAMETERS: Count = count("the parameters of the model", 100_000_000_000_000_000);
/// The alignment to which a size is padded.
pub const MULTIPLE: Count = count("what it is padded to a multiple of", MOST as u64);

/// Every count.
pub const COUNTS: [Count; 25] = [
    HIDDEN,
    LAYERS,
    HEADS,
    KV_HEADS,
    HEAD_DIM,
    RANK,
    INNER,
    VOCAB,
    POSITIONS,
    EMBEDDING,
    TOKEN_TYPES,
    WINDOW,
    CONVOLUTION,
    EXPERTS,
    EXPERTS_PER_TOKEN,
    BLOCK,
    NORMS,
    BUCKETS,
    RANKS,
    SEQUENCES,
    TOKENS,
    REQUESTS,
    BUCKET,
    PARAMETERS,
    MULTIPLE,
];
