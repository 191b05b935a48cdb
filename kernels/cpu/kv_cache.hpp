// How keys and values are kept in the paged cache, and their way in. Kinds: KvKind. Internal linkage; included after
// vec.hpp.
//
// i8 keeps a head of a token as 127 * x / max|x|, rounded, and max|x| / 127. A head of nothing but numbers below
// kZeroHead is kept as zeros; one that holds NaN or infinity gets NaN as its scale, so that the fault shows in every
// row that sees it, as it does in the other kinds.
#pragma once

#include "kernels/cpu/blocks.hpp"

namespace {

using safegen::cpu::kKeyTile;
using safegen::cpu::KvKind;
using safegen::cpu::KvWriteArgs;

constexpr float kLargestHalf = 65504.0f, kZeroHead = 1e-30f;

// Each kind: bytes of a number, how one register of a row is read, and how 16 numbers of 16 rows are turned to columns,
// out[j * kKeyTile + k] = number j of row k. Those whose columns cost less than a load of fp32 (kNarrow) also give them
// eight at a time. An i8 cache gives its digits; the scale is the reader's.
struct KvF32 : F32 {
    static constexpr int64_t kNumber = 4;
    static constexpr bool kNarrow = false;
    static void columns(const uint8_t* const row[16], int64_t offset, float* out) {
        F run[16];
        SAFEGEN_UNROLL
        for (int k = 0; k < 16; ++k) decode(row[k] + offset, run + k);
        store_columns(run, out, kKeyTile);
    }
};
template <class Kv> struct NarrowKv {
    static constexpr bool kNarrow = true;
    static void columns(const uint8_t* const row[16], int64_t offset, float* out) {
        for (int j = 0; j < 16; j += 8, offset += 8 * Kv::kNumber, out += 8 * kKeyTile) {
            const Columns8 eight = Kv::columns8(row, offset);
            SAFEGEN_UNROLL
            for (int i = 0; i < 8; ++i) store(out + i * kKeyTile, Kv::column(eight, i));
        }
    }
};
struct KvF16 : F16, NarrowKv<KvF16> {
    static constexpr int64_t kNumber = 2;
    static V one(const uint8_t* a) { return vload_f16(a); }
    static Columns8 columns8(const uint8_t* const row[16], int64_t offset) { return f16_columns8(row, offset); }
    static F column(const Columns8& a, int j) { return f16_column(a, j); }
};
struct KvI8 : Format<16, 16>, NarrowKv<KvI8> {
    static constexpr int64_t kNumber = 1;
    static void decode(const uint8_t* a, F* w) { w[0] = from_s8(b_load(a)); }
    static V one(const uint8_t* a) { return vload_s8(a); }
    static Columns8 columns8(const uint8_t* const row[16], int64_t offset) { return s8_columns8(row, offset); }
    static F column(const Columns8& a, int j) { return s8_column(a, j); }
};

// op.template operator()<Kind>() for the kind.
template <class Op> inline void with_kv(KvKind kind, const Op& op) {
    switch (kind) {
        case KvKind::f32: return op.template operator()<KvF32>();
        case KvKind::f16: return op.template operator()<KvF16>();
        case KvKind::i8: return op.template operator()<KvI8>();
    }
}

// out[0 .. n) = encode(x) in runs of 16; the last run may be partial.
template <int bytes, class Encode> inline void encode_runs(const float* x, int64_t n, uint8_t* out, Encode encode) {
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) encode(out + i * bytes, load(x + i));
    if (i < n) {
        uint8_t run[16 * bytes];
        encode(run, load_n(x + i, n - i));
        std::memcpy(out + i * bytes, run, static_cast<std::size_t>((n - i) * bytes));
    }
}

inline float largest_magnitude(const float* x, int64_t n) {  // NaN if x holds one: its bits are above infinity's
    std::uint32_t largest = 0;
    for (int64_t i = 0; i < n; ++i) {
        std::uint32_t bits;
        std::memcpy(&bits, x + i, 4);
        bits &= 0x7fffffffu;
        largest = bits > largest ? bits : largest;
    }
    float magnitude;
    std::memcpy(&magnitude, &largest, 4);
    return magnitude;
}

inline void write_head(KvKind kind, const float* x, int64_t n, uint8_t* out, float* scale) {
    if (kind == KvKind::f32) {
        std::memcpy(out, x, static_cast<std::size_t>(n) * sizeof(float));
    } else if (kind == KvKind::f16) {
        const F low = set1(-kLargestHalf), high = set1(kLargestHalf);  // as first operand: NaN passes
        encode_runs<2>(x, n, out, [&](uint8_t* to, const F& v) { to_f16(to, min(high, max(low, v))); });
    } else {
        const float largest = largest_magnitude(x, n);
        const bool finite = largest < __builtin_inff(), zeros = !finite || largest < kZeroHead;
        *scale = finite ? (zeros ? 0.0f : largest / 127.0f) : __builtin_nanf("");
        if (zeros) return static_cast<void>(std::memset(out, 0, static_cast<std::size_t>(n)));
        const F factor = set1(127.0f / largest);
        encode_runs<1>(x, n, out, [&](uint8_t* to, const F& v) { to_s8(to, mul(v, factor)); });
    }
}

// One of the two halves of a write, keys or values.
inline void write_rows(const KvWriteArgs& a, const float* from, int64_t stride, void* cache, float* scales,
                       int64_t first, int64_t last) {
    const int64_t head_bytes = a.head_dim * safegen::cpu::kv_bytes(a.kv);
    for (int64_t t = first; t < last; ++t) {
        for (int64_t h = 0; h < a.kv_heads; ++h) {
            const int64_t row = a.slot[t] * a.kv_heads + h;
            write_head(a.kv, from + t * stride + h * a.head_dim, a.head_dim,
                       static_cast<uint8_t*>(cache) + row * head_bytes, scales ? scales + row : nullptr);
        }
    }
}

void kv_write(const KvWriteArgs& a, int64_t first_token, int64_t last_token) {
    write_rows(a, a.key, a.key_stride, a.key_cache, a.key_scale, first_token, last_token);
    write_rows(a, a.value, a.value_stride, a.value_cache, a.value_scale, first_token, last_token);
}

}  // namespace
