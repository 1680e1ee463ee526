//! Ctrl-C and SIGTERM: the program ends at once and leaves no incomplete file; `plan` answers first.

use crate::processes::{signal, wait_for};
use crate::run::{ended, launched, tiny_plan};
use crate::{Folder, Ran, program};
use std::process::Child;
use std::time::Duration;

/// The names of a folder's files, hidden ones too; empty if there is no folder.
fn names(folder: &Folder, of: &str) -> Vec<String> {
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
    assert_eq!((ran.code, ran.stderr.as_str()), (130, ""), "{arguments}");
    ran
}

#[test]
fn an_interrupted_run_leaves_complete_checkpoints_alone() {
    let run = "run plan.toml --save ck --save-every 1 --steps";
    for (number, name) in ["-INT", "-TERM", "-INT", "-TERM"].into_iter().enumerate() {
        let folder = Folder::new();
        folder.write("plan.toml", &tiny_plan().to_toml());
        interrupted(&folder, &format!("{run} 1000000"), name, || {
            wait_for(&folder, "ck");
            std::thread::sleep(Duration::from_millis(400 + 37 * number as u64));
        });
        let left = names(&folder, "ck");
        assert!(left.iter().all(|name| name.starts_with("step-")), "{left:?}");
        let last = left.last().map(|last| last["step-".len()..].parse::<usize>().unwrap());
        let resume = if last.is_some() { "--resume ck" } else { "" };
        let rest = folder.run(&format!("{run} {} {resume}", last.unwrap_or(0) + 1));
        assert_eq!((rest.code, rest.stderr.as_str()), (0, ""), "{left:?}");
    }
}

#[test]
fn the_others_hear_of_an_interrupted_process() {
    let folder = Folder::new();
    folder.write("plan.toml", &tiny_plan().to_toml());
    let mut processes =
        launched(&folder, "run plan.toml --transport tcp --save ck --save-every 1 --steps 1000000", 2);
    wait_for(&folder, "ck");
    let second = processes.pop().unwrap();
    signal(&second, "-TERM");
    let [first, second] = [processes.pop().unwrap(), second].map(ended);
    assert_eq!((second.code, first.code), (130, 1), "{first:?}");
    assert!(first.stderr.contains("rank 1 is gone"), "{first:?}");
    assert!(names(&folder, "ck").iter().all(|name| name.starts_with("step-")));
}

#[test]
fn interrupted_measurements_leave_nothing() {
    let folder = Folder::new();
    folder.write("plan.toml", &tiny_plan().to_toml());
    let soon = || std::thread::sleep(Duration::from_millis(700));
    for name in ["-INT", "-TERM"] {
        interrupted(&folder, "calibrate --out machine", name, soon);
        interrupted(
            &folder,
            "validate plan.toml --rounds 50 --report page.html --markdown page.md",
            name,
            soon,
        );
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
