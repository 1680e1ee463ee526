//! Mixtures of experts: traffic of dispatchers, memory of ranks, and the cost of uneven loads, against closed forms.
//!
//! T tokens of a rank, k experts of each, h hidden width, e = 2 bytes, E expert ranks, F expert-tensor ranks.

mod common;

use common::Draft;
use std::collections::BTreeMap;
use trainwright_lower::memory::plan_memory;
use trainwright_lower::{lower, lower_every_rank};
use trainwright_sim::costs::ClusterCosts;
use trainwright_sim::{Detail, simulate, step_time};
use trainwright_spec::cluster::Cluster;
use trainwright_spec::collective::CollectiveKind;
use trainwright_spec::experts::{DISPATCHERS, Gate, Load, Routing, nodes_of_a_token};
use trainwright_spec::mesh::Mesh;
use trainwright_spec::model::{Experts, GroupLimit, Mlp};
use trainwright_spec::plan::{Plan, StageBlocks};
use trainwright_spec::precision::Precision;
use trainwright_spec::program::{Axis, CollectiveCall, Kernel, MemoryKind, Op, Pass, Work};
use trainwright_spec::stack::Stack;
use trainwright_timeline::report::Report;

/// Mixtral 8x7B (h = 4096, 8 experts, k = 2), its experts spread over `expert` ranks with `expert_tensor` each.
fn mixtral(mesh: [usize; 3], [expert, expert_tensor]: [usize; 2]) -> Plan {
    let draft = Draft {
        blocks: 2,
        sequence: 1024,
        sequence_parallel: mesh[0] > 1,
        data_sharding: "zero1",
        microbatches: 4,
        ..Draft::of("mixtral-8x7b", mesh)
    };
    let mut plan = draft.plan();
    plan.mesh.expert = expert;
    plan.mesh.expert_tensor = Some(expert_tensor);
    checked(plan)
}

fn checked(plan: Plan) -> Plan {
    plan.check("test").unwrap_or_else(|error| panic!("{error}"));
    plan
}

fn routed(plan: &Plan, routing: Routing) -> Plan {
    checked(Plan { experts: routing, ..plan.clone() })
}

fn dispatched(plan: &Plan, dispatcher: &str) -> Plan {
    routed(plan, Routing { dispatcher: dispatcher.into(), ..Routing::default() })
}

/// The ops of block 1 on the first rank, once.
fn block_ops(plan: &Plan, of: impl Fn(&Op) -> bool) -> Vec<Op> {
    let program = lower(plan);
    let calls: std::collections::BTreeSet<usize> =
        program.ranks[0].calls.iter().map(|call| call.segment).collect();
    let names: Vec<usize> = calls.into_iter().collect();
    // One forward and one backward segment: those without the data axis's collectives come first.
    let plain =
        |name: &str| names.iter().copied().find(|index| program.segments[*index].name.ends_with(name));
    [plain("forward"), plain("backward")]
        .into_iter()
        .flat_map(|index| program.segments[index.unwrap()].ops.clone())
        .filter(|op| op.layer == Some(1) && of(op))
        .collect()
}

type Sent = BTreeMap<(&'static str, &'static str, u64), usize>;

/// Collectives of dispatch and combine in a pass.
fn sent(plan: &Plan, pass: Pass) -> Sent {
    let mut sent = Sent::new();
    for op in block_ops(plan, |op| op.pass == pass && ["dispatch", "combine"].contains(&op.module)) {
        if let Work::Collective { kind, axis, bytes, .. } = op.work {
            assert_eq!(bytes.get().fract(), 0.0, "whole bytes");
            *sent.entry((axis.name(), kind.name(), bytes.get() as u64)).or_default() += 1;
        }
    }
    sent
}

fn expected(list: &[(Axis, CollectiveKind, u64, usize)]) -> Sent {
    list.iter().map(|(axis, kind, bytes, count)| ((axis.name(), kind.name(), *bytes), *count)).collect()
}

use CollectiveKind::{AllGather, AllToAll, ReduceScatter};

#[test]
fn an_all_to_all_carries_each_copy_of_a_token_there_and_back() {
    // Dispatch and combine are an all-to-all of T k h e bytes each, of which (E − 1)/E leaves the rank; backward does
    // both again. Ranks of an expert join their rows: F T k h e gathered, and scattered on the way back.
    let check = |mesh, spread: [usize; 2]| {
        let plan = mixtral(mesh, spread);
        let tokens = 1024 / mesh[0] as u64;
        let copies = tokens * 2 * 4096 * 2;
        let mut list = Vec::new();
        if spread[0] > 1 {
            list.push((Axis::Expert, AllToAll, copies, 2));
        }
        if spread[1] > 1 {
            let rows = copies * spread[1] as u64;
            list.push((Axis::ExpertTensor, AllGather, rows, 1));
            list.push((Axis::ExpertTensor, ReduceScatter, rows, 1));
        }
        for pass in [Pass::Forward, Pass::Backward] {
            assert_eq!(sent(&plan, pass), expected(&list), "{mesh:?} {spread:?} {pass:?}");
        }
        assert_eq!(AllToAll.bus_factor(spread[0]), (spread[0] as f64 - 1.0) / spread[0] as f64);
    };
    check([1, 1, 8], [8, 1]);
    check([1, 1, 16], [4, 1]);
    check([1, 1, 8], [4, 2]);
    check([2, 1, 4], [4, 2]);
    check([2, 1, 4], [8, 1]);
    check([2, 1, 4], [2, 4]);
    check([2, 1, 4], [1, 1]);
}

#[test]
fn an_all_gather_carries_every_token_to_every_rank() {
    // E T h e over the expert axis, then F E T h e among the ranks of an expert; reduce-scatters of the same back.
    let check = |mesh, spread: [usize; 2]| {
        let plan = dispatched(&mixtral(mesh, spread), "all-gather");
        let of_axis = 1024 / mesh[0] as u64 * 4096 * 2 * spread[0] as u64;
        let mut list = vec![(Axis::Expert, AllGather, of_axis, 1), (Axis::Expert, ReduceScatter, of_axis, 1)];
        if spread[1] > 1 {
            let all = of_axis * spread[1] as u64;
            list.push((Axis::ExpertTensor, AllGather, all, 1));
            list.push((Axis::ExpertTensor, ReduceScatter, all, 1));
        }
        for pass in [Pass::Forward, Pass::Backward] {
            assert_eq!(sent(&plan, pass), expected(&list), "{mesh:?} {spread:?} {pass:?}");
        }
    };
    check([1, 1, 8], [8, 1]);
    check([1, 1, 8], [2, 2]);
    check([2, 1, 4], [2, 2]);
    check([2, 1, 4], [4, 2]);
}

#[test]
fn by_rank_a_token_goes_to_each_rank_once() {
    // T D h e there and back, then F T D h e among the ranks of an expert. Of 8 experts a token visits 2: on 8 ranks D =
    // 2; on 4 ranks D = 4 (1 - 6/8 · 5/7) = 13/7, rounded up to bytes.
    let check = |spread: [usize; 2], once: u64| {
        let stack = Stack::from_name("megatron-core-2025").unwrap();
        let plan = dispatched(&Plan { stack, ..mixtral([1, 1, 8], spread) }, "by-rank");
        let mut list = vec![(Axis::Expert, AllToAll, once, 2)];
        if spread[1] > 1 {
            let joined = once * spread[1] as u64;
            list.push((Axis::ExpertTensor, AllGather, joined, 1));
            list.push((Axis::ExpertTensor, ReduceScatter, joined, 1));
        }
        for pass in [Pass::Forward, Pass::Backward] {
            assert_eq!(sent(&plan, pass), expected(&list), "{spread:?} {pass:?}");
        }
        let by_kernel = block_ops(&plan, |op| matches!(op.work, Work::Collective { axis: Axis::Expert, .. }));
        for op in by_kernel {
            let Work::Collective { call, .. } = op.work else { unreachable!() };
            assert_eq!(call, CollectiveCall::TokenKernel { multiprocessors: 20 });
        }
    };
    check([8, 1], 1024 * 2 * 4096 * 2);
    check([4, 1], 1024 * 4096 * 2 * 13 / 7 + 1);
    check([4, 2], 1024 * 4096 * 2 * 13 / 7 + 1);
    let mut plan = mixtral([1, 1, 8], [8, 1]);
    plan.experts.dispatcher = "by-rank".into();
    let error = plan.check("test").unwrap_err().to_string();
    assert!(error.contains("stack megatron-lm-2022 has no kernels"), "{error}");
}

#[test]
fn a_stack_may_send_tokens_to_experts_in_fewer_bits() {
    // In 8 bits, with a scale of 4 bytes for 128 elements, there; in 16 back: forward's dispatch and backward's combine.
    let plan = mixtral([1, 1, 8], [8, 1]);
    let stack = Stack::from_name("hai-llm").unwrap();
    let plan = checked(Plan { stack, ..plan });
    let elements = 1024 * 2 * 4096;
    let there = elements + elements / 128 * 4;
    for pass in [Pass::Forward, Pass::Backward] {
        let list = [(Axis::Expert, AllToAll, there, 1), (Axis::Expert, AllToAll, 2 * elements, 1)];
        assert_eq!(sent(&plan, pass), expected(&list), "{pass:?}");
    }
}

#[test]
fn without_sequence_parallelism_tensor_ranks_dispatch_the_same_tokens() {
    // All of b s tokens are dispatched over the expert axis, and the tensor ranks' outputs summed once: 2 all-reduces
    // of b s h e in forward and in backward, one for attention and one for the experts.
    let mut plan = mixtral([2, 1, 4], [4, 2]);
    plan.sequence_parallel = false;
    let plan = checked(plan);
    let copies = 1024 * 2 * 4096 * 2;
    for pass in [Pass::Forward, Pass::Backward] {
        assert_eq!(sent(&plan, pass), expected(&[(Axis::Expert, AllToAll, copies, 2)]), "{pass:?}");
        let reduces =
            |op: &Op| matches!(op.work, Work::Collective { axis: Axis::Tensor, .. }) && op.pass == pass;
        let all = block_ops(&plan, reduces);
        assert_eq!(all.len(), 2, "{pass:?}");
        for op in all {
            let Work::Collective { kind, bytes, .. } = op.work else { unreachable!() };
            assert_eq!((kind, bytes.get()), (CollectiveKind::AllReduce, f64::from(1024 * 4096 * 2)));
        }
    }
}

/// DeepSeek-V3 as it was trained: 16 stages, experts over 64 ranks, ZeRO-1, no tensor parallelism
/// (arXiv 2412.19437, section 3.2).
fn deepseek(dispatcher: &str) -> Plan {
    let draft = Draft::of("deepseek-v3", [1, 1, 1]).plan();
    // 61 blocks on 16 ranks: 13 of 4, and the ends with 3.
    let blocks = |stage: usize| if [0, 14, 15].contains(&stage) { 3 } else { 4 };
    let mut plan = Plan {
        micro_batch: 1,
        data_sharding: "zero1".into(),
        cluster: Cluster::from_name("deepseek-v3").unwrap(),
        stages: (0..16).map(|stage| StageBlocks(vec![draft.stages[0].0[0]; blocks(stage)])).collect(),
        mesh: Mesh { expert: 64, ..Mesh::new(1, 16, 128) },
        ..draft
    };
    plan.stack = Stack::from_name("megatron-core").unwrap();
    plan.job.sequence = 4096;
    plan.job.global_batch = 15_360;
    plan.job.precision = Precision::Bf16;
    plan.experts.dispatcher = dispatcher.into();
    plan.mesh.expert_inner = if dispatcher == "by-node" { 8 } else { 1 };
    checked(plan)
}

fn mixture(plan: &Plan) -> &Experts {
    let mut mixtures = plan.model.blocks.iter().filter_map(|run| match &run.block.mlp {
        Mlp::Experts(experts) => Some(experts),
        Mlp::Dense(_) => None,
    });
    mixtures.next().unwrap()
}

#[test]
fn a_rank_holds_its_experts_and_its_part_of_the_rest() {
    // Weights are 2 bytes a parameter and gradients 4 (Megatron); optimizer state is 12 over the ranks that hold the same.
    let check = |plan: &Plan, stage: usize, dense: u64, routed: u64| {
        let memory = plan_memory(plan)[stage];
        let copies = plan.mesh.weight_copies() as f64;
        let expert_copies = (plan.mesh.stage_ranks() / plan.mesh.expert / plan.mesh.expert_tensor()) as f64;
        let case = format!("{} stage {stage}", plan.model.name);
        assert_eq!(memory.weights.get(), 2.0 * (dense + routed) as f64, "{case}");
        assert_eq!(memory.gradients.get(), 4.0 * (dense + routed) as f64, "{case}");
        let optimizer = 12.0 / copies * dense as f64 + 12.0 / expert_copies * routed as f64;
        assert!((memory.optimizer.get() - optimizer).abs() < 1.0, "{case}");
    };
    // DeepSeek-V3, a stage of 4 blocks with experts: latent attention 7168 · 1536 + 1536 + 1536 · 128 · 192 (queries),
    // 7168 · 576 + 512 + 512 · 128 · 256 (keys and values), 128 · 128 · 7168 (output) = 187,107,328; norms 2 · 7168;
    // router 256 · 7168 + 256; shared expert 3 · 7168 · 2048; of the routed ones 256/64 = 4 of 3 · 7168 · 2048.
    let expert = 3 * 7168 * 2048u64;
    let dense = 187_107_328 + 2 * 7168 + 256 * 7168 + 256 + expert;
    let plan = deepseek("all-to-all");
    check(&plan, 5, 4 * dense, 4 * 4 * expert);
    // Mixtral, one stage of 2 blocks, embedding and head on top: attention 4096 · (4096 + 2 · 1024) + 4096², norms,
    // router 8 · 4096, 8/E of 3 · 4096 · 14336 over F.
    let expert = 3 * 4096 * 14_336u64;
    for [e, f] in [[8, 1], [4, 2], [2, 1], [1, 8]] {
        let plan = mixtral([1, 1, 8], [e, f]);
        let block = 4096 * (4096 + 2048) + 4096 * 4096 + 2 * 4096 + 8 * 4096;
        let ends = 2 * 32_000 * 4096 + 4096;
        check(&plan, 0, 2 * block + ends, 2 * (8 / e as u64) * expert / f as u64);
    }
}

#[test]
fn gradients_of_experts_are_summed_over_the_ranks_that_hold_the_same() {
    // ZeRO-1: each gradient is reduce-scattered once a step, each weight gathered once, dense ones over the data axis
    // and experts over the ranks with the same.
    let plan = mixtral([1, 1, 8], [4, 1]);
    let program = lower(&plan);
    let mut sums: BTreeMap<(&str, &str), f64> = BTreeMap::new();
    for call in &program.ranks[0].calls {
        for op in &program.segments[call.segment].ops {
            if let Work::Collective { kind, axis: axis @ (Axis::Data | Axis::ExpertData), bytes, .. } =
                op.work
                && bytes.get() != 4.0
            {
                *sums.entry((axis.name(), kind.name())).or_default() += bytes.get();
            }
        }
    }
    let routed = 2.0 * 2.0 * (3 * 4096 * 14_336) as f64;
    let dense = plan_memory(&plan)[0].weights.get() / 2.0 - routed;
    let list = [
        (("data", "reduce-scatter"), 4.0 * dense),
        (("data", "all-gather"), 2.0 * dense),
        (("expert-data", "reduce-scatter"), 4.0 * routed),
        (("expert-data", "all-gather"), 2.0 * routed),
    ];
    assert_eq!(sums, list.into_iter().collect());
}

/// Plans that differ in how experts are spread and reached.
fn grid() -> Vec<Plan> {
    let by_node = |mut plan: Plan, inner| {
        plan.mesh.expert_inner = inner;
        dispatched(&plan, "by-node")
    };
    let zipf = Routing { load: Load::Zipf { exponent: 0.6, seed: 5 }, ..Routing::default() };
    let sentence = Routing { gate: Gate::Sentence, capacity_factor: Some(1.25), ..Routing::default() };
    let mut four = Draft { blocks: 2, gpus_per_node: 4, ..Draft::of("mixtral-8x7b", [1, 2, 8]) }.plan();
    four.mesh.expert = 8;
    vec![
        mixtral([1, 1, 8], [8, 1]),
        mixtral([1, 2, 8], [4, 2]),
        mixtral([2, 1, 4], [8, 1]),
        mixtral([4, 2, 2], [2, 4]),
        mixtral([2, 2, 4], [2, 1]),
        dispatched(&mixtral([2, 1, 4], [2, 2]), "all-gather"),
        dispatched(&mixtral([1, 2, 16], [8, 1]), "all-gather"),
        routed(&mixtral([1, 2, 8], [4, 1]), zipf),
        routed(&mixtral([2, 1, 8], [4, 2]), sentence),
        by_node(mixtral([1, 1, 16], [8, 1]), 2),
        by_node(four.clone(), 4),
        checked(four),
    ]
}

#[test]
fn memory_in_closed_form_is_the_simulated_peak() {
    for plan in grid() {
        let timeline = simulate(&lower(&plan), &ClusterCosts::new(&plan.cluster), Detail::Ops).unwrap();
        let closed = plan_memory(&plan);
        for rank in Report::new(&timeline).ranks {
            let (closed, peak) = (closed[rank.pipeline_rank], rank.memory.peak);
            let case = format!("{:?} {:?}: {} for {peak}", plan.mesh, plan.experts, closed.total());
            assert!(closed.total().get() >= peak.get() - 5.0, "{case}");
            assert!(closed.total() <= 1.05 * peak, "{case}");
            let activations = rank.memory.kinds[MemoryKind::Activations as usize].peak;
            assert!((closed.activations - activations).get().abs() < 1.0, "{case}");
        }
    }
}

#[test]
fn one_rank_speaks_for_its_class() {
    for plan in grid() {
        let costs = ClusterCosts::new(&plan.cluster);
        let time = |program| simulate(&program, &costs, Detail::Ops).unwrap().duration;
        let case = format!("{:?} {:?}", plan.mesh, plan.experts);
        assert_eq!(time(lower(&plan)), time(lower_every_rank(&plan)), "{case}");
    }
}

/// Rows of all products of the experts' first matrices.
fn rows(plan: &Plan) -> usize {
    let first = |op: &Op| op.module == "expert fc1" && op.pass == Pass::Forward;
    let rows = block_ops(plan, first).into_iter().map(|op| match op.work {
        Work::Compute(Kernel::Gemm { count, m, .. }) => count * m,
        other => panic!("{other:?}"),
    });
    rows.sum()
}

fn with_one_expert_per_token(mut plan: Plan) -> Plan {
    for run in &mut plan.model.blocks {
        if let Mlp::Experts(experts) = &mut run.block.mlp {
            experts.per_token = 1;
        }
    }
    plan
}

fn trace(tokens: impl Fn(usize) -> u64) -> Load {
    let rows = (0..2).flat_map(|layer| (0..8).map(move |expert| (layer, expert)));
    let rows = rows.map(|(layer, expert)| format!("{layer},{expert},{}\n", tokens(expert)));
    Load::from_csv(&format!("layer,expert,tokens\n{}", rows.collect::<String>()), "trace.csv").unwrap()
}

#[test]
fn uneven_loads_are_as_slow_as_their_busiest_rank() {
    let plan = with_one_expert_per_token(mixtral([1, 1, 8], [4, 1]));
    let with =
        |load: Load, capacity_factor| routed(&plan, Routing { load, capacity_factor, ..Routing::default() });
    let time = |plan: &Plan| step_time(&lower(plan), &ClusterCosts::new(&plan.cluster)).unwrap();
    // A balanced trace is no imbalance: the same program.
    let balanced = with(trace(|_| 77), None);
    assert_eq!(lower(&balanced), lower(&plan));
    assert_eq!(rows(&plan), 1024);
    // All tokens on one expert: E times the rows, and as many bytes for its rank.
    let one = with(trace(|expert| if expert == 3 { 1000 } else { 0 }), None);
    assert_eq!(rows(&one), 4 * 1024);
    let exchanged = |plan: &Plan| sent(plan, Pass::Forward);
    assert_eq!(exchanged(&one), expected(&[(Axis::Expert, AllToAll, 4 * 1024 * 4096 * 2, 2)]));
    assert!(time(&one) > time(&plan));
    // Experts 0 and 1 are on rank 0, with 3/16 + 5/16 of the tokens: half of 4 · 1024.
    let half = with(trace(|expert| [3, 5, 1, 1, 1, 1, 2, 2][expert]), None);
    assert_eq!(rows(&half), 2 * 1024);
    // Dropping: expert 1 has 2.5 times the mean and takes 1.25 of it, so does expert 0 with 1.5: 1.25 · 1024 rows.
    let dropping = with(trace(|expert| [3, 5, 1, 1, 1, 1, 2, 2][expert]), Some(1.25));
    assert_eq!(rows(&dropping), 1280);
    assert!(time(&dropping) < time(&half));
    // All on one of two experts of a rank, each of which takes the mean: half of it is idle.
    assert_eq!(rows(&with(trace(|expert| u64::from(expert == 3)), Some(1.0))), 512);
    // Between balanced and all on one, and the same each time.
    for load in [Load::Zipf { exponent: 1.0, seed: 1 }, Load::LogNormal { sigma: 0.5, seed: 1 }] {
        let drawn = with(load.clone(), None);
        assert!((1025..4096).contains(&rows(&drawn)), "{load:?}: {}", rows(&drawn));
        assert_eq!(lower(&drawn), lower(&with(load, None)));
    }
}

#[test]
fn drawn_loads_have_the_shape_of_their_distribution() {
    let plan = mixtral([1, 1, 8], [8, 1]);
    let experts = Experts { count: 4096, ..mixture(&plan).clone() };
    let sum = |list: &[f64]| list.iter().sum::<f64>();
    // Zipf: the i-th most visited has i^−1/2 / Σ of it; below count / k = 2048 times the mean nothing is cut.
    let zipf = Load::Zipf { exponent: 0.5, seed: 3 };
    let drawn = zipf.multiples(&experts, 1);
    let mut sorted = drawn.clone();
    sorted.sort_by(|a, b| b.total_cmp(a));
    assert!((sum(&drawn) - 4096.0).abs() < 1e-6);
    for place in [2usize, 9, 100, 4096] {
        let ratio = sorted[0] / sorted[place - 1];
        assert!((ratio - (place as f64).sqrt()).abs() < 1e-9, "place {place}: {ratio}");
    }
    assert_ne!(drawn, sorted);
    assert_ne!(drawn, zipf.multiples(&experts, 2), "layers differ");
    assert_ne!(drawn, Load::Zipf { exponent: 0.5, seed: 4 }.multiples(&experts, 1), "seeds differ");
    // Log-normal: the deviation of the logarithms of 4096 draws is sigma within a few parts in a hundred.
    let drawn = Load::LogNormal { sigma: 0.7, seed: 3 }.multiples(&experts, 1);
    let logs: Vec<f64> = drawn.iter().map(|multiple| multiple.ln()).collect();
    let mean = sum(&logs) / 4096.0;
    let deviation = (logs.iter().map(|log| (log - mean).powi(2)).sum::<f64>() / 4096.0).sqrt();
    assert!((deviation - 0.7).abs() < 0.03, "{deviation}");
    // A token visits an expert once: of 8 experts and k = 2 none has more than 4 times the mean.
    let steep = Load::Zipf { exponent: 20.0, seed: 3 }.multiples(mixture(&plan), 0);
    assert!(steep.iter().all(|multiple| *multiple <= 4.0 + 1e-9), "{steep:?}");
    assert!((sum(&steep) - 8.0).abs() < 1e-6);
}

#[test]
fn a_gate_by_sentence_sends_complete_sentences() {
    let by_sentence =
        |plan: &Plan| rows(&routed(plan, Routing { gate: Gate::Sentence, ..Routing::default() }));
    // 8 ranks, one sentence of 1024 tokens each, k = 2: 16 visits to 8 ranks are two sentences each.
    assert_eq!(by_sentence(&mixtral([1, 1, 8], [8, 1])), 2 * 1024);
    // k = 1 and 4 tensor ranks that share a sentence: 2 sentences for 8 ranks, so that some rank has a complete one.
    let plan = with_one_expert_per_token(mixtral([4, 1, 2], [8, 1]));
    assert_eq!((rows(&plan), by_sentence(&plan)), (256, 1024));
    // The router sees one mean for each sentence.
    let plan = mixtral([1, 1, 8], [8, 1]);
    let sentence = routed(&plan, Routing { gate: Gate::Sentence, ..Routing::default() });
    let router = |plan: &Plan| match block_ops(plan, |op| op.module == "router")[0].work {
        Work::Compute(Kernel::Gemm { m, .. }) => m,
        other => panic!("{other:?}"),
    };
    assert_eq!((router(&plan), router(&sentence)), (1024, 1));
}

#[test]
fn a_token_goes_to_each_node_once() {
    // 256 experts on 8 nodes of 32, k = 8. All as likely: 8 (1 − C(224, 8)/C(256, 8)). At most 4 nodes: those hold 128,
    // and each of the 4 is missed with C(96, 8)/C(128, 8).
    let missed = |others: f64, all: f64| {
        (0..8).map(|i| (others - f64::from(i)) / (all - f64::from(i))).product::<f64>()
    };
    let plan = deepseek("by-node");
    let limited = mixture(&plan);
    assert_eq!(limited.group_limit, Some(GroupLimit { groups: 8, per_token: 4 }));
    let free = Experts { group_limit: None, ..limited.clone() };
    let four = 4.0 * (1.0 - missed(96.0, 128.0));
    let check = |experts: &Experts, nodes, expected: f64| {
        let found = nodes_of_a_token(experts, nodes);
        assert!((found - expected).abs() < 1e-12, "{nodes} nodes: {found} for {expected}");
    };
    check(&free, 8, 8.0 * (1.0 - missed(224.0, 256.0)));
    check(limited, 8, four);
    check(limited, 1, 1.0);
    // Two groups to a node: 4 of 8 groups miss a node of theirs with C(6, 4)/C(8, 4) = 15/70, have one with 40/70 and
    // both with 15/70.
    let both = 40.0 / 70.0 * (1.0 - missed(96.0, 128.0)) + 15.0 / 70.0 * (1.0 - missed(64.0, 128.0));
    check(limited, 4, 4.0 * both);
    // Between nodes T D h e bytes, of which 7/8 leave; inside T k h e. Without nodes 56/64 of T k h e leaves.
    let token = 7168 * 2;
    let away = (4096.0 * four * f64::from(token)).ceil() as u64;
    let inside = 4096 * 8 * token as u64;
    let list = [(Axis::ExpertOuter, AllToAll, away, 2), (Axis::ExpertInner, AllToAll, inside, 2)];
    // Block 1 of the first stage is dense: the limit is looked at on a plan whose first stage has experts.
    let mut short = plan.clone();
    short.model.blocks.remove(0);
    short.model.blocks[0].count = 61;
    let short = checked(short);
    for pass in [Pass::Forward, Pass::Backward] {
        assert_eq!(sent(&short, pass), expected(&list), "{pass:?}");
    }
    let nics = |bytes: u64, away: f64| bytes as f64 * away;
    let ratio = nics(away, 7.0 / 8.0) / nics(inside, 56.0 / 64.0);
    assert!((ratio - four / 8.0).abs() < 1e-6 && ratio < 0.5, "{ratio}");
}

#[test]
fn deepseek_v3_takes_days_not_weeks_of_its_cluster() {
    // Published: 2.664 M H800 hours of pre-training on 14.8 T tokens (arXiv 2412.19437, table 1), in FP8 with DualPipe,
    // which hides most of the exchanges. 1F1B hides none of them: the forecast must be longer, and of the same order.
    let published = 2.664e6;
    let hours = |plan: &Plan| {
        let step = step_time(&lower(plan), &ClusterCosts::new(&plan.cluster)).unwrap();
        let tokens = (plan.job.global_batch * plan.job.sequence) as f64;
        let steps = 14.8e12 / tokens;
        (step.0 as f64 * 1e-12, step.0 as f64 * 1e-12 * steps * 2048.0 / 3600.0)
    };
    let mut shortest = f64::INFINITY;
    let runs =
        [(Precision::Bf16, "megatron-core"), (Precision::Fp8, "megatron-core"), (Precision::Fp8, "hai-llm")];
    // Neither stack has kernels that send by rank.
    for dispatcher in DISPATCHERS.iter().filter(|dispatcher| dispatcher.name() != "by-rank") {
        for (precision, stack) in runs {
            let mut plan = deepseek(dispatcher.name());
            plan.job.precision = precision;
            plan.stack = Stack::from_name(stack).unwrap();
            let plan = checked(plan);
            let (step, hours) = hours(&plan);
            let case = format!("{} in {precision} on {stack}", dispatcher.name());
            println!("{case}: {step:.1} s a step, {:.2} M hours", hours / 1e6);
            assert!(hours > published, "{case}: {hours}");
            shortest = shortest.min(hours);
        }
    }
    let memory = plan_memory(&deepseek("by-node"));
    println!(
        "without recompute: {} on the first rank, {} on the last",
        memory[0].total(),
        memory[15].total()
    );
    assert!(shortest < 3.0 * published, "{shortest}");
}

#[test]
fn impossible_experts_are_refused() {
    let check = |change: &dyn Fn(&mut Plan), message: &str| {
        let mut plan = mixtral([2, 1, 4], [4, 2]);
        change(&mut plan);
        assert_eq!(plan.check("plan.toml").unwrap_err().to_string(), format!("plan.toml: {message}"));
    };
    let dense = |mesh| Draft { blocks: 2, ..Draft::of("llama-7b", mesh) }.plan().model;
    let model = dense([2, 1, 4]);
    check(&|plan| plan.model = model.clone(), "`mesh.expert` is 4; model llama-7b has no experts");
    check(
        &|plan| {
            plan.model = model.clone();
            plan.mesh.expert = 1;
        },
        "`mesh.expert_tensor` is 2; model llama-7b has no experts",
    );
    check(
        &|plan| {
            plan.model = model.clone();
            plan.mesh = Mesh::new(2, 1, 4);
            plan.experts.gate = Gate::Sentence;
        },
        "`experts` is a table; model llama-7b has no experts",
    );
    check(&|plan| plan.mesh.expert = 3, "`mesh.expert` is 3; 6 must divide the ranks of a stage = 8");
    check(
        &|plan| {
            plan.mesh = Mesh { expert: 16, ..Mesh::new(2, 1, 8) };
            plan.mesh.expert_tensor = Some(1);
            plan.job.global_batch = 32;
            plan.cluster = Cluster::from_name("dgx-a100:2").unwrap();
        },
        "`mesh.expert` is 16; it must divide the 8 experts of a block",
    );
    check(
        &|plan| {
            plan.sequence_parallel = false;
            plan.mesh.expert_tensor = Some(1);
        },
        "`mesh.expert_tensor` is 1; without sequence_parallel it must be mesh.tensor = 2: those ranks have the same tokens",
    );
    check(
        &|plan| plan.experts.dispatcher = "all2all".into(),
        "`experts.dispatcher` is `all2all`; known are all-to-all, all-gather, by-node, by-rank",
    );
    check(
        &|plan| plan.mesh.expert_inner = 2,
        "`mesh.expert_inner` is 2; only dispatcher by-node tells nodes apart",
    );
    check(&|plan| plan.mesh.expert_inner = 3, "`mesh.expert_inner` is 3; 3 must divide mesh.expert = 4");
    check(
        &|plan| plan.experts.capacity_factor = Some(0.0),
        "`experts.capacity_factor` is 0; it must be above 0",
    );
    check(
        &|plan| plan.experts.load = Load::Zipf { exponent: -1.0, seed: 0 },
        "`experts.load.exponent` is -1; it must be from 0 to 20",
    );
    check(
        &|plan| plan.experts.load = Load::from_csv("layer,expert,tokens\n0,7,1\n", "").unwrap(),
        "`experts.load.layers, block 0` is 1 tokens of an expert; each token visits 2 experts, so that none has more \
         than 1/2 of all visits, 1",
    );
    check(
        &|plan| plan.experts.load = Load::from_csv("layer,expert,tokens\n0,1,1\n", "").unwrap(),
        "`experts.load.layers, block 0` is of 2 experts; the block has 8",
    );
    check(
        &|plan| plan.experts.load = Load::Trace { layers: Vec::new() },
        "`experts.load.layers, block 0` is missing; a trace has each block of experts",
    );
}

#[test]
fn routing_is_written_and_read_back() {
    let plan = mixtral([1, 1, 8], [8, 1]);
    assert!(!plan.to_toml().contains("[experts]"), "defaults are not written");
    for load in [
        Load::Balanced,
        Load::Zipf { exponent: 0.5, seed: 7 },
        Load::LogNormal { sigma: 0.5, seed: 7 },
        trace(|expert| expert as u64 + 10),
    ] {
        let routing =
            Routing { load, capacity_factor: Some(1.5), gate: Gate::Sentence, ..Routing::default() };
        let plan = routed(&plan, routing);
        assert_eq!(Plan::from_toml(&plan.to_toml(), "plan.toml").unwrap(), plan, "{}", plan.to_toml());
    }
    for (text, message) in [
        ("layer,expert,tokens\n0,x,1\n", "trace.csv: CSV deserialize error"),
        ("layer,expert\n0,1\n", "trace.csv: CSV deserialize error"),
        ("layer,expert,tokens\n0,1000000,1\n", "trace.csv: `expert` is 1000000; it must be less than 100000"),
    ] {
        let error = Load::from_csv(text, "trace.csv").unwrap_err().to_string();
        assert!(error.starts_with(message), "{error}");
    }
}
