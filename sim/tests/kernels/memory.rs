//! Kernels bound by memory.

use super::{Measured, read};
use serde::Deserialize;
use trainwright_spec::program::{Access, Kernel};
use trainwright_spec::units::{Bytes, Seconds};

#[derive(Deserialize)]
struct Row {
    family: String,
    gpu: String,
    bytes: f64,
    time_us: f64,
    source: String,
}

pub fn rows() -> impl Iterator<Item = Measured> {
    read::<Row>(include_str!("../data/memory.csv")).map(|row| {
        let half = Bytes::new(row.bytes / 2.0);
        let access = match row.family.as_str() {
            "layernorm" | "softmax" => Access::Reduction,
            _ => Access::Elementwise,
        };
        // A softmax goes over its rows twice.
        let read = if row.family == "softmax" { 2.0 * half } else { half };
        let kernel = Kernel::Streaming { access, read, written: half };
        let time = Seconds::new(row.time_us * 1e-6);
        Measured::of_kernels(row.gpu, row.family, row.source, time, &[kernel])
    })
}
