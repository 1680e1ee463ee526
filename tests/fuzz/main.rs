//! Files and messages from outside, damaged in every way: a reader answers or refuses in one line. It never panics, aborts,
//! hangs or asks for memory without bound; nor does what goes on with what it accepted.
//!
//! ```text
//! targets.rs: a reader, valid inputs, a dictionary ─┐
//! corpus/NAME: inputs that once failed ─────────────┴─► child.rs: input 0, 1, 2, … in a process ─► supervise.rs: failures
//! mutate.rs: damage, from the number of an input ───┘
//! ```
//!
//! Inputs follow from the target's name and their number, so that a failure is found again. `cargo test --test fuzz` runs a
//! few of each target. `cargo test --release --test fuzz -- --long 1000000 NAME` runs more.

mod child;
mod files;
#[path = "../common/long.rs"]
mod long;
mod mutate;
mod supervise;
mod targets;

use std::process::ExitCode;

/// Bytes that a process may have at once. The largest of the small inputs here needs a tenth.
const MEMORY: usize = 1 << 30;

/// Counts bytes, and fails where they are more than `MEMORY`: the process ends, and its input is known.
#[global_allocator]
static ALLOCATOR: cap::Cap<std::alloc::System> = cap::Cap::new(std::alloc::System, MEMORY);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.split_first() {
        Some((first, rest)) if first == "--child" => child::run(rest),
        _ => supervise::run(&arguments),
    }
}
