//! What kernels are given and how they are launched: addresses, number types, grids, argument structs.

use std::mem::MaybeUninit;

/// An address in the device's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(transparent)]
pub struct Address(pub u64);

impl Address {
    /// No memory: an argument that the kernel can do without.
    pub const NULL: Address = Address(0);

    /// The address `bytes` further on.
    pub fn after(self, bytes: usize) -> Self {
        Address(self.0 + bytes as u64)
    }
}

/// The number type of a kernel's inputs and outputs. Kernels compute in f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Number {
    /// 32 bits.
    F32,
    /// bfloat16: the upper half of an f32.
    Bf16,
}

impl Number {
    /// Both types.
    pub const ALL: [Number; 2] = [Number::F32, Number::Bf16];

    /// Bytes of an element.
    pub fn size(self) -> usize {
        match self {
            Number::F32 => 4,
            Number::Bf16 => 2,
        }
    }

    /// Elements in a pack of 16 bytes, the widest access of a thread.
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

    /// The values that `encode` wrote.
    pub fn decode(self, bytes: &[u8]) -> Vec<f32> {
        match self {
            Number::F32 => bytes.as_chunks().0.iter().map(|four| f32::from_le_bytes(*four)).collect(),
            Number::Bf16 => {
                let wide = |two: &[u8; 2]| f32::from_bits(u32::from(u16::from_le_bytes(*two)) << 16);
                bytes.as_chunks().0.iter().map(wide).collect()
            }
        }
    }

    /// The suffix of kernels' names.
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
    /// The kernel's file, without `.cu`.
    pub file: &'static str,
    /// The kernel's name.
    pub kernel: String,
    /// Blocks in each direction.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: u32,
    /// Bytes of dynamic shared memory of a block.
    pub shared: u32,
    /// The kernel's struct, in words because of its alignment. Padding between fields is uninitialised.
    pub arguments: Vec<MaybeUninit<u64>>,
    /// Compares two structs of this type.
    pub(super) equal_arguments: SameArguments,
    /// The memory that it reads and writes, if the addresses in its struct don't say it: the kernel accesses parts of several
    /// ranks' buffers. Otherwise empty.
    pub touches: Vec<Touch>,
}

/// Compares the structs at two addresses, which must be of the same kernel.
pub(super) type SameArguments = unsafe fn(*const MaybeUninit<u64>, *const MaybeUninit<u64>) -> bool;

/// SAFETY: at both addresses is an A.
unsafe fn equal_arguments<A: PartialEq>(
    one: *const MaybeUninit<u64>,
    other: *const MaybeUninit<u64>,
) -> bool {
    // SAFETY: the caller guarantees it; `Launch::new` aligns them.
    unsafe { *one.cast::<A>() == *other.cast::<A>() }
}

impl PartialEq for Launch {
    fn eq(&self, other: &Self) -> bool {
        let of =
            |launch: &Self| (launch.file, launch.grid, launch.block, launch.shared, launch.arguments.len());
        let alike = of(self) == of(other) && self.kernel == other.kernel && self.touches == other.touches;
        // SAFETY: a kernel has one kind of struct.
        alike && unsafe { (self.equal_arguments)(self.arguments.as_ptr(), other.arguments.as_ptr()) }
    }
}

/// A range of memory that a launch reads or writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Touch {
    /// Where it begins.
    pub at: Address,
    /// Its length.
    pub bytes: usize,
    /// Whether it is written.
    pub writes: bool,
}

/// A GPU's limit for the second and third dimension of a grid.
const GRID_LIMIT: i32 = 65_535;

impl Launch {
    /// A launch of `grid` blocks of `block` threads. `arguments` mirrors the kernel's struct.
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
            equal_arguments: equal_arguments::<A>,
            touches: Vec::new(),
        }
    }

    /// The launch with dynamic shared memory.
    pub fn with_shared(self, bytes: i32) -> Self {
        Self { shared: bytes as u32, ..self }
    }
}

/// How many multiprocessors a GPU has. It sizes the grids of kernels with grid-stride loops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Multiprocessors(pub i32);

impl Multiprocessors {
    /// Blocks of 256 threads that are resident at a time: a multiprocessor holds 2,048 threads.
    pub fn resident(self) -> i32 {
        8 * self.0
    }

    /// Blocks of 256 threads in two waves: the second wave evens out blocks that end late.
    pub(super) fn two_waves(self) -> i32 {
        2 * self.resident()
    }

    /// Blocks of `block` threads for a grid-stride loop over `count` elements: at most two waves.
    pub(super) fn strided(self, count: i64, block: i32) -> i32 {
        ((count + i64::from(block) - 1) / i64::from(block)).clamp(1, i64::from(self.two_waves())) as i32
    }
}

/// Blocks in a grid's second dimension for a grid-stride loop over rows.
pub(super) fn rows(count: i32) -> i32 {
    count.clamp(1, GRID_LIMIT)
}

/// The versions of a kernel whose threads take an element each (`simple`) or, if `fits`, a pack each (`packed`), in a grid-stride loop.
pub(super) fn strided_ladder<A: Copy + PartialEq + 'static>(
    [file, kernel]: [&'static str; 2],
    [rows, width]: [i32; 2],
    fits: bool,
    (number, gpu): (Number, Multiprocessors),
    arguments: &A,
) -> Vec<Launch> {
    let launch = |version: &str, size: i32| {
        let count = i64::from(rows) * i64::from(width / size);
        let name = format!("{kernel}_{version}_{}", number.suffix());
        Launch::new(file, name, [gpu.strided(count, 256), 1, 1], 256, arguments)
    };
    let packed = fits.then(|| launch("packed", number.pack()));
    std::iter::once(launch("simple", 1)).chain(packed).collect()
}

/// `threads` rounded up to warps, between one warp and `most`.
pub(super) fn round_to_warps(threads: i32, most: i32) -> i32 {
    ((threads + 31) / 32 * 32).clamp(32, most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_copied_byte_for_byte() {
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
        assert_eq!(
            [round_to_warps(1, 256), round_to_warps(33, 256), round_to_warps(999, 256)],
            [32, 64, 256]
        );
    }
}
