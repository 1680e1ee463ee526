//! Time to split layers over stages, proof included: `cargo bench -p trainwright-planner --bench partition`.
//!
//! Costs are in units of a layer without recompute: selective recompute takes 4 % longer and keeps 55 %, full recompute
//! takes 30 % longer and keeps 8 %. Stages hold the microbatches that 1F1B has in flight, and a stage's memory is
//! `fullness` times what its even share of layers holds without recompute on the middle stage, so that early stages must
//! recompute and late ones need not.

use divan::Bencher;
use trainwright_planner::partition::*;
use trainwright_spec::units::{Bytes, Seconds};

/// What the solver may take.
const LIMIT: Seconds = Seconds::new(10.0);

fn main() {
    for (name, problem) in cases() {
        match solve(&problem, LIMIT) {
            Ok(Outcome::Solved(solution)) => {
                println!("{name}: objective {:.3}, {:?}", solution.objective.get(), solution.effort);
            }
            other => println!("{name}: {other:?}"),
        }
    }
    divan::main();
}

#[divan::bench(args = cases().map(|(name, _)| name))]
fn partition(bencher: Bencher, name: &str) {
    let (_, problem) =
        cases().into_iter().find(|(case, _)| *case == name).expect("names come from the cases");
    bencher.bench_local(|| solve(divan::black_box(&problem), LIMIT));
}

fn cases() -> [(&'static str, Problem); 6] {
    let tight = |runs: &[(usize, usize)], stages| pipeline(runs, stages, 0.75);
    let few = |problem: Problem| Problem { steady: 1.0, ramp: 1.0, ..problem };
    [
        ("80 layers, 8 stages", tight(&[(0, 80)], 8)),
        ("80 layers, 8 stages, ample memory", pipeline(&[(0, 80)], 8, 4.0)),
        ("80 layers, 8 stages, 2 microbatches", few(tight(&[(0, 80)], 8))),
        ("96 layers, 16 stages", tight(&[(0, 96)], 16)),
        ("128 layers, 64 stages", tight(&[(0, 128)], 64)),
        ("3 + 58 layers, 16 stages", tight(&[(0, 3), (1, 58)], 16)),
    ]
}

/// 1F1B on some stages; the head costs as much as 0.7 layers.
fn pipeline(runs: &[(usize, usize)], count: usize, fullness: f64) -> Problem {
    let class = |weight: f64| {
        let choice = |time: f64, kept: f64| Choice {
            time: Seconds::new(time * weight),
            kept: Bytes::new(kept * weight),
            peak: Bytes::new((1.0 - kept) * weight),
        };
        LayerClass {
            state: Bytes::new(2.0 * weight),
            idle: Bytes::ZERO,
            choices: vec![choice(1.0, 1.0), choice(1.04, 0.55), choice(1.3, 0.08)],
        }
    };
    let layers: usize = runs.iter().map(|run| run.1).sum();
    let share = layers as f64 / count as f64;
    let limit = 5.0 + fullness * share * 1.5 * (2.0 + count as f64 / 2.0);
    let stages = (0..count).map(|index| Stage {
        time: Seconds::new(if index + 1 == count { 0.7 } else { 0.0 }),
        memory: Bytes::new(if index == 0 || index + 1 == count { 4.0 } else { 0.0 }),
        peak: Bytes::ZERO,
        in_flight: (count - index) as f64,
        limit: Bytes::new(limit),
        idle: Bytes::ZERO,
        idle_limit: Bytes::new(f64::INFINITY),
        device: 0,
        least_layers: 1,
    });
    Problem {
        runs: runs.iter().map(|&(class, count)| Run { class, count }).collect(),
        classes: vec![vec![class(1.0), class(1.6)]],
        stages: stages.collect(),
        steady: (4 * count - 1) as f64,
        ramp: 1.0,
    }
}
