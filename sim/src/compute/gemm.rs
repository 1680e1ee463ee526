//! Matrix products as a library runs them: output tiles on multiprocessors, in waves.

use super::multiprocessor_peak;
use super::streaming;
use trainwright_spec::cluster::Gpu;
use trainwright_spec::precision::Precision;
use trainwright_spec::program::Access;
use trainwright_spec::units::{Bytes, Flops, FlopsPerSecond, Seconds};

/// `count` independent products (m × k) · (k × n).
pub(super) struct Product {
    pub count: usize,
    pub m: usize,
    pub n: usize,
    pub k: usize,
    pub precision: Precision,
    pub adds_to: Option<Bytes>,
}

/// Rows and columns of an output tile of one multiprocessor.
#[derive(Clone, Copy)]
struct Tile {
    rows: usize,
    columns: usize,
}

/// The tiles that libraries have kernels for (CUTLASS's and cuBLAS's kernel names list them), the largest first.
const TILES: [Tile; 13] = [
    Tile { rows: 256, columns: 128 },
    Tile { rows: 128, columns: 256 },
    Tile { rows: 128, columns: 128 },
    Tile { rows: 256, columns: 64 },
    Tile { rows: 64, columns: 256 },
    Tile { rows: 128, columns: 64 },
    Tile { rows: 64, columns: 128 },
    Tile { rows: 64, columns: 64 },
    Tile { rows: 128, columns: 32 },
    Tile { rows: 32, columns: 128 },
    Tile { rows: 64, columns: 32 },
    Tile { rows: 32, columns: 64 },
    Tile { rows: 32, columns: 32 },
];

/// Into how many parts libraries split the summed dim when the output has fewer tiles than the GPU multiprocessors.
const SPLITS: [usize; 6] = [1, 2, 4, 8, 16, 32];

/// The shortest part of the summed dim that a split pays for.
const SHORTEST_PART: f64 = 512.0;

/// Filling the pipeline and writing the tile out cost as much as this much more of the summed dim.
///
/// One value for all GPUs, from the published rows of 10 GFLOP and more, each GPU and precision with its achieved
/// part: the mean error is 9.2 % at 0, 9.1 % at 32, 64, 96 and 128. Physical range: some 32 to 128, two to four stages of
/// the pipeline that loads operands.
const FILL_AND_DRAIN: f64 = 96.0;

/// A tile whose half harmonic mean of sides is this loses half of its time to loading operands.
///
/// One value for all GPUs, from the same rows: the mean error is 9.1 % at 12, 9.5 % at 24, 10.0 % at 48. Physical range: 0,
/// operands for nothing, to 85, half of the time of the largest tile.
const OPERAND_LOADING: f64 = 12.0;

/// Time of the products, without the launch gap; infinite if the precision is not supported.
///
/// T = 1 / γ · min over tiles and splits of √(T_a² + T_m²)
/// T_a = w · 2 t_r t_c (k / s + k₀) / (φ e R), T_m = n / (φ_m β)
///
/// w = ⌈c ⌈m / t_r⌉ ⌈n / t_c⌉ s / P⌉ waves of tiles, t_r × t_c the tile, s parts of the summed dim (1 unless all tiles
/// fit in one wave), k₀ fill and drain, P multiprocessors, R the peak of one, φ the part of it that large products
/// reach, e the tile's efficiency; γ the part of a single product's speed that grouped ones reach, 1 if c = 1; n bytes moved through memory at the reached bandwidth φ_m β: operands once,
/// results once (read and written where the product adds to them), and with a split each part's sums written and read in fp32.
/// Assumes that the library picks the best tile, one tile per multiprocessor at a time, and operands reused from the
/// cache. Never above the peak, since φ, e and γ are at most 1.
///
/// Arithmetic hides memory, but not all of it, and where both take as long the product takes longer than either. The
/// exponent 2 of the sum has no free constant. Large square products do not distinguish it from the maximum of both (mean error
/// 9.1 and 9.2 %); products with a side of 256 and less do, which were not used to choose it: the maximum is 14 % too
/// short on A100, 11 % on B200 and 10 % on H100, this 2, 0 and 6 % too long.
/// Source of the form: NVIDIA, Matrix Multiplication Background User's Guide, sections on tile and wave quantization.
pub(super) fn time(product: &Product, gpu: &Gpu) -> Seconds {
    let never = Seconds::new(f64::INFINITY);
    let reached = gpu.achieved.matrix.get(&product.precision);
    let Some((peak, reached)) = multiprocessor_peak(gpu, product.precision).zip(reached) else {
        return never;
    };
    let rate = peak * reached.value;
    let narrow = gpu.achieved.grouped_narrow.as_ref().filter(|_| product.precision.quantisation().is_some());
    let grouped = narrow.or(gpu.achieved.grouped.as_ref()).filter(|_| product.count > 1);
    let grouped = grouped.map_or(1.0, |part| part.value);
    let choices = TILES.into_iter().flat_map(|tile| SPLITS.map(|parts| Choice { tile, parts }));
    let alone = choices
        .map(|choice| {
            let arithmetic = choice.arithmetic_time(product, gpu.multiprocessors.value, rate);
            let memory = streaming::time(Access::Elementwise, choice.traffic(product), gpu);
            root_of_squares(arithmetic, memory)
        })
        .fold(never, Seconds::min);
    alone / grouped
}

/// √(a² + b²), also where one of them is infinite.
fn root_of_squares(a: Seconds, b: Seconds) -> Seconds {
    Seconds::new(libm::hypot(a.get(), b.get()))
}

/// The choices of a library for a product.
struct Choice {
    tile: Tile,
    /// Into how many parts it splits the summed dim.
    parts: usize,
}

impl Choice {
    /// Time on the matrix units alone, w · 2 t_r t_c (k / s + k₀) / (φ e R); infinite where no library would split.
    fn arithmetic_time(&self, product: &Product, multiprocessors: usize, rate: FlopsPerSecond) -> Seconds {
        let Choice { tile, parts } = *self;
        let along = |length: usize, side: usize| length.div_ceil(side) as f64;
        let tiles = along(product.m, tile.rows) * along(product.n, tile.columns) * product.count as f64;
        if parts > 1 && tiles > multiprocessors as f64 {
            return Seconds::new(f64::INFINITY);
        }
        let waves = (tiles * parts as f64 / multiprocessors as f64).ceil();
        let part = match parts {
            1 => product.k as f64,
            _ => (product.k as f64 / parts as f64).max(SHORTEST_PART),
        };
        let flops_of_tile = Flops::new(2.0 * (tile.rows * tile.columns) as f64 * (part + FILL_AND_DRAIN));
        waves * (flops_of_tile / (rate * efficiency(tile)))
    }

    /// Bytes through memory: each operand and each result once, a result that is added to there and back, and so the partial sums of a
    /// split.
    fn traffic(&self, product: &Product) -> Bytes {
        let (m, n, k) = (product.m as f64, product.n as f64, product.k as f64);
        let operands = (m + n) * k * product.precision.operand_bytes();
        let result = product.adds_to.map_or(product.precision.storage_bytes(), |element| 2.0 * element);
        let results = m * n * result;
        let partial_sums = match self.parts {
            1 => Bytes::ZERO,
            parts => parts as f64 * m * n * Bytes::new(4.0 + 4.0),
        };
        product.count as f64 * (operands + results + partial_sums)
    }
}

/// The rate of a tile relative to that of the largest one, at most 1.
///
/// e = g(t) / g(256 × 128), g = h / (h + h₀), h = t_r t_c / (t_r + t_c)
///
/// A tile does 2 h flops per operand element that it loads, so small tiles wait for operands more.
fn efficiency(tile: Tile) -> f64 {
    let share = |tile: Tile| {
        let (rows, columns) = (tile.rows as f64, tile.columns as f64);
        let flops_per_load = rows * columns / (rows + columns);
        flops_per_load / (flops_per_load + OPERAND_LOADING)
    };
    share(tile) / share(TILES[0])
}
