// The loops of sampling, compiled for avx2.
#if defined(__x86_64__)
#include "kernels/cpu/sampling_loops.hpp"

namespace safegen::cpu {

const SampleLoops& avx2_sample_loops() {
    static constexpr SampleLoops table{"avx2", blend, block_maxima, weigh, count_bits};
    return table;
}

}  // namespace safegen::cpu
#endif
