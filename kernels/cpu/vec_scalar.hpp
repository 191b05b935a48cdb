// 16 lanes in plain C++, for processors without AVX2 or NEON: the compiler makes of it what the baseline has.
// Included once, by kernels_scalar.cpp. Multiplies and adds are fused only where the target does that in one
// instruction; a call to the library's fma would cost a hundredfold.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>

#include "kernels/cpu/half.hpp"

#define SAFEGEN_UNROLL_TILE

namespace {

constexpr int kParts = 1, kWidth = 16;
constexpr int kTileRows = 2, kTileOuts = 2;
constexpr int kFusedRows = 1;
constexpr int kAttendRows = 2, kAttendCols = 1;  // attention's tile: query rows x registers of keys or dimensions

struct V {
    float v[16];
};
struct F {
    V p[kParts];
};

inline float fused(float a, float b, float c) {
#if defined(__FP_FAST_FMAF) || defined(__ARM_FEATURE_FMA)
    return __builtin_fmaf(a, b, c);
#else
    return a * b + c;
#endif
}

template <class Op> inline V lanes(Op op) {
    V r;
    for (int i = 0; i < 16; ++i) r.v[i] = op(i);
    return r;
}

inline V vload(const float* a) {
    V r;
    std::memcpy(r.v, a, sizeof r.v);
    return r;
}
inline void vstore(float* a, const V& v) { std::memcpy(a, v.v, sizeof v.v); }
inline V vset1(float a) {
    return lanes([=](int) { return a; });
}
inline V vadd(const V& a, const V& b) {
    return lanes([&](int i) { return a.v[i] + b.v[i]; });
}
inline V vsub(const V& a, const V& b) {
    return lanes([&](int i) { return a.v[i] - b.v[i]; });
}
inline V vmul(const V& a, const V& b) {
    return lanes([&](int i) { return a.v[i] * b.v[i]; });
}
inline V vdiv(const V& a, const V& b) {
    return lanes([&](int i) { return a.v[i] / b.v[i]; });
}
inline V vfma(const V& a, const V& b, const V& c) {
    return lanes([&](int i) { return fused(a.v[i], b.v[i], c.v[i]); });
}
inline V vmax(const V& a, const V& b) {  // b where either is NaN
    return lanes([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
inline V vmin(const V& a, const V& b) {
    return lanes([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}
inline V vabs(const V& a) {
    return lanes([&](int i) { return __builtin_fabsf(a.v[i]); });
}
inline V vselect_lt(const V& a, const V& b, const V& yes, const V& no) {  // a < b ? yes : no
    return lanes([&](int i) { return a.v[i] < b.v[i] ? yes.v[i] : no.v[i]; });
}
inline V vcopysign(const V& magnitude, const V& sign) {
    return lanes([&](int i) { return __builtin_copysignf(magnitude.v[i], sign.v[i]); });
}
inline V vpow2(const V& n) {  // n integral, -126 .. 127; adding 1.5 * 2^23 leaves n in the low bits, for NaN anything
    return lanes([&](int i) {
        const float shifted = n.v[i] + 12582912.0f;
        std::uint32_t bits;
        std::memcpy(&bits, &shifted, 4);
        bits = (bits - 0x4b400000u + 127u) << 23;
        float power;
        std::memcpy(&power, &bits, 4);
        return power;
    });
}
inline V vround(const V& a) {  // to nearest even, for |a| < 2^22
    return lanes([&](int i) { return (a.v[i] + 12582912.0f) - 12582912.0f; });
}
inline V vldexp(const V& a, const V& n) {  // a * 2^n, n integral, -252 .. 254: in two steps, lest 2^n overflow
    const V half = vround(vmul(n, vset1(0.5f)));
    return vmul(vmul(a, vpow2(half)), vpow2(vsub(n, half)));
}
inline V vtimes_pow2(const V& a, const V& n) { return vmul(a, vpow2(n)); }
inline V vzero_lt(const V& a, const V& b, const V& r) {  // a < b ? 0 : r
    return lanes([&](int i) { return a.v[i] < b.v[i] ? 0.0f : r.v[i]; });
}

inline F load_n(const float* a, std::int64_t n) {
    F r = {};
    std::memcpy(r.p[0].v, a, static_cast<std::size_t>(n) * sizeof(float));
    return r;
}
inline void store_n(float* a, const F& v, std::int64_t n) {
    std::memcpy(a, v.p[0].v, static_cast<std::size_t>(n) * sizeof(float));
}

inline void reduce8(const F v[8], float sums[8]) {
    for (int k = 0; k < 8; ++k) {
        float lane[16];
        std::memcpy(lane, v[k].p[0].v, sizeof lane);
        for (int step = 8; step > 0; step /= 2)
            for (int i = 0; i < step; ++i) lane[i] += lane[i + step];
        sums[k] = lane[0];
    }
}
inline float largest(const F& v) {  // any number where a lane is NaN
    float most = v.p[0].v[0];
    for (int i = 1; i < 16; ++i) most = v.p[0].v[i] > most ? v.p[0].v[i] : most;
    return most;
}

struct B {
    std::uint8_t v[16];
};
template <class Op> inline B bytes(Op op) {
    B r;
    for (int i = 0; i < 16; ++i) r.v[i] = static_cast<std::uint8_t>(op(i));
    return r;
}
inline B b_load(const std::uint8_t* a) {
    B r;
    std::memcpy(r.v, a, 16);
    return r;
}
inline B b_set1(int a) {
    return bytes([=](int) { return a; });
}
inline B b_and(const B& a, const B& b) {
    return bytes([&](int i) { return a.v[i] & b.v[i]; });
}
inline B b_or(const B& a, const B& b) {
    return bytes([&](int i) { return a.v[i] | b.v[i]; });
}
inline B b_sub(const B& a, const B& b) {
    return bytes([&](int i) { return a.v[i] - b.v[i]; });
}
template <int n> inline B b_shl(const B& a) {
    return bytes([&](int i) { return a.v[i] << n; });
}
template <int n> inline B b_shr(const B& a) {
    return bytes([&](int i) { return a.v[i] >> n; });
}
inline B b_where(const B& a, const B& bit, const B& yes) {
    return bytes([&](int i) { return (a.v[i] & bit.v[i]) ? yes.v[i] : 0; });
}
inline B b_bits(std::uint16_t bits, const B& yes) {
    return bytes([&](int i) { return ((bits >> i) & 1) ? yes.v[i] : 0; });
}

inline F from_u8(const B& a) {
    return {{lanes([&](int i) { return static_cast<float>(a.v[i]); })}};
}
inline F from_s8(const B& a) {
    return {{lanes([&](int i) { return static_cast<float>(static_cast<std::int8_t>(a.v[i])); })}};
}

// The half at a (and the one after it) in every lane.
inline F half1(const std::uint8_t* a) { return {{vset1(half_at(a))}}; }
inline void half2(const std::uint8_t* a, F& first, F& second) {
    first = half1(a);
    second = half1(a + 2);
}
inline V vload_f16(const std::uint8_t* a) {
    return lanes([&](int i) { return half_at(a + 2 * i); });
}
inline V vload_s8(const std::uint8_t* a) {
    return lanes([&](int i) { return static_cast<float>(static_cast<std::int8_t>(a[i])); });
}
inline F from_f16(const std::uint8_t* a) { return {{vload_f16(a)}}; }


// 16 halves and 16 signed bytes, to nearest even; the caller keeps them in range.
inline void to_f16(std::uint8_t* a, const F& v) {
    for (int i = 0; i < 16; ++i) {
        const std::uint16_t raw = float_to_half(v.p[0].v[i]);
        std::memcpy(a + 2 * i, &raw, 2);
    }
}
inline void to_s8(std::uint8_t* a, const F& v) {
    for (int i = 0; i < 16; ++i) {
        const float shifted = v.p[0].v[i] + 12582912.0f;  // the rounded number lies in the low bits
        std::uint32_t bits;
        std::memcpy(&bits, &shifted, 4);
        a[i] = static_cast<std::uint8_t>(bits);
    }
}
inline F from_bf16(const std::uint8_t* a) {
    return {{lanes([&](int i) {
        const std::uint32_t bits = static_cast<std::uint32_t>(a[2 * i] | (a[2 * i + 1] << 8)) << 16;
        float value;
        std::memcpy(&value, &bits, 4);
        return value;
    })}};
}

// q * scale + offset of the low and the high nibbles of 16 bytes; the product is exact, so fusing changes nothing.
inline void nibbles(const std::uint8_t* a, const F& scale, const F& offset, F& low, F& high) {
    low.p[0] = lanes([&](int i) { return static_cast<float>(a[i] & 15) * scale.p[0].v[i] + offset.p[0].v[i]; });
    high.p[0] = lanes([&](int i) { return static_cast<float>(a[i] >> 4) * scale.p[0].v[i] + offset.p[0].v[i]; });
}


// Integer lanes (vec_avx512.hpp).
struct W {
    std::uint8_t v[64];
};
struct I {
    std::int32_t v[16];
};
template <class Op> inline W w_bytes(Op op) {
    W r;
    for (int i = 0; i < 64; ++i) r.v[i] = static_cast<std::uint8_t>(op(i));
    return r;
}
inline W w_load(const std::uint8_t* a, int) {
    W r;
    std::memcpy(r.v, a, 64);
    return r;
}
inline W w_or(const W& a, const W& b) {
    return w_bytes([&](int i) { return a.v[i] | b.v[i]; });
}
inline W w_low_nibbles(const W& a) {
    return w_bytes([&](int i) { return a.v[i] & 15; });
}
inline W w_high_nibbles(const W& a) {
    return w_bytes([&](int i) { return a.v[i] >> 4; });
}
inline W w_or_bits(const W& q, const std::uint8_t* a, int) {
    return w_bytes([&](int i) { return q.v[i] | (((a[i / 8] >> (i % 8)) & 1) << 4); });
}
inline W w_two_bits(const W& a, int n) {
    return w_bytes([&](int i) { return ((a.v[i] >> (2 * n)) & 3) << 4; });
}
inline I i_set1(int a) {
    I r;
    for (int i = 0; i < 16; ++i) r.v[i] = a;
    return r;
}
inline I i_start_byte(int sum) { return i_set1(-128 * sum); }
inline I i_add(I a, const I& b) {
    for (int i = 0; i < 16; ++i) a.v[i] += b.v[i];
    return a;
}
template <bool byte> inline I dot_add(I dot, const W& q, const std::int8_t* x) {
    for (int i = 0; i < 16; ++i)
        dot.v[i] += q.v[4 * i] * x[0] + q.v[4 * i + 1] * x[1] + q.v[4 * i + 2] * x[2] + q.v[4 * i + 3] * x[3];
    return dot;
}
inline V v_from_int(const I& a) {
    return lanes([&](int i) { return static_cast<float>(a.v[i]); });
}
inline V v_from_f16(const std::uint8_t* a, int) { return from_f16(a).p[0]; }
inline float largest_of(const F& a, const F& b) {
    std::uint32_t most = 0;
    for (const F* f : {&a, &b})
        for (int i = 0; i < 16; ++i) {
            std::uint32_t bits;
            std::memcpy(&bits, &f->p[0].v[i], 4);
            bits &= 0x7fffffffu;
            most = bits > most ? bits : most;
        }
    float value;
    std::memcpy(&value, &most, 4);
    return value;
}
inline void store_s8(std::int8_t* to, const F& a) {
    for (int i = 0; i < 16; ++i) {
        const float shifted = a.p[0].v[i] + 12582912.0f;
        std::uint32_t bits;
        std::memcpy(&bits, &shifted, 4);
        to[i] = static_cast<std::int8_t>(bits - 0x4b400000u);
    }
}
inline std::int32_t sum_s8(const std::int8_t* a) {  // of sixteen
    std::int32_t sum = 0;
    for (int i = 0; i < 16; ++i) sum += a[i];
    return sum;
}

}  // namespace
