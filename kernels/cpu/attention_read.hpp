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

// The keys of one tile that an item reads, and their places in the cache.
struct Tile {
    int64_t start, begin, end;                // absolute position of the tile; keys [begin, end) of it
    int64_t row[kKeyTile], column[kKeyTile];  // which row of values; which number of the keys holds dimension 0. Outside
                                              // [begin, end): those of begin
};

// Whether 16 keys from a multiple of 16 on lie side by side.
inline bool has_runs(const AttentionArgs& a) { return a.block_size % 16 == 0; }

// Sixteen keys of `tile` from `first` on, side by side. While they are read, the same ones of the next tile are asked for
// and their own values: blocks lie anywhere, which the processor does not foresee.
struct KeyRun {
    const uint8_t *keys, *next, *values;
    int64_t stride;  // bytes from a dimension to the next

    KeyRun(const AttentionArgs& a, const Tile& tile, const Tile& next_tile, int64_t first) {
        const auto *key = static_cast<const uint8_t*>(a.key), *value = static_cast<const uint8_t*>(a.value);
        const int64_t bytes = safegen::cpu::kv_bytes(a.kv), from = first < tile.begin ? tile.begin : first;
        keys = key + (tile.column[from] - (from - first)) * bytes;
        next = key + next_tile.column[first] * bytes;
        values = value + tile.row[from] * a.head_dim * bytes;
        stride = a.block_size * bytes;
    }
    // The keys at dimension d.
    template <class Kv> F column(int64_t d) const {
        const int64_t byte = d * 16 * Kv::kNumber;
        if (byte % 64 == 0 || stride > 16 * Kv::kNumber) __builtin_prefetch(next + d * stride, 0, 2);
        if (byte % 64 == 32 || Kv::kNumber == 4) __builtin_prefetch(values + byte / 64 * 64, 0, 2);
        F key;
        Kv::decode(keys + d * stride, &key);
        return key;
    }
};

// The tile's keys as columns, fp32.
template <class Kv>
inline void read_keys(const AttentionArgs& a, const Workspace& w, const Tile& tile, const Tile& next) {
    for (int64_t i = tile.begin / 16 * 16; i < tile.end; i += 16) {
        const KeyRun run(a, tile, next, i);
        for (int64_t d = 0; d < a.head_dim; ++d) store(w.keys + d * kKeyTile + i, run.column<Kv>(d));
    }
}

// The same where they lie in blocks of any size, key by key.
template <class Kv> inline void gather_keys(const AttentionArgs& a, const Workspace& w, const Tile& tile) {
    const auto* key = static_cast<const uint8_t*>(a.key);
    for (int64_t i = tile.begin / 16 * 16; i < tile.end; i += 16) {
        const int64_t first = i < tile.begin ? tile.begin : i, last = tile.end < i + 16 ? tile.end : i + 16;
        for (int64_t d = 0; d < a.head_dim; ++d) {
            uint8_t numbers[16 * Kv::kNumber] = {};
            for (int64_t k = first; k < last; ++k)
                std::memcpy(numbers + (k - i) * Kv::kNumber, key + (tile.column[k] + d * a.block_size) * Kv::kNumber,
                            Kv::kNumber);
            F run;
            Kv::decode(numbers, &run);
            store(w.keys + d * kKeyTile + i, run);
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
