//! What a model's configuration says beyond a plan, as far as Megatron-LM has arguments for it.

use super::Arguments;
use crate::details::{Details, RopeScaling};
use crate::export::Request;
use crate::export::coverage::Coverage;

/// Whether rotary positions are those of YaRN without latent attention, which has them by default.
pub fn is_yarn(request: &Request) -> bool {
    matches!(request.details().rope_scaling, RopeScaling::Yarn(_)) && !is_latent(request)
}

fn is_latent(request: &Request) -> bool {
    request.plan.model.blocks.iter().any(|run| run.block.attention.latent.is_some())
}

/// Writes the details, and refuses those that no argument expresses.
pub fn arguments(request: &Request, coverage: &mut Coverage, out: &mut Arguments) {
    let details = request.details();
    positions(request, &details, coverage, out);
    router(&details, out);
    if details.attention_softcap.is_some() || details.final_softcap.is_some() {
        coverage.refuse("model.blocks", "no soft limits of scores and outputs");
    }
    let width = request.plan.model.blocks.first().map(|run| run.block.attention.head_dim as f64);
    if details.query_scalar.is_some() && details.query_scalar != width {
        coverage.refuse("model.blocks", "queries are divided by the square root of their heads' width");
    }
    if details.scaled_embedding {
        coverage.refuse("model.embedding", "embeddings are not scaled");
    }
    if details.zero_centered_norms {
        out.on("--apply-layernorm-1p", "model.layernorm_zero_centered_gamma");
    }
    if details.attention_sinks {
        out.set("--softmax-type", "learnable", "model.softmax_type");
    }
    if let Some(limit) = details.clamped_gate {
        out.set("--glu-linear-offset", 1.0, "model.glu_linear_offset");
        out.set("--activation-func-clamp-value", limit, "model.activation_func_clamp_value");
    }
    if details.further_predictions > 0 {
        out.set("--mtp-num-layers", details.further_predictions, "model.mtp_num_layers");
        let modules = details.further_predictions;
        coverage.remark(format!(
            "--mtp-num-layers {modules}: the model predicts further tokens by {modules} more block(s) on the last \
             stage, whose time and memory the plan does not have"
        ));
    }
    for what in &details.peculiar {
        coverage.refuse("model.blocks", format!("no {what}"));
    }
}

fn positions(request: &Request, details: &Details, coverage: &mut Coverage, out: &mut Arguments) {
    match details.rope_scaling {
        RopeScaling::None => {}
        RopeScaling::Llama { factor } => {
            out.on("--use-rope-scaling", "");
            out.set("--rope-scaling-factor", factor, "");
        }
        RopeScaling::Yarn(yarn) => {
            out.set("--rotary-scaling-factor", yarn.factor, "");
            out.set("--mscale", yarn.mscale, "");
            out.set("--mscale-all-dim", yarn.mscale_all_dim, "");
            if !is_latent(request) {
                out.set("--yarn-original-max-position-embeddings", yarn.original, "");
                out.set("--yarn-beta-fast", yarn.beta_fast, "");
                out.set("--yarn-beta-slow", yarn.beta_slow, "");
            } else if (yarn.original, yarn.beta_fast, yarn.beta_slow) != LATENT_YARN {
                coverage
                    .refuse("model.blocks", "YaRN of latent attention has β 32 and 1 over 4,096 positions");
            }
        }
        RopeScaling::Linear { factor } => {
            if factor.fract() == 0.0 {
                out.set("--rotary-seq-len-interpolation-factor", factor as i64, "");
            } else {
                coverage.refuse("model.blocks", "rotary positions are interpolated by whole factors");
            }
        }
    }
}

/// Positions, fast and slow β that Megatron-Core's configuration of latent attention has and no argument changes.
const LATENT_YARN: (usize, f64, f64) = (4096, 32.0, 1.0);

fn router(details: &Details, out: &mut Arguments) {
    let Some(router) = details.router else { return };
    if router.sigmoid {
        out.set("--moe-router-score-function", "sigmoid", "model.moe_router_score_function");
    } else if !router.normalised {
        // Softmax over all experts before the choice; otherwise over the chosen ones, which normalises.
        out.on("--moe-router-pre-softmax", "model.moe_router_pre_softmax");
    }
    if router.scaling != 1.0 {
        out.set("--moe-router-topk-scaling-factor", router.scaling, "model.moe_router_topk_scaling_factor");
    }
}
