//! How long a kernel runs on a GPU, from the GPU's published figures and what kernels reach of them.
//!
//! One file per kernel family. Nothing here knows what a rank, a layer or a model is, and nothing branches on a
//! GPU's name: what differs between two GPUs differs in their catalog files.
//!
//! ```
//! use trainwright_sim::compute::kernel_time;
//! use trainwright_spec::{catalog, cluster::Gpu, precision::Precision, program::Kernel};
//! let gpu: Gpu = toml::from_str(catalog::text("gpu", "a100-80gb-sxm").unwrap()).unwrap();
//! let kernel = Kernel::Gemm { count: 1, m: 8192, n: 8192, k: 8192, precision: Precision::Bf16, adds_to: None };
//! let rate = kernel.flops() / kernel_time(&kernel, &gpu);
//! assert!((240e12..300e12).contains(&rate.get()), "{rate}");
//! ```

mod attention;
mod gemm;
mod measured;
mod streaming;

use trainwright_spec::cluster::Gpu;
use trainwright_spec::precision::Precision;
use trainwright_spec::program::Kernel;
use trainwright_spec::units::{FlopsPerSecond, Seconds};

/// Time of one kernel call on an otherwise idle GPU, launch gap included: what was measured on it where the GPU's
/// profile has the shape or brackets it, else the forecast.
pub fn kernel_time(kernel: &Kernel, gpu: &Gpu) -> Seconds {
    let measured = |profile| measured::time(kernel, profile, |kernel| forecast(kernel, gpu));
    gpu.profile.as_ref().and_then(measured).unwrap_or_else(|| forecast(kernel, gpu))
}

/// Time of a kernel call that is the op `op` of a program (`Op::kind`): the measured time of ops of that kind where the GPU's
/// profile has it, else `kernel_time`.
pub fn op_time(op: &str, kernel: &Kernel, gpu: &Gpu) -> Seconds {
    let measured = |profile| measured::op_time(op, kernel, profile, |kernel| forecast(kernel, gpu));
    gpu.profile.as_ref().and_then(measured).unwrap_or_else(|| kernel_time(kernel, gpu))
}

/// Time of one kernel call from the GPU's figures.
///
/// Never shorter than the kernel's flops at the published peak, nor its bytes at the published bandwidth; never
/// shorter for a larger kernel of the same family. Infinite if the GPU does not support the precision, which
/// `Plan::check` refuses.
fn forecast(kernel: &Kernel, gpu: &Gpu) -> Seconds {
    let running = match *kernel {
        Kernel::Gemm { count, m, n, k, precision, adds_to } => {
            gemm::time(&gemm::Product { count, m, n, k, precision, adds_to }, gpu)
        }
        Kernel::FusedAttention(attention) => attention::time(&attention, gpu),
        Kernel::Streaming { access, read, written } => streaming::time(access, read + written, gpu),
    };
    running + gpu.achieved.kernel_overhead.value
}

/// Published rate of one multiprocessor; `None` if the precision is not supported.
fn multiprocessor_peak(gpu: &Gpu, precision: Precision) -> Option<FlopsPerSecond> {
    gpu.peak.get(&precision).map(|peak| peak.value / gpu.multiprocessors.value as f64)
}
