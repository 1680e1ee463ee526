//! `calibrate`: measures this machine.

use crate::arguments::CalibrateArguments;
use crate::error::{CliError, Outcome, refuse};
use crate::progress::Bar;
use crate::{inputs, output};
use std::num::NonZeroUsize;
use std::path::Path;
use trainwright_executor::{Calibrated, DEVICES, Grid, Measuring, Over, Refused, calibrate};
use trainwright_spec::plan::Plan;
use trainwright_spec::toml_text::TomlText;

/// The table of ops in a profile's folder.
pub const TABLE: &str = "kernels.csv";

/// Runs the command.
///
/// # Errors
/// A plan that the executor does not run, and files that cannot be written.
pub fn run(arguments: &CalibrateArguments) -> Result<Outcome, CliError> {
    let plans = arguments.plan.iter().map(|path| inputs::plan(path, &[], None));
    let plans: Vec<Plan> = plans.collect::<Result<_, _>>()?;
    let folder = Path::new(&arguments.out);
    // Before the measurement, which takes a minute: is there room for the answer?
    if folder.exists() && !folder.is_dir() {
        let allowed = "a folder, or the name of a new one";
        return Err(refuse("--out", &arguments.out, allowed));
    }
    if arguments.device != DEVICES[0] {
        return super::on_device::calibrate(&plans, arguments);
    }
    let bar = Bar::new();
    let mut all = Vec::new();
    for ranks in numbers_of_ranks() {
        let suits = |plan: &&Plan| threads(plan.mesh.ranks()) == threads(ranks);
        let suitable: Vec<Plan> = plans.iter().filter(suits).cloned().collect();
        let measuring = Measuring { ranks, over: Over::Threads, grid: Grid::Machine, plans: &suitable };
        all.push(calibrate(measuring, &mut |done, of| bar.runs(done, of))?);
        let last = all.last().expect("it was just added");
        bar.above(|| output::print(&summary(last)))?;
    }
    drop(bar);
    remark_refused(all.iter().flat_map(|one| &one.refused));
    // All files at the end: an interrupted calibration leaves none.
    make(folder, arguments)?;
    let mut table = String::new();
    for measured in &all {
        table += &rows(measured, table.is_empty());
        write(folder, &cluster_file(measured.threads), &without_ops(measured))?;
    }
    write(folder, TABLE, &table)?;
    output::print(&format!("{}: {} measured ops\n", folder.display(), table.lines().count() - 1))?;
    Ok(Outcome::Done)
}

/// One line on samples that were refused, if any were.
pub fn remark_refused<'a>(refused: impl Iterator<Item = &'a Refused>) {
    let refused: Vec<Refused> = refused.cloned().collect();
    if let Some(line) = Refused::line(&refused) {
        output::remark(&line);
    }
}

/// Makes the folder for a profile.
///
/// # Errors
/// If that cannot be.
pub fn make(folder: &Path, arguments: &CalibrateArguments) -> Result<(), CliError> {
    std::fs::create_dir_all(folder).map_err(|source| CliError::Writing {
        argument: "--out",
        path: arguments.out.clone(),
        source,
    })
}

/// The cluster file in a profile's folder, for ranks of `threads` threads.
pub fn cluster_file(threads: usize) -> String {
    format!("threads-{threads}.toml")
}

/// The threads of each of `ranks` ranks on this machine.
pub fn threads(ranks: usize) -> usize {
    (cores() / ranks).max(1)
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, NonZeroUsize::get)
}

/// The least numbers of ranks that have different numbers of threads, the powers of two among them.
fn numbers_of_ranks() -> impl Iterator<Item = usize> {
    let doubled = std::iter::successors(Some(1), |ranks| Some(2 * ranks));
    doubled.take_while(|ranks| *ranks < 2 * cores())
}

fn rows(measured: &Calibrated, first: bool) -> String {
    let gpu = &measured.cluster.node.gpu;
    let profile = gpu.profile.as_ref().expect("a calibrated device has a profile");
    let version = format!("trainwright {}", env!("CARGO_PKG_VERSION"));
    let text = profile.to_csv(&gpu.name, ["", &version]);
    match (first, text.split_once('\n')) {
        (false, Some((_, rows))) => rows.into(),
        _ => text,
    }
}

fn without_ops(measured: &Calibrated) -> String {
    let mut cluster = measured.cluster.clone();
    cluster.node.gpu.profile = None;
    cluster.write()
}

fn summary(measured: &Calibrated) -> String {
    let node = &measured.cluster.node;
    let steps = node.cores.as_ref().map(|cores| &cores.steps).expect("a calibrated node has cores");
    let latency = steps.copies[0].time;
    let largest = steps.copies.last().expect("a sweep has sizes");
    format!(
        "{} threads a rank: products {}, memory {}, messages {latency}, exchanges {}\n",
        measured.threads,
        node.gpu.peak.values().next().expect("a calibrated device has a peak").value,
        node.gpu.memory_bandwidth.value,
        largest.bytes / largest.time,
    )
}

pub fn write(folder: &Path, name: &str, text: &str) -> Result<(), CliError> {
    let path = folder.join(name).display().to_string();
    output::save("--out", &path, text)
}
