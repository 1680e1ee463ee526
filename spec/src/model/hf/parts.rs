//! The parts that families build their models from.

use super::config::Config;
use crate::error::SpecError;
use crate::limits::{EXPERTS, EXPERTS_PER_TOKEN, HEAD_DIM, HEADS, HIDDEN, INNER, KV_HEADS, LAYERS, VOCAB};
use crate::model::{
    Activation, Attention, Block, BlockRun, DropoutRates, Embedding, Experts, FeedForward, Head, Mask, Mlp,
    Model, Norm, Position,
};

/// The keys that LLaMA and its relatives share: the sizes, under the same keys, and rotary grouped-query attention.
pub struct Decoder {
    /// Width of the residual stream.
    pub hidden: usize,
    /// Blocks.
    pub layers: usize,
    /// Vocabulary.
    pub vocab: usize,
    /// Attention of every block, causal and without biases.
    pub attention: Attention,
}

/// Defaults for missing keys of a `Decoder`.
#[derive(Default)]
pub struct Missing {
    /// Key and value heads; the number of query heads if not given.
    pub kv_heads: Option<usize>,
    /// Width of a head; the hidden width over the heads if not given.
    pub head_dim: Option<usize>,
}

impl Decoder {
    /// Reads the shared keys.
    pub fn read(config: &Config, missing: Missing) -> Result<Self, SpecError> {
        let hidden = config.count("hidden_size", HIDDEN)?;
        let heads = config.count("num_attention_heads", HEADS)?;
        let named = config.keys.contains_key("num_key_value_heads");
        // Only a missing key has the family's default; `null` means multi-head attention.
        let default = missing.kv_heads.filter(|_| !named).unwrap_or(heads);
        let kv_heads = config.count_or("num_key_value_heads", default, KV_HEADS)?;
        if !heads.is_multiple_of(kv_heads) {
            let allowed = format!("it must divide `num_attention_heads`, {heads}");
            return Err(config.bad("num_key_value_heads", &allowed));
        }
        let head_dim = match config.optional_count("head_dim", HEAD_DIM)?.or(missing.head_dim) {
            Some(head_dim) => head_dim,
            None => head_dim(config, ("hidden_size", hidden), ("num_attention_heads", heads))?,
        };
        let layers = config.count("num_hidden_layers", LAYERS)?;
        let vocab = config.count("vocab_size", VOCAB)?;
        let rotary_head_dim = rotary_head_dim(config, head_dim, 1.0)?;
        let attention = Attention { rotary: true, rotary_head_dim, ..attention(heads, kv_heads, head_dim) };
        Ok(Self { hidden, layers, vocab, attention })
    }

    /// A block with two RMSNorms.
    pub fn block(&self, attention: Attention, mlp: Mlp) -> Block {
        Block::sequential(Norm::RmsNorm, attention, mlp)
    }

    /// The model with these blocks and an RMSNorm after them.
    pub fn model(&self, config: &Config, blocks: Vec<BlockRun>, head: Head) -> Result<Model, SpecError> {
        Ok(Model {
            name: String::new(),
            hidden: self.hidden,
            vocab: self.vocab,
            dropout: config.any_above_zero(&[("attention_dropout", 0.0)])?,
            dropout_rates: attention_alone(config)?,
            embedding: embedding(Position::Rotary),
            final_norm: Some(Norm::RmsNorm),
            norm_epsilon: None,
            head,
            blocks,
        })
    }
}

/// The rates of a model that drops out probabilities of attention only, if it does.
fn attention_alone(config: &Config) -> Result<Option<DropoutRates>, SpecError> {
    let attention = config.probability("attention_dropout", 0.0)?;
    Ok((attention > 0.0).then_some(DropoutRates { attention, ..DropoutRates::all(0.0) }))
}

/// The width of a head where the heads share the hidden width evenly. Each size comes with its key.
pub fn head_dim(config: &Config, hidden: (&str, usize), heads: (&str, usize)) -> Result<usize, SpecError> {
    config.check_multiple(hidden.0, heads, hidden.1)?;
    Ok(hidden.1 / heads.1)
}

/// The columns of a head of `head_dim` that are rotated where it is not all: the part of it that the file names, by
/// itself (`partial_rotary_factor`, `rotary_pct`) or among `rope_parameters`; `missing` stands for one that is missing.
pub fn rotary_head_dim(config: &Config, head_dim: usize, missing: f64) -> Result<Option<usize>, SpecError> {
    let key = config.spelling(&["partial_rotary_factor", "rotary_pct"]);
    let nested = config.keys.get("rope_parameters").and_then(|table| table.get("partial_rotary_factor"));
    let part = match config.keys.get(key).filter(|value| !value.is_null()).or(nested) {
        None => missing,
        Some(value) => value.as_f64().filter(|part| *part > 0.0 && *part <= 1.0).ok_or_else(|| {
            config.bad(key, "a part of a head's width above 0 and up to 1 should stand here")
        })?,
    };
    let rotated = (part * head_dim as f64) as usize;
    Ok((rotated < head_dim).then_some(rotated))
}

/// Causal attention without biases or rotation.
pub fn attention(heads: usize, kv_heads: usize, head_dim: usize) -> Attention {
    Attention {
        heads,
        kv_heads,
        head_dim,
        value_head_dim: head_dim,
        mask: Mask::Causal,
        rotary: false,
        rotary_head_dim: None,
        rotary_base: None,
        qkv_bias: false,
        output_bias: false,
        qk_norm: false,
        latent: None,
        output_gate: false,
        indexer: None,
        recurrence: None,
    }
}

/// Causal attention with as many key and value heads as query heads, and biases on all projections or on none.
pub fn multi_head(heads: usize, head_dim: usize, bias: bool) -> Attention {
    Attention { qkv_bias: bias, output_bias: bias, ..attention(heads, heads, head_dim) }
}

/// The gated feed-forward layer of LLaMA and its kin.
pub fn gated_mlp(config: &Config, width_key: &str) -> Result<FeedForward, SpecError> {
    let width = config.count(width_key, INNER)?;
    let activation = config.activation_or("hidden_act", Activation::Silu)?;
    Ok(FeedForward { width, gated: true, activation, bias: false })
}

/// Experts like `expert`, without a shared one; `count_key` has their number.
pub fn routed(config: &Config, count_key: &str, expert: FeedForward) -> Result<Experts, SpecError> {
    let count = config.count(count_key, EXPERTS)?;
    let per_token = config.count("num_experts_per_tok", EXPERTS_PER_TOKEN)?;
    if per_token > count {
        let allowed = format!("it cannot exceed `{count_key}`, {count}");
        return Err(config.bad("num_experts_per_tok", &allowed));
    }
    Ok(Experts {
        count,
        per_token,
        expert,
        shared: None,
        shared_gate: false,
        router_bias: false,
        group_limit: None,
    })
}

/// A token embedding as wide as the residual stream, and positions.
pub fn embedding(position: Position) -> Embedding {
    Embedding { position, width: None, token_types: 0, norm: None }
}

/// An output projection without a bias.
pub fn head(config: &Config, tied_by_default: bool) -> Result<Head, SpecError> {
    let tied = config.flag_or("tie_word_embeddings", tied_by_default)?;
    Ok(Head { tied, bias: false, transform: false, pooler: false })
}

/// One run of identical blocks.
pub fn repeat(count: usize, block: Block) -> Vec<BlockRun> {
    vec![BlockRun { count, block }]
}

/// Blocks in order, equal neighbours together.
pub fn runs(blocks: impl Iterator<Item = Block>) -> Vec<BlockRun> {
    let mut runs: Vec<BlockRun> = Vec::new();
    for block in blocks {
        match runs.last_mut() {
            Some(run) if run.block == block => run.count += 1,
            _ => runs.push(BlockRun { count: 1, block }),
        }
    }
    runs
}

/// The mask of each block: from `layer_types` if the file has it, else a window where `slides` says so.
pub fn masks(
    config: &Config,
    layers: usize,
    window: Option<usize>,
    slides: impl Fn(usize) -> bool,
) -> Result<Vec<Mask>, SpecError> {
    let Some(window) = window else { return Ok(vec![Mask::Causal; layers]) };
    let mask = |windowed: bool| if windowed { Mask::Window(window) } else { Mask::Causal };
    let meaning = "\"full_attention\" or \"sliding_attention\" for each block";
    let Some(kinds) = config.optional_list("layer_types", meaning)? else {
        return Ok((0..layers).map(|layer| mask(slides(layer))).collect());
    };
    let masks = kinds.iter().map(|kind| match kind.as_str() {
        Some("full_attention") => Some(mask(false)),
        Some("sliding_attention") => Some(mask(true)),
        _ => None,
    });
    let masks: Option<Vec<Mask>> = masks.collect();
    masks
        .filter(|masks| masks.len() == layers)
        .ok_or_else(|| config.bad("layer_types", &format!("it holds {meaning} of the {layers}")))
}
