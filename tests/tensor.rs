//! Every way to share a layer among the tensor ranks: traffic, memory and time.
//!
//! M tokens of a microbatch, h hidden width, t tensor ranks, in a grid of q × q × d; e = 2 bytes of an activation or
//! weight. A GPT block is four products: h → 3 h, h → h, h → 4 h, 4 h → h.

use crate::common::Draft;
use trainwright_lower::lower;
use trainwright_lower::memory::plan_memory;
use trainwright_sim::costs::ClusterCosts;
use trainwright_sim::{Detail, simulate, step_time};
use trainwright_spec::cluster::Cluster;
use trainwright_spec::model::{Mlp, Model, Position};
use trainwright_spec::plan::{Piece, Plan, Recompute};
use trainwright_spec::precision::Precision;
use trainwright_spec::program::{Axis, Kernel, Op, Pass, Work};
use trainwright_spec::tensor::{Input, LayerStep, Linear, Output, Role, TENSOR_SCHEMES, tensor_scheme};
use trainwright_spec::units::{Bytes, Flops, Picoseconds};
use trainwright_timeline::report::Report;

/// Scheme, tensor ranks, rows of the grid, its depth.
const GRIDS: [(&str, usize, usize, usize); 7] = [
    ("1d", 4, 1, 4),
    ("2d", 4, 2, 1),
    ("2d", 16, 4, 1),
    ("2.5d", 8, 2, 2),
    ("2.5d", 32, 4, 2),
    ("3d", 8, 2, 2),
    ("3d", 64, 4, 4),
];

/// GPT-3's architecture at another size, without dropout.
fn gpt(hidden: usize, heads: usize, layers: usize) -> Model {
    let mut model = Draft::of("gpt3-1.3b", [1, 1, 1]).model;
    model.hidden = hidden;
    model.dropout = false;
    model.embedding.position = Position::Learned(512);
    let run = &mut model.blocks[0];
    run.count = layers;
    let attention = &mut run.block.attention;
    (attention.heads, attention.kv_heads) = (heads, heads);
    (attention.head_dim, attention.value_head_dim) = (hidden / heads, hidden / heads);
    let Mlp::Dense(mlp) = &mut run.block.mlp else { panic!("GPT-3 is dense") };
    mlp.width = 4 * hidden;
    model
}

/// Two blocks on tensor ranks alone. The microbatch has 16 sequences, so that every grid here can cut it.
fn draft((scheme, tensor, rows, _): (&'static str, usize, usize, usize)) -> Draft {
    Draft {
        model: gpt(1024, 16, 2),
        blocks: 2,
        sequence: 512,
        micro_batch: 16,
        microbatches: 2,
        stack: "megatron-core",
        tensor_scheme: scheme,
        tensor_rows: rows,
        gpus_per_node: 4,
        ..Draft::of("gpt3-1.3b", [tensor, 1, 1])
    }
}

/// The ops of block 1 in one pass over one microbatch, on the first rank.
fn block_ops(plan: &Plan, pass: Pass) -> Vec<Op> {
    let program = lower(plan);
    let name = if pass == Pass::Forward { "stage 0 forward" } else { "stage 0 backward" };
    let segment = program.segments.iter().find(|segment| segment.name == name).expect("it has that pass");
    segment.ops.iter().filter(|op| op.layer == Some(1) && op.pass == pass).cloned().collect()
}

/// Bytes that a rank receives in a list of ops: norms' statistics, and all else.
fn received(plan: &Plan, ops: &[Op]) -> [f64; 2] {
    let mut received = [0.0; 2];
    for op in ops {
        if let Work::Collective { kind, axis, bytes, .. } = op.work {
            let elements = bytes.get() as usize;
            let step = LayerStep::Collective { name: op.module, kind, axis, elements, beside_next: false };
            received[usize::from(op.module != "reduce norm statistics")] += step.received(&plan.mesh);
        }
    }
    received
}

fn assert_close(found: f64, expected: f64, case: &str) {
    assert!((found - expected).abs() <= 1e-9 * expected.abs(), "{case}: {found} for {expected}");
}

#[test]
fn traffic_of_a_product_is_the_closed_form() {
    let roles = [
        Role::Column(Input::Region),
        Role::Column(Input::Shared),
        Role::Row(Output::Leaves),
        Role::Row(Output::Added),
        Role::Head,
    ];
    for grid in GRIDS {
        for (stack, sequence_parallel) in
            [("pytorch-eager", false), ("pytorch-eager", true), ("megatron-core-tp-overlap", true)]
        {
            let draft =
                Draft { stack, sequence_parallel: sequence_parallel && grid.0 == "1d", ..draft(grid) };
            let plan = draft.plan();
            let (scheme, layout) = (plan.tensor_scheme(), plan.tensor_grid());
            for role in roles {
                for [tokens, inner, outer] in [[4096, 64, 192], [8192, 1024, 4096], [64, 4096, 64]] {
                    let layer = Linear { tokens, inner, outer, role };
                    let found = scheme.linear(&layout, &layer).volume(&plan.mesh);
                    let expected = scheme.volume(&layout, &layer);
                    let case = format!("{grid:?} {stack} {role:?}");
                    assert_close(found.forward, expected.forward, &case);
                    assert_close(found.backward, expected.backward, &case);
                }
            }
        }
    }
}

#[test]
fn a_gpt_block_moves_what_the_papers_say() {
    // Forward and backward, elements, over the four products (M K: 7 M h, K N: 12 h², M N: 9 M h).
    // 1-D (1909.08053): 2 all-reduces of M h each way, 2 (t − 1)/t M h for each.
    // 2-D (2104.05343, section 3.1): (q − 1)/q² (7 M h + 12 h²); twice that.
    // 2.5-D (2105.14500): (q − 1)/q² (7 M h/d + 12 h²); twice that and 2 (d − 1)/d 12 h²/q².
    // 3-D (2105.14450): (q − 1)/q³ (7 + 9) M h + (q − 1)/q³ 12 h²; the same.
    // Two norms: two fp32 numbers per token on the rank, summed over q ranks, each way.
    for grid in GRIDS {
        let plan = draft(grid).plan();
        let (scheme, t, q, d) = grid;
        let [t, q, d] = [t, q, d].map(|size| size as f64);
        let (m, h) = (16.0 * 512.0, 1024.0);
        let all_reduces = 4.0 * (t - 1.0) / t * m * h;
        let blocks = (q - 1.0) / (q * q) * (7.0 * m * h / d + 12.0 * h * h);
        let cube = (q - 1.0) / q.powi(3) * (16.0 * m * h + 12.0 * h * h);
        let [forward, backward] = match scheme {
            "1d" => [all_reduces; 2],
            "3d" => [cube; 2],
            _ => [blocks, 2.0 * blocks + 2.0 * (d - 1.0) / d * 12.0 * h * h / (q * q)],
        };
        let local_tokens = match scheme {
            "3d" => m / (q * q),
            _ => m / (q * d),
        };
        let statistics = if scheme == "1d" { 0.0 } else { 2.0 * 8.0 * local_tokens * 2.0 * (q - 1.0) / q };
        for (pass, elements) in [(Pass::Forward, forward), (Pass::Backward, backward)] {
            let [norms, products] = received(&plan, &block_ops(&plan, pass));
            assert_close(products, 2.0 * elements, &format!("{grid:?} {pass:?}"));
            assert_close(norms, statistics, &format!("{grid:?} {pass:?}, norms"));
        }
    }
}

#[test]
fn the_ends_move_the_table_s_blocks() {
    // Forward, V the padded vocabulary. Blocks: the sums that the columns compute, (q − 1)/q M/d h/q; the head E X, (q − 1)/q²
    // (h V + M V/d), as Y = X Eᵀ moves its output. Cube: the table and what it finds, (q − 1)/q³ (V h + M h); the
    // head (q − 1)/q³ (M h + h V + M V). The loss sums three fp32 numbers of each token on the rank over q ranks.
    // Once a step gains, biases and positions are summed, 4 bytes each: two blocks of 13 h, 512 positions and the last
    // norm, in 1/q parts; in a cube the 7 h of the first products' biases along other ranks than the rest.
    for grid in GRIDS.into_iter().filter(|(scheme, ..)| *scheme != "1d") {
        let plan = draft(grid).plan();
        let (scheme, tensor, rows, depth) = grid;
        let [q, d] = [rows as f64, depth as f64];
        let (m, h) = (16.0 * 512.0, 1024.0);
        let v = plan.stack.padded_vocabulary(plan.model.vocab, tensor) as f64;
        let (elements, local_tokens) = match scheme {
            "3d" => {
                let head = m * h + h * v + m * v;
                ((q - 1.0) / q.powi(3) * (v * h + m * h + head), m / (q * q))
            }
            _ => {
                let head = (q - 1.0) / (q * q) * (h * v + m * v / d);
                ((q - 1.0) / (q * q) * m * h / d + head, m / (q * d))
            }
        };
        let loss = 3.0 * 4.0 * local_tokens * 2.0 * (q - 1.0) / q;
        let program = lower(&plan);
        let segment = |name: &str| {
            let found = program.segments.iter().find(|segment| segment.name == name);
            found.expect("there is one").ops.clone()
        };
        let mut ends = segment("stage 0 forward");
        ends.retain(|op| op.layer.is_none());
        assert_close(received(&plan, &ends)[1], 2.0 * elements + loss, &format!("{grid:?}"));

        let sums: Vec<(Axis, f64)> = segment("rank 0 update")
            .iter()
            .filter(|op| op.module == "reduce norm gradients")
            .filter_map(|op| match op.work {
                Work::Collective { axis, bytes, .. } => Some((axis, bytes.get())),
                _ => None,
            })
            .collect();
        let first = 4.0 * 14.0 * h / q;
        let others = 4.0 * (12.0 * h + 512.0 * h + 2.0 * h) / q;
        let expected = match scheme {
            "2d" => vec![(Axis::TensorColumn, first + others)],
            "2.5d" => vec![(Axis::TensorColumn, first + others), (Axis::TensorDepth, first + others)],
            _ => vec![
                (Axis::TensorRow, first),
                (Axis::TensorColumn, others),
                (Axis::TensorDepth, first + others),
            ],
        };
        assert_eq!(sums, expected, "{grid:?}");
    }
}

#[test]
fn a_gpt_block_is_shared_evenly() {
    // Parameters: 12 h² in matrices and 13 h in vectors (9 h of biases, 4 h of norms). 1-D: (12 h² + 7 h)/t + 6 h.
    // 2-D and 2.5-D: 12 h²/q² + 13 h/q. 3-D: 12 h²/q³ + 13 h/q.
    // FLOPs: 1/t of 24 M h² + 2 M s h forward (causal scores and values, half of 4 M s h).
    for grid in GRIDS {
        let plan = draft(grid).plan();
        let (scheme, t, q, _) = grid;
        let layout = plan.tensor_grid();
        let h = 1024u64;
        let [t, q] = [t as u64, q as u64];
        let weights = plan.model.blocks[0].block.weights(1024);
        let found: u64 =
            weights.iter().map(|weight| plan.tensor_scheme().elements_on_rank(&layout, weight)).sum();
        let expected = match scheme {
            "1d" => (12 * h * h + 7 * h) / t + 6 * h,
            "3d" => 12 * h * h / t + 13 * h / q,
            _ => 12 * h * h / (q * q) + 13 * h / q,
        };
        assert_eq!(found, expected, "{grid:?}");
        let flops: Flops = block_ops(&plan, Pass::Forward)
            .iter()
            .map(|op| if let Work::Compute(kernel) = op.work { kernel.flops() } else { Flops::ZERO })
            .sum();
        let (m, s, h) = (16.0 * 512.0, 512.0, 1024.0);
        assert_close(flops.get(), (24.0 * m * h * h + 2.0 * m * s * h) / t as f64, &format!("{grid:?}"));
    }
}

#[test]
fn activations_are_the_closed_form_and_memory_is_its_peak() {
    // A block keeps, in bytes, flash attention and no dropout: 2 M h for each of two norms' inputs, 6 M h of q, k, v,
    // 4 M a of statistics, 8 M h before the activation function: 18 M h + 4 M a in 1/t parts in every grid, and the inputs
    // of the four products, 14 M h. 1-D: norms and the inputs of the first of each pair in full, 4 + 4 of 18 and 14.
    // 3-D: those inputs gathered over q ranks, and 24 h²/q² of gathered weights.
    for grid in GRIDS {
        let (scheme, t, q, _) = grid;
        let [t, q] = [t as f64, q as f64];
        let (m, h, a) = (16.0 * 512.0, 1024.0, 16.0);
        let inside = (14.0 * m * h + 4.0 * m * a) / t;
        let block = match scheme {
            "1d" => inside + 8.0 * m * h + 10.0 * m * h / t,
            "3d" => inside + 4.0 * m * h / t + 14.0 * m * h / (q * q) + 24.0 * h * h / (q * q),
            _ => inside + 18.0 * m * h / t,
        };
        let activations = |blocks| {
            let plan = Draft { blocks, ..draft(grid) }.plan();
            plan_memory(&plan)[0].activations
        };
        assert_close((activations(2) - activations(1)).get(), block, &format!("{grid:?}"));

        let single = [Piece::Norm, Piece::Activation, Piece::Mlp].map(|piece| Recompute::of(&[piece]));
        for recompute in Recompute::ALL.into_iter().chain(single) {
            for stack in ["pytorch-eager", "megatron-core-tp-overlap"] {
                let plan = Draft { recompute, stack, ..draft(grid) }.plan();
                let timeline =
                    simulate(&lower(&plan), &ClusterCosts::new(&plan.cluster), Detail::Ops).unwrap();
                let (closed, peak) =
                    (plan_memory(&plan)[0].total(), Report::new(&timeline).ranks[0].memory.peak);
                let case = format!("{grid:?} {stack} {recompute}: {closed} for {peak}");
                // The closed form adds the largest temporaries of all passes to the most activations of any moment. Where the
                // loss takes little, they are of two moments.
                assert!(closed >= peak - Bytes::new(5.0) && closed <= 1.1 * peak, "{case}");
            }
        }
    }
}

#[test]
fn grids_share_a_cluster_with_pipelines_and_divided_state() {
    // Closed forms of memory against its peak on each pipeline rank; and the rank with the most is not the only one.
    for grid in [GRIDS[1], GRIDS[3], GRIDS[5]] {
        for (schedule, virtual_stages) in [("1f1b", 1), ("interleaved", 2), ("chimera", 1)] {
            for data_sharding in ["none", "zero1", "zero2", "zero3", "fsdp"] {
                let draft = Draft {
                    mesh: [grid.1, 2, 2],
                    schedule,
                    virtual_stages,
                    data_sharding,
                    model: gpt(1024, 16, 4),
                    blocks: 4,
                    ..draft(grid)
                };
                let Ok(plan) = draft.try_plan() else {
                    println!(
                        "{grid:?} {schedule} {data_sharding} {:?}",
                        draft.try_plan().unwrap_err().to_string()
                    );
                    continue;
                };
                let costs = ClusterCosts::new(&plan.cluster);
                let timeline = simulate(&lower(&plan), &costs, Detail::Ops).unwrap();
                let report = Report::new(&timeline);
                for (stage, memory) in plan_memory(&plan).iter().enumerate() {
                    let ranks =
                        report.ranks.iter().filter(|rank| plan.mesh.coordinates(rank.rank).pipeline == stage);
                    for rank in ranks {
                        let (closed, peak) = (memory.total(), rank.memory.peak);
                        let case =
                            format!("{grid:?} {schedule} {data_sharding} {stage}: {closed} for {peak}");
                        if !(closed >= peak - Bytes::new(5.0) && closed <= 1.05 * peak) {
                            println!("BAD {case}");
                        }
                    }
                }
                let every =
                    trainwright_sim::step_time(&trainwright_lower::lower_every_rank(&plan), &costs).unwrap();
                let alike = step_time(&lower(&plan), &costs).unwrap();
                if every != alike {
                    println!("DIFF {grid:?} {schedule} {data_sharding} {every} {alike}");
                }
            }
        }
    }
}

#[test]
fn tiles_move_the_same_during_smaller_products() {
    // Per block and pass over t ranks, along the sequence: two gathers or scatters become 2 (t − 1) messages of
    // M h e/t, overlapped by products of M/t rows. In a grid the same broadcasts are waited for one product later.
    let plan = |grid, stack| {
        let sequence_parallel = draft(grid).tensor_scheme == "1d";
        Draft { model: gpt(4096, 32, 2), stack, sequence_parallel, ..draft(grid) }.plan()
    };
    let time = |plan: &Plan| step_time(&lower(plan), &ClusterCosts::new(&plan.cluster)).unwrap();
    let [waited, tiled] = ["megatron-core", "megatron-core-tp-overlap"].map(|stack| plan(GRIDS[0], stack));
    let ops = block_ops(&tiled, Pass::Forward);
    let messages = ops.iter().filter(|op| matches!(op.work, Work::Collective { axis: Axis::Tensor, .. }));
    assert_eq!(messages.count(), 2 * 2 * (4 - 1));
    let rows = |ops: &[Op]| -> Vec<usize> {
        let product = |op: &Op| match op.work {
            Work::Compute(Kernel::Gemm { m, .. }) => Some(m),
            _ => None,
        };
        ops.iter().filter_map(product).collect()
    };
    assert_eq!(rows(&ops), [16 * 512 / 4; 16]);
    for pass in [Pass::Forward, Pass::Backward] {
        let [found, expected] = [&tiled, &waited].map(|plan| received(plan, &block_ops(plan, pass))[1]);
        assert_close(found, expected, "tiled");
    }
    for grid in [GRIDS[0], GRIDS[2], GRIDS[3]] {
        let [waited, overlapped] =
            ["megatron-core", "megatron-core-tp-overlap"].map(|stack| time(&plan(grid, stack)));
        assert!(overlapped < waited, "{grid:?}: {overlapped} overlapped, {waited} waited for");
    }
}

#[test]
fn impossible_grids_are_refused() {
    let check = |draft: &Draft, message: &str| {
        let error = draft.try_plan().unwrap_err().to_string();
        assert!(error.contains(message), "{error}\nlacks {message}");
    };
    let of = |scheme, tensor, rows| draft((scheme, tensor, rows, 0));
    check(&of("4d", 4, 2), "`tensor_scheme` is `4d`; known are 1d, 2d, 2.5d, 3d");
    check(&of("1d", 4, 2), "mesh.tensor_rows must be 1, not 2");
    check(&of("2d", 8, 2), "needs mesh.tensor = q² = 4 with q = mesh.tensor_rows > 1");
    check(&of("2d", 4, 1), "needs mesh.tensor = q² = 1 with q = mesh.tensor_rows > 1");
    check(&of("2.5d", 4, 2), "needs mesh.tensor = d q² with q = mesh.tensor_rows = 2 > 1, 1 < d <= q");
    check(&of("2.5d", 16, 2), "needs mesh.tensor = d q² with q = mesh.tensor_rows = 2 > 1, 1 < d <= q");
    check(&of("3d", 4, 2), "needs mesh.tensor = q³ = 8 with q = mesh.tensor_rows > 1");
    let square = of("2d", 4, 2);
    check(
        &Draft { micro_batch: 3, ..square.clone() },
        "`micro_batch` is 3; tensor scheme `2d` cuts it in 2 parts",
    );
    check(&Draft { sequence_parallel: true, ..square.clone() }, "`2d` cuts what lies between layers already");
    let of_model = |name| Draft { model: Draft::of(name, [1, 1, 1]).model, ..square.clone() };
    check(&of_model("mixtral-8x7b"), "it cannot cut the model's experts: use `1d`");
    check(&of_model("bert-base"), "it cannot cut the model's head layers: use `1d`");
    let eight_bits = Draft { precision: Precision::Int8, ..square.clone() };
    check(&eight_bits, "`job.precision` is `int8`; tensor scheme `2d` computes in 16 bits or more");
    let halves = Draft { mesh: [4, 2, 1], schedule: "zb-h1", ..square.clone() };
    check(
        &halves,
        "`schedule` is `zb-h1`; tensor scheme `2d` needs a schedule that runs backward as a whole",
    );
    check(
        &Draft { context: [2, 1], ..square.clone() },
        "`mesh.context` is 2; tensor scheme `2d` leaves sequences whole: it must be 1",
    );
    let tiled = Draft { stack: "megatron-core-tp-overlap", sequence_parallel: true, ..of("1d", 4, 1) };
    check(
        &Draft { precision: Precision::Int8, ..tiled.clone() },
        "stack.overlap_tensor_pieces computes in 16 bits or more",
    );
    check(
        &Draft { mesh: [4, 2, 1], schedule: "zb-h1", ..tiled },
        "stack.overlap_tensor_pieces needs a schedule that runs backward as a whole",
    );
    let mut few_keys = of_model("llama-2-7b");
    few_keys.model.blocks[0].block.attention.kv_heads = 1;
    check(&few_keys, "`model.blocks.block.attention.kv_heads` is 1; tensor scheme `2d` cuts it in 2 parts");
    let mut plan = square.plan();
    plan.stack.overlap_tensor_pieces = true;
    plan.stack.overlap_tensor_backward = false;
    let error = plan.check("plan").unwrap_err().to_string();
    assert!(error.contains("it needs stack.overlap_tensor_backward"), "{error}");
    let unknown = tensor_scheme("2d5").unwrap_err().to_string();
    assert!(unknown.contains("2.5d"), "{unknown}");
}

#[test]
fn plans_name_their_scheme_only_if_it_is_not_the_usual_one() {
    for scheme in TENSOR_SCHEMES {
        let grid = GRIDS.into_iter().find(|(name, ..)| *name == scheme.name()).expect("each has a grid here");
        let plan = draft(grid).plan();
        let written = plan.to_toml();
        assert_eq!(written.contains("tensor_scheme"), scheme.name() != "1d");
        assert_eq!(Plan::from_toml(&written, "plan").unwrap(), plan);
    }
}

/// Time per sequence of a step of `model` on the first `tensor` GPUs of a cluster, in picoseconds.
fn time_per_sequence(
    cluster: &str,
    model: &Model,
    grid: (&'static str, usize, usize, usize),
    batch: usize,
) -> f64 {
    let blocks = model.layers();
    let nodes = Cluster::from_name(cluster).unwrap();
    let draft = Draft {
        model: model.clone(),
        blocks,
        micro_batch: batch,
        microbatches: 1,
        stack: "pytorch-eager",
        gpus_per_node: nodes.node.gpus.value,
        ..draft(grid)
    };
    let mut plan = draft.plan();
    plan.cluster = nodes;
    plan.check("plan").unwrap();
    let Picoseconds(time) = step_time(&lower(&plan), &ClusterCosts::new(&plan.cluster)).unwrap();
    time as f64 / batch as f64
}

#[test]
fn grids_win_on_many_nodes_of_few_gpus() {
    // 64 GPUs on nodes of four. Wang et al. 2021 (arXiv 2105.14500) report for 2.5-D, 4 × 4 × 4, over 1-D 1.38 at a
    // fixed size (h = 3072, 64 heads, batch 12) and 3.37 with h = 8192, 128 heads and the batch that each can hold.
    // Here: V100s on Omni-Path, 512 tokens, 24 blocks. At the fixed size a batch of 48, the least multiple of 12 that
    // 4 × 4 × 4 cuts; at the larger size 30 sequences for 1-D, whose ranks hold all of them, and 384 for the others
    // (arXiv 2104.05343, table 2). With few tokens the weights that grids move outweigh them: at a batch of 16, 1-D is
    // ahead of 2-D and 2.5-D.
    let schemes = [("1d", 64, 1, 64), ("2d", 64, 8, 1), ("2.5d", 64, 4, 4), ("3d", 64, 4, 4)];
    let speedups = |case: &str, model: &Model, batches: [usize; 4]| {
        let mut times = [0.0; 4];
        for (index, (grid, batch)) in schemes.into_iter().zip(batches).enumerate() {
            times[index] = time_per_sequence("jean-zay-v100:16", model, grid, batch);
        }
        let [_, two, two_and_a_half, three] = times.map(|time| times[0] / time);
        println!("{case}: over 1d, 2d {two:.2}, 2.5d {two_and_a_half:.2}, 3d {three:.2}");
        [two, two_and_a_half, three]
    };
    let strong = speedups("fixed size", &gpt(3072, 64, 24), [48; 4]);
    let weak = speedups("with the GPUs", &gpt(8192, 128, 24), [30, 384, 384, 384]);
    for ([two, two_and_a_half, three], reported) in [(strong, 1.38), (weak, 3.37)] {
        assert!(1.0 < two && two < two_and_a_half && two_and_a_half < three, "{strong:?} {weak:?}");
        let off = two_and_a_half / reported;
        assert!((0.8..=1.25).contains(&off), "2.5d is {two_and_a_half} times as fast, {reported} reported");
    }
    let [two, two_and_a_half, three] = speedups("few tokens", &gpt(3072, 64, 24), [16; 4]);
    assert!(two < 1.0 && two_and_a_half < 1.0 && 1.0 < three);
}

#[test]
fn one_dimension_wins_inside_a_fast_node() {
    // As Megatron-Core runs it, cut along the sequence between layers, on the NVSwitch of a DGX A100.
    for (scheme, tensor) in [("2d", 4), ("2.5d", 8), ("3d", 8)] {
        for hidden in [2048, 4096, 8192] {
            for micro_batch in [4, 16, 32] {
                let time = |tensor_scheme, tensor_rows, sequence_parallel| {
                    let draft = Draft {
                        model: gpt(hidden, 32, 4),
                        blocks: 4,
                        micro_batch,
                        sequence_parallel,
                        gpus_per_node: 8,
                        ..draft((tensor_scheme, tensor, tensor_rows, 0))
                    };
                    let plan = draft.plan();
                    step_time(&lower(&plan), &ClusterCosts::new(&plan.cluster)).unwrap()
                };
                let (one, grid) = (time("1d", 1, true), time(scheme, 2, false));
                assert!(one < grid, "{scheme}, h = {hidden}, b = {micro_batch}: {one} for 1d, {grid}");
            }
        }
    }
}
