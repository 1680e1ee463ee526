//! Exports of Nsight Systems.

use trainwright_formats::measured::{Device, MeasuredStep};
use trainwright_formats::nsight::{Choice, read};
use trainwright_spec::collective::CollectiveKind;
use trainwright_spec::precision::Precision;
use trainwright_spec::program::{Access, Kernel};
use trainwright_spec::units::{Bytes, Seconds};
use trainwright_timeline::kinds::OpKind;

/// `tests/tools/make_nsight_export.py` wrote it.
const EXPORT: &[u8] = include_bytes!("../data/two-steps.sqlite");

fn micros(time: f64) -> Seconds {
    Seconds::new(time * 1e-6)
}

fn step(precision: Option<Precision>) -> MeasuredStep {
    read(EXPORT, "export", Choice { device: None, precision }).unwrap()
}

#[test]
fn kernels_and_copies_add_up_by_kind() {
    let step = step(None);
    assert_eq!((step.steps, step.device), (2, Device::Gpu));
    assert!((step.step_time / micros(1000.0) - 1.0).abs() < 1e-9, "{}", step.step_time);
    let check = |kind, count, time: f64| {
        let (found, total) = step.kinds.0[&kind];
        assert!(found == count && (total / micros(time) - 1.0).abs() < 1e-9, "{kind}: {found} {total}");
    };
    // Two products, and the sum of a split one, which counts as what it is.
    check(OpKind::Gemm, 2, 160.0);
    check(OpKind::Attention, 1, 40.0);
    check(OpKind::Elementwise, 2, 10.0);
    check(OpKind::Collective(CollectiveKind::AllReduce), 1, 250.0);
    check(OpKind::Offload, 1, 20.0);
    assert!(step.kernels.is_empty(), "no precision, no shape");
}

#[test]
fn shapes_are_those_of_the_innermost_operator_around_the_launch() {
    let profile = step(Some(Precision::Bf16)).profile("export").unwrap();
    let product = |m, n, k| Kernel::Gemm { count: 1, m, n, k, precision: Precision::Bf16, adds_to: None };
    let time = |kernel: Kernel| {
        let found = profile.kernels.iter().find(|measured| measured.kernel == kernel);
        found.unwrap_or_else(|| panic!("{kernel:?} is not in {profile:?}")).time
    };
    assert_eq!(profile.kernels.len(), 3);
    assert_eq!(time(product(4096, 4096, 1024)), micros(100.0));
    // Both kernels of the operator.
    assert_eq!(time(product(4096, 512, 1024)), micros(64.0));
    // Two tensors of 4 Mi elements of two bytes are read and one is written: of a profile's row, all together.
    let bytes = Bytes::new(3.0 * 8.0 * 1024.0 * 1024.0);
    let sum = Kernel::Streaming { access: Access::Elementwise, read: bytes, written: Bytes::ZERO };
    assert_eq!(time(sum), micros(6.0));
}

#[test]
fn other_files_are_refused() {
    let check = |bytes: &[u8], choice: Choice, expected: &str| {
        let error = read(bytes, "file", choice).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
    };
    let other = Choice { device: Some(3), precision: None };
    check(EXPORT, other, "file: kernels of the devices 0: choose one of them by --device");
    check(&EXPORT[..600], Choice::default(), "file: not an SQLite export of Nsight Systems: ");
    check(
        b"SQLite format 3\0 and then nothing",
        Choice::default(),
        "file: not an SQLite export of Nsight Systems: ",
    );
}
