//! Kernels for NVIDIA GPUs, their launches and the devices that run them.
//!
//! The kernels are `kernels/cuda/*.cu`, compiled at run time. Each takes one struct, which a struct of the same name and
//! layout here mirrors; its `ladder` lists the versions for its shape, the fastest last, and `launch` is the fastest.
//! A `Device` runs a `Launch`: the GPU (`driver`, with the feature `cuda`) or an emulator that compiles the same files as C++.
//! The crate `trainwright-kernels-check` compares every version with plain loops in f64 on either of them.
//!
//! Nothing here but `driver` needs a GPU or CUDA.
//!
//! ```
//! use trainwright_kernels::cuda::{Address, Number, norm::NormForward};
//! let norm = NormForward { rows: 8, width: 768, epsilon: 1e-5, centred: 1, ..NormForward::default() };
//! let launch = norm.launch(Number::Bf16);
//! assert_eq!(launch.kernel, "norm_forward_packed_bf16");
//! assert_eq!(launch.grid, [8, 1, 1]);
//! // A width that 16 bytes do not divide is left to the simple version.
//! assert_eq!(NormForward { width: 767, ..norm }.launch(Number::Bf16).kernel, "norm_forward_simple_bf16");
//! # let _ = Address::NULL;
//! ```

pub mod activation;
mod arena;
pub mod attention;
mod collective;
pub mod columns;
pub mod cross_entropy;
mod device;
#[cfg(feature = "cuda")]
pub mod driver;
pub mod dropout;
pub mod embedding;
mod emulator;
mod error;
pub mod experts;
pub mod fp8;
mod fused;
pub mod grouped;
mod launch;
pub mod measure;
pub mod norm;
pub mod optimizer;
mod product;
mod queues;
mod recorded;
mod recorder;
pub mod reduce;
pub mod rotary;
pub mod source;
pub mod tail;

pub use arena::Arena;
pub use collective::{Collective, GroupName, Membership};
pub use device::{About, Device, Event, Graph, InUse, StopFlag};
pub use emulator::{AttentionFault, AttentionFaultKind, Emulator, Turns};
pub use error::DeviceError;
pub use launch::{Address, Launch, Multiprocessors, Number, Touch};
pub use product::{Compute, Epilogue, Operands, Product};
pub use queues::ask_for_queues;
pub use recorded::Recorded;
pub use recorder::{Recorder, Recording, RecordingLog};
pub use source::cache_folder;
