// 16 lanes in one AVX-512 register. Included once, by kernels_avx512.cpp; everything has internal linkage, so that no
// function compiled for AVX-512 can stand in for a baseline one at link time.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/cpu/vec_x86.hpp"

namespace {

using V = __m512;
constexpr int kParts = 1, kWidth = 16;
constexpr int kTileRows = 6, kTileOuts = 4;   // register tile: 24 accumulators, 4 weights, 1 activation
constexpr int kFusedRows = 4;                 // up to here a weight is used straight from its decoded register
constexpr int kAttendRows = 6, kAttendCols = 4;  // attention's tile: query rows x registers of keys or dimensions

struct F {
    V p[kParts];
};

inline V vload(const float* a) { return _mm512_loadu_ps(a); }
inline void vstore(float* a, V v) { _mm512_storeu_ps(a, v); }
inline V vset1(float a) { return _mm512_set1_ps(a); }
inline V vadd(V a, V b) { return _mm512_add_ps(a, b); }
inline V vsub(V a, V b) { return _mm512_sub_ps(a, b); }
inline V vmul(V a, V b) { return _mm512_mul_ps(a, b); }
inline V vdiv(V a, V b) { return _mm512_div_ps(a, b); }
inline V vfma(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
inline V vmax(V a, V b) { return _mm512_max_ps(a, b); }  // b where either is NaN
inline V vmin(V a, V b) { return _mm512_min_ps(a, b); }
inline V vabs(V a) { return _mm512_abs_ps(a); }
inline V vselect_lt(V a, V b, V yes, V no) {  // a < b ? yes : no
    return _mm512_mask_mov_ps(no, _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), yes);
}
inline V vcopysign(V magnitude, V sign) {
    const V bit = _mm512_set1_ps(-0.0f);
    return _mm512_or_ps(_mm512_andnot_ps(bit, magnitude), _mm512_and_ps(bit, sign));
}
inline V vround(V a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline V vldexp(V a, V n) { return _mm512_scalef_ps(a, n); }  // a * 2^n, n integral
inline V vtimes_pow2(V a, V n) { return _mm512_scalef_ps(a, n); }  // the same where a and 2^n and the result are normal
inline V vzero_lt(V a, V b, V r) {  // a < b ? 0 : r
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(a, b, _CMP_NLT_UQ), r);
}

inline __mmask16 first_lanes(std::int64_t n) { return static_cast<__mmask16>((1u << n) - 1u); }
inline F load_n(const float* a, std::int64_t n) { return {{_mm512_maskz_loadu_ps(first_lanes(n), a)}}; }
inline void store_n(float* a, const F& v, std::int64_t n) { _mm512_mask_storeu_ps(a, first_lanes(n), v.p[0]); }

inline void reduce8(const F v[8], float sums[8]) {
    __m256 half[8];
    for (int i = 0; i < 8; ++i)
        half[i] = _mm256_add_ps(_mm512_castps512_ps256(v[i].p[0]), _mm512_extractf32x8_ps(v[i].p[0], 1));
    _mm256_storeu_ps(sums, sum_lanes(half));
}

inline float largest(const F& v) { return _mm512_reduce_max_ps(v.p[0]); }  // any number where a lane is NaN

inline B b_where(B a, B bit, B yes) { return _mm_maskz_mov_epi8(_mm_test_epi8_mask(a, bit), yes); }
inline B b_bits(std::uint16_t bits, B yes) { return _mm_maskz_mov_epi8(bits, yes); }

// The half at a (and the one after it) in every lane.
inline F half1(const std::uint8_t* a) {
    std::uint16_t raw;
    std::memcpy(&raw, a, 2);
    return {{_mm512_cvtph_ps(_mm256_set1_epi16(static_cast<short>(raw)))}};
}
inline void half2(const std::uint8_t* a, F& first, F& second) {
    const __m128 both = _mm_cvtph_ps(_mm_loadu_si32(a));
    first.p[0] = _mm512_broadcastss_ps(both);
    second.p[0] = _mm512_broadcastss_ps(_mm_movehdup_ps(both));
}

inline V vload_f16(const std::uint8_t* a) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(a)));
}
inline V vload_s8(const std::uint8_t* a) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(b_load(a))); }

inline F from_u8(B a) { return {{_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(a))}}; }
inline F from_s8(B a) { return {{_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(a))}}; }
inline F from_f16(const std::uint8_t* a) { return {{vload_f16(a)}}; }

// 16 halves and 16 signed bytes, to nearest even; the caller keeps them in range.
inline void to_f16(std::uint8_t* a, const F& v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(a), _mm512_cvtps_ph(v.p[0], _MM_FROUND_TO_NEAREST_INT));
}
inline void to_s8(std::uint8_t* a, const F& v) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(a), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(v.p[0])));
}
inline F from_bf16(const std::uint8_t* a) {
    const __m256i raw = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(a));
    return {{_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(raw), 16))}};
}

// q * scale + offset of the low and the high nibbles of 16 bytes, by a table of the 16 possible values. The permute
// looks at the low four bits of an index only.
inline void nibbles(const std::uint8_t* a, const F& scale, const F& offset, F& low, F& high) {
    const V digits = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const V table = _mm512_fmadd_ps(digits, scale.p[0], offset.p[0]);
    const __m512i index = _mm512_cvtepu8_epi32(b_load(a));
    low.p[0] = _mm512_permutexvar_ps(index, table);
    high.p[0] = _mm512_permutexvar_ps(_mm512_srli_epi32(index, 4), table);
}


// Integer lanes: W is 64 bytes, four a lane; I is 16 sums. p: the part of the lanes (packed_linear.hpp), here always 0.
using W = __m512i;
using I = __m512i;
inline W w_load(const std::uint8_t* a, int) { return _mm512_loadu_si512(a); }
inline W w_or(W a, W b) { return _mm512_or_si512(a, b); }
inline W w_low_nibbles(W a) { return _mm512_and_si512(a, _mm512_set1_epi8(15)); }
inline W w_high_nibbles(W a) { return _mm512_and_si512(_mm512_srli_epi16(a, 4), _mm512_set1_epi8(15)); }
// q, with bit 4 of byte i set where bit i of the 8 bytes at a is.
inline W w_or_bits(W q, const std::uint8_t* a, int) {
    std::uint64_t bits;
    std::memcpy(&bits, a, 8);
    return _mm512_or_si512(q, _mm512_maskz_set1_epi8(bits, 16));
}
// Bits 2 n and 2 n + 1 of each byte as bits 4 and 5.
inline W w_two_bits(W a, int n) {
    const W moved = n < 2 ? _mm512_slli_epi16(a, static_cast<unsigned>(4 - 2 * n)) : _mm512_srli_epi16(a, static_cast<unsigned>(2 * n - 4));
    return _mm512_and_si512(moved, _mm512_set1_epi8(0x30));
}
inline I i_set1(int a) { return _mm512_set1_epi32(a); }
inline I i_add(I a, I b) { return _mm512_add_epi32(a, b); }
inline I i_start_byte(int sum) { return _mm512_set1_epi32(-128 * sum); }
// Adds the products of four unsigned weights a lane with the four signed activations at x.
template <bool byte> inline I dot_add(I dot, W q, const std::int8_t* x) {
    std::int32_t quad;
    std::memcpy(&quad, x, 4);
    return _mm512_dpbusd_epi32(dot, q, _mm512_set1_epi32(quad));
}
inline V v_from_int(I a) { return _mm512_cvtepi32_ps(a); }
inline V v_from_f16(const std::uint8_t* a, int) { return from_f16(a).p[0]; }
// The largest magnitude of 32 floats; NaN where there is one.
inline float largest_of(const F& a, const F& b) {
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    const __m512i bits = _mm512_max_epu32(_mm512_and_si512(_mm512_castps_si512(a.p[0]), magnitude),
                                          _mm512_and_si512(_mm512_castps_si512(b.p[0]), magnitude));
    const std::uint32_t largest = _mm512_reduce_max_epu32(bits);
    float value;
    std::memcpy(&value, &largest, 4);
    return value;
}
// Rounds to nearest even; NaN becomes anything.
inline void store_s8(std::int8_t* to, const F& a) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(a.p[0])));
}

}  // namespace
