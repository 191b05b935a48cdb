// The kernels, compiled for avx512.
#if defined(__x86_64__)
#include "kernels/cpu/vec_avx512.hpp"
#include "kernels/cpu/attention.hpp"
#include "kernels/cpu/elementwise.hpp"
#include "kernels/cpu/linear.hpp"
#include "kernels/cpu/packed_linear.hpp"

namespace safegen::cpu {

const Kernels& avx512_kernels() {
    static constexpr Kernels table{"avx512",  linear,   dequantize, packed_linear, quantize, attention,
                                   kv_write, rms_norm, silu_mul,   gelu_mul, softcap};
    return table;
}

}  // namespace safegen::cpu
#endif
