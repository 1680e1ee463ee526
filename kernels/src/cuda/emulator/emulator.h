// A GPU of one thread at a time: what the kernel files need in order to be compiled as C++ and run on a CPU.
//
// The threads of a block are fibers on one operating-system thread; a fiber runs until it reaches a barrier or an exchange within
// its warp and then hands over to the next. Blocks run one after the other. It finds wrong indices, wrong arithmetic, missing
// barriers (a launch is run with the threads in several orders, in some of which a warp runs as far ahead of the others as
// barriers let it; none of that may matter), missing waits for asynchronous copies
// (they happen at the wait), use of shared memory that nobody wrote (it holds NaN) and accesses that are not aligned.
// It says nothing about speed, and nothing of orders of memory accesses finer than those.

#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif
#include <vector>

struct Three {
    unsigned x, y, z;
};

namespace emulator {

struct Barrier {
    unsigned arrived = 0, generation = 0;
};

struct Copy {
    void* to;
    const void* from;
};

// Where a suspended fiber goes on. On x86-64 that is its stack's top, with the registers that a call must keep; elsewhere the
// C library's contexts serve, which enter the kernel at every switch.
#if defined(__x86_64__)
typedef void* Context;
#else
typedef ucontext_t Context;
#endif

struct Fiber {
    Context context;
    std::vector<char> stack;
    Three thread;
    bool done = false;
    // Asynchronous copies: the group that is being filled, and those that were ended.
    std::vector<Copy> filling;
    std::vector<std::vector<Copy>> ended;
};

// What the lanes of a warp hand each other. Two sets of slots take turns: whoever writes into one set again has passed the
// barrier of the other, so every lane has read what was in it.
struct Exchange {
    Barrier barrier;
    unsigned alive = 0;
    alignas(16) unsigned char slots[2][32][32];
};

inline std::vector<Fiber> fibers;
inline std::vector<unsigned> sequence;  // the order in which fibers take turns
inline std::vector<unsigned> position;  // its inverse
inline std::vector<Exchange> exchanges;
inline Barrier block_barrier;
inline unsigned alive, current, idle_turns;
inline Context scheduler;
// Whether an asynchronous copy is done when it begins, and not only when it is waited for: both are allowed on a GPU.
inline bool copies_at_once = false;
alignas(128) inline unsigned char shared_memory[256 * 1024];

[[noreturn]] inline void fail(const char* what) {
    std::fprintf(stderr, "emulator: %s\n", what);
    std::abort();
}

// Names of all kernels of the file.
inline std::vector<const char*> names;
struct Named {
    explicit Named(const char* name) { names.push_back(name); }
};

// Whether warps run as far ahead of each other as barriers let them: a thread that waits for its warp hands over within it.
inline bool far_apart;

enum class Among { warp, block };

// Lets the next fiber run that has not ended, of the warp or of the block.
void hand_over(Among among);

inline void wait(Barrier& barrier, unsigned expected, Among among) {
    unsigned generation = barrier.generation;
    if (++barrier.arrived == expected) {
        barrier.arrived = 0;
        ++barrier.generation;
        idle_turns = 0;
        return;
    }
    while (barrier.generation == generation) {
        if (++idle_turns > 4 * fibers.size() + 64) fail("threads wait at different barriers");
        hand_over(among);
    }
    idle_turns = 0;
}

typedef const unsigned char (*Slots)[32];

// Gives `own` to the warp and returns what all lanes gave.
Slots give(const void* own, size_t size);

template <typename T> T take(Slots slots, unsigned lane) {
    T value;
    std::memcpy(&value, slots[lane], sizeof value);
    return value;
}

inline void perform(const Copy& copy) {
    if (copy.from) std::memcpy(copy.to, copy.from, 16);
    else std::memset(copy.to, 0, 16);
}

}  // namespace emulator

inline Three threadIdx, blockIdx, blockDim, gridDim;

#define DEVICE inline
#define __shared__ static
#define SHARED_BYTES(name) unsigned char* name = emulator::shared_memory
#define KERNEL(name, threads, Arguments)                                                                          \
    static void body_of_##name(const Arguments& a);                                                               \
    static const emulator::Named named_##name(#name);                                                             \
    extern "C" void name(const void* arguments) {                                                                 \
        if (blockDim.x * blockDim.y * blockDim.z > (threads)) emulator::fail(#name ": block of too many threads"); \
        body_of_##name(*static_cast<const Arguments*>(arguments));                                                \
    }                                                                                                             \
    static void body_of_##name(const Arguments& a)
#define ENTRY(name, threads, Arguments, ...) KERNEL(name, threads, Arguments) { __VA_ARGS__(a); }

using std::max;
using std::min;

struct bf16;
inline float bits_to_float(unsigned bits) {
    float x;
    std::memcpy(&x, &bits, 4);
    return x;
}
inline unsigned float_to_bits(float x) {
    unsigned bits;
    std::memcpy(&bits, &x, 4);
    return bits;
}
// To the nearest, ties to even.
inline unsigned short bf16_bits(float x) {
    unsigned bits = float_to_bits(x);
    if (x != x) return 0x7fff;
    return (unsigned short)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
inline unsigned pack_bf16(float low, float high) { return bf16_bits(low) | (unsigned)bf16_bits(high) << 16; }
inline float fast_exp(float x) { return std::exp(x); }
inline float fast_exp2(float x) { return std::exp2(x); }
inline float fast_divide(float x, float y) { return x / y; }
inline float inverse_root(float x) { return 1.0f / std::sqrt(x); }

inline void __syncthreads() { emulator::wait(emulator::block_barrier, emulator::alive, emulator::Among::block); }

inline void __syncwarp() { emulator::give("", 1); }

template <typename T> T __shfl_sync(unsigned, T own, int lane) {
    return emulator::take<T>(emulator::give(&own, sizeof own), lane & 31);
}

template <typename T> T __shfl_xor_sync(unsigned mask, T own, int offset) {
    return __shfl_sync(mask, own, (int)(threadIdx.x & 31) ^ offset);
}

template <typename T> T atomicAdd(T* to, T x) {
    T old = *to;
    *to = old + x;
    return old;
}

// The tensor core, by the layout of registers that NVIDIA's PTX manual gives for mma.m16n8k16.
inline void mma(float* d, const unsigned* a, unsigned b0, unsigned b1) {
    unsigned own[6] = {a[0], a[1], a[2], a[3], b0, b1};
    emulator::Slots slots = emulator::give(own, sizeof own);
    auto given = [slots](unsigned lane) { return reinterpret_cast<const unsigned*>(slots[lane]); };
    auto low = [](unsigned pair) { return bits_to_float(pair << 16); };
    auto high = [](unsigned pair) { return bits_to_float(pair & 0xffff0000u); };
    unsigned lane = threadIdx.x & 31;
    for (unsigned i = 0; i < 4; ++i) {
        unsigned row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
        for (unsigned pair = 0; pair < 8; ++pair) {
            unsigned left = given(row % 8 * 4 + pair % 4)[row / 8 + pair / 4 * 2];
            unsigned right = given(column * 4 + pair % 4)[4 + pair / 4];
            d[i] += low(left) * low(right) + high(left) * high(right);
        }
    }
}

inline void load_any(unsigned* to, const void* row, bool transposed) {
    if ((uintptr_t)row % 16) emulator::fail("a matrix row is not aligned to 16 bytes");
    emulator::Slots slots = emulator::give(&row, sizeof row);
    unsigned lane = threadIdx.x & 31;
    for (unsigned matrix = 0; matrix < 4; ++matrix) {
        unsigned pair = 0;
        for (unsigned i = 0; i < 2; ++i) {
            unsigned r = transposed ? lane % 4 * 2 + i : lane / 4, c = transposed ? lane / 4 : lane % 4 * 2 + i;
            const unsigned short* from = emulator::take<const unsigned short*>(slots, 8 * matrix + r);
            pair |= (unsigned)from[c] << (16 * i);
        }
        to[matrix] = pair;
    }
}

inline void load_matrices(unsigned* to, const bf16* row) { load_any(to, row, false); }
inline void load_transposed(unsigned* to, const bf16* row) { load_any(to, row, true); }

inline void copy_async(bf16* to, const bf16* from, int valid) {
    if ((uintptr_t)to % 16 || (uintptr_t)from % 16) emulator::fail("an asynchronous copy is not aligned to 16 bytes");
    emulator::Copy copy = {to, valid ? from : nullptr};
    if (emulator::copies_at_once) emulator::perform(copy);
    else emulator::fibers[emulator::current].filling.push_back(copy);
}
inline void end_copies() {
    auto& fiber = emulator::fibers[emulator::current];
    fiber.ended.push_back(std::move(fiber.filling));
    fiber.filling.clear();
}
template <int pending> void wait_copies() {
    auto& ended = emulator::fibers[emulator::current].ended;
    while (ended.size() > pending) {
        for (const auto& copy : ended.front()) emulator::perform(copy);
        ended.erase(ended.begin());
    }
}
