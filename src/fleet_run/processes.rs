//! The jobs of a fleet as processes of this machine: each is a `run` with a plan, its checkpoints and its output in its folder.
//!
//! A job is a process group of its own. It hears of the end of this program by the end of its standard input, then saves its
//! state and ends too. A new call waits for such jobs before it starts others.

use super::log::LOG;
use crate::commands::run::ATTEMPT;
use crate::defaults;
use crate::error::{CliError, Outcome};
use crate::output;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};
use trainwright_executor::last_checkpoint;
use trainwright_fleet::execute::{Event, Workers};

/// Between two looks at the processes.
const INTERVAL: Duration = Duration::from_millis(20);
/// Between two looks at a job's checkpoints.
const LOOK: Duration = Duration::from_millis(500);
/// The longest time in which jobs of a program that is gone save their state and end.
const LONGEST_END: Duration = Duration::from_secs(120);
/// The longest time that jobs worked after the last line of a log: clocks may be wrong.
const LONGEST_WORK: Duration = Duration::from_secs(3600);
/// The checkpoints of a job, in its folder.
pub const CHECKPOINTS: &str = "checkpoints";
/// The steps of a job, in its folder.
const METRICS: &str = "metrics.jsonl";
/// The file with the number of a process.
pub const PROCESS: &str = "process";
/// A job as a command.
pub struct Task {
    /// Its name.
    pub name: String,
    /// Its folder.
    pub folder: PathBuf,
    /// Its last step.
    pub steps: usize,
    /// Other arguments of `run`.
    pub arguments: Vec<String>,
    /// Processes that were started for it before.
    pub attempts: usize,
}

/// The processes of a fleet.
pub struct Processes<'a> {
    tasks: Vec<Task>,
    /// The plan's file and the steps between two checkpoints of a job on some cores.
    plan: &'a dyn Fn(usize, usize) -> (String, usize),
    running: Vec<Option<Running>>,
    log: File,
    folder: String,
    began: Instant,
    before: f64,
    signals: Arc<AtomicUsize>,
    /// How many signals `wait` has reported.
    seen: usize,
}

struct Running {
    process: Child,
    input: Option<ChildStdin>,
    saved: Option<usize>,
    looked: Instant,
    is_asked: bool,
}

impl<'a> Processes<'a> {
    /// No process yet. Waits for jobs that a program which is gone has left. The clock goes on from `before`, in seconds, which was
    /// written at `logged`; what those jobs did after it counts.
    ///
    /// # Errors
    /// If those jobs do not end, or the folder cannot be written to.
    pub fn new(
        folder: &str,
        tasks: Vec<Task>,
        (before, logged): (f64, Option<SystemTime>),
        plan: &'a dyn Fn(usize, usize) -> (String, usize),
    ) -> Result<Self, CliError> {
        for task in &tasks {
            fs::create_dir_all(&task.folder).map_err(failed(&task.folder))?;
            let (began, mut has_said) = (Instant::now(), false);
            while let Some(other) = alive(&task.folder.join(PROCESS), "run") {
                if began.elapsed() > LONGEST_END {
                    let reason =
                        format!("--out: {folder}: process {other} of job `{}` does not end", task.name);
                    return Err(CliError::NoAnswer { reason });
                }
                if !std::mem::replace(&mut has_said, true) {
                    output::remark(&format!(
                        "waiting for process {other} of job `{}`, which saves and ends",
                        task.name
                    ));
                }
                std::thread::sleep(INTERVAL);
            }
        }
        let path = Path::new(folder).join(LOG);
        let log = OpenOptions::new().append(true).create(true).open(&path).map_err(failed(&path))?;
        let signals = Arc::new(AtomicUsize::new(0));
        let seen = Arc::clone(&signals);
        output::when_interrupted(move || {
            let is_first = seen.fetch_add(1, Ordering::SeqCst) == 0;
            if is_first {
                output::remark(
                    "the jobs save their states and end; another signal ends this program at once",
                );
            }
            is_first
        });
        let last = tasks.iter().filter_map(|task| written(&task.folder.join(METRICS))).max();
        let before = before + worked(logged, last).as_secs_f64();
        let running = tasks.iter().map(|_| None).collect();
        let folder = folder.to_string();
        Ok(Self { tasks, plan, running, log, folder, began: Instant::now(), before, signals, seen: 0 })
    }

    /// The command of a job on some cores.
    fn command(&self, job: usize, cores: usize) -> std::io::Result<Command> {
        let task = &self.tasks[job];
        let (plan, every) = (self.plan)(job, cores);
        let out = OpenOptions::new().append(true).create(true).open(task.folder.join("output.txt"))?;
        let file = |name: &str| task.folder.join(name).into_os_string();
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["run", &plan, "--steps", &task.steps.to_string(), "--save-every", &every.to_string()]);
        command.args(["--threads", &cores.to_string()]);
        command.arg("--save").arg(file(CHECKPOINTS)).arg("--metrics").arg(file(METRICS));
        command.args(&task.arguments);
        command.env(ATTEMPT, task.attempts.to_string()).env(defaults::FILE, "");
        command.stdin(Stdio::piped()).stderr(out.try_clone()?).stdout(out);
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        Ok(command)
    }

    /// What a job has done since the last look.
    fn look(&mut self, job: usize) -> Option<Event> {
        let task = &self.tasks[job];
        let running = self.running[job].as_mut()?;
        // A process that cannot be waited for is one that was waited for: its status is kept.
        if let Ok(Some(end)) = running.process.try_wait() {
            let is_asked = running.is_asked;
            self.running[job] = None;
            let _ = fs::remove_file(task.folder.join(PROCESS));
            return Some(self.event(job, end, is_asked));
        }
        if running.looked.elapsed() < LOOK {
            return None;
        }
        running.looked = Instant::now();
        let saved = last_checkpoint(&task.folder.join(CHECKPOINTS));
        let is_new = saved > running.saved && saved < Some(task.steps);
        running.saved = saved;
        is_new.then_some(Event::Saved)
    }

    fn event(&self, job: usize, end: ExitStatus, is_asked: bool) -> Event {
        let is = |outcome: Outcome| end.code() == Some(outcome as i32);
        if end.success() {
            return Event::Done;
        }
        if is(Outcome::Interrupted) && is_asked {
            return Event::Stopped;
        }
        let never = [Outcome::BadInput, Outcome::NothingFits, Outcome::Diverged];
        let again = !never.into_iter().any(is);
        let said = fs::read_to_string(self.tasks[job].folder.join("output.txt")).unwrap_or_default();
        let said = said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
        let why = match end.code() {
            Some(code) if code == Outcome::Interrupted as i32 => "somebody else stopped it".into(),
            Some(_) => said.trim_start_matches("error: ").to_string(),
            None => format!("its process ended with {end}"),
        };
        if again {
            output::remark(&format!("{}: {why}", self.tasks[job].name));
        }
        Event::Failed { why, again }
    }
}

impl Workers for Processes<'_> {
    type Error = CliError;

    fn now(&self) -> f64 {
        self.before + self.began.elapsed().as_secs_f64()
    }

    fn start(&mut self, job: usize, cores: usize) -> Result<(), CliError> {
        let failed = |error: std::io::Error| CliError::Starting { reason: error.to_string() };
        let mut process = self.command(job, cores).and_then(|mut command| command.spawn()).map_err(failed)?;
        let task = &mut self.tasks[job];
        task.attempts += 1;
        fs::write(task.folder.join(PROCESS), process.id().to_string()).map_err(failed)?;
        self.running[job] = Some(Running {
            input: process.stdin.take(),
            process,
            saved: last_checkpoint(&task.folder.join(CHECKPOINTS)),
            looked: Instant::now(),
            is_asked: false,
        });
        Ok(())
    }

    fn stop(&mut self, job: usize) {
        if let Some(running) = &mut self.running[job] {
            running.is_asked = true;
            // One that has ended meanwhile does not read any more.
            drop(running.input.as_mut().map(|input| input.write_all(b"e")));
        }
    }

    fn saved(&self, job: usize) -> f64 {
        let task = &self.tasks[job];
        let saved = last_checkpoint(&task.folder.join(CHECKPOINTS)).unwrap_or(0);
        (saved as f64 / task.steps as f64).min(1.0)
    }

    fn wait(&mut self, until: f64) -> Vec<(usize, Event)> {
        loop {
            let events: Vec<(usize, Event)> =
                (0..self.tasks.len()).filter_map(|job| Some((job, self.look(job)?))).collect();
            let signals = self.signals.load(Ordering::SeqCst);
            if !events.is_empty() || self.now() >= until || signals != self.seen {
                self.seen = signals;
                return events;
            }
            std::thread::sleep(INTERVAL);
        }
    }

    fn is_interrupted(&self) -> bool {
        self.signals.load(Ordering::SeqCst) > 0
    }

    fn keep(&mut self, line: &str) -> Result<(), CliError> {
        output::remark(line);
        let written = writeln!(self.log, "{line}").and_then(|()| self.log.sync_data());
        let path = Path::new(&self.folder).join(LOG).display().to_string();
        written.map_err(|source| CliError::Writing { argument: "--out", path, source })
    }
}

/// The folder of a fleet, which one program at a time carries out.
pub struct Claim {
    file: PathBuf,
    /// Whether the folder was made for it.
    is_new: bool,
}

/// Makes a fleet's folder, if there is none, and claims it for this program.
///
/// # Errors
/// If another program has it, or it cannot be written to.
pub fn claim(folder: &str) -> Result<Claim, CliError> {
    let is_new = !Path::new(folder).exists();
    fs::create_dir_all(folder).map_err(failed(Path::new(folder)))?;
    let file = Path::new(folder).join(PROCESS);
    if let Some(other) = alive(&file, "fleet-run") {
        let reason = format!("--out: {folder}: process {other} carries this fleet out");
        return Err(CliError::NoAnswer { reason });
    }
    fs::write(&file, std::process::id().to_string()).map_err(failed(&file))?;
    Ok(Claim { file, is_new })
}

impl Drop for Claim {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.file);
        if let (true, Some(folder)) = (self.is_new, self.file.parent()) {
            // A folder with anything in it stays.
            let _ = fs::remove_dir(folder);
        }
    }
}

fn failed(path: &Path) -> impl FnOnce(std::io::Error) -> CliError + use<> {
    let path = path.display().to_string();
    move |source| CliError::Writing { argument: "--out", path, source }
}

/// How long jobs worked after the last line of a log, by the wall clock: from when that was written until when the last metrics of
/// a job were. A clock that was moved meanwhile makes it nothing, or `LONGEST_WORK`.
fn worked(logged: Option<SystemTime>, last: Option<SystemTime>) -> Duration {
    let worked = logged.zip(last).and_then(|(logged, last)| last.duration_since(logged).ok());
    worked.unwrap_or_default().min(LONGEST_WORK)
}

/// When a file was written last.
pub fn written(file: &Path) -> Option<SystemTime> {
    fs::metadata(file).and_then(|file| file.modified()).ok()
}

/// The number of the process that a file names, if it still runs this program with a command. Known on Linux alone.
fn alive(file: &Path, command: &str) -> Option<u32> {
    let number: u32 = fs::read_to_string(file).ok()?.trim().parse().ok()?;
    if number == std::process::id() {
        return None;
    }
    let words = fs::read(format!("/proc/{number}/cmdline")).ok()?;
    let mut words = words.split(|byte| *byte == 0);
    let program = words.next()?;
    let is_ours = String::from_utf8_lossy(program).contains("trainwright");
    (is_ours && words.next() == Some(command.as_bytes())).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_was_moved_adds_nothing_or_a_limit() {
        let logged = SystemTime::UNIX_EPOCH + Duration::from_secs(2_000_000_000);
        let (second, day) = (Duration::from_secs(1), Duration::from_secs(86_400));
        for (last, expected) in [
            (Some(logged + 90 * second), 90 * second),
            (Some(logged), Duration::ZERO),
            (Some(logged - day), Duration::ZERO),
            (Some(SystemTime::UNIX_EPOCH - day), Duration::ZERO),
            (Some(logged + day), LONGEST_WORK),
            (Some(logged + 36_500 * day), LONGEST_WORK),
            (None, Duration::ZERO),
        ] {
            assert_eq!(worked(Some(logged), last), expected, "{last:?}");
            assert_eq!(worked(None, last), Duration::ZERO, "{last:?}");
        }
    }
}
