//! A device that runs the kernels on the CPU, thread by thread, compiled as C++: `emulator/emulator.h` says how.
//!
//! It stands in for a GPU: a launch reads and writes the same memory in the same order. Matrix products are plain loops. All emulators
//! of a process share their memory, as ranks on one GPU do. Calls are done at once; `order` checks separately that streams wait for
//! each other as a GPU requires.

mod compile;
mod device_calls;
mod fused;
mod group;
mod memory;
mod order;
mod run;

use super::attention::Pass;
use super::collective::Membership;
use super::device::{Device, StopFlag};
use super::error::DeviceError;
use super::source::FILES;
use compile::compiled;
use order::Order;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CStr, c_char};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// The orders in which the threads of a block run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turns {
    /// By index.
    InOrder,
    /// By index, reversed and shuffled, each from the same memory: a launch whose results differ is a fault.
    AllOrders,
}

/// The kernels as a shared library for each file, and buffers in this process.
pub struct Emulator {
    turns: Turns,
    libraries: BTreeMap<&'static str, libloading::Library>,
    /// Addresses of its buffers.
    buffers: BTreeSet<u64>,
    order: Order,
    /// By the group's number, with how many collectives it has done.
    groups: BTreeMap<usize, (Membership, u64)>,
    ran: BTreeSet<String>,
    marks: Vec<Instant>,
    stop: StopFlag,
    attention_fault: AttentionFault,
}

/// A fault to inject into the library's attention, for tests of its callers. Tests change it between calls.
pub type AttentionFault = Arc<Mutex<Option<(Pass, AttentionFaultKind)>>>;

/// A kind of injected fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttentionFaultKind {
    /// Scores are twice as large as they should be.
    WrongNumbers,
    /// The library's call fails.
    Fails,
}

impl Emulator {
    /// Compiles the kernel files, two at a time, unless `folder` holds them compiled.
    ///
    /// # Errors
    /// Without a C++ compiler (`CXX`, or `c++`), or if the folder cannot be written.
    pub fn new(folder: &Path, turns: Turns) -> Result<Self, DeviceError> {
        let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".into());
        if Command::new(&compiler).arg("--version").output().is_err() {
            return Err(DeviceError::Emulator(format!(
                "there is no C++ compiler `{compiler}`: install one, or name it in CXX"
            )));
        }
        let of_folder = |error| DeviceError::Emulator(format!("{}: {error}", folder.display()));
        std::fs::create_dir_all(folder).map_err(of_folder)?;
        let compile = |name: &'static str| compiled(folder, &compiler, name);
        let each = |half: &[super::source::File]| -> Result<Vec<PathBuf>, DeviceError> {
            half.iter().map(|file| compile(file.name)).collect()
        };
        let (first_half, second_half) = FILES.split_at(FILES.len() / 2);
        let paths = std::thread::scope(|scope| {
            let second_half = scope.spawn(|| each(second_half));
            let mut first_half = each(first_half)?;
            first_half.extend(second_half.join().expect("the compiler ran")?);
            Ok(first_half)
        })?;
        // SAFETY: the libraries are made from this crate's files and do nothing when they are loaded.
        let load = |path: &PathBuf| {
            unsafe { libloading::Library::new(path) }
                .map_err(|error| DeviceError::Emulator(error.to_string()))
        };
        let libraries = FILES.iter().zip(&paths).map(|(file, path)| Ok((file.name, load(path)?)));
        static DEVICES: AtomicU64 = AtomicU64::new(0);
        Ok(Self {
            turns,
            libraries: libraries.collect::<Result<_, DeviceError>>()?,
            buffers: BTreeSet::new(),
            order: Order::new(DEVICES.fetch_add(1, Ordering::Relaxed)),
            groups: BTreeMap::new(),
            ran: BTreeSet::new(),
            marks: Vec::new(),
            stop: StopFlag::default(),
            attention_fault: AttentionFault::default(),
        })
    }

    /// Injects that fault into its library's attention.
    pub fn set_attention_fault(&mut self, fault: AttentionFault) {
        self.attention_fault = fault;
    }

    fn attention_fault_in(&self, pass: Pass) -> Option<AttentionFaultKind> {
        let fault = *self.attention_fault.lock().unwrap_or_else(PoisonError::into_inner);
        fault.filter(|(faulty_pass, _)| *faulty_pass == pass).map(|(_, kind)| kind)
    }

    /// Names of all kernels that ran.
    pub fn ran(&self) -> &BTreeSet<String> {
        &self.ran
    }

    /// Names of all kernels of all files.
    pub fn kernels(&self) -> BTreeSet<String> {
        let mut names = BTreeSet::new();
        for library in self.libraries.values() {
            // SAFETY: the library's function has that signature, and its strings are constants.
            unsafe {
                let name: libloading::Symbol<unsafe extern "C" fn(u32) -> *const c_char> =
                    library.get(b"kernel_name").expect("each library has it");
                let all = (0..).map(|index| name(index)).take_while(|name| !name.is_null());
                names.extend(all.map(|name| CStr::from_ptr(name).to_string_lossy().into_owned()));
            }
        }
        names
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        let _ = self.clear();
    }
}
