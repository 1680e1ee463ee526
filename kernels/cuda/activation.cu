// The nonlinearities of feed-forward layers with their bias, alone or with a gate; and additions past a sublayer.
//
// GELU by tanh: x/2 (1 + tanh u), u = sqrt(2/pi) (x + 0.044715 x^3); SiLU: x sigmoid x; ReLU and its square. Gated rows hold
// the gate's half first: out = f(gate + bias) (up + bias). Memory-bound: about 20 operations per number against 4 bytes of
// bf16 traffic are still under what the chip does in that time, as long as exp and division go to the special-function unit.

struct Gelu {
    DEVICE static float inner(float x) { return 0.7978845608f * (x + 0.044715f * x * x * x); }
    DEVICE static float value(float x) { return 0.5f * x * (1.0f + fast_tanh(inner(x))); }
    DEVICE static float slope(float x) {
        float tanh = fast_tanh(inner(x));
        float inner_slope = 0.7978845608f * (1.0f + 0.134145f * x * x);
        return 0.5f * (1.0f + tanh) + 0.5f * x * (1.0f - tanh * tanh) * inner_slope;
    }
};

struct Silu {
    DEVICE static float value(float x) { return x * sigmoid(x); }
    DEVICE static float slope(float x) {
        float s = sigmoid(x);
        return s * (1.0f + x * (1.0f - s));
    }
};

struct Relu {
    DEVICE static float value(float x) { return fmaxf(x, 0.0f); }
    DEVICE static float slope(float x) { return x > 0.0f ? 1.0f : 0.0f; }
};

struct SquaredRelu {
    DEVICE static float value(float x) { return fmaxf(x, 0.0f) * fmaxf(x, 0.0f); }
    DEVICE static float slope(float x) { return 2.0f * fmaxf(x, 0.0f); }
};

template <typename T> struct Activation {
    const T* x;            // rows x (width, or 2 width with a gate)
    const T* bias;         // a row's, or null
    const T* out_gradient; // rows x width; backward only
    T* out;                // forward: rows x width; backward: the gradient of x
    int rows, width;
    int gated;
};

// 1. A thread per output number.
template <typename T, typename F> DEVICE void activation_forward_simple(const Activation<T>& a) {
    i64 total = (i64)a.rows * a.width;
    for (i64 index = global_thread(); index < total; index += all_threads()) {
        int column = (int)(index % a.width);
        const T* row = a.x + index / a.width * (a.gated ? 2 * a.width : a.width);
        float y = F::value(wide(row[column]) + (a.bias ? wide(a.bias[column]) : 0.0f));
        if (a.gated) y *= wide(row[column + a.width]) + (a.bias ? wide(a.bias[column + a.width]) : 0.0f);
        a.out[index] = narrow<T>(y);
    }
}

template <typename T, typename F> DEVICE void activation_backward_simple(const Activation<T>& a) {
    i64 total = (i64)a.rows * a.width;
    for (i64 index = global_thread(); index < total; index += all_threads()) {
        int column = (int)(index % a.width);
        i64 row = index / a.width * (a.gated ? 2 * a.width : a.width);
        float x = wide(a.x[row + column]) + (a.bias ? wide(a.bias[column]) : 0.0f), dy = wide(a.out_gradient[index]);
        float up = 1.0f;
        if (a.gated) {
            up = wide(a.x[row + column + a.width]) + (a.bias ? wide(a.bias[column + a.width]) : 0.0f);
            a.out[row + column + a.width] = narrow<T>(dy * F::value(x));
        }
        a.out[row + column] = narrow<T>(dy * F::slope(x) * up);
    }
}

// 2. 16 bytes a thread. blockIdx.y is the row, so that no thread divides 64-bit numbers, which costs tens of instructions,
// more than the function itself.
template <typename T> DEVICE void load_with_bias(float* x, const T* from, const T* bias) {
    Pack<T> own = load_pack(from), other = {};
    if (bias) other = load_pack(bias);
#pragma unroll
    for (int i = 0; i < Pack<T>::size; ++i) x[i] = wide(own.at[i]) + wide(other.at[i]);
}

template <typename T, typename F> DEVICE void activation_forward_packed(const Activation<T>& a) {
    const int size = Pack<T>::size;
    int column = (blockIdx.x * blockDim.x + threadIdx.x) * size;
    if (column >= a.width) return;
    for (int row = blockIdx.y; row < a.rows; row += gridDim.y) {
        const T* from = a.x + (i64)row * (a.gated ? 2 * a.width : a.width) + column;
        float x[size], up[size];
        load_with_bias(x, from, a.bias ? a.bias + column : nullptr);
        if (a.gated) load_with_bias(up, from + a.width, a.bias ? a.bias + column + a.width : nullptr);
        Pack<T> out;
#pragma unroll
        for (int i = 0; i < size; ++i) out.at[i] = narrow<T>(F::value(x[i]) * (a.gated ? up[i] : 1.0f));
        store_pack(a.out + (i64)row * a.width + column, out);
    }
}

template <typename T, typename F> DEVICE void activation_backward_packed(const Activation<T>& a) {
    const int size = Pack<T>::size;
    int column = (blockIdx.x * blockDim.x + threadIdx.x) * size;
    if (column >= a.width) return;
    for (int row = blockIdx.y; row < a.rows; row += gridDim.y) {
        i64 at = (i64)row * (a.gated ? 2 * a.width : a.width) + column;
        float x[size], up[size];
        load_with_bias(x, a.x + at, a.bias ? a.bias + column : nullptr);
        if (a.gated) load_with_bias(up, a.x + at + a.width, a.bias ? a.bias + column + a.width : nullptr);
        Pack<T> dy = load_pack(a.out_gradient + (i64)row * a.width + column), to_gate, to_up;
#pragma unroll
        for (int i = 0; i < size; ++i) {
            to_gate.at[i] = narrow<T>(wide(dy.at[i]) * F::slope(x[i]) * (a.gated ? up[i] : 1.0f));
            to_up.at[i] = narrow<T>(wide(dy.at[i]) * F::value(x[i]));
        }
        store_pack(a.out + at, to_gate);
        if (a.gated) store_pack(a.out + at + a.width, to_up);
    }
}

#define ACTIVATION(name, F, suffix, T)                                                                       \
    DEVICE void name##_fs_##suffix(const Activation<T>& a) { activation_forward_simple<T, F>(a); }            \
    DEVICE void name##_bs_##suffix(const Activation<T>& a) { activation_backward_simple<T, F>(a); }           \
    DEVICE void name##_fp_##suffix(const Activation<T>& a) { activation_forward_packed<T, F>(a); }            \
    DEVICE void name##_bp_##suffix(const Activation<T>& a) { activation_backward_packed<T, F>(a); }           \
    ENTRY(name##_forward_simple_##suffix, 256, Activation<T>, name##_fs_##suffix)                             \
    ENTRY(name##_backward_simple_##suffix, 256, Activation<T>, name##_bs_##suffix)                            \
    ENTRY(name##_forward_packed_##suffix, 256, Activation<T>, name##_fp_##suffix)                             \
    ENTRY(name##_backward_packed_##suffix, 256, Activation<T>, name##_bp_##suffix)

ACTIVATION(gelu, Gelu, f32, float)
ACTIVATION(gelu, Gelu, bf16, bf16)
ACTIVATION(silu, Silu, f32, float)
ACTIVATION(silu, Silu, bf16, bf16)
ACTIVATION(relu, Relu, f32, float)
ACTIVATION(relu, Relu, bf16, bf16)
ACTIVATION(squared_relu, SquaredRelu, f32, float)
ACTIVATION(squared_relu, SquaredRelu, bf16, bf16)

template <typename T> struct Residual {
    const T* x;            // rows x width
    const T* bias;         // width, or null
    const T* residual;     // rows x width, or null
    T* out;                // rows x width; may be x or residual
    int rows, width;
};

// The end of a sublayer: its output, its bias, and what came past it, each read once. Where a norm follows,
// norm_forward of norm.cu does the addition on the way.
template <typename T> DEVICE void residual_packed(const Residual<T>& a) {
    const int size = Pack<T>::size;
    int column = (blockIdx.x * blockDim.x + threadIdx.x) * size;
    if (column >= a.width) return;
    for (int row = blockIdx.y; row < a.rows; row += gridDim.y) {
        i64 at = (i64)row * a.width + column;
        float x[size];
        load_with_bias(x, a.x + at, a.bias ? a.bias + column : nullptr);
        Pack<T> past = {}, out;
        if (a.residual) past = load_pack(a.residual + at);
#pragma unroll
        for (int i = 0; i < size; ++i) out.at[i] = narrow<T>(x[i] + wide(past.at[i]));
        store_pack(a.out + at, out);
    }
}

template <typename T> DEVICE void residual_simple(const Residual<T>& a) {
    i64 total = (i64)a.rows * a.width;
    for (i64 index = global_thread(); index < total; index += all_threads()) {
        float x = wide(a.x[index]);
        if (a.bias) x += wide(a.bias[index % a.width]);
        if (a.residual) x += wide(a.residual[index]);
        a.out[index] = narrow<T>(x);
    }
}

ENTRY(residual_simple_f32, 256, Residual<float>, residual_simple<float>)
ENTRY(residual_simple_bf16, 256, Residual<bf16>, residual_simple<bf16>)
ENTRY(residual_packed_f32, 256, Residual<float>, residual_packed<float>)
ENTRY(residual_packed_bf16, 256, Residual<bf16>, residual_packed<bf16>)
