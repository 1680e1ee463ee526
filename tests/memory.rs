//! The closed form of a rank's memory against what the simulated step holds.

use crate::common::Draft;
use trainwright_lower::lower;
use trainwright_lower::memory::plan_memory;
use trainwright_sim::costs::ClusterCosts;
use trainwright_sim::{Detail, simulate};
use trainwright_spec::plan::{Plan, Recompute};
use trainwright_spec::program::MemoryKind;
use trainwright_spec::units::Bytes;
use trainwright_timeline::report::Report;
use trainwright_timeline::timeline::Timeline;

fn timeline(plan: &Plan) -> Timeline {
    simulate(&lower(plan), &ClusterCosts::new(&plan.cluster), Detail::Ops).unwrap()
}

/// For the blocks of a stage, of which the first ones have full recomputation.
const RECOMPUTE: [(Recompute, usize); 4] =
    [(Recompute::None, 0), (Recompute::Selective, 0), (Recompute::Full, 0), (Recompute::None, 1)];

/// Real models on meshes that suit them, with each schedule, choice of recompute and stack.
fn grid() -> Vec<Draft> {
    let schedules = [
        ("gpipe", 1),
        ("1f1b", 1),
        ("interleaved", 2),
        ("zb-h1", 1),
        ("zb-v", 2),
        ("v-min", 2),
        ("chimera", 1),
        ("hanayo", 2),
        ("dualpipe", 1),
        ("dualpipev", 2),
    ];
    let stacks = [
        ("megatron-lm-2021", false, "none"),
        ("megatron-lm-2022", true, "none"),
        ("megatron-core", true, "zero1"),
        ("pytorch-eager", false, "zero1"),
    ];
    let models = [
        Draft::of("gpt2-xl", [1, 4, 2]),
        Draft { sequence: 2048, ..Draft::of("gpt3-13b", [4, 4, 2]) },
        Draft { sequence: 2048, ..Draft::of("megatron-175b", [8, 8, 1]) },
        Draft { sequence: 4096, ..Draft::of("llama-2-70b", [8, 8, 1]) },
        Draft { blocks: 16, ..Draft::of("mixtral-8x7b", [4, 4, 1]) },
        Draft { blocks: 8, ..Draft::of("gpt-neox-20b", [2, 2, 2]) },
    ];
    let mut drafts = Vec::new();
    for model in models {
        for (schedule, virtual_stages) in schedules {
            for (recompute, full_blocks) in RECOMPUTE {
                for (stack, sequence_parallel, data_sharding) in stacks {
                    // The large models with the schedules that plans most often have.
                    let common = ["gpipe", "1f1b", "interleaved"].contains(&schedule);
                    if !common && model.mesh[1] > 4 {
                        continue;
                    }
                    drafts.push(Draft {
                        schedule,
                        virtual_stages,
                        recompute,
                        full_blocks,
                        stack,
                        sequence_parallel,
                        data_sharding,
                        ..model.clone()
                    });
                }
            }
        }
    }
    drafts
}

fn case(plan: &Plan) -> String {
    format!(
        "{} on {}, {}, recompute {}, {}",
        plan.model.name,
        plan.stack.name,
        plan.schedule,
        plan.stages[0],
        if plan.sequence_parallel { "sequence parallel" } else { "whole sequences" },
    )
}

#[test]
fn the_closed_form_is_the_simulated_peak_or_a_little_more() {
    for draft in grid() {
        let plan = draft.plan();
        let closed = plan_memory(&plan);
        for rank in Report::new(&timeline(&plan)).ranks {
            let (closed, peak) = (closed[rank.pipeline_rank], rank.memory.peak);
            let case = format!("{}, rank {}: {} for {peak}", case(&plan), rank.rank, closed.total());
            // The report rounds to whole bytes.
            assert!(closed.total() >= peak - Bytes::new(MemoryKind::ALL.len() as f64), "{case}");
            assert!(closed.total() <= 1.05 * peak, "{case}");

            let sum: Bytes = rank.memory.kinds.iter().map(|kind| kind.at_peak).sum();
            assert_eq!(sum, peak, "{case}");
            for (kind, expected) in [
                (MemoryKind::Weights, closed.weights),
                (MemoryKind::Gradients, closed.gradients),
                (MemoryKind::Optimizer, closed.optimizer),
            ] {
                let found = rank.memory.kinds[kind as usize];
                assert_eq!((found.peak, found.at_peak), (expected, expected), "{case}: {}", kind.name());
            }
        }
    }
}

#[test]
fn allocations_of_a_step_are_freed() {
    for draft in grid() {
        let plan = draft.plan();
        let program = lower(&plan);
        let timeline = timeline(&plan);
        for (index, rank) in program.ranks.iter().enumerate() {
            for kind in MemoryKind::ALL {
                let case = format!("{}, rank {}, {}", case(&plan), rank.rank, kind.name());
                let changes = timeline
                    .memory
                    .iter()
                    .filter(|change| change.rank as usize == index && change.kind == kind);
                let (mut held, mut least, mut given) = (Bytes::ZERO, Bytes::ZERO, Bytes::ZERO);
                for change in changes {
                    held += change.bytes;
                    least = least.min(held);
                    given = given.max(change.bytes * -1.0);
                }
                let resident: Bytes =
                    rank.resident.iter().filter(|held| held.kind == kind).map(|held| held.bytes).sum();
                // Whole bytes are exact in f64; only the overhead, a twentieth of the peak, is none.
                assert!((held - resident).get().abs() < 1e-3, "{case}: ends {held}, began {resident}");
                assert!(least >= Bytes::ZERO, "{case}: falls to {least}");
                if kind == MemoryKind::Activations {
                    assert_eq!(held, Bytes::ZERO, "{case}");
                    assert!(given > Bytes::ZERO, "{case}: nothing is kept at all");
                }
            }
        }
    }
}

#[test]
fn the_first_stage_holds_min_p_m_microbatches_with_1f1b_and_m_with_gpipe() {
    // GPT-3 1.3B without dropout keeps on each of its 24 blocks, flash attention, fp16, t = 1:
    // 2 s h for each of two norms, qkv, projection, fc1, 6 s h of q, k, v, 8 s h before and after the activation,
    // and 4 s a of statistics; the first stage 8 s of token ids.
    let check = |schedule, pipeline: usize, microbatches: usize, in_flight: usize| {
        let mut draft = Draft {
            schedule,
            microbatches,
            stack: "megatron-core",
            ..Draft::of("gpt3-1.3b", [1, pipeline, 1])
        };
        draft.model.dropout = false;
        let plan = draft.plan();
        let (s, h, a) = (1024.0, 2048.0, 16.0);
        let blocks = (24 / pipeline) as f64;
        let microbatch = blocks * (5.0 * 2.0 + 6.0 + 16.0) * s * h + blocks * 4.0 * s * a + 8.0 * s;
        let first = &Report::new(&timeline(&plan)).ranks[0];
        let case = format!("{schedule}, p = {pipeline}, m = {microbatches}");
        assert_eq!(
            first.memory.kinds[MemoryKind::Activations as usize].peak,
            Bytes::new(in_flight as f64 * microbatch),
            "{case}"
        );
        assert_eq!(first.memory.in_flight_at_peak, in_flight, "{case}");
    };
    for pipeline in [2, 4, 8] {
        for microbatches in [1, 2, 4, 7, 8, 16] {
            check("1f1b", pipeline, microbatches, pipeline.min(microbatches));
            check("gpipe", pipeline, microbatches, microbatches);
        }
    }
}
