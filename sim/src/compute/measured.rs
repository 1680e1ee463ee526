//! Kernels whose times were measured on the GPU itself: lookup and interpolation in its profile.
//!
//! This knows how to read between measured shapes. It does not know how a kernel runs.

use trainwright_spec::cluster::{DeviceProfile, MeasuredKernel};
use trainwright_spec::model::Mask;
use trainwright_spec::precision::Precision;
use trainwright_spec::program::{Access, Direction, FlashVersion, FusedAttention, Kernel};
use trainwright_spec::units::Seconds;

/// Time of a kernel by a GPU's profile; `None` if the profile neither has its shape nor spans it.
///
/// A measured shape takes the measured time. Between two measured shapes that differ from it in one size only, x₀ < x
/// < x₁, the `forecast` F is trusted for its form, and its error is interpolated:
///
/// T = F(x) r₀^(1 − w) r₁^w, r = T_measured / F, w = ln(x / x₀) / ln(x₁ / x₀)
///
/// Where several sizes have such neighbours, the closest pair counts (the smallest x₁ / x₀), of equally close ones that
/// of the first size. Else, where each size lies between the smallest and the largest that were measured, and one of the measured
/// shapes is within `REACH`, the error is `mean_error`. There is no extrapolation.
pub(super) fn time(
    kernel: &Kernel,
    profile: &DeviceProfile,
    forecast: impl Fn(&Kernel) -> Seconds,
) -> Option<Seconds> {
    let (kind, sizes) = kind_and_sizes(kernel);
    let of_kind = || {
        profile.kernels.iter().filter_map(|row| {
            let (other, sizes) = kind_and_sizes(&row.kernel);
            (other == kind).then_some((row, sizes))
        })
    };
    if let Some((row, _)) = of_kind().find(|(_, other)| *other == sizes) {
        return Some(row.time);
    }
    let brackets = (0..SIZES).filter_map(|size| {
        let same_but_one = |other: &Sizes| (0..SIZES).all(|each| each == size || other[each] == sizes[each]);
        let neighbours =
            of_kind().filter(|(_, other)| same_but_one(other)).map(|(row, other)| (row, other[size]));
        let mut bracket = Bracket { size: sizes[size], below: None, above: None };
        neighbours.for_each(|(row, size)| bracket.add(row, size));
        bracket.closed()
    });
    let closest = brackets.reduce(|best, other| if other.ratio() < best.ratio() { other } else { best });
    let factor = match closest {
        Some(Closed { size, below: (below, x0), above: (above, x1) }) => {
            let error = |row: &MeasuredKernel| row.time / forecast(&row.kernel);
            let weight = libm::log(size / x0) / libm::log(x1 / x0);
            libm::pow(error(below), 1.0 - weight) * libm::pow(error(above), weight)
        }
        None => {
            let spanned = |size: usize| {
                let reaches =
                    |end: fn(&f64, &f64) -> bool| of_kind().any(|(_, other)| end(&other[size], &sizes[size]));
                reaches(f64::le) && reaches(f64::ge)
            };
            let in_reach = of_kind().any(|(_, other)| distance(&sizes, &other) <= REACH);
            (in_reach && (0..SIZES).all(spanned)).then(|| mean_error(&sizes, of_kind(), &forecast))?
        }
    };
    factor.is_finite().then(|| forecast(kernel) * factor)
}

/// Time of an op by the measured ops of its kind; `None` if none of them is the same kind of kernel.
///
/// An op of a measured shape takes the measured time. For any other the `forecast` is trusted for its form, and its error is
/// `mean_error`, which far from all measured shapes is the mean of their errors.
pub(super) fn op_time(
    op: &str,
    kernel: &Kernel,
    profile: &DeviceProfile,
    forecast: impl Fn(&Kernel) -> Seconds,
) -> Option<Seconds> {
    let (kind, sizes) = kind_and_sizes(kernel);
    let of_op = || {
        profile.ops.iter().filter(|row| row.op == op).filter_map(|row| {
            let (other, sizes) = kind_and_sizes(&row.measured.kernel);
            (other == kind).then_some((&row.measured, sizes))
        })
    };
    if let Some((row, _)) = of_op().find(|(_, other)| *other == sizes) {
        return Some(row.time);
    }
    let factor = mean_error(&sizes, of_op(), &forecast);
    factor.is_finite().then(|| forecast(kernel) * factor)
}

/// Half of the way between two steps of a grid of three sizes, each four times the one before: √3 ln 2.
const REACH: f64 = 1.2006;

/// √(Σ over sizes (ln(x / y))²).
fn distance(x: &Sizes, y: &Sizes) -> f64 {
    let apart = |(x, y): (&f64, &f64)| if x == y { 0.0 } else { libm::log(x / y).powi(2) };
    x.iter().zip(y).map(apart).sum::<f64>().sqrt()
}

/// The error of the `forecast` F at other sizes x than those that were measured, x_i: a mean over them, the nearer the more.
///
/// Π r_i^(w_i / Σ w), r_i = T_i / F(x_i), w_i = 1 / d_i⁴, d_i the `distance` from x
///
/// NaN if nothing was measured.
/// Source of the form: Shepard 1968, Proc. 23rd ACM National Conference, 517–524 (inverse distance weighting).
fn mean_error<'a>(
    sizes: &Sizes,
    measured: impl Iterator<Item = (&'a MeasuredKernel, Sizes)>,
    forecast: impl Fn(&Kernel) -> Seconds,
) -> f64 {
    let (mut weights, mut errors) = (0.0, 0.0);
    for (row, other) in measured {
        let weight = distance(sizes, &other).powi(-4);
        weights += weight;
        errors += weight * libm::log(row.time / forecast(&row.kernel));
    }
    libm::exp(errors / weights)
}

/// The nearest measured sizes on both sides of one.
struct Bracket<'a> {
    size: f64,
    below: Option<(&'a MeasuredKernel, f64)>,
    above: Option<(&'a MeasuredKernel, f64)>,
}

/// A bracket with both sides.
struct Closed<'a> {
    size: f64,
    below: (&'a MeasuredKernel, f64),
    above: (&'a MeasuredKernel, f64),
}

impl<'a> Bracket<'a> {
    fn add(&mut self, row: &'a MeasuredKernel, size: f64) {
        if size < self.size && self.below.is_none_or(|(_, nearest)| size > nearest) {
            self.below = Some((row, size));
        }
        if size > self.size && self.above.is_none_or(|(_, nearest)| size < nearest) {
            self.above = Some((row, size));
        }
    }

    fn closed(self) -> Option<Closed<'a>> {
        let (below, above) = self.below.zip(self.above)?;
        Some(Closed { size: self.size, below, above })
    }
}

impl Closed<'_> {
    fn ratio(&self) -> f64 {
        self.above.1 / self.below.1
    }
}

/// The most sizes that a kernel has.
const SIZES: usize = 7;

type Sizes = [f64; SIZES];

/// The properties that two comparable kernels share.
#[derive(PartialEq)]
enum Kind {
    Gemm(Precision),
    Attention(Direction, Precision, Mask, FlashVersion),
    Streaming(Access),
}

/// A kernel's kind, and its sizes in a fixed order, 0 after its last one.
fn kind_and_sizes(kernel: &Kernel) -> (Kind, Sizes) {
    let mut sizes = [0.0; SIZES];
    let mut set = |of_kernel: &[usize]| {
        for (place, size) in sizes.iter_mut().zip(of_kernel) {
            *place = *size as f64;
        }
    };
    let kind = match *kernel {
        Kernel::Gemm { count, m, n, k, precision, .. } => {
            set(&[m, n, k, count]);
            Kind::Gemm(precision)
        }
        Kernel::FusedAttention(attention) => {
            let FusedAttention { direction, precision, mask, version, .. } = attention;
            let FusedAttention { batch, heads, kv_heads, queries, keys, head_dim, value_head_dim, .. } =
                attention;
            set(&[batch, heads, kv_heads, queries, keys, head_dim, value_head_dim]);
            Kind::Attention(direction, precision, mask, version)
        }
        Kernel::Streaming { access, read, written } => {
            sizes[0] = (read + written).get();
            Kind::Streaming(access)
        }
    };
    (kind, sizes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compute::kernel_time;
    use trainwright_spec::cluster::{Cluster, Gpu};
    use trainwright_spec::units::Bytes;

    fn gpus(rows: &str) -> [Gpu; 2] {
        let text = format!("gpu,kernel,shape,precision,time_us\n{rows}");
        let plain = Cluster::from_name("dgx-a100").unwrap();
        let measured = plain.clone().with_device_profile(&text, "rows.csv").unwrap();
        [plain, measured].map(|cluster| cluster.node.gpu)
    }

    fn product(m: usize, n: usize, k: usize) -> Kernel {
        Kernel::Gemm { count: 1, m, n, k, precision: Precision::Bf16, adds_to: None }
    }

    fn check(gpu: &Gpu, kernel: &Kernel, expected: Seconds) {
        let time = kernel_time(kernel, gpu);
        assert!((time / expected - 1.0).abs() < 1e-12, "{kernel:?}: {time}, not {expected}");
    }

    #[test]
    fn measured_shapes_take_their_times_and_errors_are_interpolated_between_them() {
        let [plain, gpu] = gpus(
            "a100-80gb-sxm,gemm,m=1024 n=4096 k=4096,bf16,1000\n\
             a100-80gb-sxm,gemm,m=4096 n=4096 k=4096,bf16,9000\n\
             a100-80gb-sxm,gemm,m=2048 n=4096 k=64,bf16,1\n\
             a100-80gb-sxm,elementwise,bytes=1000000,bf16,100\n",
        );
        let ends = [product(1024, 4096, 4096), product(4096, 4096, 4096)];
        check(&gpu, &ends[0], Seconds::new(1e-3));
        check(&gpu, &ends[1], Seconds::new(9e-3));
        // 2048 is half of the way from 1024 to 4096 in logarithms: the errors' geometric mean.
        let [r0, r1] = [0, 1].map(|i| [1e-3, 9e-3][i] / kernel_time(&ends[i], &plain).get());
        let between = product(2048, 4096, 4096);
        check(&gpu, &between, kernel_time(&between, &plain) * (r0 * r1).sqrt());
        // Two sizes differ from the first two, by 2 each; k is 32 times that of the last: distances of √2, √2 and 5 times ln 2.
        let (inside, last) = (product(2048, 4096, 2048), product(2048, 4096, 64));
        let r2 = 1e-6 / kernel_time(&last, &plain).get();
        let mean = (libm::log(r0 * r1) / 4.0 + libm::log(r2) / 625.0) / (2.0 / 4.0 + 1.0 / 625.0);
        check(&gpu, &inside, kernel_time(&inside, &plain) * libm::exp(mean));
        // Nothing is known beyond, of another precision, or far from all.
        let fp16 =
            Kernel::Gemm { count: 1, m: 1024, n: 4096, k: 4096, precision: Precision::Fp16, adds_to: None };
        for kernel in [product(8192, 4096, 4096), product(1024, 4096, 512), product(1024, 4096, 8192), fp16] {
            check(&gpu, &kernel, kernel_time(&kernel, &plain));
        }
        // Bytes count whichever way they go.
        let half = Bytes::new(5e5);
        let access = Access::Elementwise;
        check(&gpu, &Kernel::Streaming { access, read: half, written: half }, Seconds::new(1e-4));
    }

    #[test]
    fn ops_take_the_times_of_measured_ops_of_their_kind() {
        let text = "gpu,kernel,shape,precision,time_us,op\n\
                    a100-80gb-sxm,elementwise,bytes=1000000,bf16,100,activation backward\n\
                    a100-80gb-sxm,elementwise,bytes=4000000,bf16,900,activation backward\n";
        let plain = Cluster::from_name("dgx-a100").unwrap();
        let gpu = plain.clone().with_device_profile(text, "rows.csv").unwrap().node.gpu;
        let moved = |bytes| Kernel::Streaming {
            access: Access::Elementwise,
            read: Bytes::new(bytes),
            written: Bytes::ZERO,
        };
        let time = |op, bytes| crate::compute::op_time(op, &moved(bytes), &gpu);
        let forecast = |bytes| kernel_time(&moved(bytes), &plain.node.gpu);
        let exact = time("activation backward", 1e6) / Seconds::new(1e-4);
        assert!((exact - 1.0).abs() < 1e-12, "{exact}");
        // As far from both: the geometric mean of their errors.
        let [r0, r1] = [(1e6, 1e-4), (4e6, 9e-4)].map(|(bytes, time)| time / forecast(bytes).get());
        let between = time("activation backward", 2e6) / (forecast(2e6) * (r0 * r1).sqrt());
        assert!((between - 1.0).abs() < 1e-12, "{between}");
        assert_eq!(time("activation forward", 2e6), forecast(2e6));
    }

    #[test]
    fn the_closest_pair_counts() {
        let [plain, gpu] = gpus(
            "a100-80gb-sxm,gemm,m=512 n=2048 k=2048,bf16,1\n\
             a100-80gb-sxm,gemm,m=8192 n=2048 k=2048,bf16,1\n\
             a100-80gb-sxm,gemm,m=2048 n=1024 k=2048,bf16,300\n\
             a100-80gb-sxm,gemm,m=2048 n=4096 k=2048,bf16,300\n\
             a100-80gb-sxm,gemm,m=2048 n=256 k=2048,bf16,1\n",
        );
        let [r0, r1] = [1024, 4096].map(|n| 3e-4 / kernel_time(&product(2048, n, 2048), &plain).get());
        let kernel = product(2048, 2048, 2048);
        check(&gpu, &kernel, kernel_time(&kernel, &plain) * (r0 * r1).sqrt());
    }
}
