//! The CUDA kernels, compiled as C++ and run thread by thread, against plain loops in f64.

mod device;

use device::Emulator;
use trainwright_kernels::cuda::check::CHECKS;

#[test]
fn every_kernel_gives_what_plain_loops_give() {
    let Some(mut emulator) = Emulator::new() else {
        println!("skipped: there is no C++ compiler (CXX, or c++)");
        return;
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
