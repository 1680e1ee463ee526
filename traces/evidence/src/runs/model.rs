//! The model that a row describes.

use super::names::MODELS;
use super::plan::NO_DROPOUT;
use super::{NoPlan, Run};
use trainwright_spec::limits::{
    EXPERTS, EXPERTS_PER_TOKEN, HEADS, HIDDEN, INNER, KV_HEADS, LAYERS, TOKENS, VOCAB,
};
use trainwright_spec::model::{
    Activation, Attention, Block, BlockRun, Embedding, Experts, FeedForward, Head, Mask, Mlp, Model, Norm,
    Position,
};
use trainwright_spec::stack::Stack;

impl Run {
    /// A decoder as GPT-2's (layer norms, learned positions, biases, dropout, tied head), or with gated feed-forward
    /// layers as LLaMA's (RMS norms, rotary positions, no biases, untied head). The number of parameters, if
    /// given, decides the feed-forward width if that is blank, and whether the head is tied. Mixtures of experts are taken
    /// from the catalog if it has one of these sizes: rows have no columns for shared experts or latent attention.
    ///
    /// # Errors
    /// `Unsupported` without the sizes that have no default; `Invalid` for heads that do not divide the width.
    pub fn model(&self, stack: &Stack) -> Result<Model, NoPlan> {
        let layers = self.layers.ok_or_else(|| NoPlan::missing("layers"))?;
        let hidden = self.hidden.ok_or_else(|| NoPlan::missing("hidden"))?;
        let sizes = [
            ("layers", self.layers, LAYERS),
            ("hidden", self.hidden, HIDDEN),
            ("heads", self.heads, HEADS),
            ("kv_heads", self.kv_heads, KV_HEADS),
            ("ffn_hidden", self.ffn_hidden, INNER),
            ("vocab", self.vocab, VOCAB),
            ("seq_len", self.seq_len, TOKENS),
            ("num_experts", self.num_experts, EXPERTS),
            ("top_k", self.top_k, EXPERTS_PER_TOKEN),
            ("moe_ffn_hidden", self.moe_ffn_hidden, INNER),
        ];
        let given = sizes.iter().filter_map(|(column, size, limit)| Some((column, (*size)?, limit)));
        let mut beyond = given.filter(|(_, size, limit)| !limit.allows(*size as u64));
        if let Some((column, size, limit)) = beyond.next() {
            return Err(NoPlan::Invalid(format!("`{column}` is {size}; {}", limit.expected())));
        }
        let heads = self.heads.unwrap_or_else(|| default_heads(hidden, self.tp.unwrap_or(1)));
        if !hidden.is_multiple_of(heads) && self.num_experts.is_none() {
            return Err(NoPlan::Invalid(format!("`heads` is {heads}; it must divide `hidden` = {hidden}")));
        }
        if let Some(known) = self.known_mixture(layers) {
            return Ok(known);
        }
        let default = self.sized(heads, self.ffn_hidden)?;
        let model = match (self.ffn_hidden, self.num_experts, self.parameters()) {
            (None, None, Some(parameters)) => self.sized(heads, Some(fitting_width(&default, parameters)))?,
            _ => default,
        };
        let drops_out = stack.drops_out.unwrap_or(true) && !self.notes.contains(NO_DROPOUT);
        let dropout = model.dropout && drops_out;
        Ok(self.with_head(Model { dropout, ..model }, stack))
    }

    fn sized(&self, heads: usize, width: Option<usize>) -> Result<Model, NoPlan> {
        let layers = self.layers.ok_or_else(|| NoPlan::missing("layers"))?;
        let hidden = self.hidden.ok_or_else(|| NoPlan::missing("hidden"))?;
        let sequence = self.seq_len.ok_or_else(|| NoPlan::missing("seq_len"))?;
        let gated = self.gated_mlp.unwrap_or(false);
        let head_dim = hidden / heads;
        let feed_forward = |width: usize| FeedForward {
            width,
            gated,
            activation: if gated { Activation::Silu } else { Activation::Gelu },
            bias: !gated,
        };
        let gated_width = || (8 * hidden / 3).next_multiple_of(256);
        let width = width.unwrap_or_else(|| if gated { gated_width() } else { 4 * hidden });
        let mlp = match self.num_experts {
            None | Some(1) => Mlp::Dense(feed_forward(width)),
            Some(count) => Mlp::Experts(Experts {
                count,
                per_token: self.top_k.unwrap_or(2),
                expert: feed_forward(self.moe_ffn_hidden.unwrap_or(width)),
                shared: None,
                shared_gate: false,
                router_bias: false,
                group_limit: None,
            }),
        };
        let norm = if gated { Norm::RmsNorm } else { Norm::LayerNorm };
        let attention = Attention {
            heads,
            kv_heads: self.kv_heads.unwrap_or(heads),
            head_dim,
            value_head_dim: head_dim,
            mask: Mask::Causal,
            rotary: gated,
            rotary_head_dim: None,
            rotary_base: None,
            qkv_bias: !gated,
            output_bias: !gated,
            qk_norm: false,
            latent: None,
            output_gate: false,
            indexer: None,
            recurrence: None,
        };
        let block = Block::sequential(norm, attention, mlp);
        let position = if gated { Position::Rotary } else { Position::Learned(sequence) };
        Ok(Model {
            name: if self.model_name.is_empty() { self.id.clone() } else { self.model_name.clone() },
            hidden,
            vocab: self.vocab.unwrap_or(if gated { 32_000 } else { 50_257 }),
            dropout: !gated,
            embedding: Embedding { position, width: None, token_types: 0, norm: None },
            final_norm: Some(norm),
            norm_epsilon: None,
            dropout_rates: None,
            head: Head { tied: !gated, bias: false, transform: false, pooler: false },
            blocks: vec![BlockRun { count: layers, block }],
        })
    }

    /// The head is tied or untied if the number of parameters decides it: within 0.5 % of one and not within 1 % of the
    /// other. Some software unties it on another stage.
    fn with_head(&self, mut model: Model, stack: &Stack) -> Model {
        if let Some(parameters) = self.parameters() {
            let off = |tied: bool| {
                let head = Head { tied, ..model.head.clone() };
                (Model { head, ..model.clone() }.parameters() as f64 / parameters - 1.0).abs()
            };
            let other = !model.head.tied;
            if off(other) < 0.005 && off(!other) > 0.01 {
                model.head.tied = other;
            }
        }
        model.head.tied &= !(stack.unties_over_stages && self.pp.unwrap_or(1) > 1);
        model
    }

    /// The catalog's mixture of experts with these sizes, with as many blocks as the row says.
    fn known_mixture(&self, layers: usize) -> Option<Model> {
        let count = self.num_experts.filter(|count| *count > 1)?;
        let alike = |model: &Model| {
            let block = &model.blocks.last().expect("a model has blocks").block;
            let Mlp::Experts(experts) = &block.mlp else { return false };
            experts.count == count
                && Some(model.hidden) == self.hidden
                && self.moe_ffn_hidden.is_none_or(|width| width == experts.expert.width)
        };
        let mut known = MODELS.iter().find(|model| alike(model))?.clone();
        if known.layers() != layers {
            let mut last = known.blocks.pop().expect("a model has blocks");
            last.count = layers;
            known.blocks = vec![last];
        }
        Some(known)
    }
}

/// Heads of width 128, or 64 if 128 does not divide; or the next smaller number that divides the width and is a
/// multiple of the tensor ranks.
fn default_heads(hidden: usize, tensor: usize) -> usize {
    let width = if hidden.is_multiple_of(128) { 128 } else { 64 };
    let suits = |heads: &usize| hidden.is_multiple_of(*heads) && heads.is_multiple_of(tensor);
    (1..=hidden.div_ceil(width)).rev().find(suits).unwrap_or(1)
}

/// The feed-forward width, a multiple of 256, with which `model` has nearly this number of parameters.
fn fitting_width(model: &Model, parameters: f64) -> usize {
    let Some(BlockRun { count, block: Block { mlp: Mlp::Dense(mlp), .. } }) = model.blocks.first() else {
        return 4 * model.hidden;
    };
    let matrices = if mlp.gated { 3 } else { 2 };
    let of_width = (matrices * count * model.hidden) as f64;
    let missing = (parameters - model.parameters() as f64) / of_width;
    // If no width gives this number of parameters, the widest is taken.
    let width = (mlp.width as f64 + missing).clamp(256.0, INNER.most as f64);
    (width / 256.0).round() as usize * 256
}
