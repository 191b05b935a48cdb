// One tile of keys against one register tile of query rows: scores, running softmax, weighted values (attention.hpp
// says why in this order). Internal linkage.
//
// Where all rows of an item make one register tile, as in decoding, keys and values are used as they come from the cache,
// converted in registers; else they are converted once to the workspace and read from there by every
// register tile. The operations of a row are the same either way.
#pragma once

#include "kernels/cpu/attention_read.hpp"

namespace {

// op.template operator()<N>() with N = n, 1 .. most.
template <int most, class Op> inline void with_count(int64_t n, const Op& op) {
    if (n >= most) return op.template operator()<most>();
    if constexpr (most > 1) with_count<most - 1>(n, op);
}

// scores[R][kKeyTile]: R queries times C registers of key columns.
template <int R, int C>
inline void score_columns(const float* const* queries, const float* keys, int64_t dim, float* scores) {
    const float* row[R];
    SAFEGEN_UNROLL
    for (int r = 0; r < R; ++r) row[r] = queries[r];
    V acc[R][C];
    SAFEGEN_UNROLL
    for (int r = 0; r < R; ++r) {
        SAFEGEN_UNROLL
        for (int c = 0; c < C; ++c) acc[r][c] = vset1(0.0f);
    }
    for (int64_t d = 0; d < dim; ++d, keys += kKeyTile) {
        V key[C];
        SAFEGEN_UNROLL
        for (int c = 0; c < C; ++c) key[c] = vload(keys + c * kWidth);
        SAFEGEN_UNROLL
        for (int r = 0; r < R; ++r) {
            const V query = vset1(row[r][d]);
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

// The scores of R rows with keys [begin, end) of the workspace; neighbours of these may be scored too.
template <int R>
inline void score_tile(const AttentionArgs& a, const Workspace& w, int64_t row, int64_t begin, int64_t end) {
    for (int64_t i = begin / kWidth * kWidth; i < end; i += kAttendCols * kWidth)
        with_count<kAttendCols>((end - i + kWidth - 1) / kWidth, [&]<int C>() {
            score_columns<R, C>(w.queries + row, w.keys + i, a.head_dim, w.scores + i);
        });
}

// The same from the cache, C runs of 16 keys from `first` on.
template <class Kv, int R, int C>
inline void score_runs(const AttentionArgs& a, const Workspace& w, const Tile& tile, const Tile& next, int64_t first) {
    const auto run_at = [&](int c) { return KeyRun(a, tile, next, first + 16 * c); };
    const KeyRun runs[4] = {run_at(0), run_at(C > 1), run_at(C > 2 ? 2 : 0), run_at(C > 3 ? 3 : 0)};
    F acc[R][C];
    SAFEGEN_UNROLL
    for (int r = 0; r < R; ++r) {
        SAFEGEN_UNROLL
        for (int c = 0; c < C; ++c) acc[r][c] = zero();
    }
    for (int64_t d = 0; d < a.head_dim; ++d) {
        F key[C];
        SAFEGEN_UNROLL
        for (int c = 0; c < C; ++c) key[c] = runs[c].template column<Kv>(d);
        SAFEGEN_UNROLL
        for (int r = 0; r < R; ++r) {
            const F query = set1(w.queries[r][d]);
            SAFEGEN_UNROLL
            for (int c = 0; c < C; ++c) acc[r][c] = fma(query, key[c], acc[r][c]);
        }
    }
    SAFEGEN_UNROLL
    for (int r = 0; r < R; ++r) {
        SAFEGEN_UNROLL
        for (int c = 0; c < C; ++c) store(w.scores + r * kKeyTile + first + 16 * c, acc[r][c]);
    }
}

template <class Kv, int R>
inline void score_cached(const AttentionArgs& a, const Workspace& w, const Tile& tile, const Tile& next) {
    constexpr int most = kParts == 1 ? 4 : 1;
    for (int64_t i = tile.begin / 16 * 16; i < tile.end; i += 16 * most)
        with_count<most>((tile.end - i + 15) / 16, [&]<int C>() { score_runs<Kv, R, C>(a, w, tile, next, i); });
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

// Scores of R rows to weights relative to the running maximum; decay: what the rows' sums so far are worth by it.
template <int R>
inline void weigh(const AttentionArgs& a, const Workspace& w, int64_t row, const Span& span, float* decay) {
    float base[R];
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
}

// Where values are read, one register at a time: the workspace, or the cache.
struct TileValues {
    const float* values;
    int64_t stride;
    const float* key(int64_t i) const { return values + i * stride; }
    static V one(const float* key, int64_t d) { return vload(key + d); }
};
template <class Kv> struct CachedValues {
    const uint8_t* values;
    const int64_t* row;
    int64_t head_bytes;
    const uint8_t* key(int64_t i) const { return values + row[i] * head_bytes; }
    static V one(const uint8_t* key, int64_t d) { return Kv::one(key + d * Kv::kNumber); }
};

// acc[R rows, `stride` apart][C registers from dimension d on] = acc * decay + sum over keys [begin, end) of weight *
// value.
template <int R, int C, class Values>
inline void add_values(float* acc, int64_t stride, const float* decay, const float* weights, const Values& values,
                       int64_t d, int64_t begin, int64_t end) {
    acc += d;
    V total[R][C];
    SAFEGEN_UNROLL
    for (int r = 0; r < R; ++r) {
        const V factor = vset1(decay[r]);
        SAFEGEN_UNROLL
        for (int c = 0; c < C; ++c) total[r][c] = vmul(vload(acc + r * stride + c * kWidth), factor);
    }
    for (int64_t i = begin; i < end; ++i) {
        const auto* key = values.key(i);
        V value[C];
        SAFEGEN_UNROLL
        for (int c = 0; c < C; ++c) value[c] = Values::one(key, d + c * kWidth);
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
template <int R, class Values>
inline void add_range(const Workspace& w, int64_t row, const float* decay, const float* weights, const Values& values,
                      int64_t begin, int64_t end) {
    for (int64_t d = 0; d < w.padded; d += kAttendCols * kWidth)
        with_count<kAttendCols>((w.padded - d) / kWidth, [&]<int C>() {
            add_values<R, C>(w.accumulators + row * w.padded, w.padded, decay, weights, values, d, begin, end);
        });
}

// Adds to each of R rows the values of its own keys: those that all see together, the others row by row.
template <int R, class Values>
inline void add_span(const Workspace& w, int64_t row, const Span& span, float* decay, const Values& values) {
    int64_t begin = 0, end = kKeyTile;  // seen by all
    for (int r = 0; r < R; ++r) {
        begin = span.begin[r] > begin ? span.begin[r] : begin;
        end = span.end[r] < end ? span.end[r] : end;
    }
    const auto alone = [&](int r, int64_t from, int64_t to) {
        add_range<1>(w, row + r, decay + r, w.scores + r * kKeyTile, values, from, to);
        decay[r] = 1.0f;
    };
    if (begin >= end) {
        for (int r = 0; r < R; ++r) alone(r, span.begin[r], span.end[r]);
        return;
    }
    for (int r = 0; r < R; ++r)
        if (span.begin[r] < begin) alone(r, span.begin[r], begin);
    add_range<R>(w, row, decay, w.scores, values, begin, end);
    for (int r = 0; r < R; ++r) {
        decay[r] = 1.0f;
        if (span.end[r] > end) alone(r, end, span.end[r]);
    }
}

// Rows [row, row + span.rows), one register tile, over the tile of keys in the workspace.
inline void attend(const AttentionArgs& a, const Workspace& w, int64_t row, const Span& span) {
    int64_t begin = kKeyTile, end = 0;  // seen by any
    for (int64_t r = 0; r < span.rows; ++r) {
        begin = span.begin[r] < begin ? span.begin[r] : begin;
        end = span.end[r] > end ? span.end[r] : end;
    }
    if (begin >= end) return;
    with_count<kAttendRows>(span.rows, [&]<int R>() {
        alignas(64) float decay[16] = {};
        score_tile<R>(a, w, row, begin, end);
        weigh<R>(a, w, row, span, decay);
        add_span<R>(w, row, span, decay, TileValues{w.values, w.padded});
    });
}

// All rows of an item that are one register tile, over a tile of keys in the cache.
template <class Kv>
inline void attend_cached(const AttentionArgs& a, const Workspace& w, const Span& span, const Tile& tile,
                          const Tile& next) {
    with_count<kAttendRows>(span.rows, [&]<int R>() {
        alignas(64) float decay[16] = {};
        score_cached<Kv, R>(a, w, tile, next);
        weigh<R>(a, w, 0, span, decay);
        add_span<R>(w, 0, span, decay, CachedValues<Kv>{static_cast<const uint8_t*>(a.value), tile.row,
                                                        a.head_dim * Kv::kNumber});
    });
}

}  // namespace
