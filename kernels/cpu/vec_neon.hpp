// 16 lanes in four NEON registers, for AArch64. Included once for each of its builds (with and without the dot product
// instructions of ARMv8.2); everything has internal linkage (vec_avx512.hpp).
#pragma once

#include <arm_neon.h>

#include <cstdint>
#include <cstring>

namespace {

using V = float32x4_t;
constexpr int kParts = 4, kWidth = 4;
constexpr int kTileRows = 2, kTileOuts = 2;  // register tile: 16 accumulators, 2 weights, 1 activation
constexpr int kFusedRows = 1;
constexpr int kAttendRows = 3, kAttendCols = 4;  // attention's tile: query rows x registers of keys or dimensions

struct F {
    V p[kParts];
};
template <class Op> inline F each(Op op) {
    return {{op(0), op(1), op(2), op(3)}};
}

inline V vload(const float* a) { return vld1q_f32(a); }
inline void vstore(float* a, V v) { vst1q_f32(a, v); }
inline V vset1(float a) { return vdupq_n_f32(a); }
inline V vadd(V a, V b) { return vaddq_f32(a, b); }
inline V vsub(V a, V b) { return vsubq_f32(a, b); }
inline V vmul(V a, V b) { return vmulq_f32(a, b); }
inline V vdiv(V a, V b) { return vdivq_f32(a, b); }
inline V vfma(V a, V b, V c) { return vfmaq_f32(c, a, b); }
inline V vmax(V a, V b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }  // b where either is NaN
inline V vmin(V a, V b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
inline V vabs(V a) { return vabsq_f32(a); }
inline V vselect_lt(V a, V b, V yes, V no) { return vbslq_f32(vcltq_f32(a, b), yes, no); }  // a < b ? yes : no
inline V vcopysign(V magnitude, V sign) { return vbslq_f32(vdupq_n_u32(0x80000000u), sign, magnitude); }
inline V vpow2(V n) {  // n integral, -126 .. 127
    return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vcvtnq_s32_f32(n), vdupq_n_s32(127)), 23));
}
inline V vround(V a) { return vrndnq_f32(a); }  // to nearest even
inline V vldexp(V a, V n) {  // a * 2^n, n integral, -252 .. 254: in two steps, lest 2^n overflow
    const V half = vround(vmul(n, vset1(0.5f)));
    return vmul(vmul(a, vpow2(half)), vpow2(vsub(n, half)));
}
inline V vtimes_pow2(V a, V n) { return vmul(a, vpow2(n)); }
inline V vzero_lt(V a, V b, V r) { return vbslq_f32(vcltq_f32(a, b), vdupq_n_f32(0.0f), r); }  // a < b ? 0 : r

inline F load_n(const float* a, std::int64_t n) {
    float lanes[16] = {};
    std::memcpy(lanes, a, static_cast<std::size_t>(n) * sizeof(float));
    return each([&](int i) { return vload(lanes + 4 * i); });
}
inline void store_n(float* a, const F& v, std::int64_t n) {
    float lanes[16];
    for (int i = 0; i < 4; ++i) vstore(lanes + 4 * i, v.p[i]);
    std::memcpy(a, lanes, static_cast<std::size_t>(n) * sizeof(float));
}

// Lane i with i + 8, + 4, + 2, + 1.
inline void reduce8(const F v[8], float sums[8]) {
    for (int k = 0; k < 8; ++k) {
        const V four = vaddq_f32(vaddq_f32(v[k].p[0], v[k].p[2]), vaddq_f32(v[k].p[1], v[k].p[3]));
        const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
        sums[k] = vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
    }
}
inline float largest(const F& v) {  // any number where a lane is NaN
    return vmaxvq_f32(vmaxq_f32(vmaxq_f32(v.p[0], v.p[1]), vmaxq_f32(v.p[2], v.p[3])));
}

using B = uint8x16_t;
inline B b_load(const std::uint8_t* a) { return vld1q_u8(a); }
inline B b_set1(int a) { return vdupq_n_u8(static_cast<std::uint8_t>(a)); }
inline B b_and(B a, B b) { return vandq_u8(a, b); }
inline B b_or(B a, B b) { return vorrq_u8(a, b); }
inline B b_sub(B a, B b) { return vsubq_u8(a, b); }
template <int n> inline B b_shl(B a) { return vshlq_n_u8(a, n); }
template <int n> inline B b_shr(B a) { return vshrq_n_u8(a, n); }
inline B b_where(B a, B bit, B yes) { return vandq_u8(vtstq_u8(a, bit), yes); }
inline B b_bits(std::uint16_t bits, B yes) {
    const B bit = vreinterpretq_u8_u64(vdupq_n_u64(0x8040201008040201ull));
    const B spread = vcombine_u8(vdup_n_u8(static_cast<std::uint8_t>(bits)), vdup_n_u8(static_cast<std::uint8_t>(bits >> 8)));
    return b_where(spread, bit, yes);
}

// Eight halves and eight signed bytes as floats: of register `high` of two.
inline V widen_f16(uint16x4_t a) { return vcvt_f32_f16(vreinterpret_f16_u16(a)); }
inline V widen_s16(int16x4_t a) { return vcvtq_f32_s32(vmovl_s16(a)); }
inline uint16x4_t load_u16(const std::uint8_t* a) {
    std::uint16_t four[4];
    std::memcpy(four, a, sizeof four);
    return vld1_u16(four);
}
inline V vload_f16(const std::uint8_t* a) { return widen_f16(load_u16(a)); }
inline V vload_s8(const std::uint8_t* a) {
    std::uint32_t four;
    std::memcpy(&four, a, 4);
    return widen_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_u32(vdup_n_u32(four)))));
}
inline float half_at(const std::uint8_t* a) {
    std::uint16_t raw;
    std::memcpy(&raw, a, 2);
    return vgetq_lane_f32(widen_f16(vdup_n_u16(raw)), 0);
}
// The half at a (and the one after it) in every lane.
inline F half1(const std::uint8_t* a) {
    const V value = vset1(half_at(a));
    return {{value, value, value, value}};
}
inline void half2(const std::uint8_t* a, F& first, F& second) {
    first = half1(a);
    second = half1(a + 2);
}
inline F from_u16(uint16x8_t low, uint16x8_t high) {
    return {{vcvtq_f32_u32(vmovl_u16(vget_low_u16(low))), vcvtq_f32_u32(vmovl_high_u16(low)),
             vcvtq_f32_u32(vmovl_u16(vget_low_u16(high))), vcvtq_f32_u32(vmovl_high_u16(high))}};
}
inline F from_u8(B a) { return from_u16(vmovl_u8(vget_low_u8(a)), vmovl_high_u8(a)); }
inline F from_s8(B a) {
    const int8x16_t digits = vreinterpretq_s8_u8(a);
    const int16x8_t low = vmovl_s8(vget_low_s8(digits)), high = vmovl_high_s8(digits);
    return {{widen_s16(vget_low_s16(low)), widen_s16(vget_high_s16(low)), widen_s16(vget_low_s16(high)),
             widen_s16(vget_high_s16(high))}};
}
inline F from_f16(const std::uint8_t* a) {
    return each([&](int i) { return vload_f16(a + 8 * i); });
}
inline F from_bf16(const std::uint8_t* a) {
    return each([&](int i) { return vreinterpretq_f32_u32(vshll_n_u16(load_u16(a + 8 * i), 16)); });
}

// 16 halves and 16 signed bytes, to nearest even; the caller keeps them in range.
inline void to_f16(std::uint8_t* a, const F& v) {
    for (int i = 0; i < 4; ++i) {
        std::uint16_t four[4];
        vst1_u16(four, vreinterpret_u16_f16(vcvt_f16_f32(v.p[i])));
        std::memcpy(a + 8 * i, four, sizeof four);
    }
}
inline int8x16_t rounded(const F& v) {
    const auto words = [&](int i) { return vcombine_s16(vqmovn_s32(vcvtnq_s32_f32(v.p[i])), vqmovn_s32(vcvtnq_s32_f32(v.p[i + 1]))); };
    return vcombine_s8(vqmovn_s16(words(0)), vqmovn_s16(words(2)));
}
inline void to_s8(std::uint8_t* a, const F& v) { vst1q_u8(a, vreinterpretq_u8_s8(rounded(v))); }

// q * scale + offset of the low and the high nibbles of 16 bytes.
inline void nibbles(const std::uint8_t* a, const F& scale, const F& offset, F& low, F& high) {
    const B raw = b_load(a);
    const F l = from_u8(b_and(raw, b_set1(15))), h = from_u8(b_shr<4>(raw));
    low = each([&](int i) { return vfma(l.p[i], scale.p[i], offset.p[i]); });
    high = each([&](int i) { return vfma(h.p[i], scale.p[i], offset.p[i]); });
}

// Integer lanes (vec_avx512.hpp): W is the 16 bytes of part p's 4 lanes.
using W = uint8x16_t;
using I = int32x4_t;
inline W w_load(const std::uint8_t* a, int p) { return vld1q_u8(a + 16 * p); }
inline W w_or(W a, W b) { return vorrq_u8(a, b); }
inline W w_low_nibbles(W a) { return vandq_u8(a, vdupq_n_u8(15)); }
inline W w_high_nibbles(W a) { return vshrq_n_u8(a, 4); }
inline W w_or_bits(W q, const std::uint8_t* a, int p) {
    std::uint16_t bits;
    std::memcpy(&bits, a + 2 * p, 2);
    return vorrq_u8(q, b_bits(bits, vdupq_n_u8(16)));
}
inline W w_two_bits(W a, int n) {
    return vandq_u8(vshlq_u8(a, vdupq_n_s8(static_cast<std::int8_t>(4 - 2 * n))), vdupq_n_u8(0x30));
}
inline I i_set1(int a) { return vdupq_n_s32(a); }
inline I i_add(I a, I b) { return vaddq_s32(a, b); }
inline I i_start_byte(int) { return vdupq_n_s32(0); }
// All weights as signed bytes: those of up to six bits are, a byte's 128 is taken off.
template <bool byte> inline I dot_add(I dot, W q, const std::int8_t* x) {
    std::int32_t quad;
    std::memcpy(&quad, x, 4);
    const int8x16_t activation = vreinterpretq_s8_s32(vdupq_n_s32(quad));
    const int8x16_t weight = vreinterpretq_s8_u8(byte ? veorq_u8(q, vdupq_n_u8(0x80)) : q);
#if defined(__ARM_FEATURE_DOTPROD)
    return vdotq_s32(dot, weight, activation);
#else
    const int16x8_t low = vmull_s8(vget_low_s8(weight), vget_low_s8(activation)), high = vmull_high_s8(weight, activation);
    return vaddq_s32(dot, vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high)));
#endif
}
inline V v_from_int(I a) { return vcvtq_f32_s32(a); }
inline V v_from_f16(const std::uint8_t* a, int p) { return vload_f16(a + 8 * p); }
inline float largest_of(const F& a, const F& b) {  // NaN where there is one
    uint32x4_t most = vdupq_n_u32(0);
    for (int i = 0; i < 4; ++i) {
        most = vmaxq_u32(most, vreinterpretq_u32_f32(vabsq_f32(a.p[i])));
        most = vmaxq_u32(most, vreinterpretq_u32_f32(vabsq_f32(b.p[i])));
    }
    const std::uint32_t bits = vmaxvq_u32(most);
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}
inline void store_s8(std::int8_t* to, const F& a) { vst1q_s8(to, rounded(a)); }
inline std::int32_t sum_s8(const std::int8_t* a) { return vaddlvq_s8(vld1q_s8(a)); }  // of sixteen

}  // namespace
