// Drawing a token from a row of logits under a packed mask: the law of engine/logits.py and engine/sampler.py, for rows
// without bias, penalties or log-probabilities. Those files are the oracle; what is decided here is only how to do less:
//
// - ids that the mask forbids never count: words of zeros are skipped, and a mask with few legal ids costs in proportion
//   to them. Where a single id is legal its logit is not read either. A greedy row with many legal ids is first looked
//   at whole, masked or not: where the highest of all is legal, it is the highest of the legal ones.
// - top-k looks for the k-th highest score among blocks whose maximum can reach it; top-p sorts only the narrow band of
//   weights in which the nucleus ends.
//
// Scores are float32, weights float64; the order is mask, temperature, top-k, top-p, min-p; ties go to the lowest id.
// Sums run in a fixed order, and AVX2 and AVX-512 agree bitwise. A draw differs from the oracle's only where the uniform
// number, or an edge of the nucleus, lies within rounding of a boundary.
//
// The loops over a row are compiled for each instruction set (sampling_<isa>.cpp), what chooses between them is not.
#pragma once

#include <cstdint>
#include <vector>

namespace safegen::cpu {

inline constexpr std::int64_t kSampleBlock = 64;  // scores that share a maximum, weights that share a sum

inline constexpr std::int64_t blocks_of(std::int64_t n) { return (n + kSampleBlock - 1) / kSampleBlock; }

struct SampleLoops {
    const char* name;
    // scores[i] = row[i] where bit i of the mask is set, else -infinity. mask: ceil(n / 32) words.
    void (*blend)(const float* row, const std::uint32_t* mask, std::int64_t n, float* scores);
    // The maximum of each block; false if a score is NaN, of which the maxima may or may not tell.
    bool (*block_maxima)(const float* scores, std::int64_t n, float* maxima);
    // exp((score - best) / temperature), 0 where that is below `least`; sums: of each block.
    void (*weigh)(const float* scores, std::int64_t n, float best, double temperature, double least, double* weights,
                  double* sums);
    std::int64_t (*count_bits)(const std::uint32_t* mask, std::int64_t words);
};

const SampleLoops& scalar_sample_loops();
#if defined(__x86_64__)
const SampleLoops& avx2_sample_loops();
const SampleLoops& avx512_sample_loops();
#endif

// temperature 0 is greedy; top_k 0, top_p 1 and min_p 0 are off.
struct SampleSettings {
    double temperature;
    std::int64_t top_k;
    double top_p, min_p;
};

enum class SampleFault : int { none, empty_mask, all_forbidden, non_finite };

// The loops of the instruction set that the kernels use.
const SampleLoops& sample_loops();

// One token to draw, at a uniform number in [0, 1). mask: null where nothing is forbidden. maxima: of the row's blocks,
// those of scores that are no numbers NaN; null where they are not known.
struct Draw {
    SampleSettings settings;
    const float* row;
    const std::uint32_t* mask;
    const float* maxima;
    double uniform;
    std::int64_t id;  // the result, where fault is none
    SampleFault fault;
    float worst;  // the score behind non_finite
};

// The number of engine/rng.py.
double philox_uniform(std::uint64_t seed, std::uint64_t index, std::uint64_t position, std::uint64_t attempt);

// Fills in id and fault of each draw, on the pool's threads. vocab: ids a row has.
void sample(std::vector<Draw>& draws, std::int64_t vocab);

}  // namespace safegen::cpu
