//! What goes wrong on a device.

/// What went wrong on a device.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// A library that is not there.
    #[error("{library} is not there: looked for {names} in {places}; {remedy}")]
    Missing {
        /// Which.
        library: &'static str,
        /// Names it may have.
        names: String,
        /// Where it was looked for.
        places: String,
        /// What to do.
        remedy: &'static str,
    },
    /// The driver is there and no GPU is.
    #[error("the NVIDIA driver finds no GPU ({0})")]
    NoGpu(String),
    /// The driver is older than this program can use.
    #[error("the NVIDIA driver offers CUDA {found}, and {needed} is needed: install a newer driver")]
    OldDriver {
        /// What it offers.
        found: String,
        /// What is needed.
        needed: &'static str,
    },
    /// A compiler of a later CUDA than the driver's.
    #[error(
        "NVRTC {compiler} makes kernels that a driver for CUDA {driver} does not load: install NVRTC of CUDA {major}, or a newer driver"
    )]
    NewCompiler {
        /// NVRTC's version.
        compiler: String,
        /// The driver's.
        driver: String,
        /// The latest whose kernels it loads.
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
        /// What it has.
        capability: (i32, i32),
    },
    /// A kernel file does not compile.
    #[error("{file}.cu does not compile for {architecture}: {log}")]
    Compile {
        /// Which file.
        file: &'static str,
        /// For which chips.
        architecture: String,
        /// What the compiler says.
        log: String,
    },
    /// A call failed.
    #[error("{call}: {message}")]
    Call {
        /// Which.
        call: String,
        /// What it answered.
        message: String,
    },
    /// A communicator of NCCL failed behind a call that had returned: a connection broke, or a rank is gone.
    #[error("NCCL: {0}")]
    Communicator(String),
    /// The run ended while the host waited for the device.
    #[error("the wait for the device was given up, because the run ends")]
    Stopped,
    /// No algorithm for a matrix product.
    #[error("there is no algorithm for {0}")]
    NoAlgorithm(String),
    /// The emulator has no compiler, or no place for what it compiles.
    #[error("the emulator: {0}")]
    Emulator(String),
}
