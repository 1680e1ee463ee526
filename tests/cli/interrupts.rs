//! Ctrl-C and SIGTERM: a run that saves ends after a step with a checkpoint of it, `plan` answers with the best so far,
//! everything else ends at once, and none leaves an incomplete file.

use crate::processes::{signal, wait_for};
use crate::run::{ended, launched, tiny_plan};
use crate::{Folder, Ran, program};
use std::process::Child;
use std::time::Duration;

/// The names of a folder's files, hidden ones too; empty if there is no folder.
pub fn names(folder: &Folder, of: &str) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(folder.path(of)) else { return Vec::new() };
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Waits until a process handles a signal itself, as far as the system shows that.
fn wait_for_handler(child: &Child, name: &str) {
    let bit = if name == "-INT" { 1u64 << 1 } else { 1 << 14 };
    let status = format!("/proc/{}/status", child.id());
    let handles = |text: String| {
        let line = text.lines().find_map(|line| line.strip_prefix("SigCgt:"))?.trim().to_string();
        Some(u64::from_str_radix(&line, 16).ok()? & bit != 0)
    };
    // Without this file there is no way to know.
    while let Ok(text) = std::fs::read_to_string(&status) {
        if handles(text) == Some(true) {
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The output of a program that gets a signal some time after its start.
fn interrupted(folder: &Folder, arguments: &str, name: &str, begun: impl Fn()) -> Ran {
    let child = program(&folder.path("."), arguments).spawn().unwrap();
    wait_for_handler(&child, name);
    begun();
    signal(&child, name);
    let ran = ended(child);
    assert_eq!(ran.code, 130, "{arguments}: {ran:?}");
    ran
}

/// What a run remarks when it is asked to end.
pub const ENDS: &str = "the run ends after this step with a checkpoint; another signal ends it at once\n";

/// A folder with the smallest plan.
fn prepared() -> Folder {
    let folder = Folder::new();
    folder.write("plan.toml", &tiny_plan().to_toml());
    folder
}

/// The name of the checkpoint of the last step that a page shows.
pub fn last_of(page: &str) -> String {
    let last = page.lines().rfind(|line| line.starts_with("step ")).expect("a step was printed");
    format!("step-{:08}", last.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap())
}

#[test]
fn an_interrupted_run_saves_its_last_step_and_can_be_resumed() {
    let run = "run plan.toml --save ck --steps";
    for (number, name) in ["-INT", "-TERM"].into_iter().enumerate() {
        let folder = prepared();
        // With checkpoints before it and without.
        let every = ["--save-every 1", ""][number];
        let ran = interrupted(&folder, &format!("{run} 1000000 {every}"), name, || {
            wait_for(&folder, "ck");
            std::thread::sleep(Duration::from_millis(600));
        });
        assert_eq!(ran.stderr, ENDS);
        let left = names(&folder, "ck");
        assert!(left.iter().all(|name| name.starts_with("step-")), "{left:?}");
        assert_eq!(left.last(), Some(&last_of(&ran.stdout)), "nothing that was trained is lost");
        let last: usize = left.last().unwrap()["step-".len()..].parse().unwrap();
        let rest = folder.run(&format!("{run} {} --resume ck", last + 1));
        assert_eq!((rest.code, rest.stderr.as_str()), (0, ""), "{left:?}");
    }
}

/// The first signal waits for a step that does not end, the second one does not.
#[test]
fn a_second_signal_ends_a_run_at_once() {
    let folder = prepared();
    let run = "run plan.toml --save ck --steps 1000000 --drill stall:0:3:5 --patience 1000";
    let child = program(&folder.path("."), run).spawn().unwrap();
    wait_for_handler(&child, "-INT");
    wait_for(&folder, "ck");
    std::thread::sleep(Duration::from_millis(600));
    signal(&child, "-INT");
    std::thread::sleep(Duration::from_millis(300));
    signal(&child, "-INT");
    let ran = ended(child);
    assert_eq!((ran.code, ran.stderr.as_str()), (130, ENDS));
    assert!(names(&folder, "ck").is_empty());
}

/// Whichever process gets the signal: all of them end after the same step.
#[test]
fn interrupted_processes_end_after_the_same_step_with_its_checkpoint() {
    for signalled in [0, 1] {
        let folder = prepared();
        let run = "run plan.toml --transport tcp --save ck --steps";
        let processes = launched(&folder, &format!("{run} 1000000 --save-every 1"), 2);
        wait_for(&folder, "ck/step-00000002");
        signal(&processes[signalled], "-TERM");
        let ran: Vec<Ran> = processes.into_iter().map(ended).collect();
        assert!(ran.iter().all(|ran| ran.code == 130), "{ran:?}");
        assert_eq!((ran[signalled].stderr.as_str(), ran[1 - signalled].stderr.as_str()), (ENDS, ""));
        assert_eq!(names(&folder, "ck").last(), Some(&last_of(&ran[0].stdout)));
    }
}

#[test]
fn interrupted_measurements_leave_nothing() {
    let folder = prepared();
    let soon = || std::thread::sleep(Duration::from_millis(700));
    for name in ["-INT", "-TERM"] {
        let validate = "validate plan.toml --rounds 50 --report page.html --markdown page.md";
        for arguments in ["calibrate --out machine", validate] {
            assert_eq!(interrupted(&folder, arguments, name, soon).stderr, "", "{arguments}");
        }
        assert_eq!(names(&folder, "."), ["plan.toml"]);
    }
}

/// A question whose search takes minutes.
const LONG_SEARCH: &str = "plan --model deepseek-v3 --cluster hgx-h800:64 --seq 4096 --global-batch 4096 --space whole --out plan.toml";

#[test]
fn an_interrupted_search_has_the_best_plan_so_far() {
    for name in ["-INT", "-TERM"] {
        let folder = Folder::new();
        let child = program(&folder.path("."), LONG_SEARCH).spawn().unwrap();
        wait_for_handler(&child, name);
        signal(&child, name);
        let ran = ended(child);
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        assert_eq!(ran.stderr, "interrupted: the answer so far follows; once more to end at once\n");
        assert!(ran.stdout.contains("not looked at before the search ended"), "{}", ran.stdout);
        assert_eq!(names(&folder, "."), ["plan.toml"]);
        assert_eq!(folder.run("simulate plan.toml").code, 0);
    }
}

#[test]
fn a_second_signal_ends_an_interrupted_search() {
    let folder = Folder::new();
    let child = program(&folder.path("."), LONG_SEARCH).spawn().unwrap();
    wait_for_handler(&child, "-INT");
    // Two of the same that nobody has handled yet would be one.
    signal(&child, "-TERM");
    signal(&child, "-INT");
    let ran = ended(child);
    assert_eq!((ran.code, ran.stdout.as_str()), (130, ""), "{}", ran.stderr);
    assert!(names(&folder, ".").is_empty());
}
