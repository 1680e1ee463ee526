#!/bin/bash
NNODES=${SLURM_NNODES:-"4"}
MODEL=(
    --use-mcore-models --disable-bias-linear --seq-length 4096 --max-position-embeddings 32768
    --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32
    --attention-dropout 0.0 --hidden-dropout 0.0 --normalization RMSNorm --position-embedding-type rope
    --swiglu --untie-embeddings-and-output-weights --group-query-attention --num-query-groups 8
    --no-masked-softmax-fusion --no-position-embedding --rotary-base 1000000
)
MOE=(
    --num-experts 8 --moe-router-topk 2 --moe-router-load-balancing-type aux_loss --moe-aux-loss-coeff 1e-2
    --moe-grouped-gemm --moe-token-dispatcher-type alltoall --overlap-param-gather --overlap-grad-reduce
)
DATA=(--tokenizer-type Llama2Tokenizer --split 99990,8,2)
STEP=(
    # --train-iters 500000 \
    #--lr-decay-style cosine \
    --micro-batch-size 1 --global-batch-size 256 --lr 1e-4 --clip-grad 1.0 --bf16)
DEGREES=(
    --tensor-model-parallel-size 1 --pipeline-model-parallel-size 4 --expert-model-parallel-size 8
    --use-distributed-optimizer --sequence-parallel
)
torchrun --nnodes $NNODES pretrain_gpt.py ${MODEL[@]} ${MOE[@]} ${DATA[@]} ${STEP[@]} ${DEGREES[@]}
