"""llm-analysis (Python package `llm-analysis`): the method `training` of its class `LLMAnalysis`.

Its own GPU files describe the GPUs. FLOPs and memory run at 0.5 and 0.9 of the peak, which its README proposes "if one has
to make assumptions". It has no input for 8-bit training, context ranks, schedules and stages of a rank, and its step is
FLOPs over achieved FLOP/s: the inner width, the network and the pipeline's bubble do not change it.
"""

import importlib.metadata
import logging

from rows import NotExpressible

GPUS = {
    "a100-40gb-sxm": "a100-sxm-40gb",
    "a100-80gb-sxm": "a100-sxm-80gb",
    "h100-80gb-sxm": "h100-sxm-80gb",
    "v100-16gb-sxm2": "v100-sxm-16gb",
    "v100-32gb-sxm2": "v100-sxm-32gb",
}
ZERO = {"ddp": 0, "zero1": 1, "zero2": 2, "zero3": 3}
FLOPS_EFFICIENCY = 0.5
MEMORY_EFFICIENCY = 0.9


def version(_checkout):
    return importlib.metadata.version("llm-analysis")


def forecaster(_checkout):
    """A function from a row to seconds of a step. The package is imported from the running Python."""
    from llm_analysis import analysis, config, logger

    logger.logger.setLevel(logging.CRITICAL)
    recompute = {
        "none": analysis.ActivationRecomputation.NONE,
        "selective": analysis.ActivationRecomputation.SELECTIVE,
        "full": analysis.ActivationRecomputation.FULL,
    }

    def seconds(row):
        if row.gpu not in GPUS:
            raise NotExpressible(f"no file for {row.gpu}")
        if row.precision not in ("bf16", "fp16"):
            raise NotExpressible(f"training in {row.precision}")
        if row.recompute not in recompute:
            raise NotExpressible(f"recompute `{row.recompute}`")
        if row.sharding not in ZERO:
            raise NotExpressible(f"sharding `{row.sharding}`")
        model = config.ModelConfig(
            name=row.id,
            num_layers=row.layers,
            n_head=row.heads,
            num_key_value_heads=row.kv_heads,
            hidden_dim=row.hidden,
            ffn_embed_dim=row.ffn,
            expansion_ratio=row.ffn / row.hidden,
            vocab_size=row.vocab,
            max_seq_len=row.sequence,
        )
        try:
            study = analysis.LLMAnalysis(
                model,
                config.get_gpu_config_by_name(GPUS[row.gpu]),
                config.get_dtype_config_by_name("w16a16e16"),
                config.ParallelismConfig(
                    tp_size=row.tp,
                    pp_size=row.pp,
                    dp_size=row.dp,
                    sp_size=row.tp if row.sequence_parallel else 1,
                ),
                flops_efficiency=FLOPS_EFFICIENCY,
                hbm_memory_efficiency=MEMORY_EFFICIENCY,
            )
            summary = study.training(
                batch_size_per_gpu=row.micro_batch,
                global_batch_size=row.global_batch,
                seq_len=row.sequence,
                activation_recomputation=recompute[row.recompute],
                ds_zero=analysis.DSZeRO(ZERO[row.sharding]),
                flash_attn=row.fused_attention,
                mlp_gated_linear_units=row.gated,
            )
        except AssertionError as refusal:
            raise NotExpressible(f"llm-analysis refuses it: {refusal}") from refusal
        return summary["latency_per_iter"]

    return seconds
