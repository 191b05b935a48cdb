// The loops of sampling, compiled for avx512.
#if defined(__x86_64__)
#include "kernels/cpu/sampling_loops.hpp"

namespace safegen::cpu {

const SampleLoops& avx512_sample_loops() {
    static constexpr SampleLoops table{"avx512", blend, block_maxima, weigh, count_bits};
    return table;
}

}  // namespace safegen::cpu
#endif
