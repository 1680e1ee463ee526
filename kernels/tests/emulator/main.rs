//! The CUDA kernels, compiled as C++ and run thread by thread, against plain loops in f64.

use std::path::Path;
use trainwright_kernels::cuda::check::CHECKS;
use trainwright_kernels::cuda::{DeviceError, Emulator, Turns};

#[test]
fn every_kernel_gives_what_plain_loops_give() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("emulator");
    let mut emulator = match Emulator::new(&folder, Turns::EveryWay) {
        Err(DeviceError::Emulator(reason)) if reason.contains("no C++ compiler") => {
            println!("skipped: {reason}");
            return;
        }
        made => made.unwrap(),
    };
    let mut wrong = Vec::new();
    for check in CHECKS {
        let start = std::time::Instant::now();
        for finding in check.run(&mut emulator, 1).unwrap() {
            if !finding.is_right() {
                wrong.push(format!("{}: {}: {:.2e}", finding.kernel, finding.case, finding.error));
            }
        }
        println!("{}: {:.1} s", check.name, start.elapsed().as_secs_f64());
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
    println!("{} kernels", emulator.ran().len());
    let missing: Vec<String> = emulator.kernels().difference(emulator.ran()).cloned().collect();
    assert!(missing.is_empty(), "never run: {missing:?}");
}
