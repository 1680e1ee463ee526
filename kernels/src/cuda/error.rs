//! What goes wrong on a device.

/// An error of a device.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// A library is not installed.
    #[error("{library} is not there: looked for {names} in {places}; {remedy}")]
    Missing {
        /// The library.
        library: &'static str,
        /// File names that it may have.
        names: String,
        /// The folders that were searched.
        places: String,
        /// What the user can do.
        remedy: &'static str,
    },
    /// The driver is installed, but there is no GPU.
    #[error("the NVIDIA driver finds no GPU ({0})")]
    NoGpu(String),
    /// The driver is older than this program can use.
    #[error("the NVIDIA driver offers CUDA {found}, and {needed} is needed: install a newer driver")]
    OldDriver {
        /// Its CUDA version.
        found: String,
        /// The least version.
        needed: &'static str,
    },
    /// The compiler belongs to a later CUDA than the driver.
    #[error(
        "NVRTC {compiler} makes kernels that a driver for CUDA {driver} does not load: install NVRTC of CUDA {major}, or a newer driver"
    )]
    NewCompiler {
        /// NVRTC's version.
        compiler: String,
        /// The driver's.
        driver: String,
        /// The latest major version whose kernels the driver loads.
        major: i32,
    },
    /// A GPU whose tensor cores don't multiply fp8.
    #[error(
        "fp8 products need compute capability 8.9, and {gpu} has {}.{}: choose `bf16`",
        capability.0,
        capability.1
    )]
    NoFp8 {
        /// Its name.
        gpu: String,
        /// Its compute capability.
        capability: (i32, i32),
    },
    /// A kernel file does not compile.
    #[error("{file}.cu does not compile for {architecture}: {log}")]
    Compile {
        /// The file's name without `.cu`.
        file: &'static str,
        /// The target architecture.
        architecture: String,
        /// The compiler's log.
        log: String,
    },
    /// A call failed.
    #[error("{call}: {message}")]
    Call {
        /// The function's name.
        call: String,
        /// Its error.
        message: String,
    },
    /// An asynchronous error of NCCL: a connection broke, or a rank is gone.
    #[error("NCCL: {0}")]
    Communicator(String),
    /// The run ended while the host waited for the device.
    #[error("the wait for the device was given up, because the run ends")]
    Stopped,
    /// No algorithm for a matrix product or an attention.
    #[error("there is no algorithm for {0}")]
    NoAlgorithm(String),
    /// The emulator has no compiler, can't write its folder, or waited in vain for other members of a group.
    #[error("the emulator: {0}")]
    Emulator(String),
}
