// The kernels, compiled for avx2.
#if defined(__x86_64__)
#include "kernels/cpu/vec_avx2.hpp"
#include "kernels/cpu/attention.hpp"
#include "kernels/cpu/elementwise.hpp"
#include "kernels/cpu/linear.hpp"
#include "kernels/cpu/packed_linear.hpp"

namespace safegen::cpu {

const Kernels& avx2_kernels() {
    static constexpr Kernels table{"avx2",  linear,   dequantize, packed_linear, quantize, attention,
                                   kv_write, rms_norm, silu_mul,   gelu_mul, softcap};
    return table;
}

}  // namespace safegen::cpu
#endif
