//! A row of the table, cell by cell.

use serde::de::Error;
use serde::{Deserialize, Deserializer};

/// The row of a training run; `None` if the cell is blank or the column is missing.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default)]
pub struct Run {
    /// Which run.
    pub id: String,
    /// The publication.
    pub source: String,
    /// How much of it the source documents: `A`, `B`, `C`.
    pub quality: String,
    /// What is trained how: blank, `pretrain`, `sft`, `full` or `reward_model`; `lora`, `qlora` or `adapter` beside frozen weights;
    /// `grpo` or `ppo` in a loop with generation, of which `notes` may name a relative; others are refused.
    pub kind: String,
    /// Rank of adapters; blank: 16.
    #[serde(deserialize_with = "count")]
    pub lora_rank: Option<usize>,
    /// Matrices that have adapters, in any software's words; blank: queries, keys and values, as one.
    pub lora_targets: String,
    /// Bits in which frozen matrices are stored; blank: 4 of `qlora`, else as products read them.
    #[serde(deserialize_with = "count")]
    pub base_weight_bits: Option<usize>,
    /// The model's name, for people.
    pub model_name: String,
    /// Blocks.
    #[serde(deserialize_with = "count")]
    pub layers: Option<usize>,
    /// Width of the residual stream.
    #[serde(deserialize_with = "count")]
    pub hidden: Option<usize>,
    /// Query heads; blank: heads of width 128. They divide `hidden`, but of mixtures of experts.
    #[serde(deserialize_with = "count")]
    pub heads: Option<usize>,
    /// Key and value heads, which divide `heads`; blank: `heads`.
    #[serde(deserialize_with = "count")]
    pub kv_heads: Option<usize>,
    /// Inner width of the feed-forward layers; blank: what `params_b` leaves for them, without it 4 · hidden, or for
    /// gated ones 8/3 of it, in multiples of 256.
    #[serde(deserialize_with = "count")]
    pub ffn_hidden: Option<usize>,
    /// Vocabulary; blank: 50,257, or 32,000 with gated layers.
    #[serde(deserialize_with = "count")]
    pub vocab: Option<usize>,
    /// Tokens in a sequence.
    #[serde(deserialize_with = "count")]
    pub seq_len: Option<usize>,
    /// Mean tokens of a sample where `seq_len` is the most; blank: half of it if samples are padded.
    #[serde(deserialize_with = "count")]
    pub mean_seq_len: Option<usize>,
    /// Whether samples are packed to sequences of `seq_len`; no: those of a microbatch are padded to its longest; blank: yes.
    #[serde(deserialize_with = "yes_or_no")]
    pub packed: Option<bool>,
    /// Whether feed-forward layers are gated, and the block LLaMA's; blank or no: GPT-2's.
    #[serde(deserialize_with = "yes_or_no")]
    pub gated_mlp: Option<bool>,
    /// Routed experts of each feed-forward layer; blank: it is dense.
    #[serde(deserialize_with = "count")]
    pub num_experts: Option<usize>,
    /// Experts that each token visits, at most `num_experts`; blank: as the catalog's model of these sizes, else 2.
    #[serde(deserialize_with = "count")]
    pub top_k: Option<usize>,
    /// Inner width of each expert; blank: `ffn_hidden`.
    #[serde(deserialize_with = "count")]
    pub moe_ffn_hidden: Option<usize>,
    /// Parameters in 10⁹; blank: what `model_name` ends in, as `1.34G` or `7B`, else what follows from the sizes.
    #[serde(deserialize_with = "number")]
    pub params_b: Option<f64>,
    /// The GPU, by its name in the catalog.
    pub gpu: String,
    /// How many.
    #[serde(deserialize_with = "count")]
    pub gpus: Option<usize>,
    /// How many in a node; blank: as in the catalog's node with this GPU.
    #[serde(deserialize_with = "count")]
    pub gpus_per_node: Option<usize>,
    /// Links of the GPUs of a node: `nvswitch`, `nvlink`, `nvl72`, `pcie`, or how their name in the catalog begins; blank: as in the
    /// catalog's node.
    pub intra_node: String,
    /// Bandwidth of all NICs of a node together, in one direction; blank: as in the catalog's node.
    #[serde(deserialize_with = "number")]
    pub node_network_gbps: Option<f64>,
    /// Links between nodes: `infiniband`, `efa`, `roce`, `ethernet`, `tcp`, or another part of their name in the catalog; blank: as in
    /// the catalog's node.
    pub inter_node: String,
    /// Number format of the matrix products; blank: bf16, fp16 on GPUs without it.
    pub precision: String,
    /// Tensor ranks; blank: 1.
    #[serde(deserialize_with = "count")]
    pub tp: Option<usize>,
    /// Pipeline ranks; blank: 1.
    #[serde(deserialize_with = "count")]
    pub pp: Option<usize>,
    /// Context ranks; blank: 1.
    #[serde(deserialize_with = "count")]
    pub cp: Option<usize>,
    /// Expert ranks; blank: 1.
    #[serde(deserialize_with = "count")]
    pub ep: Option<usize>,
    /// Ranks that share each expert; blank: the tensor ranks, or 1 where those do not divide.
    #[serde(deserialize_with = "count")]
    pub etp: Option<usize>,
    /// How tokens come to their experts: `alltoall`, `allgather`, `deepep`, `hybridep`; blank: `alltoall`.
    pub dispatcher: String,
    /// Data ranks; blank: what is left of the GPUs.
    #[serde(deserialize_with = "count")]
    pub dp: Option<usize>,
    /// Stages on each pipeline rank; blank: 1.
    #[serde(deserialize_with = "count")]
    pub vp: Option<usize>,
    /// Megatron's sequence parallelism; blank: wherever the software has it and tensor ranks are there.
    #[serde(deserialize_with = "yes_or_no")]
    pub sequence_parallel: Option<bool>,
    /// The state that data ranks divide; blank: the optimizer state if the software can.
    pub data_sharding: String,
    /// Recomputation; blank: nothing.
    pub recompute: String,
    /// The optimizer; blank: that of `notes` as in `Muon optimizer`, or AdamW.
    pub optimizer: String,
    /// State that is offloaded to the host; blank: nothing.
    pub offload: String,
    /// How attention is computed; blank: as the software did at that date.
    pub attention_kernel: String,
    /// How norms are computed: `fused-rms`, `unfused`; blank: as the software did at that date.
    pub norm_kernel: String,
    /// Sequences in a microbatch; blank: 1.
    #[serde(deserialize_with = "count")]
    pub micro_batch: Option<usize>,
    /// Sequences in a step.
    #[serde(deserialize_with = "count")]
    pub global_batch: Option<usize>,
    /// Of a loop with generation: GPUs of training; blank: half, or all if `colocated`.
    #[serde(deserialize_with = "count")]
    pub train_gpus: Option<usize>,
    /// GPUs of generation; blank: the other half, or all if `colocated`.
    #[serde(deserialize_with = "count")]
    pub gen_gpus: Option<usize>,
    /// Whether generation and training take turns on the same GPUs; blank: yes, unless `gen_gpus` or `off_policy_steps` say otherwise.
    #[serde(deserialize_with = "yes_or_no")]
    pub colocated: Option<bool>,
    /// Steps that samples may be older than the weights; blank: 0.
    #[serde(deserialize_with = "number")]
    pub off_policy_steps: Option<f64>,
    /// The same in parts of a step, where the engine never waits for its longest answer.
    #[serde(deserialize_with = "number")]
    pub staleness: Option<f64>,
    /// Prompts of a step; blank: from the samples of a step.
    #[serde(deserialize_with = "count")]
    pub prompts_per_step: Option<usize>,
    /// Answers to each prompt; blank: 16, 1 of `ppo`.
    #[serde(deserialize_with = "count")]
    pub rollouts_per_prompt: Option<usize>,
    /// Tokens of a prompt at most.
    #[serde(deserialize_with = "count")]
    pub prompt_len: Option<usize>,
    /// Tokens of an answer at most; blank: what `seq_len` leaves.
    #[serde(deserialize_with = "count")]
    pub response_len: Option<usize>,
    /// Tokens of an answer in the mean; blank: what `mean_seq_len` leaves.
    #[serde(deserialize_with = "number")]
    pub mean_response_len: Option<f64>,
    /// The engine of generation; blank: vLLM.
    pub inference_engine: String,
    /// Tensor ranks of the engine; blank: as few as leave half of a GPU to the cache.
    #[serde(deserialize_with = "count")]
    pub gen_tp: Option<usize>,
    /// The software; it and `date` select the stack.
    pub framework: String,
    /// When, as `2024-05` or longer.
    pub date: String,
    /// Time of a step.
    #[serde(deserialize_with = "number")]
    pub measured_step_time_s: Option<f64>,
    /// Throughput of a GPU.
    #[serde(deserialize_with = "number")]
    pub measured_tokens_per_s_per_gpu: Option<f64>,
    /// Memory of the fullest GPU.
    #[serde(deserialize_with = "number")]
    pub measured_peak_memory_gb: Option<f64>,
    /// Words for which memory that is and its unit: `allocated` is that of tensors, `GiB` the unit; blank: as the stack prints.
    pub memory_unit: String,
    /// `ok` or `oom`.
    pub outcome: String,
    /// Free text. Between semicolons, `schedule NAME` names the pipeline schedule, before one that `framework` names, and
    /// `reserved N GB` (or `GiB`) states what the framework's allocator has reserved at its peak.
    pub notes: String,
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It ran.
    Fits,
    /// It ran out of memory.
    OutOfMemory,
}

impl Outcome {
    /// The word in the tables.
    pub fn name(self) -> &'static str {
        match self {
            Outcome::Fits => "ok",
            Outcome::OutOfMemory => "oom",
        }
    }
}

impl Run {
    /// Short name of the publication: the words at the beginning of `id` up to a number, without it
    /// `source` up to its first comma.
    pub fn family(&self) -> String {
        let mut words = self.id.split('-');
        let first = words.next().unwrap_or_default();
        if first.is_empty() {
            return self.source.split(',').next().unwrap_or_default().into();
        }
        let more = words.take_while(|word| word.chars().all(char::is_alphabetic) && !word.is_empty());
        std::iter::once(first).chain(more).collect::<Vec<_>>().join("-")
    }

    /// The sweep of the run: runs of one source that train one model with equal sequence length and batch on the same number
    /// of GPUs of one kind.
    pub fn sweep(&self) -> String {
        let Run { layers, hidden, seq_len, global_batch, gpus, .. } = self;
        format!("{} {} {layers:?} {hidden:?} {seq_len:?} {global_batch:?} {gpus:?}", self.family(), self.gpu)
    }

    /// Parameters of the model, if the row says it.
    pub fn parameters(&self) -> Option<f64> {
        let name = self.model_name.split([' ', '-']).next_back().unwrap_or_default();
        let named = || name.strip_suffix(['G', 'B', 'b'])?.parse::<f64>().ok();
        self.params_b.or_else(named).filter(|billions| *billions > 0.0).map(|billions| 1e9 * billions)
    }

    /// How it ended, if the row says so.
    pub fn outcome(&self) -> Option<Outcome> {
        [Outcome::Fits, Outcome::OutOfMemory].into_iter().find(|outcome| outcome.name() == self.outcome)
    }

    /// What the framework's allocator has reserved at its peak, in the unit that the software prints; `None` if `notes` do not
    /// state it.
    pub fn reserved_gb(&self) -> Option<f64> {
        let stated = self.notes.split(';').find_map(|note| note.trim().strip_prefix("reserved "))?;
        let number = stated.strip_suffix(" GB").or_else(|| stated.strip_suffix(" GiB"))?;
        number.parse().ok().filter(|memory: &f64| memory.is_finite() && *memory > 0.0)
    }

    /// Time of a step in seconds: as measured, or from the tokens per second.
    pub fn step_seconds(&self) -> Option<f64> {
        let from_tokens = || {
            let tokens = (self.global_batch? * self.seq_len?) as f64;
            Some(tokens / self.measured_tokens_per_s_per_gpu? / self.gpus? as f64)
        };
        self.measured_step_time_s.or_else(from_tokens).filter(|time| *time > 0.0)
    }
}

/// The largest number in a cell that holds a count.
const MOST: f64 = 1e9;

fn count<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<usize>, D::Error> {
    let Some((text, value)) = parsed(deserializer)? else { return Ok(None) };
    match value.fract() == 0.0 && (1.0..=MOST).contains(&value) {
        true => Ok(Some(value as usize)),
        false => Err(D::Error::custom(format!("`{text}` is not a whole number from 1 to {MOST}"))),
    }
}

fn number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
    let Some((text, value)) = parsed(deserializer)? else { return Ok(None) };
    match value.is_finite() && value >= 0.0 {
        true => Ok(Some(value)),
        false => Err(D::Error::custom(format!("`{text}` is not a number from 0 on"))),
    }
}

/// A cell and the number that it is; `None` if it is blank.
fn parsed<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<(String, f64)>, D::Error> {
    let text = String::deserialize(deserializer)?.trim().to_string();
    if text.is_empty() {
        return Ok(None);
    }
    match text.parse() {
        Ok(value) => Ok(Some((text, value))),
        Err(_) => Err(D::Error::custom(format!("`{text}` is not a number"))),
    }
}

fn yes_or_no<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<bool>, D::Error> {
    let text = String::deserialize(deserializer)?;
    match text.trim() {
        "" => Ok(None),
        "yes" => Ok(Some(true)),
        "no" => Ok(Some(false)),
        other => Err(D::Error::custom(format!("`{other}` is neither yes nor no"))),
    }
}
