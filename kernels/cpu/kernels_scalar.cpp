// The kernels, compiled for scalar.

#include "kernels/cpu/vec_scalar.hpp"
#include "kernels/cpu/attention.hpp"
#include "kernels/cpu/elementwise.hpp"
#include "kernels/cpu/linear.hpp"
#include "kernels/cpu/packed_linear.hpp"

namespace safegen::cpu {

const Kernels& scalar_kernels() {
    static constexpr Kernels table{"scalar",  linear,   dequantize, packed_linear, quantize, attention,
                                   kv_write, rms_norm, silu_mul,   gelu_mul, softcap};
    return table;
}

}  // namespace safegen::cpu

