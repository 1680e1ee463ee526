//! Running a launch, and recording which memory it and other work access.

use super::Emulator;
use super::memory::{FENCE, Memory, buffer_mut, bytes_of, inside, inside_mut, memory};
use super::order::Name;
use crate::cuda::error::DeviceError;
use crate::cuda::launch::{Address, Launch, Number};
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ops::Range;

type Kernel = unsafe extern "C" fn(*const c_void);
type Emulate = unsafe extern "C" fn(Kernel, *const c_void, *const u32, *const u32, u32);
type Words = unsafe extern "C" fn(*const c_void, *mut u64, u32);

/// Buffers up to this size may be tables of addresses.
const TABLE: usize = 1 << 16;

impl Emulator {
    /// Runs a launch with the threads in that order: 0 by index, 1 reversed, others shuffled. The caller holds the memory.
    pub(super) fn run_once(&self, launch: &Launch, order: u32) -> Result<(), DeviceError> {
        let library = &self.libraries[launch.file];
        let unknown = |error: libloading::Error| DeviceError::Emulator(error.to_string());
        // SAFETY: the kernel's struct has the layout of `arguments`, and its addresses are in buffers.
        unsafe {
            let emulate: libloading::Symbol<Emulate> = library.get(b"emulate").map_err(unknown)?;
            let kernel: libloading::Symbol<Kernel> =
                library.get(launch.kernel.as_bytes()).map_err(unknown)?;
            let block = [launch.block, 1, 1];
            emulate(*kernel, launch.arguments.as_ptr().cast(), launch.grid.as_ptr(), block.as_ptr(), order);
        }
        Ok(())
    }

    pub(super) fn check_fences(&self, memory: &Memory, launch: &Launch) {
        for buffer in self.buffers.iter().map(|at| &memory[at]) {
            let bytes = bytes_of(&buffer.lines);
            let untouched = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0xff);
            assert!(untouched(&bytes[..FENCE]), "{} writes before a buffer", launch.kernel);
            assert!(untouched(&bytes[FENCE + buffer.bytes..]), "{} writes behind a buffer", launch.kernel);
        }
    }

    /// A launch's struct as words.
    fn words(&self, launch: &Launch) -> Result<Vec<u64>, DeviceError> {
        let unknown = |error: libloading::Error| DeviceError::Emulator(error.to_string());
        let mut words = vec![0; launch.arguments.len()];
        // SAFETY: both have that many words, and C++ may copy uninitialised bytes.
        unsafe {
            let copy: libloading::Symbol<Words> =
                self.libraries[launch.file].get(b"words").map_err(unknown)?;
            copy(launch.arguments.as_ptr().cast(), words.as_mut_ptr(), words.len() as u32);
        }
        Ok(words)
    }

    /// Records accesses of the selected stream, which must have waited for earlier conflicting ones.
    pub(super) fn touch(&mut self, memory: &mut Memory, what: &str, touched: &[(Address, usize, bool)]) {
        let (by, known) = self.order.work();
        for (at, bytes, writes) in touched.iter().filter(|(_, bytes, _)| *bytes > 0) {
            let (from, buffer) = buffer_mut(memory, *at);
            let first = (at.0 - from) as usize;
            let range = first..first + bytes;
            let known = match writes {
                true => buffer.history.write(range, by, known),
                false => buffer.history.read(range, by, known),
            };
            let does = if *writes { "writes" } else { "reads" };
            let Err((device, stream)): Result<(), Name> = known else { continue };
            let ((on_device, on), _) = by;
            panic!(
                "{what} on stream {on} of device {on_device} {does} what stream {stream} of device {device} touched, and does \
                 not wait for it"
            );
        }
    }

    /// The memory that a launch may read: of each buffer from the lowest address in its struct to the buffer's end. Small buffers may
    /// be tables of addresses themselves.
    fn named(&self, memory: &Memory, launch: &Launch) -> Result<BTreeMap<u64, Vec<u64>>, DeviceError> {
        let mut named: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        let mut words = self.words(launch)?;
        for _ in 0..2 {
            let mut inside = Vec::new();
            for word in words {
                let Some((from, buffer)) = memory.range(..=word).next_back() else { continue };
                let first = (word - from) as usize;
                if first >= buffer.bytes {
                    continue;
                }
                let is_new = !named.contains_key(from);
                named.entry(*from).or_default().push(word - from);
                if is_new && buffer.bytes <= TABLE {
                    let content = &bytes_of(&buffer.lines)[FENCE..][..buffer.bytes];
                    inside.extend(content.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)));
                }
            }
            words = inside;
        }
        Ok(named)
    }

    /// Runs a launch and records its accesses; its writes are the bytes that changed.
    pub(super) fn run_recording_accesses(
        &mut self,
        memory: &mut Memory,
        launch: &Launch,
    ) -> Result<(), DeviceError> {
        if !launch.touches.is_empty() {
            let touched: Vec<_> =
                launch.touches.iter().map(|touch| (touch.at, touch.bytes, touch.writes)).collect();
            self.touch(memory, &launch.kernel, &touched);
            return self.run_once(launch, 0);
        }
        let named = self.named(memory, launch)?;
        let content = |memory: &Memory, from: &u64| -> Vec<u8> {
            let buffer = &memory[from];
            bytes_of(&buffer.lines)[FENCE..][..buffer.bytes].to_vec()
        };
        let before: Vec<Vec<u8>> = named.keys().map(|from| content(memory, from)).collect();
        self.run_once(launch, 0)?;
        let mut touched = Vec::new();
        for ((from, firsts), before) in named.iter().zip(&before) {
            let first = *firsts.iter().min().expect("it was named");
            let read = before.len() - first as usize;
            touched.push((Address(from + first), read, false));
            let after = &bytes_of(&memory[from].lines)[FENCE..][..before.len()];
            let changed = |range: &Range<usize>| before[range.clone()] != after[range.clone()];
            let words = (0..before.len()).step_by(8).map(|at| at..(at + 8).min(before.len()));
            let mut changes = words.filter(changed);
            if let Some(one) = changes.next() {
                let last = changes.next_back().unwrap_or(one.clone());
                touched.push((Address(from + one.start as u64), last.end - one.start, true));
            }
        }
        self.touch(memory, &launch.kernel, &touched);
        Ok(())
    }

    /// Reads an array for other devices.
    pub(super) fn brought(&mut self, from: Address, count: usize, number: Number, what: &str) -> Vec<f32> {
        let memory = &mut *memory();
        self.touch(memory, what, &[(from, count * number.size(), false)]);
        self.numbers(memory, from, count, number)
    }

    /// Writes an array from other devices.
    pub(super) fn put(&mut self, to: Address, made: &[f32], number: Number, what: &str) {
        let made = number.encode(made.iter().copied());
        let memory = &mut *memory();
        self.touch(memory, what, &[(to, made.len(), true)]);
        inside_mut(memory, to, made.len()).copy_from_slice(&made);
    }

    pub(super) fn numbers(&self, memory: &Memory, at: Address, count: usize, number: Number) -> Vec<f32> {
        number.decode(inside(memory, at, count * number.size()))
    }
}
