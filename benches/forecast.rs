//! Time to plan and to forecast the largest jobs that people ask about: `cargo bench --bench forecast`.
//!
//! The planner has all cores; everything else runs on one. Each thing is held against its slow twin before it is timed.

use divan::Bencher;
use divan::counter::ItemsCount;
use std::sync::LazyLock;
use trainwright_lower::lower;
use trainwright_planner::{Pins, Question, Risk, Verdict, plan};
use trainwright_sim::costs::ClusterCosts;
use trainwright_sim::engine::{Graph, OpId, Timing};
use trainwright_sim::{Detail, forecast, simulate, step_time};
use trainwright_spec::cluster::Cluster;
use trainwright_spec::job::Job;
use trainwright_spec::mesh::Mesh;
use trainwright_spec::model::preset::preset;
use trainwright_spec::plan::{Plan, Recompute, StageBlocks};
use trainwright_spec::precision::Precision;
use trainwright_spec::program::Program;
use trainwright_spec::stack::Stack;
use trainwright_spec::units::Picoseconds;
use trainwright_timeline::report::Report;

fn main() {
    let costs = ClusterCosts::new(&GPT3.cluster);
    let by_ops = simulate(&PROGRAM, &costs, Detail::Ops).expect("the plan runs").duration;
    let by_calls = step_time(&PROGRAM, &costs).expect("the plan runs");
    let apart = (by_calls.0 as f64 / by_ops.0 as f64 - 1.0).abs();
    assert!(apart < 0.01, "joined ops take {by_calls}, single ones {by_ops}");
    println!(
        "gpt3-175b on 1,024 GPUs: {by_ops} a step, {} ops of {} rank classes",
        ops(),
        PROGRAM.ranks.len()
    );
    for name in QUESTIONS {
        let Ok(Verdict::Found(found)) = plan(&question(name), &|_| {}) else { panic!("{name} has a plan") };
        println!("plan {name}: {:?}", found.search);
    }
    divan::main();
}

const QUESTIONS: [&str; 2] = ["llama-3-70b on dgx-h100:16", "gpt3-175b on dgx-a100:128"];

fn question(name: &str) -> Question {
    let (model, cluster) = name.split_once(" on ").expect("a question is a model on a cluster");
    let (sequence, global_batch) = if model == "llama-3-70b" { (8192, 512) } else { (2048, 1536) };
    Question {
        model: preset(model).expect("a preset"),
        cluster: Cluster::from_name(cluster).expect("a node of the catalog"),
        job: job(sequence, global_batch),
        stack: Stack::from_name("megatron-core").expect("a stack of the catalog"),
        pins: Pins::default(),
        risk: Risk::default(),
    }
}

fn job(sequence: usize, global_batch: usize) -> Job {
    Job::new(sequence, global_batch, Precision::Bf16)
}

/// The whole planner: bounds, integer programs, simulations, reasons.
#[divan::bench(args = QUESTIONS, sample_count = 20, sample_size = 1)]
fn plan_question(bencher: Bencher, name: &str) {
    let question = question(name);
    bencher.bench_local(|| plan(divan::black_box(&question), &|_| {}));
}

/// GPT-3 175B on 1,024 GPUs in the manner of Megatron-LM: tensor 8 in a node, 16 pipeline ranks of 6 stages each.
static GPT3: LazyLock<Plan> = LazyLock::new(|| {
    let plan = Plan {
        schedule: "interleaved".into(),
        virtual_stages: 6,
        sequence_parallel: true,
        stages: vec![StageBlocks(vec![Recompute::Selective]); 96],
        mesh: Mesh::new(8, 16, 8),
        ..Plan::plain(
            preset("gpt3-175b").expect("a preset"),
            Stack::from_name("megatron-core").expect("a stack of the catalog"),
            Cluster::from_name("dgx-a100:128").expect("a node of the catalog"),
            job(2048, 1536),
        )
    };
    plan.check("bench").expect("a legal plan");
    plan
});

static PROGRAM: LazyLock<Program> = LazyLock::new(|| lower(&GPT3));

/// Ops that the program's rank classes run in a step.
fn ops() -> usize {
    let calls = PROGRAM.ranks.iter().flat_map(|rank| &rank.calls);
    calls.map(|call| PROGRAM.segments[call.segment].ops.len()).sum()
}

/// What `simulate` does but for reading and printing: lowering, every op simulated, report.
#[divan::bench(sample_count = 50, sample_size = 1)]
fn forecast_plan(bencher: Bencher) {
    let costs = ClusterCosts::new(&GPT3.cluster);
    bencher.counter(ItemsCount::new(ops())).bench_local(|| forecast(divan::black_box(&GPT3), &costs));
}

#[divan::bench]
fn lower_plan(bencher: Bencher) {
    bencher.bench_local(|| lower(divan::black_box(&GPT3)));
}

#[divan::bench(sample_count = 50, sample_size = 1)]
fn simulate_ops(bencher: Bencher) {
    let costs = ClusterCosts::new(&GPT3.cluster);
    let bencher = bencher.counter(ItemsCount::new(ops()));
    bencher.bench_local(|| simulate(divan::black_box(&PROGRAM), &costs, Detail::Ops));
}

/// The twin of `simulate_ops` that joins ops.
#[divan::bench]
fn simulate_calls(bencher: Bencher) {
    let costs = ClusterCosts::new(&GPT3.cluster);
    bencher.bench_local(|| simulate(divan::black_box(&PROGRAM), &costs, Detail::Calls));
}

/// The same without a timeline, as the planner does it.
#[divan::bench]
fn step_time_of_calls(bencher: Bencher) {
    let costs = ClusterCosts::new(&GPT3.cluster);
    bencher.bench_local(|| step_time(divan::black_box(&PROGRAM), &costs));
}

#[divan::bench(sample_count = 50, sample_size = 1)]
fn report(bencher: Bencher) {
    let costs = ClusterCosts::new(&GPT3.cluster);
    let timeline = simulate(&PROGRAM, &costs, Detail::Ops).expect("the plan runs");
    bencher.bench_local(|| Report::new(divan::black_box(&timeline)));
}

/// The engine alone: 64 queues of 10,000 ops, each of which waits for its neighbour's op of the row before.
#[divan::bench(sample_count = 20, sample_size = 1)]
fn engine_events(bencher: Bencher) {
    const QUEUES: u32 = 64;
    const ROWS: u32 = 10_000;
    let mut graph = Graph::default();
    let queues: Vec<_> = (0..QUEUES).map(|_| graph.add_queue()).collect();
    for row in 0..ROWS {
        for (index, queue) in (0..).zip(&queues) {
            let time = Picoseconds(1_000 + u64::from((row * 7 + index * 13) % 97));
            let op = graph.add(*queue, Timing::Takes(time));
            if row > 0 {
                graph.wait(op, OpId((row - 1) * QUEUES + (index + 1) % QUEUES));
            }
        }
    }
    bencher.counter(ItemsCount::new(graph.len())).bench_local(|| divan::black_box(&graph).run());
}
