//! `tests/gpu.sh`, which has to be right the first time it meets a GPU: its parts, limits, exit codes and what it leaves when it is
//! killed, with made-up programs in the place of those that need a GPU; all of it on an emulated GPU; the unit tests of its Python.

use crate::Folder;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");
const ARCHIVE: &str = "results/gpu-results.tar.gz";

/// A program of a few lines of shell.
fn write_program(folder: &Folder, name: &str, text: &str) {
    folder.write(name, &format!("#!/bin/sh\n{text}\n"));
    std::fs::set_permissions(folder.path(name), PermissionsExt::from_mode(0o755)).unwrap();
}

/// The script for a folder, with a program that checks kernels as `check` says; `about` is its exit code for the query of the GPU.
fn script(folder: &Folder, about: usize, check: &str, parts: &str) -> Command {
    write_program(
        folder,
        "check",
        &format!("if [ \"${{2:-}}\" = about ]; then echo a GPU; exit {about}; fi\n{check}"),
    );
    let mut command = Command::new("sh");
    command
        .arg(Path::new(ROOT).join("tests/gpu.sh"))
        .arg(folder.path("results"))
        .args(parts.split_whitespace());
    command.env("GPU_CHECK", folder.path("check")).env("TRAINWRIGHT", folder.path("no-trainwright"));
    // A killed script cannot remove its scratch folder.
    command.env_remove("GPU_DEVICE").env("TMPDIR", folder.path(""));
    command
}

fn said(ran: &Output) -> String {
    String::from_utf8_lossy(&ran.stdout).into_owned() + &String::from_utf8_lossy(&ran.stderr)
}

/// The files in the archive that the script left.
fn archived(folder: &Folder) -> Vec<String> {
    let ran = Command::new("tar").arg("-tzf").arg(folder.path(ARCHIVE)).output().unwrap();
    assert!(ran.status.success(), "{}", said(&ran));
    let names = String::from_utf8(ran.stdout).unwrap();
    names.lines().map(|name| name.trim_start_matches("gpu-results/").into()).collect()
}

/// The files in the folder of results, hidden ones too.
fn left(folder: &Folder) -> Vec<String> {
    let entries = std::fs::read_dir(folder.path("results")).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn has_python() -> bool {
    let is_there = Command::new("python3").arg("--version").output().is_ok();
    if !is_there {
        eprintln!("skipped: there is no python3");
    }
    is_there
}

#[test]
fn the_exit_code_says_whether_there_is_a_gpu_and_whether_it_is_right() {
    let check = |about, done, parts, code, expected: &str| {
        let folder = Folder::new();
        let ran = script(&folder, about, done, parts).output().unwrap();
        let text = said(&ran);
        assert_eq!(ran.status.code(), Some(code), "{parts}: {text}");
        assert!(text.contains(expected), "{parts}: {text}");
    };
    check(0, "echo 7 are right", "kernels", 0, "7 are right");
    check(0, "echo 1 is wrong; exit 1", "kernels versions", 1, "kernels: something is wrong (exit code 1)");
    check(0, "kill -9 $$", "kernels", 1, "kernels was killed after ");
    check(2, "echo never", "kernels", 2, "a GPU");
    check(1, "echo never", "kernels", 1, "could not say what GPU there is: exit code 1");
    check(0, "echo never", "kernels spede", 1, "no part `spede`: there are first kernels");
    check(0, "echo never", "parity", 0, "== parity is left out: ");
}

#[test]
fn a_part_that_runs_too_long_is_stopped_and_what_it_said_is_kept() {
    let folder = Folder::new();
    let mut command =
        script(&folder, 0, "echo a row; echo a cell >\"$1/checks.csv\"; sleep 60; echo another", "kernels");
    let ran = command.env("KERNELS_SECONDS", "2").output().unwrap();
    assert_eq!(ran.status.code(), Some(0));
    let table = folder.read("results/table.txt");
    assert!(table.contains("a row\nkernels was stopped after 2 s"), "{table}");
    assert!(!table.contains("another"), "{table}");
    assert_eq!(left(&folder), ["gpu-results.tar.gz", "table.txt"]);
    let files = archived(&folder);
    assert!(
        ["checks.csv", "gpu.txt", "table.txt"].iter().all(|name| files.iter().any(|file| file == name)),
        "{files:?}"
    );
}

#[test]
fn without_python_the_kernels_are_checked_and_training_is_left_out() {
    let folder = Folder::new();
    let bin = folder.path("bin");
    std::fs::create_dir(&bin).unwrap();
    let tools =
        "sh dirname mkdir mktemp date tee tar gzip cp mv rm cat timeout nice sleep uname tr tail grep";
    for tool in tools.split(' ') {
        let found = std::env::split_paths(&std::env::var_os("PATH").unwrap())
            .map(|path| path.join(tool))
            .find(|path| path.exists());
        std::os::unix::fs::symlink(found.unwrap_or_else(|| panic!("{tool}")), bin.join(tool)).unwrap();
    }
    let ran = script(&folder, 0, "echo 7 are right", "").env("PATH", &bin).output().unwrap();
    let text = said(&ran);
    assert_eq!(ran.status.code(), Some(0), "{text}");
    assert!(
        text.contains("7 are right") && text.contains("== first is left out: python3 is not there"),
        "{text}"
    );
    assert!(archived(&folder).contains(&"gpu.txt".to_string()));
}

/// A script that runs in a new process group, and is killed with it.
struct Killed(Child);

impl Killed {
    fn start(command: &mut Command) -> Killed {
        Killed(command.stdout(Stdio::null()).stderr(Stdio::null()).process_group(0).spawn().unwrap())
    }

    /// Waits until a file has that text, which the script must write before it ends.
    fn wait_for(&mut self, path: &Path, text: &str) {
        let end = Instant::now() + Duration::from_secs(120);
        while !std::fs::read_to_string(path).is_ok_and(|content| content.contains(text)) {
            assert!(
                self.0.try_wait().unwrap().is_none() && Instant::now() < end,
                "no `{text}` in {}",
                path.display()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn signal(&self, name: &str, target: String) {
        assert!(Command::new("kill").args([name, "--", &target]).status().unwrap().success());
    }

    fn kill(mut self) {
        self.signal("-KILL", format!("-{}", self.0.id()));
        self.0.wait().unwrap();
    }
}

/// `first` trains with a made-up program; every later run of it waits until the folder is gone.
fn programs_that_stop_after_the_kernels(folder: &Folder) -> Command {
    let mut command =
        script(folder, 0, "echo 7 are right; echo a cell >\"$1/checks.csv\"", "first kernels large");
    write_program(
        folder,
        "trainwright",
        &format!(
            "case $1 in
            plan) while [ $# -gt 1 ]; do [ \"$1\" = --out ] && echo plan >\"$2\"; shift; done ;;
            simulate) echo '{{\"forecast\": {{\"model_flops_causal_attention\": 8e12, \"step_time_s\": 0.02, \
             \"mfu_causal_attention\": 0.4}}}}' ;;
            run)
                while [ -e '{there}/results/table.txt' ] && grep -q '^== large' '{there}/results/table.txt'; do sleep 0.1; done
                for step in 1 2 3 4 5 6; do echo \"step     $step  loss  10.9000  100 tokens/s\"; done
                while [ $# -gt 1 ]; do [ \"$1\" = --trace ] && echo '{{\"traceEvents\": []}}' >\"$2\"; shift; done ;;
            esac",
            there = folder.path("").display()
        ),
    );
    command.env("TRAINWRIGHT", folder.path("trainwright"));
    command
}

#[test]
fn a_run_that_is_killed_leaves_the_parts_before() {
    if !has_python() {
        return;
    }
    let folder = Folder::new();
    let mut ran = Killed::start(&mut programs_that_stop_after_the_kernels(&folder));
    let table = folder.path("results/table.txt");
    ran.wait_for(&table, "== large");
    ran.kill();
    let files = archived(&folder);
    for name in ["first.csv", "first-losses.csv", "checks.csv", "traces/gpt-2-124M-own-attention.json"] {
        assert!(files.iter().any(|file| file == name), "{name}: {files:?}");
    }
    let printed = folder.read("results/table.txt");
    assert!(printed.contains("7 are right") && !printed.contains("llama 1B"), "{printed}");
    assert!(left(&folder).iter().all(|name| name == "gpu-results.tar.gz" || name == "table.txt"));
}

/// The archive of the part before stays until the next one is complete: here the second one never is.
#[test]
fn a_run_that_is_killed_while_it_packs_leaves_the_archive_before() {
    let folder = Folder::new();
    std::fs::create_dir(folder.path("bin")).unwrap();
    let marker = folder.path("packing");
    write_program(
        &folder,
        "bin/tar",
        &format!(
            "PATH=${{PATH#*:}}
            if [ ! -e '{0}.before' ]; then touch '{0}.before'; exec tar \"$@\"; fi
            echo no archive >\"$4\"; echo packing >'{0}'
            while [ -e '{0}' ]; do sleep 0.1; done",
            marker.display()
        ),
    );
    let mut command = script(&folder, 0, "echo a cell >\"$1/$2.csv\"", "kernels versions");
    let path = std::env::var("PATH").unwrap();
    command.env("PATH", format!("{}:{path}", folder.path("bin").display()));
    let mut ran = Killed::start(&mut command);
    ran.wait_for(&marker, "packing");
    ran.kill();
    let files = archived(&folder);
    assert!(files.iter().any(|file| file == "checks.csv"), "{files:?}");
    assert!(!files.iter().any(|file| file == "versions.csv"), "{files:?}");
}

#[test]
fn a_run_that_is_asked_to_end_packs_what_it_has() {
    let folder = Folder::new();
    let check = "echo a cell >\"$1/checks.csv\"; echo a row; while [ -e \"$1\" ]; do sleep 0.1; done";
    let mut ran = Killed::start(&mut script(&folder, 0, check, "kernels"));
    ran.wait_for(&folder.path("results/table.txt"), "a row");
    ran.signal("-TERM", ran.0.id().to_string());
    assert_eq!(ran.0.wait().unwrap().code(), Some(1));
    assert!(archived(&folder).contains(&"checks.csv".to_string()));
    assert!(folder.read("results/table.txt").contains("stopped by a signal\n"));
}

/// Every part in its order, on stand-ins; one line for those that need a GPU.
#[test]
fn all_parts_run_on_an_emulated_gpu() {
    let has_compiler =
        Command::new(std::env::var("CXX").unwrap_or("c++".into())).arg("--version").output().is_ok();
    if !has_python() || !has_compiler {
        return eprintln!("skipped: it takes python3 and a C++ compiler");
    }
    let folder = Folder::new();
    let mut command = script(&folder, 0, "echo never", "");
    command.env("GPU_DEVICE", "emulated").env("TRAINWRIGHT", env!("CARGO_BIN_EXE_trainwright"));
    let ran = command.output().unwrap();
    let text = said(&ran);
    assert_eq!(ran.status.code(), Some(0), "{text}");
    let heads: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("== ")).collect();
    let names: Vec<&str> = heads.iter().map(|head| head.split([' ', ',']).next().unwrap()).collect();
    let expected = ["first", "kernels", "large", "torch", "parity", "forecasts", "deterministic", "versions"];
    assert_eq!(names, expected, "{text}");
    let without: Vec<&str> =
        heads.iter().filter_map(|head| head.strip_suffix(" is left out: it needs a GPU")).collect();
    assert_eq!(without, ["kernels", "torch", "versions"], "{text}");
    for fact in [
        "gpt stand-in, 2 x 16 tokens, own attention: reported: losses drift by",
        "gpt stand-in, 2 x 16 tokens, cuDNN's attention: reported: losses drift by",
        "attention: cuDNN, emulated",
        "last step, op by op: ",
        "llama stand-in, 2 x 16 tokens, a graph: step 1: loss",
        "two ranks on one GPU by NCCL: left out: it needs a GPU",
        "10 right, 4 reported",
        "ms forecast from its own ops",
        "ms forecast from calibrate",
    ] {
        assert!(text.contains(fact), "{fact}: {text}");
    }
    let files = archived(&folder);
    for name in ["first.csv", "large.csv", "parity.csv", "forecasts.csv", "measured/kernels.csv", "table.txt"]
    {
        assert!(files.iter().any(|file| file == name), "{name}: {files:?}");
    }
    assert_eq!(left(&folder), ["gpu-results.tar.gz", "table.txt"]);
    assert_eq!(folder.read("results/table.txt"), String::from_utf8_lossy(&ran.stdout));
}

#[test]
fn the_parts_in_python_say_what_programs_did() {
    if !has_python() {
        return;
    }
    let tests = Path::new(ROOT).join("tests/tools");
    let ran = Command::new("python3").args(["-m", "unittest", "discover"]).arg(tests).output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
}
