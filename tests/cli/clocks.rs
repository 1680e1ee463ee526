//! A wall clock that jumps by a day at each look: trainings, their supervisor, its patience and answers do not know.

use crate::kills::each_step;
use crate::processes::of_two;
use crate::run::ended;
use crate::{Folder, Ran, program};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

/// The library that makes the clock of a program jump.
fn jumping_clock(folder: &Folder) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tools/jumping_clock.c");
    let library = folder.path("jumping_clock.so");
    let made =
        Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(source).output().unwrap();
    assert!(made.status.success(), "{made:?}");
    library
}

/// Seconds since 1970 in the names of event files, in the order of their names.
fn seconds(folder: &Folder) -> Vec<f64> {
    let mut names = crate::interrupts::names(folder, "events");
    names.sort();
    names.iter().map(|name| name.split('.').nth(3).unwrap().parse().unwrap()).collect()
}

#[test]
fn a_wall_clock_that_jumps_changes_nothing_but_dates() {
    let folder = of_two();
    let library = jumping_clock(&folder);
    let jumping = |arguments: &str| -> Ran {
        let mut command = program(&folder.path(""), arguments);
        ended(command.env("LD_PRELOAD", &library).spawn().unwrap())
    };
    let run = "run plan.toml --log-interval 1000000";
    let undisturbed = folder.run(&format!("{run} --metrics undisturbed --steps 8"));
    assert_eq!(undisturbed.code, 0, "{undisturbed:?}");
    // Processes with patience, a rank that dies, and another attempt from a checkpoint.
    let ran = jumping(&format!(
        "{run} --metrics metrics --steps 8 --tensorboard events --save ck --save-every 2 --launch --restarts 1 --patience 60 --drill death:1:6:4"
    ));
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.stderr.contains("restart 1 of 1 from step 4"), "{ran:?}");
    let expected = each_step(&folder.path("undisturbed"));
    let found = each_step(&folder.path("metrics"));
    assert!(found.len() >= 8 && found.iter().all(|step| expected.contains(step)), "{found:?} {expected:?}");
    // A rank that hangs is one after as many seconds as with any clock.
    let ran = jumping(&format!("{run} --steps 8 --patience 3 --drill stall:1:2:4"));
    assert!(ran.code == 1 && ran.stderr.contains("rank 1 stopped in step 2"), "{ran:?}");
    // The clock did jump, and the second attempt's file is read behind the first's.
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs_f64();
    let seconds = seconds(&folder);
    assert!(seconds.len() == 2 && seconds[0] < seconds[1], "{seconds:?}");
    assert!(seconds.iter().all(|second| (second - now).abs() > 36_000.0), "{seconds:?}, now {now}");
    let question = "plan --model gpt2 --cluster dgx-a100 --seq 512 --global-batch 16 --space core --json";
    let (usual, other) = (folder.run(question), jumping(question));
    assert_eq!((usual.code, &usual.stdout), (other.code, &other.stdout));
}
