//! Overrides of a NeMo 2 recipe for its command line, one a line.

use super::coverage::Coverage;
use super::megatron::choices;
use super::megatron_bridge::of_recipe;
use super::{ExportedFile, Exporter, Request};
use trainwright_spec::optimizer::Moments;
use trainwright_spec::precision::Precision;

/// NeMo.
pub struct NeMo;

/// Fields of the model's configuration that NeMo's strategy takes.
const OF_STRATEGY: [&str; 11] = [
    "tensor_model_parallel_size",
    "sequence_parallel",
    "pipeline_model_parallel_size",
    "virtual_pipeline_model_parallel_size",
    "microbatch_group_size_per_vp_stage",
    "pipeline_model_parallel_layout",
    "context_parallel_size",
    "hierarchical_context_parallel_sizes",
    "expert_model_parallel_size",
    "expert_tensor_parallel_size",
    "num_distributed_optimizer_instances",
];

impl Exporter for NeMo {
    fn name(&self) -> &'static str {
        "nemo"
    }

    fn summary(&self) -> &'static str {
        "overrides of a NeMo 2 recipe: nemo llm pretrain --factory RECIPE $(grep -v '^#' FILE)"
    }

    fn source(&self) -> &'static str {
        "NeMo 2, nemo.lightning.MegatronStrategy and nemo.collections.llm recipes"
    }

    fn files(&self, request: &Request, coverage: &mut Coverage) -> Vec<ExportedFile> {
        let plan = request.plan;
        coverage.express(&["cluster"]);
        coverage.elsewhere("model", "the recipe says it");
        coverage.elsewhere("stack.attention", "the recipe says it");
        coverage.elsewhere("stack.vocabulary_multiple", "the recipe says it");
        let mut lines = vec![
            format!("trainer.num_nodes={}", plan.cluster.nodes),
            format!("trainer.devices={}", plan.cluster.node.gpus.value),
        ];
        let fields = choices(request, coverage).0.into_iter().filter_map(|argument| argument.field);
        let of_recipe = |path: &str| of_recipe(path) || path.starts_with("checkpoint.");
        for (path, value) in fields.filter(|(path, _)| !of_recipe(path)) {
            let (section, field) = path.split_once('.').unwrap_or(("", path));
            let path = match section {
                _ if OF_STRATEGY.contains(&field) => format!("trainer.strategy.{field}"),
                "model" if field == "seq_length" => "data.seq_length".into(),
                "model" => format!("model.config.{field}"),
                "ddp" => format!("trainer.strategy.ddp.{field}"),
                "train" => format!("data.{field}"),
                _ => format!("optim.config.{field}"),
            };
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_string);
            lines.push(format!("{path}={}", text.replace("true", "True").replace("false", "False")));
        }
        if plan.job.optimizer == "muon" {
            coverage.refuse("job.optimizer", "NeMo 2 has no Muon");
        }
        if plan.state.moments != Moments::Fp32 {
            coverage.omit("state.moments", "fp32: other types of them are no text");
        }
        let wide = super::fields::gradients(plan) == Precision::Fp32;
        if !wide && plan.job.precision.base() != Precision::Fp32 {
            coverage.omit("state.gradients", "fp32, as the precision plugins have it");
        }
        match plan.job.precision {
            Precision::Bf16 => lines.push("trainer.plugins.precision=bf16-mixed".into()),
            Precision::Fp16 => lines.push("trainer.plugins.precision=16-mixed".into()),
            Precision::Fp8 => {
                lines.push("trainer.plugins.precision=bf16-mixed".into());
                lines.push("trainer.plugins.fp8=hybrid".into());
                lines.push("trainer.plugins.fp8_recipe=delayed".into());
            }
            _ => coverage.elsewhere("job.precision", "choose the recipe's precision plugin"),
        }
        vec![ExportedFile { name: "nemo.overrides".into(), text: lines.join("\n") + "\n" }]
    }
}
