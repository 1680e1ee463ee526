// Sums: over rows (the gradient of a bias), of squares (the norm of all gradients), of several buffers (the collectives of
// ranks that share a GPU), and casts.

template <typename T> struct ColumnSum {
    const T* x;            // rows x width
    float* out;            // (blocks of rows) x width, replaced, or added to where `add` is 1
    int rows, width, add;
};

// A thread per column; blockIdx.y is a share of the rows. Run twice for a tall matrix: first into one row of partial sums
// per share, then with one share over those, added to the gradient. The order of additions is the same in every run.
// A warp reads 32 columns next to each other, 128 bytes of f32; four rows at a time keep four loads in flight.
template <typename T> DEVICE void column_sum(const ColumnSum<T>& a) {
    int column = blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= a.width) return;
    int share = (a.rows + gridDim.y - 1) / gridDim.y;
    int row = blockIdx.y * share, end = min(row + share, a.rows);
    float sums[4] = {};
    for (; row + 4 <= end; row += 4) {
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[i] += wide(a.x[(i64)(row + i) * a.width + column]);
    }
    for (; row < end; ++row) sums[0] += wide(a.x[(i64)row * a.width + column]);
    float sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    float* to = a.out + (i64)blockIdx.y * a.width + column;
    *to = a.add ? *to + sum : sum;
}

ENTRY(column_sum_f32, 256, ColumnSum<float>, column_sum<float>)
ENTRY(column_sum_bf16, 256, ColumnSum<bf16>, column_sum<bf16>)

// At most 16384 elements of one tensor. A list of these is made once; block i does chunk i, so one launch takes any number of
// tensors of any size, and each chunk has a scale of its own.
struct SquaresChunk {
    const float* x;
    int count;
    float scale;           // of the sum: several ranks may hold the same numbers, each of which counts once
};

struct SquareSums {
    const SquaresChunk* chunks;
    double* partial;       // one per chunk
};

// Each thread adds its packs in f64 and each block leaves one sum: 2^-24 of rounding per f32 addition would show in the
// norm of 10^9 gradients, and one f64 addition per 16 bytes read is hidden behind the reading on the chips this is for,
// whose f64 rate is half that of f32. A chunk is 64 KiB, 16 packs a thread. The order of additions depends on the chunks alone,
// so the sum has the same bits on every GPU.
KERNEL(square_sums, 256, SquareSums) {
    __shared__ double scratch[32];
    const SquaresChunk p = a.chunks[blockIdx.x];
    const int size = Pack<float>::size;
    int packs = p.count / size;
    double total = 0.0;
#pragma unroll 4
    for (int pack = threadIdx.x; pack < packs; pack += blockDim.x) {
        Pack<float> x = load_pack(p.x + pack * size);
        float own = 0.0f;
#pragma unroll
        for (int i = 0; i < size; ++i) own += x.at[i] * x.at[i];
        total += (double)own;
    }
    int rest = packs * size + threadIdx.x;
    if (rest < p.count) total += (double)(p.x[rest] * p.x[rest]);
    total = block_sum(total, scratch);
    if (threadIdx.x == 0) a.partial[blockIdx.x] = total * (double)p.scale;
}

struct PartSums {
    const double* partial; // of all chunks
    float* sums;           // two
    int starts[3];         // sum i: of the parts from starts[i] to starts[i + 1]
};

// A block for each sum: 100,000 parts for 1.5 billion gradients, 800 KB.
KERNEL(part_sums, 1024, PartSums) {
    __shared__ double scratch[32];
    double sums[4] = {};
    // An index known only at run time would copy the struct to local memory.
    bool first = blockIdx.x == 0;
    int threads = (int)blockDim.x, end = first ? a.starts[1] : a.starts[2];
    int part = (first ? a.starts[0] : a.starts[1]) + (int)threadIdx.x;
    for (; part + 3 * threads < end; part += 4 * threads) {
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[i] += a.partial[part + i * threads];
    }
    for (; part < end; part += threads) sums[0] += a.partial[part];
    double total = block_sum((sums[0] + sums[1]) + (sums[2] + sums[3]), scratch);
    if (threadIdx.x == 0) a.sums[blockIdx.x] = (float)total;
}

struct ClipFactor {
    const float* squares;  // `count` sums, over all ranks
    float* factor;         // [0]: min(1, bound / norm); [1]: the norm
    int count;
    float bound;
};

// One thread. The factor stays on the GPU, where the optimizer reads it, so the host need not wait.
KERNEL(clip_factor, 32, ClipFactor) {
    if (global_thread() != 0) return;
    double total = 0.0;
    for (int index = 0; index < a.count; ++index) total += (double)a.squares[index];
    float norm = (float)sqrt(total);
    a.factor[0] = norm > a.bound ? a.bound / norm : 1.0f;
    a.factor[1] = norm;
}

template <typename T> struct SumBuffers {
    const T* from[32];     // `buffers` of them
    T* out;                // may be one of them
    i64 count;
    int buffers;
    int packed;            // 1: all of them are 16-byte aligned
};

// An all-reduce among ranks of one GPU: each number is read once from every rank and summed in rank order, in float.
template <typename T> DEVICE void sum_buffers(const SumBuffers<T>& a) {
    const int size = Pack<T>::size;
    i64 packs = a.packed ? a.count / size : 0;
    for (i64 pack = global_thread(); pack < packs; pack += all_threads()) {
        float sums[size] = {};
        for (int buffer = 0; buffer < a.buffers; ++buffer) {
            Pack<T> x = load_pack(a.from[buffer] + pack * size);
#pragma unroll
            for (int i = 0; i < size; ++i) sums[i] += wide(x.at[i]);
        }
        Pack<T> out;
#pragma unroll
        for (int i = 0; i < size; ++i) out.at[i] = narrow<T>(sums[i]);
        store_pack(a.out + pack * size, out);
    }
    for (i64 index = packs * size + global_thread(); index < a.count; index += all_threads()) {
        float sum = 0.0f;
        for (int buffer = 0; buffer < a.buffers; ++buffer) sum += wide(a.from[buffer][index]);
        a.out[index] = narrow<T>(sum);
    }
}

ENTRY(sum_buffers_f32, 256, SumBuffers<float>, sum_buffers<float>)
ENTRY(sum_buffers_bf16, 256, SumBuffers<bf16>, sum_buffers<bf16>)

template <typename From, typename To> struct Cast {
    const From* from;
    To* to;
    i64 count;
};

// Four numbers a thread: 16 bytes on the f32 side, 8 on the other.
template <typename T> struct alignas(4 * sizeof(T)) FourOf {
    T at[4];
};

template <typename From, typename To> DEVICE void cast(const Cast<From, To>& a) {
    i64 fours = a.count / 4;
    for (i64 four = global_thread(); four < fours; four += all_threads()) {
        FourOf<From> from = reinterpret_cast<const FourOf<From>*>(a.from)[four];
        FourOf<To> to;
#pragma unroll
        for (int i = 0; i < 4; ++i) to.at[i] = narrow<To>(wide(from.at[i]));
        reinterpret_cast<FourOf<To>*>(a.to)[four] = to;
    }
    i64 rest = fours * 4 + global_thread();
    if (rest < a.count) a.to[rest] = narrow<To>(wide(a.from[rest]));
}

typedef Cast<float, bf16> CastDown;
typedef Cast<bf16, float> CastUp;
#define CAST_DOWN cast<float, bf16>
#define CAST_UP cast<bf16, float>
ENTRY(cast_f32_bf16, 256, CastDown, CAST_DOWN)
ENTRY(cast_bf16_f32, 256, CastUp, CAST_UP)
