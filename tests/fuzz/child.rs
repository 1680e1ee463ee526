//! Runs a range of a target's inputs in this process.
//!
//! The number of the input that runs stands in a file, so that the process that waits knows it if this one ends. Lines on
//! standard output: `failed NUMBER PLACE MESSAGE`, `slow NUMBER MILLISECONDS`, and at the end `done ACCEPTED REFUSED BYTES`.

use crate::ALLOCATOR;
use crate::mutate::{Draws, LONGEST, Words, spliced};
use crate::targets::{Target, targets};
use std::fs::{self, File};
use std::panic::{self, AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;
use std::thread;
use std::time::Instant;

/// Bytes of the stack, as much as a program's first thread has.
const STACK: usize = 8 << 20;

/// Inputs that take longer are reported, in milliseconds.
const SLOW: u128 = 2000;

/// Where the last panic was, and what it said.
static PANIC: Mutex<Option<(String, String)>> = Mutex::new(None);

/// The intact inputs of a target, and those that once failed.
pub struct Inputs {
    name: String,
    seeds: Vec<Vec<u8>>,
    once_failed: Vec<Vec<u8>>,
    words: Words,
}

impl Inputs {
    pub fn of(target: &Target) -> Self {
        let seeds = (target.seeds)();
        assert!(!seeds.is_empty(), "{}: no valid input", target.name);
        let words = Words::of(&seeds, target.words);
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/corpus").join(&target.name);
        let mut files: Vec<PathBuf> =
            fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        let once_failed = files.into_iter().map(|file| fs::read(file).unwrap()).collect();
        Self { name: target.name.clone(), seeds, once_failed, words }
    }

    /// The input of a number: an intact one, one that once failed, and then damaged ones.
    pub fn number(&self, target: &Target, number: u64) -> Vec<u8> {
        let intact = self.seeds.iter().chain(&self.once_failed);
        if let Some(bytes) = intact.clone().nth(number as usize) {
            return bytes.clone();
        }
        // FNV-1a, so that two targets are not damaged alike.
        let first = self.name.bytes().fold(0xCBF2_9CE4_8422_2325u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3)
        });
        let mut draws = Draws(first.wrapping_add(number.wrapping_mul(0x2545_F491_4F6C_DD1D)));
        let all = self.seeds.len() + self.once_failed.len();
        let drawn =
            |draws: &mut Draws| intact.clone().nth(draws.below(all)).expect("it is below their number");
        let seed = drawn(&mut draws);
        if draws.below(40) == 0 {
            return spliced(seed, drawn(&mut draws), &mut draws);
        }
        let damage = draws.of(target.damages);
        let damaged = damage(seed, &self.words, &mut draws);
        let mut damaged = damaged.unwrap_or_else(|| crate::mutate::bytes::flipped(seed, &mut draws));
        damaged.truncate(LONGEST);
        damaged
    }

    /// Whether it is an intact input, which must be read.
    pub fn is_intact(&self, number: u64) -> bool {
        number < self.seeds.len() as u64
    }
}

/// Runs the inputs from one number to another: `NAME FROM TO FILE`.
pub fn run(arguments: &[String]) -> ExitCode {
    let [name, from, to, file] = arguments else { panic!("NAME FROM TO FILE") };
    let (from, to): (u64, u64) = (from.parse().unwrap(), to.parse().unwrap());
    let (name, current) = (name.clone(), File::create(file).unwrap());
    panic::set_hook(Box::new(|info| {
        let place = info.location().map_or_else(String::new, |at| format!("{}:{}", at.file(), at.line()));
        let text = info.payload().downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| info.payload().downcast_ref::<&str>().copied());
        let said = text.unwrap_or("a panic").replace('\n', " ");
        // The first one of an input is its cause.
        PANIC.lock().unwrap().get_or_insert((place.replace(' ', "_"), said));
    }));
    let work = move || {
        let target = targets().into_iter().find(|target| target.name == name).expect("a target");
        let inputs = Inputs::of(&target);
        let (mut accepted, mut refused) = (0u64, 0u64);
        for number in from..to {
            mark(&current, number);
            match one(&target, &inputs, number) {
                Ok(true) => accepted += 1,
                Ok(false) => refused += 1,
                Err((place, said)) => say(&format!("failed {number} {place} {said}")),
            }
        }
        say(&format!("done {accepted} {refused} {}", ALLOCATOR.max_allocated()));
    };
    let ended = thread::Builder::new().stack_size(STACK).spawn(work).unwrap().join();
    if ended.is_err() {
        let (place, said) = PANIC.lock().unwrap().clone().unwrap_or_default();
        eprintln!("{place}: {said}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// Whether an input is accepted, or where and how it fails.
fn one(target: &Target, inputs: &Inputs, number: u64) -> Result<bool, (String, String)> {
    let bytes = inputs.number(target, number);
    *PANIC.lock().unwrap() = None;
    let start = Instant::now();
    let read = catch_unwind(AssertUnwindSafe(|| (target.read)(&bytes)));
    let milliseconds = start.elapsed().as_millis();
    if milliseconds > SLOW {
        say(&format!("slow {number} {milliseconds}"));
    }
    let Ok(read) = read else {
        return Err(PANIC.lock().unwrap().take().unwrap_or_default());
    };
    match read {
        Ok(()) => Ok(true),
        Err(fault) if inputs.is_intact(number) => Err(("intact".into(), fault.replace('\n', " "))),
        Err(fault) if fault.is_empty() => Err(("message".into(), "a refusal without a word".into())),
        Err(_) => Ok(false),
    }
}

#[cfg(unix)]
fn mark(file: &File, number: u64) {
    use std::os::unix::fs::FileExt;
    file.write_all_at(&number.to_le_bytes(), 0).unwrap();
}

#[cfg(not(unix))]
fn mark(mut file: &File, number: u64) {
    use std::io::{Seek, SeekFrom, Write};
    file.seek(SeekFrom::Start(0)).unwrap();
    file.write_all(&number.to_le_bytes()).unwrap();
}

fn say(line: &str) {
    let line: String = line.chars().take(600).collect();
    println!("{line}");
}
