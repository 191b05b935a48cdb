// Causal attention over a paged cache for a few queries of one sequence and the heads that share one key/value head.
//
// Online softmax over tiles of kKeyTile keys that start at multiples of kKeyTile in absolute position. For a query at
// position p every operation (dot products, the tile's maximum, sums by lane = position mod 16, values in order of
// position) depends on p and on the keys and values alone: not on the block layout, nor on which other queries share
// the item, nor on how the prompt was cut. Keys outside [p - window + 1, p] are never touched by it.
#pragma once

#include "kernels/cpu/kernels.hpp"
#include "kernels/cpu/kv_cache.hpp"

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

// The tile's keys and values, positions [low, high) of them, as fp32 rows of round_up(head_dim, 16) in `keys` and
// `values`; other rows keep what they hold. Walks block by block: a division for every key would cost a dot product.
template <class Q>
inline void read_tile(const AttentionArgs& a, const AttentionItem& item, int64_t start, int64_t low, int64_t high,
                      float* keys, float* values) {
    const std::int32_t* table = a.block_table + item.sequence * a.max_blocks;
    const int64_t head_bytes = a.head_dim * (Q::kBytes / 16), padded = safegen::cpu::round_up(a.head_dim, 16);
    const int64_t end = high < start + kKeyTile ? high : start + kKeyTile;
    const auto *key = static_cast<const uint8_t*>(a.key), *value = static_cast<const uint8_t*>(a.value);
    int64_t block = low / a.block_size, within = low % a.block_size;
    for (int64_t position = low; position < end; ++position) {
        const int64_t row = (table[block] * a.block_size + within) * a.kv_heads + item.kv_head;
        float *k = keys + (position - start) * padded, *v = values + (position - start) * padded;
        decode_row<Q>(key + row * head_bytes, a.head_dim, k, true);
        decode_row<Q>(value + row * head_bytes, a.head_dim, v, true);
        if (a.key_scale) {
            for (int64_t d = 0; d < padded; ++d) {
                k[d] *= a.key_scale[row];
                v[d] *= a.value_scale[row];
            }
        }
        if (++within == a.block_size) {
            within = 0;
            ++block;
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
    float *key_tile = scores + kKeyTile, *value_tile = key_tile + kKeyTile * padded;
    for (int64_t i = 0; i < rows * (2 * padded + 16); ++i) scratch[i] = 0.0f;
    int64_t low = INT64_MAX, high = 0;
    for (int64_t row = 0; row < rows; ++row) {
        const Running run = running(scratch, rows, padded, row);
        const int64_t token = item.first + row / group, head = item.kv_head * group + row % group;
        __builtin_memcpy(const_cast<float*>(run.q), a.q + token * a.q_stride + head * a.head_dim,
                         static_cast<std::size_t>(a.head_dim) * sizeof(float));
        *run.maximum = -kInfinity;
        const int64_t position = a.position[token], start = window_start(a, position);
        low = start < low ? start : low;
        high = position + 1 > high ? position + 1 : high;
    }
    const float *keys[kKeyTile], *values[kKeyTile];
    for (int64_t i = 0; i < kKeyTile; ++i) {
        keys[i] = key_tile + i * padded;
        values[i] = value_tile + i * padded;
    }
    for (int64_t i = 0; i < 2 * kKeyTile * padded; ++i) key_tile[i] = 0.0f;
    for (int64_t start = low / kKeyTile * kKeyTile; start < high; start += kKeyTile) {
        const int64_t readable = start > low ? start : low;
        with_kv(a.kv, [&]<class Q>() { read_tile<Q>(a, item, start, readable, high, key_tile, value_tile); });
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
        float* out = a.out + token * a.out_stride + head * a.head_dim;
        for (int64_t d = 0; d < a.head_dim; ++d) out[d] = run.acc[d] / total;
    }
}

}  // namespace
