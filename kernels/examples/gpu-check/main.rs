//! Checks every kernel on the GPU of this machine and measures the versions of those that have several.
//!
//! `gpu-check FOLDER` writes checks.csv and versions.csv there and prints a short table; `gpu-check FOLDER checks` leaves the
//! measurements out. It exits with 2 if there is no GPU to use, with 1 if a kernel is wrong.

mod memory_bound;
mod products;
mod timing;

use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;
use timing::Row;
use trainwright_kernels::cuda::check::{CHECKS, Finding};
use trainwright_kernels::cuda::driver::{Gpu, Library};
use trainwright_kernels::cuda::measure::{Bench, Effort};
use trainwright_kernels::cuda::{Device, DeviceError};

/// Seeds of the inputs of the checks.
const SEEDS: [u64; 3] = [1, 2, 3];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (folder, measure) = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [folder] => (folder.to_owned(), true),
        [folder, "checks"] => (folder.to_owned(), false),
        _ => {
            eprintln!("usage: gpu-check FOLDER [checks]");
            return ExitCode::from(1);
        }
    };
    let mut gpu = match Gpu::open(0) {
        Ok(gpu) => gpu,
        Err(error) => {
            eprintln!("no GPU to check: {error}");
            return ExitCode::from(2);
        }
    };
    match run(&mut gpu, Path::new(&folder), measure) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(wrong) => {
            eprintln!("{wrong} comparisons are wrong");
            ExitCode::from(1)
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(1)
        }
    }
}

/// What may go wrong: the device, or the folder.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error("{0}: {1}")]
    File(String, std::io::Error),
}

fn run(gpu: &mut Gpu, folder: &Path, measure: bool) -> Result<usize, Failure> {
    let about = gpu.description().clone();
    println!(
        "{}: compute capability {}.{}, {} multiprocessors, {:.1} GiB; driver for CUDA {}.{}, NVRTC {}.{}",
        about.name,
        about.capability.0,
        about.capability.1,
        about.multiprocessors,
        about.memory as f64 / f64::from(1u32 << 30),
        about.driver / 1000,
        about.driver % 1000 / 10,
        about.compiler.0,
        about.compiler.1
    );
    let start = std::time::Instant::now();
    gpu.compile()?;
    println!("all kernels compiled in {:.1} s", start.elapsed().as_secs_f64());

    let mut findings: Vec<Finding> = Vec::new();
    println!("{:28} {:>11} {:>6}   largest error / tolerance", "check", "comparisons", "wrong");
    for check in CHECKS {
        let mut own = Vec::new();
        for seed in SEEDS {
            own.extend(check.run(gpu, seed)?);
        }
        report(check.name, &own);
        findings.extend(own);
    }
    if let Err(error) = Library::Cudnn.require() {
        println!("attention by cuDNN is left out: {error}");
    }
    if let Err(error) = Library::CublasLt.require() {
        println!("matrix products are left out: {error}");
    } else {
        let own = products::check(gpu)?;
        report("matrix products", &own);
        findings.extend(own);
    }
    let lines = findings.iter().map(|finding| {
        format!("{},\"{}\",{:e},{:e}", finding.kernel, finding.case, finding.error, finding.tolerance)
    });
    write(folder, "checks.csv", "kernel,case,error,tolerance", lines)?;

    if measure {
        gpu.clear()?;
        let mut rows = Vec::new();
        let mut bench = Bench::new(gpu, Effort::OF_GPU);
        memory_bound::measure(&mut bench, &mut rows)?;
        if Library::CublasLt.is_there() {
            products::measure(&mut bench, &mut rows)?;
        }
        println!("{:44} {:34} {:>10} {:>12}", "kernel", "shape", "µs", "rate");
        rows.iter().for_each(|row| println!("{row}"));
        write(folder, "versions.csv", Row::HEADER, rows.iter().map(Row::line))?;
    }
    Ok(findings.iter().filter(|finding| !finding.is_right()).count())
}

/// A line for a group, and one for each comparison that is wrong.
fn report(name: &str, findings: &[Finding]) {
    let wrong: Vec<&Finding> = findings.iter().filter(|finding| !finding.is_right()).collect();
    let share =
        |finding: &Finding| if finding.error == 0.0 { 0.0 } else { finding.error / finding.tolerance };
    let largest = findings.iter().map(share).fold(0.0, f64::max);
    println!("{name:28} {:11} {:6}   {largest:.3}", findings.len(), wrong.len());
    for finding in wrong {
        println!("  WRONG {} ({}): {:.3e}", finding.kernel, finding.case, finding.error);
    }
}

fn write(folder: &Path, name: &str, head: &str, lines: impl Iterator<Item = String>) -> Result<(), Failure> {
    let path = folder.join(name);
    let fail = |error| Failure::File(path.display().to_string(), error);
    let mut text = format!("{head}\n");
    lines.for_each(|line| writeln!(text, "{line}").expect("a string takes all"));
    std::fs::create_dir_all(folder).map_err(fail)?;
    std::fs::write(&path, text).map_err(fail)
}
