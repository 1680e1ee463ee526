//! A kernel with its arguments, and what can run one.

use super::attention::{Attention, Pass};
use super::collective::{Collective, GroupName, Membership};
use super::eight::{EightOperands, EightProduct};
use super::product::{Operands, Product};
use super::recorder::Told;
use std::any::Any;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Where something is in the device's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(transparent)]
pub struct Address(pub u64);

impl Address {
    /// Nothing: what a kernel may do without.
    pub const NULL: Address = Address(0);

    /// That many bytes further on.
    pub fn after(self, bytes: usize) -> Self {
        Address(self.0 + bytes as u64)
    }
}

/// What numbers a kernel reads and writes. It computes in f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Number {
    /// 32 bits.
    F32,
    /// bfloat16: the upper half of an f32.
    Bf16,
}

impl Number {
    /// Both.
    pub const ALL: [Number; 2] = [Number::F32, Number::Bf16];

    /// Bytes of one.
    pub fn size(self) -> usize {
        match self {
            Number::F32 => 4,
            Number::Bf16 => 2,
        }
    }

    /// How many are in 16 bytes, the widest access of a thread.
    pub fn pack(self) -> i32 {
        16 / self.size() as i32
    }

    /// The bytes of `values`, each rounded to the nearest number of this type, ties to even.
    pub fn encode(self, values: impl IntoIterator<Item = f32>) -> Vec<u8> {
        match self {
            Number::F32 => values.into_iter().flat_map(f32::to_le_bytes).collect(),
            Number::Bf16 => values.into_iter().flat_map(|x| bf16_bits(x).to_le_bytes()).collect(),
        }
    }

    /// The values of such bytes.
    pub fn decode(self, bytes: &[u8]) -> Vec<f32> {
        match self {
            Number::F32 => bytes.as_chunks().0.iter().map(|four| f32::from_le_bytes(*four)).collect(),
            Number::Bf16 => {
                let wide = |two: &[u8; 2]| f32::from_bits(u32::from(u16::from_le_bytes(*two)) << 16);
                bytes.as_chunks().0.iter().map(wide).collect()
            }
        }
    }

    /// As names of kernels end.
    pub fn suffix(self) -> &'static str {
        match self {
            Number::F32 => "f32",
            Number::Bf16 => "bf16",
        }
    }
}

/// The upper half of an f32, rounded to nearest, ties to even.
pub(super) fn bf16_bits(x: f32) -> u16 {
    let bits = x.to_bits();
    match x.is_nan() {
        true => 0x7fff,
        false => (bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16) as u16,
    }
}

/// One run of a kernel.
#[derive(Debug, Clone)]
pub struct Launch {
    /// The file it is in, without `.cu`.
    pub file: &'static str,
    /// Its name.
    pub kernel: String,
    /// Blocks in each direction.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: u32,
    /// Bytes of dynamic shared memory of a block.
    pub shared: u32,
    /// Its struct, in words so that it is aligned like one. What fills up between fields may be anything.
    pub arguments: Vec<MaybeUninit<u64>>,
    /// Whether two such structs are equal.
    pub(super) same: SameArguments,
    /// What it touches, where the addresses in its struct alone do not say that: parts of several ranks' buffers.
    pub touches: Vec<Touch>,
}

/// Compares what lies at two addresses, which must be structs of the same kernel.
pub(super) type SameArguments = unsafe fn(*const MaybeUninit<u64>, *const MaybeUninit<u64>) -> bool;

/// SAFETY: at both addresses is an A.
unsafe fn same<A: PartialEq>(one: *const MaybeUninit<u64>, other: *const MaybeUninit<u64>) -> bool {
    // SAFETY: the caller's promise; `Launch::new` aligns them.
    unsafe { *one.cast::<A>() == *other.cast::<A>() }
}

impl PartialEq for Launch {
    fn eq(&self, other: &Self) -> bool {
        let of = |own: &Self| (own.file, own.grid, own.block, own.shared, own.arguments.len());
        let alike = of(self) == of(other) && self.kernel == other.kernel && self.touches == other.touches;
        // SAFETY: a kernel has one kind of struct.
        alike && unsafe { (self.same)(self.arguments.as_ptr(), other.arguments.as_ptr()) }
    }
}

/// Some memory that a launch reads or writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Touch {
    /// From where on.
    pub at: Address,
    /// How much.
    pub bytes: usize,
    /// Whether it is written.
    pub writes: bool,
}

/// The moment when all is done that a stream had been told until then. Any stream of the process may wait for it.
#[derive(Clone)]
pub struct Moment(Arc<dyn Any + Send + Sync>);

impl Moment {
    pub(super) fn new(of: impl Any + Send + Sync) -> Self {
        Self(Arc::new(of))
    }

    pub(super) fn of<T: Any>(&self) -> &T {
        self.0.downcast_ref().expect("a moment is waited for by devices of the kind that it is of")
    }

    /// Whether it is the same one, not another one of the same work.
    pub(super) fn is(&self, other: &Moment) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl std::fmt::Debug for Moment {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str("Moment")
    }
}

/// Work that was recorded, for the device that made it ready to tell all of it by one call.
pub struct Graph(Box<dyn Any>);

impl Graph {
    pub(super) fn new(of: impl Any) -> Self {
        Self(Box::new(of))
    }

    pub(super) fn of<T: Any>(&self) -> &T {
        self.0.downcast_ref().expect("a graph is told to the device that made it ready")
    }
}

/// What a GPU grants a grid's second and third direction.
const GRID_LIMIT: i32 = 65_535;

impl Launch {
    /// A run on `grid` blocks of `block` threads. `arguments` mirrors the kernel's struct.
    pub fn new<A: Copy + PartialEq + 'static>(
        file: &'static str,
        kernel: impl Into<String>,
        grid: [i32; 3],
        block: i32,
        arguments: &A,
    ) -> Self {
        const { assert!(align_of::<A>() <= align_of::<u64>()) };
        let mut words = vec![MaybeUninit::uninit(); size_of::<A>().div_ceil(8)];
        // SAFETY: `words` has room for an A and is aligned for one.
        unsafe { words.as_mut_ptr().cast::<A>().write(*arguments) };
        let grid = grid.map(|blocks| blocks.max(1) as u32);
        Self {
            file,
            kernel: kernel.into(),
            grid,
            block: block as u32,
            shared: 0,
            arguments: words,
            same: same::<A>,
            touches: Vec::new(),
        }
    }

    /// The same with dynamic shared memory.
    pub fn with_shared(self, bytes: i32) -> Self {
        Self { shared: bytes as u32, ..self }
    }
}

/// How many multiprocessors a GPU has: the grid of a kernel that walks over its work is sized by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Multiprocessors(pub i32);

impl Multiprocessors {
    /// The number that a device states.
    pub fn of(device: &dyn Device) -> Self {
        Self(device.about().multiprocessors as i32)
    }

    /// Blocks of 256 threads that are resident at a time: a multiprocessor holds 2,048 threads.
    pub fn resident(self) -> i32 {
        8 * self.0
    }

    /// Blocks of 256 threads that fill the GPU twice: the second half evens out blocks that end late.
    pub(super) fn two_waves(self) -> i32 {
        2 * self.resident()
    }

    /// Blocks of `block` threads for `count` threads that walk on by the grid's size: at most two waves.
    pub(super) fn strided(self, count: i64, block: i32) -> i32 {
        ((count + i64::from(block) - 1) / i64::from(block)).clamp(1, i64::from(self.two_waves())) as i32
    }
}

/// Blocks for rows in a grid's second direction, over which the kernel walks.
pub(super) fn rows(count: i32) -> i32 {
    count.clamp(1, GRID_LIMIT)
}

/// The least multiple of a warp that is at least `threads`, between a warp and `most`.
pub(super) fn whole_warps(threads: i32, most: i32) -> i32 {
    ((threads + 31) / 32 * 32).clamp(32, most)
}

/// What went wrong on a device.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// A library that is not there.
    #[error("{library} is not there: looked for {names} in {places}; {remedy}")]
    Missing {
        /// Which.
        library: &'static str,
        /// Names it may have.
        names: String,
        /// Where it was looked for.
        places: String,
        /// What to do.
        remedy: &'static str,
    },
    /// The driver is there and no GPU is.
    #[error("the NVIDIA driver finds no GPU ({0})")]
    NoGpu(String),
    /// The driver is older than this program can use.
    #[error("the NVIDIA driver offers CUDA {found}, and {needed} is needed: install a newer driver")]
    OldDriver {
        /// What it offers.
        found: String,
        /// What is needed.
        needed: &'static str,
    },
    /// A compiler of a later CUDA than the driver's.
    #[error(
        "NVRTC {compiler} makes kernels that a driver for CUDA {driver} does not load: install NVRTC of CUDA {major}, or a newer driver"
    )]
    NewCompiler {
        /// NVRTC's version.
        compiler: String,
        /// The driver's.
        driver: String,
        /// The latest whose kernels it loads.
        major: i32,
    },
    /// A GPU whose tensor cores don't know numbers of 8 bits.
    #[error(
        "products of numbers of 8 bits need compute capability 8.9, and {gpu} has {}.{}: choose `bf16`",
        capability.0,
        capability.1
    )]
    NoEight {
        /// Its name.
        gpu: String,
        /// What it has.
        capability: (i32, i32),
    },
    /// A kernel file does not compile.
    #[error("{file}.cu does not compile for {architecture}: {log}")]
    Compile {
        /// Which file.
        file: &'static str,
        /// For which chips.
        architecture: String,
        /// What the compiler says.
        log: String,
    },
    /// A call failed.
    #[error("{call}: {message}")]
    Call {
        /// Which.
        call: String,
        /// What it answered.
        message: String,
    },
    /// A communicator of NCCL failed behind a call that had returned: a connection broke, or a rank is gone.
    #[error("NCCL: {0}")]
    Communicator(String),
    /// The run ended while the host waited for the device.
    #[error("the wait for the device was given up, because the run ends")]
    Stopped,
    /// No algorithm for a matrix product.
    #[error("there is no algorithm for {0}")]
    NoAlgorithm(String),
    /// The emulator has no compiler, or no place for what it compiles.
    #[error("the emulator: {0}")]
    Emulator(String),
}

/// What a device is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct About {
    /// As its driver names it.
    pub name: String,
    /// The same with what people want to know beside it.
    pub summary: String,
    /// Versions of what drives it, for people.
    pub versions: String,
    /// Compute capability: 9.0 is (9, 0).
    pub capability: (i32, i32),
    /// Multiprocessors.
    pub multiprocessors: usize,
    /// Bytes of memory.
    pub memory: usize,
}

/// What of a GPU's memory is in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InUse {
    /// Bytes that this device has asked the driver for, in whole pieces: what was allocated, and what is left over of them.
    pub reserved: usize,
    /// Bytes that are not free, as the driver counts: those, its context, kernels and libraries, and all that others on the
    /// GPU have.
    pub on_gpu: usize,
}

/// Whether a run is over for all its ranks: another thread sets it.
pub type StopFlag = Arc<AtomicBool>;

/// What has memory and runs kernels and matrix products. It has streams: what one of them is told it does in the order of the
/// calls; between streams there is no order but by moments. What it is told may still be under way when a call returns, except
/// for `read`, which waits for its stream, and `finish`.
pub trait Device {
    /// Lets that stream do what is told from now on; at first it is stream 0. That one computes, and a GPU begins kernels of the
    /// others, which communicate, before its.
    fn select(&mut self, stream: usize) -> Result<(), DeviceError>;

    /// The moment when all is done that the selected stream was told so far.
    fn moment(&mut self) -> Result<Moment, DeviceError>;

    /// Lets what the selected stream is told from now on wait for a moment, which may be of another device of the process.
    fn wait(&mut self, moment: &Moment) -> Result<(), DeviceError>;

    /// New memory, 256-byte aligned, with anything in it.
    fn allocate(&mut self, bytes: usize) -> Result<Address, DeviceError>;

    /// New memory of the host, 256-byte aligned, that `copy` copies to and from by itself.
    fn allocate_on_host(&mut self, bytes: usize) -> Result<Address, DeviceError>;

    /// Lets the host wait for a moment.
    fn wait_here(&mut self, moment: &Moment) -> Result<(), DeviceError>;

    /// Shows the host its memory that was allocated here. Whoever copies to these bytes or from them was waited for here.
    fn on_host(
        &mut self,
        at: Address,
        bytes: usize,
        work: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), DeviceError>;

    /// Copies the host's bytes to where there is room for them.
    fn write(&mut self, to: Address, bytes: &[u8]) -> Result<(), DeviceError>;

    /// Copies to the host what is there after all that came before.
    fn read(&mut self, from: Address, bytes: &mut [u8]) -> Result<(), DeviceError>;

    /// Copies within its memory, to it from that of another device of the process, and between either and memory of the
    /// host that it allocated.
    fn copy(&mut self, to: Address, from: Address, bytes: usize) -> Result<(), DeviceError>;

    /// Zeros.
    fn zero(&mut self, at: Address, bytes: usize) -> Result<(), DeviceError>;

    /// Runs a kernel.
    fn launch(&mut self, launch: &Launch) -> Result<(), DeviceError>;

    /// Multiplies matrices.
    fn multiply(&mut self, product: Product, at: Operands) -> Result<(), DeviceError>;

    /// Whether it multiplies matrices of numbers of 8 bits: GPUs do from compute capability 8.9 on.
    fn multiplies_eight(&self) -> bool;

    /// Multiplies such matrices.
    fn multiply_eight(&mut self, product: EightProduct, at: EightOperands) -> Result<(), DeviceError>;

    /// Whether a library has a fused kernel for an attention in bf16: bytes of memory that it needs for a while, or why not.
    fn fuses(&mut self, attention: &Attention, pass: Pass) -> Result<usize, String>;

    /// Lets it do so, with so much memory at `workspace`.
    fn attend(&mut self, attention: &Attention, pass: Pass, workspace: Address) -> Result<(), DeviceError>;

    /// Which library that is, for people.
    fn fuser(&self) -> String;

    /// From now on every wait of the host for this device ends with `Stopped` once the flag is set, whether or not the device is
    /// done: it may be waiting for another rank, which failed.
    fn stop_when(&mut self, flag: StopFlag);

    /// Waits until all streams have done all.
    fn finish(&mut self) -> Result<(), DeviceError>;

    /// Notes when all is done that the selected stream was told before.
    fn mark(&mut self) -> Result<(), DeviceError>;

    /// Seconds from the first noted moment to each of them, which are waited for and then forgotten.
    fn marks(&mut self) -> Result<Vec<f64>, DeviceError>;

    /// What of its memory is in use; none where no driver counts it.
    fn used(&self) -> Option<InUse> {
        None
    }

    /// What it is.
    fn about(&self) -> About;

    /// The name of a new group, for all its members.
    fn new_group(&mut self) -> Result<GroupName, DeviceError>;

    /// Enters a group, when all its members do; `collective` knows it by that number. It returns when all have met in it once: from
    /// then on telling a message waits for nobody, and only the device does. Whoever is in several groups enters them in an order
    /// that all keep to. All kernels are loaded by then, since loading one may wait for a collective that is under way.
    fn enter(&mut self, group: usize, membership: Membership) -> Result<(), DeviceError>;

    /// This device's part in a collective of a group. A group's collectives are told by all its members in the same order.
    fn collective(&mut self, group: usize, work: Collective, number: Number) -> Result<(), DeviceError>;

    /// Makes recorded work ready to be told by one call. Stream 0 is selected then, whether it could or not. Where collectives are
    /// among it, all members of their groups do this at the same time.
    fn make_ready(&mut self, told: &[Told]) -> Result<Graph, DeviceError>;

    /// Tells it all of that: behind what stream 0 was told before, which is selected then.
    fn replay(&mut self, graph: &Graph) -> Result<(), DeviceError>;

    /// Gives all memory back.
    fn clear(&mut self) -> Result<(), DeviceError>;

    /// New memory with that content.
    fn upload(&mut self, bytes: &[u8]) -> Result<Address, DeviceError> {
        let at = self.allocate(bytes.len())?;
        self.write(at, bytes)?;
        Ok(at)
    }

    /// That many bytes, after all that came before.
    fn download(&mut self, from: Address, bytes: usize) -> Result<Vec<u8>, DeviceError> {
        let mut read = vec![0; bytes];
        self.read(from, &mut read)?;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_copied_as_they_lie() {
        #[repr(C)]
        #[derive(Clone, Copy, PartialEq)]
        struct Two {
            address: Address,
            count: i32,
        }
        let launch = Launch::new("file", "kernel", [0, 3, 1], 64, &Two { address: Address(7), count: 5 });
        // SAFETY: it was made from a `Two`.
        let copied = unsafe { launch.arguments.as_ptr().cast::<Two>().read() };
        assert_eq!((copied.address, copied.count), (Address(7), 5));
        // A grid has at least one block in each direction.
        assert_eq!(launch.grid, [1, 3, 1]);
        let of = |address, count| {
            Launch::new("file", "kernel", [0, 3, 1], 64, &Two { address: Address(address), count })
        };
        assert!(launch == of(7, 5) && launch != of(7, 6) && launch != of(8, 5));
        assert!(launch != Launch { grid: [2, 3, 1], ..of(7, 5) });
    }

    #[test]
    fn grids_fit_the_work() {
        // 1000 threads in blocks of 256: 4 blocks. Half a million blocks are more than two waves of 8 on each multiprocessor.
        for (multiprocessors, most) in [(132, 2112), (108, 1728), (1, 16)] {
            let gpu = Multiprocessors(multiprocessors);
            let blocks = [1000, 1 << 27, 0].map(|count| gpu.strided(count, 256));
            assert_eq!(blocks, [4, most, 1], "{multiprocessors} multiprocessors");
        }
        assert_eq!([whole_warps(1, 256), whole_warps(33, 256), whole_warps(999, 256)], [32, 64, 256]);
    }
}
