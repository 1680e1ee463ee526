//! Matrix products of activations and weights, with few rows or many.

use super::parts::{CACHE, COMPUTE, Coefficient, Family, MEMORY, Parts, latency, us};
use super::{Chip, Product};
use trainwright_spec::units::Seconds;

/// Matrix products.
pub(super) static FAMILY: Family = Family {
    name: "product",
    title: "matrix products",
    coefficients: &[
        latency(3.0),
        COMPUTE,
        MEMORY,
        Coefficient {
            name: "fill",
            start: 64.0,
            low: 4.0,
            high: 1500.0,
            meaning: "elements of the summed dim that filling and draining a tile's pipeline costs",
        },
        Coefficient {
            name: "loads",
            start: 3.0,
            low: 0.5,
            high: 12.0,
            meaning: "operands that one multiprocessor loads from cache, over its part of the memory bandwidth",
        },
        CACHE,
        Coefficient {
            name: "split",
            start: 1.0,
            low: 0.05,
            high: 20.0,
            meaning: "us to add up the parts of a split sum",
        },
    ],
};

/// Rows and columns of the tiles that libraries have kernels for.
const TILES: [(usize, usize); 16] = [
    (256, 256),
    (256, 128),
    (128, 256),
    (128, 128),
    (256, 64),
    (64, 256),
    (128, 64),
    (64, 128),
    (64, 64),
    (128, 32),
    (32, 128),
    (64, 32),
    (32, 64),
    (32, 32),
    (16, 128),
    (16, 64),
];

/// Into how many parts they split the summed dim.
const SPLITS: [usize; 8] = [1, 2, 3, 4, 8, 12, 16, 32];

/// The shortest part of the summed dim that a split pays for.
const SHORTEST_PART: usize = 128;

/// The parts of the fastest tile's time.
///
/// T = L + min over tiles and splits of √(A² + M²) + O
/// A = w max(2 t_r t_c / (φ R), (t_r a + t_c b) / (λ β / P)) (k / s + f)
/// M = n / (φ_m β), in the cache faster (`Chip::memory_time`)
///
/// w = ⌈⌈m / t_r⌉ ⌈n / t_c⌉ s / P⌉ waves of tiles t_r × t_c, s parts of the summed dim (1 unless the tiles fit in a wave); R
/// peak of one of P multiprocessors, φ `compute`; a and b bytes of an activation and a weight, β memory bandwidth, λ `loads`;
/// f `fill`; n bytes: operands once, results once in 16 bits, and with a split its sums in fp32 written and read; O `split` if
/// there is one.
/// Assumes that the library picks the fastest tile. A product with few rows is bound by the bytes of its weights, one with
/// few tiles by what few multiprocessors load.
/// Source of the form: NVIDIA, Matrix Multiplication Background User's Guide, sections on tile and wave quantization.
pub(super) fn parts(product: &Product, chip: &Chip, coefficients: &[f64]) -> Option<Parts> {
    let &[latency, compute, memory, fill, loads, cache, split] = coefficients else { return None };
    let multiprocessors = chip.multiprocessors();
    let flops = chip.peak(product.operands.units)?.get() / multiprocessors * compute;
    let bytes = chip.gpu.memory_bandwidth.value.get() / multiprocessors * loads;
    let (m, n, k) = (product.m as f64, product.n as f64, product.k as f64);
    let (a, b) = (product.operands.activation.get(), product.operands.weight.get());
    let operands = m * k * a + k * n * b + 2.0 * m * n;
    let along = |length: usize, side: usize| length.div_ceil(side) as f64;
    let mut fastest = Parts::default();
    let mut least = Seconds::new(f64::INFINITY);
    for (rows, columns) in TILES {
        let tiles = along(product.m, rows) * along(product.n, columns);
        let (r, c) = (rows as f64, columns as f64);
        let element = (2.0 * r * c / flops).max((r * a + c * b) / bytes);
        for parts in SPLITS {
            if parts > 1 && (tiles > multiprocessors || product.k < parts * SHORTEST_PART) {
                break;
            }
            let waves = (tiles * parts as f64 / multiprocessors).ceil();
            let sums = if parts > 1 { 8.0 * m * n * parts as f64 / 2.0 } else { 0.0 };
            let found = Parts {
                latency: us(latency),
                arithmetic: Seconds::new(waves * element * (k / parts as f64 + fill)),
                memory: Seconds::new(chip.memory_time(operands + sums, memory, cache)),
                overhead: if parts > 1 { us(split) } else { Seconds::ZERO },
                ..Parts::default()
            };
            // The root of squares is no less than either: most tiles need no root.
            if found.latency + found.arithmetic.max(found.memory) + found.overhead >= least {
                continue;
            }
            let total = found.total();
            if total < least {
                (fastest, least) = (found, total);
            }
        }
    }
    Some(fastest)
}
