//! Starts processes that run inputs, and says what failed. A process that ends on an input is started again behind it.

use crate::child::Inputs;
use crate::long::cases;
use crate::targets::{Target, targets};
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// An input that takes longer has hung.
const PATIENCE: Duration = Duration::from_secs(60);

/// Processes of a target that end on an input, at most: it has one fault then, many times.
const MOST_ENDS: usize = 12;

/// How a process that was killed is described.
const HUNG: &str = "no end after";

/// Failures at one place of the program.
struct Fault {
    first: u64,
    times: usize,
    said: String,
}

/// What became of a target's inputs.
#[derive(Default)]
struct Report {
    inputs: u64,
    accepted: u64,
    refused: u64,
    bytes: u64,
    slow: Vec<(u64, u64)>,
    faults: BTreeMap<String, Fault>,
}

impl Report {
    fn fault(&mut self, place: String, number: u64, said: String) {
        let new = Fault { first: number, times: 0, said };
        self.faults.entry(place).or_insert(new).times += 1;
    }

    fn line(&mut self, line: &str) {
        let mut words = line.splitn(4, ' ');
        let kind = words.next().unwrap_or_default();
        let mut number = || words.next().and_then(|word| word.parse::<u64>().ok()).unwrap_or_default();
        match kind {
            "failed" => {
                let number = number();
                let (place, said) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
                self.fault(place.into(), number, said.into());
            }
            "slow" => {
                let slow = (number(), number());
                self.slow.push(slow);
            }
            "done" => {
                self.accepted += number();
                self.refused += number();
                self.bytes = self.bytes.max(number());
            }
            _ => {}
        }
    }
}

/// Runs targets: `[--long N] [--from N] [--list] [NAME…]`, all of them without a name. Names of the test harness's options are
/// passed over.
pub fn run(arguments: &[String]) -> ExitCode {
    let number = |option: &str| {
        let at = arguments.iter().position(|argument| argument == option)?;
        Some(arguments.get(at + 1)?.parse::<u64>().unwrap_or_else(|_| panic!("{option} takes a number")))
    };
    let (long, from) = (number("--long"), number("--from").unwrap_or(0));
    let is_name = |argument: &&String| !argument.starts_with('-') && argument.parse::<u64>().is_err();
    let names: Vec<&String> = arguments.iter().filter(is_name).collect();
    let chosen =
        |target: &Target| names.is_empty() || names.iter().any(|name| target.name.contains(name.as_str()));
    let all: Vec<Target> = targets().into_iter().filter(chosen).collect();
    if arguments.iter().any(|argument| argument == "--list") {
        all.iter().for_each(|target| println!("{}: test", target.name));
        return ExitCode::SUCCESS;
    }
    let times = cases("TRAINWRIGHT_MUTATIONS", 1, 2) as u64;
    let (next, reports) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    let names: Vec<(String, u64)> =
        all.iter().map(|target| (target.name.clone(), long.unwrap_or(target.inputs * times))).collect();
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                while let Some((name, inputs)) = names.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let start = Instant::now();
                    let report = supervised(name, from, from + inputs);
                    println!("{}", summary(name, &report, start.elapsed()));
                    reports.lock().unwrap().insert(name.clone(), report);
                }
            });
        }
    });
    let reports = reports.into_inner().unwrap();
    let mut failed = 0;
    for target in &all {
        for (place, fault) in &reports[&target.name].faults {
            failed += 1;
            let kept = keep(target, fault.first);
            let Fault { first, times, said } = fault;
            println!("{} {first}: {place}, {times} times: {said}\n  {}", target.name, kept.display());
        }
    }
    let inputs: u64 = reports.values().map(|report| report.inputs).sum();
    println!("{} targets, {inputs} inputs, {failed} faults", reports.len());
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn summary(name: &str, report: &Report, time: Duration) -> String {
    let Report { inputs, accepted, refused, bytes, slow, faults } = report;
    let slowest = slow.iter().max_by_key(|(_, milliseconds)| milliseconds);
    let slowest = slowest
        .map_or(String::new(), |(number, ms)| format!(", {} slow, number {number} {ms} ms", slow.len()));
    format!(
        "{name:24} {inputs:8} inputs, {accepted:7} accepted, {refused:7} refused, {} faults, {:5} MiB, {:6.1} s{slowest}",
        faults.len(),
        bytes >> 20,
        time.as_secs_f64()
    )
}

/// Keeps an input where a person can look at it.
fn keep(target: &Target, number: u64) -> PathBuf {
    let folder = std::env::temp_dir().join("trainwright-fuzz");
    fs::create_dir_all(&folder).unwrap();
    let path = folder.join(format!("{}-{number}", target.name));
    fs::write(&path, Inputs::of(target).number(target, number)).unwrap();
    path
}

/// Runs inputs in processes of their own.
fn supervised(name: &str, from: u64, to: u64) -> Report {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("number");
    let mut report = Report { inputs: to - from, ..Report::default() };
    let mut first = from;
    for _ in 0..MOST_ENDS {
        match process(name, (first, to), &file, &mut report) {
            None => return report,
            Some((number, said)) => {
                // Waiting for more of the same is worth nothing.
                let hung = said.contains(HUNG);
                // Where a process ends without a word, its place is the input's.
                report.fault(said.clone(), number, said);
                first = number + 1;
                if hung {
                    break;
                }
            }
        }
    }
    report.inputs = first - from;
    report
}

/// Runs inputs until a process ends: the input on which it did, and how, if that was not the last one.
fn process(name: &str, (from, to): (u64, u64), file: &Path, report: &mut Report) -> Option<(u64, String)> {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--child", name, &from.to_string(), &to.to_string()])
        .arg(file)
        .env("RUST_BACKTRACE", "0")
        // Temporary files of the readers.
        .env("TMPDIR", file.parent().unwrap())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (output, mut errors) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let reader =
        std::thread::spawn(move || BufReader::new(output).lines().map_while(Result::ok).collect::<Vec<_>>());
    let said = std::thread::spawn(move || {
        let mut said = Vec::new();
        let _ = errors.read_to_end(&mut said);
        String::from_utf8_lossy(&said).into_owned()
    });
    let number = || fs::read(file).ok().and_then(|bytes| bytes.try_into().ok()).map(u64::from_le_bytes);
    let (mut last, mut since, mut hung) = (None, Instant::now(), false);
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        let now = number();
        if now != last {
            (last, since) = (now, Instant::now());
        }
        if since.elapsed() > PATIENCE {
            hung = true;
            let _ = child.kill();
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let (lines, said) = (reader.join().unwrap(), said.join().unwrap());
    lines.iter().for_each(|line| report.line(line));
    if status.success() {
        return None;
    }
    let how = match hung {
        true => format!("{HUNG} {} s", PATIENCE.as_secs()),
        false => {
            let reason = |line: &&str| line.contains("memory allocation") || line.contains("overflowed");
            let last = || said.lines().rfind(|line| !line.is_empty());
            said.lines().find(reason).or_else(last).unwrap_or("ended").to_string()
        }
    };
    Some((number().unwrap_or(from), format!("{status}: {how}")))
}
