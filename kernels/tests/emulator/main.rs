//! The CUDA kernels, compiled as C++ and run thread by thread, against plain loops in f64.

use std::path::Path;
use trainwright_kernels::cuda::reduce::Cast;
use trainwright_kernels::cuda::{
    Compute, Device, DeviceError, Emulator, Epilogue, Number, Operands, Product, Recorded, Turns,
};
use trainwright_kernels_check::CHECKS;

#[test]
fn every_kernel_gives_what_plain_loops_give() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("emulator");
    let mut emulator = match Emulator::new(&folder, Turns::AllOrders) {
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
    drop(emulator);
    let emulator = || Emulator::new(&folder, Turns::InOrder).unwrap();
    check_order(emulator);
    check_failed_graph(emulator());
}

/// Another stream or device may read a kernel's output only after waiting for its event.
fn check_order(emulator: impl Fn() -> Emulator) {
    let [mut one, mut other] = [emulator(), emulator()];
    let gpu = one.multiprocessors();
    let x = one.upload(&[0x3f; 4 * 100]).unwrap();
    let [rounded, wide] = [200, 400].map(|bytes| one.allocate(bytes).unwrap());
    let copy = other.allocate(200).unwrap();
    one.launch(&Cast { from: x, to: rounded, count: 100 }.launch(Number::F32, gpu)).unwrap();
    let made = one.record_event().unwrap();
    one.select(1).unwrap();
    let back = Cast { from: rounded, to: wide, count: 100 }.launch(Number::Bf16, gpu);
    assert!(fails(|| one.launch(&back)));
    assert!(fails(|| other.copy(copy, rounded, 200)));
    one.wait(&made).unwrap();
    other.wait(&made).unwrap();
    one.launch(&back).unwrap();
    other.copy(copy, rounded, 200).unwrap();
    // Nor may it be overwritten while others read it.
    one.select(0).unwrap();
    assert!(fails(|| one.zero(rounded, 200)));
    let read = other.record_event().unwrap();
    one.wait(&read).unwrap();
    assert!(fails(|| one.zero(rounded, 200)), "another stream of the same device reads it, too");
    one.finish().unwrap();
    one.zero(rounded, 200).unwrap();
}

/// A graph that fails on another stream leaves stream 0 selected.
fn check_failed_graph(mut emulator: Emulator) {
    let x = emulator.upload(&[0; 256]).unwrap();
    let product = Product {
        rows: 8,
        columns: 8,
        inner: 8,
        left_transposed: false,
        right_transposed: false,
        inputs: Number::F32,
        output: Number::F32,
        compute: Compute::Full,
        accumulate: false,
        epilogue: Epilogue::GeluGradient,
    };
    let recorded = [Recorded::Select(1), Recorded::Multiply(product, Operands::default())];
    let graph = emulator.capture(&recorded).unwrap();
    assert!(matches!(emulator.replay(&graph), Err(DeviceError::NoAlgorithm(_))));
    emulator.zero(x, 256).unwrap();
    emulator.select(0).unwrap();
    // On the same stream as the first one, so no wait is needed.
    emulator.zero(x, 256).unwrap();
}

fn fails(work: impl FnOnce() -> Result<(), DeviceError>) -> bool {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).is_err()
}
