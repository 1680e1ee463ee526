//! Schedules with moves: by hand, against every way to run small fleets second by second, and kept rules.

use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};
use std::collections::HashMap;
use trainwright_fleet::check::check;
use trainwright_fleet::instance::{Choice, FleetJob, Instance, NodeKind, User};
use trainwright_fleet::moves::{solve_with_moves, with_moves};
use trainwright_fleet::objective::Objective;
use trainwright_fleet::uncertain::makespans;
use trainwright_fleet::{Effort, solve};

/// A job with its choices: GPUs, and seconds on them.
fn job(name: &str, choices: &[(usize, u64)], release: u64, weight: f64, restart: Option<u64>) -> FleetJob {
    let choice = |(gpus, duration): &(usize, u64)| Choice {
        kind: 0,
        gpus: *gpus,
        duration: *duration,
        cost: (*gpus as u64 * duration) as f64,
        spread: Vec::new(),
        plan: String::new(),
    };
    FleetJob {
        name: name.into(),
        choices: choices.iter().map(choice).collect(),
        release,
        deadline: None,
        weight,
        after: Vec::new(),
        user: None,
        restart,
    }
}

fn fleet(nodes: usize, gpus: usize, jobs: Vec<FleetJob>) -> Instance {
    let kinds = vec![NodeKind { name: "n".into(), nodes, gpus }];
    Instance { kinds, jobs, users: Vec::new(), contiguous: true }
}

#[test]
fn moves_by_hand() {
    // One GPU. a takes 100 s; b comes at 20 s, takes 10 s and counts ten times: a stops for it, and starts again in 5 s.
    let urgent = |restart| {
        let (a, b) = (job("a", &[(1, 100)], 0, 1.0, restart), job("b", &[(1, 10)], 20, 10.0, Some(0)));
        fleet(1, 1, vec![a, b])
    };
    let one = urgent(Some(5));
    let answer = solve_with_moves(&one, Objective::Completion, Effort::default()).unwrap();
    assert_eq!(check(&one, &answer.schedule), Ok(()));
    let runs: Vec<(usize, u64, u64)> =
        answer.schedule.placed.iter().map(|entry| (entry.job, entry.start, entry.end)).collect();
    // Without moves b first: 10 · 30 + 130. With: 10 · 30 + 20 + 10 + 5 + 80.
    assert_eq!(runs, [(0, 0, 20), (0, 30, 115), (1, 20, 30)]);
    assert_eq!((answer.score.value(), answer.heuristics[0].score.value()), (415.0, 430.0));
    assert_eq!(answer.schedule.cost(&one), 115.0);
    // If a takes a fifth more or less, so do both of its parts: 24, b, and 102 s; 16 s, waiting for b, and 68 s.
    let mut spread = one.clone();
    spread.jobs[0].choices[0].spread = vec![0.8, 1.2];
    let samples = makespans(&spread, &answer.schedule, &[0, 1]);
    assert_eq!([samples[0], samples[999]], [98, 136]);
    // A restart that costs more than it brings, and a job that may not stop.
    for restart in [Some(21), None] {
        let answer = solve_with_moves(&urgent(restart), Objective::Completion, Effort::default()).unwrap();
        assert_eq!((answer.score.value(), answer.schedule.placed.len()), (430.0, 2), "{restart:?}");
    }
    // Two GPUs. When b has ended, a goes on on both: half of 100 s, 2 s, and half of 60 s.
    let grows = vec![job("a", &[(1, 100), (2, 60)], 0, 1.0, Some(2)), job("b", &[(1, 50)], 0, 1.0, Some(2))];
    let two = fleet(1, 2, grows);
    let answer = solve_with_moves(&two, Objective::Makespan, Effort::default()).unwrap();
    assert_eq!((answer.score.value(), answer.bound), (82.0, 80.0));
    assert_eq!(solve(&two, Objective::Makespan, Effort::default()).unwrap().score.value(), 100.0);
}

#[test]
fn a_schedule_that_breaks_a_rule_of_moves_is_found() {
    let one = fleet(
        1,
        2,
        vec![job("a", &[(1, 100), (2, 60)], 0, 1.0, Some(5)), job("b", &[(1, 50)], 0, 1.0, None)],
    );
    let good = with_moves(
        &one,
        Objective::Makespan,
        &solve(&one, Objective::Makespan, Effort::default()).unwrap().schedule,
    );
    assert_eq!((check(&one, &good), good.placed.len()), (Ok(()), 3));
    let broken = |change: &dyn Fn(&mut Instance, &mut trainwright_fleet::schedule::Schedule)| {
        let (mut instance, mut schedule) = (one.clone(), good.clone());
        change(&mut instance, &mut schedule);
        check(&instance, &schedule).unwrap_err()
    };
    assert_eq!(broken(&|instance, _| instance.jobs[0].restart = None), "a: it may not move");
    assert!(broken(&|instance, _| instance.jobs[0].restart = Some(6)).starts_with("a: it does 0.98"));
    assert!(broken(&|_, schedule| schedule.placed[1].end -= 1).starts_with("a: it does 0.98"));
    assert_eq!(broken(&|_, schedule| schedule.placed[1].start -= 1), "a: it is in two places at once");
    assert_eq!(broken(&|_, schedule| schedule.placed.truncate(2)), "each job must stand there, in order");
}

/// One second of a job in `Slow`: work that is left, its choice while it runs, seconds of its restart that are left, and whether it
/// has begun.
type Second = (u64, Option<usize>, u64, bool);

/// Units of work that every duration up to six seconds divides.
const UNITS: u64 = 60;

/// The least makespan and the least weighted completion over every way to hold the GPUs of one node in each second.
fn slow(instance: &Instance) -> (u64, f64) {
    let first: Vec<Second> = vec![(UNITS, None, 0, false); instance.jobs.len()];
    let mut states = HashMap::from([(first, 0.0_f64)]);
    let (mut makespan, mut completion) = (None, f64::INFINITY);
    for now in 0_u64.. {
        let mut next: HashMap<Vec<Second>, f64> = HashMap::new();
        for (state, cost) in &states {
            if *cost >= completion && makespan.is_some() {
                continue;
            }
            let waiting: f64 =
                state.iter().zip(&instance.jobs).filter(|(job, _)| job.0 > 0).map(|(_, of)| of.weight).sum();
            if waiting == 0.0 {
                makespan.get_or_insert(now);
                completion = completion.min(*cost);
                continue;
            }
            for held in ways(instance, state, now) {
                let after = state.iter().zip(&instance.jobs).zip(held).map(|((job, of), choice)| {
                    let Some(choice) = choice else { return (job.0, None, 0, job.3) };
                    let restart = of.restart.unwrap_or(0);
                    let lost = match (job.1 == Some(choice), job.3) {
                        (true, _) => job.2,
                        (false, true) => restart,
                        (false, false) => 0,
                    };
                    let worked = UNITS / of.choices[choice].duration;
                    match lost {
                        0 => (job.0.saturating_sub(worked), Some(choice), 0, true),
                        lost => (job.0, Some(choice), lost - 1, true),
                    }
                });
                let after: Vec<Second> =
                    after.map(|job| if job.0 == 0 { (0, None, 0, true) } else { job }).collect();
                let least = next.entry(after).or_insert(f64::INFINITY);
                *least = least.min(cost + waiting);
            }
        }
        if next.is_empty() {
            break;
        }
        states = next;
    }
    (makespan.expect("some way ends"), completion)
}

/// The choices of jobs in a second that fit together, on the GPUs and in the quota of the only user.
fn ways(instance: &Instance, state: &[Second], now: u64) -> Vec<Vec<Option<usize>>> {
    let mut ways: Vec<([usize; 2], Vec<Option<usize>>)> = vec![([0; 2], Vec::new())];
    let quota = instance.users.first().and_then(|user| user.max_gpus).unwrap_or(usize::MAX);
    for (job, of) in state.iter().zip(&instance.jobs) {
        let is_ready = of.after.iter().all(|before| state[*before].0 == 0);
        let may_begin = job.0 > 0 && now >= of.release && is_ready;
        let may_stop = of.restart.is_some() || job.1.is_none();
        let choices = (0..of.choices.len())
            .filter(|_| may_begin)
            .map(Some)
            .filter(|choice| may_stop || *choice == job.1);
        let all: Vec<Option<usize>> = choices.chain((may_stop || job.0 == 0).then_some(None)).collect();
        let extend = |([held, of_user], way): ([usize; 2], Vec<Option<usize>>)| {
            let fits = all.iter().filter_map(move |choice| {
                let gpus = choice.map_or(0, |choice| of.choices[choice].gpus);
                let (held, of_user) = (held + gpus, of_user + if of.user.is_some() { gpus } else { 0 });
                let all = [way.clone(), vec![*choice]].concat();
                (held <= instance.gpus() && of_user <= quota).then_some(([held, of_user], all))
            });
            fits.collect::<Vec<_>>()
        };
        ways = ways.into_iter().flat_map(extend).collect();
    }
    ways.into_iter().map(|(_, way)| way).collect()
}

#[test]
fn small_fleets_are_never_below_their_bound_and_near_the_best() {
    let cases = crate::long::cases("TRAINWRIGHT_FLEET", 40, 200);
    let mut random = ChaCha8Rng::seed_from_u64(11);
    let (mut optima, mut moves, mut worst) = (0, 0, 0.0_f64);
    for case in 0..cases {
        let jobs = (0..random.random_range(2..=3)).map(|index| {
            let alone: u64 = random.random_range(2..=6);
            let both = random.random_range(alone.div_ceil(2)..=alone);
            let restart = (random.random_range(0..4) > 0).then(|| random.random_range(0..=1));
            let release = if index > 0 { random.random_range(0..4) } else { 0 };
            let weight = random.random_range(1..=4) as f64;
            job(&format!("j{index}"), &[(1, alone), (2, both)], release, weight, restart)
        });
        let mut instance = fleet(1, 2, jobs.collect());
        // Every third case has jobs of a user with one GPU, every fourth a job that waits for the first.
        if case % 3 == 2 {
            instance.users = vec![User { name: "u".into(), max_gpus: Some(1) }];
            instance.jobs.iter_mut().take(2).for_each(|job| job.user = Some(0));
        }
        if case % 4 == 3 {
            instance.jobs.last_mut().expect("there are jobs").after = vec![0];
        }
        let (makespan, completion) = slow(&instance);
        for (objective, least) in
            [(Objective::Makespan, makespan as f64), (Objective::Completion, completion)]
        {
            let answer = solve_with_moves(&instance, objective, Effort::default()).unwrap();
            assert_eq!(check(&instance, &answer.schedule), Ok(()), "case {case}");
            let found = answer.score.value();
            assert!(answer.bound <= least, "case {case}: a bound of {} above {least}", answer.bound);
            assert!(least <= found, "case {case}: {found} is less than {least}: {:?}", answer.schedule);
            assert!(!answer.heuristics[0].score.is_below(&answer.score));
            optima += usize::from(found == least);
            moves += answer.schedule.placed.len() - instance.jobs.len();
            worst = worst.max(found / least - 1.0);
        }
    }
    println!("{optima} of {} are the least, {moves} moves, at most {:.1} % more", 2 * cases, 100.0 * worst);
    assert!(
        moves > 0 && optima * 10 >= 2 * cases * 8,
        "{optima} of {} are the least, {moves} moves",
        2 * cases
    );
}
