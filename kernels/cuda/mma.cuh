// The tensor cores and the copies that feed them, as functions. Needs compute capability 8.0.
//
// One warp multiplies a 16 x 16 by a 16 x 8 matrix. With g = lane / 4 and t = lane % 4 a lane holds
//   of A (16 x 16, row after row): pairs (g, 2t), (g + 8, 2t), (g, 2t + 8), (g + 8, 2t + 8), the second of a pair one column on;
//   of B (16 x 8): pairs (2t, g), (2t + 8, g), the second one row on;
//   of C and D (16 x 8): (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1).
// So the result of one product, rounded to bf16 in pairs, is the A of the next without a word between lanes: attention keeps
// its scores in registers.

#if defined(__CUDACC__)

// D += A B.
DEVICE void mma(float* d, const u32* a, u32 b0, u32 b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// The compiler sees through its own conversion and counts on in 32 bits; through one in assembly it does not.
DEVICE u32 shared_address(const void* pointer) { return (u32)__cvta_generic_to_shared(pointer); }

// Four 8 x 8 matrices of bf16 from shared memory: lanes 8i .. 8i + 8 give the addresses of the rows of matrix i, 16 bytes
// each; each lane gets the pair (g, 2t), (g, 2t + 1) of every matrix.
DEVICE void load_matrices(u32* to, const bf16* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(shared_address(row)));
}

// The same of the transposed matrices: the pair (2t, g), (2t + 1, g).
DEVICE void load_transposed(u32* to, const bf16* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(shared_address(row)));
}

// 16 bytes from device to shared memory without a detour through registers; zeros instead where `valid` is 0.
DEVICE void copy_async(bf16* to, const bf16* from, int valid) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(valid ? 16 : 0));
}

// Ends a group of copies.
DEVICE void end_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most `pending` of this thread's groups are under way.
template <int pending> DEVICE void wait_copies() { asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory"); }

#endif

// A tile of rows in shared memory. 8 numbers of padding put neighbouring rows 4 banks apart (mod 32), for widths that are
// multiples of 64, so the eight rows of 16 bytes that load_matrices reads at a time hit each of the 32 banks once.
template <int width> struct Tile {
    static const int stride = width + 8;
    bf16* rows;

    DEVICE bf16* at(int row, int column) const { return rows + row * stride + column; }

    // A's four fragments for rows `row` .. + 16 and columns `column` .. + 16.
    DEVICE void load_a(u32* a, int row, int column) const {
        load_matrices(a, at(row + lane() % 16, column + lane() / 16 * 8));
    }

    // The same where A's columns are the tile's rows: A[m][k] = tile[row + k][column + m].
    DEVICE void load_a_columns(u32* a, int row, int column) const {
        load_transposed(a, at(row + lane() / 16 * 8 + lane() % 8, column + lane() / 8 % 2 * 8));
    }

    // B for two neighbouring 16 x 8 products, where B's columns are the tile's rows: B[k][n] = tile[row + n][column + k].
    // b[0], b[1] for n < 8; b[2], b[3] for the next 8.
    DEVICE void load_b_rows(u32* b, int row, int column) const {
        load_matrices(b, at(row + lane() / 16 * 8 + lane() % 8, column + lane() / 8 % 2 * 8));
    }

    // The same where B's rows are the tile's rows: B[k][n] = tile[row + k][column + n].
    DEVICE void load_b_columns(u32* b, int row, int column) const {
        load_transposed(b, at(row + lane() % 16, column + lane() / 16 * 8));
    }

    // Begins the copy of `count` rows by a block of that many threads; rows from `valid` on become zeros. `from` is row 0. A thread
    // stays in its columns, so that all it does for one copy is to go some rows on. What lies behind the last row is not read.
    // Of wide rows few copies at a time: addresses of all would take the registers that a third block needs.
    DEVICE void copy(const bf16* from, i64 from_stride, int threads, int count, int valid) const {
        const int step = threads / (width / 8);
        int first = threadIdx.x / (width / 8), column = threadIdx.x % (width / 8) * 8;
        const bf16* source = from + first * from_stride + column;
#pragma unroll(width == 64 ? 8 : 2)
        for (int row = 0; row < count; row += step)
            copy_async(at(first + row, column), source + row * from_stride, first + row < valid);
    }
};

