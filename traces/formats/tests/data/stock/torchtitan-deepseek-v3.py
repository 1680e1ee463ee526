from torchtitan.trainer import Trainer

from . import model_registry


def deepseek_v3_671b() -> Trainer.Config:
    model_spec = model_registry(
        "671B",
        attn_backend="flex",
    )
    return Trainer.Config(
        model_spec=model_spec,
        training=TrainingConfig(local_batch_size=4, seq_len=4096, steps=10000, disable_cuda_graphs=True),
        parallelism=ParallelismConfig(
            pipeline_parallel_schedule="Interleaved1F1B",
            expert_parallel_degree=2,
        ),
        activation_checkpoint=SelectiveAC.Config(),
        compile=CompileConfig(enable=True, components=["loss"]),
    )
