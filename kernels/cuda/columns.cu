// Some columns of rows, to some columns of other rows: queries, keys and values that travel apart, and back together.

template <typename T> struct Columns {
    const T* from;         // the first column of row 0
    T* to;                 // the same
    int rows, width;       // columns that are copied
    int from_row, to_row;  // numbers from a row to the next one
};

// 1. A thread per number.
template <typename T> DEVICE void copy_columns_simple(const Columns<T>& a) {
    i64 total = (i64)a.rows * a.width;
    for (i64 index = global_thread(); index < total; index += all_threads()) {
        i64 row = index / a.width, column = index % a.width;
        a.to[row * a.to_row + column] = a.from[row * a.from_row + column];
    }
}

// 2. 16 bytes a thread: neighbouring threads take neighbouring packs of a row.
template <typename T> DEVICE void copy_columns_packed(const Columns<T>& a) {
    const int size = Pack<T>::size;
    i64 packs = a.width / size, total = a.rows * packs;
    for (i64 index = global_thread(); index < total; index += all_threads()) {
        i64 row = index / packs, column = index % packs * size;
        store_pack(a.to + row * a.to_row + column, load_pack(a.from + row * a.from_row + column));
    }
}

ENTRY(copy_columns_simple_f32, 256, Columns<float>, copy_columns_simple<float>)
ENTRY(copy_columns_simple_bf16, 256, Columns<bf16>, copy_columns_simple<bf16>)
ENTRY(copy_columns_packed_f32, 256, Columns<float>, copy_columns_packed<float>)
ENTRY(copy_columns_packed_bf16, 256, Columns<bf16>, copy_columns_packed<bf16>)
