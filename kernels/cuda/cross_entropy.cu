// Cross entropy over logits of which this rank has some columns, without storing probabilities.
//
// A token's loss is ln sum_j e^(z_j - m) + m - z_t. Each rank finds maximum, sum and target's logit of its columns; the ranks
// join those three numbers per token; the gradient e^(z - m) / sum - [j = t] then replaces the logits in place. So the
// logits, the largest tensor of a step, are read twice and written once, and nothing of their size is allocated.

template <typename T> struct CrossEntropy {
    T* logits;             // tokens x width
    const u32* targets;    // tokens
    float* maximum;        // tokens
    float* sum;            // tokens: sum of e^(z - maximum)
    float* target;         // tokens: the target's logit, 0 if another rank has it
    int tokens, width;
    int first, valid;      // the columns are entries first .. first + valid; those behind only fill up
    float scale;           // of the gradient
};

// 1. A warp per token, the row read twice: for its maximum, then for the sum.
template <typename T> DEVICE void loss_statistics_simple(const CrossEntropy<T>& a) {
    int token = blockIdx.x * warps() + warp();
    if (token >= a.tokens) return;
    const T* row = a.logits + (i64)token * a.width;
    float maximum = LEAST, sum = 0.0f;
    for (int column = lane(); column < a.valid; column += 32) maximum = fmaxf(maximum, wide(row[column]));
    maximum = warp_max(maximum);
    for (int column = lane(); column < a.valid; column += 32) sum += fast_exp(wide(row[column]) - maximum);
    sum = warp_sum(sum);
    if (lane() == 0) {
        u32 own = a.targets[token] - (u32)a.first;
        a.maximum[token] = maximum;
        a.sum[token] = sum;
        a.target[token] = own < (u32)a.valid ? wide(row[own]) : 0.0f;
    }
}

// 2. A block per token and one reading: each thread keeps a running maximum and the sum relative to it, and takes the
// maximum over its 16 bytes first, so that there is one more exponential per pack, not per number. A row of 50304 bf16
// logits is 100 kB: with 256 threads 25 packs each. Few registers, so 8 blocks run on a multiprocessor and hide latency.
template <typename T> DEVICE void loss_statistics_packed(const CrossEntropy<T>& a) {
    __shared__ float scratch[32];
    const int size = Pack<T>::size;
    const T* row = a.logits + (i64)blockIdx.x * a.width;
    float maximum = LEAST, sum = 0.0f;
    for (int column = threadIdx.x * size; column < a.valid; column += blockDim.x * size) {
        Pack<T> z = load_pack(row + column);
        float own = maximum, x[size];
#pragma unroll
        for (int i = 0; i < size; ++i) {
            // A choice, not a branch: e^-infinity is 0.
            x[i] = column + i < a.valid ? wide(z.at[i]) : -INFINITY;
            own = fmaxf(own, x[i]);
        }
        sum *= fast_exp(maximum - own);
        maximum = own;
#pragma unroll
        for (int i = 0; i < size; ++i) sum += fast_exp2(x[i] * LOG2_E - own * LOG2_E);
    }
    float largest = block_max(maximum, scratch);
    sum = block_sum(sum * fast_exp(maximum - largest), scratch);
    if (threadIdx.x == 0) {
        u32 own = a.targets[blockIdx.x] - (u32)a.first;
        a.maximum[blockIdx.x] = largest;
        a.sum[blockIdx.x] = sum;
        a.target[blockIdx.x] = own < (u32)a.valid ? wide(row[own]) : 0.0f;
    }
}

// The gradient in place; maximum and sum are those over all ranks' columns. 1. A thread per number, for rows of any width.
template <typename T> DEVICE void loss_gradient_simple(const CrossEntropy<T>& a) {
    T* row = a.logits + (i64)blockIdx.x * a.width;
    float maximum = a.maximum[blockIdx.x], factor = a.scale / a.sum[blockIdx.x];
    u32 own = a.targets[blockIdx.x] - (u32)a.first;
    for (int column = threadIdx.x; column < a.width; column += blockDim.x) {
        float gradient = fast_exp(wide(row[column]) - maximum) * factor;
        if ((u32)column == own) gradient -= a.scale;
        row[column] = narrow<T>(column < a.valid ? gradient : 0.0f);
    }
}

// 2. 16 bytes a thread.
template <typename T> DEVICE void loss_gradient_packed(const CrossEntropy<T>& a) {
    const int size = Pack<T>::size;
    T* row = a.logits + (i64)blockIdx.x * a.width;
    float maximum = a.maximum[blockIdx.x], factor = a.scale / a.sum[blockIdx.x];
    u32 own = a.targets[blockIdx.x] - (u32)a.first;
    for (int column = threadIdx.x * size; column < a.width; column += blockDim.x * size) {
        Pack<T> z = load_pack(row + column);
#pragma unroll
        for (int i = 0; i < size; ++i) {
            float gradient = fast_exp(wide(z.at[i]) - maximum) * factor;
            if ((u32)(column + i) == own) gradient -= a.scale;
            z.at[i] = narrow<T>(column + i < a.valid ? gradient : 0.0f);
        }
        store_pack(row + column, z);
    }
}

ENTRY(loss_statistics_simple_f32, 256, CrossEntropy<float>, loss_statistics_simple<float>)
ENTRY(loss_statistics_simple_bf16, 256, CrossEntropy<bf16>, loss_statistics_simple<bf16>)
ENTRY(loss_statistics_packed_f32, 256, CrossEntropy<float>, loss_statistics_packed<float>)
ENTRY(loss_statistics_packed_bf16, 256, CrossEntropy<bf16>, loss_statistics_packed<bf16>)
ENTRY(loss_gradient_simple_f32, 256, CrossEntropy<float>, loss_gradient_simple<float>)
ENTRY(loss_gradient_simple_bf16, 256, CrossEntropy<bf16>, loss_gradient_simple<bf16>)
ENTRY(loss_gradient_packed_f32, 256, CrossEntropy<float>, loss_gradient_packed<float>)
ENTRY(loss_gradient_packed_bf16, 256, CrossEntropy<bf16>, loss_gradient_packed<bf16>)

struct JoinMaxima {
    const float* maxima;   // ranks x tokens
    float* maximum;        // tokens: this rank's, replaced by that of all
    float* sum;            // tokens: this rank's, below its own maximum before and that of all afterwards
    int ranks, tokens;
};

// The first of the three numbers over all ranks' columns. Sums and targets' logits are added up after that.
KERNEL(join_maxima, 256, JoinMaxima) {
    int token = (int)global_thread();
    if (token >= a.tokens) return;
    float own = a.maximum[token], maximum = own;
    for (int rank = 0; rank < a.ranks; ++rank) maximum = fmaxf(maximum, a.maxima[(i64)rank * a.tokens + token]);
    a.maximum[token] = maximum;
    // A rank whose columns only fill up has no logit at all.
    a.sum[token] = own == LEAST ? 0.0f : a.sum[token] * fast_exp(own - maximum);
}

struct LossSum {
    const float* maximum;  // tokens
    const float* sum;
    const float* target;
    double* out;           // one: the sum of the tokens' losses
    int tokens;
};

// One block: a microbatch has some ten thousand tokens. The order of additions is the same in every run.
KERNEL(loss_sum, 1024, LossSum) {
    __shared__ double scratch[32];
    double total = 0.0;
    for (int token = threadIdx.x; token < a.tokens; token += blockDim.x)
        total += (double)logf(a.sum[token]) + (double)a.maximum[token] - (double)a.target[token];
    total = block_sum(total, scratch);
    if (threadIdx.x == 0) *a.out = total;
}
