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

// Eight neighbouring numbers of each of sixteen rows, by column: halves, or signed bytes as 16-bit integers.
struct Columns8 {
    __m256i c[8];
};

// Columns of sixteen rows of eight 16-bit numbers, given with row k beside row k + 8.
inline Columns8 transpose_16bit(const __m256i row[8]) {
    __m256i a[8], b[8];
    for (int i = 0; i < 8; i += 2) {
        a[i] = _mm256_unpacklo_epi16(row[i], row[i + 1]);
        a[i + 1] = _mm256_unpackhi_epi16(row[i], row[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {  // b[i + j]: columns 2j and 2j + 1 of four rows
        b[i] = _mm256_unpacklo_epi32(a[i], a[i + 2]);
        b[i + 1] = _mm256_unpackhi_epi32(a[i], a[i + 2]);
        b[i + 2] = _mm256_unpacklo_epi32(a[i + 1], a[i + 3]);
        b[i + 3] = _mm256_unpackhi_epi32(a[i + 1], a[i + 3]);
    }
    Columns8 r;
    for (int j = 0; j < 4; ++j) {
        r.c[2 * j] = _mm256_unpacklo_epi64(b[j], b[j + 4]);
        r.c[2 * j + 1] = _mm256_unpackhi_epi64(b[j], b[j + 4]);
    }
    return r;
}
inline Columns8 f16_columns8(const std::uint8_t* const row[16], std::int64_t offset) {
    __m256i pair[8];
    for (int k = 0; k < 8; ++k) {
        const __m256i low = _mm256_castsi128_si256(b_load(row[k] + offset));
        pair[k] = _mm256_inserti128_si256(low, b_load(row[k + 8] + offset), 1);
    }
    return transpose_16bit(pair);
}
inline Columns8 s8_columns8(const std::uint8_t* const row[16], std::int64_t offset) {
    __m256i pair[8];
    for (int k = 0; k < 8; ++k)
        pair[k] = _mm256_cvtepi8_epi16(
            _mm_unpacklo_epi64(_mm_loadu_si64(row[k] + offset), _mm_loadu_si64(row[k + 8] + offset)));
    return transpose_16bit(pair);
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
