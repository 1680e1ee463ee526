//! `python3 -m sglang.launch_server`.

use super::{Command, Duty, Instance, NotExpressible, refuse};

/// Where flags are documented.
const ARGUMENTS: &str =
    "SGLang documentation, Server Arguments: docs.sglang.io/advanced_features/server_arguments.html";
const APART: &str =
    "SGLang documentation, PD Disaggregation: docs.sglang.io/advanced_features/pd_disaggregation.html";

/// `--tp-size` counts all GPUs of a stage; attention-data groups divide it. Batch limits are those of all groups together.
pub fn write(instance: &Instance) -> Result<Command, NotExpressible> {
    let plan = instance.plan;
    let batching = &plan.engine.batching;
    let (ranks, groups) = (plan.ranks_of_stage(), plan.attention_data);
    if !ranks.is_multiple_of(plan.expert) {
        return Err(refuse("expert", plan.expert, format!("it must divide the {ranks} ranks of a stage")));
    }
    let program = ["python3", "-m", "sglang.launch_server", "--model-path", instance.model];
    let mut command = Command::new(&program)
        .degree("--tp-size", ranks, ARGUMENTS)
        .degree("--pp-size", plan.pipeline, ARGUMENTS)
        .degree("--ep-size", plan.expert, ARGUMENTS);
    if groups > 1 {
        command = command.with("--dp-size", groups, ARGUMENTS).switch("--enable-dp-attention", ARGUMENTS);
    }
    if plan.weights == "fp8" && plan.expert_weights == "fp8" {
        command = command.with("--quantization", "fp8", ARGUMENTS);
    }
    if instance.has_small_cache()? {
        command = command.with("--kv-cache-dtype", "fp8_e4m3", ARGUMENTS);
    }
    command = command
        .with("--max-running-requests", batching.max_sequences.value * groups, ARGUMENTS)
        .with("--chunked-prefill-size", batching.max_tokens.value * groups, ARGUMENTS)
        .with("--page-size", batching.block.value, ARGUMENTS)
        .with("--mem-fraction-static", batching.memory_share.value, ARGUMENTS);
    let mode = match instance.duty {
        Duty::Whole => None,
        Duty::Prefill => Some("prefill"),
        Duty::Decode => Some("decode"),
    };
    if let Some(mode) = mode {
        command = command.with("--disaggregation-mode", mode, APART);
        command =
            command.remark(Some("a router sends each request to a prefill and a decode instance".into()));
    }
    Ok(command.remark(instance.checkpoint(&["bfloat16", "fp8"])))
}
