//! Many plans at once on few cores: each ends with the bytes that it has alone, and takes about as much memory.

use crate::long::cases;
use crate::{Folder, program};
use std::process::{Child, Output};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// The first four take least.
const QUESTIONS: [&str; 8] = [
    "plan --model gpt2 --cluster dgx-a100:1 --seq 256 --global-batch 16 --space core",
    "plan --model gpt2 --cluster dgx-a100 --seq 512 --global-batch 16 --space core --sensitivity",
    "plan --model llama-3-70b --cluster dgx-1v --seq 512 --global-batch 8",
    "plan --model llama-3.2-1b --cluster dgx-a100 --seq 512 --global-batch 16 --space core --lora 8",
    "plan --model gpt2-medium --cluster dgx-h100:2 --seq 1024 --global-batch 32 --risk 0.9",
    "plan --model llama-3-8b --cluster dgx-h100:2 --seq 8192 --global-batch 64",
    "plan --model mixtral-8x7b --cluster dgx-h100:4 --seq 4096 --global-batch 64",
    "plan --model gpt3-175b --cluster dgx-a100:16 --seq 2048 --global-batch 256",
];

/// The most memory that a process has had until now, in KiB; `None` once it has ended.
fn peak(process: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// What processes that run at once say, and the most memory of each in KiB, as far as looks every few milliseconds see it.
fn at_once<'a>(folder: &Folder, questions: impl Iterator<Item = &'a str>) -> Vec<(Output, u64)> {
    let start = |question| program(&folder.path("."), &format!("{question} --json")).spawn().unwrap();
    let children: Vec<Child> = questions.map(start).collect();
    let processes: Vec<u32> = children.iter().map(Child::id).collect();
    let readers: Vec<JoinHandle<Output>> =
        children.into_iter().map(|child| thread::spawn(|| child.wait_with_output().unwrap())).collect();
    let mut peaks = vec![0; processes.len()];
    while !readers.iter().all(JoinHandle::is_finished) {
        for (most, process) in peaks.iter_mut().zip(&processes) {
            *most = peak(*process).unwrap_or(0).max(*most);
        }
        thread::sleep(Duration::from_millis(5));
    }
    readers.into_iter().map(|reader| reader.join().unwrap()).zip(peaks).collect()
}

/// Twelve at once, 200 in long tests; `TRAINWRIGHT_LOAD` asks for another number.
#[test]
fn plans_beside_many_others_are_the_same_bytes_in_as_much_memory() {
    let count = cases("TRAINWRIGHT_LOAD", 12, 200);
    let questions = &QUESTIONS[..if count > 12 { QUESTIONS.len() } else { 4 }];
    let folder = Folder::new();
    let alone: Vec<(Output, u64)> =
        questions.iter().flat_map(|question| at_once(&folder, [*question].into_iter())).collect();
    let beside = at_once(&folder, questions.iter().copied().cycle().take(count));
    let sum: u64 = beside.iter().map(|(_, peak)| peak).sum();
    let most = |said: &[(Output, u64)]| said.iter().map(|(_, peak)| *peak).max().unwrap() / 1024;
    println!(
        "{count} plans at once: at most {} MiB each, {} alone, {} in all",
        most(&beside),
        most(&alone),
        sum / 1024
    );
    for (number, (output, peak)) in beside.iter().enumerate() {
        let (question, (expected, usual)) =
            (questions[number % questions.len()], &alone[number % questions.len()]);
        assert!(matches!(output.status.code(), Some(0 | 3)), "{question}: {output:?}");
        assert!(output == expected, "{question}: plan {number} of {count} is another one beside the others");
        // Threads that wait for a core may hold what those that run have finished with.
        assert!(*peak <= 2 * usual + 64 * 1024, "{question}: {peak} KiB beside others, {usual} alone");
    }
}
