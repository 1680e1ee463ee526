//! `run --launch` and `run --restarts`: whatever happens to a process, the run goes on from its last checkpoint with the
//! same bits, or ends and says why.

use crate::interrupts::{ENDS, last_of, names};
use crate::kills::supervised_process;
use crate::long::cases;
use crate::processes::{of_two, signal, wait_for};
use crate::run::{ended, launched, losses};
use crate::{Folder, Ran, program};
use std::collections::BTreeMap;
use std::process::Command;
use std::time::{Duration, Instant};

fn send(number: u32, name: &str) {
    assert!(Command::new("kill").args([name, &number.to_string()]).status().unwrap().success());
}

/// The losses of each step in a file of metrics, in the order of its lines.
fn by_step(folder: &Folder) -> BTreeMap<u64, Vec<f64>> {
    let mut found: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
    // Before the first step there is no file.
    for line in std::fs::read_to_string(folder.path("metrics")).unwrap_or_default().lines() {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        found.entry(line["step"].as_u64().unwrap()).or_default().push(line["loss"].as_f64().unwrap());
    }
    found
}

/// Waits until a file of metrics has a step behind `step`.
fn wait_for_step(folder: &Folder, step: u64) -> u64 {
    let began = Instant::now();
    loop {
        if let Some((last, _)) = by_step(folder).last_key_value()
            && *last > step
        {
            return *last;
        }
        assert!(began.elapsed() < Duration::from_secs(120), "there is no step behind {step}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn after_a_fault_the_run_goes_on_with_the_same_bits() {
    let folder = of_two();
    let expected = losses(&folder.run("run plan.toml --steps 6").stdout);
    let check = |arguments: &str, code: i32, restarts: &[&str]| {
        let _ = std::fs::remove_dir_all(folder.path("ck"));
        let ran = folder
            .run(&format!("run plan.toml --steps 6 --save ck --save-every 2 --metrics metrics {arguments}"));
        assert_eq!(ran.code, code, "{arguments}: {ran:?}");
        let said: Vec<&str> = ran.stderr.lines().filter(|line| line.starts_with("restart ")).collect();
        assert_eq!(said, restarts, "{arguments}: {ran:?}");
        let steps = by_step(&folder);
        let found: Vec<f64> = steps.values().map(|losses| *losses.last().unwrap()).collect();
        let same = found.iter().zip(&expected).all(|(found, printed)| (found - printed).abs() < 1e-4);
        assert!(
            same && steps.values().all(|losses| losses.iter().all(|loss| *loss == losses[0])),
            "{steps:?}"
        );
        [found.len(), steps.values().filter(|losses| losses.len() > 1).count()]
    };
    // Steps, and how many of them were done twice.
    assert_eq!(check("--restarts 1 --drill death:1:6:4", 0, &["restart 1 of 1 from step 4"]), [6, 1]);
    assert_eq!(
        check("--launch --restarts 1 --drill death:0:2:4", 0, &["restart 1 of 1 from the beginning"]),
        [6, 0]
    );
    let stalls = "--launch --restarts 3 --patience 3 --drill stall:1:6:4";
    assert_eq!(check(stalls, 0, &["restart 1 of 3 from step 4"]), [6, 1]);
    // Without restarts, and where the same steps would do the same again.
    assert_eq!(check("--launch --drill death:1:5:4", 1, &[]), [4, 0]);
    assert_eq!(check("--launch --restarts 2 --drill nan:1:3", 4, &[]), [2, 0]);
    assert_eq!(check("--launch", 0, &[]), [6, 0]);
}

/// A kill of each rank and a process that hangs, fifty in long tests; `TRAINWRIGHT_DRILLS` asks for another number.
#[test]
fn a_run_survives_its_killed_and_stopped_processes() {
    let folder = of_two();
    let drills = cases("TRAINWRIGHT_DRILLS", 3, 50);
    let run =
        "run plan.toml --launch --steps 1000000 --save ck --save-every 1 --metrics metrics --patience 3";
    let supervisor = program(&folder.path(""), &format!("{run} --restarts {drills}")).spawn().unwrap();
    wait_for(&folder, "ck/step-00000002");
    let mut done = 0;
    for drill in 0..drills {
        done = wait_for_step(&folder, done);
        let (name, rank) = [("-KILL", 0), ("-KILL", 1), ("-STOP", 1)][drill % 3];
        let process = supervised_process(&supervisor, rank).expect("the rank has a process");
        send(process, name);
        // The next attempt has another one.
        let began = Instant::now();
        while supervised_process(&supervisor, rank).is_none_or(|number| number == process) {
            assert!(began.elapsed() < Duration::from_secs(120), "{name} on rank {rank}: there is no restart");
            std::thread::sleep(Duration::from_millis(20));
        }
        done = by_step(&folder).last_key_value().map_or(done, |(step, _)| *step);
    }
    wait_for_step(&folder, done);
    signal(&supervisor, "-TERM");
    let ran = ended(supervisor);
    assert_eq!(ran.code, 130, "{ran:?}");
    let said: Vec<&str> = ran.stderr.lines().filter(|line| line.starts_with("restart ")).collect();
    assert_eq!(said.len(), drills, "{ran:?}");
    assert!(said.iter().all(|line| line.contains(" ended with signal: 9")), "{said:?}");
    let steps = by_step(&folder);
    let (last, _) = steps.last_key_value().unwrap();
    let uninterrupted = losses(&folder.run(&format!("run plan.toml --steps {last}")).stdout);
    for (step, losses) in &steps {
        let same = |loss: &f64| (loss - uninterrupted[*step as usize - 1]).abs() < 1e-4;
        assert!(losses.iter().all(same), "step {step}: {losses:?}");
    }
}

/// As on several hosts: a supervisor for each rank, started by a launcher.
#[test]
fn supervisors_of_single_ranks_bring_them_together_again() {
    let folder = of_two();
    let run = "run plan.toml --transport tcp --patience 3 --steps 1000000 --save ck --save-every 1 --metrics metrics";
    let supervisors = launched(&folder, &format!("{run} --restarts 1"), 2);
    let done = wait_for_step(&folder, 2);
    send(supervised_process(&supervisors[1], 1).unwrap(), "-KILL");
    // More than what may have been on its way.
    wait_for_step(&folder, done + 100);
    supervisors.iter().for_each(|supervisor| signal(supervisor, "-TERM"));
    let ran: Vec<Ran> = supervisors.into_iter().map(ended).collect();
    assert!(ran.iter().all(|ran| ran.code == 130), "{ran:?}");
    assert!(ran.iter().all(|ran| ran.stderr.contains("restart 1 of 1 from step ")), "{ran:?}");
    assert!(ran[1].stderr.contains("the process ended with signal: 9"), "{ran:?}");
}

#[test]
fn a_signal_to_the_supervisor_ends_all_ranks_with_a_checkpoint() {
    for launch in ["--launch", "--restarts 3"] {
        let folder = of_two();
        let run = format!("run plan.toml --steps 1000000 --save ck --save-every 1 {launch}");
        let supervisor = program(&folder.path(""), &run).spawn().unwrap();
        wait_for(&folder, "ck/step-00000002");
        signal(&supervisor, "-INT");
        let ran = ended(supervisor);
        assert_eq!((ran.code, ran.stderr.as_str()), (130, ENDS), "{launch}: {ran:?}");
        assert_eq!(names(&folder, "ck").last(), Some(&last_of(&ran.stdout)));
    }
}

/// No process of the run is left.
#[test]
fn a_supervisor_that_is_killed_leaves_a_checkpoint_and_no_process() {
    let folder = of_two();
    let run = "run plan.toml --launch --steps 1000000 --save ck --save-every 1 --restarts 3";
    let mut supervisor = program(&folder.path(""), run).spawn().unwrap();
    wait_for(&folder, "ck/step-00000002");
    let ranks = [0, 1].map(|rank| supervised_process(&supervisor, rank).unwrap());
    supervisor.kill().unwrap();
    supervisor.wait().unwrap();
    let began = Instant::now();
    // An orphan's exit status may wait for init: a zombie has no arguments any more.
    let runs =
        |number: &u32| std::fs::read(format!("/proc/{number}/cmdline")).is_ok_and(|text| !text.is_empty());
    while ranks.iter().any(runs) {
        assert!(began.elapsed() < Duration::from_secs(60), "a process is left");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(names(&folder, "ck").iter().all(|name| name.starts_with("step-")));
}

#[test]
fn what_cannot_be_started_again_is_refused() {
    let folder = of_two();
    let check = |arguments: &str, variables: &[(&str, &str)], code: i32, expected: &str| {
        let mut command = program(&folder.path(""), &format!("run {arguments}"));
        let ran = ended(command.envs(variables.iter().copied()).spawn().unwrap());
        assert_eq!((ran.code, ran.stderr.lines().count()), (code, 1), "{arguments}: {ran:?}");
        assert!(ran.stderr.contains(expected), "{arguments}: {ran:?}");
    };
    check("plan.toml --restarts 1", &[], 2, "--save-every");
    check("plan.toml --restarts x --save ck --save-every 1", &[], 2, "--restarts");
    check("- --launch", &[], 2, "`--launch` starts other processes");
    check("plan.toml --restarts 1 --save ck --save-every 1 --data -", &[], 2, "have no standard input");
    check("plan.toml --launch --transport tcp", &[], 2, "cannot be used with");
    check("plan.toml --launch", &[("RANK", "0")], 2, "`--launch` is given where a launcher has set RANK");
    check("plan.toml", &[("TRAINWRIGHT_ATTEMPT", "x")], 2, "TRAINWRIGHT_ATTEMPT is a number");
    // The processes' own refusals are not repeated, and not tried again.
    check("plan.toml --restarts 3 --save ck --save-every 1 --data nothing", &[], 2, "nothing");
}
