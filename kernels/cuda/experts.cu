// Mixture of experts: routing, sorting tokens by expert, moving rows there and back. Their products are in grouped.cu.
//
// A token's row goes to the `chosen` experts with the largest router logits. Choices (token, expert) are sorted by expert,
// those of an expert in token order, so that each expert has a matrix of rows next to each other and sums have one order.

struct Routing {
    const float* logits;     // tokens x experts
    u32* experts;            // tokens x chosen: which
    float* weights;          // tokens x chosen: softmax over all experts, or over the chosen ones
    float* probabilities;    // tokens x experts, or null: for the balance loss and backward
    int tokens, count, chosen;
    int among_chosen;        // 1: the weights of a token's chosen experts add up to 1
};

// A warp per token; lanes share the experts, up to 512 of them. Each of `chosen` rounds takes the largest logit left, the
// lower expert of equals: 5 exchanges a round, in registers.
#define LANE_EXPERTS 16
KERNEL(route, 256, Routing) {
    int token = blockIdx.x * warps() + warp();
    if (token >= a.tokens) return;
    float z[LANE_EXPERTS], maximum = LEAST, sum = 0.0f;
#pragma unroll
    for (int i = 0; i < LANE_EXPERTS; ++i) {
        int expert = lane() + 32 * i;
        z[i] = expert < a.count ? a.logits[(i64)token * a.count + expert] : -INFINITY;
        maximum = fmaxf(maximum, z[i]);
    }
    maximum = warp_max(maximum);
#pragma unroll
    for (int i = 0; i < LANE_EXPERTS; ++i) sum += fast_exp(z[i] - maximum);
    sum = warp_sum(sum);
    if (a.probabilities) {
#pragma unroll
        for (int i = 0; i < LANE_EXPERTS; ++i) {
            int expert = lane() + 32 * i;
            if (expert < a.count) a.probabilities[(i64)token * a.count + expert] = fast_exp(z[i] - maximum) / sum;
        }
    }
    float kept = 0.0f;
    for (int round = 0; round < a.chosen; ++round) {
        float best = -INFINITY;
        int which = 0x7fffffff;
#pragma unroll
        for (int i = 0; i < LANE_EXPERTS; ++i) {
            if (z[i] > best) {
                best = z[i];
                which = lane() + 32 * i;
            }
        }
        for (int offset = 16; offset > 0; offset /= 2) {
            float other = __shfl_xor_sync(FULL_WARP, best, offset);
            int expert = __shfl_xor_sync(FULL_WARP, which, offset);
            if (other > best || (other == best && expert < which)) {
                best = other;
                which = expert;
            }
        }
        // If all logits left are NaN, any expert will do: its weight is NaN, which the run reports.
        if (which >= a.count) which = round;
#pragma unroll
        for (int i = 0; i < LANE_EXPERTS; ++i)
            if (lane() + 32 * i == which) z[i] = -INFINITY;
        float weight = fast_exp(best - maximum);
        kept += weight;
        if (lane() == 0) {
            a.experts[(i64)token * a.chosen + round] = (u32)which;
            a.weights[(i64)token * a.chosen + round] = weight / sum;
        }
    }
    // The lane that wrote the weights normalises them.
    if (a.among_chosen && lane() == 0) {
        for (int round = 0; round < a.chosen; ++round) a.weights[(i64)token * a.chosen + round] *= sum / kept;
    }
}

struct Sort {
    const u32* keys;   // count
    u32* counts;       // blocks x buckets, later where each block's share of each bucket begins
    u32* starts;       // buckets + 1
    u32* order;        // count: indices sorted by key, equal keys in their old order
    int count, buckets;
    int first;         // keys first .. first + buckets; others are left out
    int share;         // keys of a block
};

// A counting sort that is stable, in three launches. 1: each block counts the keys of its share.
KERNEL(sort_count, 256, Sort) {
    u32* counts = a.counts + (i64)blockIdx.x * a.buckets;
    for (int bucket = threadIdx.x; bucket < a.buckets; bucket += blockDim.x) counts[bucket] = 0;
    __syncthreads();
    int begin = blockIdx.x * a.share, end = min(begin + a.share, a.count);
    for (int index = begin + threadIdx.x; index < end; index += blockDim.x) {
        u32 key = a.keys[index] - (u32)a.first;
        if (key < (u32)a.buckets) atomicAdd(counts + key, 1u);
    }
}

// 2: one block makes counts into beginnings: by bucket, then by block. Neighbouring threads take neighbouring buckets, as many of
// them at a time as there are threads, so that a warp reads and writes full cache lines.
KERNEL(sort_scan, 1024, Sort) {
    __shared__ u32 sums[32];
    int blocks = (a.count + a.share - 1) / a.share;
    u32 before = 0;
    for (int first = 0; first < a.buckets; first += blockDim.x) {
        int bucket = first + threadIdx.x;
        u32 own = 0;
        if (bucket < a.buckets)
            for (int block = 0; block < blocks; ++block) own += a.counts[(i64)block * a.buckets + bucket];
        // The sum of a warp's buckets up to the own one, then those of the warps before it.
        u32 sum = own;
        for (int offset = 1; offset < 32; offset *= 2) {
            u32 other = __shfl_sync(FULL_WARP, sum, (lane() - offset) & 31);
            if (lane() >= offset) sum += other;
        }
        if (lane() == 31) sums[warp()] = sum;
        __syncthreads();
        u32 at = before + sum - own;
        for (int other = 0; other < warps(); ++other) {
            if (other < warp()) at += sums[other];
            before += sums[other];
        }
        if (bucket < a.buckets) {
            a.starts[bucket] = at;
            for (int block = 0; block < blocks; ++block) {
                u32 count = a.counts[(i64)block * a.buckets + bucket];
                a.counts[(i64)block * a.buckets + bucket] = at;
                at += count;
            }
        }
        __syncthreads();
    }
    if (threadIdx.x == 0) a.starts[a.buckets] = before;
}

// 3: one warp per block's share puts its keys in place, 32 at a time. A lane's rank among the lanes with its key is the
// number of those lanes before it, so equal keys keep their order.
KERNEL(sort_place, 32, Sort) {
    u32* next = a.counts + (i64)blockIdx.x * a.buckets;
    int begin = blockIdx.x * a.share, end = min(begin + a.share, a.count);
    for (int base = begin; base < end; base += 32) {
        int index = base + lane();
        u32 key = index < end ? a.keys[index] - (u32)a.first : 0xffffffffu;
        bool inside = key < (u32)a.buckets;
        u32 before = 0, all = 0;
        for (int other = 0; other < 32; ++other) {
            u32 same = __shfl_sync(FULL_WARP, key, other) == key ? 1u : 0u;
            all += same;
            if (other < lane()) before += same;
        }
        u32 place = inside ? next[key] + before : 0;
        __syncwarp();
        if (inside) {
            a.order[place] = (u32)index;
            if (before + 1 == all) next[key] = place + 1;
        }
        __syncwarp();
    }
}

template <typename T> struct Permutation {
    const T* x;            // rows to read
    const u32* order;      // choices by place: order[place] = token * chosen + round
    const u32* places;     // its inverse: where each choice went; 0xffffffff for one that was dropped
    const float* weights;  // tokens x chosen, or null for 1
    T* out;
    const T* other;        // weight gradients only: the experts' outputs by place
    float* weight_gradients;  // tokens x chosen
    int rows;              // places, or tokens
    int chosen, width;
};

// out[place] = x[token of the place], times the choice's weight where there is one: to the experts in forward, and the
// gradient of what they made in backward. A block per row, 16 bytes a thread.
template <typename T> DEVICE void gather_rows(const Permutation<T>& a) {
    const int size = Pack<T>::size;
    u32 choice = a.order[blockIdx.x];
    const T* from = a.x + (i64)(choice / a.chosen) * a.width;
    float weight = a.weights ? a.weights[choice] : 1.0f;
    for (int column = threadIdx.x * size; column < a.width; column += blockDim.x * size) {
        Pack<T> x = load_pack(from + column);
        if (a.weights) {
#pragma unroll
            for (int i = 0; i < size; ++i) x.at[i] = narrow<T>(wide(x.at[i]) * weight);
        }
        store_pack(a.out + (i64)blockIdx.x * a.width + column, x);
    }
}

// out[token] = sum over its choices of weight x[place]: the experts' outputs joined, and in backward (without weights) the
// gradient of the token's row. Every token gathers, so nothing is added atomically.
template <typename T> DEVICE void combine_rows(const Permutation<T>& a) {
    const int size = Pack<T>::size;
    for (int column = threadIdx.x * size; column < a.width; column += blockDim.x * size) {
        float sums[size] = {};
        for (int round = 0; round < a.chosen; ++round) {
            i64 choice = (i64)blockIdx.x * a.chosen + round;
            u32 place = a.places[choice];
            if (place == 0xffffffffu) continue;
            float weight = a.weights ? a.weights[choice] : 1.0f;
            Pack<T> x = load_pack(a.x + (i64)place * a.width + column);
#pragma unroll
            for (int i = 0; i < size; ++i) sums[i] += weight * wide(x.at[i]);
        }
        Pack<T> out;
#pragma unroll
        for (int i = 0; i < size; ++i) out.at[i] = narrow<T>(sums[i]);
        store_pack(a.out + (i64)blockIdx.x * a.width + column, out);
    }
}

// The gradient of a choice's weight: the output gradient of its token times what its expert made. A warp per choice.
template <typename T> DEVICE void weight_gradients(const Permutation<T>& a) {
    int choice = blockIdx.x * warps() + warp();
    if (choice >= a.rows * a.chosen) return;
    u32 place = a.places[choice];
    float sum = 0.0f;
    if (place != 0xffffffffu) {
        for (int column = lane(); column < a.width; column += 32)
            sum += wide(a.x[(i64)(choice / a.chosen) * a.width + column]) * wide(a.other[(i64)place * a.width + column]);
    }
    sum = warp_sum(sum);
    if (lane() == 0) a.weight_gradients[choice] = sum;
}

ENTRY(gather_rows_f32, 256, Permutation<float>, gather_rows<float>)
ENTRY(gather_rows_bf16, 256, Permutation<bf16>, gather_rows<bf16>)
ENTRY(combine_rows_f32, 256, Permutation<float>, combine_rows<float>)
ENTRY(combine_rows_bf16, 256, Permutation<bf16>, combine_rows<bf16>)
ENTRY(weight_gradients_f32, 256, Permutation<float>, weight_gradients<float>)
ENTRY(weight_gradients_bf16, 256, Permutation<bf16>, weight_gradients<bf16>)

struct Invert {
    const u32* order;      // places
    const u32* starts;     // its last entry is the number of places
    u32* places;           // choices, filled with 0xffffffff before
    int buckets;
};

KERNEL(invert_order, 256, Invert) {
    i64 place = global_thread();
    if (place < a.starts[a.buckets]) a.places[a.order[place]] = (u32)place;
}
