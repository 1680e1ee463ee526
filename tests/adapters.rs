//! Adapters beside frozen weights: what is trained, what that takes, and what the simulated step does about it.

use crate::common::Draft;
use trainwright_lower::lower;
use trainwright_lower::memory::{RankMemory, plan_memory};
use trainwright_sim::costs::ClusterCosts;
use trainwright_sim::{Detail, forecast, simulate};
use trainwright_spec::adapters::{Adapters, BaseFormat, Target};
use trainwright_spec::job::Job;
use trainwright_spec::model::flops::AttentionCount;
use trainwright_spec::model::preset::preset;
use trainwright_spec::model::weights::Weight;
use trainwright_spec::plan::{Plan, Recompute};
use trainwright_spec::program::{Kernel, MemoryKind, Work};
use trainwright_spec::units::Bytes;
use trainwright_timeline::report::Report;

const QUERY_AND_VALUE: [Target; 2] = [Target::Query, Target::Value];

fn adapters(rank: usize, targets: &[Target]) -> Adapters {
    Adapters { rank, targets: targets.to_vec(), base: BaseFormat::Full }
}

fn with(plan: Plan, adapters: Adapters) -> Plan {
    let plan = Plan { job: Job { adapters: Some(adapters), ..plan.job.clone() }, ..plan };
    plan.check("a plan with adapters").unwrap();
    plan
}

/// Counts that PEFT prints.
#[test]
fn trained_parameters_are_those_that_others_count() {
    let check = |model: &str, adapters: Adapters, expected: u64| {
        assert_eq!(adapters.parameters(&preset(model).unwrap()), expected, "{model}, {adapters}");
    };
    check("llama-2-7b", adapters(8, &QUERY_AND_VALUE), 4_194_304);
    check("llama-3.2-3b", adapters(32, &QUERY_AND_VALUE), 9_175_040);
    // 32 blocks of 16 × (4096 + 4096) × 2 + 16 × (4096 + 11008) × 3 + …: r (k + n) of each matrix.
    let blocks = 32 * 16 * (4 * (4096 + 4096) + 3 * (4096 + 11008));
    let all = Adapters::of_all(16, BaseFormat::Full, &preset("llama-2-7b").unwrap());
    check("llama-2-7b", all, blocks);
    check("llama-2-7b", adapters(16, &[Target::Head]), 16 * (4096 + 32_000));
}

/// On a rank by itself the products of a step are those that the model FLOPs count: 4 a parameter and token of frozen weights, 6 of
/// adapters.
#[test]
fn products_of_frozen_weights_are_run_twice_and_those_of_adapters_thrice() {
    let blocks =
        [Target::Query, Target::Key, Target::Value, Target::Output, Target::Gate, Target::Up, Target::Down];
    let all = [&blocks[..], &[Target::Head]].concat();
    for targets in [&QUERY_AND_VALUE[..], &blocks, &all, &[Target::Qkv, Target::Fc1]] {
        let draft = Draft { stack: "pytorch-eager", ..Draft::of("llama-2-7b", [1, 1, 1]) };
        let plan = with(draft.plan(), adapters(8, targets));
        let program = lower(&plan);
        let count = |ops: &[trainwright_spec::program::Op]| -> f64 {
            let products = ops.iter().filter_map(|op| match op.work {
                Work::Compute(Kernel::Gemm { count, m, n, k, .. }) => Some(2.0 * (count * m * n * k) as f64),
                _ => None,
            });
            products.sum()
        };
        let found: f64 =
            program.ranks[0].calls.iter().map(|call| count(&program.segments[call.segment].ops)).sum();
        let expected = plan.job.step_flops(&plan.model, AttentionCount::Full).get();
        assert!((found / expected - 1.0).abs() < 1e-12, "{targets:?}: {found} for {expected}");
        let trained = plan.job.trained_parameters(&plan.model) as f64;
        let full = Job { adapters: None, ..plan.job.clone() }.step_flops(&plan.model, AttentionCount::Full);
        assert!(expected < full.get() && trained < 0.02 * plan.model.parameters() as f64);
    }
}

/// Meshes, recompute choices, formats and targets.
fn grid() -> Vec<Plan> {
    let drafts = [
        Draft { stack: "pytorch-eager", ..Draft::of("llama-3-8b", [1, 1, 2]) },
        Draft { stack: "megatron-core", ..Draft::of("llama-3-8b", [4, 1, 1]) },
        Draft { stack: "megatron-core", sequence_parallel: true, ..Draft::of("llama-3-8b", [4, 2, 1]) },
        Draft {
            stack: "megatron-core",
            schedule: "zb-h1",
            microbatches: 4,
            ..Draft::of("llama-3-8b", [1, 4, 1])
        },
        Draft { stack: "pytorch-eager", data_sharding: "zero3", ..Draft::of("llama-3-8b", [1, 1, 4]) },
        Draft { stack: "torchtitan", data_sharding: "zero3", ..Draft::of("llama-3-8b", [1, 1, 4]) },
        Draft { stack: "megatron-core", data_sharding: "zero1", ..Draft::of("gpt3-1.3b", [2, 1, 4]) },
        Draft { stack: "megatron-core", blocks: 4, ..Draft::of("mixtral-8x7b", [2, 2, 1]) },
    ];
    let mut plans = Vec::new();
    for draft in drafts {
        for recompute in [Recompute::None, Recompute::Selective, Recompute::Full] {
            for base in BaseFormat::ALL {
                for targets in [&QUERY_AND_VALUE[..], &[Target::Qkv, Target::Output], &[Target::Head]] {
                    let plan = Draft { recompute, ..draft.clone() }.plan();
                    plans.push(with(plan, Adapters { base, ..adapters(16, targets) }));
                }
            }
        }
    }
    plans
}

#[test]
fn the_closed_form_of_memory_is_the_simulated_peak_or_a_little_more() {
    for plan in grid() {
        let closed = plan_memory(&plan);
        let timeline = simulate(&lower(&plan), &ClusterCosts::new(&plan.cluster), Detail::Ops).unwrap();
        for rank in Report::new(&timeline).ranks {
            let (closed, peak) = (closed[rank.pipeline_rank], rank.memory.peak);
            let adapters = plan.job.adapters.as_ref().unwrap();
            let case = format!(
                "{} on {}, {}, {}, {adapters}, rank {}: {} for {peak}",
                plan.model.name,
                plan.stack.name,
                plan.stages[0],
                plan.data_sharding,
                rank.rank,
                closed.total()
            );
            assert!(closed.total() >= peak - Bytes::new(MemoryKind::ALL.len() as f64), "{case}");
            assert!(closed.total() <= 1.06 * peak, "{case}");
        }
    }
}

#[test]
fn frozen_weights_have_no_gradients_and_no_optimizer_state() {
    let draft = Draft { stack: "megatron-core", ..Draft::of("llama-2-7b", [1, 1, 1]) };
    let full = plan_memory(&draft.plan())[0];
    let parameters = preset("llama-2-7b").unwrap().parameters() as f64;
    let of = |base| plan_memory(&with(draft.plan(), Adapters { base, ..adapters(8, &QUERY_AND_VALUE) }))[0];
    let trained = 4_194_304.0;
    let beside = of(BaseFormat::Full);
    assert_eq!(beside.weights, Bytes::new(2.0 * (parameters + trained)));
    assert_eq!(beside.gradients, full.gradients * (trained / parameters));
    assert_eq!(beside.optimizer, full.optimizer * (trained / parameters));
    // Inputs that a frozen weight's gradient alone needed are not kept.
    assert!(beside.activations < 0.8 * full.activations);
    let weights = |memory: RankMemory| memory.weights;
    assert!(weights(of(BaseFormat::Int8)) < 0.56 * weights(beside));
    assert!(weights(of(BaseFormat::Nf4)) < 0.32 * weights(beside));
}

/// Data ranks that divide weights divide the frozen ones, too, and gather them in every pass.
#[test]
fn divided_frozen_weights_are_gathered() {
    let draft = Draft { stack: "torchtitan", data_sharding: "zero3", ..Draft::of("llama-2-7b", [1, 1, 8]) };
    let plan = with(draft.plan(), adapters(8, &QUERY_AND_VALUE));
    let memory = plan_memory(&plan)[0];
    let whole = 2.0 * plan.model.parameters() as f64;
    assert!((memory.weights.get() / (whole / 8.0) - 1.0).abs() < 0.01, "{}", memory.weights);
    let block = 2.0
        * plan.model.blocks[0].block.weights(plan.model.hidden).iter().map(Weight::total).sum::<u64>() as f64;
    assert!(memory.gathered > Bytes::new(block), "{} of {block}", memory.gathered);
    assert!(memory.unreduced < Bytes::new(0.01 * whole), "{}", memory.unreduced);
}

/// What 4-bit weights cost is a time of each pass: its share falls with the tokens of a microbatch.
#[test]
fn widening_weights_costs_less_of_larger_microbatches() {
    let costs = |micro_batch| {
        let draft = Draft {
            stack: "megatron-core",
            micro_batch,
            sequence: 512,
            ..Draft::of("llama-2-7b", [1, 1, 1])
        };
        let time = |base| {
            let plan = with(draft.plan(), Adapters { base, ..adapters(8, &QUERY_AND_VALUE) });
            forecast(&plan, &ClusterCosts::new(&plan.cluster)).unwrap().0.step_time
        };
        time(BaseFormat::Nf4) / time(BaseFormat::Full)
    };
    let [small, large] = [1, 16].map(costs);
    assert!(small > 1.2 && large < 1.1 && large > 1.0, "{small} and {large}");
}

#[test]
fn what_has_no_adapters_is_refused() {
    let refusal = |model: &str, targets: &[Target]| {
        let draft = Draft { blocks: 1, ..Draft::of(model, [1, 1, 1]) };
        let plan = draft.plan();
        let job = Job { adapters: Some(adapters(8, targets)), ..plan.job.clone() };
        Plan { job, ..plan }.check("f").unwrap_err().to_string()
    };
    let message = refusal("gpt2", &[Target::Gate]);
    assert!(message.contains("no layer of the model has `gate` by itself"), "{message}");
    let message = refusal("mixtral-8x7b", &[Target::Down]);
    assert!(message.contains("experts have no adapters"), "{message}");
    let message = refusal("llama-2-7b", &[Target::Qkv, Target::Query]);
    assert!(message.contains("`qkv` contains `query`"), "{message}");
    let message = refusal("llama-2-7b", &[]);
    assert!(message.contains("it names at least one matrix"), "{message}");
}
