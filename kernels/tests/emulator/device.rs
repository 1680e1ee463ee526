//! A device that runs kernels on the CPU: `emulator.h` says how.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CStr, c_char, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;
use trainwright_kernels::cuda::source::FILES;
use trainwright_kernels::cuda::{Address, Device, DeviceError, Launch};

type Kernel = unsafe extern "C" fn(*const c_void);
type Emulate = unsafe extern "C" fn(Kernel, *const c_void, *const u32, *const u32, u32);

/// Bytes around a buffer that must not change.
const FENCE: usize = 1024;

/// In which orders threads take turns: by number, the other way round, shuffled.
const ORDERS: [u32; 3] = [0, 1, 77];

/// The kernels as a shared library for each file, and buffers in this process.
pub struct Emulator {
    libraries: BTreeMap<&'static str, libloading::Library>,
    /// Whole, with fences, by the address of what is inside them.
    buffers: BTreeMap<u64, Box<[Line]>>,
    sizes: BTreeMap<u64, usize>,
    ran: BTreeSet<String>,
}

/// 256 bytes, aligned so.
#[derive(Clone, Copy)]
#[repr(C, align(256))]
struct Line([u8; 256]);

impl Emulator {
    /// Compiles the kernel files that have changed, two at a time. None without a C++ compiler.
    pub fn new() -> Option<Self> {
        let here = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/emulator");
        let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".into());
        if Command::new(&compiler).arg("--version").output().is_err() {
            return None;
        }
        let compile = |name: &str| {
            let library = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.so"));
            let made = |path: &Path| path.metadata().and_then(|about| about.modified());
            if let Ok(time) = made(&library)
                && sources(&here, name).iter().all(|source| made(source).is_ok_and(|changed| changed < time))
            {
                return library;
            }
            let made = Command::new(&compiler)
                .args([
                    "-std=c++17",
                    "-O1",
                    "-fPIC",
                    "-shared",
                    "-fno-gnu-unique",
                    "-Wall",
                    "-Wno-unknown-pragmas",
                ])
                .arg(format!("-DKERNEL_FILE=\"../../cuda/{name}.cu\""))
                .arg(here.join("emulator.cpp"))
                .arg("-o")
                .arg(&library)
                .output();
            let made =
                made.unwrap_or_else(|error| panic!("this test needs a C++ compiler ({compiler}): {error}"));
            let log = String::from_utf8_lossy(&made.stderr);
            assert!(made.status.success() && log.is_empty(), "{name}.cu as C++:\n{log}");
            library
        };
        let paths: Vec<PathBuf> = std::thread::scope(|scope| {
            let half = FILES.len() / 2;
            let other =
                scope.spawn(move || FILES[half..].iter().map(|file| compile(file.name)).collect::<Vec<_>>());
            let mut own: Vec<PathBuf> = FILES[..half].iter().map(|file| compile(file.name)).collect();
            own.extend(other.join().expect("the compiler ran"));
            own
        });
        // SAFETY: the libraries are made from this crate's files and do nothing when they are loaded.
        let load = |path: &PathBuf| unsafe { libloading::Library::new(path) }.unwrap();
        let libraries = FILES.iter().zip(&paths).map(|(file, path)| (file.name, load(path))).collect();
        Some(Self { libraries, buffers: BTreeMap::new(), sizes: BTreeMap::new(), ran: BTreeSet::new() })
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
                    library.get(b"kernel_name").unwrap();
                let all = (0..).map(|index| name(index)).take_while(|name| !name.is_null());
                names.extend(all.map(|name| CStr::from_ptr(name).to_string_lossy().into_owned()));
            }
        }
        names
    }

    /// Runs once and returns all buffers as they are then.
    fn once(&self, launch: &Launch, order: u32) -> Vec<Box<[Line]>> {
        let library = &self.libraries[launch.file];
        // SAFETY: the kernel's struct has the layout of `arguments`, and what it points to is in `buffers`.
        unsafe {
            let emulate: libloading::Symbol<Emulate> = library.get(b"emulate").unwrap();
            let kernel: libloading::Symbol<Kernel> = library.get(launch.kernel.as_bytes()).unwrap();
            let block = [launch.block, 1, 1];
            emulate(*kernel, launch.arguments.as_ptr().cast(), launch.grid.as_ptr(), block.as_ptr(), order);
        }
        self.buffers.values().cloned().collect()
    }

    fn check_fences(&self, launch: &Launch) {
        for (at, lines) in &self.buffers {
            let bytes = bytes_of(lines);
            let untouched = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0xff);
            let end = FENCE + self.sizes[at];
            assert!(untouched(&bytes[..FENCE]), "{} writes before a buffer", launch.kernel);
            assert!(untouched(&bytes[end..]), "{} writes behind a buffer", launch.kernel);
        }
    }
}

/// What a library is made of.
fn sources(here: &Path, name: &str) -> Vec<PathBuf> {
    let files = ["prelude.cuh".to_owned(), "mma.cuh".to_owned(), format!("{name}.cu")];
    let kernels = files.map(|file| here.join("../../cuda").join(file));
    kernels.into_iter().chain([here.join("emulator.h"), here.join("emulator.cpp")]).collect()
}

fn bytes_of(lines: &[Line]) -> &[u8] {
    // SAFETY: a `Line` is its bytes.
    unsafe { std::slice::from_raw_parts(lines.as_ptr().cast(), size_of_val(lines)) }
}

impl Device for Emulator {
    fn upload(&mut self, bytes: &[u8]) -> Result<Address, DeviceError> {
        // All ones is NaN as f32 and bf16: a read outside shows.
        let mut lines =
            vec![Line([0xff; 256]); bytes.len().div_ceil(256) + 2 * FENCE / 256].into_boxed_slice();
        let inside = lines.as_mut_ptr().cast::<u8>().wrapping_add(FENCE);
        // SAFETY: there is room for them behind the fence.
        unsafe { inside.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        self.buffers.insert(inside as u64, lines);
        self.sizes.insert(inside as u64, bytes.len());
        Ok(Address(inside as u64))
    }

    fn download(&mut self, from: Address, bytes: usize) -> Result<Vec<u8>, DeviceError> {
        Ok(bytes_of(&self.buffers[&from.0])[FENCE..FENCE + bytes].to_vec())
    }

    /// Runs it with the threads in several orders, which must not matter.
    fn launch(&mut self, launch: &Launch) -> Result<(), DeviceError> {
        self.ran.insert(launch.kernel.clone());
        let before: Vec<Box<[Line]>> = self.buffers.values().cloned().collect();
        let mut first = None;
        for order in ORDERS {
            for (buffer, before) in self.buffers.values_mut().zip(&before) {
                buffer.copy_from_slice(before);
            }
            let after = self.once(launch, order);
            self.check_fences(launch);
            let first = first.get_or_insert_with(|| after.clone());
            // Sums by atomic additions have no order, and say so in their name.
            let same = first.iter().zip(&after).all(|(first, after)| bytes_of(first) == bytes_of(after));
            assert!(
                same || launch.kernel.contains("atomic"),
                "{} depends on the order of threads",
                launch.kernel
            );
        }
        Ok(())
    }

    fn clear(&mut self) -> Result<(), DeviceError> {
        self.buffers.clear();
        self.sizes.clear();
        Ok(())
    }
}
