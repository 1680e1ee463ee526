//! Data-parallel schemes: their traffic, memory and overlap, lowered and simulated, against their closed forms.

use crate::common::Draft;
use std::collections::BTreeMap;
use trainwright_lower::memory::{plan_memory, state_per_parameter};
use trainwright_lower::{lower, lower_every_rank};
use trainwright_sim::costs::ClusterCosts;
use trainwright_sim::{Detail, simulate, step_time};
use trainwright_spec::collective::CollectiveKind;
use trainwright_spec::data::{DATA_SCHEMES, DataOptions, Divided, Reduction, Reshard, data_scheme};
use trainwright_spec::optimizer::Rule;
use trainwright_spec::plan::Plan;
use trainwright_spec::program::{Axis, MemoryKind, Program, RankProgram, Stream, Work};
use trainwright_spec::units::{Bytes, Picoseconds};
use trainwright_timeline::report::Report;
use trainwright_timeline::timeline::{Activity, Timeline};

const AXES: [Axis; 3] = [Axis::Data, Axis::Shard, Axis::Replica];

/// Bytes that a rank's collectives on the data axis send by rings in a step, by kind; norms of 4 bytes set aside.
fn sent(program: &Program, rank: &RankProgram) -> BTreeMap<&'static str, Bytes> {
    let mut sums = BTreeMap::new();
    for op in rank.calls.iter().flat_map(|call| &program.segments[call.segment].ops) {
        if let Work::Collective { kind, axis, bytes, .. } = op.work
            && AXES.contains(&axis)
            && op.module != "reduce norm"
        {
            let group = rank.groups[axis as usize].map_or(1, |group| program.groups[group].ranks.len());
            *sums.entry(kind.name()).or_insert(Bytes::ZERO) += kind.bus_factor(group) * bytes;
        }
    }
    sums
}

/// GPT-2 large without an untied head on `data` ranks: 20 blocks of 12 h² + 13 h, (V + S + 2) h.
fn gpt2(data: usize) -> Draft {
    Draft { blocks: 4, microbatches: 3, stack: "pytorch-eager", ..Draft::of("gpt2-large", [1, 1, data]) }
}

fn parameters(draft: &Draft) -> u64 {
    let (h, vocabulary, positions) = (1280, 50_257, 1024);
    draft.blocks as u64 * (12 * h * h + 13 * h) + (vocabulary + positions + 2) * h
}

fn assert_close(found: Bytes, expected: Bytes, case: &str) {
    let error = (found - expected).get().abs();
    assert!(error <= 1e-9 * expected.get(), "{case}: {found}, not {expected}");
}

/// The plans of every scheme with every choice that goes with it, on one pipeline rank.
fn all(draft: &Draft) -> Vec<Draft> {
    let reshards =
        [None, Some(Reshard::AfterForward), Some(Reshard::AfterBackward), Some(Reshard::AfterStep)];
    let reductions = [None, Some(Reduction::EveryMicrobatch), Some(Reduction::LastMicrobatch)];
    let prefetches = [None, Some(0), Some(3)];
    let mut drafts = Vec::new();
    for scheme in DATA_SCHEMES {
        for shard in [None, Some(1), Some(2), Some(4)] {
            for reshard in reshards {
                for reduce in reductions {
                    for prefetch in prefetches {
                        for servers in [None, Some(2)] {
                            let data = DataOptions { reshard, prefetch, reduce, servers };
                            drafts.push(Draft { data_sharding: scheme.name(), shard, data, ..draft.clone() });
                        }
                    }
                }
            }
        }
    }
    drafts.retain(|draft| draft.try_plan().is_ok());
    drafts
}

fn case(plan: &Plan) -> String {
    format!("{} {:?}, shard {:?} of {}", plan.data_sharding, plan.data, plan.mesh.shard, plan.mesh.data)
}

fn timeline(plan: &Plan) -> Timeline {
    simulate(&lower(plan), &ClusterCosts::new(&plan.cluster), Detail::Ops).unwrap()
}

#[test]
fn traffic_follows_the_closed_forms() {
    let mut seen = BTreeMap::new();
    for data in [4, 8] {
        for draft in all(&gpt2(data)) {
            let plan = draft.plan();
            let program = lower(&plan);
            let volume = plan.data_scheme().volume(&plan.step_sizes(parameters(&draft)));
            let sent = sent(&program, &program.ranks[0]);
            let by = |kind: CollectiveKind| sent.get(kind.name()).copied().unwrap_or(Bytes::ZERO);
            assert_close(by(CollectiveKind::AllGather), volume.gathered, &case(&plan));
            assert_close(by(CollectiveKind::ReduceScatter), volume.scattered, &case(&plan));
            assert_close(by(CollectiveKind::AllReduce), volume.reduced, &case(&plan));
            assert_close(by(CollectiveKind::AllToAll), volume.served, &case(&plan));
            *seen.entry(draft.data_sharding).or_insert(0) += 1;
        }
    }
    assert!(DATA_SCHEMES.iter().all(|scheme| seen[scheme.name()] >= 4), "{seen:?}");
    assert!(seen.values().sum::<usize>() > 200, "{seen:?}");
}

#[test]
fn the_volumes_are_those_of_the_papers() {
    // 16-bit gradients and weights, so that Ψ is 2 bytes a parameter; m = 3, d = 4: in units of (d − 1)/d Ψ.
    // DDP 2, or 2 m; ZeRO-1 2; ZeRO-2 m + 1; ZeRO-3 3 m; without resharding 2 m; with no_sync 2 m + 1, 2 if kept.
    let check = |name, data: DataOptions, times: f64| {
        let draft = Draft { data_sharding: name, data, ..gpt2(4) };
        let program = lower(&draft.plan());
        let psi = Bytes::new(2.0 * parameters(&draft) as f64 * 0.75);
        let total: Bytes = sent(&program, &program.ranks[0]).into_values().sum();
        assert_close(total, times * psi, name);
    };
    let (none, every, last) = (None, Some(Reduction::EveryMicrobatch), Some(Reduction::LastMicrobatch));
    let options = |reshard, reduce| DataOptions { reshard, reduce, ..DataOptions::default() };
    check("none", options(None, none), 2.0);
    check("none", options(None, every), 6.0);
    check("zero1", options(None, none), 2.0);
    check("zero2", options(None, none), 4.0);
    check("zero3", options(None, none), 9.0);
    check("fsdp", options(None, none), 9.0);
    check("fsdp", options(None, last), 7.0);
    check("zero2-fsdp", options(None, none), 6.0);
    check("fsdp", options(Some(Reshard::AfterStep), last), 2.0);
}

#[test]
fn state_per_parameter_is_that_of_the_zero_paper() {
    // 16-bit gradients: 16, 4 + 12/d, 2 + 14/d, 16/d; fp32 ones: 18, 6 + 12/d, 2 + 16/d, 18/d. d = 8.
    let check = |name, [half, single]: [f64; 2]| {
        for (stack, expected) in [("pytorch-eager", half), ("megatron-core", single)] {
            let plan = Draft { data_sharding: name, stack, ..gpt2(8) }.plan();
            assert_eq!(
                state_per_parameter(&plan, Axis::Data, Rule::Elements).total(),
                Bytes::new(expected),
                "{name} {stack}"
            );
        }
    };
    check("none", [16.0, 18.0]);
    check("zero1", [4.0 + 12.0 / 8.0, 6.0 + 12.0 / 8.0]);
    check("zero2", [2.0 + 14.0 / 8.0, 2.0 + 16.0 / 8.0]);
    for name in ["zero3", "fsdp", "zero2-fsdp"] {
        check(name, [16.0 / 8.0, 18.0 / 8.0]);
    }
}

/// Plans with pipelines, where weights and gradients of several stages and microbatches are held.
fn pipelines() -> Vec<Draft> {
    let base = Draft { stack: "megatron-core", microbatches: 4, ..Draft::of("gpt2", [2, 2, 2]) };
    let mut drafts = Vec::new();
    for (schedule, virtual_stages) in [("gpipe", 1), ("1f1b", 1), ("interleaved", 2)] {
        for name in ["none", "zero1", "zero2", "zero3", "fsdp"] {
            for reshard in [None, Some(Reshard::AfterStep)] {
                for reduce in [None, Some(Reduction::LastMicrobatch), Some(Reduction::EveryMicrobatch)] {
                    let data = DataOptions { reshard, reduce, ..DataOptions::default() };
                    drafts.push(Draft {
                        schedule,
                        virtual_stages,
                        data_sharding: name,
                        data,
                        ..base.clone()
                    });
                }
            }
        }
    }
    drafts.retain(|draft| draft.try_plan().is_ok());
    assert!(drafts.len() > 30);
    drafts
}

#[test]
fn the_closed_form_of_memory_is_the_simulated_peak() {
    let (mut exact, mut wrong) = (0, Vec::new());
    for draft in all(&gpt2(4)).into_iter().chain(pipelines()) {
        for overlap in [true, false] {
            let mut plan = draft.plan();
            plan.stack.overlap_gradient_reduction = overlap;
            let closed = plan_memory(&plan);
            for rank in Report::new(&timeline(&plan)).ranks {
                let closed = closed[rank.pipeline_rank];
                let weights = closed.weights + closed.gathered;
                let mut check = |what: &str, found: Bytes, least: Bytes, most: Bytes| {
                    if !(least * (1.0 - 1e-9)..=most * (1.0 + 1e-9)).contains(&found) {
                        let case = format!("{}, overlap {overlap}, rank {}", case(&plan), rank.rank);
                        wrong.push(format!("{what} {found} of {least} to {most}: {case}"));
                    }
                };
                let peak = |kind: MemoryKind| rank.memory.kinds[kind as usize].peak;
                let gradients = closed.gradients + closed.unreduced;
                check("gradients", peak(MemoryKind::Gradients), gradients, gradients);
                check("optimizer", peak(MemoryKind::Optimizer), closed.optimizer, closed.optimizer);
                // Units further ahead than one are held only if they come faster than those before are used.
                let certain = plan.prefetch() <= 1;
                let least = |bytes: Bytes, part: f64| if certain { bytes * part } else { Bytes::ZERO };
                check("weights", peak(MemoryKind::Weights), least(weights, 1.0), weights);
                // The report rounds to whole bytes.
                let total = closed.total() + Bytes::new(MemoryKind::ALL.len() as f64);
                // The largest temporary may be held at another time than the rest.
                check("all", rank.memory.peak, least(closed.total(), 1.0 / 1.06), total);
                exact += usize::from(certain);
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {exact}: {:#?}", wrong.len(), &wrong[..wrong.len().min(40)]);
    assert!(exact > 100);
}

#[test]
fn allocations_of_a_step_are_freed() {
    for draft in all(&gpt2(4)).into_iter().chain(pipelines()) {
        let plan = draft.plan();
        let program = lower(&plan);
        let timeline = timeline(&plan);
        for (index, rank) in program.ranks.iter().enumerate() {
            for kind in [MemoryKind::Weights, MemoryKind::Gradients] {
                let changes = timeline
                    .memory
                    .iter()
                    .filter(|change| change.rank as usize == index && change.kind == kind);
                let held: Bytes = changes.map(|change| change.bytes).sum();
                let resident: Bytes =
                    rank.resident.iter().filter(|held| held.kind == kind).map(|held| held.bytes).sum();
                assert!((held - resident).get().abs() < 1.0, "{} {}", case(&plan), kind.name());
            }
        }
    }
}

#[test]
fn one_rank_of_a_class_speaks_for_all() {
    for mut draft in all(&gpt2(8)).into_iter().step_by(5).chain(pipelines().into_iter().step_by(3)) {
        for gpus_per_node in [2, 8] {
            draft.gpus_per_node = gpus_per_node;
            let plan = draft.plan();
            let costs = ClusterCosts::new(&plan.cluster);
            let [classes, every] = [lower(&plan), lower_every_rank(&plan)];
            let time = |program, detail| simulate(program, &costs, detail).unwrap().duration;
            let by_op = time(&classes, Detail::Ops);
            assert_eq!(by_op, time(&every, Detail::Ops), "{}", case(&plan));
            let by_call = step_time(&classes, &costs).unwrap();
            assert!(by_call.0.abs_diff(by_op.0) as f64 <= 0.01 * by_op.0 as f64, "{}", case(&plan));
        }
    }
}

/// Time in which a rank does nothing but wait for the data axis.
fn exposed(plan: &Plan) -> Picoseconds {
    let report = Report::new(&timeline(plan));
    let times = report.ranks[0].time.communication.iter();
    times.filter(|time| AXES.contains(&time.axis)).map(|time| time.exposed).sum()
}

#[test]
fn prefetch_hides_gathers_when_compute_is_long_enough() {
    // One microbatch of 16 sequences: a block computes for longer than its weights and gradients travel. What is left
    // to see is the first gather of each of two passes, the embedding's and the head's, and the last reductions.
    let draft = |prefetch| Draft {
        blocks: 8,
        micro_batch: 16,
        microbatches: 1,
        data_sharding: "fsdp",
        data: DataOptions { prefetch: Some(prefetch), ..DataOptions::default() },
        ..gpt2(8)
    };
    let plans = [0, 1].map(|prefetch| draft(prefetch).plan());
    let gathers = |plan: &Plan| -> Vec<(Picoseconds, Picoseconds)> {
        let timeline = timeline(plan);
        let spans = timeline
            .spans
            .iter()
            .filter(|span| span.rank == 0 && span.stream == Stream::Data && span.activity != Activity::Wait);
        let gathers = spans.filter(|span| timeline.labels[span.label as usize].ends_with("gather weights"));
        gathers.map(|span| (span.start, span.end)).collect()
    };
    let [late, early] = plans.each_ref().map(gathers);
    assert_eq!((late.len(), early.len()), (2 * 10, 2 * 10));
    let length = |(start, end): &(Picoseconds, Picoseconds)| *end - *start;
    let all: Picoseconds = late.iter().map(length).sum();
    let first: Picoseconds = [&early[0], &early[10]].into_iter().map(length).sum();
    let [without, with] = plans.each_ref().map(exposed);
    assert!(without >= all, "{without} exposed of {all}");
    // All but the first of each pass are hidden, but for what they slow down meanwhile.
    let hidden = without.0 - with.0;
    let rest = (all - first).0;
    assert!(hidden as f64 > 0.95 * rest as f64, "{hidden} ps hidden of {rest}");
}

#[test]
fn reductions_are_hidden_behind_backward_if_the_stack_overlaps_them() {
    for name in ["none", "zero1", "zero2", "fsdp"] {
        let mut plan = Draft { data_sharding: name, micro_batch: 4, ..gpt2(8) }.plan();
        let with = exposed(&plan);
        plan.stack.overlap_gradient_reduction = false;
        let without = exposed(&plan);
        assert!(with < without, "{name}: {with} of {without}");
    }
}

#[test]
fn gradients_that_wait_for_the_last_microbatch_take_a_part_of_the_time() {
    let time = |name, reduce| {
        let data = DataOptions { reduce: Some(reduce), ..DataOptions::default() };
        let plan = Draft { data_sharding: name, data, microbatches: 6, gpus_per_node: 1, ..gpt2(4) }.plan();
        step_time(&lower(&plan), &ClusterCosts::new(&plan.cluster)).unwrap()
    };
    for name in ["none", "zero1", "fsdp"] {
        assert!(time(name, Reduction::LastMicrobatch) < time(name, Reduction::EveryMicrobatch), "{name}");
    }
}

#[test]
fn buffers_of_horovod_are_filled_up_to_128_mib() {
    // GPT-2 large's blocks have 39.3 MB of 16-bit gradients: three fit, the fourth goes with the embedding if that fits
    // (131 MB do not). Reductions of backward: head (tied, so only the norm) and three blocks, one, embedding.
    let draft = Draft { data_sharding: "horovod", microbatches: 1, ..gpt2(4) };
    let program = lower(&draft.plan());
    let ops = program.ranks[0].calls.iter().flat_map(|call| &program.segments[call.segment].ops);
    let sizes: Vec<u64> = ops
        .filter(|op| op.module == "reduce gradients")
        .map(|op| if let Work::Collective { bytes, .. } = op.work { bytes.get() as u64 } else { 0 })
        .collect();
    let (h, block) = (1280, 2 * (12 * 1280 * 1280 + 13 * 1280));
    assert_eq!(sizes, [3 * block + 2 * 2 * h, block, 2 * (50_257 + 1024) * h]);
}

#[test]
fn illegal_choices_are_refused_by_name() {
    let check = |draft: Draft, message: &str| {
        let error = draft.try_plan().unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    };
    let with = |name, data| Draft { data_sharding: name, data, ..gpt2(4) };
    let none = DataOptions::default();
    check(
        with("zero4", none),
        "`data_sharding` is `zero4`; known are none, horovod, parameter-server, zero1, zero2",
    );
    check(
        with("zero1", DataOptions { prefetch: Some(2), ..none }),
        "`data.prefetch` is not what `zero1` allows",
    );
    check(
        with("zero2", DataOptions { reshard: Some(Reshard::AfterStep), ..none }),
        "`data.reshard` is not what `zero2` allows; weights are whole: it is for `zero3`",
    );
    let last = DataOptions { reduce: Some(Reduction::LastMicrobatch), ..none };
    check(with("zero2", last), "divided gradients are reduced in `every-microbatch`: take `zero1`");
    check(with("zero3", last), "divided gradients are reduced in `every-microbatch`");
    check(with("fsdp", DataOptions { servers: Some(2), ..none }), "only `parameter-server` has servers");
    check(
        with("parameter-server", DataOptions { servers: Some(5), ..none }),
        "`data.servers` is 5; it must be from 1 to mesh.context x mesh.data = 4",
    );
    check(with("hsdp", none), "`hsdp` needs the size of a group");
    check(Draft { shard: Some(2), ..with("fsdp", none) }, "take `hsdp`");
    check(Draft { shard: Some(2), ..with("none", none) }, "the scheme divides nothing");
    check(
        with("zero2-fsdp", DataOptions { reshard: Some(Reshard::AfterForward), ..none }),
        "`data.reshard` is not what `zero2-fsdp` allows; that is `fsdp`",
    );
    let kept = "with several microbatches in flight it must be after-forward or after-step";
    check(Draft { mesh: [1, 2, 2], ..with("zero2-fsdp", none) }, kept);
    check(Draft { schedule: "gpipe", ..with("zero2-fsdp", none) }, kept);
    let mut plan = with("fsdp", none).plan();
    plan.stack.data_schemes.clear();
    let error = plan.check("draft").unwrap_err().to_string();
    assert!(
        error.contains("`data_sharding` is `fsdp`; stack pytorch-eager has no such data-parallel scheme"),
        "{error}"
    );
}

#[test]
fn plans_are_written_and_read_back() {
    for draft in all(&gpt2(4)) {
        let plan = draft.plan();
        assert_eq!(Plan::from_toml(&plan.to_toml(), "test").unwrap(), plan, "{}", case(&plan));
    }
    assert!(!gpt2(4).plan().to_toml().contains("[data]"));
    assert_eq!(data_scheme("fsdp").unwrap().divides(), Divided::Weights);
}
