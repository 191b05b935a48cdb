// GGUF block formats and float rows, decoded to fp32 in runs of 16 weights. Values are those of the format's definition
// bit for bit (d * q + m in fp32: the product is exact, so a fused multiply-add rounds once as they do). Internal
// linkage; included after vec.hpp.
#pragma once

#include "kernels/cpu/kernels.hpp"
#include "kernels/cpu/vec.hpp"

namespace {

// Each format: kSize weights in kBytes bytes, decode() into kSize / 16 vectors.
template <int size, int bytes> struct Format {
    static constexpr int kSize = size, kBytes = bytes, kRuns = size / 16;
};

struct F32 : Format<16, 64> {
    static void decode(const uint8_t* a, F* w) { w[0] = load(reinterpret_cast<const float*>(a)); }
};
struct F16 : Format<16, 32> {
    static void decode(const uint8_t* a, F* w) { w[0] = from_f16(a); }
};
struct BF16 : Format<16, 32> {
    static void decode(const uint8_t* a, F* w) { w[0] = from_bf16(a); }
};

struct Q4_0 : Format<32, 18> {
    static void decode(const uint8_t* a, F* w) {
        const F d = half1(a);
        nibbles(a + 2, d, mul(d, set1(-8.0f)), w[0], w[1]);
    }
};
struct Q4_1 : Format<32, 20> {
    static void decode(const uint8_t* a, F* w) {
        F d, m;
        half2(a, d, m);
        nibbles(a + 4, d, m, w[0], w[1]);
    }
};

// Five-bit digits: a nibble, and a fifth bit from a 32-bit word.
inline void five_bits(const uint8_t* high, const uint8_t* low, B& q0, B& q1) {
    const B raw = b_load(low), mask = b_set1(15), sixteen = b_set1(16);
    q0 = b_or(b_and(raw, mask), b_bits(static_cast<std::uint16_t>(high[0] | high[1] << 8), sixteen));
    q1 = b_or(b_and(b_shr<4>(raw), mask), b_bits(static_cast<std::uint16_t>(high[2] | high[3] << 8), sixteen));
}
struct Q5_0 : Format<32, 22> {
    static void decode(const uint8_t* a, F* w) {
        const F d = half1(a);
        B q0, q1;
        five_bits(a + 2, a + 6, q0, q1);
        w[0] = mul(from_s8(b_sub(q0, b_set1(16))), d);
        w[1] = mul(from_s8(b_sub(q1, b_set1(16))), d);
    }
};
struct Q5_1 : Format<32, 24> {
    static void decode(const uint8_t* a, F* w) {
        F d, m;
        half2(a, d, m);
        B q0, q1;
        five_bits(a + 4, a + 8, q0, q1);
        w[0] = fma(from_u8(q0), d, m);
        w[1] = fma(from_u8(q1), d, m);
    }
};
struct Q8_0 : Format<32, 34> {
    static void decode(const uint8_t* a, F* w) {
        const F d = half1(a);
        w[0] = mul(from_s8(b_load(a + 2)), d);
        w[1] = mul(from_s8(b_load(a + 18)), d);
    }
};

// Six-bit scales and minima of the eight 32-weight groups of a Q4_K or Q5_K block, packed in 12 bytes.
struct Group {
    float scale, minimum;
};
inline Group group(const uint8_t* a, int i) {
    const float d = half_at(a), dmin = half_at(a + 2);
    const uint8_t* s = a + 4;
    int scale, minimum;
    if (i < 4) {
        scale = s[i] & 63;
        minimum = s[i + 4] & 63;
    } else {
        scale = (s[i + 4] & 15) | (s[i - 4] >> 6) << 4;
        minimum = (s[i + 4] >> 4) | (s[i] >> 6) << 4;
    }
    return {d * static_cast<float>(scale), -(dmin * static_cast<float>(minimum))};
}
struct Q4_K : Format<256, 144> {
    static void decode(const uint8_t* a, F* w) {
        SAFEGEN_UNROLL
        for (int pair = 0; pair < 4; ++pair) {  // groups 2 * pair (low nibbles) and 2 * pair + 1 (high nibbles)
            const uint8_t* q = a + 16 + 32 * pair;
            const Group low = group(a, 2 * pair), high = group(a, 2 * pair + 1);
            SAFEGEN_UNROLL
            for (int half = 0; half < 2; ++half) {
                const B raw = b_load(q + 16 * half), mask = b_set1(15);
                w[4 * pair + half] = fma(from_u8(b_and(raw, mask)), set1(low.scale), set1(low.minimum));
                w[4 * pair + 2 + half] = fma(from_u8(b_and(b_shr<4>(raw), mask)), set1(high.scale), set1(high.minimum));
            }
        }
    }
};
struct Q5_K : Format<256, 176> {
    static void decode(const uint8_t* a, F* w) {
        const uint8_t *high = a + 16, *q = a + 48;
        const B mask = b_set1(15), sixteen = b_set1(16);
        SAFEGEN_UNROLL
        for (int pair = 0; pair < 4; ++pair) {
            const Group g0 = group(a, 2 * pair), g1 = group(a, 2 * pair + 1);
            SAFEGEN_UNROLL
            for (int half = 0; half < 2; ++half) {
                const B raw = b_load(q + 32 * pair + 16 * half), fifth = b_load(high + 16 * half);
                const B q0 = b_or(b_and(raw, mask), b_where(fifth, b_set1(1 << (2 * pair)), sixteen));
                const B q1 = b_or(b_and(b_shr<4>(raw), mask), b_where(fifth, b_set1(2 << (2 * pair)), sixteen));
                w[4 * pair + half] = fma(from_u8(q0), set1(g0.scale), set1(g0.minimum));
                w[4 * pair + 2 + half] = fma(from_u8(q1), set1(g1.scale), set1(g1.minimum));
            }
        }
    }
};
struct Q6_K : Format<256, 210> {
    static F run(const B& q, const uint8_t* scale, float d) {
        const float s = d * static_cast<float>(static_cast<std::int8_t>(*scale));
        return mul(from_s8(b_sub(q, b_set1(32))), set1(s));
    }
    static void decode(const uint8_t* a, F* w) {
        const float d = half_at(a + 208);
        const B nibble = b_set1(15), top = b_set1(48);
        SAFEGEN_UNROLL
        for (int i = 0; i < 4; ++i) {  // 128-weight half i / 2, bytes 16 * (i % 2) of each of its four 32-weight rows
            const int half = i / 2, column = i % 2;
            const uint8_t *low = a + 64 * half + 16 * column, *scale = a + 192 + 8 * half + column;
            const B l0 = b_load(low), l1 = b_load(low + 32), h = b_load(a + 128 + 32 * half + 16 * column);
            F* out = w + 8 * half + column;
            out[0] = run(b_or(b_and(l0, nibble), b_and(b_shl<4>(h), top)), scale, d);
            out[2] = run(b_or(b_and(l1, nibble), b_and(b_shl<2>(h), top)), scale + 2, d);
            out[4] = run(b_or(b_and(b_shr<4>(l0), nibble), b_and(h, top)), scale + 4, d);
            out[6] = run(b_or(b_and(b_shr<4>(l1), nibble), b_and(b_shr<2>(h), top)), scale + 6, d);
        }
    }
};

// The run of 16 that a float row ends with, when it is not whole: read from a zero-padded copy.
template <class Q> inline F decode_tail(const uint8_t* a, int64_t n) {
    static_assert(Q::kSize == 16);
    uint8_t padded[Q::kBytes] = {};
    std::memcpy(padded, a, static_cast<std::size_t>(n) * (Q::kBytes / 16));
    F w[1];
    Q::decode(padded, w);
    return w[0];
}

// One row to fp32. out holds n floats rounded up to a multiple of 16 when `padded`, else exactly n.
template <class Q> inline void decode_row(const uint8_t* row, int64_t n, float* out, bool padded) {
    int64_t i = 0;
    for (; i + Q::kSize <= n; i += Q::kSize, row += Q::kBytes) {
        F w[Q::kRuns];
        Q::decode(row, w);
        SAFEGEN_UNROLL
        for (int k = 0; k < Q::kRuns; ++k) store(out + i + 16 * k, w[k]);
    }
    if constexpr (Q::kSize == 16) {
        if (i < n) {
            const F w = decode_tail<Q>(row, n - i);
            padded ? store(out + i, w) : store_n(out + i, w, n - i);
        }
    }
}

// Calls op.template operator()<Format>() for the kind.
template <class Op> inline void with_format(safegen::cpu::Kind kind, Op op) {
    using safegen::cpu::Kind;
    switch (kind) {
        case Kind::f32: return op.template operator()<F32>();
        case Kind::f16: return op.template operator()<F16>();
        case Kind::bf16: return op.template operator()<BF16>();
        case Kind::q4_0: return op.template operator()<Q4_0>();
        case Kind::q4_1: return op.template operator()<Q4_1>();
        case Kind::q5_0: return op.template operator()<Q5_0>();
        case Kind::q5_1: return op.template operator()<Q5_1>();
        case Kind::q8_0: return op.template operator()<Q8_0>();
        case Kind::q4_k: return op.template operator()<Q4_K>();
        case Kind::q5_k: return op.template operator()<Q5_K>();
        case Kind::q6_k: return op.template operator()<Q6_K>();
    }
}

}  // namespace
