// The contract between the drivers (ops.cpp) and the instruction sets (kernels_*.cpp): plain structs and one table of
// function pointers per instruction set.
//
// Bitwise row independence. Every sum over a row runs in 16 lanes: lane j adds the elements j, j + 16, j + 32, ... in
// that order with fused multiply-add, then the lanes are added as a binary tree (i with i + 8, + 4, + 2, + 1). That
// order is a property of the row's length alone. AVX2 (two halves) and AVX-512 (one register) give the same bits; the
// scalar build fuses only where the target has a fused instruction and may differ from them in the last place.
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
    float* y;
};

// Causal attention over a paged cache. key, value: [blocks, block_size, kv_heads, head_dim].
struct AttentionArgs {
    const float* q;  // [tokens, heads, head_dim]
    float* out;
    const float* key;
    const float* value;
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

inline constexpr std::int64_t kQueryChunk = 8;   // query tokens an AttentionItem holds at most
inline constexpr std::int64_t kKeyTile = 64;     // keys between two rescalings; tiles start at multiples of this
inline constexpr std::int64_t kOutTile = 4;      // output features computed together

struct Kernels {
    const char* name;
    // Rows [r0, r1), features [o0, o1). scratch: kOutTile * round_up(in, 16) floats, 64-byte aligned.
    void (*linear)(const LinearArgs&, std::int64_t r0, std::int64_t r1, std::int64_t o0, std::int64_t o1, float* scratch);
    void (*dequantize)(Kind, const std::uint8_t* row, std::int64_t n, float* out);
    // scratch: attention_scratch() floats, 64-byte aligned.
    void (*attention)(const AttentionArgs&, const AttentionItem&, float* scratch);
    void (*rms_norm)(const float* x, const float* weight, float eps, std::int64_t dim, float* out);  // one row
    void (*silu_mul)(const float* gate, const float* up, std::int64_t n, float* out);
    void (*gelu_mul)(const float* gate, const float* up, std::int64_t n, float* out);
};

// static: a copy a translation unit, lest the one compiled for AVX-512 serve them all.
static inline std::int64_t round_up(std::int64_t n, std::int64_t to) { return (n + to - 1) / to * to; }

// Queries, accumulators [rows, dim]; 16 lane sums and one maximum a row; one tile of scores.
static inline std::int64_t attention_scratch(const AttentionArgs& a) {
    const std::int64_t rows = kQueryChunk * (a.heads / a.kv_heads);
    return rows * (2 * round_up(a.head_dim, 16) + 16) + round_up(rows, 16) + kKeyTile;
}

const Kernels& scalar_kernels();
#if defined(__x86_64__)
const Kernels& avx2_kernels();
const Kernels& avx512_kernels();
#endif

// The table in use: the best the processor has, unless set_isa chose another.
const Kernels& kernels();
const Kernels* find_kernels(const char* name);  // null: unknown, or not on this processor
void set_kernels(const Kernels&);

}  // namespace safegen::cpu
