//! The model that a row describes.

use super::{NoPlan, Run};
use trainwright_spec::model::{
    Activation, Attention, Block, BlockRun, Embedding, Experts, FeedForward, Head, Mask, Mlp, Model, Norm,
    Position,
};

impl Run {
    /// A decoder as GPT-2's (layer norms, learned positions, biases, dropout, tied head), or with gated feed-forward
    /// layers as LLaMA's (RMS norms, rotary positions, no biases, head of its own).
    ///
    /// # Errors
    /// `Unsupported` without the sizes that have no default; `Invalid` for heads that do not divide the width.
    pub fn model(&self) -> Result<Model, NoPlan> {
        let layers = self.layers.ok_or_else(|| NoPlan::missing("layers"))?;
        let hidden = self.hidden.ok_or_else(|| NoPlan::missing("hidden"))?;
        let sequence = self.seq_len.ok_or_else(|| NoPlan::missing("seq_len"))?;
        let gated = self.gated_mlp.unwrap_or(false);
        let heads = self.heads.unwrap_or_else(|| (hidden / 128).max(1));
        if !hidden.is_multiple_of(heads) {
            return Err(NoPlan::Invalid(format!("`heads` is {heads}; it must divide `hidden` = {hidden}")));
        }
        let head_dim = hidden / heads;
        let feed_forward = |width: usize| FeedForward {
            width,
            gated,
            activation: if gated { Activation::Silu } else { Activation::Gelu },
            bias: !gated,
        };
        let gated_width = || (8 * hidden / 3).next_multiple_of(256);
        let width = self.ffn_hidden.unwrap_or_else(|| if gated { gated_width() } else { 4 * hidden });
        let mlp = match self.num_experts {
            None | Some(1) => Mlp::Dense(feed_forward(width)),
            Some(count) => Mlp::Experts(Experts {
                count,
                per_token: self.top_k.unwrap_or(2),
                expert: feed_forward(self.moe_ffn_hidden.unwrap_or(width)),
                shared: None,
                shared_gate: false,
                router_bias: false,
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
            qkv_bias: !gated,
            output_bias: !gated,
            qk_norm: false,
            latent: None,
        };
        let block = Block { norm, norms: 2, parallel: false, attention, cross_attention: None, mlp };
        let position = if gated { Position::Rotary } else { Position::Learned(sequence) };
        Ok(Model {
            name: if self.model_name.is_empty() { self.id.clone() } else { self.model_name.clone() },
            hidden,
            vocab: self.vocab.unwrap_or(if gated { 32_000 } else { 50_257 }),
            dropout: !gated,
            embedding: Embedding { position, width: None, token_types: 0, norm: None },
            final_norm: Some(norm),
            head: Head { tied: !gated, bias: false, transform: false, pooler: false },
            blocks: vec![BlockRun { count: layers, block }],
        })
    }
}
