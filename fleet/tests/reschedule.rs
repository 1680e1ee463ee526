//! New schedules while jobs run: logs by hand, and every way to go on of small fleets.

use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};
use trainwright_fleet::instance::{Choice, FleetJob, Instance, NodeKind};
use trainwright_fleet::list::{Sequence, place};
use trainwright_fleet::objective::Objective;
use trainwright_fleet::observed::{Observed, read};
use trainwright_fleet::reschedule::reschedule;

/// Jobs with their durations in seconds by GPUs.
fn instance(nodes: usize, gpus: usize, jobs: &[(&str, &[(usize, u64)])]) -> Instance {
    let choice = |(gpus, duration): &(usize, u64)| Choice {
        kind: 0,
        gpus: *gpus,
        duration: *duration,
        cost: (*gpus as u64 * duration) as f64,
        spread: Vec::new(),
        plan: String::new(),
    };
    let job = |(name, choices): &(&str, &[(usize, u64)])| FleetJob {
        name: (*name).into(),
        choices: choices.iter().map(choice).collect(),
        release: 0,
        deadline: None,
        weight: 1.0,
        after: Vec::new(),
        user: None,
        restart: Some(0),
    };
    let kinds = vec![NodeKind { name: "n".into(), nodes, gpus }];
    Instance { kinds, jobs: jobs.iter().map(job).collect(), users: Vec::new(), contiguous: true }
}

/// The instance with jobs that lose some seconds when they move.
fn with_restart(mut instance: Instance, restart: u64) -> Instance {
    instance.jobs.iter_mut().for_each(|job| job.restart = Some(restart));
    instance
}

fn log(instance: &Instance, rows: &str) -> Result<Observed, String> {
    read(&format!("time_s,event,name,value\n{rows}"), instance)
}

#[test]
fn states_by_hand() {
    let two = instance(2, 2, &[("a", &[(2, 100)]), ("b", &[(1, 50), (2, 30)]), ("c", &[(1, 10)])]);
    // a: 40 % in 80 s where 40 s were expected: half as fast. 20 s later another 10 % are done; half is left.
    let seen = log(&two, "0,start,a,2@0\n0,start,b,1@1\n80,progress,a,0.4\n90,end,b,\n100,now,,\n").unwrap();
    assert_eq!((seen.now, seen.jobs[0].factor), (100, 2.0));
    assert!((seen.jobs[0].left - 0.5).abs() < 1e-12 && (seen.jobs[0].left_saved - 0.6).abs() < 1e-12);
    assert!(seen.jobs[1].has_ended && !seen.jobs[2].has_begun);
    // The node dies: a is where it saved last, and runs no more.
    let seen = log(&two, "0,start,a,2@0\n80,progress,a,0.4\n100,down,0,\n").unwrap();
    assert_eq!((seen.down.as_slice(), &seen.jobs[0].running), ([0].as_slice(), &None));
    assert!((seen.jobs[0].left - 0.6).abs() < 1e-12);
    for (rows, expected) in [
        (
            "5,now,,\n4,now,,\n",
            "line 3: `time_s` is \"4\"; it should be seconds up to 3.2e9, not before the line above",
        ),
        (
            "0,begin,a,\n",
            "line 2: `event` is \"begin\"; it should be start, progress, stop, end, down, up or now",
        ),
        ("0,start,z,1@0\n", "line 2: `name` is \"z\"; it should be a job of the file"),
        ("0,down,2,\n", "line 2: `name` is \"2\"; it should be the number of a node"),
        ("0,start,a,2\n", "line 2: `value` is \"2\"; it should be GPUS@NODE, as 8@0"),
        ("0,start,a,1@0\n", "line 2: `value` is \"1@0\"; the job has plans for 2 GPUs there"),
        ("0,start,a,2@9\n", "line 2: `value` is \"2@9\"; there are 2 nodes, from 0 on"),
        (
            "0,start,b,1@0\n0,start,a,2@0\n",
            "line 3: `value` is \"2@0\"; other jobs hold 1 of the 2 GPUs of node 0",
        ),
        (
            "0,down,0,\n0,start,a,2@0\n",
            "line 3: `value` is \"2@0\"; node 0 is down, of another kind, or none",
        ),
        (
            "0,progress,a,0.5\n",
            "line 2: `event` is \"progress\"; it should be `start` before, for the job does not run",
        ),
        (
            "0,start,a,2@0\n0,start,a,2@1\n",
            "line 3: `event` is \"start\"; it should be `stop` before, for the job runs",
        ),
        (
            "0,start,a,2@0\n9,progress,a,1.5\n",
            "line 3: `value` is \"1.5\"; it should be a part from 0 to 1, not less than before",
        ),
        (
            "0,start,a,2@0\n9,end,a,\n9,start,a,2@0\n",
            "line 4: `event` is \"start\"; it should be nothing, for the job has ended",
        ),
    ] {
        assert_eq!(log(&two, rows).unwrap_err(), expected, "{rows}");
    }
}

/// Makespan from now, and the jobs that stay and move.
fn check(instance: &Instance, rows: &str, restart: u64, expected: (u64, &[usize], &[usize])) {
    let instance = &with_restart(instance.clone(), restart);
    let new = reschedule(instance, Objective::Makespan, &log(instance, rows).unwrap(), &[]).unwrap();
    let found = (new.answer.schedule.makespan(), new.kept.as_slice(), new.moved.as_slice());
    assert_eq!(found, expected, "{rows}");
    assert!(new.answer.bound <= new.answer.score.value());
    assert!(new.answer.heuristics.iter().all(|other| !other.score.is_below(&new.answer.score)));
}

#[test]
fn jobs_move_where_that_brings_more_than_it_costs() {
    // One node of two GPUs; a runs on one of them with 80 s left, b is over. On both it would need 45 s and a restart.
    let one = instance(1, 2, &[("a", &[(1, 100), (2, 50)]), ("b", &[(1, 20)])]);
    let rows = "0,start,a,1@0\n0,start,b,1@0\n10,progress,a,0.1\n20,end,b,\n";
    check(&one, rows, 10, (55, &[], &[0]));
    check(&one, rows, 34, (79, &[], &[0]));
    // Forty seconds are too many: it stays.
    check(&one, rows, 40, (80, &[0], &[]));
    // a is half as fast as expected: 10 % in 20 s. Then 180 s are left, or 90 s and the restart.
    check(&one, "0,start,a,1@0\n20,progress,a,0.1\n20,start,b,1@0\n20,end,b,\n", 40, (130, &[], &[0]));
    // Two nodes; that of a dies. It begins again on the other one, from its half.
    let two = instance(2, 1, &[("a", &[(1, 100)])]);
    check(&two, "0,start,a,1@0\n50,progress,a,0.5\n60,down,0,\n", 7, (57, &[], &[]));
    // c arrives: it is in the file and has no row. Nothing that runs need move.
    let three = instance(2, 1, &[("a", &[(1, 100)]), ("b", &[(1, 30)]), ("c", &[(1, 50)])]);
    check(&three, "0,start,a,1@0\n0,start,b,1@1\n20,now,,\n", 5, (80, &[0, 1], &[]));
    // No node is left.
    let dead = log(&two, "0,down,0,\n0,down,1,\n").unwrap();
    let error = reschedule(&two, Objective::Makespan, &dead, &[]).unwrap_err().to_string();
    assert_eq!(error, "job `a` never fits: the nodes that are up do not have GPUs enough");
    // Nothing is left to do.
    let over = log(&two, "0,start,a,1@0\n9,end,a,\n").unwrap();
    assert_eq!(reschedule(&two, Objective::Makespan, &over, &[]).unwrap().answer.schedule.makespan(), 0);
}

/// The least makespan by trying who stays, every choice, and every order.
fn slow(old: &Instance, seen: &Observed, restart: u64) -> u64 {
    let count = old.jobs.len();
    let mut best = u64::MAX;
    let mut orders = vec![Vec::new()];
    for job in 0..count {
        orders = orders
            .into_iter()
            .flat_map(|order: Vec<usize>| {
                (0..=job).map(move |at| {
                    let mut order = order.clone();
                    order.insert(at, job);
                    order
                })
            })
            .collect();
    }
    for stays in 0..1_usize << count {
        let stays = |job: usize| stays >> job & 1 == 1;
        if (0..count).any(|job| stays(job) && seen.jobs[job].running.is_none()) {
            continue;
        }
        let mut all = old.clone();
        let mut nodes = vec![None; count];
        for (job, pinned) in nodes.iter_mut().enumerate() {
            let state = &seen.jobs[job];
            let kept = state.running.as_ref().filter(|_| stays(job));
            if let Some(running) = kept {
                *pinned = Some(running.nodes.clone());
                all.jobs[job].choices = vec![old.jobs[job].choices[running.choice].clone()];
            }
            for choice in &mut all.jobs[job].choices {
                let left = if kept.is_some() { state.left } else { state.left_saved };
                let seconds = (choice.duration as f64 * state.factor * left).ceil() as u64;
                choice.duration =
                    seconds.max(1) + if state.has_begun && kept.is_none() { restart } else { 0 };
            }
        }
        let sizes: Vec<usize> = all.jobs.iter().map(|job| job.choices.len()).collect();
        for mut number in 0..sizes.iter().product::<usize>() {
            let mut choices = Vec::new();
            for size in &sizes {
                choices.push(number % size);
                number /= size;
            }
            for order in &orders {
                let mut order = order.clone();
                order.sort_by_key(|job| !stays(*job));
                let placed = place(&all, &Sequence { order, choices: choices.clone() }, &nodes);
                best = best.min(placed.iter().map(|entry| entry.end).max().unwrap_or(0));
            }
        }
    }
    best
}

#[test]
fn small_fleets_go_on_as_well_as_they_can() {
    let mut random = ChaCha8Rng::seed_from_u64(5);
    let mut optima = 0;
    for case in 0..60 {
        let mut duration = || random.random_range(10..90_u64);
        let sizes: Vec<Vec<(usize, u64)>> = (0..4)
            .map(|_| {
                let long = duration();
                vec![(1, long), (2, long * 6 / 10 + 1)]
            })
            .collect();
        let names = ["a", "b", "c", "d"];
        let jobs: Vec<(&str, &[(usize, u64)])> =
            names.iter().zip(&sizes).map(|(name, choices)| (*name, choices.as_slice())).collect();
        let fleet = instance(2, 2, &jobs);
        let done = (random.random_range(0.05..0.6_f64), random.random_range(0.05..0.6_f64));
        let rows = format!(
            "0,start,a,1@0\n0,start,b,2@1\n9,progress,a,{}\n9,progress,b,{}\n12,now,,\n",
            done.0, done.1
        );
        let (seen, restart) = (log(&fleet, &rows).unwrap(), random.random_range(0..20));
        let fleet = with_restart(fleet, restart);
        let new = reschedule(&fleet, Objective::Makespan, &seen, &[]).unwrap();
        let (found, least) = (new.answer.schedule.makespan(), slow(&fleet, &seen, restart));
        assert!(new.answer.bound <= least as f64, "case {case}: a bound above {least} s");
        assert!(
            least <= found && found as f64 <= 1.05 * least as f64,
            "case {case}: {found} s, least {least} s"
        );
        optima += usize::from(found == least);
    }
    println!("{optima} of 60 makespans are the least");
    assert_eq!(optima, 60);
}
