// Casts to fp8 for the tensor cores of chips from sm_89 on: e4m3 for weights and activations, whose values are close together, and
// e5m2 for gradients, whose values are not (Micikevicius et al. 2022, arXiv 2209.05433). A tensor has one scale, which maps its largest
// absolute value to the format's largest value.
//
// Two launches: the largest absolute value of each block's share, then the cast.

struct E4m3 {
    static const int mantissa = 3, bias = 7;
    static const u32 last = 0x7e;   // 448; the code after it is NaN
};

struct E5m2 {
    static const int mantissa = 2, bias = 15;
    static const u32 last = 0x7b;   // 57344; the codes after it are infinity and NaN
};

// The value of a code without sign, for normal values.
template <typename F> DEVICE float value_of(u32 code) {
    return bits_to_float((code << (23 - F::mantissa)) + ((u32)(127 - F::bias) << 23));
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
// Rounds to nearest, ties to even; saturates. The instruction converts two values.
template <typename F> DEVICE u8 to_fp8(float x) {
    u16 pair;
    if (F::mantissa == 3) asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(x));
    else asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(x));
    return (u8)pair;
}
#else
// The same with integers, for chips without the instruction and for the emulator.
template <typename F> DEVICE u8 to_fp8(float x) {
    u32 bits = float_to_bits(x), sign = (bits >> 31) << 7, size = bits & 0x7fffffffu, code;
    const int dropped = 23 - F::mantissa;
    if (size > 0x7f800000u) return (u8)(sign | 0x7f);
    if (size < (u32)(128 - F::bias) << 23) {
        // Subnormal values are multiples of the least one, and so are the last places of this sum.
        float large = bits_to_float((u32)(128 - F::bias + dropped) << 23);
        code = float_to_bits(bits_to_float(size) + large) - float_to_bits(large);
    } else {
        size += (1u << (dropped - 1)) - 1 + ((size >> dropped) & 1);
        code = (size >> dropped) - ((u32)(127 - F::bias) << F::mantissa);
    }
    return (u8)(sign | (code < F::last ? code : F::last));
}
#endif

template <typename T> struct CastFp8 {
    const T* x;            // rows x width
    float* largest;        // per block of the first launch: its largest |x|
    float* scale;          // [0] the factor of fp8 values
    u8* out;               // rows x width, or null
    u8* transposed;        // width x rows, or null
    int rows, width;
    int blocks;            // of the first launch
};

// A thread takes 16 bytes after 16 bytes, all threads side by side, and single numbers of what is left or does not begin there.
template <typename T> DEVICE void largest_of(const CastFp8<T>& a) {
    __shared__ float scratch[32];
    const int size = Pack<T>::size;
    i64 total = (i64)a.rows * a.width, packs = (u64)a.x % 16 == 0 ? total / size : 0;
    float largest = 0.0f;
    for (i64 index = global_thread(); index < packs; index += all_threads()) {
        Pack<T> x = load_pack(a.x + index * size);
#pragma unroll
        for (int i = 0; i < size; ++i) largest = fmaxf(largest, fabsf(wide(x.at[i])));
    }
    for (i64 index = packs * size + global_thread(); index < total; index += all_threads())
        largest = fmaxf(largest, fabsf(wide(a.x[index])));
    largest = block_max(largest, scratch);
    if (threadIdx.x == 0) a.largest[blockIdx.x] = largest;
}

// A block of 256 threads casts a tile of 32 x 32, through shared memory for the transposed copy: tensor cores take fp8 operands with a
// contiguous inner dimension only, and backward sums over the other dimension.
template <typename T, typename F> DEVICE void cast_fp8(const CastFp8<T>& a) {
    __shared__ float scratch[32];
    __shared__ u8 tile[32][36];
    float largest = 0.0f;
    for (int block = threadIdx.x; block < a.blocks; block += blockDim.x) largest = fmaxf(largest, a.largest[block]);
    largest = block_max(largest, scratch);
    // The factor of less would be beyond f32.
    largest = fmaxf(largest, 1e-30f);
    float most = value_of<F>(F::last), factor = most / largest;
    if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) a.scale[0] = largest / most;
    int column = blockIdx.x * 32 + lane();
    for (int first = blockIdx.y * 32; first < a.rows; first += gridDim.y * 32) {
        for (int place = warp(); place < 32; place += 8) {
            int row = first + place;
            if (row < a.rows && column < a.width) {
                u8 code = to_fp8<F>(wide(a.x[(i64)row * a.width + column]) * factor);
                if (a.out) a.out[(i64)row * a.width + column] = code;
                tile[place][lane()] = code;
            }
        }
        if (a.transposed) {
            __syncthreads();
            for (int place = warp(); place < 32; place += 8) {
                int own = blockIdx.x * 32 + place, row = first + lane();
                if (own < a.width && row < a.rows) a.transposed[(i64)own * a.rows + row] = tile[lane()][place];
            }
            __syncthreads();
        }
    }
}

#define CAST_FP8(suffix, T)                                                            \
    DEVICE void narrow_e4m3_of_##suffix(const CastFp8<T>& a) { cast_fp8<T, E4m3>(a); } \
    DEVICE void narrow_e5m2_of_##suffix(const CastFp8<T>& a) { cast_fp8<T, E5m2>(a); } \
    ENTRY(largest_##suffix, 256, CastFp8<T>, largest_of<T>)                            \
    ENTRY(narrow_e4m3_##suffix, 256, CastFp8<T>, narrow_e4m3_of_##suffix)              \
    ENTRY(narrow_e5m2_##suffix, 256, CastFp8<T>, narrow_e5m2_of_##suffix)

CAST_FP8(f32, float)
CAST_FP8(bf16, bf16)
