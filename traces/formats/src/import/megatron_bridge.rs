//! Overrides of a Megatron-Bridge recipe, as YAML; the recipe's model is given beside it.

use super::tables::Tables;
use super::{Imported, Importer, Request, megatron_lm, megatron_yaml};
use serde_json::Value;
use trainwright_spec::error::SpecError;

/// Megatron-Bridge.
pub struct MegatronBridge;

impl Importer for MegatronBridge {
    fn name(&self) -> &'static str {
        "megatron-bridge"
    }

    fn summary(&self) -> &'static str {
        "YAML over a Megatron-Bridge recipe; --model says the recipe's model"
    }

    fn stack(&self) -> &'static str {
        "megatron-core"
    }

    fn draft(&self, request: &Request) -> Result<Imported, SpecError> {
        request.given_model("Megatron-Bridge")?;
        let tables = Tables::from_yaml(request)?;
        let given = megatron_yaml::of_tables(request, &tables);
        let recipe = tables.get("mixed_precision").and_then(Value::as_str);
        if recipe.is_none() {
            given.assume("mixed_precision", "bf16_mixed");
        }
        let recipe = recipe.unwrap_or("bf16_mixed").to_string();
        let given = given.with(of_precision(request, &recipe)?);
        given.has("--mixed-precision");
        megatron_lm::read(request, &given)
    }
}

/// The arguments that a recipe of mixed precision stands for.
fn of_precision(request: &Request, recipe: &str) -> Result<Vec<(&'static str, &'static str)>, SpecError> {
    let fp8 = |recipe| vec![("--bf16", ""), ("--fp8-format", "hybrid"), ("--fp8-recipe", recipe)];
    match recipe {
        "bf16_mixed" => Ok(vec![("--bf16", "")]),
        "fp16_mixed" => Ok(vec![("--fp16", "")]),
        "bf16_with_fp8_delayed_scaling_mixed" => Ok(fp8("delayed")),
        "bf16_with_fp8_current_scaling_mixed" => Ok(fp8("tensorwise")),
        "bf16_with_fp8_subchannel_scaling_mixed" => Ok(fp8("blockwise")),
        "bf16_with_mxfp8_mixed" => Ok(fp8("mxfp8")),
        other => {
            Err(request.bad_text("mixed_precision", other, "bf16_mixed, fp16_mixed or bf16_with_…_mixed"))
        }
    }
}
