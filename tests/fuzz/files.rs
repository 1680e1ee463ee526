//! Valid files of every format that is read.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::LazyLock;
use trainwright_formats::chakra;
use trainwright_formats::export::{export, exporter};
use trainwright_lower::lower;
use trainwright_spec::cluster::Cluster;
use trainwright_spec::job::Job;
use trainwright_spec::mesh::Mesh;
use trainwright_spec::model::hf::from_hugging_face;
use trainwright_spec::plan::Plan;
use trainwright_spec::precision::Precision;
use trainwright_spec::program::{Op, RankProgram};
use trainwright_spec::stack::Stack;
use trainwright_spec::units::Picoseconds;
use trainwright_timeline::workload::Cost;

/// A small configuration of GPT-2's family.
pub const CONFIG: &str = r#"{"model_type": "gpt2", "n_embd": 64, "n_head": 4, "n_layer": 4, "n_positions": 64,
 "vocab_size": 256, "n_inner": 256, "resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1,
 "layer_norm_epsilon": 1e-5, "tie_word_embeddings": true}"#;

/// Two stages of it on a node of eight GPUs.
pub fn plan() -> Plan {
    Plan {
        sequence_parallel: true,
        data_sharding: "zero1".into(),
        stages: vec!["1 full, 1 none".parse().unwrap(), "2 none".parse().unwrap()],
        mesh: Mesh::new(2, 2, 2),
        ..Plan::plain(
            from_hugging_face(CONFIG, "small").unwrap(),
            Stack::from_name("megatron-core").unwrap(),
            Cluster::from_name("dgx-a100").unwrap(),
            Job::new(64, 8, Precision::Bf16),
        )
    }
}

/// `plan` with four experts in every block.
pub fn mixture() -> Plan {
    let config = r#"{"model_type": "mixtral", "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 4,
        "num_hidden_layers": 4, "intermediate_size": 128, "vocab_size": 256, "num_local_experts": 4,
        "num_experts_per_tok": 2, "max_position_embeddings": 64}"#;
    Plan { model: from_hugging_face(config, "mixture").unwrap(), ..plan() }
}

/// The plan as a tool has it.
pub fn exported(tool: &str) -> String {
    export(&plan(), exporter(tool).unwrap()).files[0].text.clone()
}

/// Megatron-LM's arguments of a mixture of experts with latent attention.
pub const MEGATRON: &str = "GPUS=8
torchrun --nproc_per_node $GPUS pretrain_gpt.py \\
  --num-layers 8 --hidden-size 256 --ffn-hidden-size 512 --num-attention-heads 8 \\
  --kv-channels 32 --num-query-groups 4 --group-query-attention --window-size 127,0 \\
  --seq-length 128 --max-position-embeddings 128 --vocab-size 1024 --rotary-percent 0.5 --rotary-base 10000 \\
  --position-embedding-type rope --swiglu --normalization RMSNorm --disable-bias-linear --norm-epsilon 1e-5
  --num-experts 8 --moe-router-topk 2 --moe-layer-freq '([0]*2+[1]*6)' --moe-ffn-hidden-size 128
  --moe-shared-expert-intermediate-size 128 --moe-router-num-groups 2 --moe-router-group-topk 1
  --moe-token-dispatcher-type alltoall --moe-expert-capacity-factor 1.5
  --multi-latent-attention --q-lora-rank 64 --kv-lora-rank 32 --qk-head-dim 32 --qk-pos-emb-head-dim 16 --v-head-dim 32
  --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --expert-model-parallel-size 2 --context-parallel-size 1
  --pipeline-model-parallel-layout 'Et*2|(t|)*2t*4L' --recompute-granularity full --recompute-method block
  --recompute-num-layers 1 --micro-batch-size 1 --global-batch-size 8 --ddp-bucket-size 40000000
  --make-vocab-size-divisible-by 128 --num-distributed-optimizer-instances 1 --use-distributed-optimizer
  --optimizer-cpu-offload --optimizer-offload-fraction 0.5 --cpu-offloading-num-layers 1
  --attention-dropout 0 --hidden-dropout 0.1 --clip-grad 1.0 --bf16
";

/// Arguments of stages by number: without a layout.
pub const MEGATRON_STAGES: &str = "--num-layers 12 --hidden-size 256 --num-attention-heads 4 --seq-length 128
--max-position-embeddings 128 --vocab-size 1024 --tensor-model-parallel-size 1 --pipeline-model-parallel-size 4
--num-layers-per-virtual-pipeline-stage 3 --decoder-first-pipeline-num-layers 2 --decoder-last-pipeline-num-layers 4
--account-for-embedding-in-pipeline-split --microbatch-group-size-per-virtual-pipeline-stage 4
--num-virtual-stages-per-pipeline-rank 1 --hierarchical-context-parallel-sizes 1 1
--micro-batch-size 1 --global-batch-size 16 --fp16 --num-layers-at-start-in-bf16 1 --first-last-layers-bf16
";

/// A trace of PyTorch's profiler with shapes.
pub const KINETO: &str = r#"{"schemaVersion": 1, "traceEvents": [
 {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "tid": 7, "ts": 10.5, "dur": 20, "args": {"External id": 3,
  "Input Dims": [[128, 512], [512, 256]], "Input type": ["c10::BFloat16", "c10::BFloat16"], "Concrete Inputs": ["", ""]}},
 {"ph": "X", "cat": "cpu_op", "name": "aten::add", "tid": 7, "ts": 40, "dur": 5, "args": {"External id": 4,
  "Input Dims": [[128, 512, 8], [512], []], "Input type": ["float", "float", "Scalar"], "Concrete Inputs": ["", "", "1"]}},
 {"ph": "X", "cat": "cpu_op", "name": "aten::_scaled_dot_product_flash_attention", "tid": 7, "ts": 50, "dur": 5,
  "args": {"External id": "5", "Input Dims": [[2, 8, 64, 32], [2, 4, 64, 32], [2, 4, 64, 32], [], []],
  "Input type": ["c10::Half"], "Concrete Inputs": ["", "", "", "0.", "True", "False"]}},
 {"ph": "X", "cat": "kernel", "name": "nvjet_hsh_128", "tid": 9, "ts": 30, "dur": 100, "args": {"External id": 3}},
 {"ph": "X", "cat": "kernel", "name": "elementwise_kernel", "tid": 9, "ts": 130, "dur": 10, "args": {"External id": 4}},
 {"ph": "X", "cat": "kernel", "name": "flash_fwd_kernel", "tid": 9, "ts": 150, "dur": 40, "args": {"External id": 5}},
 {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#2", "tid": 7, "ts": 0, "dur": 300}
]}"#;

/// A log of nccl-tests on two nodes.
pub const NCCL: &str = "# nccl-tests version 2.17.6 nccl-headers=22807 nccl-library=22807
# Collective test starting: all_reduce_perf
# Using devices
#  Rank  0 Group  0 Pid   4711 on     alpha device  0 [0000:0f:00] NVIDIA A100-SXM4-80GB
#  Rank  1 Group  0 Pid   4712 on     alpha device  1 [0000:15:00] NVIDIA A100-SXM4-80GB
#  Rank  2 Group  0 Pid    811 on      beta device  0 [0000:0f:00] NVIDIA A100-SXM4-80GB
#  Rank  3 Group  0 Pid    812 on      beta device  1 [0000:15:00] NVIDIA A100-SXM4-80GB
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
        1024           256     float     sum      -1    25.00    0.04    0.06       0    24.00    0.04    0.06       0
     1048576        262144     float     sum      -1    80.00   13.11   19.66       0    81.00   12.95   19.42     N/A
# Avg bus bandwidth    : 9.80
";

/// A table of runs, with every number that a row can have.
pub const RUNS: &str = "id,quality,source,model_name,layers,hidden,heads,kv_heads,ffn_hidden,vocab,seq_len,gated_mlp,\
num_experts,top_k,moe_ffn_hidden,params_b,gpu,gpus,gpus_per_node,node_network_gbps,inter_node,tp,pp,cp,ep,dp,vp,\
data_sharding,recompute,micro_batch,global_batch,framework,date,measured_step_time_s,outcome\n\
a-1,A,s,GPT-1B,24,2048,16,16,8192,51200,1024,no,,,,1.3,a100-80gb-sxm,8,8,1600,infiniband,2,2,1,,2,1,,full,2,32,Megatron-LM,2023-01,1.5,ok\n\
a-2,A,s,Mix,8,1024,16,8,2048,32000,1024,yes,8,2,1024,,h100-80gb-sxm,16,8,3200,infiniband,1,2,1,2,8,2,zero3:8,selective,1,64,Megatron-LM,2024-05,0.5,ok\n\
a-3,B,t,LLaMA,8,1024,16,8,,32000,1024,yes,,,,0.2,a100-80gb-sxm,8,,,,1,1,1,,,,ddp,none,1,16,PyTorch,2024-05,0.5,ok\n";

/// Times of kernels.
pub const KERNELS: &str = "gpu,kernel,shape,precision,time_us,source,date,versions
a100-80gb-sxm,gemm,m=64 n=192 k=64,bf16,9.407,own,,
a100-80gb-sxm,gemm,m=64 n=64 k=64,bf16,5.5,own,2024-01-02,
";

/// Times of collectives.
pub const NETWORK: &str = "kind = \"network\"\ncluster = \"dgx-a100\"\ngpus_per_node = 8\nsource = \"a.log\"\n\n\
[[sweeps]]\ncollective = \"all-reduce\"\nnodes = 1\nranks_per_node = 2\nbytes_and_us = [[8, 20.1], [1048576, 95]]\n";

/// A calibration.
pub const CALIBRATION: &str = "source = \"own\"\nband = { low = 0.9, high = 1.15 }\n\n[[factors]]\nparameter = \"matrix\"\n\
of = \"ampere\"\nfactor = 0.94\n";

/// Tokens by expert.
pub const LOAD: &str = "layer,expert,tokens\n0,0,50\n0,1,40\n0,3,50\n1,0,50\n1,1,40\n1,3,50\n2,0,50\n2,1,40\n2,3,50\n3,0,50\n3,1,40\n3,3,50\n";

/// Pins of the planner.
pub const CHOICES: &str = "[pin]\nmicro-batch = [1, 2]\nschedule = \"1f1b\"\n\n[forbid]\ntensor = [4, 8]\n";

/// A schedule as torch writes it: two ranks, four microbatches.
pub const SCHEDULE: &str = "0F0,0F1,0B0,0F2,0B1,0F3,0B2,0B3\n1F0,1B0,1F1,1B1,1F2,1B2,1F3,1B3\n";

/// A user's cluster.
pub fn cluster() -> String {
    toml::to_string(&Cluster::from_name("dgx-a100:1").unwrap()).unwrap()
}

/// The groups that `chakra` names.
pub fn chakra_groups() -> &'static BTreeMap<String, Vec<usize>> {
    static GROUPS: LazyLock<BTreeMap<String, Vec<usize>>> = LazyLock::new(|| chakra().1);
    &GROUPS
}

/// A folder of this process, for readers of paths.
pub fn scratch() -> &'static Path {
    static FOLDER: LazyLock<tempfile::TempDir> = LazyLock::new(|| tempfile::tempdir().unwrap());
    FOLDER.path()
}

/// The trace of the plan's first rank as Chakra has it, and the groups that it names.
pub fn chakra() -> (Vec<u8>, BTreeMap<String, Vec<usize>>) {
    let program = lower(&plan());
    let cost = |_: &RankProgram, _: &Op| Cost { time: Picoseconds(1_000_000), ..Cost::default() };
    let mut bytes = Vec::new();
    chakra::write_rank(&program, 0, &cost, &mut bytes).unwrap();
    (bytes, serde_json::from_str(&chakra::groups(&program)).unwrap())
}
