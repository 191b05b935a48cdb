// Products of packed weights with quantized activations (packed.hpp), for one instruction set. Internal linkage;
// included after vec.hpp and the integer lanes of a vec_<isa>.hpp.
#pragma once

#include <utility>

#include "kernels/cpu/packed.hpp"
#include "kernels/cpu/vec.hpp"

namespace {

using safegen::cpu::Activations;
using safegen::cpu::kGroup;
using safegen::cpu::kPackingInfo;
using safegen::cpu::PackedArgs;
using safegen::cpu::Packing;

// x: n floats, n <= 32.
inline void quantize_group(const float* x, int64_t n, std::int8_t* q, float* scale, std::int32_t* sum) {
    float padded[kGroup];
    if (n < kGroup) {
        for (int64_t i = 0; i < kGroup; ++i) padded[i] = i < n ? x[i] : 0.0f;
        x = padded;
    }
    const F low = load(x), high = load(x + 16);
    const float largest = largest_of(low, high);
    // Below, 127 / largest would overflow, and nothing that small can matter; NaN and infinity go on as such.
    const bool nothing = largest < 1e-34f;
    const F inverse = set1(nothing ? 0.0f : 127.0f / largest);
    store_s8(q, mul(low, inverse));
    store_s8(q + 16, mul(high, inverse));
    const std::int32_t first = sum_s8(q), second = sum_s8(q + 16);
    scale[0] = nothing ? 0.0f : largest / 127.0f;
    scale[1] = scale[0] * static_cast<float>(first + second);
    sum[0] = first;
    sum[1] = second;
}

// Floats of groups g0, g0 + 1, ... into row `row` of the tile of `rows` rows that starts at row `first`.
void quantize(const float* x, int64_t n, const Activations& a, int64_t first, int64_t rows, int64_t row, int64_t g0) {
    const int64_t base = first * a.groups;
    for (int64_t i = 0; i < n; i += kGroup) {
        const int64_t g = g0 + i / kGroup, at = base + g * rows + row, left = n - i;
        quantize_group(x + i, left < kGroup ? left : kGroup, a.q + at * kGroup, a.scale + 2 * at, a.sum + 2 * at);
    }
}

// The eight vectors of q for inputs 4 u .. 4 u + 3, part p of the lanes.
template <int bits> inline void unpack(const uint8_t* record, int p, W q[8]) {
    if constexpr (bits == 8) {
        SAFEGEN_UNROLL_TILE
        for (int u = 0; u < 8; ++u) q[u] = w_load(record + 64 * u, p);
        return;
    }
    SAFEGEN_UNROLL_TILE
    for (int v = 0; v < 4; ++v) {
        const W raw = w_load(record + 64 * v, p);
        q[v] = w_low_nibbles(raw);
        q[4 + v] = w_high_nibbles(raw);
    }
    if constexpr (bits == 5) {
        SAFEGEN_UNROLL_TILE
        for (int u = 0; u < 8; ++u) q[u] = w_or_bits(q[u], record + 256 + 8 * u, p);
    }
    if constexpr (bits == 6) {
        const W high[2] = {w_load(record + 256, p), w_load(record + 320, p)};
        SAFEGEN_UNROLL_TILE
        for (int n = 0; n < 4; ++n) {
            q[2 * n] = w_or(q[2 * n], w_two_bits(high[0], n));
            q[2 * n + 1] = w_or(q[2 * n + 1], w_two_bits(high[1], n));
        }
    }
}

// A processor that spends a while on a record's rows does not look far enough ahead by itself: in tiles of many rows the
// weights are asked for this much earlier. It may be past their end.
constexpr int64_t kBytesAhead = 4096;

// One block of 16 features for one tile of R rows.
template <Packing packing, int R> void packed_tile(const PackedArgs& a, const Activations& x, int64_t first, int64_t block) {
    constexpr auto info = kPackingInfo[static_cast<int>(packing)];
    constexpr int ints = info.bits == 8 ? 512 : 256 + 64 * (info.bits - 4);
    constexpr int halves = info.scales;  // a group's inputs are summed in one or two parts
    const int64_t base = first * a.groups;
    const uint8_t* record = a.records + block * a.block_bytes;
    const std::int8_t* xq = x.q + base * kGroup;
    const float* xs = x.scale + 2 * base;
    const std::int32_t* sums = x.sum + 2 * base;
    V acc[kParts][R];
    SAFEGEN_UNROLL_TILE
    for (int p = 0; p < kParts; ++p) {
        SAFEGEN_UNROLL_TILE
        for (int r = 0; r < R; ++r) acc[p][r] = vset1(0.0f);
    }
    for (int64_t g = 0; g < a.groups; ++g) {
        if constexpr (R >= 5) {
            SAFEGEN_UNROLL_TILE
            for (int byte = 0; byte < info.bytes; byte += 64) __builtin_prefetch(record + kBytesAhead + byte);
        }
        SAFEGEN_UNROLL_TILE
        for (int p = 0; p < kParts; ++p) {
            W q[8];
            unpack<info.bits>(record, p, q);
            SAFEGEN_UNROLL_TILE
            for (int h = 0; h < halves; ++h) {
                const V scale = v_from_f16(record + ints + 32 * h, p);
                SAFEGEN_UNROLL_TILE
                for (int r = 0; r < R; ++r) {
                    I dot;
                    if constexpr (info.bits == 8)
                        dot = i_start_byte(halves == 1 ? sums[2 * r] + sums[2 * r + 1] : sums[2 * r + h]);
                    else if constexpr (info.zero != 0)
                        dot = i_set1(-info.zero * (halves == 1 ? sums[2 * r] + sums[2 * r + 1] : sums[2 * r + h]));
                    else
                        dot = i_set1(0);
                    // Two chains: a processor sees a few rows ahead only, and a chain is as long as it waits for.
                    I other = i_set1(0);
                    SAFEGEN_UNROLL_TILE
                    for (int u = 8 / halves * h; u < 8 / halves * (h + 1); u += 2) {
                        dot = dot_add<info.bits == 8>(dot, q[u], xq + r * kGroup + 4 * u);
                        other = dot_add<info.bits == 8>(other, q[u + 1], xq + r * kGroup + 4 * u + 4);
                    }
                    dot = i_add(dot, other);
                    acc[p][r] = vfma(vmul(v_from_int(dot), vset1(xs[2 * r])), scale, acc[p][r]);
                }
            }
            if constexpr (info.minimum) {
                const V minimum = v_from_f16(record + ints + 32, p);
                SAFEGEN_UNROLL_TILE
                for (int r = 0; r < R; ++r) acc[p][r] = vfma(minimum, vset1(xs[2 * r + 1]), acc[p][r]);
            }
        }
        record += info.bytes;
        xq += R * kGroup;
        xs += 2 * R;
        sums += 2 * R;
    }
    const int64_t feature = block * 16, features = a.out - feature < 16 ? a.out - feature : 16;
    SAFEGEN_UNROLL_TILE
    for (int r = 0; r < R; ++r) {
        F y = parts([&](int p) { return acc[p][r]; });
        if (a.row_scale) y = mul(y, load(a.row_scale + feature));
        float* out = a.y + (a.y_row ? a.y_row[first + r] : first + r) * a.y_stride + feature - a.y_first;
        if (features == 16) {
            if (a.bias) y = add(y, load(a.bias + feature));
            if (a.accumulate) y = add(load(out), y);
            store(out, y);
        } else {
            if (a.bias) y = add(y, load_n(a.bias + feature, features));
            if (a.accumulate) y = add(load_n(out, features), y);
            store_n(out, y, features);
        }
    }
}

using TileFunction = void (*)(const PackedArgs&, const Activations&, int64_t first, int64_t block);

template <Packing packing, int... R> TileFunction tile_function(int64_t rows, std::integer_sequence<int, R...>) {
    static constexpr TileFunction functions[] = {packed_tile<packing, R + 1>...};
    return functions[rows - 1];
}

// Weights come from memory once: all rows pass over as many blocks as a near cache holds before the next ones do.
constexpr int64_t kNearBytes = 128 * 1024;

template <Packing packing>
void packed_blocks(const PackedArgs& a, const Activations& x, int64_t r0, int64_t r1, int64_t b0, int64_t b1) {
    const int64_t near = kNearBytes / a.block_bytes + 1;
    for (int64_t b = b0; b < b1; b += near) {
        const int64_t end = b + near < b1 ? b + near : b1;
        for (int64_t row = r0, tile; row < r1; row += tile) {
            tile = safegen::cpu::tile_of(r1 - row);
            const TileFunction run = tile_function<packing>(tile, std::make_integer_sequence<int, safegen::cpu::kMaxTile>());
            for (int64_t block = b; block < end; ++block) run(a, x, row, block);
        }
    }
}

// Rows [r0, r1): one chunk of x (kChunkRows rows, the last one fewer). Blocks [b0, b1).
void packed_linear(const PackedArgs& a, const Activations& x, int64_t r0, int64_t r1, int64_t b0, int64_t b1) {
    switch (a.packing) {
        case Packing::nibble: return packed_blocks<Packing::nibble>(a, x, r0, r1, b0, b1);
        case Packing::nibble_min: return packed_blocks<Packing::nibble_min>(a, x, r0, r1, b0, b1);
        case Packing::five: return packed_blocks<Packing::five>(a, x, r0, r1, b0, b1);
        case Packing::five_min: return packed_blocks<Packing::five_min>(a, x, r0, r1, b0, b1);
        case Packing::six: return packed_blocks<Packing::six>(a, x, r0, r1, b0, b1);
        case Packing::byte: return packed_blocks<Packing::byte>(a, x, r0, r1, b0, b1);
    }
}

}  // namespace
