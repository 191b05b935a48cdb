// Causal attention over a paged cache for a few queries of one sequence and the heads that share one key/value head.
//
// Online softmax over tiles of kKeyTile keys that start at multiples of kKeyTile in absolute position. For a query at
// position p every operation (dot products, the tile's maximum, sums by lane = position mod 16, values in order of
// position) depends on p and on the keys and values alone: not on the block layout, nor on which other queries share
// the item, nor on how the prompt was cut. Keys outside [p - window + 1, p] are never touched by it.
#pragma once

#include "kernels/cpu/kernels.hpp"
#include "kernels/cpu/vec.hpp"

namespace {

using safegen::cpu::AttentionArgs;
using safegen::cpu::AttentionItem;
using safegen::cpu::kKeyTile;

constexpr float kInfinity = __builtin_inff();

// Sixteen dot products of q (padded with zeros to whole runs of 16) with the rows keys[0 .. 15].
inline void dot16(const float* q, const float* const* keys, int64_t dim, float* out) {
    F acc[16];
    SAFEGEN_UNROLL
    for (int i = 0; i < 16; ++i) acc[i] = zero();
    int64_t d = 0;
    for (; d + 16 <= dim; d += 16) {
        const F part = load(q + d);
        SAFEGEN_UNROLL
        for (int i = 0; i < 16; ++i) acc[i] = fma(part, load(keys[i] + d), acc[i]);
    }
    if (d < dim) {
        const F part = load(q + d);
        for (int i = 0; i < 16; ++i) acc[i] = fma(part, load_n(keys[i] + d, dim - d), acc[i]);
    }
    reduce8(acc, out);
    reduce8(acc + 8, out + 8);
}

// acc[0 .. 16 * N) = acc * decay + sum over keys of weight * value, from dimension d on; the last run may be partial.
template <int N, bool partial>
inline void add_values(float* acc, float decay, const float* weights, const float* const* values, int64_t first,
                       int64_t last, int64_t d, int64_t left) {
    F total[N];
    SAFEGEN_UNROLL
    for (int n = 0; n < N; ++n) total[n] = mul(load(acc + d + 16 * n), set1(decay));
    for (int64_t i = first; i < last; ++i) {
        const F weight = set1(weights[i]);
        SAFEGEN_UNROLL
        for (int n = 0; n < N; ++n) {
            const float* value = values[i] + d + 16 * n;
            total[n] = fma(weight, partial ? load_n(value, left) : load(value), total[n]);
        }
    }
    SAFEGEN_UNROLL
    for (int n = 0; n < N; ++n) store(acc + d + 16 * n, total[n]);
}

// One query's running softmax.
struct Running {
    const float* q;    // [padded dim]
    float* acc;        // [padded dim], values weighted so far
    float* lane_sums;  // [16], weights so far by position mod 16
    float* maximum;
};

// Keys [first, last) of the tile; keys[i], values[i] are readable rows for all i in [0, kKeyTile).
inline void attend_tile(const AttentionArgs& a, const Running& run, const float* const* keys,
                        const float* const* values, int64_t first, int64_t last, float* scores) {
    const F cap = set1(a.softcap), scale = set1(a.scale);
    F top = set1(-kInfinity);
    for (int64_t i = 0; i < kKeyTile; i += 16) {
        if (i + 16 <= first || i >= last) {
            store(scores + i, set1(-kInfinity));
            continue;
        }
        dot16(run.q, keys + i, a.head_dim, scores + i);
        F s = mul(load(scores + i), scale);
        if (a.softcap > 0.0f) s = mul(tanh(div(s, cap)), cap);
        store(scores + i, s);
        for (int64_t j = i; j < i + 16; ++j)
            if (j < first || j >= last) scores[j] = -kInfinity;
        top = max(top, load(scores + i));
    }
    float lanes[16], largest = *run.maximum;
    store(lanes, top);
    for (int i = 0; i < 16; ++i) largest = lanes[i] > largest ? lanes[i] : largest;
    const float base = largest == -kInfinity ? 0.0f : largest;  // all scores -inf so far: every weight is 0
    float decay[16];
    store(decay, exp(set1(*run.maximum - base)));
    F sums = mul(load(run.lane_sums), set1(decay[0]));
    for (int64_t i = 0; i < kKeyTile; i += 16) {
        const F weight = exp(sub(load(scores + i), set1(base)));
        store(scores + i, weight);
        sums = add(sums, weight);
    }
    store(run.lane_sums, sums);
    *run.maximum = largest;
    int64_t d = 0;
    for (; d + 64 <= a.head_dim; d += 64) add_values<4, false>(run.acc, decay[0], scores, values, first, last, d, 64);
    for (; d + 16 <= a.head_dim; d += 16) add_values<1, false>(run.acc, decay[0], scores, values, first, last, d, 16);
    if (d < a.head_dim)
        add_values<1, true>(run.acc, decay[0], scores, values, first, last, d, a.head_dim - d);
}

// Row pointers of the tile's keys; positions outside [low, high) borrow the row at low. Walks block by block: a division
// for every key would cost as much as a dot product.
inline void tile_rows_of(const AttentionArgs& a, const AttentionItem& item, int64_t start, int64_t low, int64_t high,
                         const float** keys, const float** values) {
    const std::int32_t* table = a.block_table + item.sequence * a.max_blocks;
    const int64_t stride = a.kv_heads * a.head_dim, end = high < start + kKeyTile ? high : start + kKeyTile;
    int64_t block = low / a.block_size, within = low % a.block_size;
    int64_t row = table[block] * a.block_size + within;
    const float *key = a.key + item.kv_head * a.head_dim, *value = a.value + item.kv_head * a.head_dim;
    for (int64_t i = 0; i < kKeyTile; ++i) {
        keys[i] = key + row * stride;
        values[i] = value + row * stride;
    }
    for (int64_t position = low; position < end; ++position) {
        keys[position - start] = key + row * stride;
        values[position - start] = value + row * stride;
        ++row;
        if (++within == a.block_size && position + 1 < end) {
            within = 0;
            row = table[++block] * a.block_size;
        }
    }
}

inline int64_t window_start(const AttentionArgs& a, int64_t position) {
    return a.window > 0 && position >= a.window ? position - a.window + 1 : 0;
}

inline Running running(float* scratch, int64_t rows, int64_t padded, int64_t row) {
    float *q = scratch, *acc = q + rows * padded, *sums = acc + rows * padded, *maximum = sums + rows * 16;
    return {q + row * padded, acc + row * padded, sums + row * 16, maximum + row};
}

void attention(const AttentionArgs& a, const AttentionItem& item, float* scratch) {
    const int64_t group = a.heads / a.kv_heads, rows = (item.last - item.first) * group;
    const int64_t padded = safegen::cpu::round_up(a.head_dim, 16);
    float* scores = scratch + rows * (2 * padded + 16) + safegen::cpu::round_up(rows, 16);
    for (int64_t i = 0; i < rows * (2 * padded + 16); ++i) scratch[i] = 0.0f;
    int64_t low = INT64_MAX, high = 0;
    for (int64_t row = 0; row < rows; ++row) {
        const Running run = running(scratch, rows, padded, row);
        const int64_t token = item.first + row / group, head = item.kv_head * group + row % group;
        __builtin_memcpy(const_cast<float*>(run.q), a.q + (token * a.heads + head) * a.head_dim,
                         static_cast<std::size_t>(a.head_dim) * sizeof(float));
        *run.maximum = -kInfinity;
        const int64_t position = a.position[token], start = window_start(a, position);
        low = start < low ? start : low;
        high = position + 1 > high ? position + 1 : high;
    }
    const float *keys[kKeyTile], *values[kKeyTile];
    for (int64_t start = low / kKeyTile * kKeyTile; start < high; start += kKeyTile) {
        const int64_t readable = start > low ? start : low;
        tile_rows_of(a, item, start, readable, high, keys, values);
        for (int64_t row = 0; row < rows; ++row) {
            const int64_t position = a.position[item.first + row / group];
            int64_t first = window_start(a, position) - start, last = position + 1 - start;
            first = first > 0 ? first : 0;
            last = last < kKeyTile ? last : kKeyTile;
            if (first < last) attend_tile(a, running(scratch, rows, padded, row), keys, values, first, last, scores);
        }
    }
    for (int64_t row = 0; row < rows; ++row) {
        const Running run = running(scratch, rows, padded, row);
        const int64_t token = item.first + row / group, head = item.kv_head * group + row % group;
        const float total = sum(load(run.lane_sums));
        float* out = a.out + (token * a.heads + head) * a.head_dim;
        for (int64_t d = 0; d < a.head_dim; ++d) out[d] = run.acc[d] / total;
    }
}

}  // namespace
