//! Kernels compiled by NVRTC, and kept in the user's cache folder.

use super::failed;
use crate::cuda::cache_folder;
use crate::cuda::launch::DeviceError;
use crate::cuda::source::File;
use cudarc::nvrtc;
use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// Machine code by file and architecture.
type Images = BTreeMap<(&'static str, String), Arc<Vec<u8>>>;

/// As `compile`, once for all threads, which may share a GPU, and kept on disk for later runs: the compiler takes seconds.
pub(super) fn compiled(file: &File, architecture: &str) -> Result<Arc<Vec<u8>>, DeviceError> {
    static IMAGES: Mutex<Images> = Mutex::new(BTreeMap::new());
    let mut images = IMAGES.lock().unwrap_or_else(PoisonError::into_inner);
    let key = (file.name, architecture.to_owned());
    if let Some(known) = images.get(&key) {
        return Ok(Arc::clone(known));
    }
    let kept = kept_image(file, architecture);
    let image = match kept.as_ref().and_then(|path| std::fs::read(path).ok()) {
        Some(known) => known,
        None => {
            let made = compile(file, architecture)?;
            if let Some(path) = &kept {
                // Without it the next run compiles again.
                let _ = keep(path, &made);
            }
            made
        }
    };
    let image = Arc::new(image);
    images.insert(key, Arc::clone(&image));
    Ok(image)
}

/// Where the machine code of a file is kept: known by its text, the architecture and the compiler.
fn kept_image(file: &File, architecture: &str) -> Option<PathBuf> {
    let (mut major, mut minor) = (0, 0);
    // SAFETY: it writes two numbers.
    unsafe { nvrtc::sys::nvrtcVersion(&mut major, &mut minor) }.result().ok()?;
    let mut hasher = DefaultHasher::new();
    (file.whole(), major, minor).hash(&mut hasher);
    let name = format!("{}-{architecture}-{:016x}.cubin", file.name, hasher.finish());
    Some(cache_folder()?.join("kernels").join(name))
}

/// Written under another name first: what has its name is whole.
fn keep(path: &Path, image: &[u8]) -> std::io::Result<()> {
    std::fs::create_dir_all(path.parent().expect("it is in a folder"))?;
    let draft = path.with_extension(std::process::id().to_string());
    std::fs::write(&draft, image)?;
    std::fs::rename(draft, path)
}

/// Machine code of a file for an architecture, `sm_90` or the like.
fn compile(file: &File, architecture: &str) -> Result<Vec<u8>, DeviceError> {
    use nvrtc::result::{compile_program, create_program, destroy_program, get_program_log};
    let text = CString::new(file.whole()).expect("kernel files have no zeros");
    let program = create_program(&text, None).map_err(|error| failed("nvrtcCreateProgram", error))?;
    let options =
        [format!("--gpu-architecture={architecture}"), "--std=c++17".into(), "-default-device".into()];
    // SAFETY: the program is destroyed once, at the end.
    unsafe {
        let made = match compile_program(program, &options) {
            Ok(()) => machine_code(program),
            Err(error) => {
                let log = get_program_log(program).unwrap_or_default();
                let log: Vec<u8> = log.iter().map(|byte| *byte as u8).collect();
                let log = CStr::from_bytes_until_nul(&log).map(|log| log.to_string_lossy().into_owned());
                let log = log.unwrap_or_default();
                let log = if log.is_empty() { format!("{error:?}") } else { log };
                Err(DeviceError::Compile { file: file.name, architecture: architecture.into(), log })
            }
        };
        let _ = destroy_program(program);
        made
    }
}

/// SAFETY: the program was compiled.
unsafe fn machine_code(program: nvrtc::sys::nvrtcProgram) -> Result<Vec<u8>, DeviceError> {
    let mut size = 0;
    // SAFETY: the caller's promise, and the buffer has the size that the compiler asks for.
    unsafe {
        nvrtc::sys::nvrtcGetCUBINSize(program, &mut size)
            .result()
            .map_err(|error| failed("nvrtcGetCUBINSize", error))?;
        let mut code = vec![0u8; size];
        nvrtc::sys::nvrtcGetCUBIN(program, code.as_mut_ptr().cast())
            .result()
            .map_err(|error| failed("nvrtcGetCUBIN", error))?;
        Ok(code)
    }
}

#[cfg(test)]
mod tests {
    use super::super::library::Library;
    use super::*;
    use crate::cuda::source::FILES;

    #[test]
    fn every_file_compiles_where_the_compiler_is() {
        if let Err(error) = Library::Nvrtc.require() {
            println!("skipped: {error}");
            return;
        }
        for file in FILES {
            assert!(!compile(&file, "sm_80").unwrap().is_empty(), "{}", file.name);
        }
        let wrong = File { name: "wrong", text: "KERNEL(wrong, 32, Nothing) {}" };
        let error = compile(&wrong, "sm_80").unwrap_err().to_string();
        // The compiler names the file and its line.
        assert!(error.contains("wrong.cu(1): error"), "{error}");
    }
}
