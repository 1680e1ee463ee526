// The beginning of each kernel file: number types, 16-byte packs, sums over a warp and a block.
//
// Compiled by NVRTC, which has no header files at hand: nothing is included. The same text is compiled as C++ by the
// emulator of the tests, which defines the few names that only a GPU has.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

// A bfloat16 is the upper half of a float.
struct bf16 {
    u16 bits;
};

#define LOG2_E 1.4426950408889634f

#if defined(__CUDACC__)

#define DEVICE __device__ __forceinline__
// Each kernel takes one struct by value, so that a launcher has one thing to fill in and its fields have names.
// `threads` is the largest block it is launched with: the compiler may give a thread 65536 / threads registers.
#define KERNEL(name, threads, Arguments) extern "C" __global__ void __launch_bounds__(threads) name(const Arguments a)
// A kernel that is an instance of a template.
#define ENTRY(name, threads, Arguments, ...) KERNEL(name, threads, Arguments) { __VA_ARGS__(a); }
// The dynamic shared memory of a block.
#define SHARED_BYTES(name) extern __shared__ __align__(128) u8 name[]

DEVICE float bits_to_float(u32 bits) { return __uint_as_float(bits); }
DEVICE u32 float_to_bits(float x) { return __float_as_uint(x); }
DEVICE u16 bf16_bits(float x) {
    u16 bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}
// Two numbers side by side, `low` at the lower address.
DEVICE u32 pack_bf16(float low, float high) {
    u32 pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}
DEVICE float fast_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
// e^x is 2^(x log2 e), which the special-function unit computes: relative error about 2 units in the last place near 0, growing with
// |x|; numbers below 2^-126 are 0.
DEVICE float fast_exp(float x) { return fast_exp2(x * LOG2_E); }
DEVICE float fast_divide(float x, float y) { return __fdividef(x, y); }
DEVICE float inverse_root(float x) { return rsqrtf(x); }

#endif

#if !defined(INFINITY)
#define INFINITY bits_to_float(0x7f800000u)
#endif
#define FULL_WARP 0xffffffffu
#define LEAST (-3.402823466e38f)

DEVICE float wide(float x) { return x; }
DEVICE float wide(bf16 x) { return bits_to_float((u32)x.bits << 16); }

template <typename T> DEVICE T narrow(float x);
template <> DEVICE float narrow<float>(float x) { return x; }
template <> DEVICE bf16 narrow<bf16>(float x) { return {bf16_bits(x)}; }

// 16 bytes, the widest load a thread can do: a warp then moves 512 bytes with one instruction, four full cache lines.
template <typename T> struct alignas(16) Pack {
    static const int size = 16 / sizeof(T);
    T at[16 / sizeof(T)];
};

template <typename T> DEVICE Pack<T> load_pack(const T* from) { return *reinterpret_cast<const Pack<T>*>(from); }
template <typename T> DEVICE void store_pack(T* to, const Pack<T>& pack) { *reinterpret_cast<Pack<T>*>(to) = pack; }

DEVICE int lane() { return threadIdx.x & 31; }
DEVICE int warp() { return threadIdx.x >> 5; }
DEVICE int warps() { return blockDim.x >> 5; }
DEVICE i64 global_thread() { return (i64)blockIdx.x * blockDim.x + threadIdx.x; }
DEVICE i64 all_threads() { return (i64)gridDim.x * blockDim.x; }

// A butterfly: after five exchanges every lane has the sum, added in the same order in every run.
DEVICE float warp_sum(float x) {
    for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(FULL_WARP, x, offset);
    return x;
}

DEVICE float warp_max(float x) {
    for (int offset = 16; offset > 0; offset /= 2) x = fmaxf(x, __shfl_xor_sync(FULL_WARP, x, offset));
    return x;
}

// The sum over a block, in every thread. `scratch` is 32 floats of shared memory; the barrier before the first write
// lets a caller use the same scratch again and again.
DEVICE float block_sum(float x, float* scratch) {
    x = warp_sum(x);
    __syncthreads();
    if (lane() == 0) scratch[warp()] = x;
    __syncthreads();
    return warp_sum(lane() < warps() ? scratch[lane()] : 0.0f);
}

// Two sums at the price of one's barriers. `scratch` is 64 floats.
DEVICE void block_sums(float& x, float& y, float* scratch) {
    x = warp_sum(x);
    y = warp_sum(y);
    __syncthreads();
    if (lane() == 0) {
        scratch[warp()] = x;
        scratch[32 + warp()] = y;
    }
    __syncthreads();
    x = warp_sum(lane() < warps() ? scratch[lane()] : 0.0f);
    y = warp_sum(lane() < warps() ? scratch[32 + lane()] : 0.0f);
}

// A sum over a block in f64, in the first thread alone; for one use of `scratch`.
DEVICE double block_sum(double x, double* scratch) {
    for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(FULL_WARP, x, offset);
    if (lane() == 0) scratch[warp()] = x;
    __syncthreads();
    if (threadIdx.x == 0)
        for (int other = 1; other < warps(); ++other) x += scratch[other];
    return x;
}

DEVICE float block_max(float x, float* scratch) {
    x = warp_max(x);
    __syncthreads();
    if (lane() == 0) scratch[warp()] = x;
    __syncthreads();
    return warp_max(lane() < warps() ? scratch[lane()] : LEAST);
}

// Dropout of the part of a tensor that is here; dropout.rs has the same struct.
struct Drops {
    u64 key;
    u32 threshold;         // an element is dropped with probability threshold / 2^24
    float factor;          // of the elements that are kept
    int first[4];          // the first sequence, head, query and key of the part
};

// The output function of SplitMix64 (Steele, Lea & Flood 2014, doi 10.1145/2660193.2660195).
DEVICE u64 mix(u64 state) {
    u64 z = state + 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}

// The factor of a column's element; `row` is the hash of its places in the other directions.
DEVICE float drop_factor(const Drops& drops, u64 row, i64 column) {
    return (mix(row ^ (u64)column) >> 40) < drops.threshold ? 0.0f : drops.factor;
}

DEVICE float sigmoid(float x) { return fast_divide(1.0f, 1.0f + fast_exp(-x)); }
// tanh x = 1 - 2 / (e^2x + 1); clamped, since the quotient of the special-function unit is 0 above 2^126.
DEVICE float fast_tanh(float x) { return 1.0f - fast_divide(2.0f, fast_exp(2.0f * fminf(x, 40.0f)) + 1.0f); }
