//! The architecture that Megatron-LM's arguments describe.

use super::super::arguments::{Arguments, quoted};
use super::super::{Request, named};
use trainwright_spec::error::SpecError;
use trainwright_spec::model::{
    Activation, Attention, Block, BlockRun, DropoutRates, Embedding, Experts, FeedForward, GroupLimit, Head,
    Latent, Mask, Mlp, Model, Norm, Position,
};

/// Reads the arguments of the model; the request's own model goes before them.
pub fn read(request: &Request, given: &Arguments) -> Result<Model, SpecError> {
    match &request.model {
        Some(model) => {
            // They are read all the same, so that they are not reported as unread; the model is known better.
            let _ = described(request, given);
            Ok(model.clone())
        }
        None => described(request, given).map(named),
    }
}

fn described(request: &Request, given: &Arguments) -> Result<Model, SpecError> {
    let layers = given.count("--num-layers")?;
    let hidden = given.count("--hidden-size")?;
    let attention = attention(request, given, hidden)?;
    let norm = match given.text("--normalization").unwrap_or("LayerNorm") {
        "LayerNorm" => Norm::LayerNorm,
        "RMSNorm" => Norm::RmsNorm,
        other => return Err(request.bad("--normalization", quoted(other), "LayerNorm or RMSNorm")),
    };
    let (dense, experts) = feed_forward(given, hidden)?;
    let mlps = match experts {
        None => vec![Mlp::Dense(dense); layers],
        Some(experts) => {
            let pattern = pattern(request, given, layers)?;
            let mlp =
                |sparse: bool| if sparse { Mlp::Experts(experts.clone()) } else { Mlp::Dense(dense.clone()) };
            pattern.into_iter().map(mlp).collect()
        }
    };
    let mut blocks: Vec<BlockRun> = Vec::new();
    for mlp in mlps {
        match blocks.last_mut() {
            Some(run) if run.block.mlp == mlp => run.count += 1,
            _ => {
                let attention = attention.clone();
                let block = Block { norm, norms: 2, parallel: false, attention, cross_attention: None, mlp };
                blocks.push(BlockRun { count: 1, block });
            }
        }
    }
    let positions = given.number("--max-position-embeddings")?;
    let position = match (attention.rotary, positions) {
        (true, _) => Position::Rotary,
        (false, Some(positions)) => Position::Learned(positions),
        (false, None) => Position::Learned(match request.sequence {
            Some(sequence) => sequence,
            None => given.count("--seq-length")?,
        }),
    };
    let dropout = |flag: &str| given.number(flag).map(|part| part.unwrap_or(0.1));
    let [attention, residual] = [dropout("--attention-dropout")?, dropout("--hidden-dropout")?];
    let rates = DropoutRates { attention, ..DropoutRates::all(residual) };
    Ok(Model {
        name: request.origin.into(),
        hidden,
        vocab: vocabulary(given)?,
        dropout: rates != DropoutRates::all(0.0),
        dropout_rates: Some(rates)
            .filter(|rates| ![DropoutRates::all(0.0), DropoutRates::all(0.1)].contains(rates)),
        embedding: Embedding { position, width: None, token_types: 0, norm: None },
        final_norm: Some(norm),
        norm_epsilon: given.number("--norm-epsilon")?,
        head: Head {
            tied: !given.has("--untie-embeddings-and-output-weights"),
            bias: false,
            transform: false,
            pooler: false,
        },
        blocks,
    })
}

fn vocabulary(given: &Arguments) -> Result<usize, SpecError> {
    match given.number("--vocab-size")? {
        Some(size) => Ok(size),
        None => given.count("--padded-vocab-size"),
    }
}

fn attention(request: &Request, given: &Arguments, hidden: usize) -> Result<Attention, SpecError> {
    let heads = given.count("--num-attention-heads")?;
    let kind = given.text("--position-embedding-type").unwrap_or("learned_absolute");
    let rotary = matches!(kind, "rope" | "yarn") || given.has("--use-rotary-position-embeddings");
    let grouped = given.has("--group-query-attention");
    let groups = given.count_or("--num-query-groups", 1)?;
    let kv_heads = if grouped { groups } else { heads };
    let head_dim = given.count_or("--kv-channels", hidden / heads)?;
    let output_bias = !given.has("--disable-bias-linear");
    let qkv_bias = given.has("--add-qkv-bias") || output_bias;
    let norms = given.has("--qk-layernorm");
    let mask = mask(request, given)?;
    let part: f64 = given.number("--rotary-percent")?.unwrap_or(1.0);
    let rotated = (part * head_dim as f64).round() as usize;
    let plain = Attention {
        heads,
        kv_heads,
        head_dim,
        value_head_dim: head_dim,
        mask,
        rotary,
        rotary_head_dim: (rotary && rotated < head_dim).then_some(rotated),
        rotary_base: if rotary { given.number("--rotary-base")? } else { None },
        qkv_bias,
        output_bias,
        qk_norm: norms,
        latent: None,
    };
    let rotary_head_dim = given.count_or("--qk-pos-emb-head-dim", 64)?;
    let latent = Latent {
        query_rank: given.number("--q-lora-rank")?,
        kv_rank: given.count_or("--kv-lora-rank", 32)?,
        rotary_head_dim,
    };
    let own_width = given.count_or("--qk-head-dim", 128)?;
    let value_head_dim = given.count_or("--v-head-dim", 128)?;
    if !given.has("--multi-latent-attention") {
        return Ok(plain);
    }
    Ok(Attention {
        kv_heads: heads,
        head_dim: own_width + rotary_head_dim,
        value_head_dim,
        rotary_head_dim: None,
        qk_norm: false,
        latent: Some(latent),
        ..plain
    })
}

/// `127,0`: that many keys before the query's own.
fn mask(request: &Request, given: &Arguments) -> Result<Mask, SpecError> {
    let Some(text) = given.text("--window-size") else { return Ok(Mask::Causal) };
    let inside = text.trim_matches(|letter| "()".contains(letter));
    match inside.split(',').next().and_then(|left| left.trim().parse::<usize>().ok()) {
        Some(left) => Ok(Mask::Window(left + 1)),
        None => Err(request.bad("--window-size", quoted(text), "two numbers with a comma, such as 4095,0")),
    }
}

/// The dense feed-forward part, and the experts if there are any.
fn feed_forward(given: &Arguments, hidden: usize) -> Result<(FeedForward, Option<Experts>), SpecError> {
    let gated = given.has("--swiglu");
    let squared = given.has("--squared-relu");
    let activation = match (gated, squared) {
        (true, _) => Activation::Silu,
        (_, true) => Activation::SquaredRelu,
        _ => Activation::Gelu,
    };
    // SwiGLU's three matrices have as many weights as two of four times the width.
    let usual = if gated { (4 * hidden * 2 / 3).div_ceil(64) * 64 } else { 4 * hidden };
    let width = given.count_or("--ffn-hidden-size", usual)?;
    let bias = !given.has("--disable-bias-linear");
    let dense = FeedForward { width, gated, activation, bias };
    let per_token = given.count_or("--moe-router-topk", 2)?;
    let expert = FeedForward { width: given.count_or("--moe-ffn-hidden-size", width)?, ..dense.clone() };
    let shared: Option<usize> = given.number("--moe-shared-expert-intermediate-size")?;
    let shared_gate = given.has("--moe-shared-expert-gate");
    let router_bias = given.has("--moe-router-enable-expert-bias");
    given.has("--moe-router-score-function");
    given.has("--moe-grouped-gemm");
    let groups: Option<usize> = given.number("--moe-router-num-groups")?;
    let of_token: Option<usize> = given.number("--moe-router-group-topk")?;
    let count: Option<usize> = given.number("--num-experts")?;
    let experts = count.map(|count| Experts {
        count,
        per_token,
        shared: shared.map(|width| FeedForward { width, ..dense.clone() }),
        expert,
        shared_gate,
        router_bias,
        group_limit: groups.zip(of_token).map(|(groups, per_token)| GroupLimit { groups, per_token }),
    });
    Ok((dense, experts))
}

/// Which blocks have experts: every n-th, or as a list such as `([0]*3+[1]*58)` says.
fn pattern(request: &Request, given: &Arguments, layers: usize) -> Result<Vec<bool>, SpecError> {
    let flag = "--moe-layer-freq";
    let text = given.text(flag).unwrap_or("1");
    let bad = || {
        let allowed = format!("a number, or a list of the {layers} blocks such as ([0]*3+[1]*58)");
        request.bad(flag, quoted(text), allowed)
    };
    if let Ok(step) = text.parse::<usize>() {
        return match step {
            0 => Err(bad()),
            step => Ok((0..layers).map(|layer| layer.is_multiple_of(step)).collect()),
        };
    }
    let (inside, outer) = match text.rsplit_once(")*") {
        Some((inside, times)) => (inside, times.parse::<usize>().map_err(|_| bad())?),
        None => (text, 1),
    };
    let mut once = Vec::new();
    for part in inside.trim_matches(|letter| "()".contains(letter)).split('+') {
        let (list, times) = part.split_once('*').unwrap_or((part, "1"));
        let times = times.parse::<usize>().ok().filter(|times| *times <= layers).ok_or_else(bad)?;
        let list = list.trim_matches(|letter| "[]".contains(letter)).split(',');
        let list: Option<Vec<bool>> = list
            .map(|entry| match entry.trim() {
                "0" => Some(false),
                "1" => Some(true),
                _ => None,
            })
            .collect();
        once.extend(list.ok_or_else(bad)?.repeat(times));
    }
    let all = if outer <= layers { once.repeat(outer) } else { Vec::new() };
    if all.len() == layers { Ok(all) } else { Err(bad()) }
}
