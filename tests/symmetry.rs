//! One rank of a class speaks for all of it: `lower` against its slow twin `lower_every_rank`, and simulating by
//! calls against simulating by ops.

use crate::common::Draft;
use crate::long::cases;
use crate::undisturbed::Undisturbed;
use trainwright_lower::{lower, lower_every_rank};
use trainwright_sim::costs::ClusterCosts;
use trainwright_sim::{
    Detail, forecast_until, hardware_flops, simulate, step_time, step_time_for_ranking, time_forecast_until,
};
use trainwright_spec::catalog;
use trainwright_spec::mesh::{Coordinates, RankOrder};
use trainwright_spec::plan::{Plan, Recompute, StageBlocks};
use trainwright_spec::program::Axis;
use trainwright_spec::units::{Bytes, Picoseconds};
use trainwright_timeline::chrome::write_chrome;
use trainwright_timeline::report::{RankReport, Report, TimeShares};
use trainwright_timeline::timeline::{Span, Timeline};

/// Small plans that differ in what decides who waits for whom.
fn drafts() -> Vec<Draft> {
    let gpt2 = |mesh| Draft { blocks: 4, ..Draft::of("gpt2", mesh) };
    let llama = |mesh| Draft { blocks: 4, ..Draft::of("llama-7b", mesh) };
    let zero1 = "zero1";
    let interleaved = |draft| Draft { schedule: "interleaved", virtual_stages: 2, ..draft };
    let grid = |tensor_scheme, tensor_rows, draft| Draft {
        tensor_scheme,
        tensor_rows,
        micro_batch: tensor_rows * tensor_rows,
        microbatches: 4,
        ..draft
    };
    let data_last = |draft| Draft { order: RankOrder::DataLast, ..draft };
    let of_4_gpus = |draft| Draft { gpus_per_node: 4, ..draft };
    vec![
        gpt2([1, 1, 1]),
        gpt2([2, 1, 1]),
        gpt2([1, 1, 4]),
        gpt2([2, 2, 2]),
        Draft { schedule: "gpipe", data_sharding: zero1, ..gpt2([1, 4, 2]) },
        Draft { sequence_parallel: true, recompute: Recompute::Selective, ..gpt2([4, 2, 2]) },
        Draft { recompute: Recompute::Full, data_sharding: zero1, ..gpt2([2, 4, 2]) },
        interleaved(gpt2([2, 2, 2])),
        interleaved(Draft { sequence_parallel: true, data_sharding: zero1, ..llama([2, 2, 4]) }),
        Draft { data_sharding: zero1, ..llama([1, 2, 8]) },
        Draft { sequence_parallel: true, data_sharding: zero1, ..llama([8, 2, 1]) },
        Draft { blocks: 2, ..Draft::of("mixtral-8x7b", [4, 2, 2]) },
        Draft { blocks: 2, sequence_parallel: true, ..Draft::of("gpt-neox-20b", [2, 2, 2]) },
        Draft { blocks: 4, ..Draft::of("llama-3-8b", [4, 4, 1]) },
        // Messages that are gathered on arrival, between stages with much to reduce.
        Draft { recompute: Recompute::Full, gpus_per_node: 1, sequence: 384, ..interleaved(gpt2([2, 2, 1])) },
        // A tensor group over two nodes.
        of_4_gpus(Draft { sequence_parallel: true, ..llama([8, 2, 1]) }),
        // Pipelines of which some cross a node between the same two stages and others do not.
        of_4_gpus(gpt2([1, 4, 3])),
        Draft { data_sharding: zero1, ..gpt2([2, 4, 3]) },
        // Tensor groups of which some are in one node and others in two.
        of_4_gpus(gpt2([3, 1, 4])),
        of_4_gpus(gpt2([3, 2, 2])),
        of_4_gpus(gpt2([6, 2, 1])),
        // The same, with places that repeat after 12 ranks.
        of_4_gpus(Draft { data_sharding: zero1, ..gpt2([3, 2, 8]) }),
        // Pipelines numbered before data: complete in a node, each stage in separate nodes, some stages of both.
        of_4_gpus(data_last(gpt2([1, 4, 3]))),
        of_4_gpus(data_last(gpt2([4, 2, 2]))),
        of_4_gpus(data_last(gpt2([2, 3, 4]))),
        of_4_gpus(data_last(Draft {
            context: [2, 1],
            context_scheme: "all-gather",
            data_sharding: zero1,
            ..llama([1, 2, 4])
        })),
        of_4_gpus(data_last(Draft {
            context: [4, 1],
            context_scheme: "all-gather",
            data_sharding: zero1,
            ..gpt2([1, 2, 3])
        })),
        // Grids of tensor ranks: in a node, over several, and in places that differ.
        grid("2d", 2, gpt2([4, 2, 2])),
        of_4_gpus(grid("2.5d", 2, gpt2([8, 1, 2]))),
        of_4_gpus(grid("3d", 2, Draft { data_sharding: zero1, ..llama([8, 2, 2]) })),
        of_4_gpus(grid("2d", 3, gpt2([9, 1, 4]))),
    ]
}

/// Every draft with every third stack of the catalog, in long tests with every one; `TRAINWRIGHT_STACKS=n` for every n-th. One
/// draft begins with the first stack and the next with the second, so that each stack has ten drafts or more.
fn plans() -> Vec<Plan> {
    let stacks = catalog::names("stacks");
    let every = cases("TRAINWRIGHT_STACKS", 3, 1);
    let of = |(first, draft): (usize, Draft)| {
        let chosen = stacks.iter().skip(first % every).step_by(every);
        chosen.map(move |stack| Draft { stack, ..draft.clone() }.plan()).collect::<Vec<_>>()
    };
    drafts().into_iter().enumerate().flat_map(of).collect()
}

fn case(plan: &Plan) -> String {
    let mesh = plan.mesh;
    format!(
        "{} on {}, t{} p{} d{}, {}, {}, {}",
        plan.model.name,
        plan.stack.name,
        mesh.tensor,
        mesh.pipeline,
        mesh.data,
        plan.schedule,
        plan.data_sharding,
        if plan.sequence_parallel { "sequence parallel" } else { "whole sequences" },
    )
}

/// The spans of a rank of at least so many picoseconds, without the fields that depend on its place in the mesh.
fn spans_of(timeline: &Timeline, rank: usize, at_least: u64) -> Vec<(&str, Span)> {
    let is_long = |span: &&Span| span.end.0 - span.start.0 >= at_least;
    let of_rank = timeline.spans.iter().filter(|span| span.rank as usize == rank).filter(is_long);
    of_rank
        .map(|span| {
            (timeline.labels[span.label as usize].as_str(), Span { rank: 0, call: 0, label: 0, ..*span })
        })
        .collect()
}

fn memory_of(timeline: &Timeline, rank: usize) -> Vec<(Picoseconds, Bytes)> {
    let of_rank = timeline.memory.iter().filter(|change| change.rank as usize == rank);
    of_rank.map(|change| (change.time, change.bytes)).collect()
}

/// The index of the rank that speaks for `rank`: the classes repeat along the tensor and the data axis.
fn speaker(classes: &Timeline, plan: &Plan, rank: usize) -> usize {
    let places = || classes.ranks.iter().map(|track| plan.mesh.coordinates(track.rank));
    let period = |coordinate: fn(Coordinates) -> usize| places().map(coordinate).max().unwrap() + 1;
    let place = plan.mesh.coordinates(rank);
    let tensor = place.tensor % period(|at| at.tensor);
    let data = place.data % period(|at| at.data);
    let context = place.context % period(|at| at.context);
    places().position(|at| at == Coordinates { tensor, context, data, ..place }).unwrap()
}

#[test]
fn every_rank_does_what_its_class_does() {
    for plan in plans() {
        let case = case(&plan);
        let costs = ClusterCosts::new(&plan.cluster);
        let classes = simulate(&lower(&plan), &costs, Detail::Ops).unwrap();
        let all = simulate(&lower_every_rank(&plan), &costs, Detail::Ops).unwrap();
        assert_eq!(all.ranks.len(), plan.mesh.ranks(), "{case}");
        assert_eq!(classes.ranks.iter().map(|track| track.stands_for).sum::<usize>(), plan.mesh.ranks());
        assert_eq!(hardware_flops(&lower(&plan)), hardware_flops(&lower_every_rank(&plan)), "{case}");
        let overlaps = plan.stack.overlap_tensor_backward || plan.stack.overlap_gradient_reduction;
        let grid = plan.mesh.tensor_rows > 1 && overlaps;
        if plan.stack.overlap_tensor_pieces || grid {
            // Ops that start at one time on several ranks of a group change their speeds one after the other, each
            // change rounded to a picosecond. With much overlap the step is the same to a nanosecond.
            assert!(classes.duration.0.abs_diff(all.duration.0) <= 1000, "{case}");
            continue;
        }
        assert_eq!(classes.duration, all.duration, "{case}");
        // With less overlap each time is the same but for that rounding; without any it is exactly the same.
        let rounding = if overlaps { 10 } else { 0 };
        let close = |found: Picoseconds, expected: Picoseconds| found.0.abs_diff(expected.0) <= rounding;
        let [of_classes, of_all] = [&classes, &all].map(|timeline| Report::new(timeline).mean);
        assert!(overlaps || of_classes == of_all, "{case}");
        let shares = |mean: TimeShares| [mean.compute, mean.exposed, mean.bubble];
        assert!(shares(of_classes).into_iter().zip(shares(of_all)).all(|(a, b)| close(a, b)), "{case}");
        for (index, track) in all.ranks.iter().enumerate() {
            let class = speaker(&classes, &plan, track.rank);
            // A wait may be as short as the rounding, or none.
            let [expected, found] =
                [(&classes, class), (&all, index)].map(|(of, rank)| spans_of(of, rank, rounding));
            assert_eq!(found.len(), expected.len(), "{case}: rank {}", track.rank);
            for ((found_label, found), (label, expected)) in found.iter().zip(&expected) {
                let same = Span { start: expected.start, end: expected.end, ..*found };
                assert_eq!((found_label, same), (label, *expected), "{case}: rank {}", track.rank);
                let at_once = close(found.start, expected.start) && close(found.end, expected.end);
                assert!(at_once, "{case}: rank {}: {found:?} for {expected:?}", track.rank);
            }
            let (found, expected) = (memory_of(&all, index), memory_of(&classes, class));
            let alike =
                |(a, b): (&(Picoseconds, Bytes), &(Picoseconds, Bytes))| close(a.0, b.0) && a.1 == b.1;
            assert_eq!(found.len(), expected.len(), "{case}: rank {}", track.rank);
            assert!(found.iter().zip(&expected).all(alike), "{case}: rank {}", track.rank);
        }
    }
}

#[test]
fn joined_ops_take_the_same_time() {
    for plan in plans() {
        let costs = ClusterCosts::new(&plan.cluster);
        let alone = Undisturbed(costs);
        for program in [lower(&plan), lower_every_rank(&plan)] {
            let by_op = simulate(&program, &alone, Detail::Ops).unwrap().duration;
            assert_eq!(simulate(&program, &alone, Detail::Calls).unwrap().duration, by_op, "{}", case(&plan));
            assert_eq!(step_time(&program, &alone).unwrap(), by_op, "{}", case(&plan));
            // A slowdown affects all of a joined op alike, but single ops by what each needs of the shared resource.
            let by_op = simulate(&program, &costs, Detail::Ops).unwrap().duration;
            let by_call = step_time(&program, &costs).unwrap();
            assert!(by_call.0.abs_diff(by_op.0) as f64 <= 0.01 * by_op.0 as f64, "{}", case(&plan));
        }
    }
}

#[test]
fn a_stage_without_blocks_lets_the_others_of_its_rank_be_joined() {
    // The sum over the tensor axis behind the embedding runs while the next stage computes, and its gather before other kernels.
    let stacks = ["megatron-core", "megatron-core-2024", "nanotron", "torchtitan"];
    let (mut joined_spans, mut single_spans) = (0, 0);
    for (schedule, virtual_stages) in [("1f1b", 1), ("interleaved", 2), ("interleaved", 3), ("zb-v", 2)] {
        for (stack, sequence_parallel) in stacks.into_iter().flat_map(|stack| [(stack, false), (stack, true)])
        {
            for ends in [[0, 3], [3, 0], [0, 0]] {
                let draft = Draft {
                    schedule,
                    virtual_stages,
                    stack,
                    sequence_parallel,
                    microbatches: 8,
                    ..Draft::of("gpt2", [4, 2, 1])
                };
                let mut plan = draft.plan();
                let last = plan.stages.len() - 1;
                for (stage, blocks) in [0, last].into_iter().zip(ends) {
                    let taken = std::mem::take(&mut plan.stages[stage].0);
                    plan.stages[stage].0 = taken[..blocks.min(taken.len())].to_vec();
                    let others = if last == 1 { 1 - stage } else { 1 };
                    plan.stages[others].0.extend(&taken[blocks.min(taken.len())..]);
                }
                let costs = ClusterCosts::new(&plan.cluster);
                let program = lower(&plan);
                let of = |detail| simulate(&program, &Undisturbed(costs), detail).unwrap();
                let (joined, single) = (of(Detail::Calls), of(Detail::Ops));
                assert_eq!(joined.duration, single.duration, "{} {ends:?}", case(&plan));
                check_reports(&plan, &Report::new(&single), &Report::new(&joined), 0.0);
                let of = |detail| simulate(&program, &costs, detail).unwrap().duration.0 as f64;
                let apart = of(Detail::Calls) / of(Detail::Ops) - 1.0;
                assert!(apart.abs() < 0.01, "{} {ends:?}: {apart}", case(&plan));
                joined_spans += joined.spans.len();
                single_spans += single.spans.len();
            }
        }
    }
    assert!(4 * joined_spans < single_spans, "{joined_spans} of {single_spans}");
}

#[test]
fn joining_leaves_few_ops_during_a_gradient_reduction() {
    for data_sharding in ["none", "zero1", "zero2"] {
        let draft = Draft { blocks: 12, data_sharding, ..Draft::of("gpt2", [1, 2, 2]) };
        let plan = Draft { stack: "megatron-core", ..draft }.plan();
        let costs = ClusterCosts::new(&plan.cluster);
        let program = lower(&plan);
        let spans = |detail| simulate(&program, &costs, detail).unwrap().spans.len();
        let (joined, single) = (spans(Detail::Calls), spans(Detail::Ops));
        assert!(4 * joined < single, "{data_sharding}: {joined} of {single}");
    }
}

#[test]
fn joined_ops_are_reported_as_single_ones() {
    // Alone: compute and bubble to the picosecond. With overlapping ops: within a hundredth of the step. Peak memory
    // without temporaries. The hidden part of the data axis and of messages depends on the order inside a joined op,
    // which is not kept: within a hundredth of the step.
    for plan in plans() {
        let costs = ClusterCosts::new(&plan.cluster);
        let program = lower(&plan);
        let report = |detail| Report::new(&simulate(&program, &costs, detail).unwrap());
        check_reports(&plan, &report(Detail::Ops), &report(Detail::Calls), 0.01);
        let report = |detail| Report::new(&simulate(&program, &Undisturbed(costs), detail).unwrap());
        check_reports(&plan, &report(Detail::Ops), &report(Detail::Calls), 0.0);
    }
}

/// Holds a report of joined ops against one of single ones, their times within a part of the step.
fn check_reports(plan: &Plan, ops: &Report, calls: &Report, part: f64) {
    let step = ops.step_time.0 as f64;
    let close =
        |one: Picoseconds, other: Picoseconds, part: f64| one.0.abs_diff(other.0) as f64 <= part * step;
    for (ops, calls) in ops.ranks.iter().zip(&calls.ranks) {
        let case = format!("{} rank {}", case(plan), ops.rank);
        assert!(close(calls.time.compute, ops.time.compute, part), "{case}: {} compute", calls.time.compute);
        assert!(close(calls.time.bubble, ops.time.bubble, part), "{case}: {} bubble", calls.time.bubble);
        // A joined op counts all that it exchanges for the first axis, of which a grid of tensor ranks has several.
        let of_tensor = [Axis::Tensor, Axis::TensorRow, Axis::TensorColumn, Axis::TensorDepth];
        let sums = |report: &RankReport| {
            let on_tensor = report.time.communication.iter().filter(|time| of_tensor.contains(&time.axis));
            on_tensor.fold([Picoseconds::ZERO; 2], |[total, exposed], time| {
                [total + time.total, exposed + time.exposed]
            })
        };
        let ([total, exposed], [calls_total, calls_exposed]) = (sums(ops), sums(calls));
        assert!(close(calls_total, total, part), "{case}: tensor");
        assert!(close(calls_exposed, exposed, 0.01), "{case}: exposed tensor");
        let times = ops.time.communication.iter().zip(&calls.time.communication);
        for (ops, calls) in times.filter(|(ops, _)| !of_tensor.contains(&ops.axis)) {
            assert!(close(calls.total, ops.total, part), "{case}: {}", ops.axis.name());
            assert!(close(calls.exposed, ops.exposed, 0.01), "{case}: exposed {}", ops.axis.name());
        }
        let ratio = calls.memory.peak / ops.memory.peak;
        assert!((0.7..=1.05).contains(&ratio), "{case}: peak memory off by {ratio}");
    }
}

#[test]
fn long_steps_are_extrapolated_to_the_time_of_the_simulated_step() {
    let mut extrapolated = 0;
    for draft in drafts() {
        let [_, pipeline, _] = draft.mesh;
        for more in [0, 1, 5] {
            let rounds = if draft.schedule == "interleaved" { 12 + more } else { 12 };
            let microbatches = rounds * pipeline + if draft.schedule == "interleaved" { 0 } else { more };
            let plan = Draft { microbatches, ..draft.clone() }.plan();
            let costs = ClusterCosts::new(&plan.cluster);
            let simulated = step_time(&lower(&plan), &costs).unwrap();
            let quick = step_time_for_ranking(&plan, &costs).unwrap();
            let error = quick.0.abs_diff(simulated.0) as f64 / simulated.0 as f64;
            assert!(error < 1e-6, "{}, {microbatches} microbatches: off by {error}", case(&plan));
            check_few_rounds(&plan, Detail::Calls);
            if more == 1 {
                check_few_rounds(&plan, Detail::Ops);
            }
            extrapolated += 1;
        }
    }
    assert!(extrapolated > 30);
}

/// What follows from a few rounds of a step, to the picosecond and op by op, against a simulation of all of it.
fn check_few_rounds(plan: &Plan, detail: Detail) {
    let costs = ClusterCosts::new(&plan.cluster);
    let whole = simulate(&lower(plan), &costs, detail).unwrap();
    let (forecast, timeline) = forecast_until(plan, &costs, detail, &|| false).unwrap();
    assert!(timeline == whole, "{}, {detail:?}: {} and {}", case(plan), timeline.duration, whole.duration);
    let times = time_forecast_until(plan, &costs, detail, &|| false).unwrap();
    assert_eq!(times, (&forecast).into(), "{}, {detail:?}", case(plan));
}

/// Where a rank in the middle has the most work, the ranks before it run ahead for many rounds before they wait for it.
#[test]
fn uneven_pipelines_are_extrapolated_to_the_time_of_the_simulated_step() {
    let mut random = 0x5eed_u64;
    let mut below = |limit: usize| {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (random >> 33) as usize % limit
    };
    let (all, mut off) = (cases("TRAINWRIGHT_UNEVEN", 400, 20_000), 0);
    for _ in 0..all {
        let (pipeline, virtual_stages) = (2 + below(5), 1 + below(3));
        let lengths: Vec<usize> = (0..pipeline * virtual_stages).map(|_| 1 + below(4)).collect();
        let schedule = if virtual_stages > 1 { "interleaved" } else { ["1f1b", "gpipe", "zb-h1"][below(3)] };
        let microbatches = (16 + below(12)) * pipeline;
        let draft =
            Draft { schedule, virtual_stages, microbatches, ..Draft::of("llama-3-8b", [1, pipeline, 1]) };
        let mut plan = Draft { blocks: pipeline * virtual_stages, ..draft }.plan();
        plan.model.blocks[0].count = lengths.iter().sum();
        let full = |length: &usize| below(length + 1);
        let recomputed: Vec<usize> = lengths.iter().map(full).collect();
        let stage = |(length, full): (&usize, &usize)| {
            let choices = (0..*length).map(|at| if at < *full { Recompute::Full } else { Recompute::None });
            StageBlocks(choices.collect())
        };
        plan.stages = lengths.iter().zip(&recomputed).map(stage).collect();
        plan.check("plan").unwrap();
        let costs = ClusterCosts::new(&plan.cluster);
        let simulated = step_time(&lower(&plan), &costs).unwrap();
        let quick = step_time_for_ranking(&plan, &costs).unwrap();
        let error = quick.0 as f64 / simulated.0 as f64 - 1.0;
        let what = format!("{schedule}, {lengths:?}, full {recomputed:?}, {microbatches} microbatches");
        assert!(error.abs() < 1e-6, "{what}: off by {error}");
        off += usize::from(error.abs() > 1e-6);
        check_few_rounds(&plan, Detail::Calls);
    }
    // Several waits of different lengths may hide each other for a while.
    assert!(off * 1000 <= all, "{off} of {all}");
}

#[test]
fn the_same_plan_gives_the_same_bytes() {
    for draft in drafts() {
        let trace = || {
            let plan = draft.plan();
            let timeline = simulate(&lower(&plan), &ClusterCosts::new(&plan.cluster), Detail::Ops).unwrap();
            let mut bytes = Vec::new();
            write_chrome(&timeline, &mut bytes).unwrap();
            (timeline, bytes)
        };
        let ((first, first_bytes), (second, second_bytes)) = (trace(), trace());
        assert_eq!(first, second);
        assert!(first_bytes == second_bytes, "the trace files differ: {}", case(&draft.plan()));
    }
}
