//! Overrides of a Megatron-Bridge recipe's configuration, as YAML.

use super::coverage::Coverage;
use super::megatron::choices;
use super::shared::LAUNCHER;
use super::{ExportedFile, Exporter, Request, yaml};
use serde_json::Map;
use trainwright_spec::optimizer::Moments;
use trainwright_spec::precision::Precision;

/// Megatron-Bridge.
pub struct MegatronBridge;

impl Exporter for MegatronBridge {
    fn name(&self) -> &'static str {
        "megatron-bridge"
    }

    fn summary(&self) -> &'static str {
        "YAML that overrides the configuration of a Megatron-Bridge recipe"
    }

    fn source(&self) -> &'static str {
        "Megatron-Bridge 0.6.2, megatron.bridge.training.config.ConfigContainer"
    }

    fn files(&self, request: &Request, coverage: &mut Coverage) -> Vec<ExportedFile> {
        let plan = request.plan;
        coverage.elsewhere("model", "the recipe's model provider says it");
        coverage.elsewhere("cluster", LAUNCHER);
        coverage.elsewhere("stack.attention", "the recipe's attention_backend, an enumeration");
        coverage.elsewhere("stack.vocabulary_multiple", "the recipe's model provider says it");
        coverage.omit("job.adapters", "an object of a finetuning recipe (peft), which overrides do not make");
        let mut table = Map::new();
        let fields = choices(request, coverage).0.into_iter().filter_map(|argument| argument.field);
        // That Muon divides its state is in its name.
        let divided_muon = plan.job.optimizer == "muon" && plan.data_sharding == "zero1";
        if divided_muon && plan.stack.overlap_weight_gather {
            coverage.slow("stack.overlap_weight_gather", "Muon gathers the weights in line");
        }
        for (path, value) in fields.filter(|(path, _)| !of_recipe(path)) {
            match path {
                "optimizer.optimizer" if divided_muon => {
                    yaml::set(&mut table, path, "dist_muon".into());
                    continue;
                }
                "ddp.use_distributed_optimizer" | "ddp.overlap_param_gather" if divided_muon => continue,
                _ => yaml::set(&mut table, path, value.clone()),
            }
            match path {
                "ddp.use_distributed_optimizer" | "ddp.overlap_param_gather" => {
                    yaml::set(&mut table, &path.replace("ddp.", "optimizer."), value);
                }
                "model.seq_length" => yaml::set(&mut table, "dataset.seq_length", value),
                _ => {}
            }
        }
        match recipe(plan.job.precision) {
            Some(recipe) => yaml::set(&mut table, "mixed_precision", recipe.into()),
            None => coverage.omit("job.precision", "no recipe of mixed precision has it"),
        }
        let gradients = super::fields::gradients(plan);
        let usual =
            if plan.job.precision.base() == Precision::Fp16 { Precision::Fp16 } else { Precision::Fp32 };
        if gradients != usual && plan.job.precision.base() != Precision::Fp32 {
            coverage.omit("state.gradients", format!("{usual}, as the recipe of mixed precision has it"));
        }
        if plan.state.moments != Moments::Fp32 {
            coverage.omit("state.moments", "fp32: other types of them are no text");
        }
        vec![ExportedFile { name: "megatron-bridge.yaml".into(), text: yaml::write(&table) }]
    }
}

/// The settings that a recipe sets: those of mixed precision together, and those of its attention.
pub fn of_recipe(path: &str) -> bool {
    let field = path.rsplit('.').next().unwrap_or_default();
    ["bf16", "fp16", "fp8", "fp8_recipe", "fp4", "fp4_recipe", "grad_reduce_in_fp32"].contains(&field)
        || ["masked_softmax_fusion", "flash_attention_version"].contains(&field)
}

/// The recipe of mixed precision in `megatron.bridge.training.mixed_precision`.
fn recipe(precision: Precision) -> Option<&'static str> {
    match precision {
        Precision::Bf16 => Some("bf16_mixed"),
        Precision::Fp16 => Some("fp16_mixed"),
        Precision::Fp8 => Some("bf16_with_fp8_delayed_scaling_mixed"),
        Precision::Fp8Block => Some("bf16_with_fp8_subchannel_scaling_mixed"),
        Precision::MxFp8 => Some("bf16_with_mxfp8_mixed"),
        Precision::Fp32 | Precision::Tf32 | Precision::NvFp4 | Precision::Int8 => None,
    }
}
