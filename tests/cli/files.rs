//! Files that cannot be read or written: each case with its message and exit code, and nothing half-written is left.

use crate::{Folder, Ran, program, small_plan};
use std::fs::{self, Permissions};
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::{Command, Stdio};

fn prepared() -> Folder {
    let folder = Folder::new();
    folder.write("plan.toml", &small_plan().to_toml());
    folder
}

/// The names in a folder, hidden ones too.
fn names(folder: &Folder) -> Vec<String> {
    let entries = fs::read_dir(folder.path(".")).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Whether this process may write where permissions forbid it.
fn is_root(folder: &Folder) -> bool {
    fs::create_dir(folder.path("probe")).unwrap();
    fs::set_permissions(folder.path("probe"), Permissions::from_mode(0o555)).unwrap();
    let may = fs::write(folder.path("probe/file"), "").is_ok();
    fs::set_permissions(folder.path("probe"), Permissions::from_mode(0o755)).unwrap();
    fs::remove_dir_all(folder.path("probe")).unwrap();
    may
}

/// One line, with the exit code.
fn refused(ran: &Ran, code: i32, expected: &str) {
    assert_eq!(ran.code, code, "{ran:?}");
    let errors: Vec<&str> = ran.stderr.lines().filter(|line| line.starts_with("error: ")).collect();
    assert!(matches!(&errors[..], [line] if line.contains(expected)), "{expected}: {ran:?}");
    assert!(!ran.stderr.contains("panicked"), "{ran:?}");
}

/// Every option that writes a file, of commands that are quick.
const WRITERS: [&str; 9] = [
    "simulate plan.toml --trace",
    "simulate plan.toml --report",
    "simulate plan.toml --picture",
    "simulate plan.toml --svg",
    "simulate plan.toml --png",
    "export plan.toml --to megatron-lm --out",
    "stragglers plan.toml --jitter 0.1 --samples 2 --csv",
    "network --cluster dgx-a100 --collective all_reduce --bytes 8..8K --svg",
    "what-if --plan plan.toml --vary micro_batch=1,2 --csv",
];

#[test]
fn a_file_that_cannot_be_written_is_one_line_and_leaves_nothing() {
    let folder = prepared();
    fs::create_dir(folder.path("locked")).unwrap();
    fs::set_permissions(folder.path("locked"), Permissions::from_mode(0o555)).unwrap();
    let locked = !is_root(&folder);
    let before = names(&folder);
    for writer in WRITERS {
        refused(
            &folder.run(&format!("{writer} nowhere/file")),
            1,
            "cannot write nowhere/file: no such file or directory",
        );
        refused(&folder.run(&format!("{writer} .")), 1, "cannot write .: is a directory");
        refused(&folder.run(&format!("{writer} plan.toml/file")), 1, "not a directory");
        // A device without space.
        refused(
            &folder.run(&format!("{writer} /dev/full")),
            1,
            "cannot write /dev/full: no space left on device",
        );
        if locked {
            refused(&folder.run(&format!("{writer} locked/file")), 1, "permission denied");
        }
        assert_eq!(names(&folder), before, "{writer}");
    }
    fs::set_permissions(folder.path("locked"), Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn a_link_stays_a_link_and_its_target_is_replaced() {
    let folder = prepared();
    folder.write("target.sh", "old");
    symlink("target.sh", folder.path("link.sh")).unwrap();
    let ran = folder.run("export plan.toml --to megatron-lm --lossy --out link.sh");
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(fs::symlink_metadata(folder.path("link.sh")).unwrap().is_symlink());
    assert!(folder.read("target.sh").contains("--num-layers"));
    // A link to itself cannot be followed.
    symlink("loop", folder.path("loop")).unwrap();
    refused(&folder.run("simulate loop"), 2, "cannot read loop: too many levels of symbolic links");
}

#[test]
fn standard_output_that_is_closed_or_full_is_no_panic() {
    let folder = prepared();
    for command in
        ["simulate plan.toml", "simulate plan.toml --json", "show models", "--help", "goodput plan.toml"]
    {
        // Full.
        let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let ran = program(&folder.path("."), command).stdout(full).output().unwrap();
        let said = String::from_utf8(ran.stderr).unwrap();
        assert!(!said.contains("panicked"), "{command}: {said}");
        if command != "--help" {
            assert_eq!(ran.status.code(), Some(1), "{command}: {said}");
            assert!(said.contains("no space left on device"), "{command}: {said}");
        }
        // A reader that has gone.
        let mut child = program(&folder.path("."), command).spawn().unwrap();
        drop(child.stdout.take());
        let mut said = String::new();
        child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert_eq!(
            (child.wait().unwrap().code(), said.contains("panicked")),
            (Some(0), false),
            "{command}: {said}"
        );
        // None from the beginning.
        let closed = format!("exec {} {command} >&-", env!("CARGO_BIN_EXE_trainwright"));
        let mut shell = Command::new("sh");
        let ran =
            shell.args(["-c", &closed]).current_dir(folder.path(".")).stdin(Stdio::null()).output().unwrap();
        let said = String::from_utf8(ran.stderr).unwrap();
        assert!(ran.status.code().is_some() && !said.contains("panicked"), "{command}: {said}");
    }
}

#[test]
fn files_that_are_something_else_are_one_line() {
    let folder = prepared();
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(b"[job]\nsequence = 1\n").unwrap();
    fs::write(folder.path("plan.gz"), gzip.finish().unwrap()).unwrap();
    fs::write(folder.path("latin.toml"), b"model = \"\xe9\"").unwrap();
    folder.write("empty.toml", "");
    folder.write("line.toml", &format!("model = \"{}\"", "a".repeat(60 << 20)));
    fs::write(folder.path("large.toml"), vec![b'a'; 65 << 20]).unwrap();
    for (file, expected) in [
        ("plan.gz", "cannot read plan.gz: stream did not contain valid UTF-8"),
        ("latin.toml", "cannot read latin.toml: stream did not contain valid UTF-8"),
        ("empty.toml", "missing"),
        ("line.toml", "line.toml"),
        ("large.toml", "cannot read large.toml: larger than 64 MiB"),
        ("/dev/zero", "cannot read /dev/zero: larger than 64 MiB"),
        (".", "cannot read .: is a directory"),
        ("none.toml", "cannot read none.toml: no such file or directory"),
    ] {
        let ran = folder.run(&format!("simulate {file}"));
        refused(&ran, 2, expected);
        assert!(ran.stderr.len() < 20_000, "{file}: {} bytes of message", ran.stderr.len());
    }
}

#[test]
fn a_gzipped_trace_that_is_cut_or_holds_something_else_is_one_line() {
    let folder = prepared();
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    gzip.write_all(&vec![b' '; 64 << 20]).unwrap();
    let member = gzip.finish().unwrap();
    fs::write(folder.path("cut.json.gz"), &member[..member.len() / 2]).unwrap();
    refused(&folder.run("profile cut.json.gz --gpu cpu --out out.csv"), 2, "cannot read cut.json.gz");
    fs::write(folder.path("spaces.json.gz"), &member).unwrap();
    refused(
        &folder.run("profile spaces.json.gz --gpu cpu --out out.csv"),
        2,
        "not a trace of PyTorch's profiler",
    );
    assert!(!folder.path("out.csv").exists());
}

#[test]
fn a_name_that_is_no_text_is_one_line() {
    let folder = prepared();
    let name = std::ffi::OsStr::from_bytes(b"pl\xffan.toml");
    fs::copy(folder.path("plan.toml"), folder.path(".").join(name)).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_trainwright"));
    let ran = command.current_dir(folder.path(".")).arg("simulate").arg(name).output().unwrap();
    refused(&Ran::from(ran), 2, "UTF-8");
}
