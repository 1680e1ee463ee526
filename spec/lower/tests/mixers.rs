//! Blocks with a state, gated attention and sparse attention, compiled: products, memory and communication by hand.

use trainwright_lower::{StageCost, lower};
use trainwright_spec::plan::{Plan, Recompute};
use trainwright_spec::program::{Kernel, Op, Pass, Work};
use trainwright_spec::units::Bytes;

fn plan(model: &str, tensor: usize, stages: &[usize], more: &str) -> String {
    let context = if more.is_empty() { 1 } else { 2 };
    let data = 8 / (tensor * stages.len() * context);
    let stages: Vec<String> = stages.iter().map(|blocks| format!("\"{blocks} none\"")).collect();
    format!(
        "model = \"{model}\"\ncluster = \"dgx-h100\"\nstack = \"megatron-core\"\nsequence_parallel = {}\nmicro_batch = 1\n\
         job = {{ sequence = 4096, global_batch = 16, precision = \"bf16\", optimizer = \"adamw\", gradient_clipping = true }}\n\
         mesh = {{ tensor = {tensor}, pipeline = {}, data = {data}{more} }}\nschedule = \"1f1b\"\nvirtual_stages = 1\n\
         data_sharding = \"none\"\nstages = [{}]\n",
        tensor > 1,
        stages.len(),
        stages.join(", ")
    )
}

fn read(text: &str) -> Plan {
    Plan::from_toml(text, "plan.toml").unwrap_or_else(|error| panic!("{error}"))
}

/// FLOPs of the products of a pass.
fn flops<'a>(ops: impl IntoIterator<Item = &'a Op>) -> f64 {
    let of = |op: &Op| match op.work {
        Work::Compute(kernel) => kernel.flops().get(),
        _ => 0.0,
    };
    ops.into_iter().map(of).sum()
}

#[test]
fn a_mamba_block_multiplies_what_its_chunks_say() {
    // Bamba on one GPU: s = 4096 tokens in 16 chunks of 256; 128 heads of 64, one group of 128 rows.
    let plan = read(&plan("bamba-9b", 1, &[32], ""));
    let block = &plan.model.blocks[0].block;
    let cost = StageCost::of_block(&plan, block, Recompute::None);
    let [s, h, v, c] = [4096.0, 4096.0, 8192.0, 256.0];
    let weights = h * (2.0 * v + 2.0 * 128.0 + 128.0) + v * h + 3.0 * h * 14_336.0;
    // Scores of each chunk; and for each of 128 heads states, outputs in the chunk and from the state.
    let chunks = 2.0 * s * (c * 128.0 + 128.0 * (128.0 * 64.0 + c * 64.0 + 128.0 * 64.0));
    assert_eq!(flops(&cost.forward.ops), 2.0 * s * weights + chunks);
    // Backward has two products for each, and makes the states again.
    let states = 2.0 * s * 128.0 * 128.0 * 64.0;
    assert_eq!(flops(&cost.backward.ops), 2.0 * (2.0 * s * weights + chunks) + states);
    // It keeps, 2 bytes each for a token: two norms' inputs and outputs; channels before and behind the convolution;
    // the heads' outputs, their gate and the projection's input; both halves of the activation's input and its output. And
    // a step of 4 bytes for each head.
    let channels = v + 2.0 * 128.0;
    let elements = 4.0 * h + 2.0 * channels + 3.0 * v + 3.0 * 14_336.0;
    assert_eq!(cost.kept, Bytes::new(s * (2.0 * elements + 4.0 * 128.0)));
}

#[test]
fn core_recomputation_runs_the_chunks_again_and_drops_what_they_leave() {
    let plan = read(&plan("qwen3-next-80b-a3b", 4, &[24, 24], ""));
    let block = &plan.model.blocks[0].block;
    let [none, core] = [Recompute::None, Recompute::Selective].map(|r| StageCost::of_block(&plan, block, r));
    // 8 heads on a rank: decay and strength of 4 bytes, and the solved triangle of each chunk, 64 numbers a token.
    let (s, heads) = (4096.0, 8.0);
    assert_eq!(none.kept - core.kept, Bytes::new(4.0 * s * heads * (2.0 + 64.0)));
    let again = core.backward.ops.iter().filter(|op| op.pass == Pass::Recompute);
    let chunk = 2.0 * s * heads * (3.0 * 64.0 * 128.0 + 2.0 * 64.0 * 128.0 + 3.0 * 128.0 * 128.0);
    assert_eq!(flops(again), chunk);
}

#[test]
fn tensor_ranks_divide_a_mixer_and_its_products() {
    let one = read(&plan("bamba-9b", 1, &[32], ""));
    let four = read(&plan("bamba-9b", 4, &[32], ""));
    let of = |plan: &Plan| {
        flops(&StageCost::of_block(plan, &plan.model.blocks[0].block, Recompute::None).forward.ops)
    };
    // All but the one group of keys and queries, and its scores, which every rank has.
    let s = 4096.0;
    let shared = 2.0 * s * (4096.0 * 2.0 * 128.0 + 256.0 * 128.0);
    assert_eq!(of(&four), (of(&one) - shared) / 4.0 + shared);
}

#[test]
fn an_output_gate_widens_the_projection_and_an_indexer_looks_at_all_pairs() {
    let next = read(&plan("qwen3-next-80b-a3b", 1, &[24, 24], ""));
    let full = &next.model.blocks[1].block;
    let ops = StageCost::of_block(&next, full, Recompute::None).forward.ops;
    let qkv = ops.iter().find(|op| op.module == "qkv").unwrap();
    let Work::Compute(Kernel::Gemm { n, k, .. }) = qkv.work else { panic!("a product") };
    // 16 heads of 256, each with a gate, 2 heads of keys and of values.
    assert_eq!((k, n), (2048, 2 * 16 * 256 + 2 * 2 * 256));
    let sparse = read(&plan("deepseek-v3.2", 8, &[61], ""));
    let ops = StageCost::of_block(&sparse, &sparse.model.blocks[0].block, Recompute::None).forward.ops;
    let scores = ops.iter().find(|op| op.module == "indexer scores").unwrap();
    // Every tensor rank scores all 4096² pairs with all 64 heads.
    assert_eq!(flops([scores]), 2.0 * 64.0 * 128.0 * 4096.0 * 4096.0);
}

#[test]
fn sequences_of_states_and_indexers_are_whole_on_a_rank_and_grids_leave_them_out() {
    let refusal = |text: &str| Plan::from_toml(text, "plan.toml").unwrap_err().to_string();
    let error = refusal(&plan("bamba-9b", 1, &[32], ", context = 2"));
    assert!(error.contains("mesh.context") && error.contains("blocks with a state: it must be 1"), "{error}");
    let error = refusal(&plan("deepseek-v3.2", 1, &[61], ", context = 2"));
    assert!(error.contains("attention with an indexer: it must be 1"), "{error}");
    let grid =
        plan("bamba-9b", 4, &[32], "").replace("sequence_parallel = true", "sequence_parallel = false");
    let error = refusal(&format!(
        "tensor_scheme = \"2d\"\n{}",
        grid.replace("tensor = 4", "tensor = 4, tensor_rows = 2")
            .replace("micro_batch = 1", "micro_batch = 2")
    ));
    assert!(error.contains("tensor_scheme") && error.contains("it cannot cut the model's states"), "{error}");
    // A program exists for every rank of a hybrid with pipeline and tensor ranks.
    let hybrid = read(&plan("bamba-9b", 2, &[16, 16], ""));
    assert_eq!(lower(&hybrid).ranks.len(), 2);
}
