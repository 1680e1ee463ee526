//! A file of events in TensorBoard's folder.

use crate::error::CliError;
use crate::render::training::Quantity;
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};
use trainwright_formats::tensorboard::Event;

/// How the names of event files begin; seconds since 1970 follow. TensorBoard reads the files of a folder in the order of names.
const NAME: &str = "events.out.tfevents.";

/// The file of this run in the folder of `--tensorboard`. Its times and name never go back, whatever the wall clock does:
/// TensorBoard would draw curves backwards, and read a later file before an earlier one.
pub struct EventFile {
    file: File,
    path: String,
    /// Seconds since 1970.
    clock: fn() -> f64,
    /// The latest time that the clock has shown.
    latest: f64,
    /// Whether the run goes on with an earlier one, whose later steps no longer count.
    is_resumed: bool,
}

impl EventFile {
    /// Creates it beside those of earlier runs.
    ///
    /// # Errors
    /// `Writing`.
    pub fn create(folder: &str, is_resumed: bool, clock: fn() -> f64) -> Result<Self, CliError> {
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let host = if host.trim().is_empty() { "localhost" } else { host.trim() };
        let latest = last_second(folder).map_or(0.0, |last| (last + 1) as f64).max(clock());
        let name = format!("{NAME}{:010}.{host}.{}", latest as u64, std::process::id());
        let path = Path::new(folder).join(name).display().to_string();
        let created = fs::create_dir_all(folder).and_then(|()| File::create_new(&path));
        let file = created.map_err(|source| failed(&path, source))?;
        let mut created = Self { file, path, clock, latest, is_resumed };
        let time = created.time();
        created.write(&Event::version(time))?;
        Ok(created)
    }

    /// Adds a step.
    ///
    /// # Errors
    /// `Writing`.
    pub fn add(&mut self, step: usize, quantities: &[Quantity]) -> Result<(), CliError> {
        let time = self.time();
        if std::mem::take(&mut self.is_resumed) {
            self.write(&Event::restart(time, step))?;
        }
        let values = quantities.iter().filter_map(|quantity| Some((quantity.tag, quantity.value?)));
        self.write(&Event::scalars(time, step, values))
    }

    fn time(&mut self) -> f64 {
        self.latest = self.latest.max((self.clock)());
        self.latest
    }

    fn write(&mut self, event: &Event) -> Result<(), CliError> {
        self.file.write_all(&event.record()).map_err(|source| failed(&self.path, source))
    }
}

/// Seconds since 1970.
pub fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

/// The last second that the name of an event file in a folder has; `None` without any.
fn last_second(folder: &str) -> Option<u64> {
    let names = fs::read_dir(folder).ok()?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    names.filter_map(|name| name.strip_prefix(NAME)?.split('.').next()?.parse().ok()).max()
}

fn failed(path: &str, source: std::io::Error) -> CliError {
    CliError::Writing { argument: "--tensorboard", path: path.into(), source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// The wall times of the records of a file: field 1 of each message, of 64 bits. A record has 12 bytes before its message and 4
    /// behind it.
    fn times(path: &str) -> Vec<f64> {
        let bytes = fs::read(path).unwrap();
        let (mut at, mut times) = (0, Vec::new());
        while at < bytes.len() {
            let length = u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) as usize;
            assert_eq!(bytes[at + 12], 1 << 3 | 1);
            times.push(f64::from_le_bytes(bytes[at + 13..at + 21].try_into().unwrap()));
            at += 12 + length + 4;
        }
        times
    }

    #[test]
    fn a_clock_that_jumps_takes_neither_times_nor_files_back() {
        static LOOK: AtomicUsize = AtomicUsize::new(0);
        // The first file's name and version, two steps; the second file's, after the clock went back by more than a day.
        const SHOWN: [f64; 9] =
            [200_000.5, 200_001.0, 200_002.0, 300_000.0, 100_000.0, 100_001.0, 0.0, 100_002.0, 400_000.0];
        let clock = || SHOWN[LOOK.fetch_add(1, Ordering::SeqCst)];
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().to_str().unwrap();
        let mut first = EventFile::create(folder, false, clock).unwrap();
        first.add(1, &[]).unwrap();
        first.add(2, &[]).unwrap();
        assert_eq!(times(&first.path), [200_001.0, 200_002.0, 300_000.0]);
        let mut second = EventFile::create(folder, true, clock).unwrap();
        assert!(second.path.contains("/events.out.tfevents.0000200001."), "{}", second.path);
        for step in 2..5 {
            second.add(step, &[]).unwrap();
        }
        // A restart is said with the first step. None is before the file's second until the clock is beyond it.
        assert_eq!(times(&second.path), [200_001.0, 200_001.0, 200_001.0, 200_001.0, 400_000.0]);
    }
}
