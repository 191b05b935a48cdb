// The loops of sampling.hpp over a compiler's own vectors, of the size that the instruction set has. Included once for
// each instruction set; internal linkage.
//
// exp of x <= 0: n = round(x / ln 2), a polynomial of degree 11 on |r| <= ln 2 / 2, times 2^n; within one unit in the
// last place. Below the smallest normal number the result is 0, as the law drops such weights.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "kernels/cpu/sampling.hpp"

namespace safegen::cpu {
namespace {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif
constexpr int kFloats = kVectorBytes / 4, kDoubles = kVectorBytes / 8;
using Floats = float __attribute__((vector_size(kVectorBytes)));
using FloatBits = std::int32_t __attribute__((vector_size(kVectorBytes)));
using HalfFloats = float __attribute__((vector_size(kVectorBytes / 2)));
using Doubles = double __attribute__((vector_size(kVectorBytes)));
using DoubleBits = std::int64_t __attribute__((vector_size(kVectorBytes)));

constexpr double kLogSmallest = -708.3964185322641;  // exp of less is not a normal number

// Plain casts between vectors of one size keep the bits.
inline Doubles fused(Doubles a, Doubles b, Doubles c) {  // a * b + c, in one rounding where the processor can
#if defined(__AVX512F__)
    return (Doubles)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
#elif defined(__AVX2__)
    return (Doubles)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
#else
    return a * b + c;
#endif
}

inline Doubles all(double a) { return Doubles{} + a; }

// (exp(r) - 1 - r) / r^2, by interpolation at Chebyshev's nodes; exp comes out within 1.6e-17.
constexpr double kExp[] = {2.51003758422237e-08,   2.7620075892548164e-07, 2.7557268480289716e-06, 2.480152132234228e-05,
                           0.00019841269863040559, 0.0013888888917196736,  0.008333333333330065,   0.041666666666624164,
                           0.16666666666666669,    0.5000000000000001};

inline Doubles exp_of_negative(Doubles x) {
    const Doubles shift = all(6755399441055744.0);  // 1.5 * 2^52: adding it rounds to the nearest integer
    const Doubles clamped = x < all(kLogSmallest) ? all(kLogSmallest) : x;
    const Doubles shifted = fused(clamped, all(1.4426950408889634), shift);
    const Doubles n = shifted - shift;
    const Doubles r = fused(n, all(-1.90821492927058770002e-10), fused(n, all(-6.93147180369123816490e-01), clamped));
    Doubles y = all(kExp[0]);
    for (std::size_t i = 1; i < sizeof kExp / sizeof *kExp; ++i) y = fused(y, r, all(kExp[i]));
    y = fused(y, r * r, r) + 1.0;
    const DoubleBits power = ((DoubleBits)shifted + 1023) << 52;  // the low bits of `shifted` are n
    return (Doubles)((DoubleBits)(y * (Doubles)power) & (x >= all(kLogSmallest)));
}

void blend(const float* row, const std::uint32_t* mask, std::int64_t n, float* scores) {
    static constexpr std::uint32_t kBit[32] = {
        1u << 0,  1u << 1,  1u << 2,  1u << 3,  1u << 4,  1u << 5,  1u << 6,  1u << 7,  1u << 8,  1u << 9,  1u << 10,
        1u << 11, 1u << 12, 1u << 13, 1u << 14, 1u << 15, 1u << 16, 1u << 17, 1u << 18, 1u << 19, 1u << 20, 1u << 21,
        1u << 22, 1u << 23, 1u << 24, 1u << 25, 1u << 26, 1u << 27, 1u << 28, 1u << 29, 1u << 30, 1u << 31};
    const float forbidden = -__builtin_inff();
    const std::int64_t whole = n / 32 * 32;
    for (std::int64_t i = 0; i < whole; i += 32) {
        const std::uint32_t word = mask[i / 32];
        for (int j = 0; j < 32; ++j) scores[i + j] = (word & kBit[j]) != 0 ? row[i + j] : forbidden;
    }
    for (std::int64_t i = whole; i < n; ++i) scores[i] = (mask[i / 32] >> (i % 32)) & 1 ? row[i] : forbidden;
}

bool block_maxima(const float* scores, std::int64_t n, float* maxima) {
    FloatBits bad = {};
    const std::int64_t whole = n / kSampleBlock * kSampleBlock;
    for (std::int64_t start = 0; start < whole; start += kSampleBlock) {
        Floats top;
        __builtin_memcpy(&top, scores + start, sizeof top);
        bad |= top != top;
        for (int i = kFloats; i < kSampleBlock; i += kFloats) {
            Floats next;
            __builtin_memcpy(&next, scores + start + i, sizeof next);
            bad |= next != next;
            top = next > top ? next : top;
        }
        float highest = top[0];
        for (int j = 1; j < kFloats; ++j) highest = top[j] > highest ? top[j] : highest;
        maxima[start / kSampleBlock] = highest;
    }
    bool are_numbers = true;
    for (int j = 0; j < kFloats; ++j) are_numbers &= bad[j] == 0;
    if (whole < n) {
        float highest = scores[whole];
        for (std::int64_t i = whole; i < n; ++i) {
            are_numbers &= scores[i] == scores[i];
            highest = scores[i] > highest ? scores[i] : highest;
        }
        maxima[whole / kSampleBlock] = highest;
    }
    return are_numbers;
}

// The weights of one block; `scores` and `weights` have room for all of it. Lane j adds the weights j, j + 8, ...
double weigh_block(const float* scores, double best, double temperature, double least, double* weights) {
    constexpr int kLanes = 8;
    Doubles lanes[kLanes / kDoubles] = {};
    for (int i = 0; i < kSampleBlock; i += kLanes)
        for (int part = 0; part < kLanes / kDoubles; ++part) {
            HalfFloats score;
            __builtin_memcpy(&score, scores + i + part * kDoubles, sizeof score);
            Doubles weight = exp_of_negative((__builtin_convertvector(score, Doubles) - best) / temperature);
            weight = (Doubles)((DoubleBits)weight & (weight >= least));
            __builtin_memcpy(weights + i + part * kDoubles, &weight, sizeof weight);
            lanes[part] += weight;
        }
    double sums[kLanes];
    __builtin_memcpy(sums, lanes, sizeof sums);
    for (int half = kLanes / 2; half; half /= 2)
        for (int j = 0; j < half; ++j) sums[j] += sums[j + half];
    return sums[0];
}

void weigh(const float* scores, std::int64_t n, float best, double temperature, double least, double* weights,
           double* sums) {
    const std::int64_t whole = n / kSampleBlock * kSampleBlock;
    for (std::int64_t start = 0; start < whole; start += kSampleBlock)
        sums[start / kSampleBlock] = weigh_block(scores + start, best, temperature, least, weights + start);
    if (whole == n) return;
    float rest[kSampleBlock];
    double rest_weights[kSampleBlock];
    for (int i = 0; i < kSampleBlock; ++i) rest[i] = i < n - whole ? scores[whole + i] : -__builtin_inff();
    sums[whole / kSampleBlock] = weigh_block(rest, best, temperature, least, rest_weights);
    __builtin_memcpy(weights + whole, rest_weights, static_cast<std::size_t>(n - whole) * sizeof(double));
}

std::int64_t count_bits(const std::uint32_t* mask, std::int64_t words) {
    std::int64_t count = 0;
    for (std::int64_t i = 0; i < words; ++i) count += __builtin_popcount(mask[i]);
    return count;
}

}  // namespace
}  // namespace safegen::cpu
