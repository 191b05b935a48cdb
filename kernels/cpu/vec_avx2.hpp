// 16 lanes in two AVX2 registers. Included once, by kernels_avx2.cpp; everything has internal linkage (vec_avx512.hpp).
#pragma once

#include <cstdint>
#include <cstring>
#include <initializer_list>

#include "kernels/cpu/vec_x86.hpp"

namespace {

using V = __m256;
constexpr int kParts = 2, kWidth = 8;
constexpr int kTileRows = 3, kTileOuts = 2;  // register tile: 12 accumulators, 2 weights, 1 activation
constexpr int kFusedRows = 1;
constexpr int kAttendRows = 3, kAttendCols = 4;  // attention's tile: query rows x registers of keys or dimensions

struct F {
    V p[kParts];
};

inline V vload(const float* a) { return _mm256_loadu_ps(a); }
inline void vstore(float* a, V v) { _mm256_storeu_ps(a, v); }
inline V vset1(float a) { return _mm256_set1_ps(a); }
inline V vadd(V a, V b) { return _mm256_add_ps(a, b); }
inline V vsub(V a, V b) { return _mm256_sub_ps(a, b); }
inline V vmul(V a, V b) { return _mm256_mul_ps(a, b); }
inline V vdiv(V a, V b) { return _mm256_div_ps(a, b); }
inline V vfma(V a, V b, V c) { return _mm256_fmadd_ps(a, b, c); }
inline V vmax(V a, V b) { return _mm256_max_ps(a, b); }  // b where either is NaN
inline V vmin(V a, V b) { return _mm256_min_ps(a, b); }
inline V vabs(V a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
inline V vselect_lt(V a, V b, V yes, V no) {  // a < b ? yes : no
    return _mm256_blendv_ps(no, yes, _mm256_cmp_ps(a, b, _CMP_LT_OQ));
}
inline V vcopysign(V magnitude, V sign) {
    const V bit = _mm256_set1_ps(-0.0f);
    return _mm256_or_ps(_mm256_andnot_ps(bit, magnitude), _mm256_and_ps(bit, sign));
}
inline V vpow2(V n) {  // n integral, -126 .. 127
    const __m256i biased = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(biased, 23));
}
inline V vround(V a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline V vldexp(V a, V n) {  // a * 2^n, n integral, -252 .. 254: in two steps, lest 2^n overflow
    const V half = vround(_mm256_mul_ps(n, _mm256_set1_ps(0.5f)));
    return _mm256_mul_ps(_mm256_mul_ps(a, vpow2(half)), vpow2(_mm256_sub_ps(n, half)));
}
inline V vtimes_pow2(V a, V n) { return _mm256_mul_ps(a, vpow2(n)); }
inline V vzero_lt(V a, V b, V r) { return _mm256_and_ps(_mm256_cmp_ps(a, b, _CMP_NLT_UQ), r); }  // a < b ? 0 : r

inline F load_n(const float* a, std::int64_t n) {
    alignas(32) float lanes[16] = {};
    std::memcpy(lanes, a, static_cast<std::size_t>(n) * sizeof(float));
    return {{_mm256_load_ps(lanes), _mm256_load_ps(lanes + 8)}};
}
inline void store_n(float* a, const F& v, std::int64_t n) {
    alignas(32) float lanes[16];
    _mm256_store_ps(lanes, v.p[0]);
    _mm256_store_ps(lanes + 8, v.p[1]);
    std::memcpy(a, lanes, static_cast<std::size_t>(n) * sizeof(float));
}

inline void reduce8(const F v[8], float sums[8]) {
    __m256 half[8];
    for (int i = 0; i < 8; ++i) half[i] = _mm256_add_ps(v[i].p[0], v[i].p[1]);
    _mm256_storeu_ps(sums, sum_lanes(half));
}

inline float largest(const F& v) {  // any number where a lane is NaN
    const __m256 eight = _mm256_max_ps(v.p[0], v.p[1]);
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    four = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
}

inline B b_where(B a, B bit, B yes) { return _mm_and_si128(_mm_cmpeq_epi8(_mm_and_si128(a, bit), bit), yes); }
inline B b_bits(std::uint16_t bits, B yes) {
    const B spread = _mm_shuffle_epi8(_mm_set1_epi16(static_cast<short>(bits)),
                                      _mm_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1));
    return b_where(spread, _mm_set1_epi64x(static_cast<long long>(0x8040201008040201ull)), yes);
}

// The half at a (and the one after it) in every lane.
inline F half1(const std::uint8_t* a) {
    const V d = _mm256_broadcastss_ps(_mm_cvtph_ps(_mm_loadu_si16(a)));
    return {{d, d}};
}
inline void half2(const std::uint8_t* a, F& first, F& second) {
    const __m128 both = _mm_cvtph_ps(_mm_loadu_si32(a));
    first.p[0] = first.p[1] = _mm256_broadcastss_ps(both);
    second.p[0] = second.p[1] = _mm256_broadcastss_ps(_mm_movehdup_ps(both));
}

inline V vload_f16(const std::uint8_t* a) { return _mm256_cvtph_ps(b_load(a)); }
inline V vload_s8(const std::uint8_t* a) { return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadu_si64(a))); }

inline F from_u8(B a) {
    return {{_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(a)),
             _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_unpackhi_epi64(a, a)))}};
}
inline F from_s8(B a) {
    return {{_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(a)),
             _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_unpackhi_epi64(a, a)))}};
}
inline F from_f16(const std::uint8_t* a) { return {{vload_f16(a), vload_f16(a + 16)}}; }
// 16 halves and 16 signed bytes, to nearest even; the caller keeps them in range.
inline void to_f16(std::uint8_t* a, const F& v) {
    for (int i = 0; i < kParts; ++i)
        _mm_storeu_si128(reinterpret_cast<__m128i*>(a + 16 * i), _mm256_cvtps_ph(v.p[i], _MM_FROUND_TO_NEAREST_INT));
}
inline void to_s8(std::uint8_t* a, const F& v) {
    const __m256i low = _mm256_cvtps_epi32(v.p[0]), high = _mm256_cvtps_epi32(v.p[1]);
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(low, high), 0xd8);
    const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(a), bytes);
}
inline V widen_bf16(B raw) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(raw), 16)); }
inline F from_bf16(const std::uint8_t* a) { return {{widen_bf16(b_load(a)), widen_bf16(b_load(a + 16))}}; }

// q * scale + offset of the low and the high nibbles of 16 bytes.
inline void nibbles(const std::uint8_t* a, const F& scale, const F& offset, F& low, F& high) {
    const B raw = b_load(a), mask = b_set1(15);
    low = from_u8(b_and(raw, mask));
    high = from_u8(b_and(b_shr<4>(raw), mask));
    for (int i = 0; i < kParts; ++i) {
        low.p[i] = vfma(low.p[i], scale.p[i], offset.p[i]);
        high.p[i] = vfma(high.p[i], scale.p[i], offset.p[i]);
    }
}


// Integer lanes (vec_avx512.hpp): W is the 32 bytes of part p's 8 lanes.
using W = __m256i;
using I = __m256i;
inline W w_load(const std::uint8_t* a, int p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(a + 32 * p));
}
inline W w_or(W a, W b) { return _mm256_or_si256(a, b); }
inline W w_low_nibbles(W a) { return _mm256_and_si256(a, _mm256_set1_epi8(15)); }
inline W w_high_nibbles(W a) { return _mm256_and_si256(_mm256_srli_epi16(a, 4), _mm256_set1_epi8(15)); }
inline W w_or_bits(W q, const std::uint8_t* a, int p) {
    std::int32_t bits;
    std::memcpy(&bits, a + 4 * p, 4);
    const W bytes = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const W bit = _mm256_set1_epi64x(static_cast<long long>(0x8040201008040201ull));
    const W set = _mm256_cmpeq_epi8(_mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32(bits), bytes), bit), bit);
    return _mm256_or_si256(q, _mm256_and_si256(set, _mm256_set1_epi8(16)));
}
inline W w_two_bits(W a, int n) {
    const W moved = n < 2 ? _mm256_slli_epi16(a, 4 - 2 * n) : _mm256_srli_epi16(a, 2 * n - 4);
    return _mm256_and_si256(moved, _mm256_set1_epi8(0x30));
}
inline I i_set1(int a) { return _mm256_set1_epi32(a); }
inline I i_add(I a, I b) { return _mm256_add_epi32(a, b); }
inline I i_start_byte(int) { return _mm256_setzero_si256(); }
// maddubs adds two products in 16 bits: q < 64 fits; a byte is taken as signed, with its sign moved to the activation.
template <bool byte> inline I dot_add(I dot, W q, const std::int8_t* x) {
    std::int32_t quad;
    std::memcpy(&quad, x, 4);
    W signed_x = _mm256_set1_epi32(quad);
    if constexpr (byte) {
        q = _mm256_xor_si256(q, _mm256_set1_epi8(-128));
        signed_x = _mm256_sign_epi8(signed_x, q);
        q = _mm256_abs_epi8(q);
    }
    return _mm256_add_epi32(dot, _mm256_madd_epi16(_mm256_maddubs_epi16(q, signed_x), _mm256_set1_epi16(1)));
}
inline V v_from_int(I a) { return _mm256_cvtepi32_ps(a); }
inline V v_from_f16(const std::uint8_t* a, int p) { return _mm256_cvtph_ps(b_load(a + 16 * p)); }
inline float largest_of(const F& a, const F& b) {
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
    __m256i bits = _mm256_setzero_si256();
    for (const V v : {a.p[0], a.p[1], b.p[0], b.p[1]})
        bits = _mm256_max_epu32(bits, _mm256_and_si256(_mm256_castps_si256(v), magnitude));
    __m128i most = _mm_max_epu32(_mm256_castsi256_si128(bits), _mm256_extracti128_si256(bits, 1));
    most = _mm_max_epu32(most, _mm_shuffle_epi32(most, 0x4e));
    most = _mm_max_epu32(most, _mm_shuffle_epi32(most, 0xb1));
    return _mm_cvtss_f32(_mm_castsi128_ps(most));
}
inline void store_s8(std::int8_t* to, const F& a) {
    const __m256i words = _mm256_permute4x64_epi64(
        _mm256_packs_epi32(_mm256_cvtps_epi32(a.p[0]), _mm256_cvtps_epi32(a.p[1])), 0xd8);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                     _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
}

}  // namespace
