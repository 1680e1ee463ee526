//! Adapters beside frozen weights: what is trained where the model is not.
//!
//! An adapter of rank r beside a matrix of (k × n) is a product with (k × r) and one with (r × n), whose result is scaled and
//! added to that of the matrix (LoRA, Hu et al. 2021, arXiv 2106.09685, section 4.1). Its weights alone have gradients and
//! optimizer state: r (k + n) of them. Backward goes through the matrices to their inputs and makes no gradient of them.
//!
//! The tensor axis cuts an adapter as it cuts its matrix. By column: every rank holds (k × r), and its columns of (r × n). By row:
//! every rank holds its rows of (k × r), and (r × n), so that its result is a summand as the matrix's is. Of what every rank
//! holds, each makes a summand of the gradient.

use crate::limits::Count;
use crate::model::weights::{Split, Weight};
use crate::model::{Attention, Block, BlockRun, Mlp, Model};
use crate::units::Bytes;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;

/// Ranks of adapters.
pub const RANK: Count = Count { meaning: "the rank of adapters", least: 1, most: 65_536 };

/// The adapters of a job, and how it keeps what they stand beside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Adapters {
    /// The inner width of each.
    pub rank: usize,
    /// The matrices that have one.
    pub targets: Vec<Target>,
    /// How frozen matrices are stored.
    #[serde(default, skip_serializing_if = "BaseFormat::is_default")]
    pub base: BaseFormat,
}

/// A matrix of a block, or the head, beside which an adapter may stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Target {
    /// Queries.
    Query,
    /// Keys.
    Key,
    /// Values.
    Value,
    /// Queries, keys and values, as one matrix.
    Qkv,
    /// From the heads' outputs to the residual stream.
    Output,
    /// What the nonlinearity of a gated feed-forward layer reads.
    Gate,
    /// The first matrix of a feed-forward layer; of a gated one, what is multiplied by the gate.
    Up,
    /// The first matrices of a feed-forward layer, as one.
    Fc1,
    /// The second matrix of a feed-forward layer.
    Down,
    /// The output embedding.
    Head,
}

/// Every target, its name here, and its names in other software.
const TARGETS: [(Target, &[&str]); 10] = [
    (Target::Query, &["query", "q", "q_proj"]),
    (Target::Key, &["key", "k", "k_proj"]),
    (Target::Value, &["value", "v", "v_proj"]),
    (Target::Qkv, &["qkv", "linear_qkv", "attention_qkv"]),
    (
        Target::Output,
        &["output", "o", "o_proj", "projection", "linear_proj", "attention_dense", "output_proj"],
    ),
    (Target::Gate, &["gate", "gate_proj", "w1"]),
    (Target::Up, &["up", "up_proj", "w3"]),
    (Target::Fc1, &["fc1", "linear_fc1"]),
    (Target::Down, &["down", "down_proj", "fc2", "linear_fc2", "w2"]),
    (Target::Head, &["head", "lm_head"]),
];

impl Target {
    /// Its name in plans and arguments.
    pub fn name(self) -> &'static str {
        names(self)[0]
    }

    /// The target of one of its names.
    pub fn from_name(name: &str) -> Option<Self> {
        TARGETS.iter().find(|(_, names)| names.contains(&name)).map(|(target, _)| *target)
    }
}

fn names(target: Target) -> &'static [&'static str] {
    TARGETS
        .iter()
        .find(|(known, _)| *known == target)
        .map(|(_, names)| *names)
        .expect("every target is listed")
}

/// How a frozen matrix is stored. Products compute in the job's precision: what is stored in fewer bits is widened in
/// every pass that reads it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BaseFormat {
    /// As the job's products read it.
    #[default]
    Full,
    /// A byte, and a scale for each row.
    Int8,
    /// Four bits in blocks of 64 with a scale each of 8 bits, in blocks of 256 with a scale of 32
    /// (QLoRA's NF4 with double quantisation, Dettmers et al. 2023, arXiv 2305.14314, section 3).
    Nf4,
}

impl BaseFormat {
    /// Every format.
    pub const ALL: [BaseFormat; 3] = [BaseFormat::Full, BaseFormat::Int8, BaseFormat::Nf4];

    fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Its name in plans and arguments.
    pub fn name(self) -> &'static str {
        match self {
            BaseFormat::Full => "full",
            BaseFormat::Int8 => "int8",
            BaseFormat::Nf4 => "nf4",
        }
    }

    /// Bytes of an element where that is not what products read.
    pub fn stored(self) -> Option<Bytes> {
        match self {
            BaseFormat::Full => None,
            BaseFormat::Int8 => Some(Bytes::new(1.0)),
            BaseFormat::Nf4 => Some(Bytes::new(0.5 + 1.0 / 64.0 + 4.0 / (64.0 * 256.0))),
        }
    }
}

/// The product of a block beside which an adapter's own stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Beside {
    /// That of queries, keys and values.
    Qkv,
    /// That of the heads' outputs.
    Projection,
    /// The first of a feed-forward layer.
    Fc1,
    /// Its second.
    Fc2,
    /// That of the output embedding.
    Logits,
}

/// One adapter: from `inner` to `outer`, the full widths of its matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Adapter {
    /// Beside which product.
    pub beside: Beside,
    /// Width of its input.
    pub inner: usize,
    /// Width of its output.
    pub outer: usize,
    /// How the tensor axis cuts its output; an adapter beside a matrix that is cut by row has a whole one.
    pub split: Split,
    /// Which matrix.
    pub target: Target,
}

impl Adapter {
    /// Its two weights for this rank.
    fn weights(&self, rank: usize) -> [Weight; 2] {
        let by_row = self.split == Split::Replicated;
        let name = self.target.name();
        let into = if by_row { Split::Tensor } else { Split::Replicated };
        [Weight::matrix(name, [self.inner, rank], into), Weight::matrix(name, [rank, self.outer], self.split)]
    }
}

impl fmt::Display for Adapters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let targets: Vec<&str> = self.targets.iter().map(|target| target.name()).collect();
        write!(f, "rank {} beside {}", self.rank, targets.join(", "))?;
        match self.base {
            BaseFormat::Full => Ok(()),
            base => write!(f, ", frozen weights in {}", base.name()),
        }
    }
}

impl Adapters {
    /// Adapters of that rank beside every matrix of the blocks of a model that can have one.
    pub fn of_all(rank: usize, base: BaseFormat, model: &Model) -> Self {
        use Target::{Down, Gate, Key, Output, Query, Up, Value};
        let all = Self { rank, targets: vec![Query, Key, Value, Output, Gate, Up, Down], base };
        let blocks = model.blocks.iter().flat_map(|run| all.of_block(&run.block, model.hidden));
        let found: BTreeSet<Target> = blocks.map(|adapter| adapter.target).collect();
        Self { targets: found.into_iter().collect(), ..all }
    }

    /// Reads targets with commas or `+` between them: names of plans, of PEFT or of Megatron.
    ///
    /// # Errors
    /// What is allowed instead of a name that no matrix has.
    pub fn targets(text: &str) -> Result<Vec<Target>, String> {
        let mut targets = Vec::new();
        for name in text.split([',', '+']).map(str::trim).filter(|name| !name.is_empty()) {
            targets.push(Target::from_name(name).ok_or_else(|| {
                let known: Vec<&str> = TARGETS.iter().map(|(target, _)| target.name()).collect();
                format!("`{name}` is no matrix; known are {}", known.join(", "))
            })?);
        }
        targets.sort_unstable();
        targets.dedup();
        Ok(targets)
    }

    /// The adapters of a block of a model whose residual stream is `hidden` wide. Experts and mixers with a state have none.
    pub fn of_block(&self, block: &Block, hidden: usize) -> Vec<Adapter> {
        let Attention { heads, kv_heads, head_dim, value_head_dim, output_gate, .. } = block.attention;
        let by_head = Split::KeyValue { heads: kv_heads };
        let gated = if output_gate { 2 } else { 1 };
        let widths = [gated * heads * head_dim, kv_heads * head_dim, kv_heads * value_head_dim];
        let dense = match &block.mlp {
            Mlp::Dense(mlp) => Some(mlp),
            Mlp::Experts(_) => None,
        };
        let keeps = block.attention.recurrence.is_none();
        let attends = keeps && block.attention.latent.is_none();
        let made = |target: &Target| {
            let column = |beside, outer, split| (beside, hidden, outer, split);
            let (beside, inner, outer, split) = match (target, dense) {
                (Target::Query, _) if attends => column(Beside::Qkv, widths[0], Split::Tensor),
                (Target::Key, _) if attends => column(Beside::Qkv, widths[1], by_head),
                (Target::Value, _) if attends => column(Beside::Qkv, widths[2], by_head),
                (Target::Qkv, _) if attends => column(Beside::Qkv, widths.iter().sum(), Split::Tensor),
                (Target::Output, _) if keeps => {
                    (Beside::Projection, heads * value_head_dim, hidden, Split::Replicated)
                }
                (Target::Gate, Some(mlp)) if mlp.gated => column(Beside::Fc1, mlp.width, Split::Tensor),
                (Target::Up, Some(mlp)) => column(Beside::Fc1, mlp.width, Split::Tensor),
                (Target::Fc1, Some(mlp)) => {
                    column(Beside::Fc1, if mlp.gated { 2 * mlp.width } else { mlp.width }, Split::Tensor)
                }
                (Target::Down, Some(mlp)) => (Beside::Fc2, mlp.width, hidden, Split::Replicated),
                _ => return None,
            };
            Some(Adapter { beside, inner, outer, split, target: *target })
        };
        self.targets.iter().filter_map(made).collect()
    }

    /// The adapter of the head of a model, with `vocab` outputs.
    pub fn of_head(&self, model: &Model, vocab: usize) -> Option<Adapter> {
        let inner = model.embedding.width.unwrap_or(model.hidden);
        let (beside, target) = (Beside::Logits, Target::Head);
        let adapter = Adapter { beside, inner, outer: vocab, split: Split::Tensor, target };
        self.targets.contains(&target).then_some(adapter)
    }

    /// The trained weights beside a block's.
    pub fn block_weights(&self, block: &Block, hidden: usize) -> Vec<Weight> {
        self.of_block(block, hidden).iter().flat_map(|adapter| adapter.weights(self.rank)).collect()
    }

    /// The trained weights beside the head's.
    pub fn head_weights(&self, model: &Model, vocab: usize) -> Vec<Weight> {
        self.of_head(model, vocab).iter().flat_map(|adapter| adapter.weights(self.rank)).collect()
    }

    /// Trained parameters: r (k + n) of each matrix, the vocabulary unpadded.
    pub fn parameters(&self, model: &Model) -> u64 {
        let total = |weights: Vec<Weight>| weights.iter().map(Weight::total).fold(0, u64::saturating_add);
        let runs = model.blocks.iter();
        let of_run = |run: &BlockRun| {
            total(self.block_weights(&run.block, model.hidden)).saturating_mul(run.count as u64)
        };
        runs.map(of_run).fold(total(self.head_weights(model, model.vocab)), u64::saturating_add)
    }
}
