//! The published measurement that is likest to a call.

use super::{Case, KernelTable, Work};
use std::sync::LazyLock;
use trainwright_sim::libraries::{Call, Chip};

/// A sample of published tables, a file each.
const TABLES: [&str; 9] = [
    include_str!("../../../published/inference/gemm.csv"),
    include_str!("../../../published/inference/decode_attention.csv"),
    include_str!("../../../published/inference/prefill_attention.csv"),
    include_str!("../../../published/inference/mla.csv"),
    include_str!("../../../published/inference/moe.csv"),
    include_str!("../../../published/inference/custom_allreduce.csv"),
    include_str!("../../../published/inference/moe_all_to_all.csv"),
    include_str!("../../../published/inference/linear_attention.csv"),
    include_str!("../../../published/inference/sparse_attention.csv"),
];

/// The measured calls of the sample.
pub fn published() -> &'static [Case] {
    static CASES: LazyLock<Vec<Case>> = LazyLock::new(|| {
        let read =
            |text: &&str| KernelTable::read(text.as_bytes()).expect("the tables are compiled in").cases;
        TABLES.iter().flat_map(read).flatten().collect()
    });
    &CASES
}

/// The measured call of the same family, format and GPU, and of the library if there is one, with the least sum of squared
/// logarithms of the ratios of sizes; `None` if there is none on that GPU.
pub fn nearest(call: &Call, chip: &Chip, library: &str) -> Option<Case> {
    let wanted = sizes(call);
    let distance = |case: &&Case| {
        let Work::Kernel(other) = &case.work else { return None };
        let same = other.family().name == call.family().name && other.format() == call.format();
        let same = same && case.cluster.node.gpu.name == chip.gpu.name && case.measured.is_some();
        let away = |(a, b): (&f64, f64)| libm::log(a.max(1.0) / b.max(1.0)).powi(2);
        same.then(|| wanted.iter().zip(sizes(other)).map(away).sum::<f64>())
    };
    let by_distance = |library: Option<&str>| {
        let of = |case: &&Case| library.is_none_or(|library| library == case.library);
        let found = published().iter().filter(of).filter_map(|case| Some((distance(&case)?, case)));
        found.min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, case)| case.clone())
    };
    by_distance(Some(library)).or_else(|| by_distance(None))
}

/// The sizes of a call, in an order that is the same in a family.
fn sizes(call: &Call) -> Vec<f64> {
    let counts = |counts: &[usize]| counts.iter().map(|count| *count as f64).collect();
    match call {
        Call::Product(call) => counts(&[call.m, call.n, call.k]),
        Call::Decode(call) => counts(&[
            call.batch,
            call.heads,
            call.kv_heads,
            call.head_dim,
            call.history,
            call.window.unwrap_or(call.history).min(call.history),
        ]),
        Call::Prefill(call) => counts(&[
            call.batch,
            call.heads,
            call.kv_heads,
            call.head_dim,
            call.value_head_dim,
            call.queries,
            call.history,
            call.window.unwrap_or(call.queries),
        ]),
        Call::Latent(call) => counts(&[call.batch, call.heads, call.history]),
        Call::Experts(call) => counts(&[
            call.tokens,
            call.hidden,
            call.inner,
            call.experts,
            call.chosen,
            call.tensor_parallel,
            call.expert_parallel,
        ]),
        Call::StatePrefill(call) => {
            counts(&[call.batch, call.heads, call.key_heads, call.key_dim, call.value_dim, call.queries])
        }
        Call::StateDecode(call) => {
            counts(&[call.batch, call.heads, call.key_heads, call.key_dim, call.value_dim])
        }
        Call::Convolution(call) => counts(&[call.tokens, call.sequences, call.channels, call.width]),
        Call::Sparse(call) => counts(&[call.batch, call.queries, call.history, call.heads, call.hidden]),
        Call::AllReduce(call) => vec![call.gpus as f64, call.message.get()],
        Call::Exchange(call) => counts(&[call.gpus, call.tokens, call.hidden, call.chosen]),
    }
}
