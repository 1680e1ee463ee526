//! Checks every kernel on the GPU of this machine and measures the versions of those that have several.
//!
//! `gpu-check FOLDER checks` compares and writes checks.csv there, `gpu-check FOLDER versions` measures and writes versions.csv, both
//! row by row; `gpu-check FOLDER` does one after the other, and `gpu-check FOLDER about` only says what GPU there is. It exits with 2
//! if there is no GPU to use, with 1 if a kernel is wrong.

mod memory_bound;
mod products;
mod record;
mod timing;

use record::{Failure, Findings, Use, failed};
use std::path::Path;
use std::process::ExitCode;
use timing::Rows;
use trainwright_kernels::cuda::Device;
use trainwright_kernels::cuda::driver::{Gpu, Library};
use trainwright_kernels::cuda::measure::{Bench, Effort};
use trainwright_kernels_check::CHECKS;

/// Seeds of the inputs of the checks.
const SEEDS: [u64; 3] = [1, 2, 3];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (folder, parts) = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [folder] => (folder, &[Part::Checks, Part::Versions][..]),
        [folder, "checks"] => (folder, &[Part::Checks][..]),
        [folder, "versions"] => (folder, &[Part::Versions][..]),
        [folder, "about"] => (folder, &[][..]),
        _ => {
            eprintln!("usage: gpu-check FOLDER [checks|versions|about]");
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
    match run(&mut gpu, Path::new(folder), parts) {
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

/// A part of the program.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Part {
    Checks,
    Versions,
}

/// The number of comparisons that are wrong.
fn run(gpu: &mut Gpu, folder: &Path, parts: &[Part]) -> Result<usize, Failure> {
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
    if parts.is_empty() {
        return Ok(0);
    }
    let start = std::time::Instant::now();
    gpu.compile()?;
    println!("all kernels compiled in {:.1} s", start.elapsed().as_secs_f64());
    let mut wrong = 0;
    for part in parts {
        match part {
            Part::Checks => wrong += check(gpu, folder)?,
            Part::Versions => measure(gpu, folder)?,
        }
    }
    Ok(wrong)
}

/// Every kernel and product against plain loops. The number of comparisons that are wrong.
fn check(gpu: &mut Gpu, folder: &Path) -> Result<usize, Failure> {
    let mut findings = Findings::new(folder)?;
    for check in CHECKS {
        findings.group(check.name, |note| {
            for seed in SEEDS {
                match check.run(gpu, seed) {
                    Ok(findings) => findings.into_iter().for_each(|finding| note(finding, Use::Training)),
                    Err(error) => {
                        note(failed(check.name, format!("seed {seed}"), &error), Use::Training);
                        // Frees the check's memory, if the device still works.
                        let _ = gpu.clear();
                    }
                }
            }
        })?;
    }
    if let Err(error) = Library::Cudnn.require() {
        println!("attention by cuDNN is left out: {error}");
    }
    match Library::CublasLt.require() {
        Err(error) => println!("matrix products are left out: {error}"),
        Ok(()) => findings.group("matrix products", |note| products::check(gpu, note))?,
    }
    if findings.wrong_unused > 0 {
        println!("{} comparisons of what training does not use are wrong too", findings.wrong_unused);
    }
    Ok(findings.wrong)
}

/// How long each version of a kernel and each product takes.
fn measure(gpu: &mut Gpu, folder: &Path) -> Result<(), Failure> {
    gpu.clear()?;
    let mut rows = Rows::new(folder)?;
    let mut bench = Bench::new(gpu, Effort::OF_GPU);
    memory_bound::measure(&mut bench, &mut rows);
    if Library::CublasLt.is_there() {
        let end = products::measure(&mut bench, &mut rows);
        rows.ended("matrix products", end);
    }
    rows.end()
}
