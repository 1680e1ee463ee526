//! The text of the kernel files.

/// A kernel file: its name without `.cu`, and its text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct File {
    /// Its name.
    pub name: &'static str,
    /// Its text, without what all begin with.
    pub text: &'static str,
}

/// What all files begin with: numbers and sums, then tensor cores.
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
    /// What the compiler is given. Lines count by file, so that its messages name the right one.
    pub fn whole(&self) -> String {
        let [prelude, mma] = COMMON;
        let part = |file: File, end: &str| format!("#line 1 \"{}{end}\"\n{}", file.name, file.text);
        part(prelude, ".cuh") + &part(mma, ".cuh") + &part(*self, ".cu")
    }
}
