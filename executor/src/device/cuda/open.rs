//! What a CUDA device runs on: a GPU through its driver, or the emulator.

use super::super::{Device, GpuName, Opening};
use super::Cuda;
use super::attention::Attending;
use crate::device::AttentionBy;
use crate::error::{Fault, RunError};
use std::rc::Rc;
use trainwright_kernels::cuda::{self, DeviceError, Emulator, Turns};

fn missing(name: &'static str, reason: impl ToString) -> RunError {
    RunError::Device { name, reason: reason.to_string() }
}

fn opened(
    device: Result<Box<dyn cuda::Device>, DeviceError>,
    opening: Opening,
    unless_said: AttentionBy,
) -> Result<Rc<dyn Device>, Fault> {
    let Opening { number, attention, deterministic, .. } = opening;
    let attending = Attending::new(attention.unwrap_or(unless_said), number, deterministic);
    Ok(Rc::new(Cuda::new(device.map_err(Fault::Device)?, number, attending)))
}

/// Whether there are a GPU, its driver and the libraries that a run needs.
#[cfg(feature = "cuda")]
pub(crate) fn require_gpu() -> Result<(), RunError> {
    use trainwright_kernels::cuda::driver::{Gpu, Library};
    let required =
        Gpu::count().and_then(|_| Gpu::require_compiler()).and_then(|()| Library::CublasLt.require());
    required.map_err(|error| missing("cuda", error))
}

/// Whether a rank's GPU multiplies in fp8.
#[cfg(feature = "cuda")]
pub(crate) fn require_fp8(local: usize) -> Result<(), RunError> {
    use trainwright_kernels::cuda::driver::Gpu;
    let required = Gpu::count().and_then(|count| Gpu::require_fp8(local % count));
    required.map_err(|error| missing("cuda", error))
}

/// Whether NCCL is there.
#[cfg(feature = "cuda")]
pub(crate) fn require_nccl() -> Result<(), RunError> {
    use trainwright_kernels::cuda::driver::Library;
    Library::Nccl.require().map_err(|error| missing("cuda", error))
}

/// Whether NCCL's settings let ranks share a GPU: an experiment of NCCL's, from 2.30 on.
#[cfg(feature = "cuda")]
pub(crate) fn shares_by_nccl() -> bool {
    use trainwright_kernels::cuda::driver::Library;
    let is_enabled = std::env::var("NCCL_MULTI_RANK_GPU_ENABLE").is_ok_and(|value| value.trim() == "1");
    is_enabled && Library::Nccl.parts().is_some_and(|version| version >= [2, 30, 0])
}

/// Ranks take the GPUs of a machine in turn.
#[cfg(feature = "cuda")]
pub(crate) fn gpu_of(local: usize) -> Option<GpuName> {
    use trainwright_kernels::cuda::driver::Gpu;
    Gpu::count().and_then(|count| Gpu::name(local % count)).ok()
}

/// Ranks that share one have separate streams.
#[cfg(feature = "cuda")]
pub(crate) fn open_gpu(opening: Opening) -> Result<Rc<dyn Device>, Fault> {
    opened(open_bare_gpu(opening.local), opening, AttentionBy::Cudnn)
}

/// The GPU that a rank of that number takes.
#[cfg(feature = "cuda")]
pub(crate) fn open_bare_gpu(local: usize) -> Result<Box<dyn cuda::Device>, DeviceError> {
    use trainwright_kernels::cuda::driver::Gpu;
    let gpu = Gpu::count().and_then(|count| Gpu::open(local % count))?;
    Ok(Box::new(gpu))
}

/// How many this machine has.
#[cfg(feature = "cuda")]
pub(crate) fn count_gpus() -> usize {
    trainwright_kernels::cuda::driver::Gpu::count().unwrap_or(0)
}

/// The machine's GPUs in words, or why there are none.
#[cfg(feature = "cuda")]
pub(crate) fn describe_gpus() -> Result<Vec<String>, String> {
    use trainwright_kernels::cuda::driver::Gpu;
    let count = Gpu::count().map_err(|error| error.to_string())?;
    let about = |index| Gpu::open(index).map(|gpu| cuda::Device::about(&gpu).summary);
    (0..count).map(about).collect::<Result<_, _>>().map_err(|error| error.to_string())
}

/// NVIDIA's libraries: the name, and the version or why it cannot be used.
#[cfg(feature = "cuda")]
pub(crate) fn describe_libraries() -> Vec<(&'static str, Result<String, String>)> {
    use trainwright_kernels::cuda::driver::Library;
    let version = |library: Library| match library.require() {
        Ok(()) => Ok(library.parts().map_or("there".into(), |[a, b, c]| format!("{a}.{b}.{c}"))),
        Err(error) => Err(error.to_string()),
    };
    Library::ALL.into_iter().map(|library| (library.name(), version(library))).collect()
}

#[cfg(not(feature = "cuda"))]
const WITHOUT: &str = "this program was built without it: build it with `--features cuda`";

/// This program knows no GPU.
#[cfg(not(feature = "cuda"))]
pub(crate) fn require_gpu() -> Result<(), RunError> {
    Err(missing("cuda", WITHOUT))
}

/// This program knows no GPU.
#[cfg(not(feature = "cuda"))]
pub(crate) fn require_fp8(_: usize) -> Result<(), RunError> {
    Err(missing("cuda", WITHOUT))
}

/// This program knows no GPU.
#[cfg(not(feature = "cuda"))]
pub(crate) fn require_nccl() -> Result<(), RunError> {
    Err(missing("cuda", WITHOUT))
}

/// This program knows no GPU.
#[cfg(not(feature = "cuda"))]
pub(crate) fn shares_by_nccl() -> bool {
    false
}

/// This program knows no GPU.
#[cfg(not(feature = "cuda"))]
pub(crate) fn gpu_of(_: usize) -> Option<GpuName> {
    None
}

/// This program knows no GPU.
#[cfg(not(feature = "cuda"))]
pub(crate) fn open_gpu(opening: Opening) -> Result<Rc<dyn Device>, Fault> {
    opened(open_bare_gpu(opening.local), opening, AttentionBy::Ours)
}

/// This program knows no GPU.
#[cfg(not(feature = "cuda"))]
pub(crate) fn open_bare_gpu(_: usize) -> Result<Box<dyn cuda::Device>, DeviceError> {
    Err(DeviceError::NoGpu(WITHOUT.into()))
}

/// This program knows no GPU.
#[cfg(not(feature = "cuda"))]
pub(crate) fn count_gpus() -> usize {
    0
}

/// This program knows no GPU.
#[cfg(not(feature = "cuda"))]
pub(crate) fn describe_gpus() -> Result<Vec<String>, String> {
    Err(WITHOUT.into())
}

/// This program uses none of them.
#[cfg(not(feature = "cuda"))]
pub(crate) fn describe_libraries() -> Vec<(&'static str, Result<String, String>)> {
    Vec::new()
}

/// Whether there is a C++ compiler: what it compiles is kept.
pub(crate) fn require_emulator() -> Result<(), RunError> {
    emulator().map(drop).map_err(|error| missing("emulated", error))
}

/// Ranks share one emulated GPU; kernels run one at a time.
pub(crate) fn open_emulator(opening: Opening) -> Result<Rc<dyn Device>, Fault> {
    opened(open_bare_emulator(opening.local), opening, AttentionBy::Ours)
}

/// One more emulated GPU.
pub(crate) fn open_bare_emulator(_: usize) -> Result<Box<dyn cuda::Device>, DeviceError> {
    Ok(Box::new(emulator()?))
}

pub(super) fn emulator() -> Result<Emulator, DeviceError> {
    let none = || {
        let reason = "neither XDG_CACHE_HOME nor HOME names a folder for what it compiles";
        DeviceError::Emulator(reason.into())
    };
    Emulator::new(&cuda::cache_folder().ok_or_else(none)?.join("emulator"), Turns::InOrder)
}
