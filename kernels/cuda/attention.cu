// Attention that never stores the scores, forward and backward; several query heads may share a key and value head.
//
// One head: O = softmax(Q K^T / sqrt d) V. Forward keeps for each query the logarithm L of its sum of exponentials; backward
// makes P = e^(S - L) again: dV = P^T dO, dS = P (dO V^T - D), dQ = dS K / sqrt d, dK = dS^T Q / sqrt d, D the dot product of
// each row of dO with O's. Source: Dao 2023, arXiv 2307.08691, algorithms 1 and 2.
//
// Rows are tokens: row = position * batch + sequence; a head is `head_dim` columns of a row, and a row may hold queries, keys
// and values side by side. L and D are stored by sequence, head and position.

template <typename T> struct Attention {
    const T* q;            // first query head of row 0; rows are q_row numbers apart
    const T* k;
    const T* v;
    T* o;
    float* logarithms;     // batch x heads x queries
    const T* o_gradient;   // backward only, like o
    float* dots;           // D
    T* q_gradient;         // like q
    T* k_gradient;
    T* v_gradient;
    i64 q_row, k_row, v_row, o_row;   // numbers from a token to the next one
    int batch, heads, kv_heads;
    int queries, keys;     // positions
    int head_dim, value_head_dim;
    int causal;            // 1: query i sees keys up to i + offset
    int offset;
    float scale;           // 1 / sqrt d
    Drops drops;           // of the probabilities; version 1 alone knows of it
};

// Where things are: of a sequence, a head and a position.
#define Q_AT(position) (((i64)(position) * a.batch + sequence) * a.q_row + (i64)head * a.head_dim)
#define K_AT(position) (((i64)(position) * a.batch + sequence) * a.k_row + (i64)kv_head * a.head_dim)
#define V_AT(position) (((i64)(position) * a.batch + sequence) * a.v_row + (i64)kv_head * a.value_head_dim)
#define O_AT(position) (((i64)(position) * a.batch + sequence) * a.o_row + (i64)head * a.value_head_dim)
#define L_AT(position) (((i64)sequence * a.heads + head) * a.queries + (position))

// ---- 1. A warp per query, lanes share the columns of the head. -------------------------------------------------------
// Any head width up to 256, f32 and bf16: the reference on the GPU, and what runs where version 2 does not. Keys and values
// are read once per query, so it is bound by the L2 cache: queries * keys * 2 * head_dim numbers instead of one 64th.

//
// Dropout makes P into M P behind the softmax: O = (M P) V, dV = (M P)^T dO, dS = P (M (dO V^T) - D).

#define LANE_COLUMNS 8

// The hash of a sequence, a head and a query.
template <typename T> DEVICE u64 drop_row(const Attention<T>& a, int sequence, int head, int query) {
    u64 key = mix(a.drops.key ^ (u64)(a.drops.first[0] + sequence));
    return mix(mix(key ^ (u64)(a.drops.first[1] + head)) ^ (u64)(a.drops.first[2] + query));
}

// M of a query, by the hash of its row, and a key.
template <typename T> DEVICE float dropped(const Attention<T>& a, u64 row, int key) {
    return a.drops.threshold ? drop_factor(a.drops, row, a.drops.first[3] + key) : 1.0f;
}

template <typename T> DEVICE void load_head(float* x, const T* from, int width) {
#pragma unroll
    for (int i = 0; i < LANE_COLUMNS; ++i) {
        int column = lane() + 32 * i;
        x[i] = column < width ? wide(from[column]) : 0.0f;
    }
}

template <typename T> DEVICE void store_head(T* to, const float* x, int width) {
#pragma unroll
    for (int i = 0; i < LANE_COLUMNS; ++i) {
        int column = lane() + 32 * i;
        if (column < width) to[column] = narrow<T>(x[i]);
    }
}

template <typename T> DEVICE float dot_head(const float* x, const T* y, int width) {
    float other[LANE_COLUMNS], sum = 0.0f;
    load_head(other, y, width);
#pragma unroll
    for (int i = 0; i < LANE_COLUMNS; ++i) sum += x[i] * other[i];
    return warp_sum(sum);
}

template <typename T> DEVICE void attention_forward_simple(const Attention<T>& a) {
    int query = blockIdx.x * warps() + warp(), head = blockIdx.y, sequence = blockIdx.z;
    int kv_head = head / (a.heads / a.kv_heads);
    if (query >= a.queries) return;
    int end = a.causal ? min(query + a.offset + 1, a.keys) : a.keys;
    float q[LANE_COLUMNS], o[LANE_COLUMNS] = {}, v[LANE_COLUMNS], maximum = LEAST, sum = 0.0f;
    load_head(q, a.q + Q_AT(query), a.head_dim);
    u64 mask = drop_row(a, sequence, head, query);
    for (int key = 0; key < end; ++key) {
        float score = dot_head(q, a.k + K_AT(key), a.head_dim) * a.scale;
        float larger = fmaxf(maximum, score), factor = fast_exp(maximum - larger), p = fast_exp(score - larger);
        float kept = dropped(a, mask, key);
        load_head(v, a.v + V_AT(key), a.value_head_dim);
#pragma unroll
        for (int i = 0; i < LANE_COLUMNS; ++i) o[i] = o[i] * factor + p * kept * v[i];
        sum = sum * factor + p;
        maximum = larger;
    }
#pragma unroll
    for (int i = 0; i < LANE_COLUMNS; ++i) o[i] = sum > 0.0f ? o[i] / sum : 0.0f;
    store_head(a.o + O_AT(query), o, a.value_head_dim);
    if (lane() == 0) a.logarithms[L_AT(query)] = sum > 0.0f ? maximum + logf(sum) : LEAST;
}

// D of each query; a warp per query. Both versions of backward begin with it.
template <typename T> DEVICE void attention_dots(const Attention<T>& a) {
    int query = blockIdx.x * warps() + warp(), head = blockIdx.y, sequence = blockIdx.z;
    if (query >= a.queries) return;
    float o[LANE_COLUMNS];
    load_head(o, a.o + O_AT(query), a.value_head_dim);
    float dot = dot_head(o, a.o_gradient + O_AT(query), a.value_head_dim);
    if (lane() == 0) a.dots[L_AT(query)] = dot;
}

template <typename T> DEVICE void attention_queries_simple(const Attention<T>& a) {
    int query = blockIdx.x * warps() + warp(), head = blockIdx.y, sequence = blockIdx.z;
    int kv_head = head / (a.heads / a.kv_heads);
    if (query >= a.queries) return;
    int end = a.causal ? min(query + a.offset + 1, a.keys) : a.keys;
    float q[LANE_COLUMNS], o_gradient[LANE_COLUMNS], gradient[LANE_COLUMNS] = {}, k[LANE_COLUMNS];
    load_head(q, a.q + Q_AT(query), a.head_dim);
    load_head(o_gradient, a.o_gradient + O_AT(query), a.value_head_dim);
    float logarithm = a.logarithms[L_AT(query)], dot = a.dots[L_AT(query)];
    u64 mask = drop_row(a, sequence, head, query);
    for (int key = 0; key < end; ++key) {
        float p = fast_exp(dot_head(q, a.k + K_AT(key), a.head_dim) * a.scale - logarithm);
        float product = dot_head(o_gradient, a.v + V_AT(key), a.value_head_dim) * dropped(a, mask, key);
        float s = p * (product - dot) * a.scale;
        load_head(k, a.k + K_AT(key), a.head_dim);
#pragma unroll
        for (int i = 0; i < LANE_COLUMNS; ++i) gradient[i] += s * k[i];
    }
    store_head(a.q_gradient + Q_AT(query), gradient, a.head_dim);
}

template <typename T> DEVICE void attention_keys_simple(const Attention<T>& a) {
    int key = blockIdx.x * warps() + warp(), kv_head = blockIdx.y, sequence = blockIdx.z, shared = a.heads / a.kv_heads;
    if (key >= a.keys) return;
    float k[LANE_COLUMNS], v[LANE_COLUMNS], k_gradient[LANE_COLUMNS] = {}, v_gradient[LANE_COLUMNS] = {};
    float row[LANE_COLUMNS];
    load_head(k, a.k + K_AT(key), a.head_dim);
    load_head(v, a.v + V_AT(key), a.value_head_dim);
    for (int head = kv_head * shared; head < (kv_head + 1) * shared; ++head) {
        for (int query = a.causal ? max(key - a.offset, 0) : 0; query < a.queries; ++query) {
            const T* q = a.q + Q_AT(query);
            const T* o_gradient = a.o_gradient + O_AT(query);
            float p = fast_exp(dot_head(k, q, a.head_dim) * a.scale - a.logarithms[L_AT(query)]);
            float kept = dropped(a, drop_row(a, sequence, head, query), key);
            float s = p * (dot_head(v, o_gradient, a.value_head_dim) * kept - a.dots[L_AT(query)]) * a.scale;
            load_head(row, o_gradient, a.value_head_dim);
#pragma unroll
            for (int i = 0; i < LANE_COLUMNS; ++i) v_gradient[i] += p * kept * row[i];
            load_head(row, q, a.head_dim);
#pragma unroll
            for (int i = 0; i < LANE_COLUMNS; ++i) k_gradient[i] += s * row[i];
        }
    }
    store_head(a.k_gradient + K_AT(key), k_gradient, a.head_dim);
    store_head(a.v_gradient + V_AT(key), v_gradient, a.value_head_dim);
}

// Adds the attention of the same queries over other keys to the first one: L = ln(e^L1 + e^L2), O = e^(L1 - L) O1 +
// e^(L2 - L) O2. Keys that lie on several ranks come one part after the other. A warp per query and head: memory-bound.
template <typename T> struct Join {
    T* o;                  // tokens x o_row
    float* logarithms;     // batch x heads x queries
    const T* other;        // like o
    const float* other_logarithms;
    i64 o_row;
    int batch, heads, queries, value_head_dim;
};

template <typename T> DEVICE void attention_join(const Join<T>& a) {
    int query = blockIdx.x * warps() + warp(), head = blockIdx.y, sequence = blockIdx.z;
    if (query >= a.queries) return;
    float own = a.logarithms[L_AT(query)], other = a.other_logarithms[L_AT(query)], larger = fmaxf(own, other);
    float one = fast_exp(own - larger), two = fast_exp(other - larger), sum = one + two;
    for (int column = lane(); column < a.value_head_dim; column += 32) {
        i64 at = O_AT(query) + column;
        a.o[at] = narrow<T>((wide(a.o[at]) * one + wide(a.other[at]) * two) / sum);
    }
    __syncwarp();
    if (lane() == 0) a.logarithms[L_AT(query)] = larger + logf(sum);
}

ENTRY(attention_join_f32, 128, Join<float>, attention_join<float>)
ENTRY(attention_join_bf16, 128, Join<bf16>, attention_join<bf16>)
ENTRY(attention_forward_simple_f32, 128, Attention<float>, attention_forward_simple<float>)
ENTRY(attention_forward_simple_bf16, 128, Attention<bf16>, attention_forward_simple<bf16>)
ENTRY(attention_dots_f32, 128, Attention<float>, attention_dots<float>)
ENTRY(attention_dots_bf16, 128, Attention<bf16>, attention_dots<bf16>)
ENTRY(attention_queries_simple_f32, 128, Attention<float>, attention_queries_simple<float>)
ENTRY(attention_queries_simple_bf16, 128, Attention<bf16>, attention_queries_simple<bf16>)
ENTRY(attention_keys_simple_f32, 128, Attention<float>, attention_keys_simple<float>)
ENTRY(attention_keys_simple_bf16, 128, Attention<bf16>, attention_keys_simple<bf16>)

// ---- 2. Tensor cores: bf16, heads 64 or 128 wide. ----------------------------------------------------------------------
// Values lie in their rows as keys do: heads are as wide and rows as far apart.
// A block of 4 warps owns 64 queries (or 64 keys), each warp 16 of them, and walks over tiles of the others in shared memory.
// No warp needs another's scores, so the softmax of a row is a sum over 4 lanes, and there is no shared memory for scores.

#define BLOCK_ROWS 64
#define WARP_ROWS 16
#define BLOCK_THREADS 128

// The sum and maximum over the four lanes that hold a row.
DEVICE float row_sum(float x) {
    x += __shfl_xor_sync(FULL_WARP, x, 1);
    return x + __shfl_xor_sync(FULL_WARP, x, 2);
}

DEVICE float row_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(FULL_WARP, x, 1));
    return fmaxf(x, __shfl_xor_sync(FULL_WARP, x, 2));
}

// Scores of 16 rows of `left` against `columns` rows of `right`: s[j] is the 16 x 8 product with rows 8j .. 8j + 8.
template <int D, int columns> DEVICE void products(float (*s)[4], const u32 (*left)[4], const Tile<D>& right) {
#pragma unroll
    for (int j = 0; j < columns / 8; ++j) s[j][0] = s[j][1] = s[j][2] = s[j][3] = 0.0f;
#pragma unroll
    for (int k = 0; k < D / 16; ++k) {
#pragma unroll
        for (int j = 0; j < columns / 16; ++j) {
            u32 b[4];
            right.load_b_rows(b, 16 * j, 16 * k);
            mma(s[2 * j], left[k], b[0], b[1]);
            mma(s[2 * j + 1], left[k], b[2], b[3]);
        }
    }
}

// The same with the left matrix in shared memory too, rows `row` .. + 16 of it: fewer registers, one more load per 16 columns.
template <int D, int columns>
DEVICE void products_shared(float (*s)[4], const Tile<D>& left, int row, const Tile<D>& right) {
#pragma unroll
    for (int j = 0; j < columns / 8; ++j) s[j][0] = s[j][1] = s[j][2] = s[j][3] = 0.0f;
#pragma unroll
    for (int k = 0; k < D / 16; ++k) {
        u32 own[4];
        left.load_a(own, row, 16 * k);
#pragma unroll
        for (int j = 0; j < columns / 16; ++j) {
            u32 b[4];
            right.load_b_rows(b, 16 * j, 16 * k);
            mma(s[2 * j], own, b[0], b[1]);
            mma(s[2 * j + 1], own, b[2], b[3]);
        }
    }
}

// out += P X, P the 16 x `columns` numbers in s, X the tile's first `columns` rows.
template <int D, int columns> DEVICE void add_product(float (*out)[4], const float (*s)[4], const Tile<D>& x) {
#pragma unroll
    for (int k = 0; k < columns / 16; ++k) {
        u32 p[4] = {pack_bf16(s[2 * k][0], s[2 * k][1]), pack_bf16(s[2 * k][2], s[2 * k][3]),
                    pack_bf16(s[2 * k + 1][0], s[2 * k + 1][1]), pack_bf16(s[2 * k + 1][2], s[2 * k + 1][3])};
#pragma unroll
        for (int j = 0; j < D / 16; ++j) {
            u32 b[4];
            x.load_b_columns(b, 16 * k, 16 * j);
            mma(out[2 * j], p, b[0], b[1]);
            mma(out[2 * j + 1], p, b[2], b[3]);
        }
    }
}

// Writes 16 rows of D numbers from registers, those of the lane's two rows that exist, times `low` and `high`.
template <int D>
DEVICE void store_rows(bf16* to, i64 stride, const float (*x)[4], int valid, float low, float high) {
    int row = lane() / 4, column = lane() % 4 * 2;
#pragma unroll
    for (int j = 0; j < D / 8; ++j) {
        if (row < valid)
            *reinterpret_cast<u32*>(to + row * stride + 8 * j + column) = pack_bf16(x[j][0] * low, x[j][1] * low);
        if (row + 8 < valid)
            *reinterpret_cast<u32*>(to + (row + 8) * stride + 8 * j + column) = pack_bf16(x[j][2] * high, x[j][3] * high);
    }
}

// Forward. Registers at D = 128: 64 of O, 32 of scores, 32 of Q, and addresses, 173 in all, so that two blocks of 128 threads
// fit on a multiprocessor (four at D = 64, of 128). STAGES 1 waits for each tile of keys and values; STAGES 2 has the next
// one under way while this one is multiplied. Shared memory: STAGES x 2 x 64 x (D + 8) x 2 bytes, 68 KiB at D = 128 and 2
// stages, so registers are what limits blocks.
template <int D, int STAGES> DEVICE void attention_forward_tiles(const Attention<bf16>& a) {
    SHARED_BYTES(memory);
    const int tile_size = BLOCK_ROWS * Tile<D>::stride;
    bf16* tiles = reinterpret_cast<bf16*>(memory);
    int head = blockIdx.y, sequence = blockIdx.z, kv_head = head / (a.heads / a.kv_heads);
    // Under a causal mask the last queries see the most keys: they start first, so that short blocks fill the end.
    int first = (gridDim.x - 1 - blockIdx.x) * BLOCK_ROWS;
    int own = first + warp() * WARP_ROWS;
    i64 q_stride = (i64)a.batch * a.q_row, kv_stride = (i64)a.batch * a.k_row;

    // Queries pass through the first tile on their way to registers.
    Tile<D> staging = {tiles};
    staging.copy(a.q + Q_AT(first), q_stride, BLOCK_THREADS, BLOCK_ROWS, a.queries - first);
    end_copies();
    wait_copies<0>();
    __syncthreads();
    u32 q[D / 16][4];
#pragma unroll
    for (int k = 0; k < D / 16; ++k) staging.load_a(q[k], warp() * WARP_ROWS, 16 * k);
    __syncthreads();

    int end = a.causal ? min(first + BLOCK_ROWS + a.offset, a.keys) : a.keys;
    int steps = (max(end, 0) + BLOCK_ROWS - 1) / BLOCK_ROWS;
    float o[D / 8][4] = {}, sums[2] = {}, maxima[2] = {LEAST, LEAST};
    float scale = a.scale * LOG2_E;

#define BEGIN_TILE(step)                                                                                       \
    {                                                                                                          \
        int key = (step) * BLOCK_ROWS, stage = (step) % STAGES;                                                \
        Tile<D> keys = {tiles + (2 * stage) * tile_size}, values = {tiles + (2 * stage + 1) * tile_size};      \
        keys.copy(a.k + K_AT(key), kv_stride, BLOCK_THREADS, BLOCK_ROWS, a.keys - key);                                       \
        values.copy(a.v + K_AT(key), kv_stride, BLOCK_THREADS, BLOCK_ROWS, a.keys - key);                                     \
    }                                                                                                          \
    end_copies();

    if (STAGES == 2 && steps > 0) { BEGIN_TILE(0) }
    for (int step = 0; step < steps; ++step) {
        if (STAGES == 1) { BEGIN_TILE(step) }
        else if (step + 1 < steps) { BEGIN_TILE(step + 1) }
        if (STAGES == 2 && step + 1 < steps) wait_copies<1>();
        else wait_copies<0>();
        __syncthreads();
        Tile<D> keys = {tiles + (2 * (step % STAGES)) * tile_size}, values = {tiles + (2 * (step % STAGES) + 1) * tile_size};

        float s[BLOCK_ROWS / 8][4];
        products<D, BLOCK_ROWS>(s, q, keys);
        // Only the tiles that cross the diagonal or the end are masked.
        int key = step * BLOCK_ROWS;
        if (key + BLOCK_ROWS > a.keys || (a.causal && key + BLOCK_ROWS > own + a.offset + 1)) {
#pragma unroll
            for (int j = 0; j < BLOCK_ROWS / 8; ++j) {
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    int column = key + 8 * j + lane() % 4 * 2 + i % 2, row = own + lane() / 4 + i / 2 * 8;
                    if (column >= a.keys || (a.causal && column > row + a.offset)) s[j][i] = -INFINITY;
                }
            }
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float maximum = maxima[half];
#pragma unroll
            for (int j = 0; j < BLOCK_ROWS / 8; ++j) maximum = fmaxf(maximum, fmaxf(s[j][2 * half], s[j][2 * half + 1]));
            maximum = row_max(maximum);
            float factor = fast_exp2((maxima[half] - maximum) * scale), base = maximum * scale, sum = 0.0f;
#pragma unroll
            for (int j = 0; j < BLOCK_ROWS / 8; ++j) {
#pragma unroll
                for (int i = 2 * half; i < 2 * half + 2; ++i) sum += s[j][i] = fast_exp2(s[j][i] * scale - base);
            }
            maxima[half] = maximum;
            sums[half] = sums[half] * factor + sum;
#pragma unroll
            for (int j = 0; j < D / 8; ++j) {
                o[j][2 * half] *= factor;
                o[j][2 * half + 1] *= factor;
            }
        }
        add_product<D, BLOCK_ROWS>(o, s, values);
        __syncthreads();
    }

    float inverse[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        float sum = row_sum(sums[half]);
        int row = own + lane() / 4 + half * 8;
        inverse[half] = sum > 0.0f ? 1.0f / sum : 0.0f;
        if (lane() % 4 == 0 && row < a.queries)
            a.logarithms[L_AT(row)] = sum > 0.0f ? maxima[half] * a.scale + logf(sum) : LEAST;
    }
    store_rows<D>(a.o + O_AT(own), (i64)a.batch * a.o_row, o, a.queries - own, inverse[0], inverse[1]);
}

// Backward towards keys and values. A block owns 64 keys of a key head and walks over the tiles of queries of every query
// head that shares it: their gradients add up in registers, without atomics, the same bits in every run. The transposed scores
// S^T = K Q^T have the block's keys as rows, so that P^T and dS^T are at once the left matrices of dV = P^T dO, dK = dS^T Q.
// Registers at D = 128: 64 of dK, 64 of dV, 16 + 16 of scores with 32 queries in a tile; K and V stay in shared memory, since
// another 64 registers on top of the 240 would spill. Two blocks fit. Shared memory: (2 x 64 + 2 x 32) x (D + 8) x 2 bytes = 51 KiB.
template <int D, int QUERIES> DEVICE void attention_keys_tiles(const Attention<bf16>& a) {
    SHARED_BYTES(memory);
    bf16* tiles = reinterpret_cast<bf16*>(memory);
    const int stride = Tile<D>::stride;
    Tile<D> keys = {tiles}, values = {tiles + BLOCK_ROWS * stride};
    Tile<D> queries = {tiles + 2 * BLOCK_ROWS * stride}, gradients = {tiles + (2 * BLOCK_ROWS + QUERIES) * stride};
    __shared__ float logarithms[QUERIES], dots[QUERIES];
    int kv_head = blockIdx.y, sequence = blockIdx.z, shared = a.heads / a.kv_heads;
    int first = blockIdx.x * BLOCK_ROWS, own = first + warp() * WARP_ROWS;
    i64 q_stride = (i64)a.batch * a.q_row, kv_stride = (i64)a.batch * a.k_row, o_stride = (i64)a.batch * a.o_row;
    keys.copy(a.k + K_AT(first), kv_stride, BLOCK_THREADS, BLOCK_ROWS, a.keys - first);
    values.copy(a.v + K_AT(first), kv_stride, BLOCK_THREADS, BLOCK_ROWS, a.keys - first);
    end_copies();

    float k_gradient[D / 8][4] = {}, v_gradient[D / 8][4] = {};
    int begin = a.causal ? max(first - a.offset, 0) / QUERIES * QUERIES : 0;
    for (int head = kv_head * shared; head < (kv_head + 1) * shared; ++head) {
        for (int query = begin; query < a.queries; query += QUERIES) {
            queries.copy(a.q + Q_AT(query), q_stride, BLOCK_THREADS, QUERIES, a.queries - query);
            gradients.copy(a.o_gradient + O_AT(query), o_stride, BLOCK_THREADS, QUERIES, a.queries - query);
            end_copies();
            for (int index = threadIdx.x; index < QUERIES; index += blockDim.x) {
                bool inside = query + index < a.queries;
                logarithms[index] = inside ? a.logarithms[L_AT(query + index)] * LOG2_E : 0.0f;
                dots[index] = inside ? a.dots[L_AT(query + index)] : 0.0f;
            }
            wait_copies<0>();
            __syncthreads();
            float s[QUERIES / 8][4], p[QUERIES / 8][4];
            products_shared<D, QUERIES>(s, keys, warp() * WARP_ROWS, queries);
            products_shared<D, QUERIES>(p, values, warp() * WARP_ROWS, gradients);
#pragma unroll
            for (int j = 0; j < QUERIES / 8; ++j) {
                // Everything is read and computed whether it is seen or not: a choice at the end is no branch.
                float logarithm[2], dot[2];
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    logarithm[i] = logarithms[8 * j + lane() % 4 * 2 + i];
                    dot[i] = dots[8 * j + lane() % 4 * 2 + i];
                }
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    int column = query + 8 * j + lane() % 4 * 2 + i % 2, row = own + lane() / 4 + i / 2 * 8;
                    bool seen = (column < a.queries) & (!a.causal | (row <= column + a.offset));
                    float probability = fast_exp2(s[j][i] * (a.scale * LOG2_E) - logarithm[i % 2]);
                    s[j][i] = seen ? probability : 0.0f;
                    p[j][i] = s[j][i] * (p[j][i] - dot[i % 2]);
                }
            }
            add_product<D, QUERIES>(v_gradient, s, gradients);
            add_product<D, QUERIES>(k_gradient, p, queries);
            __syncthreads();
        }
    }
    // As in the kernel below, of a block whose keys no query sees.
    wait_copies<0>();
    store_rows<D>(a.k_gradient + K_AT(own), kv_stride, k_gradient, a.keys - own, a.scale, a.scale);
    store_rows<D>(a.v_gradient + K_AT(own), kv_stride, v_gradient, a.keys - own, 1.0f, 1.0f);
}

// Backward towards queries: forward's walk with dQ in place of O. Scores and dO V^T are made a second time, 7 products in all
// where 5 would do; the alternative adds dQ atomically from the kernel above, which rounds differently in every run and moves
// 4 bytes per number and tile through L2. Registers at D = 128: 64 of dQ, 16 + 16 of scores with 32 keys in a tile; Q and dO
// stay in shared memory: again 51 KiB.
template <int D, int KEYS> DEVICE void attention_queries_tiles(const Attention<bf16>& a) {
    SHARED_BYTES(memory);
    bf16* tiles = reinterpret_cast<bf16*>(memory);
    const int stride = Tile<D>::stride;
    Tile<D> queries = {tiles}, gradients = {tiles + BLOCK_ROWS * stride};
    Tile<D> keys = {tiles + 2 * BLOCK_ROWS * stride}, values = {tiles + (2 * BLOCK_ROWS + KEYS) * stride};
    int head = blockIdx.y, sequence = blockIdx.z, kv_head = head / (a.heads / a.kv_heads);
    int first = (gridDim.x - 1 - blockIdx.x) * BLOCK_ROWS, own = first + warp() * WARP_ROWS;
    i64 q_stride = (i64)a.batch * a.q_row, kv_stride = (i64)a.batch * a.k_row, o_stride = (i64)a.batch * a.o_row;
    queries.copy(a.q + Q_AT(first), q_stride, BLOCK_THREADS, BLOCK_ROWS, a.queries - first);
    gradients.copy(a.o_gradient + O_AT(first), o_stride, BLOCK_THREADS, BLOCK_ROWS, a.queries - first);
    end_copies();

    float logarithms[2], dots[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        int row = own + lane() / 4 + half * 8;
        logarithms[half] = row < a.queries ? a.logarithms[L_AT(row)] * LOG2_E : 0.0f;
        dots[half] = row < a.queries ? a.dots[L_AT(row)] : 0.0f;
    }
    float gradient[D / 8][4] = {};
    int end = a.causal ? min(first + BLOCK_ROWS + a.offset, a.keys) : a.keys;
    for (int key = 0; key < end; key += KEYS) {
        keys.copy(a.k + K_AT(key), kv_stride, BLOCK_THREADS, KEYS, a.keys - key);
        values.copy(a.v + K_AT(key), kv_stride, BLOCK_THREADS, KEYS, a.keys - key);
        end_copies();
        wait_copies<0>();
        __syncthreads();
        float s[KEYS / 8][4], p[KEYS / 8][4];
        products_shared<D, KEYS>(s, queries, warp() * WARP_ROWS, keys);
        products_shared<D, KEYS>(p, gradients, warp() * WARP_ROWS, values);
#pragma unroll
        for (int j = 0; j < KEYS / 8; ++j) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                int column = key + 8 * j + lane() % 4 * 2 + i % 2, row = own + lane() / 4 + i / 2 * 8;
                bool seen = column < a.keys && (!a.causal || column <= row + a.offset);
                float probability = seen ? fast_exp2(s[j][i] * (a.scale * LOG2_E) - logarithms[i / 2]) : 0.0f;
                p[j][i] = probability * (p[j][i] - dots[i / 2]);
            }
        }
        add_product<D, KEYS>(gradient, p, keys);
        __syncthreads();
    }
    // A block that sees no key has begun copies and never waited for them.
    wait_copies<0>();
    store_rows<D>(a.q_gradient + Q_AT(own), q_stride, gradient, a.queries - own, a.scale, a.scale);
}

#define TILES(D, inner)                                                                                          \
    DEVICE void forward_1_##D(const Attention<bf16>& a) { attention_forward_tiles<D, 1>(a); }                    \
    DEVICE void forward_2_##D(const Attention<bf16>& a) { attention_forward_tiles<D, 2>(a); }                    \
    DEVICE void keys_##D(const Attention<bf16>& a) { attention_keys_tiles<D, inner>(a); }                        \
    DEVICE void queries_##D(const Attention<bf16>& a) { attention_queries_tiles<D, inner>(a); }                  \
    ENTRY(attention_forward_tiles_##D, 128, Attention<bf16>, forward_1_##D)                                      \
    ENTRY(attention_forward_staged_##D, 128, Attention<bf16>, forward_2_##D)                                     \
    ENTRY(attention_keys_tiles_##D, 128, Attention<bf16>, keys_##D)                                              \
    ENTRY(attention_queries_tiles_##D, 128, Attention<bf16>, queries_##D)

TILES(64, 64)
TILES(128, 32)
