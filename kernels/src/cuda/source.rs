//! The kernel files' text, and the folder where they are cached once compiled.

use std::path::PathBuf;

/// A kernel file: its name without `.cu`, and its text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct File {
    /// Its name.
    pub name: &'static str,
    /// Its text, without `COMMON`.
    pub text: &'static str,
}

/// The beginning of all files: number types and sums, then tensor cores.
pub const COMMON: [File; 2] = [
    File { name: "prelude", text: include_str!("../../cuda/prelude.cuh") },
    File { name: "mma", text: include_str!("../../cuda/mma.cuh") },
];

/// All files with kernels.
pub const FILES: [File; 13] = [
    File { name: "activation", text: include_str!("../../cuda/activation.cu") },
    File { name: "attention", text: include_str!("../../cuda/attention.cu") },
    File { name: "columns", text: include_str!("../../cuda/columns.cu") },
    File { name: "cross_entropy", text: include_str!("../../cuda/cross_entropy.cu") },
    File { name: "dropout", text: include_str!("../../cuda/dropout.cu") },
    File { name: "fp8", text: include_str!("../../cuda/fp8.cu") },
    File { name: "embedding", text: include_str!("../../cuda/embedding.cu") },
    File { name: "experts", text: include_str!("../../cuda/experts.cu") },
    File { name: "grouped", text: include_str!("../../cuda/grouped.cu") },
    File { name: "norm", text: include_str!("../../cuda/norm.cu") },
    File { name: "optimizer", text: include_str!("../../cuda/optimizer.cu") },
    File { name: "reduce", text: include_str!("../../cuda/reduce.cu") },
    File { name: "rotary", text: include_str!("../../cuda/rotary.cu") },
];

impl File {
    /// The text for the compiler, with `COMMON`. `#line` lets its messages name the right file.
    pub fn full_text(&self) -> String {
        let [prelude, mma] = COMMON;
        let part = |file: File, end: &str| format!("#line 1 \"{}{end}\"\n{}", file.name, file.text);
        part(prelude, ".cuh") + &part(mma, ".cuh") + &part(*self, ".cu")
    }
}

/// The folder of the cache of compiled kernels; `None` if the user has no cache folder.
pub fn cache_folder() -> Option<PathBuf> {
    let folder = |name| std::env::var_os(name).filter(|path| !path.is_empty()).map(PathBuf::from);
    let cache = folder("XDG_CACHE_HOME").or_else(|| Some(folder("HOME")?.join(".cache")));
    Some(cache?.join("trainwright"))
}
