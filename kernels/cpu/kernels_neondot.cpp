// The kernels, compiled for NEON with the dot product instructions of ARMv8.2.
#if defined(__aarch64__)
#include "kernels/cpu/vec_neon.hpp"
#include "kernels/cpu/attention.hpp"
#include "kernels/cpu/elementwise.hpp"
#include "kernels/cpu/linear.hpp"
#include "kernels/cpu/packed_linear.hpp"

namespace safegen::cpu {

const Kernels& neondot_kernels() {
    static constexpr Kernels table{"neondot", linear,   dequantize, packed_linear, quantize, attention,
                                   kv_write, rms_norm, silu_mul,   gelu_mul, softcap};
    return table;
}

}  // namespace safegen::cpu
#endif
