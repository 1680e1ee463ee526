//! Optimizers that update matrices as such: their memory, products and gathers, against sums by hand.

use std::collections::BTreeMap;
use trainwright_lower::lower_every_rank;
use trainwright_lower::memory::plan_memory;
use trainwright_spec::collective::CollectiveKind;
use trainwright_spec::plan::Plan;
use trainwright_spec::program::{Axis, Kernel, Op, Task, UpdateStep, Work};
use trainwright_spec::units::Bytes;

/// Two blocks of a model on eight H100.
fn plan(model: &str, optimizer: &str, [tensor, data, expert]: [usize; 3], data_sharding: &str) -> Plan {
    let text = format!(
        r#"
        model = "{model}"
        cluster = "dgx-h100"
        stack = "megatron-core"
        job = {{ sequence = 64, global_batch = 8, precision = "bf16", optimizer = "{optimizer}", gradient_clipping = true }}
        mesh = {{ tensor = {tensor}, pipeline = {}, data = {data}, expert = {expert} }}
        micro_batch = 1
        schedule = "1f1b"
        virtual_stages = 1
        sequence_parallel = {}
        data_sharding = "{data_sharding}"
        stages = [{}]
        "#,
        8 / tensor / data,
        tensor > 1,
        vec![format!("\"{} none\"", 32 / (8 / tensor / data)); 8 / tensor / data].join(", "),
    );
    Plan::from_toml(&text, "plan.toml").unwrap()
}

/// Ops of the update of the first rank.
fn update(plan: &Plan, step: UpdateStep) -> Vec<Op> {
    let program = lower_every_rank(plan);
    let rank = &program.ranks[0];
    let ops = rank.calls.iter().flat_map(|call| &program.segments[call.segment].ops);
    ops.filter(|op| op.task == Task::Update(step)).cloned().collect()
}

/// FLOPs of the products of an update.
fn flops(plan: &Plan) -> f64 {
    let of = |op: &Op| match &op.work {
        Work::Compute(Kernel::Gemm { count, m, n, k, .. }) => {
            2.0 * [*count, *m, *n, *k].map(|size| size as f64).iter().product::<f64>()
        }
        other => panic!("{other:?}"),
    };
    update(plan, UpdateStep::MultiplyMatrices).iter().map(of).sum()
}

/// 5 (4 m² n + 2 m³): five steps of Newton and Schulz.
fn newton_schulz(m: f64, n: f64) -> f64 {
    5.0 * (4.0 * m * m * n + 2.0 * m * m * m)
}

/// Matrices of a block of llama-3-8b: queries, keys with values, outputs, gate, up, down.
const LLAMA: [[f64; 2]; 6] = [
    [4096.0, 4096.0],
    [2048.0, 4096.0],
    [4096.0, 4096.0],
    [4096.0, 14336.0],
    [4096.0, 14336.0],
    [4096.0, 14336.0],
];

fn elements(matrices: &[[f64; 2]]) -> f64 {
    matrices.iter().map(|[m, n]| m * n).sum()
}

#[test]
fn muon_keeps_one_moment_of_matrices() {
    for (tensor, data) in [(1, 8), (2, 4), (4, 2), (8, 1)] {
        let optimizer =
            |name| plan_memory(&plan("llama-3-8b", name, [tensor, data, 1], "zero1"))[0].optimizer;
        let matrices = 32.0 * elements(&LLAMA) / tensor as f64 / data as f64;
        let saved = optimizer("adamw") - optimizer("muon");
        assert!((saved / Bytes::new(4.0 * matrices) - 1.0).abs() < 1e-9, "tensor {tensor}, data {data}");
        // Two factors and two inverse roots.
        let added = optimizer("shampoo") - optimizer("adamw");
        assert!((added / Bytes::new(16.0 * matrices) - 1.0).abs() < 1e-9, "tensor {tensor}, data {data}");
        assert_eq!(optimizer("sophia"), optimizer("adamw"));
    }
}

#[test]
fn muon_makes_whole_matrices_orthogonal() {
    let all: f64 = 32.0 * LLAMA.iter().map(|[m, n]| newton_schulz(*m, *n)).sum::<f64>();
    // Undivided state: each rank makes all of its matrices orthogonal, whole ones on each tensor rank.
    for (tensor, data) in [(1, 8), (2, 4), (8, 1)] {
        assert_eq!(flops(&plan("llama-3-8b", "muon", [tensor, data, 1], "none")), all, "tensor {tensor}");
    }
    // Divided state: a rank's part begins and ends within a matrix.
    let most = newton_schulz(4096.0, 14336.0);
    for (tensor, data) in [(1, 8), (2, 4), (4, 2)] {
        let found = flops(&plan("llama-3-8b", "muon", [tensor, data, 1], "zero1"));
        let even = all / data as f64;
        assert!((even..=even + 2.0 * most).contains(&found), "data {data}: {found:e} of {even:e}");
    }
    assert_eq!(flops(&plan("llama-3-8b", "adamw", [1, 8, 1], "zero1")), 0.0);
}

#[test]
fn momenta_are_gathered_in_16_bits() {
    let bytes = |plan: &Plan| -> BTreeMap<Axis, Bytes> {
        let of = |op: Op| match op.work {
            Work::Collective { kind: CollectiveKind::AllGather, axis, bytes, .. } => (axis, bytes),
            other => panic!("{other:?}"),
        };
        update(plan, UpdateStep::GatherMomenta).into_iter().map(of).collect()
    };
    let all = Bytes::new(2.0 * 32.0 * elements(&LLAMA));
    let found = bytes(&plan("llama-3-8b", "muon", [2, 4, 1], "zero1"));
    assert_eq!(found[&Axis::Data], all / 2.0);
    // Whole matrices of a quarter and of those at its ends.
    let most = Bytes::new(2.0 * 4096.0 * 14336.0);
    assert!(found[&Axis::Tensor] >= all / 4.0 && found[&Axis::Tensor] <= all / 4.0 + 2.0 * most);
    // Nothing is in parts.
    assert!(bytes(&plan("llama-3-8b", "muon", [1, 8, 1], "none")).is_empty());
    // Blocks of parts are preconditioned.
    assert!(bytes(&plan("llama-3-8b", "shampoo", [2, 4, 1], "zero1")).is_empty());
}

#[test]
fn experts_are_made_orthogonal_where_they_are() {
    // Queries, keys with values, outputs, router; gate, up, down of each expert.
    let dense = [[4096.0, 4096.0], [2048.0, 4096.0], [4096.0, 4096.0], [8.0, 4096.0]];
    let dense: f64 = dense.iter().map(|[m, n]| newton_schulz(*m, *n)).sum();
    let expert = 3.0 * newton_schulz(4096.0, 14336.0);
    for ranks in [1, 2, 8] {
        let found = flops(&plan("mixtral-8x7b", "muon", [1, 8, ranks], "none"));
        let expected = 32.0 * (dense + 8.0 / ranks as f64 * expert);
        assert!((found / expected - 1.0).abs() < 1e-9, "{ranks} expert ranks: {found:e}, {expected:e}");
    }
}

#[test]
fn shampoo_preconditions_blocks_of_1024() {
    // Four products of 1024³ for each of 1024 × 1024 elements; keys with values, 4096 × 2048, likewise.
    let found = flops(&plan("llama-3-8b", "shampoo", [1, 8, 1], "none"));
    assert_eq!(found, 32.0 * elements(&LLAMA) / 1024.0 / 1024.0 * 4.0 * 2.0 * 1024f64.powi(3));
}
