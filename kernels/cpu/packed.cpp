#include "kernels/cpu/packed.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/cpu/half.hpp"
#include "kernels/cpu/thread_pool.hpp"
#include "kernels/cpu/weight_memory.hpp"

namespace safegen::cpu {
namespace {

using std::int64_t;
using std::uint16_t;
using std::uint32_t;
using std::uint8_t;

// 32 inputs of one feature. scale[1]: of the second 16, where a type has two.
struct Ints {
    uint8_t q[kGroup];
    float scale[2], minimum;
};

// The 6-bit scale and minimum of 32-weight group g of a q4_k or q5_k block.
void k_scales(const uint8_t* a, int g, Ints& out) {
    const uint8_t* s = a + 4;
    const int scale = g < 4 ? s[g] & 63 : (s[g + 4] & 15) | ((s[g - 4] >> 6) << 4);
    const int minimum = g < 4 ? s[g + 4] & 63 : (s[g + 4] >> 4) | ((s[g] >> 6) << 4);
    out.scale[0] = out.scale[1] = half_at(a) * static_cast<float>(scale);
    out.minimum = -(half_at(a + 2) * static_cast<float>(minimum));
}

void nibbles(const uint8_t* q, Ints& out) {
    for (int i = 0; i < 16; ++i) {
        out.q[i] = q[i] & 15;
        out.q[16 + i] = q[i] >> 4;
    }
}
void fifth_bits(const uint8_t* a, Ints& out) {
    uint32_t bits;
    std::memcpy(&bits, a, 4);
    for (int i = 0; i < 32; ++i) out.q[i] = static_cast<uint8_t>(out.q[i] | (((bits >> i) & 1u) << 4));
}

// Group g (of 32) of a block at a.
void decode(Kind kind, const uint8_t* a, int g, Ints& out) {
    out.minimum = 0.0f;
    switch (kind) {
        case Kind::q4_0: nibbles(a + 2, out); break;
        case Kind::q4_1: nibbles(a + 4, out); break;
        case Kind::q5_0: nibbles(a + 6, out); fifth_bits(a + 2, out); break;
        case Kind::q5_1: nibbles(a + 8, out); fifth_bits(a + 4, out); break;
        case Kind::q8_0:
            for (int i = 0; i < 32; ++i) out.q[i] = static_cast<uint8_t>(a[2 + i] ^ 0x80u);
            break;
        case Kind::q4_k:
        case Kind::q5_k: {
            k_scales(a, g, out);
            const uint8_t* q = a + (kind == Kind::q4_k ? 16 : 48) + 32 * (g / 2);
            for (int i = 0; i < 32; ++i) {
                out.q[i] = g % 2 ? q[i] >> 4 : q[i] & 15;
                if (kind == Kind::q5_k) out.q[i] = static_cast<uint8_t>(out.q[i] | (((a[16 + i] >> g) & 1) << 4));
            }
            return;
        }
        case Kind::q6_k: {
            const int half = g / 4, row = g % 4;
            const uint8_t *low = a + 64 * half + 32 * (row % 2), *high = a + 128 + 32 * half;
            for (int i = 0; i < 32; ++i)
                out.q[i] = static_cast<uint8_t>((row < 2 ? low[i] & 15 : low[i] >> 4) | (((high[i] >> (2 * row)) & 3) << 4));
            for (int s = 0; s < 2; ++s)
                out.scale[s] = half_at(a + 208) * static_cast<float>(static_cast<std::int8_t>(a[192 + 2 * g + s]));
            return;
        }
        default: return;
    }
    out.scale[0] = out.scale[1] = half_at(a);
    if (kind == Kind::q4_1 || kind == Kind::q5_1) out.minimum = half_at(a + 2);
}

Packing packing_of(Kind kind) {
    switch (kind) {
        case Kind::q4_0: return Packing::nibble;
        case Kind::q5_0: return Packing::five;
        case Kind::q5_1: case Kind::q5_k: return Packing::five_min;
        case Kind::q6_k: return Packing::six;
        case Kind::q8_0: return Packing::byte;
        default: return Packing::nibble_min;
    }
}

int int_bytes(Packing packing) {
    const int bits = kPackingInfo[static_cast<int>(packing)].bits;
    return bits == 8 ? 512 : 256 + 64 * (bits - 4);
}

// Where q of input i of a lane lies: bits of the low nibble (or byte), and of what is above it.
void store_ints(uint8_t* record, int bits, int lane, const uint8_t* q) {
    for (int i = 0; i < kGroup; ++i) {
        const int u = i / 4, byte = 4 * lane + i % 4;
        if (bits == 8) {
            record[64 * u + byte] = q[i];
            continue;
        }
        record[64 * (u % 4) + byte] = static_cast<uint8_t>(record[64 * (u % 4) + byte] | ((q[i] & 15) << (u < 4 ? 0 : 4)));
        if (bits == 5) {
            uint8_t& word = record[256 + 8 * u + byte / 8];
            word = static_cast<uint8_t>(word | ((q[i] >> 4) << (byte % 8)));
        } else if (bits == 6) {
            uint8_t& word = record[256 + 64 * (u % 2) + byte];
            word = static_cast<uint8_t>(word | ((q[i] >> 4) << (2 * (u / 2))));
        }
    }
}
uint8_t load_int(const uint8_t* record, int bits, int lane, int i) {
    const int u = i / 4, byte = 4 * lane + i % 4;
    if (bits == 8) return record[64 * u + byte];
    int q = (record[64 * (u % 4) + byte] >> (u < 4 ? 0 : 4)) & 15;
    if (bits == 5) q |= ((record[256 + 8 * u + byte / 8] >> (byte % 8)) & 1) << 4;
    if (bits == 6) q |= ((record[256 + 64 * (u % 2) + byte] >> (2 * (u / 2))) & 3) << 4;
    return static_cast<uint8_t>(q);
}

void store_half(uint8_t* to, float value) {
    const uint16_t h = float_to_half(value);
    std::memcpy(to, &h, 2);
}

// Fills the records from `groups_of`, which gives a feature's groups; shift: a power of two for each row's scales.
template <class Source> PackedWeight fill(Packing packing, int64_t out, int64_t in, bool shifted, const Source& source) {
    const PackingInfo info = kPackingInfo[static_cast<int>(packing)];
    PackedWeight w{packing, out, in, (out + 15) / 16, (in + kGroup - 1) / kGroup, {}, {}};
    w.records = weight_memory(w.blocks * w.block_bytes());
    if (shifted) w.row_scale.assign(static_cast<std::size_t>(w.blocks) * 16, 1.0f);
    const int ints = int_bytes(packing);
    ThreadPool::instance().run(w.blocks, [&](int64_t block) {
        uint8_t* base = w.records.get() + block * w.block_bytes();
        std::memset(base, 0, static_cast<std::size_t>(w.block_bytes()));
        std::vector<Ints> groups(static_cast<std::size_t>(w.groups));
        for (int lane = 0; lane < 16; ++lane) {
            const int64_t row = block * 16 + lane;
            if (row >= out) continue;
            source(row, groups.data());
            float largest = 0.0f;
            for (const Ints& g : groups) largest = std::max({largest, std::fabs(g.scale[0]), std::fabs(g.scale[1]), std::fabs(g.minimum)});
            int shift = 0;
            if (shifted && largest > 0.0f && std::isfinite(largest)) {
                std::frexp(largest, &shift);
                shift = std::min(15 - shift, 120);
                w.row_scale[static_cast<std::size_t>(row)] = std::ldexp(1.0f, -shift);
            }
            for (int64_t g = 0; g < w.groups; ++g) {
                uint8_t* record = base + g * info.bytes;
                const Ints& from = groups[static_cast<std::size_t>(g)];
                store_ints(record, info.bits, lane, from.q);
                for (int s = 0; s < info.scales; ++s)
                    store_half(record + ints + 32 * s + 2 * lane, std::ldexp(from.scale[s], shift));
                if (info.minimum) store_half(record + ints + 32 + 2 * lane, std::ldexp(from.minimum, shift));
            }
        }
    });
    return w;
}

float float_at(Kind kind, const uint8_t* a) {
    if (kind == Kind::f16) return half_at(a);
    uint32_t bits = 0;
    if (kind == Kind::bf16) {
        bits = static_cast<uint32_t>(a[0] | (a[1] << 8)) << 16;
    } else {
        std::memcpy(&bits, a, 4);
    }
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

uint8_t rounded(float x, float most) {  // NaN: 0
    return static_cast<uint8_t>(std::nearbyint(std::fmin(most, std::fmax(0.0f, x))));
}

// Symmetric, q = 128 + round(w / scale), scale = max|w| / 127.
void quantize_byte(const float* w, Ints& out) {
    float largest = 0.0f;
    for (int i = 0; i < kGroup; ++i) largest = std::max(largest, std::fabs(w[i]));
    const float scale = largest / 127.0f;
    for (int i = 0; i < kGroup; ++i) out.q[i] = scale > 0.0f ? rounded(w[i] / scale + 128.0f, 255.0f) : 128;
    out.scale[0] = out.scale[1] = scale;
    out.minimum = 0.0f;
}

struct Line {
    float scale, minimum, error;
};
// q for a line, and the least squares line for those q.
Line fit(const float* w, float scale, float minimum, uint8_t* q) {
    float sum_q = 0, sum_qq = 0, sum_w = 0, sum_qw = 0;
    for (int i = 0; i < kGroup; ++i) {
        q[i] = rounded((w[i] - minimum) / scale, 15.0f);
        const auto x = static_cast<float>(q[i]);
        sum_q += x, sum_qq += x * x, sum_w += w[i], sum_qw += x * w[i];
    }
    const float determinant = kGroup * sum_qq - sum_q * sum_q;
    Line line{scale, minimum, 0.0f};
    if (determinant > 0.0f) {
        line.scale = (kGroup * sum_qw - sum_q * sum_w) / determinant;
        line.minimum = (sum_w - line.scale * sum_q) / kGroup;
    }
    for (int i = 0; i < kGroup; ++i) {
        const float apart = line.scale * static_cast<float>(q[i]) + line.minimum - w[i];
        line.error += apart * apart;
    }
    return line;
}

// scale and minimum by least squares, from ranges that clip the extremes more and more; the smallest error is kept.
void quantize_nibble(const float* w, Ints& out) {
    const auto [low, high] = std::minmax_element(w, w + kGroup);
    const float range = *high - *low;
    out.scale[0] = out.scale[1] = 0.0f;
    out.minimum = *low;
    std::fill(out.q, out.q + kGroup, uint8_t{0});
    if (!(range > 0.0f)) return;
    float least = INFINITY;
    for (int step = 0; step < 12; ++step) {
        const float clipped = 0.02f * static_cast<float>(step) * range;
        uint8_t q[kGroup];
        const Line line = fit(w, (range - 2 * clipped) / 15.0f, *low + clipped, q);
        if (!(line.error < least) || !(line.scale > 0.0f)) continue;
        least = line.error;
        out.scale[0] = out.scale[1] = line.scale;
        out.minimum = line.minimum;
        std::copy(q, q + kGroup, out.q);
    }
}

}  // namespace

bool is_packable(Kind kind) { return kind != Kind::f32 && kind != Kind::f16 && kind != Kind::bf16; }

PackedWeight pack(Kind kind, const uint8_t* raw, int64_t out, int64_t in) {
    const KindInfo info = kKindInfo[static_cast<int>(kind)];
    const int64_t row_bytes = in / info.block * info.bytes;
    const int each = info.block / static_cast<int>(kGroup);
    const bool shifted = info.block == 256;
    return fill(packing_of(kind), out, in, shifted, [=](int64_t row, Ints* groups) {
        for (int64_t g = 0; g < in / kGroup; ++g)
            decode(kind, raw + row * row_bytes + g / each * info.bytes, static_cast<int>(g % each), groups[g]);
    });
}

PackedWeight quantize_weight(Kind kind, const uint8_t* raw, int64_t out, int64_t in, int bits) {
    const int64_t size = kKindInfo[static_cast<int>(kind)].bytes;
    return fill(bits == 8 ? Packing::byte : Packing::nibble_min, out, in, true, [=](int64_t row, Ints* groups) {
        for (int64_t g = 0; g * kGroup < in; ++g) {
            float w[kGroup] = {};
            for (int64_t i = 0; i < std::min(kGroup, in - g * kGroup); ++i)
                w[i] = float_at(kind, raw + (row * in + g * kGroup + i) * size);
            if (!std::all_of(w, w + kGroup, [](float x) { return std::isfinite(x); })) {
                groups[g] = {{}, {NAN, NAN}, NAN};  // what is broken must show
            } else if (bits == 8) {
                quantize_byte(w, groups[g]);
            } else {
                quantize_nibble(w, groups[g]);
            }
        }
    });
}

void dequantize_packed(const PackedWeight& w, int64_t row, float* out) {
    const PackingInfo info = kPackingInfo[static_cast<int>(w.packing)];
    const int ints = int_bytes(w.packing), lane = static_cast<int>(row % 16);
    const uint8_t* record = w.records.get() + row / 16 * w.block_bytes();
    const float factor = w.row_scale.empty() ? 1.0f : w.row_scale[static_cast<std::size_t>(row)];
    for (int64_t g = 0; g < w.groups; ++g, record += info.bytes) {
        const float minimum = info.minimum ? half_at(record + ints + 32 + 2 * lane) * factor : 0.0f;
        float scale[2];
        for (int s = 0; s < 2; ++s) scale[s] = half_at(record + ints + 32 * s * (info.scales - 1) + 2 * lane) * factor;
        for (int i = 0; i < kGroup && g * kGroup + i < w.in; ++i) {
            const int q = load_int(record, info.bits, lane, i) - info.zero;
            out[g * kGroup + i] = scale[i / 16] * static_cast<float>(q) + minimum;
        }
    }
}

}  // namespace safegen::cpu
