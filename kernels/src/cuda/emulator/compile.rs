//! Kernel files compiled as C++.

use super::super::error::DeviceError;
use super::super::source::{COMMON, FILES};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The sources compiled with each kernel file.
const SOURCES: [(&str, &str); 2] =
    [("emulator.h", include_str!("emulator.h")), ("emulator.cpp", include_str!("emulator.cpp"))];

/// A misaligned access ends the process, as it destroys a GPU's context.
const OPTIONS: [&str; 9] = [
    "-std=c++17",
    "-O1",
    "-fPIC",
    "-shared",
    "-fno-gnu-unique",
    "-Wall",
    "-Wno-unknown-pragmas",
    "-fsanitize=alignment",
    "-fsanitize-undefined-trap-on-error",
];

/// The library of a kernel file, compiled unless the folder holds it: its name has a hash of the sources.
pub(super) fn compiled(folder: &Path, compiler: &str, name: &str) -> Result<PathBuf, DeviceError> {
    let file = FILES.iter().find(|file| file.name == name).expect("it is one of them");
    let commons = COMMON.map(|common| (format!("{}.cuh", common.name), common.text));
    let kernel_file = (format!("{name}.cu"), file.text);
    let known = SOURCES.map(|(name, text)| (name.to_owned(), text));
    let sources: Vec<(String, &str)> = known.into_iter().chain(commons).chain([kernel_file]).collect();
    let mut hasher = DefaultHasher::new();
    (&sources, compiler, OPTIONS).hash(&mut hasher);
    let library = folder.join(format!("{name}-{:016x}.so", hasher.finish()));
    if library.exists() {
        return Ok(library);
    }
    let failed = |what: &str| DeviceError::Emulator(format!("{name}.cu as C++: {what}"));
    let of_system = |error: std::io::Error| failed(&error.to_string());
    // Other processes may compile the same file: each uses a separate folder, and the rename is atomic.
    let number = std::process::id();
    let work = folder.join(format!("{name}-{number}-{:?}", std::thread::current().id()));
    std::fs::create_dir_all(&work).map_err(of_system)?;
    for (name, text) in &sources {
        std::fs::write(work.join(name), text).map_err(of_system)?;
    }
    let made = Command::new(compiler)
        .args(OPTIONS)
        .arg(format!("-DKERNEL_FILE=\"{name}.cu\""))
        .arg(work.join("emulator.cpp"))
        .arg("-o")
        .arg(work.join("library.so"))
        .output()
        .map_err(of_system)?;
    let log = String::from_utf8_lossy(&made.stderr);
    if !made.status.success() || !log.is_empty() {
        return Err(failed(&log));
    }
    std::fs::rename(work.join("library.so"), &library).map_err(of_system)?;
    std::fs::remove_dir_all(&work).map_err(of_system)?;
    Ok(library)
}
