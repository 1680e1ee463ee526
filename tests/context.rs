//! Sequences shared by the ranks of the context axis: traffic, memory and time of each scheme.
//!
//! b sequences of s tokens, c ranks, u of them inner ones and r = c/u outer, t tensor ranks; h, k and v the widths of all
//! query, key and value heads on a tensor rank, e = 2 bytes of an activation.

use crate::common::Draft;
use std::collections::BTreeMap;
use trainwright_lower::memory::plan_memory;
use trainwright_lower::{lower, lower_every_rank};
use trainwright_sim::costs::ClusterCosts;
use trainwright_sim::{Detail, hardware_flops, simulate, step_time};
use trainwright_spec::collective::CollectiveKind::{
    self, AllGather, AllReduce, AllToAll, ReduceScatter, SendReceive,
};
use trainwright_spec::context::CONTEXT_SCHEMES;
use trainwright_spec::model::Mask;
use trainwright_spec::plan::{Plan, Recompute};
use trainwright_spec::program::{Axis, MemoryKind, Op, Pass, Work};
use trainwright_spec::units::Bytes;
use trainwright_timeline::report::Report;

/// Axes of the context.
const CONTEXT: [Axis; 3] = [Axis::Context, Axis::ContextInner, Axis::ContextOuter];

/// Bytes that a rank sends over the axes of the context by kind of collective, among `ops`.
///
/// Of n bytes among p ranks: n for a send-receive, (p − 1)/p n for an all-gather, a reduce-scatter and an all-to-all, twice that
/// for an all-reduce.
fn sent<'a>(plan: &Plan, ops: impl Iterator<Item = &'a Op>) -> BTreeMap<CollectiveKind, f64> {
    let mut sums = BTreeMap::new();
    for op in ops {
        if let Work::Collective { kind, axis, bytes, .. } = op.work
            && CONTEXT.contains(&axis)
        {
            let ranks = plan.mesh.group(0, axis).len();
            *sums.entry(kind).or_default() += kind.bus_factor(ranks) * bytes.get();
        }
    }
    sums
}

#[test]
fn volumes_are_those_of_the_papers() {
    // Ring attention (2310.01889): (c − 1) messages of the keys and values of s/c tokens; in backward also their gradients.
    // All-gather (2407.21783): both gathered, in backward again, and their gradients scattered.
    // Ulysses (2309.14509): all-to-all of q, k, v and o of s/c tokens, (c − 1)/c of which leave the rank.
    // Hybrid: the same among u, a ring of s/r tokens of 1/u of the heads among r.
    // Ring Self-Attention (2105.13120): a ring of keys and one of values; in backward the same and two all-reduces of
    // whole tensors: with k = v = h 2 and 6, together 8 (c − 1)/c b s h, as tensor parallelism.
    type Sums = Vec<(CollectiveKind, f64)>;
    let check = |draft: &Draft, forward: Sums, backward: Sums| {
        let plan = draft.plan();
        let program = lower(&plan);
        let rank = &program.ranks[0];
        let ops = |pass| {
            let calls = rank.calls.iter().flat_map(|call| &program.segments[call.segment].ops);
            calls.filter(move |op: &&Op| op.layer == Some(1) && op.pass == pass)
        };
        let bytes = |sums: Sums| -> BTreeMap<CollectiveKind, f64> {
            let of_step = |(kind, elements)| (kind, 2.0 * draft.microbatches as f64 * elements);
            sums.into_iter().filter(|(_, elements)| *elements > 0.0).map(of_step).collect()
        };
        let case = format!("{} {:?} {:?}", draft.context_scheme, draft.context, draft.mesh);
        assert_eq!(sent(&plan, ops(Pass::Forward)), bytes(forward.clone()), "{case} forward");
        assert_eq!(sent(&plan, ops(Pass::Backward)), bytes(backward), "{case} backward");
        let again = if draft.recompute == Recompute::None { Vec::new() } else { forward };
        assert_eq!(sent(&plan, ops(Pass::Recompute)), bytes(again), "{case} recompute");
    };
    for (model, heads, kv_heads, d) in [("llama-7b", 32, 32, 128), ("llama-3-8b", 32, 8, 128)] {
        for (tensor, c, u) in [(1, 2, 1), (2, 4, 2), (1, 8, 2), (2, 8, 4), (1, 4, 4)] {
            for (b, s, recompute) in
                [(1, 4096, Recompute::None), (2, 8192, Recompute::Full), (3, 1024, Recompute::Selective)]
            {
                let draft = |context_scheme, inner| Draft {
                    blocks: 2,
                    sequence: s,
                    micro_batch: b,
                    microbatches: 3,
                    stack: "megatron-core",
                    recompute,
                    context: [c, inner],
                    context_scheme,
                    ..Draft::of(model, [tensor, 1, 1])
                };
                let full_width = |heads: usize| (b * s * heads * d / tensor) as f64;
                let [h, k, v] = [heads, kv_heads, kv_heads].map(full_width);
                let part = |ranks: usize| (ranks as f64 - 1.0) / ranks as f64;
                let all = part(c) * (k + v);
                check(&draft("ring", 1), vec![(SendReceive, all)], vec![(SendReceive, 2.0 * all)]);
                check(
                    &draft("all-gather", 1),
                    vec![(AllGather, all)],
                    vec![(AllGather, all), (ReduceScatter, all)],
                );
                check(
                    &draft("ring-self-attention", 1),
                    vec![(SendReceive, all)],
                    vec![(SendReceive, all), (AllReduce, 2.0 * all)],
                );
                // A head is sent to several ranks where there are fewer than ranks: never here, 8 / 2 are enough for 4.
                let exchanged = |ranks| part(ranks) * (2.0 * h + k + v) / c as f64;
                if kv_heads / tensor >= c {
                    check(
                        &draft("ulysses", 1),
                        vec![(AllToAll, exchanged(c))],
                        vec![(AllToAll, exchanged(c))],
                    );
                }
                let outer = part(c / u) * (k + v) / u as f64;
                check(
                    &draft("hybrid", u),
                    vec![(AllToAll, exchanged(u)), (SendReceive, outer)],
                    vec![(AllToAll, exchanged(u)), (SendReceive, 2.0 * outer)],
                );
                check(
                    &draft("hybrid-all-gather", u),
                    vec![(AllToAll, exchanged(u)), (AllGather, outer)],
                    vec![(AllToAll, exchanged(u)), (AllGather, outer), (ReduceScatter, outer)],
                );
            }
        }
    }
    // Latent attention sends its heads as they are after the up-projections: keys 192 wide, values 128.
    let latent = |context_scheme| Draft {
        blocks: 2,
        sequence: 4096,
        stack: "megatron-core",
        context: [4, 1],
        context_scheme,
        ..Draft::of("deepseek-v2", [8, 1, 1])
    };
    let token = |widths: usize| (4096 * 128 / 8 * widths) as f64 * 3.0 / 4.0;
    let ring = token(192 + 128);
    check(&latent("ring"), vec![(SendReceive, ring)], vec![(SendReceive, 2.0 * ring)]);
    let exchanged = token(192 + 192 + 128 + 128) / 4.0;
    check(&latent("ulysses"), vec![(AllToAll, exchanged)], vec![(AllToAll, exchanged)]);
    // With fewer key-value heads than ranks, each is sent to several: as if there were as many heads as ranks.
    let few = Draft {
        blocks: 2,
        sequence: 4096,
        stack: "megatron-core",
        context: [8, 1],
        context_scheme: "ulysses",
        ..Draft::of("llama-3-8b", [2, 1, 1])
    };
    let sum = 7.0 / 8.0 * (4096 * 128) as f64 / 8.0 * (2.0 * 16.0 + 8.0 + 8.0);
    check(&few, vec![(AllToAll, sum)], vec![(AllToAll, sum)]);
}

/// Every scheme on real models, with all that changes what is held or who waits for whom.
fn grid() -> Vec<Draft> {
    let mut drafts = Vec::new();
    for scheme in CONTEXT_SCHEMES.iter().map(|scheme| scheme.name()) {
        let inner = if scheme.starts_with("hybrid") { 2 } else { 1 };
        for stack in ["megatron-core", "pytorch-eager"] {
            for (mesh, gpus_per_node, ranks) in
                [([1, 1, 1], 8, 4), ([2, 2, 2], 8, 4), ([1, 2, 1], 4, 8), ([2, 2, 1], 2, 4)]
            {
                for recompute in Recompute::ALL {
                    let draft = Draft {
                        blocks: 4,
                        sequence: 4096,
                        stack,
                        recompute,
                        gpus_per_node,
                        context: [ranks, inner],
                        context_scheme: scheme,
                        microbatches: 4,
                        sequence_parallel: mesh[0] > 1,
                        data_sharding: if mesh[1] > 1 { "zero1" } else { "none" },
                        ..Draft::of("llama-3-8b", mesh)
                    };
                    // A stack that stores the scores has no ring: that refusal is tested with the schemes.
                    drafts.extend(draft.try_plan().is_ok().then_some(draft));
                }
            }
        }
    }
    drafts
}

fn case(draft: &Draft) -> String {
    let Draft { context_scheme, context, mesh, stack, recompute, .. } = draft;
    format!("{context_scheme} {context:?} of {mesh:?} on {stack}, recompute {}", recompute.name())
}

#[test]
fn the_closed_form_of_memory_is_the_simulated_peak() {
    let drafts = grid();
    assert!(drafts.len() > 100, "{}", drafts.len());
    for draft in drafts {
        let (plan, case) = (draft.plan(), case(&draft));
        let costs = ClusterCosts::new(&plan.cluster);
        let closed = plan_memory(&plan);
        for rank in Report::new(&simulate(&lower(&plan), &costs, Detail::Ops).unwrap()).ranks {
            let (closed, peak) = (closed[rank.pipeline_rank].total(), rank.memory.peak);
            assert!(closed >= peak - Bytes::new(MemoryKind::ALL.len() as f64), "{case}: {closed} for {peak}");
            assert!(closed <= 1.05 * peak, "{case}: {closed} for {peak}");
        }
    }
}

#[test]
fn one_rank_speaks_for_all() {
    for draft in grid() {
        let (plan, case) = (draft.plan(), case(&draft));
        let costs = ClusterCosts::new(&plan.cluster);
        let (classes, all) = (lower(&plan), lower_every_rank(&plan));
        assert!(classes.ranks.len() < all.ranks.len(), "{case}");
        let time = |program| simulate(program, &costs, Detail::Ops).unwrap().duration;
        // Each change of the ops that overlap an op rounds its end to a picosecond, on every member of a collective.
        let (of_classes, of_all) = (time(&classes), time(&all));
        assert!(of_classes.0.abs_diff(of_all.0) <= 1000, "{case}: {of_classes} for {of_all}");
        assert_eq!(hardware_flops(&classes), hardware_flops(&all), "{case}");
        // The fast path slows all of a joined op.
        let (by_op, by_call) = (time(&classes), step_time(&classes, &costs).unwrap());
        assert!(by_call.0.abs_diff(by_op.0) as f64 <= 0.01 * by_op.0 as f64, "{case}: {by_call} for {by_op}");
    }
}

#[test]
fn activations_are_those_of_one_rank_divided_by_the_context() {
    // A token's activations are kept on one rank only. With Ulysses also a second copy of the heads' outputs, e h a token.
    // GPT-2 with 12 heads and without pipeline; scores, where they are stored, have s/c × s: divided too.
    for stack in ["megatron-core", "pytorch-eager"] {
        for scheme in CONTEXT_SCHEMES.iter().map(|scheme| scheme.name()) {
            let draft = |context, context_scheme| Draft {
                stack,
                context,
                context_scheme,
                ..Draft::of("gpt2", [1, 1, 1])
            };
            let kept = |draft: &Draft| plan_memory(&draft.plan())[0].activations;
            let unshared = kept(&draft([1, 1], "ring"));
            for c in [2, 4] {
                let inner = if scheme.starts_with("hybrid") { 2 } else { 1 };
                let shared = draft([c, inner], scheme);
                if shared.try_plan().is_err() {
                    continue;
                }
                let tokens = 1024.0 / c as f64;
                let exchanges = scheme == "ulysses" || scheme.starts_with("hybrid");
                let copy = if exchanges { 12.0 * 2.0 * 768.0 * tokens } else { 0.0 };
                // Statistics of a fused kernel against stored scores.
                let scores = if scheme == "ring-self-attention" && stack == "megatron-core" {
                    12.0 * 12.0 * tokens * (5.0 * 1024.0 - 4.0)
                } else {
                    0.0
                };
                let expected = unshared / c as f64 + Bytes::new(copy + scores);
                assert_eq!(kept(&shared), expected, "{scheme} of {c} on {stack}");
            }
        }
    }
}

#[test]
fn a_rank_does_its_part_of_the_flops() {
    // All schemes do the same products, whoever does them: those of one rank with the full sequence.
    let draft = |context, context_scheme| Draft {
        blocks: 2,
        sequence: 4096,
        stack: "megatron-core",
        context,
        context_scheme,
        ..Draft::of("llama-3-8b", [1, 1, 1])
    };
    let flops = |draft: Draft| hardware_flops(&lower(&draft.plan()));
    let unshared = flops(draft([1, 1], "ring"));
    for scheme in ["ring", "all-gather", "ulysses"] {
        for c in [2, 4, 8] {
            assert_eq!(flops(draft([c, 1], scheme)), unshared, "{scheme} of {c}");
        }
    }
    assert_eq!(flops(draft([8, 2], "hybrid")), unshared);
    assert_eq!(flops(draft([8, 4], "hybrid-all-gather")), unshared);
}

#[test]
fn a_ring_hides_behind_long_parts_of_a_sequence_and_not_behind_short_ones() {
    // A step computes 2 · 2 d (s/c)² / 2 a flops and sends 2 · 2 (s/c) k bytes: hidden if s/c is long enough (2310.01889,
    // section 3.2).
    let exposed = |sequence| {
        let draft = Draft {
            blocks: 2,
            sequence,
            stack: "megatron-core",
            gpus_per_node: 1,
            context: [4, 1],
            ..Draft::of("llama-7b", [1, 1, 1])
        };
        let mut plan = draft.plan();
        plan.cluster.node.nics.as_mut().unwrap().count.value = 1;
        let timeline = simulate(&lower(&plan), &ClusterCosts::new(&plan.cluster), Detail::Ops).unwrap();
        let report = Report::new(&timeline);
        let ring = report.ranks[0].time.communication.iter().find(|one| one.axis == Axis::Context).unwrap();
        ring.exposed.0 as f64 / ring.total.0 as f64
    };
    assert!(exposed(2048) > 0.5, "{}", exposed(2048));
    assert!(exposed(131_072) < 0.1, "{}", exposed(131_072));
}

#[test]
fn impossible_sharing_is_refused_with_key_value_and_allowed_values() {
    let draft = Draft {
        blocks: 2,
        sequence: 4096,
        stack: "megatron-core",
        context: [4, 1],
        ..Draft::of("llama-3-8b", [1, 1, 1])
    };
    let check = |draft: Draft, message: &str| {
        let error = draft.try_plan().unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    };
    check(
        Draft { context_scheme: "rings", ..draft.clone() },
        "`context_scheme` is `rings`; known are ring, all-gather",
    );
    check(Draft { sequence: 4100, ..draft.clone() }, "`mesh.context` is 4; it must divide the sequence");
    check(
        Draft { context: [4, 2], ..draft.clone() },
        "`mesh.context_inner` is 2; context scheme `ring` has 1",
    );
    check(
        Draft { stack: "pytorch-eager", ..draft.clone() },
        "`context_scheme` is `ring`; the stack's attention",
    );
    check(
        Draft { context: [64, 1], context_scheme: "ulysses", ..draft.clone() },
        "`mesh.context` is 64; 64 must divide the 32 query heads",
    );
    let mut window = draft.clone();
    window.model.blocks[0].block.attention.mask = Mask::Window(1024);
    check(window.clone(), "`context_scheme` is `ring`; with a sliding window");
    for context_scheme in ["all-gather", "ulysses"] {
        assert!(Draft { context_scheme, ..window.clone() }.try_plan().is_ok(), "{context_scheme}");
    }
    // An odd sequence is nobody's business where nobody shares it.
    assert!(Draft { sequence: 4099, context: [1, 1], ..draft }.try_plan().is_ok());
}

#[test]
fn a_plan_names_its_scheme_only_if_it_is_not_the_ring() {
    let plan = |context_scheme| {
        Draft { stack: "megatron-core", context_scheme, ..Draft::of("gpt2", [1, 1, 1]) }.plan()
    };
    assert!(!plan("ring").to_toml().contains("context_scheme"));
    for scheme in CONTEXT_SCHEMES {
        let plan = plan(scheme.name());
        assert_eq!(Plan::from_toml(&plan.to_toml(), "plan").unwrap(), plan);
    }
}
