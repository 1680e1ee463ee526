//! The program as people run it: arguments in, text, files and exit codes out.

mod bad_input;
#[cfg(unix)]
mod browser;
mod by_steps;
mod checkpoints;
#[cfg(target_os = "linux")]
mod clocks;
mod data;
mod defaults;
#[cfg(target_os = "linux")]
mod elastic;
mod examples;
mod extremes;
#[cfg(target_os = "linux")]
mod files;
mod fleet;
mod fleet_online;
#[cfg(target_os = "linux")]
mod fleet_run;
mod generate;
#[cfg(unix)]
mod gpu_script;
#[cfg(unix)]
mod interrupts;
#[cfg(target_os = "linux")]
mod kills;
#[cfg(target_os = "linux")]
mod load;
mod logs;
#[path = "../common/long.rs"]
mod long;
mod machine;
mod models;
mod names;
mod network;
#[cfg(unix)]
mod pages;
mod plan;
#[cfg(target_os = "linux")]
mod plan_kills;
mod predict;
mod processes;
#[cfg(target_os = "linux")]
mod restarts;
mod rl;
mod run;
mod schemas;
mod serve_bench;
mod serve_plan;
mod serving;
mod show;
mod simulate;
mod threads;
mod tools;
mod validate;
mod what_if;
#[cfg(target_os = "linux")]
mod wire;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;
use trainwright_spec::cluster::Cluster;
use trainwright_spec::job::Job;
use trainwright_spec::mesh::Mesh;
use trainwright_spec::model::preset::preset;
use trainwright_spec::plan::Plan;
use trainwright_spec::precision::Precision;
use trainwright_spec::stack::Stack;

/// A folder to run in.
struct Folder(TempDir);

impl Folder {
    fn new() -> Folder {
        Folder(TempDir::new().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).unwrap();
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap()
    }

    /// Runs the program in this folder; arguments are split at spaces.
    fn run(&self, arguments: &str) -> Ran {
        self.run_with_input(arguments, "")
    }

    fn run_with_input(&self, arguments: &str, input: &str) -> Ran {
        let mut child = program(self.0.path(), arguments).spawn().unwrap();
        // A program that refuses its arguments does not read its input: a closed pipe is no fault.
        let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
        Ran::from(child.wait_with_output().unwrap())
    }
}

/// The program that `TRAINWRIGHT` names, such as one that is built for release; it stands in for the one under test.
fn stand_in() -> Option<PathBuf> {
    let path = std::env::var_os("TRAINWRIGHT").map(PathBuf::from)?;
    Some(path.canonicalize().unwrap_or_else(|error| panic!("TRAINWRIGHT, {}: {error}", path.display())))
}

/// The program under test.
fn executable() -> PathBuf {
    stand_in().unwrap_or_else(|| env!("CARGO_BIN_EXE_trainwright").into())
}

fn program(folder: &Path, arguments: &str) -> Command {
    let mut command = Command::new(executable());
    command.current_dir(folder).args(arguments.split(' ').filter(|argument| !argument.is_empty()));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// The exit code and output of a run.
#[derive(Debug)]
struct Ran {
    code: i32,
    stdout: String,
    stderr: String,
}

impl From<Output> for Ran {
    fn from(output: Output) -> Ran {
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Ran {
            code: output.status.code().expect("the program is not killed"),
            stdout: text(output.stdout),
            stderr: text(output.stderr),
        }
    }
}

/// GPT-2 medium on one DGX A100: small enough for debug builds, with every axis in use.
fn small_plan() -> Plan {
    Plan {
        sequence_parallel: true,
        data_sharding: "zero1".into(),
        stages: vec!["2 full, 10 none".parse().unwrap(), "12 none".parse().unwrap()],
        mesh: Mesh::new(2, 2, 2),
        ..Plan::plain(
            preset("gpt2-medium").unwrap(),
            Stack::from_name("megatron-core").unwrap(),
            Cluster::from_name("dgx-a100").unwrap(),
            Job::new(1024, 16, Precision::Bf16),
        )
    }
}
