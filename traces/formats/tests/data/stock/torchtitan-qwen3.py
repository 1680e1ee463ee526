from torchtitan.trainer import Trainer

from . import model_registry


def qwen3_30b_a3b() -> Trainer.Config:
    return Trainer.Config(
        model_spec=model_registry("30B-A3B"),
        training=TrainingConfig(
            local_batch_size=2,
            seq_len=4096,
            steps=3000,
        ),
        parallelism=ParallelismConfig(
            data_parallel_shard_degree=-1,
            tensor_parallel_degree=1,
            context_parallel_degree=1,
            pipeline_parallel_degree=1,
        ),
        activation_checkpoint=FullAC.Config(),
    )
