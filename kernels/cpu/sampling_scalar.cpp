// The loops of sampling, compiled for scalar.
#include "kernels/cpu/sampling_loops.hpp"

namespace safegen::cpu {

const SampleLoops& scalar_sample_loops() {
    static constexpr SampleLoops table{"scalar", blend, block_maxima, weigh, count_bits};
    return table;
}

}  // namespace safegen::cpu
