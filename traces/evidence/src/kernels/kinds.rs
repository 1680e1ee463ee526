//! Kinds of tables: which columns each has, and the call of a row.

use super::cells::Cells;
use super::{NoCase, Work};
use trainwright_sim::libraries::{
    AllReduce, Call, Decode, Exchange, Experts, Latent, Operands, Prefill, Product,
};
use trainwright_spec::collective::CollectiveKind;
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

/// Every kind; the first that suits a row counts.
pub static KINDS: [Kind; 8] = [
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
