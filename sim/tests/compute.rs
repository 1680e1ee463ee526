//! Kernel costs against answers that one can do in one's head, against published measurements, and the GPUs of the
//! catalog themselves.

use trainwright_sim::compute::kernel_time;
use trainwright_spec::catalog;
use trainwright_spec::cluster::Gpu;
use trainwright_spec::model::Mask;
use trainwright_spec::precision::Precision;
use trainwright_spec::program::{Access, Direction, FlashVersion, FusedAttention, Kernel};
use trainwright_spec::sourced::Sourced;
use trainwright_spec::units::{Bytes, Seconds};

fn gpu(name: &str) -> Gpu {
    toml::from_str(catalog::text("gpu", name).unwrap()).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn product(count: usize, m: usize, n: usize, k: usize, precision: Precision) -> Kernel {
    Kernel::Gemm { count, m, n, k, precision, adds_to: None }
}

/// 108 multiprocessors that do exactly 2.7 TFLOP/s each, all of it reached, no launch gap, 1.4 TB/s reached of 2.
fn round_gpu() -> Gpu {
    toml::from_str(
        r#"
        name = "round"
        generation = "ampere"
        memory = "80 GiB"
        memory_bandwidth = "2 TB/s"
        multiprocessors = 108
        peak.bf16 = "291.6 TFLOP/s"
        achieved.matrix.bf16 = 1
        achieved.attention_forward = 1
        achieved.attention_backward = 1
        achieved.memory = 0.7
        achieved.reduction = 0.5
        achieved.kernel_overhead = "0 us"
        "#,
    )
    .unwrap()
}

fn attention(direction: Direction, batch: usize, tokens: usize, mask: Mask) -> Kernel {
    Kernel::FusedAttention(FusedAttention {
        direction,
        batch,
        heads: 1,
        kv_heads: 1,
        queries: tokens,
        keys: tokens,
        head_dim: 128,
        value_head_dim: 128,
        mask,
        precision: Precision::Bf16,
        version: FlashVersion::Best,
    })
}

#[test]
fn kernels_take_what_the_formula_says() {
    let check = |what: &str, kernel: Kernel, expected_us: f64| {
        let time = kernel_time(&kernel, &round_gpu()).get() * 1e6;
        assert!((time / expected_us - 1.0).abs() < 1e-3, "{what}: {time} µs, expected {expected_us}");
    };
    // One tile of 256 × 128 with k = 8096, 96 more to fill and drain: 2 · 32768 · 8192 = 537 MFLOP at 2.7 TFLOP/s.
    let tile: f64 = 2.0 * 32768.0 * 8192.0 / 2.7e6;
    // 12 × 9 tiles are one wave of 108. Smaller tiles would need more time: 64 × 64 is at 0.83 of the rate. Memory adds as
    // the other side of a right angle: 2 · ((3072 + 1152) · 8096 + 3072 · 1152) bytes = 75.47 MB at 1.4 TB/s.
    check("one wave", product(1, 12 * 256, 9 * 128, 8096, Precision::Bf16), libm::hypot(tile, 75.47 / 1.4));
    // Added to a result in fp32, which is read and written: 2 · (3072 + 1152) · 8096 + 8 · 3072 · 1152 = 96.71 MB.
    let added = Kernel::Gemm {
        count: 1,
        m: 12 * 256,
        n: 9 * 128,
        k: 8096,
        precision: Precision::Bf16,
        adds_to: Some(Bytes::new(4.0)),
    };
    check("added", added, libm::hypot(tile, 96.71 / 1.4));
    // 2 · 4 · ((768 + 1152) · 8096 + 768 · 1152) = 131.4 MB.
    check("4 products", product(4, 3 * 256, 9 * 128, 8096, Precision::Bf16), libm::hypot(tile, 131.4 / 1.4));
    // 30 × 9 tiles are 2.5 waves and take 3; with 30 × 18 tiles of half the size at 0.96 of the rate, 5 waves would
    // take 5 / 2 / 0.96 = 2.6, which is less. 2 · ((7680 + 1152) · 8096 + 7680 · 1152) = 160.7 MB.
    let waves: f64 = 5.0 / 2.0 / 0.9606 * tile;
    check("2.5 waves", product(1, 30 * 256, 9 * 128, 8096, Precision::Bf16), libm::hypot(waves, 160.7 / 1.4));
    // 700 MB read, 700 MB written at 1.4 TB/s: 1 ms.
    check(
        "streaming",
        Kernel::Streaming { access: Access::Elementwise, read: Bytes::new(7e8), written: Bytes::new(7e8) },
        1000.0,
    );
    // A product with one row reads 2 · 16384² bytes = 536.9 MB at 1.4 TB/s, beside 512 tiles of 32 × 32 in 5 waves: 5 · 2 ·
    // 1024 · 16480 flops at 0.652 of 2.7 TFLOP/s = 95.9 µs.
    check(
        "matrix by vector",
        product(1, 1, 16384, 16384, Precision::Bf16),
        libm::hypot(536.97 / 1.4_f64, 95.9),
    );
    // 108 blocks of 128 queries, one each, 13824 keys: 128 · 13824 · 512 flops at 2.7 TFLOP/s = 335.6 µs, and to
    // start and end 128 · 256 · 90 ps = 2.9 µs; backward 2.5 times the flops and 128 · 256 · 500 ps = 16.4 µs.
    check("attention", attention(Direction::Forward, 1, 13824, Mask::Full), 335.54 + 2.95);
    check("attention backward", attention(Direction::Backward, 1, 13824, Mask::Full), 838.86 + 16.38);
    // 10 times the blocks, half of them masked out: 10 · (335.5 / 2 + 64 keys more, 1.55, + 2.95) and half of the
    // longest block, 338.5 / 2, left over.
    check("causal attention", attention(Direction::Forward, 10, 13824, Mask::Causal), 10.0 * 172.27 + 169.2);
}

#[test]
fn grouped_products_reach_a_part_of_a_single_products_speed() {
    let mut alike = round_gpu();
    alike.peak.insert(Precision::Fp8, alike.peak[&Precision::Bf16].clone());
    alike.achieved.matrix.insert(Precision::Fp8, Sourced::new(1.0, "test"));
    let ratios = |precision, of_16_bits: f64, narrow: Option<f64>| {
        let mut grouped = alike.clone();
        grouped.achieved.grouped = Some(Sourced::new(of_16_bits, "test"));
        grouped.achieved.grouped_narrow = narrow.map(|part| Sourced::new(part, "test"));
        [1, 2, 4].map(|count: usize| {
            let kernel = product(count, 3 * 256, 9 * 128, 8096, precision);
            kernel_time(&kernel, &grouped) / kernel_time(&kernel, &alike)
        })
    };
    assert_eq!(ratios(Precision::Bf16, 0.5, Some(0.25)), [1.0, 2.0, 2.0]);
    assert_eq!(ratios(Precision::Fp8, 0.5, Some(0.25)), [1.0, 4.0, 4.0]);
    assert_eq!(ratios(Precision::Fp8, 0.5, None), [1.0, 2.0, 2.0]);
}

#[test]
fn an_unsupported_precision_takes_for_ever() {
    let v100 = gpu("v100-32gb-sxm2");
    assert!(v100.peak.contains_key(&Precision::Fp16));
    for precision in [Precision::Bf16, Precision::Fp8, Precision::Tf32] {
        assert!(!v100.peak.contains_key(&precision));
        assert_eq!(kernel_time(&product(1, 64, 64, 64, precision), &v100), Seconds::new(f64::INFINITY));
    }
}

#[test]
fn larger_kernels_are_never_faster_and_none_beats_the_peak() {
    let sizes = [1, 63, 64, 65, 127, 128, 300, 511, 512, 513, 1000, 1024, 1025, 4096, 5000, 20000, 50000];
    for name in catalog::names("gpus") {
        let gpu = gpu(name);
        let mut precisions = Precision::ALL.into_iter().filter(|precision| gpu.peak.contains_key(precision));
        let precision = precisions.next_back().unwrap();
        let peak = gpu.peak[&precision].value;
        let check = |kernels: Vec<Kernel>| {
            for pair in kernels.windows(2) {
                let [time, larger] = [0, 1].map(|i| kernel_time(&pair[i], &gpu));
                assert!(larger >= time, "{name}: {:?} takes {larger}, {:?} takes {time}", pair[1], pair[0]);
            }
            for kernel in kernels {
                let time = kernel_time(&kernel, &gpu);
                assert!(kernel.flops() / time <= peak, "{name}: {kernel:?} in {time}");
            }
        };
        for other in [64, 700, 8192] {
            check(sizes.map(|m| product(1, m, other, other, precision)).to_vec());
            check(sizes.map(|n| product(1, other, n, other, precision)).to_vec());
            check(sizes.map(|k| product(1, other, other, k, precision)).to_vec());
            check(sizes.map(|count| product(count, other, other, 64, precision)).to_vec());
        }
        check(
            sizes
                .map(|n| Kernel::Streaming {
                    access: Access::Elementwise,
                    read: Bytes::new(n as f64),
                    written: Bytes::ZERO,
                })
                .to_vec(),
        );
        if gpu.peak.contains_key(&Precision::Bf16) {
            for direction in [Direction::Forward, Direction::Backward] {
                for mask in [Mask::Full, Mask::Causal, Mask::Window(1024)] {
                    check(sizes.map(|tokens| attention(direction, 3, tokens, mask)).to_vec());
                    check(sizes.map(|batch| attention(direction, batch, 2048, mask)).to_vec());
                }
            }
        }
    }
}

#[test]
fn every_gpu_of_the_catalog_is_whole_and_sourced() {
    let names = catalog::names("gpus");
    assert!(names.len() >= 30, "{} GPUs", names.len());
    for name in names {
        let gpu = gpu(name);
        assert_eq!(gpu.name, name, "the file's name is the GPU's");
        let mut sources = vec![("memory", &gpu.memory.source)];
        sources.push(("memory_bandwidth", &gpu.memory_bandwidth.source));
        sources.push(("multiprocessors", &gpu.multiprocessors.source));
        sources.push(("kernel_overhead", &gpu.achieved.kernel_overhead.source));
        sources.extend(gpu.peak.iter().map(|(precision, peak)| (precision.name(), &peak.source)));
        let achieved = &gpu.achieved;
        let mut fractions: Vec<(&str, &Sourced<f64>)> = vec![
            ("attention_forward", &achieved.attention_forward),
            ("attention_backward", &achieved.attention_backward),
            ("memory", &achieved.memory),
            ("reduction", &achieved.reduction),
        ];
        fractions.extend(achieved.matrix.iter().map(|(precision, fraction)| (precision.name(), fraction)));
        for (key, fraction) in fractions {
            assert!(fraction.value > 0.0 && fraction.value <= 1.0, "{name}: {key} = {}", fraction.value);
            sources.push((key, &fraction.source));
        }
        for (key, source) in sources {
            assert!(source.len() > 3, "{name}: {key} has no source");
        }
        let precisions: [Vec<&Precision>; 2] = [gpu.peak.keys().collect(), achieved.matrix.keys().collect()];
        assert_eq!(precisions[0], precisions[1], "{name}: peak and achieved.matrix name the same precisions");
        assert!(gpu.memory.value > 4.0 * Bytes::GIB && gpu.multiprocessors.value > 0, "{name}");
        assert!(achieved.kernel_overhead.value > Seconds::ZERO, "{name}");
    }
}
