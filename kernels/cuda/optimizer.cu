// Optimizers over all parameters of a rank in one launch.
//
// A list of chunks of at most CHUNK elements, each of one tensor, is made once; block i does chunk i, so a launch takes any
// number of tensors of any size, and a block never straddles two. Per parameter AdamW reads weight, gradient and two moments
// (16 bytes) and writes weight, two moments and the bf16 copy (14 bytes): memory-bound by far. Threads take four numbers, so
// that each access to f32 is 16 bytes, and a block of 256 threads walks a chunk of 16384 numbers in 16 steps.

#define CHUNK 16384

struct Chunk {
    float* weight;
    const float* gradient;
    float* first;          // momentum, or null for none; AdamW's and LAMB's first moment
    float* second;         // second moment, or null
    bf16* copy;            // the copy that forward and backward read, or null
    int count;
    int tensor;            // which tensor's norms it adds to
    float decay;           // weight decay: 0 for biases and gains
    int unused;
};

// The scalars that change from step to step. They are in memory, so that all steps have the same launches.
struct StepScalars {
    float rate;
    float correction1, correction2;  // 1 - beta1^t, 1 - beta2^t
};

struct Optimizer {
    const Chunk* chunks;
    const float* factor;   // [0] multiplies gradients: clipping and loss scale
    const StepScalars* scalars;
    double* partial;       // chunks x 2: sums of squares of weights and of updates
    const float* ratios;   // per tensor: the trust ratio
    float beta1, beta2, epsilon;
    float trust;           // LARS' coefficient
    int coupled;           // adamw only. 1: weight decay is part of the gradient, as in Adam
};

struct alignas(16) Four {
    float at[4];
};

struct alignas(8) FourHalves {
    bf16 at[4];
};

// A thread's places in a chunk, four numbers each.
#define FOR_FOURS(chunk) for (int index = threadIdx.x * 4; index < (chunk).count; index += blockDim.x * 4)

// Four numbers, fewer at the end of a tensor. Chunks are 16-byte aligned, as tensors are. The loops over what is left
// are unrolled: an index known only at run time would put the four numbers into memory.
DEVICE Four load_four(const float* from, int left) {
    if (left >= 4) return *reinterpret_cast<const Four*>(from);
    Four x = {};
#pragma unroll
    for (int i = 0; i < 3; ++i)
        if (i < left) x.at[i] = from[i];
    return x;
}

DEVICE void store_four(float* to, const Four& x, int left) {
    if (left >= 4) {
        *reinterpret_cast<Four*>(to) = x;
    } else {
#pragma unroll
        for (int i = 0; i < 3; ++i)
            if (i < left) to[i] = x.at[i];
    }
}

DEVICE void store_copy(bf16* to, const Four& x, int left) {
    if (left >= 4) {
        FourHalves halves;
#pragma unroll
        for (int i = 0; i < 4; ++i) halves.at[i] = narrow<bf16>(x.at[i]);
        *reinterpret_cast<FourHalves*>(to) = halves;
    } else {
#pragma unroll
        for (int i = 0; i < 3; ++i)
            if (i < left) to[i] = narrow<bf16>(x.at[i]);
    }
}

// m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g^2; w = w (1 - rate decay) - rate m^ / (sqrt v^ + epsilon). Coupled, the decay is
// in g instead: g += decay w.
KERNEL(adamw, 256, Optimizer) {
    const Chunk p = a.chunks[blockIdx.x];
    const StepScalars scalars = *a.scalars;
    float factor = a.factor[0], step = scalars.rate / scalars.correction1, root = inverse_root(scalars.correction2);
    float in_gradient = a.coupled ? p.decay : 0.0f, decoupled = a.coupled ? 0.0f : scalars.rate * p.decay;
    FOR_FOURS(p) {
        int left = p.count - index;
        Four w = load_four(p.weight + index, left), g = load_four(p.gradient + index, left);
        Four m = load_four(p.first + index, left), v = load_four(p.second + index, left);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            float gradient = g.at[i] * factor + in_gradient * w.at[i];
            m.at[i] = a.beta1 * m.at[i] + (1.0f - a.beta1) * gradient;
            v.at[i] = a.beta2 * v.at[i] + (1.0f - a.beta2) * gradient * gradient;
            w.at[i] = w.at[i] * (1.0f - decoupled) - step * m.at[i] / (sqrtf(v.at[i]) * root + a.epsilon);
        }
        store_four(p.weight + index, w, left);
        store_four(p.first + index, m, left);
        store_four(p.second + index, v, left);
        if (p.copy) store_copy(p.copy + index, w, left);
    }
}

// g += decay w; v = b1 v + g; w -= rate v. Without a place for v, w -= rate g.
KERNEL(momentum, 256, Optimizer) {
    const Chunk p = a.chunks[blockIdx.x];
    float factor = a.factor[0], rate = a.scalars->rate;
    FOR_FOURS(p) {
        int left = p.count - index;
        Four w = load_four(p.weight + index, left), g = load_four(p.gradient + index, left);
        Four v = {};
        if (p.first) v = load_four(p.first + index, left);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            v.at[i] = a.beta1 * v.at[i] + g.at[i] * factor + p.decay * w.at[i];
            w.at[i] -= rate * v.at[i];
        }
        store_four(p.weight + index, w, left);
        if (p.first) store_four(p.first + index, v, left);
        if (p.copy) store_copy(p.copy + index, w, left);
    }
}

DEVICE float lamb_direction(const Optimizer& a, const StepScalars& scalars, float m, float v, float w, float decay) {
    return m / scalars.correction1 / (sqrtf(v / scalars.correction2) + a.epsilon) + decay * w;
}

// LAMB (You et al. 2019, arXiv 1904.00962) and LARS (You et al. 2017, arXiv 1708.03888) scale each tensor's step by a ratio of
// norms, so they take two launches over the parameters and a small one between: norms, ratios, steps. LAMB's first launch
// updates the moments; its direction is made again from them in the second, which reads 12 bytes per parameter: storing
// it would write 4 and read 4 instead of reading 8, and take the memory of a third moment.
DEVICE void put_norms(const Optimizer& a, float weights, float updates) {
    __shared__ float scratch[32];
    float weight = block_sum(weights, scratch), update = block_sum(updates, scratch);
    if (threadIdx.x == 0) {
        a.partial[2 * blockIdx.x] = (double)weight;
        a.partial[2 * blockIdx.x + 1] = (double)update;
    }
}

KERNEL(lamb_norms, 256, Optimizer) {
    const Chunk p = a.chunks[blockIdx.x];
    const StepScalars scalars = *a.scalars;
    float factor = a.factor[0], weights = 0.0f, updates = 0.0f;
    FOR_FOURS(p) {
        int left = p.count - index;
        Four w = load_four(p.weight + index, left), g = load_four(p.gradient + index, left);
        Four m = load_four(p.first + index, left), v = load_four(p.second + index, left);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            float gradient = g.at[i] * factor;
            m.at[i] = a.beta1 * m.at[i] + (1.0f - a.beta1) * gradient;
            v.at[i] = a.beta2 * v.at[i] + (1.0f - a.beta2) * gradient * gradient;
            float direction = lamb_direction(a, scalars, m.at[i], v.at[i], w.at[i], p.decay);
            weights += w.at[i] * w.at[i];
            updates += direction * direction;
        }
        store_four(p.first + index, m, left);
        store_four(p.second + index, v, left);
    }
    put_norms(a, weights, updates);
}

KERNEL(lamb_step, 256, Optimizer) {
    const Chunk p = a.chunks[blockIdx.x];
    const StepScalars scalars = *a.scalars;
    float rate = scalars.rate * a.ratios[p.tensor];
    FOR_FOURS(p) {
        int left = p.count - index;
        Four w = load_four(p.weight + index, left);
        Four m = load_four(p.first + index, left), v = load_four(p.second + index, left);
#pragma unroll
        for (int i = 0; i < 4; ++i) w.at[i] -= rate * lamb_direction(a, scalars, m.at[i], v.at[i], w.at[i], p.decay);
        store_four(p.weight + index, w, left);
        if (p.copy) store_copy(p.copy + index, w, left);
    }
}

KERNEL(lars_norms, 256, Optimizer) {
    const Chunk p = a.chunks[blockIdx.x];
    float factor = a.factor[0], weights = 0.0f, updates = 0.0f;
    FOR_FOURS(p) {
        int left = p.count - index;
        Four w = load_four(p.weight + index, left), g = load_four(p.gradient + index, left);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            weights += w.at[i] * w.at[i];
            updates += g.at[i] * factor * g.at[i] * factor;
        }
    }
    put_norms(a, weights, updates);
}

// v = b1 v + rate ratio (g + decay w); w -= v.
KERNEL(lars_step, 256, Optimizer) {
    const Chunk p = a.chunks[blockIdx.x];
    float factor = a.factor[0], rate = a.scalars->rate * a.ratios[p.tensor];
    FOR_FOURS(p) {
        int left = p.count - index;
        Four w = load_four(p.weight + index, left), g = load_four(p.gradient + index, left);
        Four v = load_four(p.first + index, left);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            v.at[i] = a.beta1 * v.at[i] + rate * (g.at[i] * factor + p.decay * w.at[i]);
            w.at[i] -= v.at[i];
        }
        store_four(p.weight + index, w, left);
        store_four(p.first + index, v, left);
        if (p.copy) store_copy(p.copy + index, w, left);
    }
}

struct TrustRatios {
    const double* partial; // chunks x 2
    const u32* starts;     // tensors + 1: where each tensor's chunks begin
    const float* decays;   // per tensor
    float* ratios;         // per tensor
    int tensors;
    int lars;              // 1: trust |w| / (|g| + decay |w|); 0: |w| / |u|
    float trust;
};

// A thread per tensor adds up its chunks in order. A norm of 0 gives the ratio 1, and so does a tensor without chunks.
KERNEL(trust_ratios, 128, TrustRatios) {
    int tensor = (int)global_thread();
    if (tensor >= a.tensors) return;
    double weight = 0.0, update = 0.0;
    for (u32 chunk = a.starts[tensor]; chunk < a.starts[tensor + 1]; ++chunk) {
        weight += a.partial[2 * chunk];
        update += a.partial[2 * chunk + 1];
    }
    if (!(weight > 0.0 && update > 0.0)) {
        a.ratios[tensor] = 1.0f;
    } else if (a.lars) {
        double norm = sqrt(weight);
        a.ratios[tensor] = (float)(a.trust * norm / (sqrt(update) + a.decays[tensor] * norm));
    } else {
        a.ratios[tensor] = (float)sqrt(weight / update);
    }
}
