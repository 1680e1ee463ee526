//! The memory and time of recomputation, module by module.
//!
//! s sequence, b microbatch, h hidden width, a heads, t tensor ranks; 16 bits, dropout, unfused attention.

use crate::common::Draft;
use trainwright_lower::memory::plan_memory;
use trainwright_lower::{StageCost, lower};
use trainwright_sim::costs::ClusterCosts;
use trainwright_sim::{Detail, simulate, step_time};
use trainwright_spec::collective::CollectiveKind;
use trainwright_spec::plan::{Piece, Plan, Recompute};
use trainwright_spec::program::{Axis, Call, Group, Kernel, Op, Pass, Program, RankProgram, Segment, Work};
use trainwright_spec::units::{Bytes, Seconds};
use trainwright_timeline::report::Report;

const SELECTIVE: Recompute = Recompute::Selective;

/// The costs of the last block of a plan's model.
fn block(plan: &Plan, recompute: Recompute) -> StageCost {
    StageCost::of_block(plan, &plan.model.blocks.last().unwrap().block, recompute)
}

/// The ops that run again.
fn again(cost: &StageCost) -> impl Iterator<Item = &Op> {
    cost.backward.ops.iter().filter(|op| op.pass == Pass::Recompute)
}

#[test]
fn each_piece_drops_what_it_makes() {
    // Bytes of a block per s b h / t, with sequence parallelism: 34 + 5 a s / h (Korthikanti et al. 2022,
    // arXiv 2205.05198, section 4): two norms' inputs 2 + 2 and outputs 2 + 2, queries, keys and values 6, scores 5 a s / h,
    // projection's input 2, activation's input and output 8 + 8, two masks 1 + 1.
    let (s, h, a, t) = (1024.0, 6144.0, 64.0, 8.0);
    let draft = Draft { sequence_parallel: true, ..Draft::of("megatron-22b", [8, 1, 1]) };
    let plan = draft.plan();
    let scores = 5.0 * a * s / h;
    let check = |pieces: &[Piece], per_sbh: f64| {
        let recompute = Recompute::of(pieces);
        let cost = block(&plan, recompute);
        let expected = s * h / t * per_sbh;
        assert!((cost.kept.get() / expected - 1.0).abs() < 1e-12, "{recompute}: {}", cost.kept);
    };
    use Piece::{Activation, Core, Mlp, Norm};
    check(&[], 34.0 + scores);
    check(&[Core], 34.0);
    check(&[Norm], 34.0 + scores - 4.0);
    check(&[Activation], 34.0 + scores - 8.0);
    check(&[Mlp], 34.0 + scores - 16.0);
    // The feed-forward part contains its activation.
    check(&[Mlp, Activation], 34.0 + scores - 16.0);
    check(&[Core, Norm, Activation], 34.0 - 4.0 - 8.0);
    check(&[Core, Norm, Mlp], 34.0 - 4.0 - 16.0);
}

#[test]
fn each_piece_runs_what_makes_it() {
    let draft = Draft { sequence_parallel: true, ..Draft::of("megatron-22b", [8, 1, 1]) };
    let plan = draft.plan();
    let check = |pieces: &[Piece], expected: &[&str]| {
        let cost = block(&plan, Recompute::of(pieces));
        let modules: Vec<&str> = again(&cost).map(|op| op.module).collect();
        assert_eq!(modules, expected, "{}", Recompute::of(pieces));
    };
    use Piece::{Activation, Core, Mlp, Norm};
    let core = ["scores", "softmax", "score dropout", "values", "join heads"];
    let mlp = ["gather sequence", "fc1", "activation", "fc2", "reduce output"];
    check(&[], &[]);
    check(&[Core], &core);
    check(&[Norm], &["norm", "norm"]);
    check(&[Activation], &["activation"]);
    check(&[Mlp], &mlp);
    // The feed-forward part reads its norm's output, so that is made first.
    check(&[Norm, Mlp], &[&["norm"], &mlp[..], &["norm"]].concat());
    check(&[Core, Norm, Activation], &[&["activation", "norm"], &core[..], &["norm"]].concat());
    // With one norm for both (Falcon) or one for each (GPT-NeoX), the feed-forward part's backward is first.
    for (model, norms) in [("falcon-7b", 1), ("gpt-neox-20b", 2)] {
        let plan = Draft::of(model, [1, 1, 1]).plan();
        let cost = block(&plan, Recompute::of(&[Norm]));
        let first = cost.backward.ops.iter().position(|op| op.module == "fc1").unwrap();
        let made: Vec<usize> = cost
            .backward
            .ops
            .iter()
            .enumerate()
            .filter(|(_, op)| op.pass == Pass::Recompute)
            .map(|(index, _)| index)
            .collect();
        assert_eq!(made.len(), norms, "{model}");
        assert!(made.iter().all(|index| *index < first), "{model}");
    }
}

#[test]
fn bytes_and_flops_of_what_runs_again() {
    // GPT-2: s = 1024, h = 768, t = 1. A norm reads and writes 2 s h bytes each; the activation 8 s h each; the
    // feed-forward part does 2 · 2 s h · 4 h flops.
    let plan = Draft::of("gpt2", [1, 1, 1]).plan();
    let (s, h) = (1024.0, 768.0);
    let moved = |cost: &StageCost| -> Bytes {
        let bytes = again(cost).map(|op| match op.work {
            Work::Compute(Kernel::Streaming { read, written, .. }) => read + written,
            _ => Bytes::ZERO,
        });
        bytes.sum()
    };
    let flops = |cost: &StageCost| -> f64 {
        let flops = again(cost).map(|op| match op.work {
            Work::Compute(kernel) => kernel.flops().get(),
            _ => 0.0,
        });
        flops.sum()
    };
    let check = |piece, bytes: f64, products: f64| {
        let cost = block(&plan, Recompute::of(&[piece]));
        assert_eq!((moved(&cost).get(), flops(&cost)), (bytes, products), "{}", piece.name());
    };
    check(Piece::Norm, 2.0 * 4.0 * s * h, 0.0);
    check(Piece::Activation, 16.0 * s * h, 0.0);
    check(Piece::Mlp, 16.0 * s * h, 16.0 * s * h * h);
}

#[test]
fn latent_attention_expands_its_keys_and_values_again() {
    // DeepSeek-V3, t = 8, flash attention: per token 16 heads of queries and keys 192 and of values 128 wide, 2 bytes
    // each, are dropped; both up-projections and the rotation run again.
    let draft = Draft { stack: "megatron-core", blocks: 5, ..Draft::of("deepseek-v3", [8, 1, 1]) };
    let plan = draft.plan();
    let none = block(&plan, Recompute::None);
    let up = block(&plan, Recompute::of(&[Piece::UpProjection]));
    let s = 1024.0;
    assert_eq!(none.kept - up.kept, Bytes::new(2.0 * s * 16.0 * (192.0 + 192.0 + 128.0)));
    let modules: Vec<&str> = again(&up).map(|op| op.module).collect();
    assert_eq!(modules, ["q up", "kv up", "rotary"]);
    // The rotated part: 64 columns of 16 query heads and of the one key part that all heads share.
    let rotary = again(&up).find(|op| op.module == "rotary").unwrap();
    let Work::Compute(Kernel::Streaming { read, written, .. }) = rotary.work else { panic!("a kernel") };
    assert_eq!((read.get(), written.get()), (2.0 * s * 17.0 * 64.0, 2.0 * s * 17.0 * 64.0));
    // The complete mixture of experts again: it keeps its input alone, which the router reads.
    let experts = block(&plan, Recompute::of(&[Piece::Experts]));
    let kept_by = |cost: &StageCost, module: &str| {
        let op = cost.forward.ops.iter().find(|op| op.module == module).unwrap();
        op.allocates.iter().any(|allocation| allocation.kind.name() == "activations")
    };
    assert!(kept_by(&experts, "router"));
    for module in ["top-k", "expert fc1", "activation", "expert fc2", "combine"] {
        assert!(kept_by(&none, module) && !kept_by(&experts, module), "{module}");
    }
}

#[test]
fn a_piece_that_no_block_has_is_refused() {
    let check = |model: &str, piece: Piece, message: &str| {
        let draft = Draft { recompute: Recompute::of(&[piece]), ..Draft::of(model, [1, 1, 1]) };
        let error = draft.try_plan().unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    };
    check("gpt2", Piece::Experts, "`selective(experts)` in some");
    check("gpt2", Piece::UpProjection, "the blocks of gpt2 have core, norm, activation, mlp");
    check("mixtral-8x7b", Piece::Mlp, "have core, norm, activation, experts");
}

#[test]
fn the_feed_forward_part_again_communicates_again() {
    let draft = Draft { sequence_parallel: true, ..Draft::of("megatron-22b", [8, 1, 1]) };
    let plan = draft.plan();
    let collectives: Vec<CollectiveKind> = again(&block(&plan, Recompute::of(&[Piece::Mlp])))
        .filter_map(|op| match op.work {
            Work::Collective { kind, axis: Axis::Tensor, bytes, .. } => {
                assert_eq!(bytes.get(), 2.0 * 1024.0 * 6144.0);
                Some(kind)
            }
            _ => None,
        })
        .collect();
    assert_eq!(collectives, [CollectiveKind::AllGather, CollectiveKind::ReduceScatter]);
}

#[test]
fn recomputed_modules_free_all_memory_that_they_allocate() {
    use Piece::{Activation, Core, Experts, Mlp, Norm, UpProjection};
    let dense =
        [&[Norm][..], &[Mlp], &[Core, Norm, Activation], &[Norm, Mlp, Activation], &[Core, Norm, Mlp]];
    let sparse = [&[Experts][..], &[Norm, Experts], &[UpProjection, Norm], &[Core, UpProjection, Activation]];
    let cases = [
        ("gpt2", "megatron-lm-2022", &dense[..]),
        ("llama-7b", "pytorch-eager", &dense),
        ("falcon-7b", "megatron-core", &dense),
        ("gpt-neox-20b", "megatron-core", &dense),
        ("deepseek-v2", "megatron-core", &sparse),
        ("deepseek-v3", "pytorch-eager", &sparse),
    ];
    for (model, stack, choices) in cases {
        for pieces in choices {
            let recompute = Recompute::of(pieces);
            let sparse = model.starts_with("deepseek");
            let blocks = if sparse { 5 } else { 4 };
            let draft = Draft { stack, recompute, blocks, microbatches: 3, ..Draft::of(model, [1, 2, 1]) };
            let plan = draft.plan();
            let case = format!("{model} on {stack}, {recompute}");
            let timeline = simulate(&lower(&plan), &ClusterCosts::new(&plan.cluster), Detail::Ops).unwrap();
            let activations: Vec<(u32, f64)> = timeline
                .memory
                .iter()
                .filter(|change| change.kind.name() == "activations")
                .map(|change| (change.rank, change.bytes.get()))
                .collect();
            for rank in 0..2 {
                let held =
                    activations.iter().filter(|(holder, _)| *holder == rank).scan(0.0, |held, (_, bytes)| {
                        *held += bytes;
                        Some(*held)
                    });
                let held: Vec<f64> = held.collect();
                assert!(held.iter().all(|held| *held >= 0.0), "{case}");
                assert_eq!(held.last(), Some(&0.0), "{case}");
            }
            // A block's recomputed activations are not all live at once, as the closed form assumes.
            for rank in Report::new(&timeline).ranks {
                let (closed, peak) = (plan_memory(&plan)[rank.pipeline_rank].total(), rank.memory.peak);
                assert!(
                    closed >= peak - Bytes::new(8.0) && closed <= 1.1 * peak,
                    "{case}: {closed} for {peak}"
                );
            }
        }
    }
}

/// The time of a segment on a single rank.
fn segment_time(plan: &Plan, segment: Segment) -> Seconds {
    let mut groups = Vec::new();
    let group_of_axis = Axis::ALL.map(|axis| {
        let ranks = plan.mesh.group(0, axis);
        (ranks.len() > 1).then(|| {
            groups.push(Group { axis, ranks, members: vec![0] });
            groups.len() - 1
        })
    });
    let rank = RankProgram {
        rank: 0,
        stands_for: plan.mesh.ranks(),
        pipeline_rank: 0,
        pipeline: vec![0],
        groups: group_of_axis,
        resident: Vec::new(),
        calls: vec![Call { segment: 0, action: None, joint: false }],
    };
    let program = Program { segments: vec![segment], stages: Vec::new(), ranks: vec![rank], groups };
    step_time(&program, &ClusterCosts::new(&plan.cluster)).unwrap().into()
}

#[test]
fn the_cost_of_selective_recompute_falls_to_two_hundredths_at_a_trillion() {
    // Korthikanti et al. 2022, arXiv 2205.05198, table 4 and figure 8: forward and backward of a block, t = 8 on A100s.
    // Full recompute costs 39 % at 22B and 36 % at 1T; selective 7 % at 22B (20.9 to 19.6 ms), falling to 2 % at 1T.
    let overhead = |model: &str, micro_batch, recompute| {
        let time = |recompute| {
            let draft = Draft { micro_batch, sequence: 2048, ..Draft::of(model, [8, 1, 1]) };
            let plan = draft.plan();
            let cost = block(&plan, recompute);
            segment_time(&plan, cost.forward) + segment_time(&plan, cost.backward)
        };
        100.0 * (time(recompute) / time(Recompute::None) - 1.0)
    };
    let models = [("megatron-22b", 4), ("megatron-175b", 1), ("megatron-530b", 1), ("megatron-1t", 1)];
    let of = |recompute| models.map(|(model, micro_batch)| overhead(model, micro_batch, recompute));
    let (selective, full) = (of(SELECTIVE), of(Recompute::Full));
    // The forecasts are 39 % and 35 %.
    assert!(full.iter().all(|full| (34.5..40.0).contains(full)), "{full:?}");
    assert!(selective.windows(2).all(|pair| pair[1] < pair[0]), "{selective:?}");
    assert!((5.0..7.5).contains(&selective[0]) && (1.0..2.5).contains(&selective[3]), "{selective:?}");
}

#[test]
fn full_recompute_needs_half_of_selective_with_sequence_parallelism_again() {
    // GPT-3 175B, t = 8, a block per s b h: nothing recomputed 23, selective with sequence parallelism 34/8 = 4.25, full
    // without sequence parallelism 2: 18 %, and 47 % of that.
    let kept = |recompute, sequence_parallel| {
        let draft =
            Draft { recompute, sequence_parallel, sequence: 2048, ..Draft::of("megatron-175b", [8, 8, 1]) };
        plan_memory(&draft.plan())[3].activations
    };
    let (none, selective, full) =
        (kept(Recompute::None, false), kept(SELECTIVE, true), kept(Recompute::Full, false));
    assert!(((selective / none) - 4.25 / 23.0).abs() < 1e-9, "{}", selective / none);
    assert!(((full / selective) - 2.0 / 4.25).abs() < 1e-9, "{}", full / selective);
}
