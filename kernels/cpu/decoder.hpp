// A whole decoder step natively: embedding, layers, final norm and head, over a paged cache, for the tokens of all
// sequences of a step. What engine/models/layers.py spells out in Python, operation by operation and to the last bit.
//
// Threads meet six times a layer: after norm, q/k/v, rotation and cache write, attention, output projection, gate and
// up; what belongs to one row or one head is fused into the piece that computes it (quantization of a norm's row, of a
// head's values, of an activation's columns; residuals in the products). In the last layer only the rows whose logits
// are wanted go past the cache write. A step may stop after its first layers and take the final norm and head from
// there (early exit): of those layers it writes what the whole step would. The head computes dense rows together; a row
// whose mask leaves few ids gets only the blocks of 16 that hold one of them. A weight whose inputs lie in another order
// than the model's takes a sorted copy of its rows, and one more meeting.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cpu/products.hpp"

namespace safegen::cpu {

enum class Activation : int { silu, gelu };

struct NormRef {
    const float* weight = nullptr;  // null: no norm here
    float eps = 0.0f;
};
struct LinearRef {
    const WeightData* weight = nullptr;
    const float* bias = nullptr;
};
struct DecoderLayer {
    NormRef attention_norm, post_attention_norm, mlp_norm, post_mlp_norm, q_norm, k_norm;
    LinearRef q, k, v, output, gate, up, down;
    std::int64_t rope;  // which of the step's tables
    bool interleaved;
    float scale;
    std::int64_t window;  // 0: all
    Activation activation;
};
struct CacheRef {
    KvKind kind;
    void *key, *value;
    float *key_scale, *value_scale;
};
struct RopeRef {
    const float *cos, *sin;  // [positions, half]
    std::int64_t positions, half;
};

// The tokens of a step; checked by the caller. sampled: places of the tokens whose logits are wanted. layers: how many
// are computed, from the first; 0 is all.
struct Step {
    const std::int64_t* ids;
    const std::int32_t *position, *slot, *query_start, *block_table, *sampled;
    std::int64_t tokens, sequences, max_blocks, block_size, num_sampled, layers;
    std::vector<RopeRef> ropes;
    // masks: [num_sampled, mask_words] of 32 bits, or null. restricted: rows of which only legal ids are wanted.
    const std::uint32_t* masks;
    std::int64_t mask_words;
    const bool* restricted;
    // [num_sampled, vocabulary]. A restricted row has -inf where an id was not wanted and not computed; one whose mask
    // leaves a single id is not written to.
    float* logits;
    float* maxima;  // [num_sampled, blocks_of(vocabulary)], see block_maxima of SampleLoops; null where nobody asks
};

class Decoder {
  public:
    std::int64_t hidden, heads, kv_heads, head_dim;
    float embedding_scale = 1.0f, logit_softcap = 0.0f;
    const WeightData* embedding = nullptr;
    LinearRef head;
    NormRef norm;
    std::vector<DecoderLayer> layers;
    std::vector<CacheRef> cache;

    void forward(const Step&);

  private:
    struct SampledRow;
    struct Rows;  // the tokens that a part of a step works on
    std::vector<SampledRow> sampled_rows(const Step&) const;
    void embed(ThreadPool::Session&, const Step&);
    void run_layer(ThreadPool::Session&, const DecoderLayer&, const CacheRef&, const Step&, Rows&, bool last);
    // Memory for rows as the inputs of a weight lie.
    struct SortedRows {
        AlignedArray<float> floats;
        ActivationBuffer quantized;
    };
    Input fitting(ThreadPool::Session&, const WeightData&, const Input&, SortedRows&);
    void multiply(ThreadPool::Session&, const std::vector<Product>&, const Input&);
    Input normed(ThreadPool::Session&, const NormRef&, std::int64_t rows, std::initializer_list<const LinearRef*>);
    void project(ThreadPool::Session&, const LinearRef&, const Input&, const NormRef& post);
    void rotate_and_write(ThreadPool::Session&, const DecoderLayer&, const CacheRef&, const Step&);
    Input attend(ThreadPool::Session&, const DecoderLayer&, const CacheRef&, const Step&, const Rows&);
    Input gated(ThreadPool::Session&, const DecoderLayer&, const Input&);
    void keep_sampled(const Step&, Rows&, int threads);
    void logits(ThreadPool::Session&, const Step&, const Rows&);

    AlignedArray<float> x_, normed_, q_, k_, v_, attended_, inner_, projected_;
    ActivationBuffer hidden_q_, attended_q_, inner_q_;
    SortedRows sorted_, sorted_up_;
};

}  // namespace safegen::cpu
