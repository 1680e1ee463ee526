//! A device that runs the kernels on the CPU, thread by thread, compiled as C++: `emulator/emulator.h` says how.
//!
//! It stands in for a GPU where there is none: what a launch reads and writes, and in which order, is as on one. Matrix
//! products are plain loops.

use super::launch::{Address, Device, DeviceError, Launch, Number};
use super::product::{Epilogue, Operands, Product};
use super::source::{COMMON, FILES};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CStr, c_char, c_void};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

type Kernel = unsafe extern "C" fn(*const c_void);
type Emulate = unsafe extern "C" fn(Kernel, *const c_void, *const u32, *const u32, u32);

/// Bytes around a buffer that must not change.
const FENCE: usize = 1024;

/// What is compiled with each kernel file.
const SOURCES: [(&str, &str); 2] = [
    ("emulator.h", include_str!("emulator/emulator.h")),
    ("emulator.cpp", include_str!("emulator/emulator.cpp")),
];

const OPTIONS: [&str; 7] =
    ["-std=c++17", "-O1", "-fPIC", "-shared", "-fno-gnu-unique", "-Wall", "-Wno-unknown-pragmas"];

/// In which orders threads take turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turns {
    /// By number.
    InOrder,
    /// By number, the other way round and shuffled, from the same memory: a launch whose results differ is a fault.
    EveryWay,
}

/// The kernels as a shared library for each file, and buffers in this process.
pub struct Emulator {
    turns: Turns,
    libraries: BTreeMap<&'static str, libloading::Library>,
    /// Whole, with fences, by the address of what is inside them.
    buffers: BTreeMap<u64, Buffer>,
    ran: BTreeSet<String>,
    marks: Vec<Instant>,
}

struct Buffer {
    lines: Box<[Line]>,
    bytes: usize,
}

/// 256 bytes, aligned so.
#[derive(Clone, Copy)]
#[repr(C, align(256))]
struct Line([u8; 256]);

/// The libraries' threads and shared memory are variables of theirs.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

impl Emulator {
    /// Compiles the kernel files, two at a time, as far as `folder` has not got them compiled.
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
        let (own, other) = FILES.split_at(FILES.len() / 2);
        let paths = std::thread::scope(|scope| {
            let other = scope.spawn(|| each(other));
            let mut own = each(own)?;
            own.extend(other.join().expect("the compiler ran")?);
            Ok(own)
        })?;
        // SAFETY: the libraries are made from this crate's files and do nothing when they are loaded.
        let load = |path: &PathBuf| {
            unsafe { libloading::Library::new(path) }
                .map_err(|error| DeviceError::Emulator(error.to_string()))
        };
        let libraries = FILES.iter().zip(&paths).map(|(file, path)| Ok((file.name, load(path)?)));
        Ok(Self {
            turns,
            libraries: libraries.collect::<Result<_, DeviceError>>()?,
            buffers: BTreeMap::new(),
            ran: BTreeSet::new(),
            marks: Vec::new(),
        })
    }

    /// Names of all kernels that ran.
    pub fn ran(&self) -> &BTreeSet<String> {
        &self.ran
    }

    /// Names of all kernels of all files.
    pub fn kernels(&self) -> BTreeSet<String> {
        let mut names = BTreeSet::new();
        for library in self.libraries.values() {
            // SAFETY: the library's function of that name is such a one, and its strings are constants.
            unsafe {
                let name: libloading::Symbol<unsafe extern "C" fn(u32) -> *const c_char> =
                    library.get(b"kernel_name").expect("each library has it");
                let all = (0..).map(|index| name(index)).take_while(|name| !name.is_null());
                names.extend(all.map(|name| CStr::from_ptr(name).to_string_lossy().into_owned()));
            }
        }
        names
    }

    /// Runs once, with the threads in that order: by number, the other way round, shuffled.
    fn once(&self, launch: &Launch, order: u32) -> Result<(), DeviceError> {
        let library = &self.libraries[launch.file];
        let unknown = |error: libloading::Error| DeviceError::Emulator(error.to_string());
        let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the kernel's struct has the layout of `arguments`, and what it points to is in `buffers`.
        unsafe {
            let emulate: libloading::Symbol<Emulate> = library.get(b"emulate").map_err(unknown)?;
            let kernel: libloading::Symbol<Kernel> =
                library.get(launch.kernel.as_bytes()).map_err(unknown)?;
            let block = [launch.block, 1, 1];
            emulate(*kernel, launch.arguments.as_ptr().cast(), launch.grid.as_ptr(), block.as_ptr(), order);
        }
        Ok(())
    }

    fn check_fences(&self, launch: &Launch) {
        for buffer in self.buffers.values() {
            let bytes = bytes_of(&buffer.lines);
            let untouched = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0xff);
            assert!(untouched(&bytes[..FENCE]), "{} writes before a buffer", launch.kernel);
            assert!(untouched(&bytes[FENCE + buffer.bytes..]), "{} writes behind a buffer", launch.kernel);
        }
    }

    /// The bytes at an address, which must be inside a buffer.
    fn inside(&self, at: Address, bytes: usize) -> &[u8] {
        let (from, buffer) = self.buffers.range(..=at.0).next_back().expect("an address is of a buffer");
        let first = (at.0 - from) as usize;
        assert!(first + bytes <= buffer.bytes, "{bytes} bytes from {first} on of {}", buffer.bytes);
        &bytes_of(&buffer.lines)[FENCE + first..][..bytes]
    }

    fn inside_mut(&mut self, at: Address, bytes: usize) -> &mut [u8] {
        let (from, buffer) = self.buffers.range_mut(..=at.0).next_back().expect("an address is of a buffer");
        let first = (at.0 - from) as usize;
        assert!(first + bytes <= buffer.bytes, "{bytes} bytes from {first} on of {}", buffer.bytes);
        // SAFETY: a `Line` is its bytes.
        let all = unsafe {
            std::slice::from_raw_parts_mut(
                buffer.lines.as_mut_ptr().cast::<u8>(),
                size_of_val(&*buffer.lines),
            )
        };
        &mut all[FENCE + first..][..bytes]
    }

    fn numbers(&self, at: Address, count: usize, number: Number) -> Vec<f32> {
        let bytes = self.inside(at, count * number.size());
        match number {
            Number::F32 => bytes.as_chunks().0.iter().map(|four| f32::from_le_bytes(*four)).collect(),
            Number::Bf16 => {
                let wide = |two: &[u8; 2]| f32::from_bits(u32::from(u16::from_le_bytes(*two)) << 16);
                bytes.as_chunks().0.iter().map(wide).collect()
            }
        }
    }
}

/// The library of a kernel file: known by its sources, so that one that is there need not be made.
fn compiled(folder: &Path, compiler: &str, name: &str) -> Result<PathBuf, DeviceError> {
    let file = FILES.iter().find(|file| file.name == name).expect("it is one of them");
    let commons = COMMON.map(|common| (format!("{}.cuh", common.name), common.text));
    let own = (format!("{name}.cu"), file.text);
    let known = SOURCES.map(|(name, text)| (name.to_owned(), text));
    let sources: Vec<(String, &str)> = known.into_iter().chain(commons).chain([own]).collect();
    let mut hasher = DefaultHasher::new();
    (&sources, compiler, OPTIONS).hash(&mut hasher);
    let library = folder.join(format!("{name}-{:016x}.so", hasher.finish()));
    if library.exists() {
        return Ok(library);
    }
    let failed = |what: &str| DeviceError::Emulator(format!("{name}.cu as C++: {what}"));
    let of_system = |error: std::io::Error| failed(&error.to_string());
    // Others may be at the same: each works in a folder of its own, and the last step is one.
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

fn bytes_of(lines: &[Line]) -> &[u8] {
    // SAFETY: a `Line` is its bytes.
    unsafe { std::slice::from_raw_parts(lines.as_ptr().cast(), size_of_val(lines)) }
}

impl Device for Emulator {
    fn allocate(&mut self, bytes: usize) -> Result<Address, DeviceError> {
        // All ones is NaN as f32 and bf16: what nobody wrote shows, inside and outside.
        let lines = vec![Line([0xff; 256]); bytes.div_ceil(256) + 2 * FENCE / 256].into_boxed_slice();
        let inside = lines.as_ptr() as u64 + FENCE as u64;
        self.buffers.insert(inside, Buffer { lines, bytes });
        Ok(Address(inside))
    }

    fn write(&mut self, to: Address, bytes: &[u8]) -> Result<(), DeviceError> {
        self.inside_mut(to, bytes.len()).copy_from_slice(bytes);
        Ok(())
    }

    fn read(&mut self, from: Address, bytes: &mut [u8]) -> Result<(), DeviceError> {
        bytes.copy_from_slice(self.inside(from, bytes.len()));
        Ok(())
    }

    fn copy(&mut self, to: Address, from: Address, bytes: usize) -> Result<(), DeviceError> {
        let copied = self.inside(from, bytes).to_vec();
        self.write(to, &copied)
    }

    fn zero(&mut self, at: Address, bytes: usize) -> Result<(), DeviceError> {
        self.inside_mut(at, bytes).fill(0);
        Ok(())
    }

    /// # Panics
    /// If a kernel writes outside of buffers, or its results depend on the order of threads.
    fn launch(&mut self, launch: &Launch) -> Result<(), DeviceError> {
        self.ran.insert(launch.kernel.clone());
        if self.turns == Turns::InOrder {
            self.once(launch, 0)?;
            self.check_fences(launch);
            return Ok(());
        }
        let copy = |buffers: &BTreeMap<u64, Buffer>| -> Vec<Box<[Line]>> {
            buffers.values().map(|buffer| buffer.lines.clone()).collect()
        };
        let before = copy(&self.buffers);
        let mut first = None;
        for order in [0, 1, 77] {
            for (buffer, before) in self.buffers.values_mut().zip(&before) {
                buffer.lines.copy_from_slice(before);
            }
            self.once(launch, order)?;
            self.check_fences(launch);
            let after = copy(&self.buffers);
            let first = first.get_or_insert_with(|| after.clone());
            // Sums by atomic additions have no order, and say so in their name.
            let same = first.iter().zip(&after).all(|(first, after)| bytes_of(first) == bytes_of(after));
            let kernel = &launch.kernel;
            assert!(same || kernel.contains("atomic"), "{kernel} depends on the order of threads");
        }
        Ok(())
    }

    fn multiply(&mut self, product: Product, at: Operands) -> Result<(), DeviceError> {
        let Product { rows, columns, inner, inputs, output, accumulate, epilogue, .. } = product;
        if !matches!(epilogue, Epilogue::None | Epilogue::Bias) {
            return Err(DeviceError::NoAlgorithm(format!("{product:?}")));
        }
        let left = self.numbers(at.left, rows * inner, inputs);
        let right = self.numbers(at.right, inner * columns, inputs);
        let before = if accumulate { self.numbers(at.out, rows * columns, output) } else { Vec::new() };
        let bias = match epilogue {
            Epilogue::Bias => self.numbers(at.bias, columns, product.bias_number()),
            _ => Vec::new(),
        };
        let mut out = Vec::with_capacity(rows * columns * output.size());
        for (row, column) in (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column))) {
            let term = |step: usize| {
                let left = left[if product.left_transposed { step * rows + row } else { row * inner + step }];
                let right = right
                    [if product.right_transposed { column * inner + step } else { step * columns + column }];
                f64::from(left) * f64::from(right)
            };
            let sum = (0..inner).map(term).sum::<f64>() as f32;
            let sum = sum + before.get(row * columns + column).copied().unwrap_or(0.0);
            let sum = sum + bias.get(column).copied().unwrap_or(0.0);
            match output {
                Number::F32 => out.extend(sum.to_le_bytes()),
                Number::Bf16 => out.extend(bf16_bits(sum).to_le_bytes()),
            }
        }
        self.write(at.out, &out)
    }

    fn finish(&mut self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn mark(&mut self) -> Result<(), DeviceError> {
        self.marks.push(Instant::now());
        Ok(())
    }

    fn marks(&mut self) -> Result<Vec<f64>, DeviceError> {
        let marks = std::mem::take(&mut self.marks);
        let Some(first) = marks.first() else { return Ok(Vec::new()) };
        Ok(marks.iter().map(|mark| (*mark - *first).as_secs_f64()).collect())
    }

    fn about(&self) -> [String; 2] {
        ["an emulated GPU".into(), "no driver".into()]
    }

    fn clear(&mut self) -> Result<(), DeviceError> {
        self.buffers.clear();
        Ok(())
    }
}

/// What a bf16 keeps of an f32: to the nearest, ties to even.
pub(super) fn bf16_bits(x: f32) -> u16 {
    let bits = x.to_bits();
    match x.is_nan() {
        true => 0x7fff,
        false => (bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16) as u16,
    }
}
