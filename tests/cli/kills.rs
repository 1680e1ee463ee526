//! Kills at random moments of a run that saves while it trains: of the process whose threads are the ranks, of one rank's
//! process, of all of them, and under a supervisor. Whatever was killed, the last whole checkpoint is there and undamaged,
//! the run goes on from it with the bits of an undisturbed one, and nothing else is left: no process and so no port, no
//! zombie, no temporary file.

use crate::interrupts::names;
use crate::long::cases;
use crate::processes::{of_two, signal, signal_process};
use crate::run::{ended, launched};
use crate::{Folder, Ran, program};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// Step, loss and norm of the gradients, of each line of a file of metrics. A line may be incomplete where its writer was
/// killed.
pub fn each_step(metrics: &Path) -> Vec<(u64, [f64; 2])> {
    let text = std::fs::read_to_string(metrics).unwrap_or_default();
    let lines = text.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let number = |line: &serde_json::Value, key: &str| line[key].as_f64().expect("a step has it");
    lines
        .map(|line| (line["step"].as_u64().unwrap(), ["loss", "gradient_norm"].map(|key| number(&line, key))))
        .collect()
}

/// The entries of a process's file in /proc; empty if it is gone.
fn of_process(number: u32, name: &str) -> Vec<u8> {
    std::fs::read(format!("/proc/{number}/{name}")).unwrap_or_default()
}

/// The numbers of all processes.
fn all_processes() -> impl Iterator<Item = u32> {
    let entries = std::fs::read_dir("/proc").unwrap();
    entries.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok())
}

/// The children of a process, with the letter of their states: Z is one that has ended and that nobody has waited for.
pub fn children(parent: u32) -> Vec<(u32, char)> {
    let line = |status: &str, key: &str| -> Option<String> {
        status.lines().find_map(|line| line.strip_prefix(key)).map(|text| text.trim().into())
    };
    let child = |number: u32| {
        let status = String::from_utf8_lossy(&of_process(number, "status")).into_owned();
        let is_child = line(&status, "PPid:")?.parse() == Ok(parent);
        let state = line(&status, "State:")?.chars().next()?;
        is_child.then_some((number, state))
    };
    all_processes().filter_map(child).collect()
}

/// The process of a rank that a supervisor has started: a child of it that knows its rank.
pub fn supervised_process(supervisor: &Child, rank: usize) -> Option<u32> {
    let variable = format!("RANK={rank}");
    let knows = |number: u32| {
        of_process(number, "environ").split(|byte| *byte == 0).any(|text| text == variable.as_bytes())
    };
    children(supervisor.id()).into_iter().map(|(number, _)| number).find(|number| knows(*number))
}

pub fn kill(number: u32) {
    signal_process(number, "-KILL");
}

/// Whether some process works in a folder. One that has ended has no folder any more.
pub fn is_used(folder: &Folder) -> bool {
    let folder = folder.path("").canonicalize().unwrap();
    all_processes()
        .any(|number| std::fs::read_link(format!("/proc/{number}/cwd")).is_ok_and(|path| path == folder))
}

/// Numbers that look random, the same in each run of the test.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

/// Waits for a condition, for longer than a machine that is busy with other things needs.
pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < Duration::from_secs(120), "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The step of the last checkpoint; 0 if there is none.
pub fn last(folder: &Folder) -> u64 {
    let steps = names(folder, "ck").into_iter().filter_map(|name| name.strip_prefix("step-")?.parse().ok());
    steps.max().unwrap_or(0)
}

/// Waits until the run has done something and then for a random moment: any, or one in which a checkpoint is being written.
/// Whether it was such a one.
pub fn wait_for_moment(folder: &Folder, random: &mut Random) -> bool {
    let (began, first) = (Instant::now(), last(folder));
    while last(folder) == first {
        assert!(began.elapsed() < Duration::from_secs(120), "there is no checkpoint behind step {first}");
        std::thread::sleep(Duration::from_millis(2));
    }
    std::thread::sleep(Duration::from_millis(random.below(100)));
    let in_save = random.below(3) > 0;
    if in_save {
        while !names(folder, "ck").iter().any(|name| name.starts_with('.')) {
            assert!(began.elapsed() < Duration::from_secs(120), "no checkpoint is written");
        }
        // Through its tensors, checksums, flushes and the rename.
        std::thread::sleep(Duration::from_micros(random.below(5000)));
    }
    in_save
}

/// Sends a signal at a random moment to the process of a rank, or of all ranks, that a supervisor has started. Waits until
/// another is in its place and has saved, and ends the supervisor. What that has said.
pub fn restarted(
    folder: &Folder,
    supervisor: Child,
    rank: Option<usize>,
    name: &str,
    random: &mut Random,
    what: &str,
) -> Ran {
    let process = || match rank {
        Some(rank) => supervised_process(&supervisor, rank),
        None => children(supervisor.id()).first().map(|(number, _)| *number),
    };
    wait_for_moment(folder, random);
    let culprit = process().expect("it has a process");
    signal_process(culprit, name);
    let before = last(folder);
    wait_until(&format!("{what}: there is no restart"), || {
        process().is_some_and(|number| number != culprit) && last(folder) > before + 1
    });
    let children = children(supervisor.id());
    assert!(children.iter().all(|(_, state)| *state != 'Z'), "{what}: a zombie is left: {children:?}");
    signal(&supervisor, "-TERM");
    let ran = ended(supervisor);
    assert_eq!(ran.code, 130, "{what}: {ran:?}");
    assert!(ran.stderr.contains("restart 1 of 1 from step "), "{what}: {ran:?}");
    ran
}

/// Who is killed.
#[derive(Debug, Clone, Copy)]
enum Victim {
    /// The process whose threads are the ranks.
    Threads,
    /// One of two processes; the other ends by itself.
    OneRank(usize),
    /// Both at once.
    AllRanks,
    /// The process of a rank that a supervisor starts again.
    SupervisedRank(usize),
    /// The process of all ranks that a supervisor starts again.
    SupervisedThreads,
}

const VICTIMS: [Victim; 7] = [
    Victim::Threads,
    Victim::OneRank(0),
    Victim::SupervisedRank(1),
    Victim::AllRanks,
    Victim::SupervisedThreads,
    Victim::OneRank(1),
    Victim::SupervisedRank(0),
];

/// Runs until the kill and its consequences are over. Whether the kill left a checkpoint incomplete.
fn drill(folder: &Folder, victim: Victim, metrics: &str, random: &mut Random) -> bool {
    let resume = if last(folder) > 0 { "--resume ck" } else { "" };
    let run = format!(
        "run plan.toml --save ck --save-every 1 {resume} --metrics {metrics} --log-interval 1000000 --patience 5 --steps 1000000"
    );
    let alone = |more: &str| {
        let mut command = program(&folder.path(""), &format!("{run} {more}"));
        command.env("TMPDIR", folder.path("tmp")).stdout(Stdio::null()).spawn().unwrap()
    };
    let is_incomplete = || names(folder, "ck").iter().any(|name| name.starts_with('.'));
    match victim {
        Victim::Threads => {
            let mut process = alone("");
            wait_for_moment(folder, random);
            process.kill().unwrap();
            process.wait().unwrap();
            is_incomplete()
        }
        Victim::OneRank(rank) => {
            let mut processes = launched(folder, &format!("{run} --transport tcp"), 2);
            wait_for_moment(folder, random);
            let mut killed = processes.remove(rank);
            killed.kill().unwrap();
            killed.wait().unwrap();
            let other = ended(processes.remove(0));
            let says = [format!("rank {rank} is gone"), "another rank stopped".into()];
            assert!(other.code == 1 && says.iter().any(|says| other.stderr.contains(says)), "{other:?}");
            // Rank 0 alone writes checkpoints; one that it was writing when it lost the other is removed.
            assert!(rank == 0 || !is_incomplete(), "{:?}", names(folder, "ck"));
            is_incomplete()
        }
        Victim::AllRanks => {
            let mut processes = launched(folder, &format!("{run} --transport tcp"), 2);
            wait_for_moment(folder, random);
            processes.iter_mut().for_each(|process| process.kill().unwrap());
            for process in &mut processes {
                process.wait().unwrap();
            }
            is_incomplete()
        }
        Victim::SupervisedRank(_) | Victim::SupervisedThreads => {
            let (more, rank) = match victim {
                Victim::SupervisedRank(rank) => ("--launch --restarts 1", Some(rank)),
                _ => ("--restarts 1", None),
            };
            restarted(folder, alone(more), rank, "-KILL", random, &format!("{victim:?}"));
            assert!(!is_incomplete(), "the next attempt removes it: {:?}", names(folder, "ck"));
            false
        }
    }
}

/// Seven kills, fifty in long tests; `TRAINWRIGHT_DRILLS` asks for another number.
#[test]
fn after_kills_at_random_moments_the_run_goes_on_with_the_same_bits() {
    let drills = cases("TRAINWRIGHT_DRILLS", VICTIMS.len(), 50);
    let (folder, mut random) = (of_two(), Random(drills as u64));
    std::fs::create_dir(folder.path("tmp")).unwrap();
    let mut incomplete = 0;
    let mut found: BTreeMap<u64, Vec<(String, [f64; 2])>> = BTreeMap::new();
    for number in 0..drills {
        let (victim, before) = (VICTIMS[number % VICTIMS.len()], last(&folder));
        let metrics = format!("metrics-{number}");
        incomplete += usize::from(drill(&folder, victim, &metrics, &mut random));
        wait_until(&format!("{victim:?}: a process is left"), || !is_used(&folder));
        assert!(names(&folder, "tmp").is_empty(), "{victim:?}: {:?}", names(&folder, "tmp"));
        // A checkpoint whose checksum is wrong would be a line on standard error.
        let done = last(&folder);
        assert!(done > before, "{victim:?}: from step {before} to {done}");
        let rest =
            folder.run(&format!("run plan.toml --resume ck --metrics rest-{number} --steps {}", done + 1));
        assert_eq!((rest.code, rest.stderr.as_str()), (0, ""), "{victim:?}");
        let resumed = each_step(&folder.path(&format!("rest-{number}")));
        assert_eq!(resumed.iter().map(|(step, _)| *step).collect::<Vec<_>>(), [done + 1], "{victim:?}");
        for (step, numbers) in each_step(&folder.path(&metrics)).into_iter().chain(resumed) {
            found.entry(step).or_default().push((format!("{number}: {victim:?}"), numbers));
        }
    }
    println!("{incomplete} of {drills} kills left a checkpoint incomplete");
    // Two thirds of the kills of processes that nobody starts again are in the middle of a save.
    assert!(drills < 50 || incomplete > 5, "{incomplete} kills left a checkpoint incomplete");
    let (most, _) = found.last_key_value().unwrap();
    let undisturbed =
        folder.run(&format!("run plan.toml --metrics undisturbed --log-interval 1000000 --steps {most}"));
    assert_eq!(undisturbed.code, 0, "{undisturbed:?}");
    let undisturbed: BTreeMap<u64, [f64; 2]> = each_step(&folder.path("undisturbed")).into_iter().collect();
    for (step, all) in &found {
        assert!(all.iter().all(|(_, numbers)| *numbers == undisturbed[step]), "step {step}: {all:?}");
    }
}
