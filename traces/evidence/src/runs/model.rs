//! The model that a row describes.

use super::names::{self, MODELS};
use super::plan::NO_DROPOUT;
use super::{NoPlan, Run};
use trainwright_spec::limits::{
    EXPERTS, EXPERTS_PER_TOKEN, HEADS, HIDDEN, INNER, KV_HEADS, LAYERS, TOKENS, VOCAB,
};
use trainwright_spec::model::{
    Activation, Attention, Block, BlockRun, Embedding, Experts, FeedForward, GroupLimit, Head, Mask, Mlp,
    Model, Norm, Position,
};
use trainwright_spec::stack::Stack;

/// Width of a head where the row's heads do not divide its width, as in GLM-4.5: the most frequent one.
const HEAD_WIDTH: usize = 128;

/// A model has about as many parameters as a number that is off by less than this factor.
const ABOUT: f64 = 1.15;

impl Run {
    /// A decoder as GPT-2's (layer norms, learned positions, biases, dropout, tied head), or with gated feed-forward
    /// layers as LLaMA's (RMS norms, rotary positions, no biases, untied head). The number of parameters, if
    /// given, decides the feed-forward width if that is blank, and whether the head is tied. Mixtures of experts are taken
    /// from the catalog if it has one of these sizes, for rows have no columns for shared experts or latent attention; sizes that
    /// the row states replace the catalog's.
    ///
    /// # Errors
    /// `Unsupported` without the sizes that have no default; `Invalid` for sizes that contradict each other.
    pub fn model(&self, stack: &Stack) -> Result<Model, NoPlan> {
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
        self.check_experts_and_heads()?;
        if let Some(known) = self.known_mixture() {
            return Ok(known);
        }
        let least = self.kv_heads.unwrap_or(1);
        let heads = self.heads.unwrap_or_else(|| default_heads(hidden, self.tp.unwrap_or(1), least));
        if !hidden.is_multiple_of(heads) && self.num_experts.is_none() {
            return Err(NoPlan::Invalid(format!("`heads` is {heads}; it must divide `hidden` = {hidden}")));
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

    /// Whether as many experts are there as a token visits, and as many heads as share keys and values.
    fn check_experts_and_heads(&self) -> Result<(), NoPlan> {
        if let (Some(visited), Some(experts)) = (self.top_k, self.num_experts)
            && visited > experts
        {
            let text = format!("`top_k` is {visited}; it must be from 1 to `num_experts` = {experts}");
            return Err(NoPlan::Invalid(text));
        }
        if let (Some(heads), Some(shared)) = (self.heads, self.kv_heads)
            && !heads.is_multiple_of(shared)
        {
            let text = format!("`kv_heads` is {shared}; it must divide `heads` = {heads}");
            return Err(NoPlan::Invalid(text));
        }
        Ok(())
    }

    fn sized(&self, heads: usize, width: Option<usize>) -> Result<Model, NoPlan> {
        let layers = self.layers.ok_or_else(|| NoPlan::missing("layers"))?;
        let hidden = self.hidden.ok_or_else(|| NoPlan::missing("hidden"))?;
        let sequence = self.seq_len.ok_or_else(|| NoPlan::missing("seq_len"))?;
        let gated = self.gated_mlp.unwrap_or(false);
        let head_dim = if hidden.is_multiple_of(heads) { hidden / heads } else { HEAD_WIDTH };
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

    /// The catalog's mixture of experts with these sizes, with as many blocks as the row says and the sizes that it states
    /// besides; `None` if a plain model of the row's sizes is nearer to the number of parameters, and that is given.
    pub(super) fn known_mixture(&self) -> Option<Model> {
        let count = self.num_experts.filter(|count| *count > 1)?;
        let alike = |model: &&Model| {
            let block = &model.blocks.last().expect("a model has blocks").block;
            let Mlp::Experts(experts) = &block.mlp else { return false };
            // Without a width of experts that of feed-forward layers counts, where all of them are experts.
            let width = self.moe_ffn_hidden.or(self.ffn_hidden.filter(|_| !has_dense_blocks(model)));
            experts.count == count
                && Some(model.hidden) == self.hidden
                && (width.is_none_or(|width| width == experts.expert.width) || self.names(model))
        };
        let mut known = MODELS.iter().find(alike)?.clone();
        let layers = self.layers?;
        if known.layers() != layers {
            let mut last = known.blocks.pop().expect("a model has blocks");
            last.count = layers;
            known.blocks = vec![last];
        }
        self.state_sizes(&mut known);
        self.suits_parameters(&known).then_some(known)
    }

    /// That the heads of a mixture which the catalog lacks have a width that does not follow from the row's.
    pub(super) fn head_width_remark(&self) -> Option<String> {
        let (heads, hidden) = (self.heads?, self.hidden?);
        let assumed = !hidden.is_multiple_of(heads) && self.known_mixture().is_none();
        assumed
            .then(|| format!("`heads` {heads} of width {HEAD_WIDTH}: they do not divide `hidden` = {hidden}"))
    }

    /// Whether the row names a mixture whose experts' width it leaves blank.
    fn names(&self, model: &Model) -> bool {
        self.moe_ffn_hidden.is_none()
            && names::model(&self.model_name, self.parameters()).is_some_and(|named| named.name == model.name)
    }

    /// Puts the sizes that the row states in place of the catalog's.
    fn state_sizes(&self, model: &mut Model) {
        let last = model.blocks.last().expect("a model has blocks").block.attention.clone();
        model.vocab = self.vocab.unwrap_or(model.vocab);
        // Without a width of experts, `ffn_hidden` may be that.
        let of_experts = |width: usize| self.moe_ffn_hidden.is_none() && expert_width(model) == Some(width);
        let dense = self.ffn_hidden.filter(|width| !of_experts(*width));
        for block in model.blocks.iter_mut().map(|run| &mut run.block) {
            match &mut block.mlp {
                Mlp::Experts(experts) => {
                    experts.per_token = self.top_k.unwrap_or(experts.per_token);
                    let enough = |limit: &GroupLimit| {
                        limit.per_token * (experts.count / limit.groups) >= experts.per_token
                    };
                    experts.group_limit = experts.group_limit.filter(enough);
                }
                Mlp::Dense(mlp) => mlp.width = dense.unwrap_or(mlp.width),
            }
            // Of several kinds of attention the row states the last block's.
            let attention = &mut block.attention;
            if attention.recurrence.is_some() || attention.heads != last.heads {
                continue;
            }
            attention.heads = self.heads.unwrap_or(last.heads);
            let kv_heads = self.kv_heads.unwrap_or(last.kv_heads);
            attention.kv_heads = match attention.latent {
                // The heads read one latent vector: theirs is no number that a row could state.
                Some(_) if last.kv_heads != last.heads => last.kv_heads,
                None if attention.heads.is_multiple_of(kv_heads) => kv_heads,
                _ => attention.heads,
            };
        }
    }

    /// Whether a model has about as many parameters as the row states, or is nearer to that than a plain one of its sizes.
    fn suits_parameters(&self, known: &Model) -> bool {
        let Some(parameters) = self.params_b.map(|billions| 1e9 * billions) else { return true };
        let off = |model: &Model| libm::log(model.parameters() as f64 / parameters).abs();
        let plain = self.heads.and_then(|heads| self.sized(heads, self.ffn_hidden).ok());
        off(known) < libm::log(ABOUT) || plain.is_none_or(|plain| off(known) <= off(&plain))
    }
}

/// Inner width of each expert of a model's last block.
fn expert_width(model: &Model) -> Option<usize> {
    match &model.blocks.last()?.block.mlp {
        Mlp::Experts(experts) => Some(experts.expert.width),
        Mlp::Dense(_) => None,
    }
}

/// Whether some block of a model has no experts.
fn has_dense_blocks(model: &Model) -> bool {
    model.blocks.iter().any(|run| matches!(run.block.mlp, Mlp::Dense(_)))
}

/// Heads of width 128, or 64 if 128 does not divide; or the next smaller number that divides the width and is a
/// multiple of the tensor ranks and of the key and value heads.
fn default_heads(hidden: usize, tensor: usize, kv_heads: usize) -> usize {
    let width = if hidden.is_multiple_of(HEAD_WIDTH) { HEAD_WIDTH } else { 64 };
    let suits = |heads: &usize| {
        hidden.is_multiple_of(*heads) && heads.is_multiple_of(tensor) && heads.is_multiple_of(kv_heads)
    };
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A row with the sizes of a mixture of the catalog, and this number of blocks.
    fn row(name: &str, layers: usize) -> Run {
        let model = MODELS.iter().find(|model| model.name == name).unwrap();
        let Mlp::Experts(experts) = &model.blocks.last().unwrap().block.mlp else {
            panic!("{name} is dense")
        };
        Run {
            layers: Some(layers),
            hidden: Some(model.hidden),
            num_experts: Some(experts.count),
            moe_ffn_hidden: Some(experts.expert.width),
            seq_len: Some(4096),
            gated_mlp: Some(true),
            ..Run::default()
        }
    }

    fn model(run: &Run) -> Result<Model, String> {
        let stack = Stack::from_name("megatron-core-2024").unwrap();
        run.model(&stack).map_err(|refusal| refusal.to_string())
    }

    /// Experts of a token, vocabulary, heads with their own and with shared keys and values, width of dense blocks.
    fn sizes(run: &Run) -> [usize; 5] {
        let model = model(run).unwrap();
        let last = &model.blocks.last().unwrap().block;
        let Mlp::Experts(experts) = &last.mlp else { panic!("it has experts") };
        let dense = model.blocks.iter().find_map(|run| match &run.block.mlp {
            Mlp::Dense(mlp) => Some(mlp.width),
            Mlp::Experts(_) => None,
        });
        let Attention { heads, kv_heads, .. } = last.attention;
        [experts.per_token, model.vocab, heads, kv_heads, dense.unwrap_or(0)]
    }

    #[test]
    fn stated_sizes_win_over_those_of_the_catalogs_mixture() {
        let mixtral = || row("mixtral-8x7b", 32);
        assert_eq!(sizes(&mixtral()), [2, 32_000, 32, 8, 0]);
        assert_eq!(sizes(&Run { top_k: Some(4), ..mixtral() }), [4, 32_000, 32, 8, 0]);
        assert_eq!(sizes(&Run { vocab: Some(64_000), ..mixtral() }), [2, 64_000, 32, 8, 0]);
        assert_eq!(sizes(&Run { heads: Some(64), ..mixtral() }), [2, 32_000, 64, 8, 0]);
        assert_eq!(sizes(&Run { kv_heads: Some(4), ..mixtral() }), [2, 32_000, 32, 4, 0]);
        // A blank width of experts is that of feed-forward layers.
        let blank = Run { moe_ffn_hidden: None, ffn_hidden: Some(1024), heads: Some(32), ..mixtral() };
        assert!(blank.known_mixture().is_none());
        let named = Run { model_name: "Mixtral 8x7B".into(), ..blank };
        assert_eq!(named.known_mixture().unwrap().name, "mixtral-8x7b");
        let deepseek = || row("deepseek-v3", 61);
        assert_eq!(sizes(&deepseek()), [8, 129_280, 128, 128, 18_432]);
        let stated = Run { top_k: Some(4), heads: Some(64), ffn_hidden: Some(9216), ..deepseek() };
        assert_eq!(sizes(&stated), [4, 129_280, 64, 64, 9216]);
        let narrow = Run { moe_ffn_hidden: None, ffn_hidden: Some(2048), ..deepseek() };
        assert_eq!(sizes(&narrow), [8, 129_280, 128, 128, 18_432]);
        // 4 of 8 groups hold 128 experts.
        let limited = |top_k: usize| {
            let model = model(&Run { top_k: Some(top_k), ..deepseek() }).unwrap();
            let Mlp::Experts(experts) = &model.blocks.last().unwrap().block.mlp else { panic!() };
            experts.group_limit.is_some()
        };
        assert!(limited(128) && !limited(129));
    }

    /// DeepSeek-V3 has 671 billion parameters; with 128 plain heads instead of latent attention they are more.
    #[test]
    fn the_number_of_parameters_decides_whether_a_mixture_is_the_catalogs() {
        let known = |parameters: f64| {
            let run = Run { params_b: Some(parameters), heads: Some(128), ..row("deepseek-v3", 61) };
            run.known_mixture().is_some()
        };
        assert!(known(671.0) && known(700.0));
        assert!(!known(900.0));
    }

    #[test]
    fn sizes_that_contradict_each_other_are_refused() {
        let check = |run: Run, expected: &str| assert_eq!(model(&run).err().as_deref(), Some(expected));
        let text = "`top_k` is 9; it must be from 1 to `num_experts` = 8";
        check(Run { top_k: Some(9), ..row("mixtral-8x7b", 32) }, text);
        let dense = || Run { num_experts: None, heads: Some(32), ..row("mixtral-8x7b", 32) };
        for shared in [12, 64] {
            let text = format!("`kv_heads` is {shared}; it must divide `heads` = 32");
            check(Run { kv_heads: Some(shared), ..dense() }, &text);
            check(Run { kv_heads: Some(shared), heads: Some(32), ..row("mixtral-8x7b", 32) }, &text);
        }
        check(Run { heads: Some(33), ..dense() }, "`heads` is 33; it must divide `hidden` = 4096");
        // Blank heads are a multiple of stated key and value heads: 12 of width 64 at a width of 768, of 8 as 8.
        let blank = |kv_heads: usize| {
            let run = Run { heads: None, hidden: Some(768), kv_heads: Some(kv_heads), ..dense() };
            let attention = model(&run).unwrap().blocks[0].block.attention.clone();
            [attention.heads, attention.kv_heads]
        };
        assert_eq!([blank(3), blank(4)], [[6, 3], [4, 4]]);
    }

    /// GLM-4.5 has 96 heads of width 128 at a width of 5120.
    #[test]
    fn heads_of_a_mixture_that_do_not_divide_its_width_are_as_wide_as_usual() {
        let run =
            Run { hidden: Some(5120), heads: Some(96), num_experts: Some(160), ..row("mixtral-8x7b", 92) };
        assert_eq!(model(&run).unwrap().blocks[0].block.attention.head_dim, 128);
    }
}
