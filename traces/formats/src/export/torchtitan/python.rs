//! The configuration of torchtitan from version 0.3 on, which is a function of Python.

use super::flavors::{self, Flavor};
use super::{Checkpoint, Training};
use crate::details::RopeScaling;
use crate::export::coverage::Coverage;
use crate::export::shared::LAUNCHER;
use crate::export::{ExportedFile, Exporter, Request};
use serde::Serialize;
use serde_json::Value;
use trainwright_spec::precision::Precision;

/// torchtitan from version 0.3 on.
pub struct TorchTitanPython;

impl Exporter for TorchTitanPython {
    fn name(&self) -> &'static str {
        "torchtitan-python"
    }

    fn summary(&self) -> &'static str {
        "torchtitan's configuration in Python, from version 0.3 on: --module FILE --config plan"
    }

    fn source(&self) -> &'static str {
        "torchtitan 0.3.0, torchtitan.trainer.Trainer.Config and torchtitan.config.ConfigManager"
    }

    fn reader(&self) -> Option<&'static str> {
        Some("torchtitan")
    }

    fn files(&self, request: &Request, coverage: &mut Coverage) -> Vec<ExportedFile> {
        let plan = request.plan;
        coverage.elsewhere("cluster", LAUNCHER);
        coverage.elsewhere("stack", "torchtitan's kernels and overlap");
        let (mut parallelism, csv) = super::parallelism(plan, coverage);
        if plan.mesh.expert > 1 && plan.mesh.expert_tensor() > 1 {
            coverage.slow("mesh.expert_tensor", "experts are whole on their ranks");
        }
        let backend = parallelism.expert_parallel_comm_backend.take();
        if plan.mesh.context > 1 && parallelism.context_parallel_rotate_method.take() == Some("alltoall") {
            coverage.omit("context_scheme", "keys and values are all-gathered");
        }
        parallelism.expert_tensor_parallel_degree = None;
        let mut text = String::new();
        let flavor = flavors::of_shape(&plan.model);
        if let Some(flavor) = flavor {
            coverage.express(&["model"]);
            positions(request, flavor, coverage);
        } else {
            coverage.omit("model", flavors::lacking(&plan.model));
        }
        let (module, kind) = flavor.map_or(("llama3", plan.model.name.as_str()), |flavor| flavor.name);
        let checkpoint = checkpoint(super::checkpoint(plan, coverage), coverage);
        let mut training = super::training(plan, coverage);
        training.max_norm = training.max_norm.min(super::NO_LIMIT);
        super::optimizer(plan, coverage);
        if plan.job.optimizer == "adam" {
            coverage.omit("job.optimizer", "AdamW takes its place");
        }
        text += &imports(module, checkpoint);
        text += "\n\ndef plan() -> Trainer.Config:\n";
        text += &model(request, kind, flavor, backend);
        text += "    return Trainer.Config(\n";
        text += "        model_spec=model_spec,\n";
        text += "        loss=ChunkedLossWrapper.Config(\n";
        text += "            loss_fn=CrossEntropyLoss.Config(global_vocab_size=decoder_vocab_size(model_spec)),\n";
        text += "        ),\n";
        text += "        # Learning rate, data and tokenizer are not in a plan.\n";
        text += "        optimizer=default_adamw(lr=3e-4),\n";
        text += "        dataloader=HuggingFaceTextDataLoader.Config(dataset=\"c4_test\"),\n";
        text += &call("training=TrainingConfig", &training_arguments(&training));
        text += &call(
            "parallelism=ParallelismConfig",
            &arguments(&parallelism, &["enable_async_tensor_parallel"]),
        );
        if let Some(compile) = super::compile(plan) {
            let mut arguments = arguments(&compile, &[]);
            if parallelism.enable_async_tensor_parallel {
                arguments.push("enable_async_tensor_parallel=True".into());
            }
            text += &format!("        compile=CompileConfig({}),\n", arguments.join(", "));
        }
        text += &format!("        activation_checkpoint={checkpoint},\n    )\n");
        let main = ExportedFile { name: "torchtitan_plan.py".into(), text };
        std::iter::once(main).chain(csv).collect()
    }
}

/// Scaling of rotary positions is part of a layer's configuration, which the file can change; their base is one too.
fn positions(request: &Request, flavor: &Flavor, coverage: &mut Coverage) {
    let scaling = request.details().rope_scaling;
    let expressed = match (scaling, flavor.scaling) {
        (RopeScaling::None | RopeScaling::Llama { .. }, _) => true,
        (ours, theirs) => ours == theirs,
    };
    if request.details.is_some() && !expressed {
        flavors::check_positions(request, flavor, coverage);
    }
}

fn imports(module: &str, checkpoint: &str) -> String {
    let policy = checkpoint.split('.').next().filter(|name| *name != "None");
    let mut lines = vec![
        "from dataclasses import replace".to_string(),
        String::new(),
        "from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss".into(),
        "from torchtitan.components.optimizer import default_adamw".into(),
        "from torchtitan.components.quantization import Float8LinearConverter, MXFP8LinearConverter".into(),
        "from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig".into(),
    ];
    lines.extend(
        policy.map(|name| format!("from torchtitan.distributed.activation_checkpoint import {name}")),
    );
    lines.push("from torchtitan.hf_datasets.text_datasets import HuggingFaceTextDataLoader".into());
    lines.push("from torchtitan.models.common.config_utils import decoder_vocab_size".into());
    lines.push(format!("from torchtitan.models.{module} import model_registry"));
    lines.push("from torchtitan.trainer import Trainer".into());
    lines.join("\n") + "\n"
}

/// The model, with its rotary positions as the plan's model has them.
fn model(request: &Request, kind: &str, flavor: Option<&Flavor>, backend: Option<&str>) -> String {
    let plan = request.plan;
    let mut arguments = vec![format!("{kind:?}")];
    arguments.extend(backend.map(|backend| format!("moe_comm_backend={backend:?}")));
    let converter = match plan.job.precision {
        Precision::Fp8 => Some("Float8LinearConverter"),
        Precision::MxFp8 => Some("MXFP8LinearConverter"),
        _ => None,
    };
    let compiled = super::compile(plan).is_some_and(|compile| compile.components.contains(&"model"));
    let compiled = literal(&compiled.into());
    arguments.extend(
        converter.map(|name| format!("converters=[{name}.Config(model_compile_enabled={compiled})]")),
    );
    let further = request.details().further_predictions;
    if further > 0 && flavor.is_some_and(|flavor| flavor.name.0 == "deepseek_v3") {
        arguments.push(format!("num_mtp_layers={further}"));
    }
    let mut text = format!("    model_spec = model_registry({})\n", arguments.join(", "));
    let mut changes = Vec::new();
    let Some(flavor) = flavor else { return text };
    if request.details.is_some() && request.details().rope_scaling != flavor.scaling {
        match request.details().rope_scaling {
            RopeScaling::Llama { factor } => {
                changes.push("scaling=\"llama\"".to_string());
                changes.push(format!("scaling_factor={factor:?}"));
            }
            _ => changes.push("scaling=\"none\"".into()),
        }
    }
    let base = plan.model.blocks.first().and_then(|run| run.block.attention.rotary_base).unwrap_or(1e4);
    if flavor.rotary_base.is_some_and(|other| other != base) {
        changes.push(format!("theta={base:?}"));
    }
    if !changes.is_empty() {
        text += "    for layer in model_spec.model.layers:\n";
        text += &format!(
            "        layer.attention.rope = replace(layer.attention.rope, {})\n",
            changes.join(", ")
        );
    }
    text
}

/// The policy; a whole layer in every n-th is not one of them.
fn checkpoint(chosen: Checkpoint, coverage: &mut Coverage) -> &'static str {
    match chosen.mode {
        "none" => "None",
        "selective" => {
            coverage.slow("stages.recompute", "all blocks or none in full; all here");
            "FullAC.Config()"
        }
        _ => "FullAC.Config()",
    }
}

fn training_arguments(training: &Training) -> Vec<String> {
    let mut arguments = arguments(training, &[]);
    // Graphs do not go with pipelines, nor with most exchanges of experts' tokens.
    arguments.push("disable_cuda_graphs=True".into());
    arguments
}

/// The fields of a table as arguments of Python, without those that are not given or in `left_out`.
fn arguments(table: &impl Serialize, left_out: &[&str]) -> Vec<String> {
    let table = serde_json::to_value(table).expect("the fields have text keys");
    let fields = table.as_object().into_iter().flatten();
    let given = fields.filter(|(key, value)| !value.is_null() && !left_out.contains(&key.as_str()));
    given.map(|(key, value)| format!("{key}={}", literal(value))).collect()
}

fn literal(value: &Value) -> String {
    match value {
        Value::Bool(true) => "True".into(),
        Value::Bool(false) => "False".into(),
        // The head is called so from this version on.
        Value::String(text) if text == "output" => "\"lm_head\"".into(),
        Value::Array(values) => {
            format!("[{}]", values.iter().map(literal).collect::<Vec<String>>().join(", "))
        }
        other => other.to_string(),
    }
}

fn call(name: &str, arguments: &[String]) -> String {
    let lines: Vec<String> = arguments.iter().map(|argument| format!("            {argument},\n")).collect();
    format!("        {name}(\n{}        ),\n", lines.concat())
}
