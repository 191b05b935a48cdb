// The operations on validated raw pointers: each cuts its work into pieces and runs them on the pool. How it is cut may
// depend on the number of threads; no result does, because a piece never splits a sum (kernels.hpp).
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cpu/products.hpp"

namespace safegen::cpu {

// y[rows, out] = x[rows, in] * weight^T + bias (or null). Packed weights take x quantized (packed.hpp).
void linear(const WeightData&, const float* x, const float* bias, std::int64_t rows, float* y);

// Rows of a weight as floats. ids: [tokens], each within the weight's rows.
void embedding_row(const WeightData&, std::int64_t id, float* out);
void embedding(const WeightData&, const std::int64_t* ids, std::int64_t tokens, float* out);

void rms_norm(const float* x, const float* weight, float eps, std::int64_t rows, std::int64_t dim, float* out);

struct RopeArgs {
    const float* x;  // [tokens, heads, head_dim]
    const float *cos, *sin;  // [max_position, half]
    const std::int32_t* position;
    std::int64_t tokens, heads, head_dim, half;
    bool interleaved;
    float* out;
};
void rope(const RopeArgs&);
void rope_token(const RopeArgs&, std::int64_t token);  // out may be x

// All tokens must lie within the cache; two of them in one slot is the caller's mistake.
void kv_write(const KvWriteArgs&, std::int64_t tokens);

// The pieces of a step's attention, the same for all layers. query_start: [sequences + 1].
std::vector<AttentionItem> attention_items(const std::int32_t* query_start, std::int64_t sequences,
                                           std::int64_t kv_heads);
void attention(const AttentionArgs&, const std::int32_t* query_start, std::int64_t sequences);

void silu_mul(const float* gate, const float* up, std::int64_t n, float* out);
void softcap(const float* x, std::int64_t n, float cap, float* out);
void gelu_mul(const float* gate, const float* up, std::int64_t n, float* out);

}  // namespace safegen::cpu
