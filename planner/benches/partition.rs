//! Time to split layers over stages, proof included: `cargo bench -p trainwright-planner --bench partition`.
//!
//! Costs are in units of a layer without recompute: selective recompute takes 4 % longer and keeps 55 %, full recompute
//! takes 30 % longer and keeps 8 %. Stages hold the microbatches that 1F1B, plain or interleaved, has in flight, and a
//! rank's memory is `fullness` times what its even share of layers holds without recompute on the middle rank, so that
//! early ranks must recompute and late ones need not.

use divan::Bencher;
use trainwright_planner::partition::*;
use trainwright_spec::units::{Bytes, Seconds};

/// What the solver may take: the cases that it does not finish would take minutes.
const LIMIT: Seconds = Seconds::new(0.5);

fn main() {
    for (name, problem) in cases() {
        for route in [Route::Quickest, Route::IntegerProgram] {
            match solve(&problem, route, LIMIT) {
                Ok(Outcome::Solved(solution)) => println!(
                    "{name} {route:?}: objective {:.3}, proved {}, {:?}",
                    solution.objective.get(),
                    solution.optimal,
                    solution.effort
                ),
                other => println!("{name} {route:?}: {other:?}"),
            }
        }
    }
    divan::main();
}

#[divan::bench(args = cases().map(|(name, _)| name))]
fn quickest(bencher: Bencher, name: &str) {
    time(bencher, name, Route::Quickest);
}

#[divan::bench(args = cases().map(|(name, _)| name), sample_count = 3, sample_size = 1)]
fn integer_program(bencher: Bencher, name: &str) {
    time(bencher, name, Route::IntegerProgram);
}

fn time(bencher: Bencher, name: &str, route: Route) {
    let (_, problem) =
        cases().into_iter().find(|(case, _)| *case == name).expect("names come from the cases");
    bencher.bench_local(|| solve(divan::black_box(&problem), route, LIMIT));
}

fn cases() -> [(&'static str, Problem); 11] {
    let tight = |runs: &[(usize, usize)], ranks, turns| pipeline(runs, ranks, turns, 0.75);
    let few = |problem: Problem| Problem { steady: 1.0, ramp: 1.0, ..problem };
    [
        ("80 layers, 8 stages", tight(&[(0, 80)], 8, 1)),
        ("80 layers, 8 stages, ample memory", pipeline(&[(0, 80)], 8, 1, 4.0)),
        ("80 layers, 8 stages, 2 microbatches", few(tight(&[(0, 80)], 8, 1))),
        ("96 layers, 16 stages", tight(&[(0, 96)], 16, 1)),
        ("128 layers, 64 stages", tight(&[(0, 128)], 64, 1)),
        ("3 + 58 layers, 16 stages", tight(&[(0, 3), (1, 58)], 16, 1)),
        ("96 layers, 8 ranks x 6", tight(&[(0, 96)], 8, 6)),
        ("3 + 58 layers, 8 ranks x 2", tight(&[(0, 3), (1, 58)], 8, 2)),
        ("3 + 58 layers, 16 ranks x 2", tight(&[(0, 3), (1, 58)], 16, 2)),
        ("30 + 30 layers, 8 ranks x 2", tight(&[(0, 30), (1, 30)], 8, 2)),
        ("48 alternating layers, 8 ranks x 2", tight(&[(0, 1), (1, 1)].repeat(24), 8, 2)),
    ]
}

/// 1F1B on `ranks` ranks with `virtual_stages` stages each; the head costs as much as 0.7 layers.
fn pipeline(runs: &[(usize, usize)], ranks: usize, virtual_stages: usize, fullness: f64) -> Problem {
    let class = |weight: f64| {
        let choice = |time: f64, kept: f64| Choice {
            time: Seconds::new(time * weight),
            kept: Bytes::new(kept * weight),
            peak: Bytes::new((1.0 - kept) * weight),
        };
        LayerClass {
            state: Bytes::new(2.0 * weight),
            choices: vec![choice(1.0, 1.0), choice(1.04, 0.55), choice(1.3, 0.08)],
        }
    };
    let count = ranks * virtual_stages;
    let stages = (0..count).map(|index| {
        let (rank, turn) = (index % ranks, index / ranks);
        // Interleaved 1F1B has 2 (p - r - 1) + (v - 1) p + 1 chunks in flight on rank r, p of each but the first chunk.
        let in_flight = match (virtual_stages, turn) {
            (1, _) => ranks - rank,
            (_, 0) => (2 * (ranks - rank - 1) + 1).min(2 * ranks),
            _ => ranks,
        };
        Stage {
            rank,
            time: Seconds::new(if index + 1 == count { 0.7 } else { 0.0 }),
            memory: Bytes::new(if index == 0 || index + 1 == count { 4.0 } else { 0.0 }),
            in_flight: in_flight as f64,
        }
    });
    let layers: usize = runs.iter().map(|run| run.1).sum();
    let share = layers as f64 / ranks as f64;
    let middle = if virtual_stages == 1 { ranks as f64 / 2.0 } else { ranks as f64 };
    let memory = 5.0 + fullness * share * 1.5 * (2.0 + middle);
    Problem {
        runs: runs.iter().map(|&(class, count)| Run { class, count }).collect(),
        classes: vec![class(1.0), class(1.6)],
        stages: stages.collect(),
        ranks: vec![RankLimit { memory: Bytes::new(memory) }; ranks],
        steady: (4 * ranks - 1) as f64,
        ramp: 1.0,
    }
}
