//! The model in MaxText's configuration: by the name of its file where MaxText has one of this shape, otherwise by sizes.

use crate::details::RopeScaling;
use crate::export::Request;
use crate::export::coverage::Coverage;
use serde_json::{Map, Value, json};
use trainwright_spec::model::{Activation, Block, Experts, Mask, Mlp, Model, Norm, Position, preset};

/// Models of the catalog that MaxText has a configuration of, `maxtext/configs/models` of version 0.2.5. Of several with
/// one shape, which differ in the scaling of rotary positions, the first is written.
pub(crate) const MODELS: &[(&str, &str)] = &[
    ("deepseek-v2", "deepseek2-236b"),
    ("deepseek-v3", "deepseek3-671b"),
    ("gemma-7b", "gemma-7b"),
    ("gemma-2-27b", "gemma2-27b"),
    ("gpt-oss-20b", "gpt-oss-20b"),
    ("gpt-oss-120b", "gpt-oss-120b"),
    ("gpt3-175b", "gpt3-175b"),
    ("kimi-k2", "kimi-k2-1t"),
    ("llama-2-7b", "llama2-7b"),
    ("llama-2-13b", "llama2-13b"),
    ("llama-2-70b", "llama2-70b"),
    ("llama-3-8b", "llama3-8b"),
    ("llama-3-8b", "llama3.1-8b"),
    ("llama-3-70b", "llama3-70b"),
    ("llama-3-70b", "llama3.1-70b"),
    ("llama-3-70b", "llama3.3-70b"),
    ("llama-3-405b", "llama3.1-405b"),
    ("mistral-7b", "mistral-7b"),
    ("mixtral-8x7b", "mixtral-8x7b"),
    ("mixtral-8x22b", "mixtral-8x22b"),
    ("qwen3-8b", "qwen3-8b"),
    ("qwen3-32b", "qwen3-32b"),
    ("qwen3-30b-a3b", "qwen3-30b-a3b"),
    ("qwen3-235b-a22b", "qwen3-235b-a22b"),
];

/// Those whose vocabulary is not the published one, with it.
const PADDED: &[(&str, usize)] = &[("gemma-7b", 256_128), ("gemma2-27b", 256_128), ("gpt3-175b", 50_304)];

/// Those whose blocks have windows of attention.
const WINDOWED: &[&str] = &["gemma2-27b", "gpt-oss-20b", "gpt-oss-120b"];

/// The name in MaxText of the catalog's model with this shape.
fn name_of(model: &Model) -> Option<&'static str> {
    let equal = |(known, _): &&(&str, &str)| {
        preset::preset(known).is_ok_and(|known| Model { name: model.name.clone(), ..known } == *model)
    };
    MODELS.iter().find(equal).map(|(_, name)| *name)
}

/// Writes the model.
pub fn settings(request: &Request, coverage: &mut Coverage, table: &mut Map<String, Value>) {
    let model = &request.plan.model;
    coverage.express(&["model"]);
    if let Some(name) = name_of(model) {
        table.insert("model_name".into(), json!(name));
        if model.dropout {
            coverage.refuse("model.dropout", "its configuration drops nothing out");
        }
        if let Some((_, vocabulary)) = PADDED.iter().find(|(padded, _)| *padded == name) {
            coverage.remark(format!("the vocabulary of {name} is padded to {vocabulary}"));
        }
        if has_windows(request) && !WINDOWED.contains(&name) {
            coverage.refuse("model.blocks", "its configuration has no windows of attention");
        }
        match request.details().rope_scaling {
            RopeScaling::Llama { factor: 8.0 } => drop(table.insert("rope_type".into(), json!("llama3.1"))),
            RopeScaling::Llama { .. } | RopeScaling::Linear { .. } => {
                coverage.refuse("model.blocks", "rotary positions are scaled by 8, as LLaMA 3.1's");
            }
            RopeScaling::None | RopeScaling::Yarn(_) => {}
        }
        return;
    }
    for why in lacking(request) {
        coverage.refuse("model.blocks", why);
    }
    let Some(block) = model.blocks.first().map(|run| &run.block) else { return };
    let attention = &block.attention;
    let mut set = |key: &str, value: Value| {
        table.insert(key.into(), value);
    };
    let experts = experts_of(block);
    set("decoder_block", json!(if experts.is_some() { "mixtral" } else { "llama2" }));
    set("base_emb_dim", json!(model.hidden));
    set("base_num_decoder_layers", json!(model.layers()));
    set("base_num_query_heads", json!(attention.heads));
    set("base_num_kv_heads", json!(attention.kv_heads));
    set("head_dim", json!(attention.head_dim));
    set("vocab_size", json!(model.vocab));
    set("logits_via_embedding", json!(model.head.tied));
    set("enable_dropout", json!(false));
    set("normalization_layer_epsilon", json!(model.norm_epsilon.unwrap_or(1e-5)));
    set("rope_max_timescale", json!(attention.rotary_base.unwrap_or(1e4)));
    if let RopeScaling::Llama { .. } = request.details().rope_scaling {
        set("rope_type", json!("llama3.1"));
    }
    let mlp = match &block.mlp {
        Mlp::Dense(mlp) => mlp,
        Mlp::Experts(experts) => &experts.expert,
    };
    let activation = match mlp.activation {
        Activation::Gelu => "gelu",
        Activation::Silu => "silu",
        Activation::Relu | Activation::SquaredRelu => "relu",
    };
    set("base_mlp_dim", json!(mlp.width));
    set("mlp_activations", if mlp.gated { json!([activation, "linear"]) } else { json!([activation]) });
    if let Some(experts) = experts {
        set("base_moe_mlp_dim", json!(experts.expert.width));
        set("num_experts", json!(experts.count));
        set("num_experts_per_tok", json!(experts.per_token));
    }
}

/// Whether a window is shorter than the sequences, so that it changes what is trained.
fn has_windows(request: &Request) -> bool {
    let sequence = request.plan.job.sequence;
    let masks = request.plan.model.blocks.iter().map(|run| run.block.attention.mask);
    masks.into_iter().any(|mask| matches!(mask, Mask::Window(window) if window < sequence))
}

fn experts_of(block: &Block) -> Option<&Experts> {
    match &block.mlp {
        Mlp::Experts(experts) => Some(experts),
        Mlp::Dense(_) => None,
    }
}

/// What the blocks of LLaMA and Mixtral, which the sizes are for, do not have.
fn lacking(request: &Request) -> Vec<&'static str> {
    let model = &request.plan.model;
    let details = request.details();
    let [run] = model.blocks.as_slice() else {
        return vec!["no configuration of this shape, and blocks that differ"];
    };
    let block = &run.block;
    let attention = &block.attention;
    let mlp = match &block.mlp {
        Mlp::Dense(mlp) => mlp,
        Mlp::Experts(experts) => &experts.expert,
    };
    let softmax =
        details.router.is_none_or(|router| !router.sigmoid && router.normalised && router.scaling == 1.0);
    let checks = [
        (
            block.norm == Norm::RmsNorm && block.norms == 2 && !block.parallel,
            "blocks with two RMSNorms in a row",
        ),
        (block.cross_attention.is_none(), "decoders alone"),
        (attention.latent.is_none() && !attention.qk_norm, "plain attention"),
        (attention.value_head_dim == attention.head_dim, "values as wide as keys"),
        (!attention.qkv_bias && !attention.output_bias && !mlp.bias, "products without biases"),
        (attention.rotary && attention.rotary_head_dim.is_none(), "rotary positions of whole heads"),
        (!model.blocks.iter().any(|run| run.block.attention.mask == Mask::Full), "causal attention"),
        (!has_windows(request), "attention without windows in these blocks"),
        (mlp.gated || mlp.activation != Activation::SquaredRelu, "no squared ReLU"),
        (model.embedding.position == Position::Rotary, "rotary positions"),
        (model.embedding.norm.is_none() && model.embedding.width.is_none(), "plain embeddings"),
        (!model.dropout, "no dropout in these blocks"),
        (!(model.head.bias || model.head.transform || model.head.pooler), "a head of one product"),
        (
            experts_of(block).is_none_or(|experts| experts.shared.is_none() && !experts.router_bias),
            "experts without a shared one and without biases of the router",
        ),
        (softmax, "experts weighed by softmax over the chosen"),
        (
            matches!(details.rope_scaling, RopeScaling::None | RopeScaling::Llama { factor: 8.0 }),
            "rotary positions as they are, or scaled as LLaMA 3.1's",
        ),
        (details.attention_softcap.is_none() && details.final_softcap.is_none(), "no soft limits of scores"),
        (!details.attention_sinks && details.peculiar.is_empty(), "attention without sinks"),
        (!details.scaled_embedding, "embeddings that are not scaled"),
    ];
    checks.into_iter().filter(|(holds, _)| !holds).map(|(_, what)| what).collect()
}
