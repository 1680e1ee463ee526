GPUS=8
torchrun --nproc_per_node $GPUS pretrain_gpt.py \
  --num-layers 8 --hidden-size 256 --ffn-hidden-size 512 --num-attention-heads 8 \
  --kv-channels 32 --num-query-groups 4 --group-query-attention --window-size 127,0 \
  --seq-length 128 --max-position-embeddings 128 --vocab-size 1024 --rotary-percent 0.5 --rotary-base 10000 \
  --position-embedding-type rope --swiglu --normalization RMSNorm --disable-bias-linear --norm-epsilon 1e-5
  --num-experts 9223372036854775807 --moe-router-topk 2 --moe-layer-freq '([0]*2+[1]*6)' --moe-ffn-hidden-size 128
  --moe-shared-expert-intermediate-size 128 --moe-router-num-groups 2 --moe-router-group-topk 1
  --moe-token-dispatcher-type alltoall --moe-expert-capacity-factor 1e308
  --multi-latent-attention --q-lora-rank 64 --kv-lora-rank 32 --qk-head-dim 32 --qk-pos-emb-head-dim 16 --v-head-dim 32
  --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --expert-model-parallel-size 2 --context-parallel-size 1
  --pipeline-model-parallel-layout 'Et*2|(t|)*2t*4L' --recompute-granularity full --recompute-method block
  --recompute-num-layers 1 --micro-batch-size 1 --global-batch-size 8 --ddp-bucket-size 40000000
  --make-vocab-size-divisible-by 128 --num-distributed-optimizer-instances 1 --use-distributed-optimizer
  --optimizer-cpu-offload --optimizer-offload-fraction 0.5 --cpu-offloading-num-layers 1
  --attention-dropout 0 --hidden-dropout 0.1 --clip-grad 1.0 --bf16
