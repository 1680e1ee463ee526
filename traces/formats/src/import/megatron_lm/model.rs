//! The architecture that Megatron-LM's arguments describe.

use super::super::arguments::Arguments;
use super::super::{Request, named};
use trainwright_spec::error::SpecError;
use trainwright_spec::limits::{
    EXPERTS, EXPERTS_PER_TOKEN, HEAD_DIM, HEADS, HIDDEN, INNER, KV_HEADS, LAYERS, POSITIONS, RANK, TOKENS,
    VOCAB, WINDOW,
};
use trainwright_spec::model::{
    Activation, Attention, Block, BlockRun, DropoutRates, Embedding, Experts, FeedForward, GroupLimit, Head,
    Latent, Mask, Mlp, Model, Norm, Position,
};

/// Reads the arguments of the model; the request's model overrides them.
pub fn read(request: &Request, given: &Arguments) -> Result<Model, SpecError> {
    match &request.model {
        Some(model) => {
            // Read, so that they are not reported as unread.
            let _ = described(request, given);
            Ok(model.clone())
        }
        None => described(request, given).map(named),
    }
}

fn described(request: &Request, given: &Arguments) -> Result<Model, SpecError> {
    let layers = given.count("--num-layers", LAYERS)?;
    let hidden = given.count("--hidden-size", HIDDEN)?;
    let attention = attention(request, given, hidden)?;
    let norm = match given.text("--normalization").unwrap_or("LayerNorm") {
        "LayerNorm" => Norm::LayerNorm,
        "RMSNorm" => Norm::RmsNorm,
        other => return Err(request.bad_text("--normalization", other, "LayerNorm or RMSNorm")),
    };
    let (dense, experts) = feed_forward(given, hidden)?;
    let mlps = match experts {
        None => vec![Mlp::Dense(dense); layers],
        Some(experts) => {
            let pattern = pattern(request, given, "--moe-layer-freq", layers)?;
            let mlp =
                |sparse: bool| if sparse { Mlp::Experts(experts.clone()) } else { Mlp::Dense(dense.clone()) };
            pattern.into_iter().map(mlp).collect()
        }
    };
    let windows = windows(request, given, layers)?;
    let mut blocks: Vec<BlockRun> = Vec::new();
    for (mlp, windowed) in mlps.into_iter().zip(windows) {
        let mask = if windowed { attention.mask } else { Mask::Causal };
        let block = Block::sequential(norm, Attention { mask, ..attention.clone() }, mlp);
        match blocks.last_mut() {
            Some(run) if run.block == block => run.count += 1,
            _ => blocks.push(BlockRun { count: 1, block }),
        }
    }
    let positions = given.optional_count("--max-position-embeddings", POSITIONS)?;
    let position = match (attention.rotary, positions) {
        (true, _) => Position::Rotary,
        (false, Some(positions)) => Position::Learned(positions),
        (false, None) => Position::Learned(match request.sequence {
            Some(sequence) => sequence,
            None => given.count("--seq-length", TOKENS)?,
        }),
    };
    let dropout = |flag: &str| match given.number(flag)? {
        Some(part) if !(0.0..=1.0).contains(&part) => {
            Err(request.bad(flag, part, "a probability from 0 to 1"))
        }
        part => Ok(part.unwrap_or(0.1)),
    };
    let [attention, residual] = [dropout("--attention-dropout")?, dropout("--hidden-dropout")?];
    let rates = DropoutRates { attention, ..DropoutRates::all(residual) };
    Ok(Model {
        name: request.origin.into(),
        hidden,
        vocab: vocabulary(request, given)?,
        dropout: rates != DropoutRates::all(0.0),
        dropout_rates: Some(rates)
            .filter(|rates| ![DropoutRates::all(0.0), DropoutRates::all(0.1)].contains(rates)),
        embedding: Embedding { position, width: None, token_types: 0, norm: None },
        final_norm: Some(norm),
        norm_epsilon: above_zero(request, given, "--norm-epsilon")?,
        head: Head {
            tied: !given.has("--untie-embeddings-and-output-weights"),
            bias: false,
            transform: false,
            pooler: false,
        },
        blocks,
    })
}

fn above_zero(request: &Request, given: &Arguments, flag: &str) -> Result<Option<f64>, SpecError> {
    match given.number(flag)? {
        Some(number) if number <= 0.0 => Err(request.bad(flag, number, "a number above 0 should stand here")),
        number => Ok(number),
    }
}

/// The vocabulary, or that of GPT-2's tokenizer, which the stock scripts have.
fn vocabulary(request: &Request, given: &Arguments) -> Result<usize, SpecError> {
    for flag in ["--vocab-size", "--padded-vocab-size"] {
        if let Some(size) = given.optional_count(flag, VOCAB)? {
            return Ok(size);
        }
    }
    let of_gpt_2 =
        given.text("--tokenizer-type").map_or(given.has("--merge-file"), |kind| kind == "GPT2BPETokenizer");
    let of_llama_2 = given.text("--tokenizer-type") == Some("Llama2Tokenizer");
    let (size, of) = match (of_gpt_2, of_llama_2) {
        (true, _) => (50_257, "GPT-2's tokenizer"),
        (_, true) => (32_000, "LLaMA 2's tokenizer"),
        _ => {
            return Err(
                request.missing("--vocab-size", format!("{}; or --set vocab-size=N", VOCAB.expected()))
            );
        }
    };
    given.assume("--vocab-size", format!("{size} ({of})"));
    Ok(size)
}

fn attention(request: &Request, given: &Arguments, hidden: usize) -> Result<Attention, SpecError> {
    let heads = given.count("--num-attention-heads", HEADS)?;
    let kind = given.text("--position-embedding-type").unwrap_or("learned_absolute");
    let rotary = matches!(kind, "rope" | "yarn") || given.has("--use-rotary-position-embeddings");
    let grouped = given.has("--group-query-attention");
    let groups = given.count_or("--num-query-groups", 1, KV_HEADS)?;
    let kv_heads = if grouped { groups } else { heads };
    let head_dim = given.count_or("--kv-channels", hidden / heads, HEAD_DIM)?;
    let output_bias = !given.has("--disable-bias-linear");
    let qkv_bias = given.has("--add-qkv-bias") || output_bias;
    let norms = given.has("--qk-layernorm");
    let mask = mask(request, given)?;
    let part = given.number("--rotary-percent")?.unwrap_or(1.0);
    if !(part > 0.0 && part <= 1.0) {
        return Err(request.bad("--rotary-percent", part, "a part of a head's width above 0 and up to 1"));
    }
    let rotated = (part * head_dim as f64).round() as usize;
    let plain = Attention {
        heads,
        kv_heads,
        head_dim,
        value_head_dim: head_dim,
        mask,
        rotary,
        rotary_head_dim: (rotary && rotated < head_dim).then_some(rotated),
        rotary_base: if rotary { above_zero(request, given, "--rotary-base")? } else { None },
        qkv_bias,
        output_bias,
        qk_norm: norms,
        latent: None,
        output_gate: false,
        indexer: None,
        recurrence: None,
    };
    let rotary_head_dim = given.count_or("--qk-pos-emb-head-dim", 64, HEAD_DIM)?;
    let latent = Latent {
        query_rank: given.optional_count("--q-lora-rank", RANK)?,
        kv_rank: given.count_or("--kv-lora-rank", 32, RANK)?,
        rotary_head_dim,
    };
    let plain_width = given.count_or("--qk-head-dim", 128, HEAD_DIM)?;
    let value_head_dim = given.count_or("--v-head-dim", 128, HEAD_DIM)?;
    if !given.has("--multi-latent-attention") {
        return Ok(plain);
    }
    Ok(Attention {
        kv_heads: heads,
        head_dim: plain_width + rotary_head_dim,
        value_head_dim,
        rotary_head_dim: None,
        qk_norm: false,
        latent: Some(latent),
        ..plain
    })
}

/// `127,0`: the number of keys before that of the query.
fn mask(request: &Request, given: &Arguments) -> Result<Mask, SpecError> {
    let Some(text) = given.text("--window-size") else { return Ok(Mask::Causal) };
    let inside = text.trim_matches(|letter| "()".contains(letter));
    match inside.split(',').next().and_then(|left| left.trim().parse::<u64>().ok()) {
        // The query's key is not counted there.
        Some(left) if WINDOW.allows(left.saturating_add(1)) => Ok(Mask::Window(left as usize + 1)),
        _ => Err(request.bad_text("--window-size", text, "two numbers with a comma, such as 4095,0")),
    }
}

/// Arguments about the model that change neither sizes nor times.
const DETAILS: [&str; 15] = [
    "--moe-router-score-function",
    "--moe-router-pre-softmax",
    "--moe-router-topk-scaling-factor",
    "--moe-grouped-gemm",
    "--use-rope-scaling",
    "--rope-scaling-factor",
    "--rotary-scaling-factor",
    "--rotary-seq-len-interpolation-factor",
    "--mscale",
    "--mscale-all-dim",
    "--yarn-original-max-position-embeddings",
    "--yarn-beta-fast",
    "--yarn-beta-slow",
    "--apply-layernorm-1p",
    "--softmax-type",
];

/// The dense feed-forward part, and the experts if there are any.
fn feed_forward(given: &Arguments, hidden: usize) -> Result<(FeedForward, Option<Experts>), SpecError> {
    let quick = given.has("--quick-geglu");
    let swiglu = given.has("--swiglu");
    let gated = swiglu || quick;
    let squared = given.has("--squared-relu");
    let clamped = given.has("--activation-func-clamp-value") && given.has("--glu-linear-offset");
    let activation = match (swiglu || clamped && quick, squared) {
        (true, _) => Activation::Silu,
        (_, true) => Activation::SquaredRelu,
        _ => Activation::Gelu,
    };
    // SwiGLU's three matrices have as many weights as two of four times the width.
    let usual = if gated { (4 * hidden * 2 / 3).div_ceil(64) * 64 } else { 4 * hidden };
    let width = given.count_or("--ffn-hidden-size", usual, INNER)?;
    let bias = !given.has("--disable-bias-linear");
    let dense = FeedForward { width, gated, activation, bias };
    let per_token = given.count_or("--moe-router-topk", 2, EXPERTS_PER_TOKEN)?;
    let expert =
        FeedForward { width: given.count_or("--moe-ffn-hidden-size", width, INNER)?, ..dense.clone() };
    let shared = given.optional_count("--moe-shared-expert-intermediate-size", INNER)?;
    let shared_gate = given.has("--moe-shared-expert-gate");
    let router_bias = given.has("--moe-router-enable-expert-bias") || bias;
    // Facts of the model that a plan has no place for.
    for flag in DETAILS {
        given.has(flag);
    }
    let groups = given.optional_count("--moe-router-num-groups", EXPERTS)?;
    let of_token = given.optional_count("--moe-router-group-topk", EXPERTS)?;
    let count = given.optional_count("--num-experts", EXPERTS)?;
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

/// Which blocks have the window: all but every n-th, or as a list.
fn windows(request: &Request, given: &Arguments, layers: usize) -> Result<Vec<bool>, SpecError> {
    let flag = "--window-attn-skip-freq";
    match given.text(flag).map(str::parse::<usize>) {
        None => Ok(vec![true; layers]),
        Some(Ok(step)) if step > 0 => Ok((1..=layers).map(|block| !block.is_multiple_of(step)).collect()),
        Some(_) => pattern(request, given, flag, layers),
    }
}

/// Which blocks have experts or a window: every n-th, or as a list like `([0]*3+[1]*58)`.
fn pattern(request: &Request, given: &Arguments, flag: &str, layers: usize) -> Result<Vec<bool>, SpecError> {
    let text = given.text(flag).unwrap_or("1");
    let bad = || {
        let allowed = format!("a number, or a list of the {layers} blocks such as ([0]*3+[1]*58)");
        request.bad_text(flag, text, allowed)
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
        let times = times.parse::<usize>().map_err(|_| bad())?;
        let list = list.trim_matches(|letter| "[]".contains(letter)).split(',');
        let list: Option<Vec<bool>> = list
            .map(|entry| match entry.trim() {
                "0" => Some(false),
                "1" => Some(true),
                _ => None,
            })
            .collect();
        let list = list.ok_or_else(bad)?;
        // Checked before the list is repeated.
        if list.len().saturating_mul(times).saturating_add(once.len()) > layers {
            return Err(bad());
        }
        once.extend(list.repeat(times));
    }
    match once.len().checked_mul(outer) == Some(layers) {
        true => Ok(once.repeat(outer)),
        false => Err(bad()),
    }
}
