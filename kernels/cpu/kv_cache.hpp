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

// Each kind: bytes of a number, how 16 of them that lie side by side are read, and how one register of a row is. An i8
// cache gives its digits; the scale is the reader's.
struct KvF32 : F32 {
    static constexpr int64_t kNumber = 4;
    static V one(const uint8_t* a) { return vload(reinterpret_cast<const float*>(a)); }
};
struct KvF16 : F16 {
    static constexpr int64_t kNumber = 2;
    static V one(const uint8_t* a) { return vload_f16(a); }
};
struct KvI8 : Format<16, 16> {
    static constexpr int64_t kNumber = 1;
    static void decode(const uint8_t* a, F* w) { w[0] = from_s8(b_load(a)); }
    static V one(const uint8_t* a) { return vload_s8(a); }
};

// op.template operator()<Kind>() for the kind.
template <class Op> inline void with_kv(KvKind kind, const Op& op) {
    switch (kind) {
        case KvKind::f32: return op.template operator()<KvF32>();
        case KvKind::f16: return op.template operator()<KvF16>();
        case KvKind::i8: return op.template operator()<KvI8>();
    }
}

// Number i of n to out + i * stride * bytes.
template <int bytes> inline void scatter(const uint8_t* numbers, int64_t n, uint8_t* out, int64_t stride) {
    if (stride == 1) return static_cast<void>(std::memcpy(out, numbers, static_cast<std::size_t>(n * bytes)));
    for (int64_t i = 0; i < n; ++i) std::memcpy(out + i * stride * bytes, numbers + i * bytes, bytes);
}

// The same of encode(x), in runs of 16; the last run may be partial.
template <int bytes, class Encode>
inline void encode_runs(const float* x, int64_t n, uint8_t* out, int64_t stride, Encode encode) {
    uint8_t run[16 * bytes];
    for (int64_t i = 0; i < n; i += 16) {
        encode(run, n - i < 16 ? load_n(x + i, n - i) : load(x + i));
        scatter<bytes>(run, n - i < 16 ? n - i : 16, out + i * stride * bytes, stride);
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

inline void write_head(KvKind kind, const float* x, int64_t n, uint8_t* out, int64_t stride, float* scale) {
    if (kind == KvKind::f32) {
        scatter<4>(reinterpret_cast<const uint8_t*>(x), n, out, stride);
    } else if (kind == KvKind::f16) {
        const F low = set1(-kLargestHalf), high = set1(kLargestHalf);  // as first operand: NaN passes
        encode_runs<2>(x, n, out, stride, [&](uint8_t* to, const F& v) { to_f16(to, min(high, max(low, v))); });
    } else {
        const float largest = largest_magnitude(x, n);
        const bool finite = largest < __builtin_inff(), zeros = !finite || largest < kZeroHead;
        *scale = finite ? (zeros ? 0.0f : largest / 127.0f) : __builtin_nanf("");
        const F factor = set1(zeros ? 0.0f : 127.0f / largest);
        encode_runs<1>(x, n, out, stride, [&](uint8_t* to, const F& v) { to_s8(to, zeros ? zero() : mul(v, factor)); });
    }
}

// One of the two halves of a write: keys, of which those of a block's tokens lie side by side, or values.
template <bool keys>
inline void write_rows(const KvWriteArgs& a, const float* from, int64_t stride, void* cache, float* scales,
                       int64_t first, int64_t last) {
    const int64_t bytes = safegen::cpu::kv_bytes(a.kv);
    for (int64_t t = first; t < last; ++t) {
        const int64_t block = a.slot[t] / a.block_size, within = a.slot[t] % a.block_size;
        for (int64_t h = 0; h < a.kv_heads; ++h) {
            const int64_t head = block * a.kv_heads + h, row = head * a.block_size + within;
            const int64_t at = keys ? head * a.head_dim * a.block_size + within : row * a.head_dim;
            write_head(a.kv, from + t * stride + h * a.head_dim, a.head_dim, static_cast<uint8_t*>(cache) + at * bytes,
                       keys ? a.block_size : 1, scales ? scales + row : nullptr);
        }
    }
}

void kv_write(const KvWriteArgs& a, int64_t first_token, int64_t last_token) {
    write_rows<true>(a, a.key, a.key_stride, a.key_cache, a.key_scale, first_token, last_token);
    write_rows<false>(a, a.value, a.value_stride, a.value_cache, a.value_scale, first_token, last_token);
}

}  // namespace
