//! DeepSeek-V2 (arXiv 2405.04434), V3 (arXiv 2412.19437), V3.2 (arXiv 2512.02556) and GLM-5 (arXiv 2602.15763): latent attention,
//! in the last two to keys that an indexer picks; dense blocks and then experts.
//!
//! V3's multi-token prediction modules (`num_nextn_predict_layers`) are not read: the model is the main model, whose
//! size the paper prints.

use super::config::Config;
use super::parts::{embedding, gated_mlp, head, multi_head, routed, runs};
use crate::error::SpecError;
use crate::limits::{BLOCK, EXPERTS, HEAD_DIM, HEADS, HIDDEN, LAYERS, RANK, VOCAB, WINDOW};
use crate::model::{
    Attention, Block, Experts, FeedForward, GroupLimit, Indexer, Latent, Mlp, Model, Norm, Position,
};

/// Reads a `deepseek_v2`, `deepseek_v3`, `deepseek_v32` or `glm_moe_dsa` configuration.
pub fn read(config: &Config) -> Result<Model, SpecError> {
    let layers = config.count("num_hidden_layers", LAYERS)?;
    let attention = attention(config)?;
    let bias = config.flag_or("mlp_bias", false)?;
    let dense = FeedForward { bias, ..gated_mlp(config, "intermediate_size")? };
    let experts = experts(config)?;
    let first = config.count_or("first_k_dense_replace", 0, BLOCK.or_zero())?;
    let step = config.count_or("moe_layer_freq", 1, BLOCK)?;
    let listed = sparse_layers(config, layers)?;
    let has_experts = |layer: usize| match &listed {
        Some(listed) => listed[layer],
        None => layer >= first && layer.is_multiple_of(step),
    };
    let mlp = |layer: usize| match &experts {
        Some(experts) if has_experts(layer) => Mlp::Experts(experts.clone()),
        _ => Mlp::Dense(dense.clone()),
    };
    let blocks = (0..layers).map(|layer| Block::sequential(Norm::RmsNorm, attention.clone(), mlp(layer)));
    Ok(Model {
        name: String::new(),
        hidden: config.count("hidden_size", HIDDEN)?,
        vocab: config.count("vocab_size", VOCAB)?,
        dropout: config.any_above_zero(&[("attention_dropout", 0.0)])?,
        embedding: embedding(Position::Rotary),
        final_norm: Some(Norm::RmsNorm),
        norm_epsilon: None,
        dropout_rates: None,
        head: head(config, false)?,
        blocks: runs(blocks),
    })
}

/// Which blocks have experts, by `mlp_layer_types` (GLM-5), if the file has it.
fn sparse_layers(config: &Config, layers: usize) -> Result<Option<Vec<bool>>, SpecError> {
    let meaning = "\"dense\" or \"sparse\" for each block";
    let Some(kinds) = config.optional_list("mlp_layer_types", meaning)? else { return Ok(None) };
    let kinds = kinds.iter().map(|kind| match kind.as_str() {
        Some("dense") => Some(false),
        Some("sparse") => Some(true),
        _ => None,
    });
    let kinds: Option<Vec<bool>> = kinds.collect();
    let refused = || config.bad("mlp_layer_types", &format!("it holds {meaning} of the {layers}"));
    kinds.filter(|kinds| kinds.len() == layers).map(Some).ok_or_else(refused)
}

/// Every head has separate keys and values, expanded from the shared compressed ones.
fn attention(config: &Config) -> Result<Attention, SpecError> {
    let heads = config.count("num_attention_heads", HEADS)?;
    let rotary_head_dim = config.count("qk_rope_head_dim", HEAD_DIM)?;
    let plain_head_dim = config.count("qk_nope_head_dim", HEAD_DIM)?;
    let bias = config.flag_or("attention_bias", false)?;
    let latent = Latent {
        query_rank: config.optional_count("q_lora_rank", RANK)?,
        kv_rank: config.count("kv_lora_rank", RANK)?,
        rotary_head_dim,
    };
    let heads_of_indexer = config.optional_count("index_n_heads", HEADS)?;
    let indexer = heads_of_indexer.map(|heads| {
        let head_dim = config.count("index_head_dim", HEAD_DIM)?;
        Ok::<_, SpecError>(Indexer { heads, head_dim, keys: config.count("index_topk", WINDOW)? })
    });
    Ok(Attention {
        value_head_dim: config.count("v_head_dim", HEAD_DIM)?,
        rotary: true,
        indexer: indexer.transpose()?,
        latent: Some(latent),
        ..multi_head(heads, plain_head_dim + rotary_head_dim, bias)
    })
}

/// The experts, if there are any. Shared ones are one feed-forward layer of their joint width.
fn experts(config: &Config) -> Result<Option<Experts>, SpecError> {
    if config.optional_count("n_routed_experts", EXPERTS)?.is_none() {
        return Ok(None);
    }
    let expert = gated_mlp(config, "moe_intermediate_size")?;
    let shared = config.optional_count("n_shared_experts", EXPERTS.or_zero())?.filter(|count| *count > 0);
    let shared = shared.map(|count| FeedForward { width: count * expert.width, ..expert.clone() });
    // Balancing without an auxiliary loss keeps a bias per expert (arXiv 2412.19437, section 2.1.2).
    let third = config.text("model_type", "the family")? != "deepseek_v2";
    let balancing = config.optional_text("topk_method", "how experts are picked")?;
    let router_bias = balancing.map_or(third, |method| method == "noaux_tc");
    let group_limit = group_limit(config)?;
    Ok(Some(Experts { shared, router_bias, group_limit, ..routed(config, "n_routed_experts", expert)? }))
}

/// The limit on a token's groups of experts (arXiv 2405.04434, section 2.2.2; arXiv 2412.19437, section 2.1.2), unless
/// it allows all of them.
fn group_limit(config: &Config) -> Result<Option<GroupLimit>, SpecError> {
    let groups = config.count_or("n_group", 1, EXPERTS)?;
    let per_token = config.count_or("topk_group", groups, EXPERTS)?;
    if per_token > groups {
        return Err(config.bad("topk_group", &format!("it cannot exceed `n_group`, {groups}")));
    }
    config.check_multiple(
        "n_routed_experts",
        ("n_group", groups),
        config.count("n_routed_experts", EXPERTS)?,
    )?;
    Ok((per_token < groups).then_some(GroupLimit { groups, per_token }))
}
