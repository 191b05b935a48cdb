// The contract between the drivers (ops.cpp) and the instruction sets (kernels_*.cpp): plain structs and one table of
// function pointers per instruction set.
//
// Bitwise row independence. Every sum over a row runs in 16 lanes: lane j adds the elements j, j + 16, j + 32, ... in
// that order with fused multiply-add, then the lanes are added as a binary tree (i with i + 8, + 4, + 2, + 1). That
// order is a property of the row's length alone. AVX2 (two halves) and AVX-512 (one register) give the same bits; the
// scalar build fuses only where the target has a fused instruction and may differ from them in the last place. Attention
// has an order of its own (attention.hpp).
#pragma once

#include <cstdint>

namespace safegen::cpu {

enum class Kind : int { f32, f16, bf16, q4_0, q4_1, q5_0, q5_1, q8_0, q4_k, q5_k, q6_k };
inline constexpr int kKinds = 11;

struct KindInfo {
    const char* name;
    int block;   // weights a block
    int bytes;   // bytes a block
};

inline constexpr KindInfo kKindInfo[kKinds] = {
    {"f32", 1, 4},    {"f16", 1, 2},    {"bf16", 1, 2},    {"q4_0", 32, 18},  {"q4_1", 32, 20},  {"q5_0", 32, 22},
    {"q5_1", 32, 24}, {"q8_0", 32, 34}, {"q4_k", 256, 144}, {"q5_k", 256, 176}, {"q6_k", 256, 210},
};

// y[rows, out] = x[rows, in] * weight[out, in]^T + bias. The weight lies in file layout.
struct LinearArgs {
    Kind kind;
    const std::uint8_t* weight;
    std::int64_t row_bytes;
    std::int64_t in, out, rows;
    const float* x;
    const float* bias;  // [out] or null
    float* y;           // row r at y + r * y_stride
    std::int64_t y_stride;
    bool accumulate;    // y += instead of y =
    const std::int64_t* y_row = nullptr;  // row r is row y_row[r] of y; null: r
};

// Packed weights and quantized activations: packed.hpp.
struct PackedArgs;
struct Activations;

// How a cached number is kept. i8: value = digit * scale, one scale for each token's head: max|x| / 127.
enum class KvKind : int { f32, f16, i8 };

static inline std::int64_t kv_bytes(KvKind kind) { return kind == KvKind::f32 ? 4 : kind == KvKind::f16 ? 2 : 1; }

// Causal attention over a paged cache. key: [blocks, kv_heads, head_dim, block_size] of `kv`, neighbouring tokens side by
// side, as a register of scores takes them; value: [blocks, kv_heads, block_size, head_dim]; key_scale, value_scale:
// [blocks, kv_heads, block_size] for i8, else null.
struct AttentionArgs {
    const float* q;  // token t's heads, [heads, head_dim], at q + t * q_stride
    float* out;      // likewise, at out + t * out_stride
    std::int64_t q_stride, out_stride;
    KvKind kv;
    const void *key, *value;
    const float *key_scale, *value_scale;
    const std::int32_t* block_table;  // [sequences, max_blocks]
    const std::int32_t* position;     // [tokens]
    std::int64_t max_blocks, block_size, heads, kv_heads, head_dim;
    float scale;
    std::int64_t window;  // keys a token sees; 0: all
    float softcap;        // 0: none
};

// Query tokens [first, last) of one sequence against one key/value head.
struct AttentionItem {
    std::int64_t sequence, first, last, kv_head;
};

// Writes keys and values of tokens to their slots of the cache. f16 rounds to nearest even and stops at the largest
// finite number; NaN stays. i8 digits round to nearest even; a head that holds NaN or infinity reads back as NaN.
struct KvWriteArgs {
    const float* key;    // token t's heads, [kv_heads, head_dim], at key + t * key_stride
    const float* value;  // likewise, at value + t * value_stride
    std::int64_t key_stride, value_stride;
    const std::int32_t* slot;  // [tokens], block * block_size + offset
    std::int64_t block_size, kv_heads, head_dim;
    KvKind kv;
    void *key_cache, *value_cache;
    float *key_scale, *value_scale;  // i8 alone
};

inline constexpr std::int64_t kQueryChunk = 32;  // query tokens an AttentionItem holds at most
inline constexpr std::int64_t kKeyTile = 64;     // keys between two rescalings; tiles start at multiples of this
inline constexpr std::int64_t kMaxAttendRows = 8;  // query rows that pass over a tile of keys together, at most
inline constexpr std::int64_t kOutTile = 4;      // output features computed together

struct Kernels {
    const char* name;
    // Rows [r0, r1), features [o0, o1). scratch: kOutTile * round_up(in, 16) floats, 64-byte aligned.
    void (*linear)(const LinearArgs&, std::int64_t r0, std::int64_t r1, std::int64_t o0, std::int64_t o1, float* scratch);
    void (*dequantize)(Kind, const std::uint8_t* row, std::int64_t n, float* out);
    // Rows [r0, r1), whole tiles of the activations; blocks of 16 features [b0, b1).
    void (*packed_linear)(const PackedArgs&, const Activations&, std::int64_t r0, std::int64_t r1, std::int64_t b0,
                          std::int64_t b1);
    // n floats into groups g0, g0 + 1, ... of row `row` of the tile of `rows` rows that starts at row `first`.
    void (*quantize)(const float* x, std::int64_t n, const Activations&, std::int64_t first, std::int64_t rows,
                     std::int64_t row, std::int64_t g0);
    // scratch: attention_scratch() floats, 64-byte aligned.
    void (*attention)(const AttentionArgs&, const AttentionItem&, float* scratch);
    void (*kv_write)(const KvWriteArgs&, std::int64_t first_token, std::int64_t last_token);
    void (*rms_norm)(const float* x, const float* weight, float eps, std::int64_t dim, float* out);  // one row
    void (*silu_mul)(const float* gate, const float* up, std::int64_t n, float* out);
    void (*gelu_mul)(const float* gate, const float* up, std::int64_t n, float* out);
    void (*softcap)(const float* x, std::int64_t n, float cap, float* out);  // cap * tanh(x / cap); out may be x
};

// static: a copy a translation unit, lest the one compiled for AVX-512 serve them all.
static inline std::int64_t round_up(std::int64_t n, std::int64_t to) { return (n + to - 1) / to * to; }

// One tile of keys, values and scales, its scores for kMaxAttendRows rows; accumulators, 16 lane sums, a maximum and a
// pointer a row.
static inline std::int64_t attention_scratch(const AttentionArgs& a) {
    const std::int64_t rows = kQueryChunk * (a.heads / a.kv_heads), padded = round_up(a.head_dim, 16);
    return kKeyTile * (2 * padded + 2 + kMaxAttendRows) + rows * (padded + 16) + 3 * round_up(rows, 16);
}

const Kernels& scalar_kernels();
#if defined(__x86_64__)
const Kernels& avx2_kernels();
const Kernels& avx512_kernels();
#elif defined(__aarch64__)
const Kernels& neon_kernels();
const Kernels& neondot_kernels();
#endif

// The table in use: the best the processor has, unless set_isa chose another.
const Kernels& kernels();
const Kernels* find_kernels(const char* name);  // null: unknown, or not on this processor
void set_kernels(const Kernels&);

}  // namespace safegen::cpu
