//! The architecture, as far as Megatron-LM's GPT has arguments for it.

use super::Arguments;
use super::details;
use crate::export::Request;
use crate::export::coverage::Coverage;
use std::collections::BTreeSet;
use trainwright_spec::model::{
    Activation, Attention, Block, Experts, FeedForward, Latent, Mask, Mlp, Model, Norm, Position,
};

/// The arguments of the model.
pub fn arguments(request: &Request, coverage: &mut Coverage, out: &mut Arguments) {
    let plan = request.plan;
    let model = &plan.model;
    let Some(first) = model.blocks.first().map(|run| &run.block) else { return };
    coverage.express(&[
        "model.hidden",
        "model.vocab",
        "model.dropout",
        "model.embedding",
        "model.final_norm",
    ]);
    coverage.express(&["model.head", "model.blocks"]);
    for (part, why) in lacking(model, first) {
        coverage.omit(part, why);
    }
    out.set("--num-layers", model.layers(), "model.num_layers");
    out.set("--hidden-size", model.hidden, "model.hidden_size");
    out.set("--vocab-size", model.vocab, "model.vocab_size");
    attention(first, out);
    windows(model, out);
    feed_forward(model, request.details().clamped_gate.is_some(), out);
    let normalization = if first.norm == Norm::RmsNorm { "RMSNorm" } else { "LayerNorm" };
    out.set("--normalization", normalization, "model.normalization");
    if let Some(epsilon) = model.norm_epsilon {
        out.set("--norm-epsilon", epsilon, "model.layernorm_epsilon");
    }
    let positions = match model.embedding.position {
        Position::Learned(positions) => positions,
        _ => plan.job.sequence,
    };
    let kind = match model.embedding.position {
        Position::Learned(_) => "learned_absolute",
        Position::Rotary if details::is_yarn(request) => "yarn",
        Position::Rotary => "rope",
        _ => "none",
    };
    out.set("--position-embedding-type", kind, "model.position_embedding_type");
    out.set("--max-position-embeddings", positions, "");
    if !model.head.tied {
        out.on("--untie-embeddings-and-output-weights", "");
    }
    let rates = model.drops_out();
    out.set("--attention-dropout", rates.attention, "model.attention_dropout");
    out.set("--hidden-dropout", rates.residual, "model.hidden_dropout");
    details::arguments(request, coverage, out);
}

fn attention(block: &Block, out: &mut Arguments) {
    let attention = &block.attention;
    out.set("--num-attention-heads", attention.heads, "model.num_attention_heads");
    // Megatron-LM's parser takes integers only; `lacking` reports others.
    if let Some(base) = attention.rotary_base.filter(|base| base.fract() == 0.0) {
        out.set("--rotary-base", base as i64, "model.rotary_base");
    }
    if let Some(Latent { query_rank, kv_rank, rotary_head_dim }) = attention.latent {
        out.on("--multi-latent-attention", "model.multi_latent_attention");
        if let Some(rank) = query_rank {
            out.set("--q-lora-rank", rank, "model.q_lora_rank");
        }
        out.set("--kv-lora-rank", kv_rank, "model.kv_lora_rank");
        out.set("--qk-head-dim", attention.head_dim - rotary_head_dim, "model.qk_head_dim");
        out.set("--qk-pos-emb-head-dim", rotary_head_dim, "model.qk_pos_emb_head_dim");
        out.set("--v-head-dim", attention.value_head_dim, "model.v_head_dim");
        // The norms of the compressed queries, keys and values.
        out.on("--qk-layernorm", "model.qk_layernorm");
    } else {
        if attention.kv_heads != attention.heads {
            out.on("--group-query-attention", "");
            out.set("--num-query-groups", attention.kv_heads, "model.num_query_groups");
        }
        out.set("--kv-channels", attention.head_dim, "model.kv_channels");
        if attention.qk_norm {
            out.on("--qk-layernorm", "model.qk_layernorm");
        }
        if let Some(rotated) = attention.rotary_head_dim {
            let part = rotated as f64 / attention.head_dim as f64;
            out.set("--rotary-percent", part, "model.rotary_percent");
        }
    }
    if !attention.output_bias {
        out.off("--disable-bias-linear", "model.add_bias_linear");
        if attention.qkv_bias {
            out.on("--add-qkv-bias", "model.add_qkv_bias");
        }
    }
}

/// One window for all blocks, or a list of the blocks that have it.
fn windows(model: &Model, out: &mut Arguments) {
    let masks = || model.blocks.iter().map(|run| (run.block.attention.mask, run.count));
    let window = masks().find_map(|(mask, _)| match mask {
        Mask::Window(window) => Some(window),
        Mask::Causal | Mask::Full => None,
    });
    let Some(window) = window else { return };
    out.set("--window-size", format!("{},0", window.saturating_sub(1)), "");
    if masks().any(|(mask, _)| mask != Mask::Window(window)) {
        let flags = masks().map(|(mask, count)| (u8::from(mask == Mask::Window(window)), count));
        out.set("--window-attn-skip-freq", list(flags.collect()), "");
    }
}

/// A Python list of a number for each block: `([1]*3+[0]*1)`, or of a period that repeats: `([1,0])*23`.
fn list(runs: Vec<(u8, usize)>) -> String {
    let layers: Vec<String> =
        runs.iter().flat_map(|(value, count)| std::iter::repeat_n(value.to_string(), *count)).collect();
    let repeats =
        |period: &usize| (*period..layers.len()).all(|layer| layers[layer] == layers[layer - period]);
    let period = (1..=layers.len() / 2).filter(|period| layers.len().is_multiple_of(*period)).find(repeats);
    match period {
        Some(period) if period > 1 => {
            format!("([{}])*{}", layers[..period].join(","), layers.len() / period)
        }
        _ => {
            let parts: Vec<String> = runs.iter().map(|(value, count)| format!("[{value}]*{count}")).collect();
            format!("({})", parts.join("+"))
        }
    }
}

fn feed_forward(model: &Model, clamped: bool, out: &mut Arguments) {
    let mlps = || model.blocks.iter().map(|run| &run.block.mlp);
    let experts = mlps().find_map(|mlp| match mlp {
        Mlp::Experts(experts) => Some(experts),
        Mlp::Dense(_) => None,
    });
    let dense = mlps().find_map(|mlp| match mlp {
        Mlp::Dense(dense) => Some(dense),
        Mlp::Experts(_) => None,
    });
    let any = dense.or(experts.map(|experts| &experts.expert)).expect("a block has a feed-forward part");
    out.set("--ffn-hidden-size", any.width, "model.ffn_hidden_size");
    if any.gated && any.activation == Activation::Silu && !clamped {
        out.on("--swiglu", "model.gated_linear_unit");
    } else if any.gated {
        out.on("--quick-geglu", "model.gated_linear_unit");
    } else if any.activation == Activation::SquaredRelu {
        out.on("--squared-relu", "");
    }
    let Some(Experts { count, per_token, expert, shared, shared_gate, router_bias, group_limit }) = experts
    else {
        return;
    };
    out.set("--num-experts", *count, "model.num_moe_experts");
    out.set("--moe-router-topk", *per_token, "model.moe_router_topk");
    out.set("--moe-ffn-hidden-size", expert.width, "model.moe_ffn_hidden_size");
    if dense.is_some() {
        let runs = model.blocks.iter();
        let runs = runs.map(|run| (u8::from(matches!(run.block.mlp, Mlp::Experts(_))), run.count));
        out.set("--moe-layer-freq", list(runs.collect()), "");
    }
    out.on("--moe-grouped-gemm", "model.moe_grouped_gemm");
    if let Some(shared) = shared {
        out.set(
            "--moe-shared-expert-intermediate-size",
            shared.width,
            "model.moe_shared_expert_intermediate_size",
        );
        if *shared_gate {
            out.on("--moe-shared-expert-gate", "model.moe_shared_expert_gate");
        }
    }
    // The product of the router has a bias wherever products have one; that of a balanced router is added to its scores.
    if *router_bias && !expert.bias {
        out.on("--moe-router-enable-expert-bias", "model.moe_router_enable_expert_bias");
    }
    if let Some(limit) = group_limit {
        out.set("--moe-router-num-groups", limit.groups, "model.moe_router_num_groups");
        out.set("--moe-router-group-topk", limit.per_token, "model.moe_router_group_topk");
    }
}

/// Fields of the model that no argument expresses, and why.
fn lacking(model: &Model, first: &Block) -> Vec<(&'static str, &'static str)> {
    let runs = || model.blocks.iter().map(|run| &run.block);
    let attention = &first.attention;
    let mut parts = Vec::new();
    let mut require = |holds: bool, part: &'static str, why: &'static str| {
        if !holds {
            parts.push((part, why));
        }
    };
    let embedding = &model.embedding;
    let usual = embedding.width.is_none() && embedding.token_types == 0 && embedding.norm.is_none();
    require(usual, "model.embedding", "a token embedding as wide as the model, without norm or types");
    let position = matches!(embedding.position, Position::Learned(_) | Position::Rotary);
    require(position, "model.embedding", "positions are learned or rotary");
    require(
        attention.rotary == (embedding.position == Position::Rotary),
        "model.blocks",
        "all blocks rotate, or none",
    );
    require(model.final_norm == Some(first.norm), "model.final_norm", "the norm of the blocks");
    let head = &model.head;
    require(!head.bias && !head.transform && !head.pooler, "model.head", "one product without bias");
    require(first.norm != Norm::LayerNormPlain, "model.blocks", "norms have gains");
    require(alike(runs()), "model.blocks", "blocks differ in their experts and in one window only");
    let usual = first.norms == 2 && !first.parallel && first.cross_attention.is_none();
    require(usual, "model.blocks", "attention, then the feed-forward part, with a norm before each");
    require(runs().all(|block| block.attention.mask != Mask::Full), "model.blocks", "attention is causal");
    let is_integer = attention.rotary_base.is_none_or(|base| base.fract() == 0.0);
    require(is_integer, "model.blocks", "the base of rotary positions is a whole number");
    require(heads_fit(attention), "model.blocks", "keys and values are of one width");
    let bias = (attention.qkv_bias, attention.output_bias);
    let feed_forwards = || runs().flat_map(|block| parts_of(&block.mlp));
    require(
        bias != (false, true) && feed_forwards().all(|part| part.bias == attention.output_bias),
        "model.blocks",
        "all products have biases, none, or those of queries, keys and values",
    );
    let known = |part: &FeedForward| {
        let kinds = [(true, Activation::Silu), (false, Activation::Gelu), (false, Activation::SquaredRelu)];
        kinds.contains(&(part.gated, part.activation))
    };
    let mut activations: Vec<(bool, Activation)> =
        feed_forwards().map(|part| (part.gated, part.activation)).collect();
    activations.dedup();
    require(
        feed_forwards().all(known) && activations.len() == 1,
        "model.blocks",
        "SwiGLU, GELU or squared ReLU in all blocks, no GeGLU",
    );
    parts
}

fn heads_fit(attention: &Attention) -> bool {
    match attention.latent {
        Some(_) => attention.heads == attention.kv_heads && !attention.qk_norm,
        None => attention.value_head_dim == attention.head_dim,
    }
}

fn parts_of(mlp: &Mlp) -> Vec<&FeedForward> {
    match mlp {
        Mlp::Dense(dense) => vec![dense],
        Mlp::Experts(experts) => std::iter::once(&experts.expert).chain(&experts.shared).collect(),
    }
}

/// Whether the blocks are equal, except that some may have one dense and others one sparse feed-forward part, and some
/// one window.
fn alike<'a>(blocks: impl Iterator<Item = &'a Block> + Clone) -> bool {
    let windows = blocks.clone().map(|block| block.attention.mask).filter(|mask| *mask != Mask::Causal);
    let windows: BTreeSet<String> = windows.map(|mask| format!("{mask:?}")).collect();
    if windows.len() > 1 {
        return false;
    }
    let mut seen: Vec<Block> = Vec::new();
    for block in blocks {
        let attention = Attention { mask: Mask::Causal, ..block.attention.clone() };
        let block = Block { attention, ..block.clone() };
        if !seen.contains(&block) {
            seen.push(block);
        }
    }
    let kinds = |kind: fn(&Mlp) -> bool| seen.iter().filter(|block| kind(&block.mlp)).count();
    let sparse = kinds(|mlp| matches!(mlp, Mlp::Experts(_)));
    let equals_first = |block: &Block| Block { mlp: seen[0].mlp.clone(), ..block.clone() } == seen[0];
    sparse <= 1 && seen.len() - sparse <= 1 && seen.iter().all(equals_first)
}
