// y = x * W^T in the fixed reduction order of kernels.hpp, two ways that give the same bits:
//  - few rows: each block of weights is decoded into registers and used at once for all rows;
//  - many rows: four weight rows are decoded to fp32 in scratch (L1), then tiles of kTileRows x kTileOuts outputs are
//    accumulated in registers.
// Either way an output is one chain of fused multiply-adds a lane, in order of k. Internal linkage.
#pragma once

#include "kernels/cpu/blocks.hpp"

namespace {

using safegen::cpu::kOutTile;
using safegen::cpu::LinearArgs;

// Adds the lanes of R x O accumulators and stores the results; o + O may pass the end (those repeat the last feature).
template <int R, int O> inline void finish(const F (&acc)[R][O], const LinearArgs& a, int64_t row, int64_t o, int64_t end) {
    constexpr int count = R * O, padded = (count + 7) / 8 * 8;
    F flat[padded];
    float sums[padded];
    SAFEGEN_UNROLL
    for (int i = 0; i < padded; ++i) flat[i] = i < count ? acc[i / O % R][i % O] : zero();
    SAFEGEN_UNROLL
    for (int i = 0; i < padded; i += 8) reduce8(flat + i, sums + i);
    const int64_t features = end - o < O ? end - o : O;
    for (int r = 0; r < R; ++r)
        for (int64_t i = 0; i < features; ++i) {
            const float y = a.bias ? sums[r * O + i] + a.bias[o + i] : sums[r * O + i];
            float& out = a.y[(a.y_row ? a.y_row[row + r] : row + r) * a.y_stride + o + i];
            out = a.accumulate ? out + y : y;
        }
}

template <class Q, int R, int O> void fused(const LinearArgs& a, int64_t row, int64_t o, int64_t end) {
    const uint8_t* w[O];
    for (int i = 0; i < O; ++i) w[i] = a.weight + (o + i < end ? o + i : end - 1) * a.row_bytes;
    F acc[R][O];
    for (int r = 0; r < R; ++r)
        for (int i = 0; i < O; ++i) acc[r][i] = zero();
    const float* x = a.x + row * a.in;
    // Four rows at once are four streams, which the processor does not see coming; the next tile's rows do.
    const int64_t ahead = o + 2 * O <= end ? O * a.row_bytes : 0;
    int64_t k = 0;
    for (; k + Q::kSize <= a.in; k += Q::kSize) {
        SAFEGEN_UNROLL
        for (int i = 0; i < O; ++i) {
            F run[Q::kRuns];
            Q::decode(w[i], run);
            SAFEGEN_UNROLL
            for (int byte = 0; byte < Q::kBytes; byte += 64) __builtin_prefetch(w[i] + ahead + byte);
            w[i] += Q::kBytes;
            SAFEGEN_UNROLL
            for (int n = 0; n < Q::kRuns; ++n) {
                SAFEGEN_UNROLL
                for (int r = 0; r < R; ++r) acc[r][i] = fma(load(x + r * a.in + k + 16 * n), run[n], acc[r][i]);
            }
        }
    }
    if constexpr (Q::kSize == 16) {
        if (k < a.in) {
            for (int i = 0; i < O; ++i) {
                const F run = decode_tail<Q>(w[i], a.in - k);
                for (int r = 0; r < R; ++r) acc[r][i] = fma(load_n(x + r * a.in + k, a.in - k), run, acc[r][i]);
            }
        }
    }
    finish<R, O>(acc, a, row, o, end);
}

// w: O rows of fp32, `stride` floats apart, zero past `in`.
template <int R, int O>
void tile(const LinearArgs& a, const float* w, int64_t stride, int64_t row, int64_t o, int64_t end) {
    V acc[kParts][R][O];
    SAFEGEN_UNROLL
    for (int p = 0; p < kParts; ++p) {
        SAFEGEN_UNROLL
        for (int r = 0; r < R; ++r) {
            SAFEGEN_UNROLL
            for (int i = 0; i < O; ++i) acc[p][r][i] = vset1(0.0f);
        }
    }
    const float* x = a.x + row * a.in;
    int64_t k = 0;
    for (; k + 16 <= a.in; k += 16) {
        SAFEGEN_UNROLL
        for (int p = 0; p < kParts; ++p) {
            V weight[O];
            SAFEGEN_UNROLL
            for (int i = 0; i < O; ++i) weight[i] = vload(w + i * stride + k + p * kWidth);
            SAFEGEN_UNROLL
            for (int r = 0; r < R; ++r) {
                const V activation = vload(x + r * a.in + k + p * kWidth);
                SAFEGEN_UNROLL
                for (int i = 0; i < O; ++i) acc[p][r][i] = vfma(activation, weight[i], acc[p][r][i]);
            }
        }
    }
    F total[R][O];
    SAFEGEN_UNROLL
    for (int r = 0; r < R; ++r) {
        SAFEGEN_UNROLL
        for (int i = 0; i < O; ++i) total[r][i] = parts([&](int p) { return acc[p][r][i]; });
    }
    if (k < a.in)
        for (int r = 0; r < R; ++r)
            for (int i = 0; i < O; ++i)
                total[r][i] = fma(load_n(x + r * a.in + k, a.in - k), load(w + i * stride + k), total[r][i]);
    finish<R, O>(total, a, row, o, end);
}

// The last, smaller tile: R falls from kTileRows to 1.
template <int R>
inline void tile_rows(int64_t rows, const LinearArgs& a, const float* w, int64_t stride, int64_t row, int64_t o, int64_t end) {
    if (rows >= R) return tile<R, kTileOuts>(a, w, stride, row, o, end);
    if constexpr (R > 1) tile_rows<R - 1>(rows, a, w, stride, row, o, end);
}

template <class Q, int R> inline void fused_rows(int64_t rows, const LinearArgs& a, int64_t row, int64_t o, int64_t end) {
    if (rows >= R) return fused<Q, R, kOutTile>(a, row, o, end);
    if constexpr (R > 1) fused_rows<Q, R - 1>(rows, a, row, o, end);
}

template <class Q> void linear_range(const LinearArgs& a, int64_t r0, int64_t r1, int64_t o0, int64_t o1, float* scratch) {
    const int64_t stride = safegen::cpu::round_up(a.in, 16);
    for (int64_t o = o0; o < o1; o += kOutTile) {
        if (r1 - r0 <= kFusedRows) {
            fused_rows<Q, kFusedRows>(r1 - r0, a, r0, o, o1);
            continue;
        }
        for (int64_t i = 0; i < kOutTile; ++i) {
            const int64_t feature = o + i < o1 ? o + i : o1 - 1;
            decode_row<Q>(a.weight + feature * a.row_bytes, a.in, scratch + i * stride, true);
        }
        for (int64_t row = r0; row < r1; row += kTileRows)
            for (int64_t i = 0; i < kOutTile && o + i < o1; i += kTileOuts)
                tile_rows<kTileRows>(r1 - row, a, scratch + i * stride, stride, row, o + i, o1);
    }
}

void linear(const LinearArgs& a, int64_t r0, int64_t r1, int64_t o0, int64_t o1, float* scratch) {
    with_format(a.kind, [&]<class Q>() { linear_range<Q>(a, r0, r1, o0, o1, scratch); });
}

void dequantize(safegen::cpu::Kind kind, const uint8_t* row, int64_t n, float* out) {
    with_format(kind, [&]<class Q>() { decode_row<Q>(row, n, out, false); });
}

}  // namespace
