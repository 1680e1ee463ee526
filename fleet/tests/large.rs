//! Queues that no exhaustive search can solve: schedules that pass the check, with a small proved gap.

use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};
use std::time::Instant;
use trainwright_fleet::check::check;
use trainwright_fleet::instance::{Choice, FleetJob, Instance, NodeKind};
use trainwright_fleet::objective::Objective;
use trainwright_fleet::{Effort, solve};

/// Jobs of very different sizes whose speed grows with GPUs to a power below one, as plans' speeds do.
fn queue(jobs: usize, nodes: usize, seed: u64) -> Instance {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let job = |index: usize| {
        let hours = libm::pow(10.0, random.random_range(0.5..2.5));
        let efficiency = random.random_range(0.7..0.98);
        let least = [1, 1, 2, 4, 8][random.random_range(0..5)];
        let gpus = (0..8).map(|power| 1 << power).filter(|gpus| *gpus >= least && *gpus <= 64);
        let choice = |gpus: usize| {
            let duration = (3600.0 * hours / libm::pow(gpus as f64, efficiency)) as u64 + 1;
            let cost = (gpus as u64 * duration) as f64;
            Choice { kind: 0, gpus, duration, cost, spread: Vec::new(), plan: String::new() }
        };
        let weight = random.random_range(1..=5) as f64;
        let choices = gpus.map(choice).collect();
        FleetJob {
            name: format!("j{index}"),
            choices,
            release: 0,
            deadline: None,
            weight,
            after: Vec::new(),
            user: None,
            restart: None,
        }
    };
    let kinds = vec![NodeKind { name: "node".into(), nodes, gpus: 8 }];
    Instance { kinds, jobs: (0..jobs).map(job).collect(), users: Vec::new(), contiguous: true }
}

/// Whether all cases run, with the whole effort: three minutes of two cores.
fn is_whole() -> bool {
    std::env::var_os("TRAINWRIGHT_QUEUES").is_some_and(|value| value == "1")
}

/// `gap` holds with the whole effort; `quick_gap` with a twentieth of it, for one queue.
fn compare(jobs: usize, seeds: u64, (gap, quick_gap): (f64, f64)) {
    let (seeds, factor, gap) = if is_whole() { (seeds, 1.0, gap) } else { (1, 0.05, quick_gap) };
    for seed in 0..seeds {
        let instance = queue(jobs, 16, seed);
        let effort = Effort { factor, time: None };
        let begun = Instant::now();
        let answer = solve(&instance, Objective::Makespan, effort).unwrap();
        let seconds = begun.elapsed().as_secs_f64();
        assert_eq!(check(&instance, &answer.schedule), Ok(()));
        println!("{jobs} jobs, seed {seed}: gap {:.2} %, {seconds:.0} s", 100.0 * answer.gap());
        assert!(answer.gap() <= gap, "{jobs} jobs, seed {seed}: gap {}", answer.gap());
        for rival in &answer.heuristics {
            assert!(answer.score.value() <= rival.score.value(), "{}", rival.name);
            assert_eq!(check(&instance, &rival.schedule), Ok(()), "{}", rival.name);
        }
        let again = solve(&instance, Objective::Makespan, effort).unwrap();
        assert_eq!(again.schedule, answer.schedule, "the same bytes every time");
    }
}

#[test]
fn fifty_jobs_on_sixteen_nodes() {
    compare(50, 5, (0.04, 0.13));
}

#[test]
fn five_hundred_jobs_on_sixteen_nodes() {
    compare(500, 2, (0.02, 0.10));
}
