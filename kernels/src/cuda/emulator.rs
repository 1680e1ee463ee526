//! A device that runs the kernels on the CPU, thread by thread, compiled as C++: `emulator/emulator.h` says how.
//!
//! It stands in for a GPU where there is none: what a launch reads and writes, and in which order, is as on one. Matrix
//! products are plain loops. All emulators of a process share their memory, as ranks that share a GPU do. What is told is done
//! at once; that streams wait for each other as they must on a GPU is checked beside (`order`).

mod fused;
mod group;
mod order;

use super::attention::{Attention, Pass};
use super::collective::{Collective, GroupName, Membership};
use super::eight::{EightOperands, EightProduct};
use super::fused::Shape;
use super::launch::{About, Address, Device, DeviceError, Graph, Launch, Moment, Number};
use super::product::{Epilogue, Operands, Product};
use super::recorder::{Told, tell};
use super::source::{COMMON, FILES};
use crate::eight::Eight;
use order::{Clock, History, Name, Order};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CStr, c_char, c_void};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

type Kernel = unsafe extern "C" fn(*const c_void);
type Emulate = unsafe extern "C" fn(Kernel, *const c_void, *const u32, *const u32, u32);
type Words = unsafe extern "C" fn(*const c_void, *mut u64, u32);

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
    /// The addresses of what is inside its buffers.
    own: BTreeSet<u64>,
    order: Order,
    /// By number, with how many collectives there were.
    groups: BTreeMap<usize, (Membership, u64)>,
    ran: BTreeSet<String>,
    marks: Vec<Instant>,
}

struct Buffer {
    /// With fences before and behind.
    lines: Box<[Line]>,
    bytes: usize,
    history: History,
}

/// Buffers by the address of what is inside their fences.
type Memory = BTreeMap<u64, Buffer>;

/// Of all emulators. Kernels run one at a time, since their libraries' threads and shared memory are variables of theirs, and
/// nothing else touches the memory meanwhile.
static MEMORY: Mutex<Memory> = Mutex::new(BTreeMap::new());

/// The memory is whole even if a check failed while it was held.
fn memory() -> MutexGuard<'static, Memory> {
    MEMORY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// 256 bytes, aligned so.
#[derive(Clone, Copy)]
#[repr(C, align(256))]
struct Line([u8; 256]);

/// Bytes of memory that an emulated GPU says it has: buffers take the host's, as much as there is.
const MEMORY_SAID: usize = 1 << 30;

/// What is smaller may be a table of addresses.
const TABLE: usize = 1 << 16;

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
        static DEVICES: AtomicU64 = AtomicU64::new(0);
        Ok(Self {
            turns,
            libraries: libraries.collect::<Result<_, DeviceError>>()?,
            own: BTreeSet::new(),
            order: Order::new(DEVICES.fetch_add(1, Ordering::Relaxed)),
            groups: BTreeMap::new(),
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

    /// Runs once, with the threads in that order: by number, the other way round, shuffled. The caller holds the memory.
    fn once(&self, launch: &Launch, order: u32) -> Result<(), DeviceError> {
        let library = &self.libraries[launch.file];
        let unknown = |error: libloading::Error| DeviceError::Emulator(error.to_string());
        // SAFETY: the kernel's struct has the layout of `arguments`, and what it points to is in a buffer.
        unsafe {
            let emulate: libloading::Symbol<Emulate> = library.get(b"emulate").map_err(unknown)?;
            let kernel: libloading::Symbol<Kernel> =
                library.get(launch.kernel.as_bytes()).map_err(unknown)?;
            let block = [launch.block, 1, 1];
            emulate(*kernel, launch.arguments.as_ptr().cast(), launch.grid.as_ptr(), block.as_ptr(), order);
        }
        Ok(())
    }

    fn check_fences(&self, memory: &Memory, launch: &Launch) {
        for buffer in self.own.iter().map(|at| &memory[at]) {
            let bytes = bytes_of(&buffer.lines);
            let untouched = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0xff);
            assert!(untouched(&bytes[..FENCE]), "{} writes before a buffer", launch.kernel);
            assert!(untouched(&bytes[FENCE + buffer.bytes..]), "{} writes behind a buffer", launch.kernel);
        }
    }

    /// The words of a launch's struct.
    fn words(&self, launch: &Launch) -> Result<Vec<u64>, DeviceError> {
        let unknown = |error: libloading::Error| DeviceError::Emulator(error.to_string());
        let mut words = vec![0; launch.arguments.len()];
        // SAFETY: both have that many words, and C++ copies bytes whatever they are.
        unsafe {
            let copy: libloading::Symbol<Words> =
                self.libraries[launch.file].get(b"words").map_err(unknown)?;
            copy(launch.arguments.as_ptr().cast(), words.as_mut_ptr(), words.len() as u32);
        }
        Ok(words)
    }

    /// The selected stream reads or writes; it must have waited for whoever did before.
    fn touch(&mut self, memory: &mut Memory, what: &str, touched: &[(Address, usize, bool)]) {
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
            let ((own, on), _) = by;
            panic!(
                "{what} on stream {on} of device {own} {does} what stream {stream} of device {device} touched, and does \
                 not wait for it"
            );
        }
    }

    /// What a launch may read: from the lowest address in its struct of each buffer to the buffer's end. Small buffers may
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
                    inside.extend(content.as_chunks().0.iter().map(|eight| u64::from_le_bytes(*eight)));
                }
            }
            words = inside;
        }
        Ok(named)
    }

    /// Runs once, and finds out from what changes what it wrote.
    fn once_seen(&mut self, memory: &mut Memory, launch: &Launch) -> Result<(), DeviceError> {
        if !launch.touches.is_empty() {
            let touched: Vec<_> =
                launch.touches.iter().map(|touch| (touch.at, touch.bytes, touch.writes)).collect();
            self.touch(memory, &launch.kernel, &touched);
            return self.once(launch, 0);
        }
        let named = self.named(memory, launch)?;
        let content = |memory: &Memory, from: &u64| -> Vec<u8> {
            let buffer = &memory[from];
            bytes_of(&buffer.lines)[FENCE..][..buffer.bytes].to_vec()
        };
        let before: Vec<Vec<u8>> = named.keys().map(|from| content(memory, from)).collect();
        self.once(launch, 0)?;
        let mut touched = Vec::new();
        for ((from, firsts), before) in named.iter().zip(&before) {
            let first = *firsts.iter().min().expect("it was named");
            let read = before.len() - first as usize;
            touched.push((Address(from + first), read, false));
            let after = &bytes_of(&memory[from].lines)[FENCE..][..before.len()];
            let changed = |range: &Range<usize>| before[range.clone()] != after[range.clone()];
            let eights = (0..before.len()).step_by(8).map(|at| at..(at + 8).min(before.len()));
            let mut changes = eights.filter(changed);
            if let Some(one) = changes.next() {
                let last = changes.next_back().unwrap_or(one.clone());
                touched.push((Address(from + one.start as u64), last.end - one.start, true));
            }
        }
        self.touch(memory, &launch.kernel, &touched);
        Ok(())
    }

    /// Numbers for other devices.
    fn brought(&mut self, from: Address, count: usize, number: Number, what: &str) -> Vec<f32> {
        let memory = &mut *memory();
        self.touch(memory, what, &[(from, count * number.size(), false)]);
        self.numbers(memory, from, count, number)
    }

    /// Writes what came from other devices.
    fn put(&mut self, to: Address, made: &[f32], number: Number, what: &str) {
        let made: Vec<u8> = match number {
            Number::F32 => made.iter().flat_map(|x| x.to_le_bytes()).collect(),
            Number::Bf16 => made.iter().flat_map(|x| bf16_bits(*x).to_le_bytes()).collect(),
        };
        let memory = &mut *memory();
        self.touch(memory, what, &[(to, made.len(), true)]);
        inside_mut(memory, to, made.len()).copy_from_slice(&made);
    }

    fn numbers(&self, memory: &Memory, at: Address, count: usize, number: Number) -> Vec<f32> {
        let bytes = inside(memory, at, count * number.size());
        match number {
            Number::F32 => bytes.as_chunks().0.iter().map(|four| f32::from_le_bytes(*four)).collect(),
            Number::Bf16 => {
                let wide = |two: &[u8; 2]| f32::from_bits(u32::from(u16::from_le_bytes(*two)) << 16);
                bytes.as_chunks().0.iter().map(wide).collect()
            }
        }
    }
}

fn buffer_mut(memory: &mut Memory, at: Address) -> (u64, &mut Buffer) {
    let (from, buffer) = memory.range_mut(..=at.0).next_back().expect("an address is of a buffer");
    (*from, buffer)
}

/// The bytes at an address, which must be inside a buffer.
fn inside(memory: &Memory, at: Address, bytes: usize) -> &[u8] {
    let (from, buffer) = memory.range(..=at.0).next_back().expect("an address is of a buffer");
    let first = (at.0 - from) as usize;
    assert!(first + bytes <= buffer.bytes, "{bytes} bytes from {first} on of {}", buffer.bytes);
    &bytes_of(&buffer.lines)[FENCE + first..][..bytes]
}

fn inside_mut(memory: &mut Memory, at: Address, bytes: usize) -> &mut [u8] {
    let (from, buffer) = buffer_mut(memory, at);
    let first = (at.0 - from) as usize;
    assert!(first + bytes <= buffer.bytes, "{bytes} bytes from {first} on of {}", buffer.bytes);
    // SAFETY: a `Line` is its bytes.
    let all = unsafe {
        std::slice::from_raw_parts_mut(buffer.lines.as_mut_ptr().cast::<u8>(), size_of_val(&*buffer.lines))
    };
    &mut all[FENCE + first..][..bytes]
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
    fn select(&mut self, stream: usize) -> Result<(), DeviceError> {
        self.order.select(stream);
        Ok(())
    }

    fn moment(&mut self) -> Result<Moment, DeviceError> {
        Ok(Moment::new(self.order.moment()))
    }

    fn wait(&mut self, moment: &Moment) -> Result<(), DeviceError> {
        group::check_received(moment.of());
        self.order.wait(moment.of::<Clock>());
        Ok(())
    }

    fn allocate(&mut self, bytes: usize) -> Result<Address, DeviceError> {
        // All ones is NaN as f32 and bf16: what nobody wrote shows, inside and outside.
        let lines = vec![Line([0xff; 256]); bytes.div_ceil(256) + 2 * FENCE / 256].into_boxed_slice();
        let at = lines.as_ptr() as u64 + FENCE as u64;
        memory().insert(at, Buffer { lines, bytes, history: History::default() });
        self.own.insert(at);
        Ok(Address(at))
    }

    /// It is all the host's.
    fn allocate_on_host(&mut self, bytes: usize) -> Result<Address, DeviceError> {
        self.allocate(bytes)
    }

    fn wait_here(&mut self, moment: &Moment) -> Result<(), DeviceError> {
        group::check_received(moment.of());
        self.order.wait_here(moment.of::<Clock>());
        Ok(())
    }

    fn on_host(
        &mut self,
        at: Address,
        bytes: usize,
        work: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), DeviceError> {
        let memory = &mut *memory();
        let (from, buffer) = buffer_mut(memory, at);
        let first = (at.0 - from) as usize;
        if let Err((device, stream)) = buffer.history.seen(first..first + bytes, self.order.host()) {
            panic!(
                "the host looks at what stream {stream} of device {device} copies, and does not wait for it"
            );
        }
        work(inside_mut(memory, at, bytes));
        Ok(())
    }

    fn write(&mut self, to: Address, bytes: &[u8]) -> Result<(), DeviceError> {
        let memory = &mut *memory();
        self.touch(memory, "a copy from the host", &[(to, bytes.len(), true)]);
        inside_mut(memory, to, bytes.len()).copy_from_slice(bytes);
        Ok(())
    }

    fn read(&mut self, from: Address, bytes: &mut [u8]) -> Result<(), DeviceError> {
        let memory = &mut *memory();
        self.touch(memory, "a copy to the host", &[(from, bytes.len(), false)]);
        self.order.finish();
        group::check_received(self.order.host());
        bytes.copy_from_slice(inside(memory, from, bytes.len()));
        Ok(())
    }

    fn copy(&mut self, to: Address, from: Address, bytes: usize) -> Result<(), DeviceError> {
        let memory = &mut *memory();
        self.touch(memory, "a copy", &[(from, bytes, false), (to, bytes, true)]);
        let copied = inside(memory, from, bytes).to_vec();
        inside_mut(memory, to, bytes).copy_from_slice(&copied);
        Ok(())
    }

    fn zero(&mut self, at: Address, bytes: usize) -> Result<(), DeviceError> {
        let memory = &mut *memory();
        self.touch(memory, "zeroing", &[(at, bytes, true)]);
        inside_mut(memory, at, bytes).fill(0);
        Ok(())
    }

    /// # Panics
    /// If a kernel writes outside of buffers, or its results depend on the order of threads.
    fn launch(&mut self, launch: &Launch) -> Result<(), DeviceError> {
        let memory = &mut *memory();
        self.ran.insert(launch.kernel.clone());
        if self.turns == Turns::InOrder {
            self.once_seen(memory, launch)?;
            self.check_fences(memory, launch);
            return Ok(());
        }
        let copy = |memory: &Memory| -> Vec<Box<[Line]>> {
            self.own.iter().map(|at| memory[at].lines.clone()).collect()
        };
        let before = copy(memory);
        let mut first = None;
        for order in [0, 1, 77] {
            for (at, before) in self.own.iter().zip(&before) {
                memory.get_mut(at).expect("it is one of them").lines.copy_from_slice(before);
            }
            self.once(launch, order)?;
            self.check_fences(memory, launch);
            let after = copy(memory);
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
        let (left, right, before, bias) = {
            let memory = &mut *memory();
            let bias = if epilogue == Epilogue::Bias { columns } else { 0 };
            let of = |at, count: usize, number: Number, writes| (at, count * number.size(), writes);
            let touched = [
                of(at.left, rows * inner, inputs, false),
                of(at.right, inner * columns, inputs, false),
                of(at.bias, bias, product.bias_number(), false),
                of(at.out, rows * columns, output, true),
            ];
            self.touch(memory, "a product", &touched);
            let before = if accumulate { rows * columns } else { 0 };
            (
                self.numbers(memory, at.left, rows * inner, inputs),
                self.numbers(memory, at.right, inner * columns, inputs),
                if before > 0 { self.numbers(memory, at.out, before, output) } else { Vec::new() },
                if bias > 0 {
                    self.numbers(memory, at.bias, bias, product.bias_number())
                } else {
                    Vec::new()
                },
            )
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
        inside_mut(&mut memory(), at.out, out.len()).copy_from_slice(&out);
        Ok(())
    }

    fn multiplies_eight(&self) -> bool {
        true
    }

    fn multiply_eight(&mut self, product: EightProduct, at: EightOperands) -> Result<(), DeviceError> {
        let EightProduct { rows, columns, inner, output, accumulate, bias, .. } = product;
        let is_known = [rows, columns, inner].iter().all(|size| size % 16 == 0)
            && [product.left, product.right].contains(&Eight::E4m3)
            && (!bias || output == Number::Bf16);
        if !is_known {
            return Err(DeviceError::NoAlgorithm(format!("{product:?}")));
        }
        let memory = &mut *memory();
        let size = rows * columns * output.size();
        let (left_size, right_size) = (rows * inner, columns * inner);
        let biases = if bias { columns } else { 0 };
        let touched = [
            (at.left, left_size, false),
            (at.left_scale, 4, false),
            (at.right, right_size, false),
            (at.right_scale, 4, false),
            (at.bias, biases * output.size(), false),
            (at.out, size, true),
        ];
        self.touch(memory, "a product", &touched);
        let codes = |at, count, of: Eight| -> Vec<f64> {
            inside(memory, at, count).iter().map(|code| f64::from(of.wide(*code))).collect()
        };
        let (left, right) =
            (codes(at.left, left_size, product.left), codes(at.right, right_size, product.right));
        let scale = |at| f64::from(self.numbers(memory, at, 1, Number::F32)[0]);
        let scale = scale(at.left_scale) * scale(at.right_scale);
        let before = self.numbers(memory, at.out, rows * columns, output);
        let bias = if bias { self.numbers(memory, at.bias, columns, output) } else { vec![0.0; columns] };
        let mut out = Vec::with_capacity(size);
        for (row, column) in (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column))) {
            let pairs = left[row * inner..][..inner].iter().zip(&right[column * inner..][..inner]);
            let sum = (scale * pairs.map(|(left, right)| left * right).sum::<f64>()) as f32;
            let sum = sum + bias[column] + if accumulate { before[row * columns + column] } else { 0.0 };
            match output {
                Number::F32 => out.extend(sum.to_le_bytes()),
                Number::Bf16 => out.extend(bf16_bits(sum).to_le_bytes()),
            }
        }
        inside_mut(memory, at.out, size).copy_from_slice(&out);
        Ok(())
    }

    /// As much in backward as on a GPU: bf16 for each score.
    fn fuses(&mut self, attention: &Attention, pass: Pass) -> Result<usize, String> {
        let Shape { batch, heads, queries, keys, .. } = Shape::of(attention, pass)?;
        Ok(if pass == Pass::Backward { (2 * batch * heads * queries * keys) as usize } else { 0 })
    }

    fn attend(&mut self, attention: &Attention, pass: Pass, workspace: Address) -> Result<(), DeviceError> {
        let bytes = self.fuses(attention, pass).map_err(DeviceError::NoAlgorithm)?;
        let graph = Shape::of(attention, pass).map_err(DeviceError::NoAlgorithm)?.graph();
        let memory = &mut *memory();
        let mut touched = fused::touched(&graph, attention);
        touched.push((workspace, bytes, true));
        self.touch(memory, "attention", &touched);
        fused::run(&graph, attention, memory);
        Ok(())
    }

    fn fuser(&self) -> String {
        "cuDNN, emulated".into()
    }

    fn finish(&mut self) -> Result<(), DeviceError> {
        self.order.finish_all();
        group::check_received(self.order.host());
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

    fn about(&self) -> About {
        About {
            name: "emulated GPU".into(),
            summary: "an emulated GPU".into(),
            versions: "no driver".into(),
            capability: (9, 0),
            multiprocessors: 1,
            memory: MEMORY_SAID,
        }
    }

    fn new_group(&mut self) -> Result<GroupName, DeviceError> {
        Ok(group::new_name())
    }

    fn enter(&mut self, group: usize, membership: Membership) -> Result<(), DeviceError> {
        group::enter(&membership)?;
        self.groups.insert(group, (membership, 0));
        Ok(())
    }

    /// Sums are in the order of the members.
    fn collective(&mut self, group: usize, work: Collective, number: Number) -> Result<(), DeviceError> {
        let (membership, done) = self.groups.get_mut(&group).expect("its groups were entered");
        let (membership, done) = (*membership, std::mem::replace(done, *done + 1));
        let Membership { place, size, .. } = membership;
        // Of the sums, or all that was brought where nothing is summed.
        let (from, brings, to, summed) = match work {
            Collective::AllReduce { x, count } => (x, count, x, Some(0..count)),
            Collective::ReduceScatter { from, to, count } => {
                (from, size * count, to, Some(place * count..(place + 1) * count))
            }
            Collective::AllGather { from, to, count } => (from, count, to, None),
            Collective::Send { x, count } => {
                let own = self.brought(x, count, number, "a message that is sent");
                let (by, known) = self.order.work();
                return group::send(&membership, done, (own, known.clone()), by);
            }
            Collective::Receive { x, count } => {
                let (numbers, sent) = group::receive(&membership, done)?;
                assert_eq!(numbers.len(), count, "a message is as long as its receiver expects");
                self.order.wait(&sent);
                self.put(x, &numbers, number, "a message that is received");
                return Ok(());
            }
        };
        let own = self.brought(from, brings, number, "a collective");
        let all = group::meet(&membership, done, (own, self.order.moment()))?;
        all.iter().for_each(|brought| self.order.wait(&brought.1));
        let made: Vec<f32> = match summed {
            Some(range) => range.map(|at| all.iter().map(|brought| brought.0[at]).sum::<f32>()).collect(),
            None => all.iter().flat_map(|brought| brought.0.iter().copied()).collect(),
        };
        self.put(to, &made, number, "a collective");
        Ok(())
    }

    fn make_ready(&mut self, told: &[Told]) -> Result<Graph, DeviceError> {
        Ok(Graph::new(told.to_vec()))
    }

    /// What was recorded, one after the other: with the arguments and the addresses that it had then.
    fn replay(&mut self, graph: &Graph) -> Result<(), DeviceError> {
        tell(self, graph.of::<Vec<Told>>())
    }

    fn clear(&mut self) -> Result<(), DeviceError> {
        self.order.finish_all();
        let mut memory = memory();
        std::mem::take(&mut self.own).iter().for_each(|at| drop(memory.remove(at)));
        Ok(())
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        let _ = self.clear();
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
