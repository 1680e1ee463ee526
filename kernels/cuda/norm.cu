// LayerNorm and RMSNorm over rows, with the addition that stands before them in a transformer.
//
// LayerNorm: y = g (x - mu) s + b with 1/s^2 = Var x + epsilon; RMSNorm: y = g x s with 1/s^2 = mean x^2 + epsilon.
// Backward with h = (x - mu) s and e = g dy: dx = (e - mean e - h mean(e h)) s; an RMSNorm has no mean e.
//
// Memory-bound: forward reads a row once and writes it once, so a second and third reading of the row must come from
// registers or caches. Statistics are in float whatever the rows are in.

template <typename T> struct NormForward {
    const T* x;            // rows x width
    const T* residual;     // added to x before the norm, or null
    const T* added_bias;   // width, added with the residual, or null
    const T* gain;         // width, or null
    const T* bias;         // width, or null
    T* sum;                // x + added_bias + residual, may be where x is; null if there is no residual
    T* out;                // rows x width
    float* mean;           // rows; what backward needs
    float* scale;          // rows; s
    int rows, width;
    float epsilon;
    int centred;           // 1 for LayerNorm
};

// 1. A warp per row, one number per lane and load, the row read three times: mean, variance, output. The second and third
// reading hit L1 for rows up to a few thousand numbers.
template <typename T> DEVICE void norm_forward_simple(const NormForward<T>& a) {
    int row = blockIdx.x * warps() + warp();
    if (row >= a.rows) return;
    i64 start = (i64)row * a.width;
    float total = 0.0f;
    for (int column = lane(); column < a.width; column += 32) {
        float x = wide(a.x[start + column]);
        if (a.residual) {
            if (a.added_bias) x += wide(a.added_bias[column]);
            T rounded = narrow<T>(x + wide(a.residual[start + column]));
            a.sum[start + column] = rounded;
            x = wide(rounded);
        }
        total += x;
    }
    const T* from = a.residual ? a.sum : a.x;
    float mean = a.centred ? warp_sum(total) / a.width : 0.0f, squares = 0.0f;
    for (int column = lane(); column < a.width; column += 32) {
        float x = wide(from[start + column]) - mean;
        squares += x * x;
    }
    float scale = inverse_root(warp_sum(squares) / a.width + a.epsilon);
    for (int column = lane(); column < a.width; column += 32) {
        float y = (wide(from[start + column]) - mean) * scale;
        if (a.gain) y *= wide(a.gain[column]);
        if (a.bias) y += wide(a.bias[column]);
        a.out[start + column] = narrow<T>(y);
    }
    if (lane() == 0) {
        a.mean[row] = mean;
        a.scale[row] = scale;
    }
}

// 2. A block per row; each thread keeps up to PACKS packs of 16 bytes of the row in registers, so device memory is read
// once and nothing depends on a cache. 4 packs of bf16 by 256 threads hold rows up to 8192, and 32 floats a thread leave
// room for 2048 threads on a multiprocessor only up to 32 registers: with about 64 it holds 4 blocks, whose 4 x 256 x 4
// loads of 16 bytes are 64 KiB in flight, more than the 32 KiB or so that cover the latency at full bandwidth.
#define NORM_PACKS 4
template <typename T> DEVICE void norm_forward_packed(const NormForward<T>& a) {
    __shared__ float scratch[32];
    const int size = Pack<T>::size;
    int step = blockDim.x * size;
    i64 start = (i64)blockIdx.x * a.width;
    float x[NORM_PACKS][size];
    float total = 0.0f;
#pragma unroll
    for (int pack = 0; pack < NORM_PACKS; ++pack) {
        int column = pack * step + threadIdx.x * size;
        if (column < a.width) {
            Pack<T> own = load_pack(a.x + start + column);
            if (a.residual) {
                Pack<T> other = load_pack(a.residual + start + column), added = {};
                if (a.added_bias) added = load_pack(a.added_bias + column);
#pragma unroll
                for (int i = 0; i < size; ++i)
                    own.at[i] = narrow<T>(wide(own.at[i]) + wide(added.at[i]) + wide(other.at[i]));
                store_pack(a.sum + start + column, own);
            }
#pragma unroll
            for (int i = 0; i < size; ++i) total += x[pack][i] = wide(own.at[i]);
        }
    }
    float mean = a.centred ? block_sum(total, scratch) / a.width : 0.0f, squares = 0.0f;
#pragma unroll
    for (int pack = 0; pack < NORM_PACKS; ++pack) {
        if (pack * step + (int)threadIdx.x * size < a.width) {
#pragma unroll
            for (int i = 0; i < size; ++i) squares += (x[pack][i] - mean) * (x[pack][i] - mean);
        }
    }
    float scale = inverse_root(block_sum(squares, scratch) / a.width + a.epsilon);
#pragma unroll
    for (int pack = 0; pack < NORM_PACKS; ++pack) {
        int column = pack * step + threadIdx.x * size;
        if (column < a.width) {
            Pack<T> gain, bias, out;
            if (a.gain) gain = load_pack(a.gain + column);
            if (a.bias) bias = load_pack(a.bias + column);
#pragma unroll
            for (int i = 0; i < size; ++i) {
                float y = (x[pack][i] - mean) * scale;
                if (a.gain) y *= wide(gain.at[i]);
                if (a.bias) y += wide(bias.at[i]);
                out.at[i] = narrow<T>(y);
            }
            store_pack(a.out + start + column, out);
        }
    }
    if (threadIdx.x == 0) {
        a.mean[blockIdx.x] = mean;
        a.scale[blockIdx.x] = scale;
    }
}

ENTRY(norm_forward_simple_f32, 256, NormForward<float>, norm_forward_simple<float>)
ENTRY(norm_forward_simple_bf16, 256, NormForward<bf16>, norm_forward_simple<bf16>)
ENTRY(norm_forward_packed_f32, 256, NormForward<float>, norm_forward_packed<float>)
ENTRY(norm_forward_packed_bf16, 256, NormForward<bf16>, norm_forward_packed<bf16>)

template <typename T> struct NormBackward {
    const T* x;             // rows x width, what forward normalised
    const T* gain;          // width, or null
    const T* out_gradient;  // rows x width
    const float* mean;      // rows
    const float* scale;     // rows
    T* gradient;            // rows x width, added to: it holds what came past the norm
    float* partial_gain;    // blocks x width: each block's sum over its rows of dy h; or null
    float* partial_bias;    // blocks x width: of dy; or null
    int rows, width;
    int centred;
};

// 1. A warp per row, the row read twice; gain and bias are summed by a kernel of their own (norm_vectors_simple).
template <typename T> DEVICE void norm_backward_simple(const NormBackward<T>& a) {
    int row = blockIdx.x * warps() + warp();
    if (row >= a.rows) return;
    i64 start = (i64)row * a.width;
    float mean = a.mean[row], scale = a.scale[row], total = 0.0f, along = 0.0f;
    for (int column = lane(); column < a.width; column += 32) {
        float e = wide(a.out_gradient[start + column]) * (a.gain ? wide(a.gain[column]) : 1.0f);
        total += e;
        along += e * (wide(a.x[start + column]) - mean) * scale;
    }
    total = a.centred ? warp_sum(total) / a.width : 0.0f;
    along = warp_sum(along) / a.width;
    for (int column = lane(); column < a.width; column += 32) {
        float e = wide(a.out_gradient[start + column]) * (a.gain ? wide(a.gain[column]) : 1.0f);
        float h = (wide(a.x[start + column]) - mean) * scale;
        float gradient = (e - total - h * along) * scale;
        a.gradient[start + column] = narrow<T>(wide(a.gradient[start + column]) + gradient);
    }
}

// A thread per column and block of rows; 32 neighbouring threads read 32 neighbouring columns.
template <typename T> DEVICE void norm_vectors_simple(const NormBackward<T>& a) {
    int column = blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= a.width) return;
    float gain = 0.0f, bias = 0.0f;
    for (int row = blockIdx.y; row < a.rows; row += gridDim.y) {
        float dy = wide(a.out_gradient[(i64)row * a.width + column]);
        gain += dy * (wide(a.x[(i64)row * a.width + column]) - a.mean[row]) * a.scale[row];
        bias += dy;
    }
    if (a.partial_gain) a.partial_gain[(i64)blockIdx.y * a.width + column] = gain;
    if (a.partial_bias) a.partial_bias[(i64)blockIdx.y * a.width + column] = bias;
}

// 2. A block walks over many rows (one wave of blocks, each with rows / blocks of them) and does all three gradients from
// one reading of x and dy. The sums over rows stay in registers until the block's last row: each thread owns the same
// columns of every row. What a block writes of them is added up by column_sum of reduce.cu in a fixed order: no atomics,
// the same bits in every run. The registers hold x, dy and two sums: with 2 packs of bf16, 64 floats, 128 registers and
// 2 blocks on a multiprocessor; wider rows take more threads (a block of 1024 threads holds 16384 bf16).
#define NORM_BACKWARD_PACKS 2
template <typename T> DEVICE void norm_backward_packed(const NormBackward<T>& a) {
    __shared__ float scratch[64];
    const int size = Pack<T>::size;
    int step = blockDim.x * size;
    float gain_sum[NORM_BACKWARD_PACKS][size] = {}, bias_sum[NORM_BACKWARD_PACKS][size] = {};
    for (int row = blockIdx.x; row < a.rows; row += gridDim.x) {
        i64 start = (i64)row * a.width;
        float mean = a.mean[row], scale = a.scale[row], total = 0.0f, along = 0.0f;
        float h[NORM_BACKWARD_PACKS][size], e[NORM_BACKWARD_PACKS][size];
        Pack<T> gradient[NORM_BACKWARD_PACKS];
#pragma unroll
        for (int pack = 0; pack < NORM_BACKWARD_PACKS; ++pack) {
            int column = pack * step + threadIdx.x * size;
            if (column < a.width) {
                Pack<T> x = load_pack(a.x + start + column), dy = load_pack(a.out_gradient + start + column), gain;
                // Asked for now, though it is needed behind the sums: one wait for memory in each row instead of two.
                gradient[pack] = load_pack(a.gradient + start + column);
                if (a.gain) gain = load_pack(a.gain + column);
#pragma unroll
                for (int i = 0; i < size; ++i) {
                    h[pack][i] = (wide(x.at[i]) - mean) * scale;
                    e[pack][i] = wide(dy.at[i]);
                    gain_sum[pack][i] += e[pack][i] * h[pack][i];
                    bias_sum[pack][i] += e[pack][i];
                    if (a.gain) e[pack][i] *= wide(gain.at[i]);
                    total += e[pack][i];
                    along += e[pack][i] * h[pack][i];
                }
            }
        }
        block_sums(total, along, scratch);
        total = a.centred ? total / a.width : 0.0f;
        along /= a.width;
#pragma unroll
        for (int pack = 0; pack < NORM_BACKWARD_PACKS; ++pack) {
            int column = pack * step + threadIdx.x * size;
            if (column < a.width) {
#pragma unroll
                for (int i = 0; i < size; ++i) {
                    float own = (e[pack][i] - total - h[pack][i] * along) * scale;
                    gradient[pack].at[i] = narrow<T>(wide(gradient[pack].at[i]) + own);
                }
                store_pack(a.gradient + start + column, gradient[pack]);
            }
        }
    }
#pragma unroll
    for (int pack = 0; pack < NORM_BACKWARD_PACKS; ++pack) {
        int column = pack * step + threadIdx.x * size;
        if (column < a.width) {
#pragma unroll
            for (int i = 0; i < size; ++i) {
                i64 at = (i64)blockIdx.x * a.width + column + i;
                if (a.partial_gain) a.partial_gain[at] = gain_sum[pack][i];
                if (a.partial_bias) a.partial_bias[at] = bias_sum[pack][i];
            }
        }
    }
}

ENTRY(norm_backward_simple_f32, 256, NormBackward<float>, norm_backward_simple<float>)
ENTRY(norm_backward_simple_bf16, 256, NormBackward<bf16>, norm_backward_simple<bf16>)
ENTRY(norm_vectors_simple_f32, 256, NormBackward<float>, norm_vectors_simple<float>)
ENTRY(norm_vectors_simple_bf16, 256, NormBackward<bf16>, norm_vectors_simple<bf16>)
ENTRY(norm_backward_packed_f32, 512, NormBackward<float>, norm_backward_packed<float>)
ENTRY(norm_backward_packed_bf16, 512, NormBackward<bf16>, norm_backward_packed<bf16>)

// Rows whose columns are sharded over the ranks of a group: the sums over this rank's columns, and the results from the sums of all
// ranks. A warp per row: a rank's part of a row is too short for a block.
template <typename T> struct NormPart {
    const T* x;             // rows x width
    const T* gain;          // width, or null
    const T* bias;          // width, or null
    const T* out_gradient;  // rows x width
    const float* mean;      // rows
    const float* scale;     // rows
    float* sums;            // rows x 2: forward of x and x^2, backward of e and e h
    T* out;                 // rows x width; the input's gradient is added to what is there
    int rows, width;
    int all_columns;        // columns on all ranks
    int centred;
};

template <typename T> DEVICE void norm_part_sums(const NormPart<T>& a) {
    int row = blockIdx.x * warps() + warp();
    if (row >= a.rows) return;
    float total = 0.0f, squares = 0.0f;
    for (int column = lane(); column < a.width; column += 32) {
        float x = wide(a.x[(i64)row * a.width + column]);
        total += x;
        squares += x * x;
    }
    total = warp_sum(total);
    squares = warp_sum(squares);
    if (lane() == 0) {
        a.sums[2 * row] = total;
        a.sums[2 * row + 1] = squares;
    }
}

template <typename T> DEVICE void norm_part_forward(const NormPart<T>& a) {
    int row = blockIdx.x * warps() + warp();
    if (row >= a.rows) return;
    float mean = a.mean[row], scale = a.scale[row];
    for (int column = lane(); column < a.width; column += 32) {
        float y = (wide(a.x[(i64)row * a.width + column]) - mean) * scale;
        if (a.gain) y *= wide(a.gain[column]);
        if (a.bias) y += wide(a.bias[column]);
        a.out[(i64)row * a.width + column] = narrow<T>(y);
    }
}

template <typename T> DEVICE void norm_part_sums_back(const NormPart<T>& a) {
    int row = blockIdx.x * warps() + warp();
    if (row >= a.rows) return;
    float mean = a.mean[row], scale = a.scale[row], total = 0.0f, along = 0.0f;
    for (int column = lane(); column < a.width; column += 32) {
        i64 at = (i64)row * a.width + column;
        float e = wide(a.out_gradient[at]) * (a.gain ? wide(a.gain[column]) : 1.0f);
        total += e;
        along += e * (wide(a.x[at]) - mean) * scale;
    }
    total = warp_sum(total);
    along = warp_sum(along);
    if (lane() == 0) {
        a.sums[2 * row] = total;
        a.sums[2 * row + 1] = along;
    }
}

template <typename T> DEVICE void norm_part_backward(const NormPart<T>& a) {
    int row = blockIdx.x * warps() + warp();
    if (row >= a.rows) return;
    float mean = a.mean[row], scale = a.scale[row];
    float total = a.centred ? a.sums[2 * row] / a.all_columns : 0.0f, along = a.sums[2 * row + 1] / a.all_columns;
    for (int column = lane(); column < a.width; column += 32) {
        i64 at = (i64)row * a.width + column;
        float e = wide(a.out_gradient[at]) * (a.gain ? wide(a.gain[column]) : 1.0f);
        float h = (wide(a.x[at]) - mean) * scale;
        a.out[at] = narrow<T>(wide(a.out[at]) + (e - total - h * along) * scale);
    }
}

ENTRY(norm_part_sums_f32, 256, NormPart<float>, norm_part_sums<float>)
ENTRY(norm_part_sums_bf16, 256, NormPart<bf16>, norm_part_sums<bf16>)
ENTRY(norm_part_forward_f32, 256, NormPart<float>, norm_part_forward<float>)
ENTRY(norm_part_forward_bf16, 256, NormPart<bf16>, norm_part_forward<bf16>)
ENTRY(norm_part_sums_back_f32, 256, NormPart<float>, norm_part_sums_back<float>)
ENTRY(norm_part_sums_back_bf16, 256, NormPart<bf16>, norm_part_sums_back<bf16>)
ENTRY(norm_part_backward_f32, 256, NormPart<float>, norm_part_backward<float>)
ENTRY(norm_part_backward_bf16, 256, NormPart<bf16>, norm_part_backward<bf16>)
