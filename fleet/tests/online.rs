//! Online policies: queues worked out by hand and in closed form, and what must hold of every outcome.

use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};
use trainwright_fleet::instance::{NodeKind, User};
use trainwright_fleet::online::audit::audit;
use trainwright_fleet::online::speeds::Speeds;
use trainwright_fleet::online::stats::stats;
use trainwright_fleet::online::trace::{Arrival, read};
use trainwright_fleet::online::{OnlineError, Outcome, Question, simulate, simulate_all};
use trainwright_fleet::policies::{POLICIES, policy};
use trainwright_fleet::throughputs::{Throughput, read as read_speeds};
use trainwright_spec::units::Seconds;

fn kinds(sizes: &[(&str, usize, usize)]) -> Vec<NodeKind> {
    sizes
        .iter()
        .map(|(name, nodes, gpus)| NodeKind { name: (*name).into(), nodes: *nodes, gpus: *gpus })
        .collect()
}

/// A step a second on one GPU, as many on as many: p. The same, but twice as fast on `new`: q.
fn linear(sizes: &[(&str, usize, usize)]) -> Speeds {
    let mut rows = Vec::new();
    for gpus in 1..=64 {
        let row = |profile: &str, node: Option<&str>, speed: f64| Throughput {
            profile: profile.into(),
            node: node.map(Into::into),
            gpus,
            nodes: None,
            steps_per_s: speed * gpus as f64,
        };
        rows.extend([row("p", None, 1.0), row("q", Some("old"), 1.0), row("q", Some("new"), 2.0)]);
    }
    Speeds::new(&rows, &kinds(sizes))
}

/// Runs a policy with rounds of a second.
fn run(name: &str, sizes: &[(&str, usize, usize)], restart: f64, rows: &str) -> (Vec<Arrival>, Outcome) {
    let jobs = read(&format!("job,arrival_s,profile,gpus,steps\n{rows}")).unwrap();
    let (kinds, speeds) = (kinds(sizes), linear(sizes));
    let (round, restart) = (Seconds::new(1.0), Seconds::new(restart));
    let question = Question { kinds: &kinds, jobs: &jobs, users: &[], speeds: &speeds, round, restart };
    let outcome = simulate(&question, policy(name).unwrap()).unwrap();
    assert_eq!(audit(&question, &outcome), Ok(()));
    (jobs.clone(), outcome)
}

/// Starts and ends by hand.
fn check(name: &str, sizes: &[(&str, usize, usize)], restart: f64, rows: &str, expected: &[(f64, f64)]) {
    let (_, outcome) = run(name, sizes, restart, rows);
    let found: Vec<(f64, f64)> = outcome.jobs.iter().map(|job| (job.start.get(), job.end.get())).collect();
    assert_eq!(found, expected, "{name}: {rows}");
}

#[test]
fn queues_by_hand() {
    let one = &[("old", 1, 1)];
    // One GPU: each begins when the one before it has ended, after a restart of 2 s.
    check(
        "fifo",
        one,
        2.0,
        "a,0,p,1,10\nb,1,p,1,5\nc,30,p,1,1\n",
        &[(0.0, 12.0), (12.0, 19.0), (30.0, 33.0)],
    );
    // A job that arrives within a round begins with the next one.
    check("fifo", one, 0.0, "a,0.5,p,1,2.5\n", &[(1.0, 3.5)]);
    // Two GPUs, a has one until 10. b needs both and holds up c. With backfill c ends by 10 and does not wait; d would not.
    let two = &[("old", 1, 2)];
    let rows = "a,0,p,1,10\nb,1,p,2,8\nc,2,p,1,5\nd,2,p,1,9\n";
    check("fifo", two, 0.0, rows, &[(0.0, 10.0), (10.0, 14.0), (14.0, 19.0), (14.0, 23.0)]);
    check("backfill", two, 0.0, rows, &[(0.0, 10.0), (10.0, 14.0), (2.0, 7.0), (14.0, 23.0)]);
    // Three GPUs: b leaves one of them, which d may have as long as it likes.
    let three = &[("old", 1, 3)];
    let rows = "a,0,p,2,20\nb,1,p,2,8\nd,2,p,1,30\n";
    check("backfill", three, 0.0, rows, &[(0.0, 10.0), (10.0, 14.0), (2.0, 32.0)]);
    // q is twice as fast on new nodes; the second one gets the old node, for it does not wait for a better one.
    let kinds = &[("old", 1, 1), ("new", 1, 1)];
    check("fifo", kinds, 0.0, "a,0,q,1,10\nb,0,q,1,10\n", &[(0.0, 5.0), (0.0, 10.0)]);
    // 16 GPU-hours are 57600 s on one GPU: then a is in the second queue, and b, which waits in the first, has the GPU.
    check("tiresias", one, 0.0, "a,0,p,1,60000\nb,10,p,1,100\n", &[(0.0, 60100.0), (57600.0, 57700.0)]);
    // A larger weight goes first.
    let rows = "job,arrival_s,profile,gpus,steps,weight\na,0,p,1,5,1\nb,0,p,1,5,1\nc,0,p,1,5,2\n";
    let jobs = read(rows).unwrap();
    let (kinds, speeds) = (self::kinds(one), linear(one));
    let round = Seconds::new(1.0);
    let question =
        Question { kinds: &kinds, jobs: &jobs, users: &[], speeds: &speeds, round, restart: Seconds::ZERO };
    for name in ["fifo", "backfill", "tiresias"] {
        let outcome = simulate(&question, policy(name).unwrap()).unwrap();
        let ends: Vec<f64> = outcome.jobs.iter().map(|job| job.end.get()).collect();
        assert_eq!(ends, [10.0, 15.0, 5.0], "{name}");
    }
}

/// Four GPUs, of which ann may have two: b and c wait for a though there is room, and d, of nobody, does not. A larger weight goes
/// first: c before b. Elastic policies do not give ann's jobs more than they ask for, and none exceeds the quota.
#[test]
fn quotas_by_hand() {
    let rows = "job,arrival_s,profile,gpus,steps,min_gpus,max_gpus,weight,user\n\
                a,0,p,2,20,1,4,1,ann\nb,1,p,1,5,1,4,1,ann\nc,1,p,2,10,1,4,2,ann\nd,2,p,1,5,1,1,1,\n";
    let sizes = &[("old", 1, 4)];
    let (jobs, kinds, speeds) = (read(rows).unwrap(), kinds(sizes), linear(sizes));
    let round = Seconds::new(1.0);
    let users = [User { name: "ann".into(), max_gpus: Some(2) }];
    let question = Question {
        kinds: &kinds,
        jobs: &jobs,
        users: &users,
        speeds: &speeds,
        round,
        restart: Seconds::ZERO,
    };
    for policy in POLICIES {
        let outcome = simulate(&question, policy).unwrap();
        assert_eq!(audit(&question, &outcome), Ok(()), "{}", policy.name());
        let free = Question { users: &[], ..question };
        let other = simulate(&free, policy).unwrap();
        assert!(audit(&question, &other).is_err(), "{} keeps the quota without being asked", policy.name());
    }
    let outcome = simulate(&question, policy("fifo").unwrap()).unwrap();
    let found: Vec<(f64, f64)> = outcome.jobs.iter().map(|job| (job.start.get(), job.end.get())).collect();
    assert_eq!(found, [(0.0, 10.0), (15.0, 20.0), (10.0, 15.0), (2.0, 7.0)]);
    let one = [User { name: "ann".into(), max_gpus: Some(1) }];
    let error = simulate(&Question { users: &one, ..question }, policy("fifo").unwrap()).unwrap_err();
    let expected = "job `a` never fits: it asks for 2 GPUs, its user `ann` may have 1 (--quota)";
    assert_eq!(error.to_string(), expected);
}

/// Gavel's shares by hand: two equal jobs on one old and one new GPU, 2/3 of the speed of both for each: they swap, and end nearly
/// together. Each has 150 steps to make at 1.5 a second.
#[test]
fn jobs_share_the_faster_kind() {
    let kinds = &[("old", 1, 1), ("new", 1, 1)];
    for name in ["gavel-max-min", "gavel-makespan", "gavel-finish-time"] {
        let (_, outcome) = run(name, kinds, 0.0, "a,0,q,1,150\nb,0,q,1,150\n");
        for job in &outcome.jobs {
            assert!((job.end.get() - 100.0).abs() <= 1.0, "{name}: {}", job.end.get());
        }
    }
}

/// The mean wait of M/D/1 is ρ D / (2 (1 − ρ)): Pollaczek 1930, Khinchin 1932. Arrivals are whole seconds apart, as rounds are, with
/// a geometric law: for such a queue in discrete time it is ρ (D − 1) / (2 (1 − ρ)) (Geo/D/1 with late arrivals: Lindley's
/// recursion W' = max(0, W + D − A) with P(A = a) = p (1 − p)^(a − 1), ρ = p D), and tends to the former with D.
#[test]
fn first_in_first_out_on_one_gpu_waits_as_long_as_in_theory() {
    let (service, chance) = (20.0, 0.03);
    let mut random = ChaCha8Rng::seed_from_u64(1);
    let (mut rows, mut time, mut wait, mut waits) = (String::new(), 0.0, 0.0_f64, 0.0);
    let count = 20_000;
    for job in 0..count {
        rows += &format!("j{job},{time},p,1,{service}\n");
        waits += wait;
        let mut gap = 1.0;
        while random.random_range(0.0..1.0) >= chance {
            gap += 1.0;
        }
        time += gap;
        wait = (wait + service - gap).max(0.0);
    }
    let (jobs, outcome) = run("fifo", &[("old", 1, 1)], 0.0, &rows);
    let waited =
        |(of, done): (&Arrival, &trainwright_fleet::online::Done)| done.start.get() - of.arrival.get();
    let mean = jobs.iter().zip(&outcome.jobs).map(waited).sum::<f64>() / f64::from(count);
    // The recursion gives the same, job by job.
    assert!((mean - waits / f64::from(count)).abs() < 1e-6);
    let load = service * chance;
    let theory = load * (service - 1.0) / (2.0 * (1.0 - load));
    assert!((mean / theory - 1.0).abs() < 0.06, "{mean} s, in theory {theory} s");
}

/// Jobs of random sizes, with weights, ranges and restarts of their own.
fn random_rows(random: &mut ChaCha8Rng, jobs: usize, most: usize) -> String {
    let mut rows = String::from("job,arrival_s,profile,gpus,steps,min_gpus,max_gpus,weight,restart_s\n");
    for job in 0..jobs {
        let gpus = random.random_range(1..=most);
        let (least, largest) = (random.random_range(1..=gpus), random.random_range(gpus..=most));
        let (arrival, steps) = (random.random_range(0.0..300.0_f64), random.random_range(1.0..400.0_f64));
        let (weight, restart) = (random.random_range(1..4), random.random_range(0..8));
        let profile = ["p", "q"][random.random_range(0..2)];
        rows += &format!("j{job},{arrival},{profile},{gpus},{steps},{least},{largest},{weight},{restart}\n");
    }
    rows
}

#[test]
fn every_policy_keeps_the_rules_and_no_makespan_is_below_the_bound() {
    let mut random = ChaCha8Rng::seed_from_u64(2);
    for case in 0..12 {
        let sizes: &[(&str, usize, usize)] =
            [&[("old", 2, 4)][..], &[("old", 1, 4), ("new", 2, 2)][..]][case % 2];
        let jobs = read(&random_rows(&mut random, 12, 4)).unwrap();
        let (kinds, speeds) = (kinds(sizes), linear(sizes));
        let (round, restart) = (Seconds::new(7.0), Seconds::new(5.0));
        let question = Question { kinds: &kinds, jobs: &jobs, users: &[], speeds: &speeds, round, restart };
        let outcomes = simulate_all(&question, &POLICIES).unwrap();
        // All steps at the highest speed of all GPUs; each job on the most GPUs from its arrival on.
        let fastest = |job: &Arrival| if job.profile == "q" && case % 2 == 1 { 2.0 } else { 1.0 };
        let work: f64 = jobs.iter().map(|job| job.steps / fastest(job)).sum::<f64>() / 8.0;
        for (policy, outcome) in POLICIES.iter().zip(&outcomes) {
            let name = policy.name();
            assert_eq!(audit(&question, outcome), Ok(()), "{name}, case {case}");
            let stats = stats(&question, outcome);
            assert!(stats.makespan.get() >= work, "{name}, case {case}");
            assert!(stats.utilisation > 0.0 && stats.utilisation <= 1.0, "{name}, case {case}");
            assert!(stats.quantiles.is_sorted_by(|one, other| one.get() <= other.get()));
            for (of, done) in jobs.iter().zip(&outcome.jobs) {
                let alone = of.steps / (fastest(of) * of.range.1 as f64);
                assert!(done.end.get() - of.arrival.get() >= alone * (1.0 - 1e-9), "{name}: {}", of.name);
            }
            // The same again, alone.
            assert_eq!(simulate(&question, *policy).as_ref(), Ok(outcome), "{name}, case {case}");
        }
    }
}

/// With exact forecasts a job that was the first to wait begins no later than it would if nobody behind it began before it.
#[test]
fn backfill_never_delays_the_head_of_the_queue() {
    let mut random = ChaCha8Rng::seed_from_u64(3);
    let sizes = &[("old", 1, 6)];
    let mut earlier = 0;
    for case in 0..60 {
        let text = random_rows(&mut random, 14, 6);
        let mut jobs = read(&text).unwrap();
        jobs.iter_mut().for_each(|job| job.weight = 1.0);
        let (kinds, speeds) = (kinds(sizes), linear(sizes));
        let (round, restart) = (Seconds::new(3.0), Seconds::ZERO);
        let whole = Question { kinds: &kinds, jobs: &jobs, users: &[], speeds: &speeds, round, restart };
        let filled = simulate(&whole, policy("backfill").unwrap()).unwrap();
        for head in 0..jobs.len() {
            // The jobs that began before the head did, or in the same round before it, without those behind it that the head had
            // to let pass while it was first.
            let is_first_from = |time: f64| (0..head).all(|other| filled.jobs[other].start.get() <= time);
            let start = filled.jobs[head].start.get();
            let first_at = (0..head)
                .map(|other| filled.jobs[other].start.get())
                .fold(jobs[head].arrival.get(), f64::max);
            assert!(is_first_from(first_at));
            let passed: Vec<usize> = (head + 1..jobs.len())
                .filter(|other| (first_at..start).contains(&filled.jobs[*other].start.get()))
                .collect();
            if passed.is_empty() {
                continue;
            }
            earlier += 1;
            let without: Vec<Arrival> = jobs
                .iter()
                .enumerate()
                .filter(|(job, _)| !passed.contains(job))
                .map(|(_, job)| job.clone())
                .collect();
            let question = Question { jobs: &without, ..whole };
            let alone = simulate(&question, policy("backfill").unwrap()).unwrap();
            assert!(start <= alone.jobs[head].start.get() + 1e-9, "case {case}, job {head}");
        }
    }
    assert!(earlier > 20, "too few cases have a job that passes another: {earlier}");
}

#[test]
fn what_has_no_answer_says_why() {
    let sizes = &[("old", 1, 2)];
    let (kinds, speeds) = (kinds(sizes), linear(sizes));
    let message = |rows: &str, round: f64| {
        let jobs = read(&format!("job,arrival_s,profile,gpus,steps\n{rows}")).unwrap();
        let round = Seconds::new(round);
        let question = Question {
            kinds: &kinds,
            jobs: &jobs,
            users: &[],
            speeds: &speeds,
            round,
            restart: Seconds::ZERO,
        };
        let found: Result<Outcome, OnlineError> = simulate(&question, policy("fifo").unwrap());
        found.map_or_else(|error| error.to_string(), |_| "an outcome".into())
    };
    assert_eq!(message("a,0,p,2,5\n", 1.0), "an outcome");
    assert_eq!(
        message("a,0,r,1,5\n", 1.0),
        "job `a`: `profile` is \"r\"; the table of speeds does not have it"
    );
    assert_eq!(
        message("a,0,p,3,5\n", 1.0),
        "job `a` never fits: the table has no speed above 0 for 3 GPUs of a kind that there are"
    );
    assert_eq!(
        message("a,0,p,1,1e9\n", 1.0),
        "fifo: after 1000000 rounds 1 jobs are left; longer rounds (--round) reach further"
    );
    assert!(
        read_speeds("profile,gpus,nodes,steps_per_s\np,2,3,1\n")
            .unwrap_err()
            .contains("nodes should be from 1 to gpus")
    );
}
