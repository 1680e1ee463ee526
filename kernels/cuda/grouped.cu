// The products of all experts of a layer in one launch. Rows lie sorted by expert; how many an expert has is read on the GPU.
//
//   forward    y = x Wᵀ      backward    x' = y' W      weights    W' += y'ᵀ x
//
// with the W of a row's expert, which is stored as outputs x inputs, and gradients of weights in f32. Both widths are multiples of 8 for
// the versions on tensor cores. One large product is cublasLt's: these are for experts that do not fill a GPU each, which a
// launch for each would run one behind the other.

template <typename T> struct Grouped {
    const T* left;         // rows x inputs in forward, rows x outputs else
    const T* right;        // experts x outputs x inputs; rows x inputs for weights
    T* out;                // rows x outputs in forward, rows x inputs in backward
    float* gradients;      // experts x outputs x inputs, for weights
    const u32* starts;     // experts + 1: where each expert's rows begin, and how many rows there are
    int experts, inputs, outputs;
};

// ---- 1. A thread for each number. ----------------------------------------------------------------------------------------

DEVICE int expert_of(const u32* starts, u32 row) {
    int expert = 0;
    while (starts[expert + 1] <= row) ++expert;
    return expert;
}

template <typename T> DEVICE void grouped_forward_simple(const Grouped<T>& a) {
    int column = blockIdx.x * blockDim.x + threadIdx.x, rows = a.starts[a.experts];
    if (column >= a.outputs) return;
    for (int row = blockIdx.y; row < rows; row += gridDim.y) {
        const T* x = a.left + (i64)row * a.inputs;
        const T* weights = a.right + ((i64)expert_of(a.starts, row) * a.outputs + column) * a.inputs;
        float sum = 0.0f;
        for (int k = 0; k < a.inputs; ++k) sum += wide(x[k]) * wide(weights[k]);
        a.out[(i64)row * a.outputs + column] = narrow<T>(sum);
    }
}

template <typename T> DEVICE void grouped_backward_simple(const Grouped<T>& a) {
    int column = blockIdx.x * blockDim.x + threadIdx.x, rows = a.starts[a.experts];
    if (column >= a.inputs) return;
    for (int row = blockIdx.y; row < rows; row += gridDim.y) {
        const T* gradient = a.left + (i64)row * a.outputs;
        const T* weights = a.right + (i64)expert_of(a.starts, row) * a.outputs * a.inputs + column;
        float sum = 0.0f;
        for (int k = 0; k < a.outputs; ++k) sum += wide(gradient[k]) * wide(weights[(i64)k * a.inputs]);
        a.out[(i64)row * a.inputs + column] = narrow<T>(sum);
    }
}

template <typename T> DEVICE void grouped_weights_simple(const Grouped<T>& a) {
    int column = blockIdx.x * blockDim.x + threadIdx.x, expert = blockIdx.z;
    int begin = a.starts[expert], end = a.starts[expert + 1];
    if (column >= a.inputs || begin == end) return;
    for (int output = blockIdx.y; output < a.outputs; output += gridDim.y) {
        float sum = 0.0f;
        for (int row = begin; row < end; ++row)
            sum += wide(a.left[(i64)row * a.outputs + output]) * wide(a.right[(i64)row * a.inputs + column]);
        a.gradients[((i64)expert * a.outputs + output) * a.inputs + column] += sum;
    }
}

ENTRY(grouped_forward_simple_f32, 256, Grouped<float>, grouped_forward_simple<float>)
ENTRY(grouped_forward_simple_bf16, 256, Grouped<bf16>, grouped_forward_simple<bf16>)
ENTRY(grouped_backward_simple_f32, 256, Grouped<float>, grouped_backward_simple<float>)
ENTRY(grouped_backward_simple_bf16, 256, Grouped<bf16>, grouped_backward_simple<bf16>)
ENTRY(grouped_weights_simple_f32, 256, Grouped<float>, grouped_weights_simple<float>)
ENTRY(grouped_weights_simple_bf16, 256, Grouped<bf16>, grouped_weights_simple<bf16>)

// ---- 2. Tensor cores: bf16. ----------------------------------------------------------------------------------------------
// A block of 8 warps makes 128 x 128 numbers, each warp 32 x 64 of them in registers, from 64 of the inner dimension at a time.
// The next 64 are on their way meanwhile: two stages of 36 KiB of shared memory. A thread's 64 sums leave it about as many
// registers for the rest if two blocks are to fit on a multiprocessor. Beyond the matrices' edges there are zeros.

#define GROUP_TILE 128
#define GROUP_STEP 64
#define GROUP_STAGE (GROUP_TILE * (GROUP_STEP + 8))

// A side of a product: `lines` of its dimension that is not summed over, of the 128 that a block takes. It lies line after line,
// or, transposed, with neighbouring lines next to each other.
template <bool transposed> struct Side {
    const bf16* from;
    i64 stride;
    int lines;
};

// Begins the copy of a stage of a side: 64 of `inner` from `first` on.
template <bool transposed> DEVICE void begin_side(bf16* to, const Side<transposed>& side, int first, int inner) {
    const int width = transposed ? GROUP_TILE : GROUP_STEP;
    int left = inner - first, rows = transposed ? left : side.lines, columns = transposed ? side.lines : left;
    const bf16* from = side.from + (transposed ? first * side.stride : first);
    Tile<width> tile = {to};
    for (int index = threadIdx.x; index < GROUP_TILE * GROUP_STEP / 8; index += blockDim.x) {
        int row = index / (width / 8), column = index % (width / 8) * 8;
        bool inside = row < rows && column < columns;
        copy_async(tile.at(row, column), from + (inside ? row * side.stride + column : 0), inside);
    }
}

// out += left right of this warp's 32 x 64 numbers.
template <bool left_transposed, bool right_transposed>
DEVICE void group_product(float (*out)[8][4], const Side<left_transposed>& left, const Side<right_transposed>& right,
                          int inner, bf16* memory) {
    const int left_width = left_transposed ? GROUP_TILE : GROUP_STEP;
    const int right_width = right_transposed ? GROUP_TILE : GROUP_STEP;
    int line = warp() % 4 * 32, column = warp() / 4 * 64, steps = (inner + GROUP_STEP - 1) / GROUP_STEP;
    begin_side(memory, left, 0, inner);
    begin_side(memory + GROUP_STAGE, right, 0, inner);
    end_copies();
    for (int step = 0; step < steps; ++step) {
        if (step + 1 < steps) {
            bf16* next = memory + (step + 1) % 2 * 2 * GROUP_STAGE;
            begin_side(next, left, (step + 1) * GROUP_STEP, inner);
            begin_side(next + GROUP_STAGE, right, (step + 1) * GROUP_STEP, inner);
            end_copies();
            wait_copies<1>();
        } else {
            wait_copies<0>();
        }
        __syncthreads();
        Tile<left_width> own = {memory + step % 2 * 2 * GROUP_STAGE};
        Tile<right_width> other = {own.rows + GROUP_STAGE};
#pragma unroll
        for (int k = 0; k < GROUP_STEP; k += 16) {
            u32 a[2][4];
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                if (left_transposed) own.load_a_columns(a[i], k, line + 16 * i);
                else own.load_a(a[i], line + 16 * i, k);
            }
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                u32 b[4];
                if (right_transposed) other.load_b_columns(b, k, column + 16 * j);
                else other.load_b_rows(b, column + 16 * j, k);
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    mma(out[i][2 * j], a[i], b[0], b[1]);
                    mma(out[i][2 * j + 1], a[i], b[2], b[3]);
                }
            }
        }
        __syncthreads();
    }
}

// Rows of one expert.
struct GroupRows {
    int expert, begin, end;
};

// The 128 rows, or fewer, of the block's number in x, counted through the experts; none behind the last ones.
DEVICE GroupRows group_rows(const u32* starts, int experts) {
    int number = blockIdx.x;
    for (int expert = 0; expert < experts; ++expert) {
        int begin = starts[expert], end = starts[expert + 1], tiles = (end - begin + GROUP_TILE - 1) / GROUP_TILE;
        if (number < tiles) return {expert, begin + number * GROUP_TILE, end};
        number -= tiles;
    }
    return {0, 0, 0};
}

// Calls `put(row, column, low, high)` for each pair of this thread, counted in the block's 128 x 128.
template <typename Put> DEVICE void put_pairs(float (*out)[8][4], Put put) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        int row = warp() % 4 * 32 + 16 * i + lane() / 4;
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            int column = warp() / 4 * 64 + 8 * j + lane() % 4 * 2;
            put(row, column, out[i][j][0], out[i][j][1]);
            put(row + 8, column, out[i][j][2], out[i][j][3]);
        }
    }
}

// Block (128 rows of an expert, 128 columns).
template <bool right_transposed> DEVICE void grouped_rows(const Grouped<bf16>& a, int inner, int width) {
    SHARED_BYTES(memory);
    GroupRows rows = group_rows(a.starts, a.experts);
    if (rows.begin == rows.end) return;
    int first = blockIdx.y * GROUP_TILE, left = width - first;
    const bf16* weights = a.right + (i64)rows.expert * a.outputs * a.inputs;
    float out[2][8][4] = {};
    group_product<false, right_transposed>(
        out, {a.left + (i64)rows.begin * inner, inner, rows.end - rows.begin},
        {weights + (right_transposed ? (i64)first : (i64)first * a.inputs), a.inputs, left}, inner,
        reinterpret_cast<bf16*>(memory));
    put_pairs(out, [&](int row, int column, float low, float high) {
        if (rows.begin + row < rows.end && column < left)
            *reinterpret_cast<u32*>(a.out + (i64)(rows.begin + row) * width + first + column) = pack_bf16(low, high);
    });
}

KERNEL(grouped_forward_tiles, 256, Grouped<bf16>) { grouped_rows<false>(a, a.inputs, a.outputs); }
KERNEL(grouped_backward_tiles, 256, Grouped<bf16>) { grouped_rows<true>(a, a.outputs, a.inputs); }

// Block (128 inputs, 128 outputs, expert).
KERNEL(grouped_weights_tiles, 256, Grouped<bf16>) {
    SHARED_BYTES(memory);
    int begin = a.starts[blockIdx.z], rows = a.starts[blockIdx.z + 1] - begin;
    if (rows == 0) return;
    int output = blockIdx.y * GROUP_TILE, input = blockIdx.x * GROUP_TILE;
    int outputs = a.outputs - output, inputs = a.inputs - input;
    float out[2][8][4] = {};
    group_product<true, true>(out, {a.left + (i64)begin * a.outputs + output, a.outputs, outputs},
                              {a.right + (i64)begin * a.inputs + input, a.inputs, inputs}, rows,
                              reinterpret_cast<bf16*>(memory));
    float* gradients = a.gradients + ((i64)blockIdx.z * a.outputs + output) * a.inputs + input;
    put_pairs(out, [&](int row, int column, float low, float high) {
        if (row >= outputs || column >= inputs) return;
        float* to = gradients + (i64)row * a.inputs + column;
        to[0] += low;
        to[1] += high;
    });
}
