//! NVIDIA GPUs through their driver.
//!
//! Nothing here is linked: the driver, NVRTC, cublasLt, cuDNN and NCCL are looked up by name when they are first needed, and
//! a missing one is an error that says what was looked for and where. A GPU belongs to the thread that opened it.

mod answer;
mod communicator;
mod cudnn;
mod events;
mod gpu;
mod graph;
mod handles;
mod image;
mod library;
mod nccl;
mod places;
mod product;
mod product_fp8;
mod wait;

pub use cudnn::plan_without_gpu;
pub use gpu::{Description, Gpu};
pub use library::Library;
