// One tile of keys against one register tile of query rows: scores, running softmax, weighted values (attention.hpp
// says why in this order). Internal linkage.
#pragma once

#include "kernels/cpu/kv_cache.hpp"

namespace {

using safegen::cpu::AttentionArgs;
using safegen::cpu::kKeyTile;

static_assert(kAttendRows <= safegen::cpu::kMaxAttendRows);
constexpr float kInfinity = __builtin_inff(), kLog2E = 1.44269504088896341f;

// An item's scratch memory (attention_scratch counts it).
struct Workspace {
    int64_t rows, padded;
    float *queries, *maximum, *sums, *accumulators;  // [tile][dim][tile's rows], [rows], [rows][16], [rows][padded]
    float *keys, *values, *scores;  // [padded][kKeyTile], [kKeyTile][padded], [kAttendRows][kKeyTile]
    float *key_scales, *value_scales;  // [kKeyTile], of an i8 cache

    Workspace(const AttentionArgs& a, int64_t rows, float* scratch)
        : rows(rows), padded(safegen::cpu::round_up(a.head_dim, 16)) {
        keys = scratch;
        values = keys + kKeyTile * padded;
        scores = values + kKeyTile * padded;
        key_scales = scores + kAttendRows * kKeyTile;
        value_scales = key_scales + kKeyTile;
        sums = value_scales + kKeyTile;
        accumulators = sums + rows * 16;
        queries = accumulators + rows * padded;
        maximum = queries + rows * padded;
    }
};

// The keys of the tile that each of some neighbouring rows sees: [begin, end), empty where end <= begin.
struct Span {
    int64_t rows, begin[kAttendRows], end[kAttendRows];
};

// op.template operator()<N>() with N = n, 1 .. most.
template <int most, class Op> inline void with_count(int64_t n, const Op& op) {
    if (n >= most) return op.template operator()<most>();
    if constexpr (most > 1) with_count<most - 1>(n, op);
}

// The keys of one tile that an item reads, and the places of their cached rows.
struct Tile {
    int64_t start, begin, end;  // absolute position of the tile; keys [begin, end) of it
    int64_t row[kKeyTile];      // of keys outside [begin, end): that of begin
};

inline void prefetch_line(const uint8_t* a) { __builtin_prefetch(a, 0, 2); }

// The keys of `tile` as columns, fp32, while the rows of `next` are asked for: blocks lie anywhere, which the
// processor does not foresee; asking for all of them at once would hold up what is read now.
template <class Q> inline void read_keys(const AttentionArgs& a, const Workspace& w, const Tile& tile, const Tile& next) {
    constexpr int64_t bytes = Q::kBytes / 16;
    const int64_t head_bytes = a.head_dim * bytes;
    const auto* key = static_cast<const uint8_t*>(a.key);
    for (int64_t i = tile.begin / 16 * 16; i < tile.end; i += 16) {
        const uint8_t *at[16], *later[16];
        for (int k = 0; k < 16; ++k) {
            at[k] = key + tile.row[i + k] * head_bytes;
            later[k] = key + next.row[i + k] * head_bytes;
        }
        F run[16];
        int64_t d = 0;
        for (; d + 16 <= a.head_dim; d += 16) {
            if (d * bytes % 64 == 0)
                for (int k = 0; k < 16; ++k) prefetch_line(later[k] + d * bytes);
            SAFEGEN_UNROLL
            for (int k = 0; k < 16; ++k) Q::decode(at[k] + d * bytes, run + k);
            store_columns(run, w.keys + d * kKeyTile + i, kKeyTile);
        }
        if (d < a.head_dim) {
            for (int k = 0; k < 16; ++k) run[k] = decode_tail<Q>(at[k] + d * bytes, a.head_dim - d);
            store_columns(run, w.keys + d * kKeyTile + i, kKeyTile);
        }
    }
}

// The values of `tile` as rows, fp32.
template <class Q>
inline void read_values(const AttentionArgs& a, const Workspace& w, const Tile& tile, const Tile& next) {
    const int64_t head_bytes = a.head_dim * (Q::kBytes / 16);
    const auto* value = static_cast<const uint8_t*>(a.value);
    for (int64_t i = tile.begin; i < tile.end; ++i) {
        for (int64_t byte = 0; byte < head_bytes; byte += 64) prefetch_line(value + next.row[i] * head_bytes + byte);
        decode_row<Q>(value + tile.row[i] * head_bytes, a.head_dim, w.values + i * w.padded, true);
    }
}

// Digits of an i8 cache stay digits: scores and weights take the scales, one each instead of head_dim.
inline void read_scales(const AttentionArgs& a, const Workspace& w, const Tile& tile) {
    for (int64_t i = 0; i < kKeyTile; ++i) {
        w.key_scales[i] = a.key_scale[tile.row[i]];
        w.value_scales[i] = a.value_scale[tile.row[i]];
    }
}

// scores[R][kKeyTile]: queries [dim][R] times C registers of key columns.
template <int R, int C> inline void score_columns(const float* queries, const float* keys, int64_t dim, float* scores) {
    V acc[R][C];
    SAFEGEN_UNROLL
    for (int r = 0; r < R; ++r) {
        SAFEGEN_UNROLL
        for (int c = 0; c < C; ++c) acc[r][c] = vset1(0.0f);
    }
    for (int64_t d = 0; d < dim; ++d, queries += R, keys += kKeyTile) {
        V key[C];
        SAFEGEN_UNROLL
        for (int c = 0; c < C; ++c) key[c] = vload(keys + c * kWidth);
        SAFEGEN_UNROLL
        for (int r = 0; r < R; ++r) {
            const V query = vset1(queries[r]);
            SAFEGEN_UNROLL
            for (int c = 0; c < C; ++c) acc[r][c] = vfma(query, key[c], acc[r][c]);
        }
    }
    SAFEGEN_UNROLL
    for (int r = 0; r < R; ++r) {
        SAFEGEN_UNROLL
        for (int c = 0; c < C; ++c) vstore(scores + r * kKeyTile + c * kWidth, acc[r][c]);
    }
}

// acc[R rows, `stride` apart][C registers] = acc * decay + sum over keys [begin, end) of weight * value.
template <int R, int C>
inline void add_values(float* acc, int64_t stride, const float* decay, const float* weights, const float* values,
                       int64_t begin, int64_t end) {
    V total[R][C];
    SAFEGEN_UNROLL
    for (int r = 0; r < R; ++r) {
        const V factor = vset1(decay[r]);
        SAFEGEN_UNROLL
        for (int c = 0; c < C; ++c) total[r][c] = vmul(vload(acc + r * stride + c * kWidth), factor);
    }
    for (int64_t i = begin; i < end; ++i) {
        V value[C];
        SAFEGEN_UNROLL
        for (int c = 0; c < C; ++c) value[c] = vload(values + i * stride + c * kWidth);
        SAFEGEN_UNROLL
        for (int r = 0; r < R; ++r) {
            const V weight = vset1(weights[r * kKeyTile + i]);
            SAFEGEN_UNROLL
            for (int c = 0; c < C; ++c) total[r][c] = vfma(weight, value[c], total[r][c]);
        }
    }
    SAFEGEN_UNROLL
    for (int r = 0; r < R; ++r) {
        SAFEGEN_UNROLL
        for (int c = 0; c < C; ++c) vstore(acc + r * stride + c * kWidth, total[r][c]);
    }
}

// All dimensions of R rows.
template <int R>
inline void add_all_values(const Workspace& w, int64_t row, const float* decay, const float* weights, int64_t begin,
                           int64_t end) {
    float* acc = w.accumulators + row * w.padded;
    for (int64_t d = 0; d < w.padded; d += kAttendCols * kWidth)
        with_count<kAttendCols>((w.padded - d) / kWidth, [&]<int C>() {
            add_values<R, C>(acc + d, w.padded, decay, weights, w.values + d, begin, end);
        });
}

// s where begin <= lane < end, else -infinity.
inline F visible(const F& s, int64_t begin, int64_t end) {
    alignas(64) static constexpr float lanes[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const F lane = load(lanes), low = set1(static_cast<float>(begin)), high = set1(static_cast<float>(end));
    return parts([&](int i) {
        const V hidden = vset1(-kInfinity), below = vselect_lt(lane.p[i], high.p[i], s.p[i], hidden);
        return vselect_lt(lane.p[i], low.p[i], hidden, below);
    });
}

// Scores of one row: scaled, capped, times log2(e), -infinity where hidden. Returns their largest.
inline float finish_scores(const AttentionArgs& a, const Workspace& w, float* scores, int64_t begin, int64_t end) {
    const F cap = set1(a.softcap), log2e = set1(kLog2E), scale = set1(a.softcap > 0.0f ? a.scale : a.scale * kLog2E);
    F top = set1(-kInfinity);
    for (int64_t i = 0; i < kKeyTile; i += 16) {
        if (i + 16 <= begin || i >= end) {
            store(scores + i, set1(-kInfinity));
            continue;
        }
        F s = load(scores + i);
        if (a.key_scale) s = mul(s, load(w.key_scales + i));
        s = mul(s, scale);
        if (a.softcap > 0.0f) s = mul(mul(tanh(div(s, cap)), cap), log2e);
        if (i < begin || i + 16 > end) s = visible(s, begin - i, end - i);
        store(scores + i, s);
        top = max(top, s);
    }
    return largest(top);
}

// Rows [row, row + span.rows), one register tile, over the tile of keys in the workspace.
template <int R> inline void attend_rows(const AttentionArgs& a, const Workspace& w, int64_t row, const Span& span) {
    int64_t begin = kKeyTile, end = 0, common_begin = 0, common_end = kKeyTile;
    for (int r = 0; r < R; ++r) {
        begin = span.begin[r] < begin ? span.begin[r] : begin;
        end = span.end[r] > end ? span.end[r] : end;
        common_begin = span.begin[r] > common_begin ? span.begin[r] : common_begin;
        common_end = span.end[r] < common_end ? span.end[r] : common_end;
    }
    if (begin >= end) return;
    for (int64_t i = begin / kWidth * kWidth; i < end; i += kAttendCols * kWidth)
        with_count<kAttendCols>((end - i + kWidth - 1) / kWidth, [&]<int C>() {
            score_columns<R, C>(w.queries + row * a.head_dim, w.keys + i, a.head_dim, w.scores + i);
        });

    alignas(64) float base[16] = {}, decay[16] = {};
    for (int r = 0; r < R; ++r) {
        const float before = w.maximum[row + r];
        const float top = finish_scores(a, w, w.scores + r * kKeyTile, span.begin[r], span.end[r]);
        const float now = top > before ? top : before;
        base[r] = now == -kInfinity ? 0.0f : now;  // all scores -infinity so far: every weight is 0
        decay[r] = before - base[r];
        w.maximum[row + r] = now;
    }
    store(decay, exp2_falling(load(decay)));
    for (int r = 0; r < R; ++r) {
        float* weights = w.scores + r * kKeyTile;
        F sums = mul(load(w.sums + 16 * (row + r)), set1(decay[r]));
        for (int64_t i = 0; i < kKeyTile; i += 16) {
            const F weight = exp2_falling(sub(load(weights + i), set1(base[r])));
            sums = add(sums, weight);
            store(weights + i, a.value_scale ? mul(weight, load(w.value_scales + i)) : weight);
        }
        store(w.sums + 16 * (row + r), sums);
    }

    static constexpr float one[1] = {1.0f};
    if (common_begin >= common_end) {
        for (int r = 0; r < R; ++r)
            add_all_values<1>(w, row + r, decay + r, w.scores + r * kKeyTile, span.begin[r], span.end[r]);
        return;
    }
    for (int r = 0; r < R; ++r) {
        if (span.begin[r] == common_begin) continue;
        add_all_values<1>(w, row + r, decay + r, w.scores + r * kKeyTile, span.begin[r], common_begin);
        decay[r] = 1.0f;
    }
    add_all_values<R>(w, row, decay, w.scores, common_begin, common_end);
    for (int r = 0; r < R; ++r)
        if (span.end[r] > common_end)
            add_all_values<1>(w, row + r, one, w.scores + r * kKeyTile, common_end, span.end[r]);
}

inline void attend(const AttentionArgs& a, const Workspace& w, int64_t row, const Span& span) {
    with_count<kAttendRows>(span.rows, [&]<int R>() { attend_rows<R>(a, w, row, span); });
}

}  // namespace
