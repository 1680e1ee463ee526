//! Kernels bound by memory: normalisation, activation functions, optimizer steps, copies.

use trainwright_spec::cluster::Gpu;
use trainwright_spec::units::{Bytes, Seconds};

/// Time to move `bytes` through the GPU's memory, without the launch gap.
///
/// T = n / (φ β)
///
/// n bytes read and written, β published bandwidth, φ the part of it that streaming kernels reach. With the launch
/// gap α that every kernel has, the bandwidth ramps up as n / (α + n / (φ β)): half of it at n = α φ β, 5 MB on
/// A100. Assumes that nothing is found in the cache.
/// Source: the two-parameter (n½, r∞) form of Hockney & Jesshope 1988, Parallel Computers 2.
pub(super) fn time(bytes: Bytes, gpu: &Gpu) -> Seconds {
    bytes / (gpu.memory_bandwidth.value * gpu.achieved.memory.value)
}
