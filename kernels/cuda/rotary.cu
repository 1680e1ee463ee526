// Rotary positions: columns i and i + r/2 of a head's r rotated ones turn by the angle of their pair at their position.
//
// Memory-bound, in place. Angles come from a table of cosines and sines made on the host in f64: position * theta^(-2i/r) of
// a long sequence has no correct digits left in f32.

template <typename T> struct Rotary {
    T* x;                  // tokens x row
    const float* cosines;  // positions x half
    const float* sines;
    int tokens, row;       // numbers of a row
    int first, heads, head_dim;  // the rotated heads of a row begin at column `first`
    int half;              // pairs of a head
    int batch;             // token = position * batch + sequence
    int first_position;
    float direction;       // 1 forward, -1 for the gradient
};

// 1. A thread per pair.
template <typename T> DEVICE void rotary_simple(const Rotary<T>& a) {
    i64 total = (i64)a.tokens * a.heads * a.half;
    for (i64 index = global_thread(); index < total; index += all_threads()) {
        int pair = (int)(index % a.half), head = (int)(index / a.half % a.heads), token = (int)(index / a.half / a.heads);
        int angle = (token / a.batch + a.first_position) * a.half + pair;
        float cosine = a.cosines[angle], sine = a.sines[angle] * a.direction;
        T* low = a.x + (i64)token * a.row + a.first + head * a.head_dim + pair;
        T* high = low + a.half;
        float x = wide(*low), y = wide(*high);
        *low = narrow<T>(x * cosine - y * sine);
        *high = narrow<T>(y * cosine + x * sine);
    }
}

// 2. A block per token: a thread takes 16 bytes of both halves, and the angles of its pairs are read once for all heads,
// from the caches, where a position's table row of 256 bytes stays.
template <typename T> DEVICE void rotary_packed(const Rotary<T>& a) {
    const int size = Pack<T>::size;
    int token = blockIdx.x, packs = a.half / size;
    const float* cosines = a.cosines + (i64)(token / a.batch + a.first_position) * a.half;
    const float* sines = a.sines + (i64)(token / a.batch + a.first_position) * a.half;
    for (int index = threadIdx.x; index < a.heads * packs; index += blockDim.x) {
        int head = index / packs, pair = index % packs * size;
        T* at = a.x + (i64)token * a.row + a.first + head * a.head_dim + pair;
        Pack<T> low = load_pack(at), high = load_pack(at + a.half);
#pragma unroll
        for (int i = 0; i < size; ++i) {
            float cosine = cosines[pair + i], sine = sines[pair + i] * a.direction;
            float x = wide(low.at[i]), y = wide(high.at[i]);
            low.at[i] = narrow<T>(x * cosine - y * sine);
            high.at[i] = narrow<T>(y * cosine + x * sine);
        }
        store_pack(at, low);
        store_pack(at + a.half, high);
    }
}

ENTRY(rotary_simple_f32, 256, Rotary<float>, rotary_simple<float>)
ENTRY(rotary_simple_bf16, 256, Rotary<bf16>, rotary_simple<bf16>)
ENTRY(rotary_packed_f32, 256, Rotary<float>, rotary_packed<float>)
ENTRY(rotary_packed_bf16, 256, Rotary<bf16>, rotary_packed<bf16>)
