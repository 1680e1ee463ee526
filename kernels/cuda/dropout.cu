// Dropout: an element's mask is a function of a key and of its place in the unsharded tensor, so that it is never stored, backward
// computes it again, and a rank with a shard of a tensor has that shard of the mask.
//
// Memory-bound but for the hash: some forty integer instructions an element.

template <typename T> struct DropOut {
    T* x;                  // rows x width, in place
    const u32* positions;  // of each row
    Drops drops;
    int rows, width;
    int batch;             // row = place * batch + sequence
};

template <typename T> DEVICE u64 row_key(const DropOut<T>& a, i64 row) {
    return mix(mix(a.drops.key ^ (u64)(a.drops.first[0] + row % a.batch)) ^ (u64)a.positions[row]);
}

// 1. A thread per number.
template <typename T> DEVICE void drop_out_simple(const DropOut<T>& a) {
    i64 total = (i64)a.rows * a.width;
    for (i64 index = global_thread(); index < total; index += all_threads()) {
        i64 row = index / a.width, column = index % a.width;
        a.x[index] = narrow<T>(wide(a.x[index]) * drop_factor(a.drops, row_key(a, row), column));
    }
}

// 2. 16 bytes a thread: the row's part of the hash is made once for all of them.
template <typename T> DEVICE void drop_out_packed(const DropOut<T>& a) {
    const int size = Pack<T>::size;
    i64 packs = a.width / size, total = a.rows * packs;
    for (i64 index = global_thread(); index < total; index += all_threads()) {
        i64 row = index / packs, column = index % packs * size;
        u64 key = row_key(a, row);
        Pack<T> x = load_pack(a.x + row * a.width + column);
#pragma unroll
        for (int i = 0; i < size; ++i) x.at[i] = narrow<T>(wide(x.at[i]) * drop_factor(a.drops, key, column + i));
        store_pack(a.x + row * a.width + column, x);
    }
}

ENTRY(drop_out_simple_f32, 256, DropOut<float>, drop_out_simple<float>)
ENTRY(drop_out_simple_bf16, 256, DropOut<bf16>, drop_out_simple<bf16>)
ENTRY(drop_out_packed_f32, 256, DropOut<float>, drop_out_packed<float>)
ENTRY(drop_out_packed_bf16, 256, DropOut<bf16>, drop_out_packed<bf16>)
