//! Kinds of tables: which columns each has, and the call of a row.

use super::cells::Cells;
use super::{NoCase, Work};
use trainwright_sim::libraries::{
    AllReduce, Call, Convolution, Decode, Exchange, Experts, Latent, Operands, Prefill, Product,
    SparseAttention, StateDecode, StatePrefill,
};
use trainwright_spec::collective::CollectiveKind;
use trainwright_spec::model::Rule;
use trainwright_spec::model::preset::preset;
use trainwright_spec::units::Bytes;

/// A kind of table.
pub struct Kind {
    /// For people.
    pub name: &'static str,
    /// The columns by which it is recognised.
    pub columns: &'static [&'static str],
    /// Whether a row is of this kind, where the columns alone do not say it.
    pub is_of: fn(&Cells) -> bool,
    /// The call of a row.
    pub call: fn(&Cells) -> Result<Work, NoCase>,
}

const STATE_COLUMNS: [&str; 7] =
    ["phase", "batch_size", "seq_len", "d_conv", "num_k_heads", "num_v_heads", "kernel_source"];

/// Every kind; the first that suits a row counts.
pub static KINDS: [Kind; 11] = [
    Kind { name: "product", columns: &["gemm_dtype", "m", "n", "k"], is_of: |_| true, call: product },
    Kind {
        name: "decode attention",
        columns: &["batch_size", "num_heads", "num_key_value_heads", "head_dim", "kv_cache_dtype", "step"],
        is_of: |cells| cells.text("id").contains("decode"),
        call: decode,
    },
    Kind {
        name: "prefill attention",
        columns: &["batch_size", "num_heads", "num_key_value_heads", "head_dim", "attn_dtype", "isl", "step"],
        is_of: |cells| cells.text("id").contains("prefil"),
        call: prefill,
    },
    Kind {
        name: "sparse attention",
        columns: &[
            "architecture",
            "gemm_type",
            "kv_cache_dtype",
            "num_heads",
            "batch_size",
            "isl",
            "step",
            "table",
        ],
        is_of: |cells| cells.text("table").starts_with("dsa_"),
        call: sparse,
    },
    Kind {
        name: "latent attention",
        columns: &["mla_dtype", "kv_cache_dtype", "num_heads", "batch_size", "isl", "step", "table"],
        is_of: |_| true,
        call: latent,
    },
    Kind {
        name: "experts",
        columns: &[
            "moe_dtype",
            "num_tokens",
            "hidden_size",
            "inter_size",
            "topk",
            "num_experts",
            "distribution",
        ],
        is_of: |cells| cells.text("table").is_empty(),
        call: experts,
    },
    Kind {
        name: "custom all-reduce",
        columns: &["allreduce_dtype", "num_gpus", "message_size"],
        is_of: |_| true,
        call: all_reduce,
    },
    Kind {
        name: "token exchange",
        columns: &["comm_backend", "phase", "comm_dtype", "ep_size", "hidden_size", "topk", "num_tokens"],
        is_of: |cells| cells.text("table") == "moe_a2a",
        call: exchange,
    },
    Kind {
        name: "states",
        columns: &STATE_COLUMNS,
        is_of: |cells| cells.text("kernel_source").contains("delta_rule"),
        call: states,
    },
    Kind {
        name: "convolution",
        columns: &STATE_COLUMNS,
        is_of: |cells| cells.text("kernel_source").contains("conv1d"),
        call: convolution,
    },
    Kind {
        name: "NCCL",
        columns: &["op_name", "nccl_dtype", "num_gpus", "message_size"],
        is_of: |_| true,
        call: collective,
    },
];

/// The number format in a column.
fn operands(cells: &Cells, column: &str) -> Result<Operands, NoCase> {
    let name = cells.text(column);
    Operands::parse(name).ok_or_else(|| {
        let known: Vec<&str> = Operands::names().collect();
        NoCase::Unsupported(format!("`{column}` is {name}; known are {}", known.join(", ")))
    })
}

fn kernel(call: Call) -> Result<Work, NoCase> {
    Ok(Work::Kernel(call))
}

fn product(cells: &Cells) -> Result<Work, NoCase> {
    let [m, n, k] = ["m", "n", "k"].map(|column| cells.count(column));
    kernel(Call::Product(Product { m: m?, n: n?, k: k?, operands: operands(cells, "gemm_dtype")? }))
}

/// `isl` tokens of the prompt and `step` generated ones are in the cache.
fn decode(cells: &Cells) -> Result<Work, NoCase> {
    let history = cells.maybe("isl", 0.0)?.unwrap_or(0) + cells.maybe("step", 0.0)?.unwrap_or(0);
    kernel(Call::Decode(Decode {
        batch: cells.count("batch_size")?,
        heads: cells.count("num_heads")?,
        kv_heads: cells.count("num_key_value_heads")?,
        head_dim: cells.count("head_dim")?,
        history: history.max(1),
        window: cells.maybe("window_size", 0.0)?.filter(|window| *window > 0),
        cache: operands(cells, "kv_cache_dtype")?,
    }))
}

/// `message_size` counts elements.
fn all_reduce(cells: &Cells) -> Result<Work, NoCase> {
    let element = operands(cells, "allreduce_dtype")?.activation;
    kernel(Call::AllReduce(AllReduce {
        gpus: cells.count("num_gpus")?,
        message: cells.count("message_size")? as f64 * Bytes::new(element.get()),
    }))
}

/// `step` tokens of each sequence are in the cache already.
fn prefill(cells: &Cells) -> Result<Work, NoCase> {
    let head_dim = cells.count("head_dim")?;
    kernel(Call::Prefill(Prefill {
        batch: cells.count("batch_size")?,
        heads: cells.count("num_heads")?,
        kv_heads: cells.count("num_key_value_heads")?,
        head_dim,
        value_head_dim: head_dim,
        queries: cells.count("isl")?,
        history: cells.maybe("step", 0.0)?.unwrap_or(0),
        window: cells.maybe("window_size", 0.0)?.filter(|window| *window > 0),
        math: operands(cells, "attn_dtype")?.units,
        cache: operands(cells, "kv_cache_dtype")?,
    }))
}

/// The prompt's latent attention is that of heads 192 and 128 wide; of the tables with projections none is known.
fn latent(cells: &Cells) -> Result<Work, NoCase> {
    let (batch, heads) = (cells.count("batch_size")?, cells.count("num_heads")?);
    let tokens = cells.count("isl")?;
    let history = cells.maybe("step", 0.0)?.unwrap_or(0);
    let cache = operands(cells, "kv_cache_dtype")?;
    match cells.text("table") {
        "generation_mla" => kernel(Call::Latent(Latent { batch, heads, history: tokens + history, cache })),
        "context_mla" => kernel(Call::Prefill(Prefill {
            batch,
            heads,
            kv_heads: heads,
            head_dim: 192,
            value_head_dim: 128,
            queries: tokens,
            history,
            window: None,
            math: operands(cells, "mla_dtype")?.units,
            cache,
        })),
        other => {
            Err(NoCase::Unsupported(format!("`table` is {other}; known are context_mla, generation_mla")))
        }
    }
}

/// A module with its projections, of a model of the catalog. `isl` tokens of each sequence are new; `step` are in the cache.
fn sparse(cells: &Cells) -> Result<Work, NoCase> {
    let name = match cells.text("architecture") {
        "DeepseekV32ForCausalLM" => "deepseek-v3.2",
        "GlmMoeDsaForCausalLM" => "glm-5",
        other => {
            let known = "DeepseekV32ForCausalLM, GlmMoeDsaForCausalLM";
            return Err(NoCase::Unsupported(format!("`architecture` is {other}; known are {known}")));
        }
    };
    if cells.text("kernel_source").contains("skip_indexer") {
        return Err(NoCase::Unsupported(
            "a layer without an indexer of its own takes another layer's keys".into(),
        ));
    }
    let model = preset(name).expect("the catalog has it");
    let attention = model.attentions().next().expect("it has blocks");
    let operands = operands(cells, "gemm_type")?;
    let cache = self::operands(cells, "kv_cache_dtype")?;
    let call = SparseAttention::of(attention, model.hidden, cells.count("num_heads")?, operands, cache);
    let call = call.expect("its attention has an indexer");
    kernel(Call::Sparse(SparseAttention {
        batch: cells.count("batch_size")?,
        queries: cells.count("isl")?,
        history: cells.maybe("step", 0.0)?.unwrap_or(0),
        prompt: cells.text("table").contains("context"),
        ..call
    }))
}

fn experts(cells: &Cells) -> Result<Work, NoCase> {
    let distribution = cells.text("distribution");
    kernel(Call::Experts(Experts {
        tokens: cells.count("num_tokens")?,
        hidden: cells.count("hidden_size")?,
        inner: cells.count("inter_size")?,
        experts: cells.count("num_experts")?,
        chosen: cells.count("topk")?,
        tensor_parallel: cells.count("moe_tp_size")?,
        expert_parallel: cells.count("moe_ep_size")?,
        gated: !cells.text("kernel_source").contains("nongated"),
        skewed: !matches!(distribution, "balanced" | "uniform"),
        exchanged: false,
        operands: operands(cells, "moe_dtype")?,
    }))
}

/// `latency_ms` of these tables holds microseconds, as `transmit_us` does.
fn exchange(cells: &Cells) -> Result<Work, NoCase> {
    let element = match cells.text("comm_dtype") {
        "default" => Operands::parse("bfloat16"),
        "fp4" => Operands::parse("nvfp4"),
        name => Operands::parse(name),
    };
    let unknown = || NoCase::Unsupported(format!("`comm_dtype` is {}", cells.text("comm_dtype")));
    kernel(Call::Exchange(Exchange {
        gpus: cells.count("ep_size")?,
        tokens: cells.count("num_tokens")?,
        hidden: cells.count("hidden_size")?,
        chosen: cells.count("topk")?,
        element: element.ok_or_else(unknown)?,
    }))
}

/// Tokens of a chunk in the kernels of the delta rule.
const CHUNK: usize = 64;

/// `seq_len` new tokens of each sequence, of prompts or one by one.
fn states(cells: &Cells) -> Result<Work, NoCase> {
    let [batch, heads, key_heads] =
        ["batch_size", "num_v_heads", "num_k_heads"].map(|column| cells.count(column));
    let [key_dim, value_dim] = ["head_k_dim", "head_v_dim"].map(|column| cells.count(column));
    let (batch, heads, key_heads, key_dim, value_dim) = (batch?, heads?, key_heads?, key_dim?, value_dim?);
    match cells.text("phase") {
        "generation" => {
            kernel(Call::StateDecode(StateDecode { batch, heads, key_heads, key_dim, value_dim }))
        }
        "context" => {
            let queries = cells.count("seq_len")?;
            let (chunk, rule) = (CHUNK, Rule::GatedDelta);
            let call = StatePrefill { batch, heads, key_heads, key_dim, value_dim, queries, chunk, rule };
            kernel(Call::StatePrefill(call))
        }
        other => Err(NoCase::Unsupported(format!("`phase` is {other}; known are context, generation"))),
    }
}

/// Queries, keys and values of the delta rule, or inputs and both gates' groups of Mamba-2.
fn convolution(cells: &Cells) -> Result<Work, NoCase> {
    let channels = match cells.maybe("nheads", 1.0)? {
        Some(heads) => {
            heads * cells.count("head_dim")? + 2 * cells.count("n_groups")? * cells.count("d_state")?
        }
        None => {
            2 * cells.count("num_k_heads")? * cells.count("head_k_dim")?
                + cells.count("num_v_heads")? * cells.count("head_v_dim")?
        }
    };
    let (sequences, width) = (cells.count("batch_size")?, cells.count("d_conv")?);
    let step = cells.text("phase") == "generation";
    let tokens = if step { sequences } else { sequences.saturating_mul(cells.count("seq_len")?) };
    kernel(Call::Convolution(Convolution { tokens, sequences, channels, width, step }))
}

/// `message_size` counts elements of the whole message.
fn collective(cells: &Cells) -> Result<Work, NoCase> {
    let kind = match cells.text("op_name") {
        "all_reduce" => CollectiveKind::AllReduce,
        "all_gather" => CollectiveKind::AllGather,
        "reduce_scatter" => CollectiveKind::ReduceScatter,
        "alltoall" => CollectiveKind::AllToAll,
        other => return Err(NoCase::Unsupported(format!("`op_name` is {other}"))),
    };
    let element = match cells.text("nccl_dtype") {
        "int8" => Bytes::new(1.0),
        "half" => Bytes::new(2.0),
        other => return Err(NoCase::Unsupported(format!("`nccl_dtype` is {other}; known are half, int8"))),
    };
    let bytes = cells.count("message_size")? as f64 * element;
    Ok(Work::Collective { kind, bytes, gpus: cells.count("num_gpus")? })
}
