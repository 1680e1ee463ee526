//! Every route to the time and the memory of a plan gives the same answer: the forecast that `simulate` and `plan` print, the
//! ranking of the planner's search, the quick forecast of `predict`, joined ops, and the replay of the Chakra export.
//!
//! `TRAINWRIGHT_ROUTES=2000` tries as many plans.

use crate::common::Draft;
use crate::long::cases;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{RngSeed, TestRunner};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use trainwright_formats::chakra::workload::workload;
use trainwright_formats::chakra::{read, write_rank};
use trainwright_lower::lower_every_rank;
use trainwright_lower::memory::plan_memory;
use trainwright_sim::costs::{ClusterCosts, Costs, Query};
use trainwright_sim::replay::{replay, traced_cost};
use trainwright_sim::{Detail, forecast, quick_forecast, simulate, step_program, step_time_for_ranking};
use trainwright_spec::cluster::{
    Cluster, CoreTurns, Cores, MeasuredExchange, MeasuredTime, NetworkWork, Others, StepTimes,
};
use trainwright_spec::collective::CollectiveKind;
use trainwright_spec::plan::{Plan, Recompute};
use trainwright_spec::precision::Precision;
use trainwright_spec::schedule::SCHEDULES;
use trainwright_spec::sourced::Sourced;
use trainwright_spec::stack::WeightGather;
use trainwright_spec::units::{Bytes, Picoseconds, Seconds};
use trainwright_timeline::timeline::Timeline;

/// Joined ops take at most this part of a step more or less than single ones.
const JOINED: f64 = 0.01;

/// The kind of hardware that a plan runs on.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Hardware {
    /// Nodes of one kind.
    Uniform(&'static str),
    /// One half of the nodes of either kind.
    Mixed(&'static str, &'static str),
    /// Threads of processors: two cores for each node, or for all.
    SharedCores { emulated: bool, turns: bool },
}

const HARDWARE: [Hardware; 9] = [
    Hardware::Uniform("dgx-a100"),
    Hardware::Uniform("dgx-h100"),
    Hardware::Uniform("l40s-8-ethernet"),
    Hardware::Uniform("gb200-nvl72"),
    Hardware::Mixed("dgx-h100", "dgx-a100"),
    Hardware::Mixed("dgx-a100", "l40s-8-ethernet"),
    Hardware::SharedCores { emulated: false, turns: true },
    Hardware::SharedCores { emulated: true, turns: true },
    Hardware::SharedCores { emulated: true, turns: false },
];

impl Hardware {
    /// A cluster of it with this many GPUs, at most `per_node` of them in a node.
    fn cluster(self, gpus: usize, per_node: usize) -> Option<Cluster> {
        let per_node = per_node.min(gpus);
        let nodes = gpus.div_ceil(per_node);
        let of = |name: &str, nodes: usize| {
            let mut cluster = Cluster::from_name(&format!("{name}:{nodes}")).unwrap();
            cluster.node.gpus.value = per_node;
            cluster
        };
        match self {
            Hardware::Uniform(name) => Some(of(name, nodes)),
            Hardware::Mixed(first, second) => {
                let half = (nodes.is_multiple_of(2)).then_some(nodes / 2)?;
                let mut cluster = of(first, nodes);
                let others = of(second, half);
                cluster.others = vec![Others { nodes: half, node: others.node }];
                Some(cluster)
            }
            Hardware::SharedCores { emulated, turns } => {
                let mut cluster = of("dgx-a100", nodes);
                cluster.node.cores = Some(cores(emulated, turns));
                Some(cluster)
            }
        }
    }
}

/// Two cores on which op times vary, ranks slow each other, and exchanges take processor time.
fn cores(emulated: bool, turns: bool) -> Cores {
    let one = |value| Sourced::new(value, "a test");
    let row = |bytes, us: f64| MeasuredTime { bytes: Bytes::new(bytes), time: Seconds::new(1e-6 * us) };
    let steps = StepTimes {
        source: "a test".into(),
        copies: vec![row(1.0, 5.0), row(1e6, 100.0)],
        adds: vec![row(1.0, 6.0), row(1e6, 300.0)],
    };
    let network = NetworkWork { source: "a test".into(), sent: row(1e6, 2000.0), received: row(1e6, 1500.0) };
    let exchange = |op: &str, collective| MeasuredExchange {
        op: op.into(),
        collective,
        ranks: 2,
        measured: row(1e5, 900.0),
    };
    Cores {
        count: one(2),
        threads: one(1),
        emulated,
        steps,
        network: Some(network),
        // Negative where other programs were busy when it was measured.
        crowding: if emulated { -0.05 } else { 0.1 },
        turns: turns.then(|| CoreTurns::of_linux(2)),
        jitter: vec![0.8, 0.9, 1.0, 1.3],
        exchanges: vec![
            exchange("reduce update", CollectiveKind::AllReduce),
            exchange("attention_out forward", CollectiveKind::AllReduce),
        ],
    }
}

/// A plan and its hardware, which prints as the choices that were drawn.
#[derive(Clone)]
struct Case {
    choices: String,
    hardware: Hardware,
    plan: Option<Plan>,
}

impl std::fmt::Debug for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        write!(f, "{}", self.choices)
    }
}

/// Plans over stacks, schedules, meshes, kinds of state and 1 to 96 microbatches, with their hardware; `None` where there is no
/// such plan.
fn plans() -> impl Strategy<Value = Case> {
    let schedules: Vec<&'static str> = SCHEDULES.iter().map(|schedule| schedule.name()).collect();
    let mesh = select(vec![
        [1, 1, 1],
        [2, 1, 1],
        [1, 2, 1],
        [1, 1, 2],
        [1, 4, 1],
        [2, 2, 1],
        [1, 2, 2],
        [2, 1, 2],
        [2, 2, 2],
        [1, 4, 2],
    ]);
    let shape = (mesh, select(schedules), 1usize..=2, 1usize..=96, select(vec![2usize, 4, 8]));
    let state = (
        select(vec!["none", "zero1", "zero2", "zero3"]),
        select(vec![Recompute::None, Recompute::Selective, Recompute::Full]),
        any::<bool>(),
    );
    let software = select(vec![
        "megatron-core",
        "megatron-lm-2022",
        "deepspeed",
        "nanotron",
        "pytorch-eager",
        "trainwright",
    ]);
    (select(HARDWARE.to_vec()), shape, state, software).prop_map(
        |(hardware, (mesh, schedule, virtual_stages, microbatches, per_node), state, stack)| {
            let (data_sharding, recompute, sequence_parallel) = state;
            // Many microbatches of many ranks on cores are many events.
            let shares = matches!(hardware, Hardware::SharedCores { .. });
            let microbatches = if shares { microbatches.div_ceil(4) } else { microbatches };
            let draft = Draft {
                blocks: 8,
                sequence: 256,
                schedule,
                virtual_stages,
                stack,
                microbatches,
                data_sharding,
                recompute,
                sequence_parallel: sequence_parallel && mesh[0] > 1,
                precision: Precision::Bf16,
                ..Draft::of("gpt2", mesh)
            };
            let plan = draft.try_plan().ok().and_then(|mut plan| {
                plan.cluster = hardware.cluster(mesh.iter().product(), per_node)?;
                plan.check("routes").ok()?;
                Some(plan)
            });
            let choices = format!(
                "{hardware:?}, tensor, pipeline, data {mesh:?}, {per_node} GPUs a node, {schedule}, {virtual_stages} stages a rank, \
                 {microbatches} microbatches, {stack}, {state:?}"
            );
            Case { choices, hardware, plan }
        },
    )
}

/// The step of a plan's Chakra export, written and read back, as `replay` has it.
fn replayed(plan: &Plan) -> Timeline {
    let (program, costs) = (lower_every_rank(plan), ClusterCosts::new(&plan.cluster));
    let traces: Vec<_> = (0..program.ranks.len())
        .map(|rank| {
            let mut bytes = Vec::new();
            write_rank(&program, rank, &|rank, op| traced_cost(&program, rank, op, &costs), &mut bytes)
                .unwrap();
            let (metadata, nodes) = read(&bytes, "trace").unwrap();
            (format!("trainwright.{rank}.et"), metadata, nodes)
        })
        .collect();
    let groups: BTreeMap<String, Vec<usize>> = (0..)
        .zip(&program.groups)
        .map(|(index, group): (usize, _)| (index.to_string(), group.ranks.clone()))
        .collect();
    let workload = workload(&traces, &groups).unwrap();
    replay(&workload, plan.cluster.gpus(), &costs).unwrap()
}

fn apart(a: Picoseconds, b: Picoseconds) -> f64 {
    (a.0 as f64 / b.0 as f64 - 1.0).abs()
}

/// The largest difference that joined ops make.
fn check(hardware: Hardware, plan: &Plan) -> Result<f64, TestCaseError> {
    let costs = ClusterCosts::new(&plan.cluster);
    let (printed, timeline) = forecast(plan, &costs).unwrap();
    let step = Picoseconds::from(printed.step_time);
    let quick = quick_forecast(plan, &costs).unwrap();
    let ranked = step_time_for_ranking(plan, &costs).unwrap();
    prop_assert_eq!(ranked, quick.step_time, "the planner ranks by what predict says");
    let joined = match hardware {
        Hardware::SharedCores { .. } => {
            prop_assert_eq!(ranked, step, "ranks that share cores: no ops are joined");
            0.0
        }
        _ => {
            let joined = simulate(&step_program(plan), &costs, Detail::Calls).unwrap().duration;
            let joined = apart(joined, timeline.duration);
            prop_assert!(joined < JOINED, "joined ops are {joined} off");
            prop_assert!(apart(ranked, step) < JOINED, "ranked {ranked}, forecast {step}");
            joined.max(apart(ranked, step))
        }
    };
    prop_assert_eq!(replayed(plan).duration, timeline.duration, "the replay of the export");
    prop_assert_eq!(plan_memory(plan), printed.memory);
    Ok(joined)
}

#[test]
fn every_route_to_a_step_time_agrees() {
    let wanted = cases("TRAINWRIGHT_ROUTES", 32, 96) as u32;
    let mut runner = TestRunner::new(ProptestConfig {
        cases: wanted,
        max_global_rejects: 100 * wanted,
        failure_persistence: None,
        max_shrink_iters: 200,
        rng_seed: RngSeed::Fixed(20),
        ..ProptestConfig::default()
    });
    let (longest, joined, kinds) =
        (Cell::new(Picoseconds::ZERO), Cell::new(0.0f64), RefCell::new(BTreeMap::new()));
    let outcome = runner.run(&plans(), |Case { hardware, plan, .. }| {
        let Some(plan) = plan else { return Err(TestCaseError::reject("no such plan")) };
        *kinds.borrow_mut().entry(format!("{hardware:?}")).or_insert(0) += 1;
        longest
            .set(longest.get().max(step_time_for_ranking(&plan, &ClusterCosts::new(&plan.cluster)).unwrap()));
        joined.set(joined.get().max(check(hardware, &plan)?));
        Ok(())
    });
    println!(
        "{wanted} plans, the longest step {}, joined ops at most {:.2} % off: {:?}",
        longest.get(),
        100.0 * joined.get(),
        kinds.borrow()
    );
    if let Err(failure) = outcome {
        panic!("{failure}");
    }
    assert_eq!(kinds.borrow().len(), HARDWARE.len(), "every kind of hardware has plans");
}

/// Gathers in one NCCL group pay no gap between the steps of their rings, on every route; gathers one after the other do.
#[test]
fn coalesced_gathers_pay_no_gap() {
    let gathered = |weight_gather, gap: Option<f64>| {
        let draft = Draft {
            blocks: 2,
            microbatches: 1,
            stack: "nanotron",
            data_sharding: "zero1",
            ..Draft::of("gpt2-large", [1, 1, 16])
        };
        let mut plan = draft.plan();
        plan.cluster = Cluster::from_name("aws-p5:2").unwrap();
        plan.stack.weight_gather = weight_gather;
        let gap = gap.map(|gap| Sourced::new(Seconds::new(gap), "test"));
        let nics = plan.cluster.node.nics.as_mut().unwrap();
        (nics.ring_gap, nics.ring_gap_step) = (gap, None);
        check(Hardware::Uniform("aws-p5"), &plan).unwrap();
        let (program, costs) = (step_program(&plan), ClusterCosts::new(&plan.cluster));
        let rank = &program.ranks[0];
        let ops = rank.calls.iter().flat_map(|call| &program.segments[call.segment].ops);
        let gathers = ops.filter(|op| op.module == "gather weights");
        let times = gathers.map(|op| costs.cost(&Query::of(&program, rank, op).unwrap()).time);
        times.collect::<Vec<_>>()
    };
    let (gap, coalesced) = (Some(100e-6), WeightGather::Coalesced);
    let without = gathered(coalesced, None);
    assert!(without.len() > 20, "a gather for each tensor");
    assert_eq!(gathered(coalesced, gap), without);
    assert_eq!(gathered(WeightGather::Separate, None), without);
    // 15 steps of 100 µs.
    let paid = gathered(WeightGather::Separate, gap);
    assert!(paid.iter().zip(&without).all(|(with, without)| *with > Seconds::new(1.5e-3) && with > without));
    assert_eq!(gathered(WeightGather::Fused, gap).len(), 1);
}

/// Peak activations of GPipe, which runs all microbatches forward first, grow with their number.
#[test]
fn memory_of_schedules_that_hold_all_microbatches_grows_with_them() {
    let peak = |schedule, microbatches| {
        let draft = Draft { schedule, microbatches, ..Draft::of("gpt2", [1, 4, 1]) };
        plan_memory(&draft.plan())[0].total()
    };
    let gpipe = [24, 28, 48, 96].map(|microbatches| peak("gpipe", microbatches));
    let each = (gpipe[1] - gpipe[0]) / 4.0;
    assert!(each > Bytes::ZERO);
    for (microbatches, found) in [(48.0, gpipe[2]), (96.0, gpipe[3])] {
        let expected = gpipe[0] + each * (microbatches - 24.0);
        assert!(
            (found / expected - 1.0).abs() < 1e-9,
            "{microbatches} microbatches: {found}, not {expected}"
        );
    }
    assert_eq!(peak("1f1b", 24), peak("1f1b", 96), "1F1B holds one for each rank");
}
