//! `trtllm-serve` with its file of options.

use super::{Command, Duty, Instance, NotExpressible, refuse};

/// Where flags are documented.
const ARGUMENTS: &str =
    "TensorRT-LLM documentation, trtllm-serve: nvidia.github.io/TensorRT-LLM/commands/trtllm-serve";

/// The file of options; its keys are those of the LLM API: nvidia.github.io/TensorRT-LLM/llm-api/reference.html.
const OPTIONS: &str = "trtllm-options.yaml";

/// `--tp_size` counts all GPUs of a stage. With attention data parallel each of them attends to requests of its own.
pub fn write(instance: &Instance) -> Result<Command, NotExpressible> {
    let plan = instance.plan;
    let batching = &plan.engine.batching;
    let ranks = plan.ranks_of_stage();
    if plan.attention_data > 1 && plan.tensor > 1 {
        let allowed =
            "with attention-data ranks TensorRT-LLM attends to a request on one GPU: it must be 1".into();
        return Err(refuse("tensor", plan.tensor, allowed));
    }
    if !ranks.is_multiple_of(plan.expert) {
        return Err(refuse("expert", plan.expert, format!("it must divide the {ranks} ranks of a stage")));
    }
    let mut options = format!("enable_attention_dp: {}\n", plan.attention_data > 1);
    options += &format!("kv_cache_config:\n  tokens_per_block: {}\n", batching.block.value);
    if instance.has_small_cache()? {
        options += "  dtype: fp8\n";
    }
    let mut command = Command::new(&["trtllm-serve", instance.model])
        .degree("--tp_size", ranks, ARGUMENTS)
        .degree("--pp_size", plan.pipeline, ARGUMENTS)
        .degree("--ep_size", plan.expert, ARGUMENTS)
        .with("--max_batch_size", batching.max_sequences.value, ARGUMENTS)
        .with("--max_num_tokens", batching.max_tokens.value, ARGUMENTS)
        .with("--kv_cache_free_gpu_memory_fraction", batching.memory_share.value, ARGUMENTS)
        .with("--extra_llm_api_options", OPTIONS, ARGUMENTS);
    if instance.duty != Duty::Whole {
        options += "cache_transceiver_config:\n  backend: DEFAULT\n";
        let what = "trtllm-serve disaggregated sends each request to a prefill and a decode instance";
        command = command.remark(Some(what.into()));
    }
    command.file = Some((OPTIONS, options));
    Ok(command.remark(instance.checkpoint(&["bfloat16"])))
}
