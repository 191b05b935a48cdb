// What an item of attention works in, and how a tile of cached keys and values gets there. Internal linkage.
#pragma once

#include "kernels/cpu/kv_cache.hpp"

namespace {

using safegen::cpu::AttentionArgs;

static_assert(kAttendRows <= safegen::cpu::kMaxAttendRows);
constexpr float kInfinity = __builtin_inff(), kLog2E = 1.44269504088896341f;

// An item's scratch memory (attention_scratch counts it).
struct Workspace {
    int64_t rows, padded;
    float *maximum, *sums, *accumulators;  // [rows], [rows][16], [rows][padded]
    const float** queries;                 // [rows], each [head_dim]
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
        maximum = accumulators + rows * padded;
        queries = reinterpret_cast<const float**>(maximum + safegen::cpu::round_up(rows, 16));
    }
};

// The keys of the tile that each of some neighbouring rows sees: [begin, end), empty where end <= begin.
struct Span {
    int64_t rows, begin[kAttendRows], end[kAttendRows];
};

// The keys of one tile that an item reads, and the places of their cached rows.
struct Tile {
    int64_t start, begin, end;  // absolute position of the tile; keys [begin, end) of it
    int64_t row[kKeyTile];      // of keys outside [begin, end): that of begin
};

// Sixteen keys of `tile` from `first` on. Meanwhile the sixteen after them are asked for, in the next tile at the end of
// this one, and their own values: blocks lie anywhere, which the processor does not foresee; asking for a whole tile at
// once would hold up what is read now.
struct KeyRows {
    const uint8_t *at[16], *next_key[16], *own_value[16];

    KeyRows(const AttentionArgs& a, const Tile& tile, const Tile& next, int64_t first, int64_t head_bytes) {
        const auto *key = static_cast<const uint8_t*>(a.key), *value = static_cast<const uint8_t*>(a.value);
        const int64_t* after = first + 16 < kKeyTile ? tile.row + first + 16 : next.row;
        for (int k = 0; k < 16; ++k) {
            at[k] = key + tile.row[first + k] * head_bytes;
            next_key[k] = key + after[k] * head_bytes;
            own_value[k] = value + tile.row[first + k] * head_bytes;
        }
    }
    void prefetch(int64_t byte) const {  // every 32 bytes: keys and values in turn
        const uint8_t* const* rows = byte % 64 ? own_value : next_key;
        if (byte % 32 == 0)
            for (int k = 0; k < 16; ++k) __builtin_prefetch(rows[k] + byte / 64 * 64, 0, 2);
    }
};

// The tile's keys as columns, fp32.
template <class Kv>
inline void read_keys(const AttentionArgs& a, const Workspace& w, const Tile& tile, const Tile& next) {
    for (int64_t i = tile.begin / 16 * 16; i < tile.end; i += 16) {
        const KeyRows rows(a, tile, next, i, a.head_dim * Kv::kNumber);
        int64_t d = 0;
        for (; d + 16 <= a.head_dim; d += 16) {
            for (int64_t byte = 0; byte < 16 * Kv::kNumber; byte += 16) rows.prefetch(d * Kv::kNumber + byte);
            Kv::columns(rows.at, d * Kv::kNumber, w.keys + d * kKeyTile + i);
        }
        if (d < a.head_dim) {
            F run[16];
            for (int k = 0; k < 16; ++k) run[k] = decode_tail<Kv>(rows.at[k] + d * Kv::kNumber, a.head_dim - d);
            store_columns(run, w.keys + d * kKeyTile + i, kKeyTile);
        }
    }
}

// The tile's values as rows, fp32.
template <class Kv> inline void read_values(const AttentionArgs& a, const Workspace& w, const Tile& tile) {
    const int64_t head_bytes = a.head_dim * Kv::kNumber;
    for (int64_t i = tile.begin; i < tile.end; ++i)
        decode_row<Kv>(static_cast<const uint8_t*>(a.value) + tile.row[i] * head_bytes, a.head_dim,
                       w.values + i * w.padded, true);
}

// Digits of an i8 cache stay digits: scores and weights take the scales, one each instead of head_dim.
inline void read_scales(const AttentionArgs& a, const Workspace& w, const Tile& tile) {
    for (int64_t i = 0; i < kKeyTile; ++i) {
        w.key_scales[i] = a.key_scale[tile.row[i]];
        w.value_scales[i] = a.value_scale[tile.row[i]];
    }
}

}  // namespace
