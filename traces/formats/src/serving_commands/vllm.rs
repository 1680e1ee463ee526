//! `vllm serve`.

use super::{Command, Duty, Instance, NotExpressible, refuse};

/// Where flags are documented.
const ARGUMENTS: &str = "vLLM documentation, vllm serve: docs.vllm.ai/en/stable/cli/serve";
const EXPERTS: &str = "vLLM documentation, Expert Parallel Deployment: docs.vllm.ai/en/stable/serving/expert_parallel_deployment";
const APART: &str =
    "vLLM documentation, Disaggregated Prefilling: docs.vllm.ai/en/stable/features/disagg_prefill";

/// Every rank of tensor × data has all experts in parts, or some of them whole (`--enable-expert-parallel`). Batch limits are those
/// of each data-parallel rank.
pub fn write(instance: &Instance) -> Result<Command, NotExpressible> {
    let plan = instance.plan;
    let batching = &plan.engine.batching;
    let ranks = plan.ranks_of_stage();
    let mut command = Command::new(&["vllm", "serve", instance.model])
        .degree("--tensor-parallel-size", plan.tensor, ARGUMENTS)
        .degree("--pipeline-parallel-size", plan.pipeline, ARGUMENTS)
        .degree("--data-parallel-size", plan.attention_data, ARGUMENTS);
    match plan.expert {
        1 => {}
        expert if expert == ranks => command = command.switch("--enable-expert-parallel", EXPERTS),
        expert => {
            let allowed = format!("vLLM distributes experts over all {ranks} ranks of a stage or over none");
            return Err(refuse("expert", expert, allowed));
        }
    }
    if plan.weights == "fp8" && plan.expert_weights == "fp8" {
        command = command.with("--quantization", "fp8", ARGUMENTS);
    }
    if instance.has_small_cache()? {
        command = command.with("--kv-cache-dtype", "fp8", ARGUMENTS);
    }
    command = command
        .with("--max-num-seqs", batching.max_sequences.value, ARGUMENTS)
        .with("--max-num-batched-tokens", batching.max_tokens.value, ARGUMENTS)
        .with("--block-size", batching.block.value, ARGUMENTS)
        .with("--gpu-memory-utilization", batching.memory_share.value, ARGUMENTS);
    let role = match instance.duty {
        Duty::Whole => None,
        Duty::Prefill => Some("kv_producer"),
        Duty::Decode => Some("kv_consumer"),
    };
    if let Some(role) = role {
        let config = format!("{{\"kv_connector\":\"NixlConnector\",\"kv_role\":\"{role}\"}}");
        command = command.with("--kv-transfer-config", config, APART);
        command =
            command.remark(Some("a proxy sends each request to a prefill and a decode instance".into()));
    }
    Ok(command.remark(instance.checkpoint(&["bfloat16", "fp8"])))
}
