//! Which sizes a plan's model may have.

use super::{bad, must_count};
use crate::cluster::Fault;
use crate::limits::{
    BLOCK, BUCKETS, Count, EMBEDDING, HEAD_DIM, HEADS, PARAMETERS, POSITIONS, RANK, TOKEN_TYPES,
};
use crate::model::{Attention, Embedding, FeedForward, Latent, Mlp, Model, Position};

/// Whether every size of the model that something is divided by or made of is there.
pub(crate) fn check(model: &Model) -> Result<(), Fault> {
    must_count("model.hidden", model.hidden)?;
    must_count("model.vocab", model.vocab)?;
    let feed_forward = |mlp: &FeedForward| must_count("model.blocks.block.mlp.width", mlp.width);
    for run in &model.blocks {
        must_count("model.blocks.count", run.count)?;
        for attention in std::iter::once(&run.block.attention).chain(&run.block.cross_attention) {
            must_count("model.blocks.block.attention.heads", attention.heads)?;
            must_count("model.blocks.block.attention.kv_heads", attention.kv_heads)?;
            must_count("model.blocks.block.attention.head_dim", attention.head_dim)?;
            must_count("model.blocks.block.attention.value_head_dim", attention.value_head_dim)?;
            if let Some(Latent { query_rank, kv_rank, rotary_head_dim }) = &attention.latent {
                let key = "model.blocks.block.attention.latent";
                query_rank.map_or(Ok(()), |rank| counts(&format!("{key}.query_rank"), rank, RANK))?;
                counts(&format!("{key}.kv_rank"), *kv_rank, RANK)?;
                counts(&format!("{key}.rotary_head_dim"), *rotary_head_dim, HEAD_DIM.or_zero())?;
            }
            check_mixer(attention)?;
        }
        match &run.block.mlp {
            Mlp::Dense(mlp) => feed_forward(mlp)?,
            Mlp::Experts(experts) => {
                must_count("model.blocks.block.mlp.experts.count", experts.count)?;
                must_count("model.blocks.block.mlp.experts.per_token", experts.per_token)?;
                feed_forward(&experts.expert)?;
                experts.shared.as_ref().map_or(Ok(()), feed_forward)?;
            }
        }
    }
    embedding(model)?;
    // Blocks are counted above, so that this takes no longer than the list.
    match model.parameters() {
        parameters if PARAMETERS.allows(parameters) => Ok(()),
        parameters => bad("model", format!("{parameters} parameters"), PARAMETERS.expected()),
    }
}

/// Whether the sizes of what stands before the first block make sense.
fn embedding(model: &Model) -> Result<(), Fault> {
    let Embedding { position, width, token_types, .. } = &model.embedding;
    counts("model.embedding.token_types", *token_types, TOKEN_TYPES.or_zero())?;
    width.map_or(Ok(()), |width| counts("model.embedding.width", width, EMBEDDING))?;
    match *position {
        Position::Learned(positions) => counts("model.embedding.position.learned", positions, POSITIONS),
        Position::RelativeBias { buckets, heads, stacks } => {
            counts("model.embedding.position.relative-bias.buckets", buckets, BUCKETS)?;
            counts("model.embedding.position.relative-bias.heads", heads, HEADS)?;
            counts("model.embedding.position.relative-bias.stacks", stacks, BLOCK)
        }
        Position::Rotary | Position::Alibi => Ok(()),
    }
}

fn counts(key: &str, value: usize, count: Count) -> Result<(), Fault> {
    match count.allows(value as u64) {
        true => Ok(()),
        false => bad(key, value.to_string(), count.expected()),
    }
}

/// Whether the sizes of a state or an indexer make sense.
fn check_mixer(attention: &Attention) -> Result<(), Fault> {
    if let Some(recurrence) = &attention.recurrence {
        for (key, value, count) in recurrence.counts() {
            counts(&format!("model.blocks.block.attention.recurrence.{key}"), value, count)?;
        }
        if !attention.heads.is_multiple_of(attention.kv_heads) {
            let allowed = format!("it must divide the {} heads of the state", attention.heads);
            return bad("model.blocks.block.attention.kv_heads", attention.kv_heads.to_string(), allowed);
        }
    }
    let Some(indexer) = &attention.indexer else { return Ok(()) };
    must_count("model.blocks.block.attention.indexer.heads", indexer.heads)?;
    must_count("model.blocks.block.attention.indexer.head_dim", indexer.head_dim)?;
    must_count("model.blocks.block.attention.indexer.keys", indexer.keys)
}
