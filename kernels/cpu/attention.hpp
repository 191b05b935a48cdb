// Causal attention over a paged cache for query tokens of one sequence and the heads that share one key/value head.
//
// Online softmax over tiles of kKeyTile keys that start at multiples of kKeyTile in absolute position. A tile is read
// once an item: keys to fp32 columns, so that a register holds neighbouring keys at one dimension, as the cache keeps
// them; values to fp32 rows. All query rows of the item then pass over it, kAttendRows at a time, in register tiles; the few rows of
// a decoding step and the hundred of a prefill take the same way.
//
// For a query at position p every operation depends on p and on the keys and values alone: a score is one chain of
// fused multiply-adds over the dimensions; the tile's maximum; weights summed by lane = position mod 16; values added
// in order of position. So its bits depend neither on the block layout nor on which queries share the item nor on how
// the prompt was cut. What lies outside [p - window + 1, p] never enters its sums, NaN included.
#pragma once

#include "kernels/cpu/attention_tile.hpp"

namespace {

using safegen::cpu::AttentionItem;

inline int64_t window_start(const AttentionArgs& a, int64_t position) {
    return a.window > 0 && position >= a.window ? position - a.window + 1 : 0;
}

// Walks block by block: a division for every key would cost as much as a dot product.
inline void find_keys(const AttentionArgs& a, const AttentionItem& item, Tile& tile, int64_t low, int64_t high) {
    tile.begin = low > tile.start ? low - tile.start : 0;
    tile.end = high < tile.start + kKeyTile ? high - tile.start : kKeyTile;
    const std::int32_t* block = a.block_table + item.sequence * a.max_blocks + (tile.start + tile.begin) / a.block_size;
    int64_t within = (tile.start + tile.begin) % a.block_size, head = *block * a.kv_heads + item.kv_head;
    const auto find = [&](int64_t i) {
        tile.row[i] = head * a.block_size + within;
        tile.column[i] = head * a.head_dim * a.block_size + within;
    };
    for (int64_t i = 0; i < kKeyTile; ++i) find(i);
    for (int64_t i = tile.begin; i < tile.end; ++i) {
        find(i);
        if (++within == a.block_size && i + 1 < tile.end) {
            within = 0;
            head = *++block * a.kv_heads + item.kv_head;
        }
    }
}

// Where a query row comes from and goes to.
struct Place {
    int64_t token, head;
};
inline Place place(const AttentionArgs& a, const AttentionItem& item, int64_t row) {
    const int64_t group = a.heads / a.kv_heads;
    return {item.first + row / group, item.kv_head * group + row % group};
}

inline int64_t tile_rows(const Workspace& w, int64_t first) {
    return w.rows - first < kAttendRows ? w.rows - first : kAttendRows;
}

// Finds the queries; accumulators, sums and maxima emptied.
inline void begin(const AttentionArgs& a, const AttentionItem& item, const Workspace& w) {
    for (int64_t row = 0; row < w.rows; ++row) {
        const Place at = place(a, item, row);
        w.queries[row] = a.q + at.token * a.q_stride + at.head * a.head_dim;
        w.maximum[row] = -kInfinity;
    }
    std::memset(w.sums, 0, static_cast<std::size_t>(w.rows * (16 + w.padded)) * sizeof(float));  // accumulators follow
}

inline void finish(const AttentionArgs& a, const AttentionItem& item, const Workspace& w) {
    for (int64_t row = 0; row < w.rows; ++row) {
        const Place at = place(a, item, row);
        const F factor = set1(1.0f / sum(load(w.sums + 16 * row)));
        const float* acc = w.accumulators + row * w.padded;
        float* out = a.out + at.token * a.out_stride + at.head * a.head_dim;
        int64_t d = 0;
        for (; d + 16 <= a.head_dim; d += 16) store(out + d, mul(load(acc + d), factor));
        if (d < a.head_dim) store_n(out + d, mul(load(acc + d), factor), a.head_dim - d);
    }
}

// What the rows of the register tile at `first` see of a tile of keys.
inline Span seen(const AttentionArgs& a, const AttentionItem& item, const Workspace& w, int64_t first, int64_t start) {
    Span span;
    span.rows = tile_rows(w, first);
    for (int64_t r = 0; r < span.rows; ++r) {
        const int64_t position = a.position[place(a, item, first + r).token];
        const int64_t begin = window_start(a, position) - start, end = position + 1 - start;
        span.begin[r] = begin > 0 ? begin : 0;
        span.end[r] = end < kKeyTile ? end : kKeyTile;
    }
    return span;
}

template <class Kv>
inline void attend_all(const AttentionArgs& a, const AttentionItem& item, const Workspace& w, const Tile& tile,
                       const Tile& next) {
    if (a.key_scale) read_scales(a, w, tile);
    if (w.rows <= kAttendRows && a.head_dim == w.padded && has_runs(a))
        return attend_cached<Kv>(a, w, seen(a, item, w, 0, tile.start), tile, next);
    has_runs(a) ? read_keys<Kv>(a, w, tile, next) : gather_keys<Kv>(a, w, tile);
    read_values<Kv>(a, w, tile);
    for (int64_t first = 0; first < w.rows; first += kAttendRows)
        attend(a, w, first, seen(a, item, w, first, tile.start));
}

void attention(const AttentionArgs& a, const AttentionItem& item, float* scratch) {
    const Workspace w(a, (item.last - item.first) * (a.heads / a.kv_heads), scratch);
    begin(a, item, w);
    int64_t low = INT64_MAX, high = 0;
    for (int64_t token = item.first; token < item.last; ++token) {
        const int64_t position = a.position[token], start = window_start(a, position);
        low = start < low ? start : low;
        high = position + 1 > high ? position + 1 : high;
    }
    Tile tiles[2];
    tiles[0].start = low / kKeyTile * kKeyTile;
    find_keys(a, item, tiles[0], low, high);
    for (int which = 0; tiles[which].start < high; which ^= 1) {
        const Tile& tile = tiles[which];
        Tile& next = tiles[which ^ 1];
        next.start = tile.start + kKeyTile;
        const bool last = next.start >= high;
        if (!last) find_keys(a, item, next, low, high);
        with_kv(a.kv, [&]<class Kv>() { attend_all<Kv>(a, item, w, tile, last ? tile : next); });
    }
    finish(a, item, w);
}

}  // namespace
