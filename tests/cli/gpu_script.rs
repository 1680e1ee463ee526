//! `tests/gpu.sh`, which has to be right the first time it meets a GPU: its parts, limits and exit codes with a made-up program
//! in the place of the one that checks kernels, and the unit tests of its Python.

use crate::Folder;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// Runs the script in a folder with a program that does what `check` says; `about` is the exit code where a GPU is asked for.
fn script(folder: &Folder, about: usize, check: &str, parts: &str, limit: &str) -> Output {
    folder.write(
        "check",
        &format!("#!/bin/sh\nif [ \"${{2:-}}\" = about ]; then echo a GPU; exit {about}; fi\n{check}\n"),
    );
    let program = folder.path("check");
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
    let mut command = Command::new("sh");
    command.arg(Path::new(ROOT).join("tests/gpu.sh")).arg(folder.path("results")).arg(&program);
    command.arg("no-trainwright").args(parts.split_whitespace());
    command.env("CHECKS_SECONDS", limit).output().unwrap()
}

#[test]
fn the_exit_code_says_whether_there_is_a_gpu_and_whether_it_is_right() {
    let check = |about, done, parts, code, said: &str| {
        let folder = Folder::new();
        let ran = script(&folder, about, done, parts, "60");
        let text = String::from_utf8_lossy(&ran.stdout) + String::from_utf8_lossy(&ran.stderr);
        assert_eq!(ran.status.code(), Some(code), "{parts}: {text}");
        assert!(text.contains(said), "{parts}: {text}");
    };
    check(0, "echo 7 are right", "checks", 0, "7 are right");
    check(0, "echo 1 is wrong; exit 1", "checks", 1, "1 is wrong");
    check(2, "echo never", "checks", 2, "a GPU");
    check(0, "echo never", "checks spede", 1, "no part `spede`: there are checks parity");
    check(0, "echo never", "parity", 0, "training is left out");
}

#[test]
fn a_part_that_runs_too_long_is_stopped_and_what_it_said_is_kept() {
    let folder = Folder::new();
    let ran = script(&folder, 0, "echo a row; sleep 60; echo another", "checks", "2");
    assert_eq!(ran.status.code(), Some(0));
    let table = folder.read("results/table.txt");
    assert!(table.contains("a row\nchecks was stopped after 2 s"), "{table}");
    assert!(!table.contains("another"), "{table}");
}

#[test]
fn the_parts_in_python_say_what_programs_did() {
    if Command::new("python3").arg("--version").output().is_err() {
        eprintln!("there is no python3: its tests were left out");
        return;
    }
    let tests = Path::new(ROOT).join("tests/tools");
    let ran = Command::new("python3").args(["-m", "unittest", "discover"]).arg(tests).output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
}
