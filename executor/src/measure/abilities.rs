//! What this build and this machine can do, without measuring anything.

use crate::device::{describe_gpus, describe_libraries};
use crate::measure::calibrate::processor;
use crate::train::run::host_memory::{available_memory, total_memory};
use std::num::NonZeroUsize;
use trainwright_spec::units::Bytes;

/// What a program of this build finds on this machine.
#[derive(Debug, Clone, PartialEq)]
pub struct Abilities {
    /// The processor's name.
    pub processor: String,
    /// Cores that this process may use.
    pub cores: usize,
    /// Vector instructions that the kernels can use, the widest last.
    pub instructions: Vec<&'static str>,
    /// Memory of the host; `None` where the system does not say.
    pub memory: Option<Bytes>,
    /// What of it can be allocated.
    pub available: Option<Bytes>,
    /// Parts that are compiled in or left out: the feature's name, whether it is there, and what it is for.
    pub features: Vec<(&'static str, bool, &'static str)>,
    /// The machine's GPUs, or why there are none.
    pub gpus: Result<Vec<String>, String>,
    /// Libraries of NVIDIA: the name, and its version or why it cannot be used.
    pub libraries: Vec<(&'static str, Result<String, String>)>,
}

/// Looks.
pub fn abilities() -> Abilities {
    let features = [
        ("cuda", cfg!(feature = "cuda"), "ranks on NVIDIA GPUs"),
        ("mpi", cfg!(feature = "mpi"), "ranks that MPI started"),
        ("parquet", cfg!(feature = "parquet"), "training data in Parquet files"),
    ];
    Abilities {
        processor: processor(),
        cores: std::thread::available_parallelism().map_or(1, NonZeroUsize::get),
        instructions: instructions(),
        memory: total_memory(),
        available: available_memory(),
        features: features.to_vec(),
        gpus: describe_gpus(),
        libraries: describe_libraries(),
    }
}

#[cfg(target_arch = "x86_64")]
fn instructions() -> Vec<&'static str> {
    let known = [
        ("AVX2", is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")),
        ("AVX-512", is_x86_feature_detected!("avx512f")),
        ("AVX-512 BF16", is_x86_feature_detected!("avx512bf16")),
    ];
    known.into_iter().filter(|(_, is_there)| *is_there).map(|(name, _)| name).collect()
}

#[cfg(not(target_arch = "x86_64"))]
fn instructions() -> Vec<&'static str> {
    if cfg!(target_arch = "aarch64") { vec!["NEON"] } else { Vec::new() }
}
