// What the two x86 vector widths share: 16-byte integer vectors and the final sum over lanes. Internal linkage.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace {

using B = __m128i;  // 16 bytes
inline B b_load(const std::uint8_t* a) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(a)); }
inline B b_set1(int a) { return _mm_set1_epi8(static_cast<char>(a)); }
inline B b_and(B a, B b) { return _mm_and_si128(a, b); }
inline B b_or(B a, B b) { return _mm_or_si128(a, b); }
inline B b_sub(B a, B b) { return _mm_sub_epi8(a, b); }
template <int n> inline B b_shl(B a) { return _mm_slli_epi16(a, n); }  // bits cross bytes: mask the result
template <int n> inline B b_shr(B a) { return _mm_srli_epi16(a, n); }

inline float half_at(const std::uint8_t* a) { return _mm_cvtss_f32(_mm_cvtph_ps(_mm_loadu_si16(a))); }

// The sum of sixteen signed bytes.
inline std::int32_t sum_s8(const std::int8_t* a) {
    const B biased = _mm_xor_si128(_mm_loadu_si128(reinterpret_cast<const __m128i*>(a)), _mm_set1_epi8(-128));
    const __m128i halves = _mm_sad_epu8(biased, _mm_setzero_si128());
    return _mm_cvtsi128_si32(halves) + _mm_extract_epi16(halves, 4) - 16 * 128;
}

// sums[i] = the sum of v[i]'s lanes, added as a tree: i + 4, i + 2, i + 1 (the callers have added i + 8).
inline __m256 sum_lanes(const __m256 v[8]) {
    __m256 four[4], two[2];
    for (int i = 0; i < 4; ++i)
        four[i] = _mm256_add_ps(_mm256_permute2f128_ps(v[i], v[i + 4], 0x20), _mm256_permute2f128_ps(v[i], v[i + 4], 0x31));
    for (int i = 0; i < 2; ++i) {
        const __m256d a = _mm256_castps_pd(four[2 * i]), b = _mm256_castps_pd(four[2 * i + 1]);
        two[i] = _mm256_add_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(a, b)), _mm256_castpd_ps(_mm256_unpackhi_pd(a, b)));
    }
    return _mm256_add_ps(_mm256_shuffle_ps(two[0], two[1], 0x88), _mm256_shuffle_ps(two[0], two[1], 0xdd));
}

}  // namespace
