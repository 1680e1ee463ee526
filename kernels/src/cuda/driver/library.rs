//! Which of NVIDIA's libraries are there. cudarc panics where one is missing, so each is asked for before its first use.

use crate::cuda::launch::DeviceError;
use std::sync::OnceLock;

/// One of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Library {
    /// The driver.
    Driver,
    /// The compiler of kernels.
    Nvrtc,
    /// Matrix products.
    CublasLt,
    /// Fused attention.
    Cudnn,
    /// Collectives among GPUs.
    Nccl,
}

impl Library {
    /// All of them.
    pub const ALL: [Library; 5] =
        [Library::Driver, Library::Nvrtc, Library::CublasLt, Library::Cudnn, Library::Nccl];

    fn name(self) -> &'static str {
        match self {
            Library::Driver => "the NVIDIA driver",
            Library::Nvrtc => "NVRTC",
            Library::CublasLt => "cublasLt",
            Library::Cudnn => "cuDNN",
            Library::Nccl => "NCCL",
        }
    }

    fn file(self) -> &'static str {
        match self {
            Library::Driver => "cuda",
            Library::Nvrtc => "nvrtc",
            Library::CublasLt => "cublasLt",
            Library::Cudnn => "cudnn",
            Library::Nccl => "nccl",
        }
    }

    fn remedy(self) -> &'static str {
        match self {
            Library::Driver => "install the driver of the GPU",
            Library::Nvrtc | Library::CublasLt => {
                "install the CUDA toolkit, or its Python packages and put their lib folders into LD_LIBRARY_PATH"
            }
            Library::Cudnn => {
                "install cuDNN 9, or its Python package and put its lib folder into LD_LIBRARY_PATH"
            }
            Library::Nccl => {
                "install NCCL and put its folder into LD_LIBRARY_PATH; where it has libnccl.so.2 alone, link libnccl.so to it"
            }
        }
    }

    /// Whether it is there; asked once.
    pub fn is_there(self) -> bool {
        static FOUND: [OnceLock<bool>; 5] = [const { OnceLock::new() }; 5];
        // SAFETY: loading one of NVIDIA's libraries runs its initialisers, which is what its use does anyway.
        *FOUND[self as usize].get_or_init(|| unsafe {
            match self {
                Library::Driver => cudarc::driver::sys::is_culib_present(),
                Library::Nvrtc => cudarc::nvrtc::sys::is_culib_present(),
                Library::CublasLt => cudarc::cublaslt::sys::is_culib_present(),
                Library::Cudnn => cudarc::cudnn::sys::is_culib_present(),
                Library::Nccl => cudarc::nccl::sys::is_culib_present(),
            }
        })
    }

    /// Its name and version as people write them, if it is there and tells.
    pub fn version(self) -> Option<String> {
        let [major, minor, patch] = self.parts()?;
        Some(format!("{} {major}.{minor}.{patch}", self.name()))
    }

    /// The three parts of its version, if it is there and tells.
    pub fn parts(self) -> Option<[usize; 3]> {
        if !self.is_there() {
            return None;
        }
        // SAFETY: they give constants, or write one number.
        unsafe {
            match self {
                Library::Driver | Library::Nvrtc => None,
                Library::CublasLt => Some(parts(cudarc::cublaslt::sys::cublasLtGetVersion())),
                Library::Cudnn => Some(parts(cudarc::cudnn::sys::cudnnGetVersion())),
                Library::Nccl => {
                    let mut version = 0;
                    cudarc::nccl::sys::ncclGetVersion(&mut version).result().ok()?;
                    Some(parts(version as usize))
                }
            }
        }
    }

    /// An error that says where it was looked for, if it is not there.
    pub fn require(self) -> Result<(), DeviceError> {
        if self.is_there() {
            return Ok(());
        }
        let mut names = cudarc::get_lib_name_candidates(self.file());
        // The driver's version is not CUDA's; of the others the old ones would not do.
        let plain = format!("lib{}.so", self.file());
        let wanted: &[&str] = match self {
            Library::Driver => &["", ".1"],
            Library::Cudnn => &["", ".9"],
            _ => &["", ".13", ".12"],
        };
        names.retain(|name| name.strip_prefix(&plain).is_some_and(|end| wanted.contains(&end)));
        let path = std::env::var("LD_LIBRARY_PATH").unwrap_or_default();
        let path = if path.is_empty() { "LD_LIBRARY_PATH, which is empty,".into() } else { path };
        Err(DeviceError::Missing {
            library: self.name(),
            names: names.join(", "),
            places: format!("{path} and the system's library folders"),
            remedy: self.remedy(),
        })
    }
}

/// The three parts of a version: of 22703 they are 2, 27 and 3.
fn parts(version: usize) -> [usize; 3] {
    [version / 10_000, version / 100 % 100, version % 100]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_have_three_parts() {
        assert_eq!(parts(22_703), [2, 27, 3]);
        assert_eq!(parts(91_002), [9, 10, 2]);
        assert_eq!(parts(130_100), [13, 1, 0]);
    }

    #[test]
    fn what_is_missing_is_named_in_one_line() {
        for library in Library::ALL {
            match library.require() {
                Ok(()) => assert!(library.is_there()),
                Err(error) => {
                    let text = error.to_string();
                    let file = format!("lib{}.so", library.file());
                    assert!(
                        text.contains(&file) && text.contains("library folders") && !text.contains('\n'),
                        "{text}"
                    );
                }
            }
        }
    }
}
