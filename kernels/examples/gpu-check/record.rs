//! Tables that are written line by line, so that an interrupted run keeps its results.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use trainwright_kernels::cuda::DeviceError;
use trainwright_kernels_check::Finding;

/// An error of the device or the folder.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error("{0}: {1}")]
    File(String, std::io::Error),
}

/// A CSV file that grows line by line.
pub struct Table {
    path: String,
    file: File,
}

impl Table {
    /// A new one with its head.
    pub fn new(folder: &Path, name: &str, head: &str) -> Result<Self, Failure> {
        let path = folder.join(name).display().to_string();
        let made = std::fs::create_dir_all(folder).and_then(|()| File::create(&path));
        let mut table = match made {
            Ok(file) => Self { path, file },
            Err(error) => return Err(Failure::File(path, error)),
        };
        table.line(head)?;
        Ok(table)
    }

    /// One more line.
    pub fn line(&mut self, line: &str) -> Result<(), Failure> {
        writeln!(self.file, "{line}").map_err(|error| Failure::File(self.path.clone(), error))
    }
}

/// Whether training uses the compared kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    Training,
    /// A failure says nothing of training, and does not count.
    Nothing,
}

/// The comparisons of all groups.
pub struct Findings {
    table: Table,
    /// How many are wrong of what training uses.
    pub wrong: usize,
    /// How many are wrong of the rest.
    pub wrong_unused: usize,
}

/// Receives each comparison.
pub type Note<'a> = dyn FnMut(Finding, Use) + 'a;

impl Findings {
    /// A new table; prints its head.
    pub fn new(folder: &Path) -> Result<Self, Failure> {
        println!("{:28} {:>11} {:>6}   largest error / tolerance", "check", "comparisons", "wrong");
        let table = Table::new(folder, "checks.csv", "kernel,case,error,tolerance,used by training")?;
        Ok(Self { table, wrong: 0, wrong_unused: 0 })
    }

    /// Runs a group: writes each finding that `check` reports, and prints a line for the group at its end.
    pub fn group(&mut self, name: &str, check: impl FnOnce(&mut Note)) -> Result<(), Failure> {
        let (mut count, mut wrong, mut wrong_unused, mut largest) = (0, 0, 0, 0.0f64);
        let mut written = Ok(());
        check(&mut |finding, used| {
            count += 1;
            if !finding.is_right() {
                let what = match used {
                    Use::Training => {
                        wrong += 1;
                        "WRONG"
                    }
                    Use::Nothing => {
                        wrong_unused += 1;
                        "wrong, unused by training:"
                    }
                };
                println!("  {what} {} ({}): {:.3e}", finding.kernel, finding.case, finding.error);
            }
            let share = if finding.error == 0.0 { 0.0 } else { finding.error / finding.tolerance };
            largest = largest.max(share);
            let Finding { kernel, case, error, tolerance } = &finding;
            let [kernel, case] = [kernel, case].map(|text| text.replace('"', "'"));
            if written.is_ok() {
                let used = if used == Use::Training { "yes" } else { "no" };
                written = self.table.line(&format!("\"{kernel}\",\"{case}\",{error:e},{tolerance:e},{used}"));
            }
        });
        self.wrong += wrong;
        self.wrong_unused += wrong_unused;
        println!("{name:28} {count:11} {wrong:6}   {largest:.3}");
        written
    }
}

/// A wrong finding for a comparison that the device failed to compute.
pub fn failed(kernel: &str, case: String, error: &DeviceError) -> Finding {
    let case = if case.is_empty() { error.to_string() } else { format!("{case}: {error}") };
    Finding { kernel: kernel.into(), case, error: f64::NAN, tolerance: 0.0 }
}
