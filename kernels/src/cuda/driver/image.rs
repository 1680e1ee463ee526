//! Kernels compiled by NVRTC and cached in the user's cache folder.

use super::answer::OrFailed;
use crate::cuda::error::DeviceError;
use crate::cuda::source::{File, cache_folder};
use cudarc::nvrtc;
use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// A file and an architecture.
type Key = (&'static str, String);

/// Machine code, or the compiler's error.
type Image = Result<Arc<Vec<u8>>, DeviceError>;

/// Images that are compiled or being compiled.
type Images = Mutex<BTreeMap<Key, Arc<OnceLock<Image>>>>;

/// As `compile`, once for all threads of the process, and cached on disk for later runs: the compiler takes seconds.
pub(super) fn compiled(file: &File, architecture: &str) -> Image {
    static IMAGES: Images = Mutex::new(BTreeMap::new());
    once(&IMAGES, (file.name, architecture.to_owned()), || {
        let kept = kept_image(file, architecture);
        if let Some(known) = kept.as_ref().and_then(|path| std::fs::read(path).ok()) {
            return Ok(Arc::new(known));
        }
        let made = compile(file, architecture)?;
        if let Some(path) = &kept {
            // Without it the next run compiles again.
            let _ = keep(path, &made);
        }
        Ok(Arc::new(made))
    })
}

/// Made by the first thread that asks. Other threads wait only if they ask for the same image.
fn once(images: &Images, key: Key, make: impl FnOnce() -> Image) -> Image {
    let place = Arc::clone(images.lock().unwrap_or_else(PoisonError::into_inner).entry(key).or_default());
    place.get_or_init(make).clone()
}

/// The cache file of a kernel file: its name holds a hash of the text and the compiler's version, and the architecture.
fn kept_image(file: &File, architecture: &str) -> Option<PathBuf> {
    let (mut major, mut minor) = (0, 0);
    // SAFETY: it writes two numbers.
    unsafe { nvrtc::sys::nvrtcVersion(&mut major, &mut minor) }.result().ok()?;
    let mut hasher = DefaultHasher::new();
    (file.full_text(), major, minor).hash(&mut hasher);
    let name = format!("{}-{architecture}-{:016x}.cubin", file.name, hasher.finish());
    Some(cache_folder()?.join("kernels").join(name))
}

/// Writes under a temporary name first, so that a file with the final name is complete.
fn keep(path: &Path, image: &[u8]) -> std::io::Result<()> {
    std::fs::create_dir_all(path.parent().expect("it is in a folder"))?;
    let draft = path.with_extension(std::process::id().to_string());
    std::fs::write(&draft, image)?;
    std::fs::rename(draft, path)
}

/// Machine code of a file for an architecture, `sm_90` or the like.
fn compile(file: &File, architecture: &str) -> Result<Vec<u8>, DeviceError> {
    use nvrtc::result::{compile_program, create_program, destroy_program, get_program_log};
    let text = CString::new(file.full_text()).expect("kernel files have no zeros");
    let program = create_program(&text, None).or_failed("nvrtcCreateProgram")?;
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
        nvrtc::sys::nvrtcGetCUBINSize(program, &mut size).result().or_failed("nvrtcGetCUBINSize")?;
        let mut code = vec![0u8; size];
        nvrtc::sys::nvrtcGetCUBIN(program, code.as_mut_ptr().cast()).result().or_failed("nvrtcGetCUBIN")?;
        Ok(code)
    }
}

#[cfg(test)]
mod tests {
    use super::super::answer::failed;
    use super::super::library::Library;
    use super::*;
    use crate::cuda::source::FILES;
    use std::sync::mpsc;
    use std::time::Duration;

    #[test]
    fn files_are_compiled_in_parallel_and_each_once() {
        let images = Images::default();
        let key = |name| (name, "sm_90".to_owned());
        let ((finish, finished), (begin, begun)) = (mpsc::channel(), mpsc::channel());
        let image = |code| Ok(Arc::new(vec![code]));
        let images = &images;
        std::thread::scope(|scope| {
            // The first file is ready only when the second one is.
            let make_first = move || {
                begin.send(()).unwrap();
                match finished.recv_timeout(Duration::from_secs(20)) {
                    Ok(()) => image(1),
                    Err(error) => Err(failed("the second file", error)),
                }
            };
            let first = scope.spawn(move || once(images, key("first"), make_first));
            begun.recv().unwrap();
            assert_eq!(once(images, key("second"), || image(2)), image(2));
            // Whoever no longer waits has failed.
            let _ = finish.send(());
            assert_eq!(first.join().unwrap(), image(1));
        });
        assert_eq!(once(images, key("first"), || image(3)), image(1));
    }

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
