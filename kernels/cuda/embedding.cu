// Look-up in a table of which this rank holds some rows, the addition of positions, and the gradient of the table.
//
// Memory-bound: every byte of the output is written once, every row read is `width` numbers next to each other.

template <typename T> struct LookUp {
    const T* table;        // rows x width
    const u32* entries;    // one per token
    const T* positions;    // positions x width, or null
    T* out;                // tokens x width
    int tokens, width;
    int first, rows;       // the table's rows are entries first .. first + rows
    int batch;             // token = position * batch + sequence
    int first_position;
};

// 1. A thread per number. Neighbouring threads read neighbouring numbers, so accesses coalesce, but a thread has only one
// load of 2 or 4 bytes in flight and divides to find its row.
template <typename T> DEVICE void look_up_simple(const LookUp<T>& a) {
    i64 total = (i64)a.tokens * a.width;
    for (i64 index = global_thread(); index < total; index += all_threads()) {
        int token = (int)(index / a.width), column = (int)(index % a.width);
        u32 row = a.entries[token] - (u32)a.first;  // an entry below the first wraps to a row far behind the last
        float x = row < (u32)a.rows ? wide(a.table[(i64)row * a.width + column]) : 0.0f;
        if (a.positions) x += wide(a.positions[(i64)(token / a.batch + a.first_position) * a.width + column]);
        a.out[index] = narrow<T>(x);
    }
}

// 2. A warp per token, 16 bytes per lane: the entry is read once per warp, and a row of 768 bf16 takes three loads a lane,
// all independent. 8 warps of few registers fill the multiprocessor, so enough loads are in flight to hide the latency.
template <typename T> DEVICE void look_up_packed(const LookUp<T>& a) {
    int token = blockIdx.x * warps() + warp();
    if (token >= a.tokens) return;
    u32 row = a.entries[token] - (u32)a.first;
    const T* from = a.table + (i64)row * a.width;
    const T* position = a.positions ? a.positions + (i64)(token / a.batch + a.first_position) * a.width : nullptr;
    T* to = a.out + (i64)token * a.width;
    for (int column = lane() * Pack<T>::size; column < a.width; column += 32 * Pack<T>::size) {
        Pack<T> x = {};
        if (row < (u32)a.rows) x = load_pack(from + column);
        if (position) {
            Pack<T> p = load_pack(position + column);
#pragma unroll
            for (int i = 0; i < Pack<T>::size; ++i) x.at[i] = narrow<T>(wide(x.at[i]) + wide(p.at[i]));
        }
        store_pack(to + column, x);
    }
}

ENTRY(look_up_simple_f32, 256, LookUp<float>, look_up_simple<float>)
ENTRY(look_up_simple_bf16, 256, LookUp<bf16>, look_up_simple<bf16>)
ENTRY(look_up_packed_f32, 256, LookUp<float>, look_up_packed<float>)
ENTRY(look_up_packed_bf16, 256, LookUp<bf16>, look_up_packed<bf16>)

template <typename T> struct TableGradient {
    const T* gradient;     // tokens x width
    const u32* entries;    // one per token
    const u32* order;      // tokens sorted by entry, those of an entry in their old order
    const u32* starts;     // rows + 1: where each row's tokens begin in `order`
    float* table;          // rows x width, added to
    int tokens, width, first, rows;
};

// 1. An atomic addition per number: right, but the order of additions and so the rounding differs from run to run, and
// frequent tokens queue up at the same addresses.
template <typename T> DEVICE void table_gradient_atomic(const TableGradient<T>& a) {
    i64 total = (i64)a.tokens * a.width;
    for (i64 index = global_thread(); index < total; index += all_threads()) {
        int token = (int)(index / a.width), column = (int)(index % a.width);
        u32 row = a.entries[token] - (u32)a.first;
        if (row < (u32)a.rows) atomicAdd(a.table + (i64)row * a.width + column, wide(a.gradient[index]));
    }
}

// 2. Tokens sorted by entry (experts.cu sorts): a block owns a row of the table and adds its tokens in order, so a sum is
// the same in every run and the table is read and written once per row that occurs. Blocks of rows without tokens
// leave at once.
template <typename T> DEVICE void table_gradient_sorted(const TableGradient<T>& a) {
    u32 row = blockIdx.x, from = a.starts[row], to = a.starts[row + 1];
    if (from == to) return;
    for (int column = threadIdx.x; column < a.width; column += blockDim.x) {
        float sum = 0.0f;
        for (u32 at = from; at < to; ++at) sum += wide(a.gradient[(i64)a.order[at] * a.width + column]);
        a.table[(i64)row * a.width + column] += sum;
    }
}

// 3. The same by 16 bytes a thread: one walk over a row's tokens, four of which are on their way at a time. The most frequent
// entry has a twentieth of all tokens, and the rest of the GPU waits for its block.
template <typename T> DEVICE void table_gradient_packed(const TableGradient<T>& a) {
    const int size = Pack<T>::size;
    u32 row = blockIdx.x, from = a.starts[row], to = a.starts[row + 1];
    if (from == to) return;
    for (int column = threadIdx.x * size; column < a.width; column += blockDim.x * size) {
        float sums[size] = {};
#pragma unroll 4
        for (u32 at = from; at < to; ++at) {
            Pack<T> x = load_pack(a.gradient + (i64)a.order[at] * a.width + column);
#pragma unroll
            for (int i = 0; i < size; ++i) sums[i] += wide(x.at[i]);
        }
        float* table = a.table + (i64)row * a.width + column;
#pragma unroll
        for (int i = 0; i < size; i += 4) {
            Pack<float> own = load_pack(table + i);
#pragma unroll
            for (int each = 0; each < 4; ++each) own.at[each] += sums[i + each];
            store_pack(table + i, own);
        }
    }
}

ENTRY(table_gradient_packed_f32, 256, TableGradient<float>, table_gradient_packed<float>)
ENTRY(table_gradient_packed_bf16, 256, TableGradient<bf16>, table_gradient_packed<bf16>)
ENTRY(table_gradient_atomic_f32, 256, TableGradient<float>, table_gradient_atomic<float>)
ENTRY(table_gradient_atomic_bf16, 256, TableGradient<bf16>, table_gradient_atomic<bf16>)
ENTRY(table_gradient_sorted_f32, 256, TableGradient<float>, table_gradient_sorted<float>)
ENTRY(table_gradient_sorted_bf16, 256, TableGradient<bf16>, table_gradient_sorted<bf16>)
