//! Which of NVIDIA's libraries are installed. cudarc panics if one is missing, so `require` comes before the first use of each.
//!
//! The system's loader comes first: `LD_LIBRARY_PATH` and the system's folders. What it does not find is loaded from the folders in
//! `places` by its full path. cudarc, which opens libraries by name, then gets the loaded one: the loader compares names with those
//! that loaded libraries call themselves (`DT_SONAME`). NCCL's only name is none that cudarc tries, so `nccl` opens it itself.

use super::nccl::{self, Nccl};
use super::places::Places;
use crate::cuda::error::DeviceError;
use std::ffi::OsStr;
use std::sync::OnceLock;

/// One of NVIDIA's libraries.
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

    /// Its name in messages.
    pub fn name(self) -> &'static str {
        match self {
            Library::Driver => "the NVIDIA driver",
            Library::Nvrtc => "NVRTC",
            Library::CublasLt => "cublasLt",
            Library::Cudnn => "cuDNN",
            Library::Nccl => "NCCL",
        }
    }

    /// The names under which it is looked for, the first one first.
    fn files(self) -> &'static [&'static str] {
        match self {
            Library::Driver => &["libcuda.so", "libcuda.so.1"],
            Library::Nvrtc => &["libnvrtc.so", "libnvrtc.so.13", "libnvrtc.so.12"],
            Library::CublasLt => &["libcublasLt.so", "libcublasLt.so.13", "libcublasLt.so.12"],
            Library::Cudnn => &["libcudnn.so", "libcudnn.so.9"],
            Library::Nccl => &nccl::FILES,
        }
    }

    fn remedy(self) -> &'static str {
        match self {
            Library::Driver => "install the driver of the GPU",
            Library::Nvrtc | Library::CublasLt => {
                "install the CUDA toolkit or its Python packages, or put their folder into LD_LIBRARY_PATH"
            }
            Library::Cudnn => "install cuDNN 9 or its Python package, or put its folder into LD_LIBRARY_PATH",
            Library::Nccl => "install NCCL or its Python package, or put its folder into LD_LIBRARY_PATH",
        }
    }

    /// Whether it is installed; looked up once.
    pub fn is_there(self) -> bool {
        static FOUND: [OnceLock<bool>; 5] = [const { OnceLock::new() }; 5];
        *FOUND[self as usize].get_or_init(|| match self {
            // Only the system's folders hold the driver.
            Library::Driver => self.is_found(),
            Library::Nccl => Nccl::get().is_some_and(|loaded| loaded.is_ok()),
            _ => self.is_found() || self.load_from(Places::of_process()) && self.is_found(),
        })
    }

    /// Whether cudarc finds it.
    fn is_found(self) -> bool {
        // SAFETY: loading one of NVIDIA's libraries runs its initialisers, which is what its use does anyway.
        unsafe {
            match self {
                Library::Driver => cudarc::driver::sys::is_culib_present(),
                Library::Nvrtc => cudarc::nvrtc::sys::is_culib_present(),
                Library::CublasLt => cudarc::cublaslt::sys::is_culib_present(),
                Library::Cudnn => cudarc::cudnn::sys::is_culib_present(),
                Library::Nccl => false,
            }
        }
    }

    /// Loads it, and the libraries that it opens by name, for the rest of the process; whether a folder had it.
    fn load_from(self, places: &Places) -> bool {
        let Some(library) = places.open(self.files()) else { return false };
        if self == Library::Nvrtc {
            load_builtins(places);
        }
        std::mem::forget(library);
        true
    }

    /// Its name and version as messages show them; `None` if it is missing or has no version function.
    pub fn version(self) -> Option<String> {
        let [major, minor, patch] = self.parts()?;
        Some(format!("{} {major}.{minor}.{patch}", self.name()))
    }

    /// The three parts of its version; `None` if it is missing or has no version function.
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
                Library::Nccl => Some(parts(Nccl::get()?.ok()?.version()?)),
            }
        }
    }

    /// Checks that it is installed.
    ///
    /// # Errors
    /// `Missing`, with the folders that were searched.
    pub fn require(self) -> Result<(), DeviceError> {
        if self.is_there() {
            return Ok(());
        }
        // NCCL is installed, but too old to have a function that is called here.
        if let (Library::Nccl, Some(Err(error))) = (self, Nccl::get()) {
            return Err(error);
        }
        let path = std::env::var("LD_LIBRARY_PATH").unwrap_or_default();
        let path = if path.is_empty() { "LD_LIBRARY_PATH, which is empty,".into() } else { path };
        let path_of_several = path.trim_end_matches(',');
        let places = match self {
            Library::Driver => format!("{path} and the system's library folders"),
            _ => {
                format!("{path_of_several}, the system's library folders, {}", Places::of_process().written())
            }
        };
        Err(DeviceError::Missing {
            library: self.name(),
            names: self.files().join(", "),
            places,
            remedy: self.remedy(),
        })
    }
}

/// Loads the library that NVRTC opens by name when it compiles; that name ends with NVRTC's version.
fn load_builtins(places: &Places) {
    let entries = places.folders.iter().flat_map(std::fs::read_dir).flatten().flatten();
    let is_one = |name: &OsStr| name.to_str().is_some_and(|name| name.starts_with("libnvrtc-builtins.so."));
    for entry in entries.filter(|entry| is_one(&entry.file_name())) {
        // SAFETY: as for NVRTC. One that cannot be loaded is missing then.
        unsafe { libloading::Library::new(entry.path()) }.map(std::mem::forget).unwrap_or_default();
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
                    let names = library.files().iter().all(|file| text.contains(file));
                    assert!(names && text.contains("library folders") && !text.contains('\n'), "{text}");
                    let in_packages = text.contains("nvidia/*/lib");
                    assert_eq!(in_packages, library != Library::Driver, "{text}");
                }
            }
        }
    }
}
