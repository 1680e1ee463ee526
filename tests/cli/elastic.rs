//! `run --elastic`: after a rank is gone for good the run goes on with fewer, as an explicit `--resume` under their plan does.

use crate::interrupts::names;
use crate::kills::{each_step, supervised_process};
use crate::processes::{four_ranks, of_two, signal};
use crate::run::ended;
use crate::{Folder, program};
use std::process::Child;
use std::time::{Duration, Instant};

/// Waits until the supervisor has another process for that rank than `before`, and until a step behind `step` is done.
fn wait_for_restart(folder: &Folder, supervisor: &Child, rank: usize, before: u32, step: u64) -> u64 {
    let began = Instant::now();
    loop {
        let other = supervised_process(supervisor, rank).is_some_and(|number| number != before);
        let last = each_step(&folder.path("metrics")).last().map_or(0, |(step, _)| *step);
        if other && last > step {
            return last;
        }
        assert!(began.elapsed() < Duration::from_secs(120), "there is no step behind {step}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn after_a_rank_is_gone_for_good_the_run_goes_on_with_the_planner_s_plan_for_the_others() {
    let folder = four_ranks();
    let run = "run plan.toml --launch --elastic --restarts 3 --save ck --save-every 1 --keep 1000000 \
               --log-interval 1000000 --metrics metrics --patience 3 --steps 1000000";
    let supervisor = program(&folder.path(""), run).spawn().unwrap();
    let mut done = 1;
    for _ in 0..2 {
        done = wait_for_restart(&folder, &supervisor, 1, 0, done);
        let process = supervised_process(&supervisor, 1).expect("rank 1 has a process");
        crate::kills::kill(process);
        done = wait_for_restart(&folder, &supervisor, 1, process, done);
    }
    // The last attempt has trained a few steps before it is asked to end.
    let lines = || std::fs::read_to_string(folder.path("metrics")).unwrap_or_default().lines().count();
    let before = lines();
    while lines() < before + 3 {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    signal(&supervisor, "-TERM");
    let ran = ended(supervisor);
    assert_eq!(ran.code, 130, "{ran:?}");
    let said: Vec<&str> = ran.stderr.lines().filter(|line| line.starts_with("r")).collect();
    let [first, change, second] = said[..] else { panic!("{said:?}") };
    assert!(first.starts_with("restart 1 of 3 from step "), "{first}");
    // Three ranks have no plan: four sequences, two heads, two blocks.
    let expected = "rank 1 has ended two attempts in succession and is gone for good: 2 of 4 ranks go on, ";
    assert!(change.starts_with(expected) && change.ends_with(" (ck/plan-2-ranks.toml)"), "{change}");
    assert!(change.contains(" instead of tensor 1 × pipeline 2 × data 2 "), "{change}");
    let from = second.strip_prefix("restart 2 of 3 from step ").expect(second);
    let from: u64 = from.split(':').next().unwrap().parse().unwrap();

    // What an explicit run under that plan makes of the same checkpoint.
    let steps = each_step(&folder.path("metrics"));
    let begins = steps.iter().rposition(|(step, _)| *step == from + 1).expect("the last attempt has steps");
    let (last, elastic) = (steps.last().unwrap().0, &steps[begins..]);
    let resumed = folder.run(&format!(
        "run ck/plan-2-ranks.toml --resume ck/step-{from:08} --metrics resumed --steps {last} --log-interval 1000000"
    ));
    assert_eq!((resumed.code, resumed.stderr.as_str()), (0, ""));
    assert_eq!(each_step(&folder.path("resumed")), elastic);
    // The batch is that of all ranks, and the plan is one that the command line makes too.
    let plan = folder.read("ck/plan-2-ranks.toml");
    assert!(plan.contains("global_batch = 4"), "{plan}");
    assert!(names(&folder, "ck").iter().all(|name| name.starts_with("step-") || name == "plan-2-ranks.toml"));
}

#[test]
fn an_elastic_run_needs_a_process_for_each_rank_and_enough_of_them() {
    let folder = of_two();
    let check = |arguments: &str, expected: &str| {
        let ran = folder.run(&format!("run plan.toml --save ck --save-every 1 {arguments}"));
        assert_eq!((ran.code, ran.stderr.lines().count()), (2, 1), "{arguments}: {ran:?}");
        assert!(ran.stderr.contains(expected), "{arguments}: {ran:?}");
    };
    check("--restarts 1 --elastic", "--launch");
    check("--launch --elastic", "--restarts");
    check("--launch --restarts 1 --elastic=3", "`--elastic` is 3; the plan has 2 ranks");
    check("--launch --restarts 1 --elastic=0", "--elastic");
}
