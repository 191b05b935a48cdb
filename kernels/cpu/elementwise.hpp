// RMSNorm and the gated activations, a row or a run of elements at a time. Internal linkage; included after vec.hpp.
#pragma once

#include "kernels/cpu/vec.hpp"

namespace {

void rms_norm(const float* x, const float* weight, float eps, int64_t dim, float* out) {
    F squares = zero();
    int64_t i = 0;
    for (; i + 16 <= dim; i += 16) squares = fma(load(x + i), load(x + i), squares);
    if (i < dim) squares = fma(load_n(x + i, dim - i), load_n(x + i, dim - i), squares);
    const F factor = set1(1.0f / __builtin_sqrtf(sum(squares) / static_cast<float>(dim) + eps));
    for (i = 0; i + 16 <= dim; i += 16) store(out + i, mul(mul(load(x + i), factor), load(weight + i)));
    if (i < dim)
        store_n(out + i, mul(mul(load_n(x + i, dim - i), factor), load_n(weight + i, dim - i)), dim - i);
}

// x / (1 + exp(-z)) * up
inline F gated(const F& x, const F& z, const F& up) {
    return mul(div(x, add(set1(1.0f), exp(sub(zero(), z)))), up);
}

inline F silu(const F& gate, const F& up) { return gated(gate, gate, up); }

// gelu by tanh: 0.5 * (1 + tanh(u)) = 1 / (1 + exp(-2u)), with 2u = 2 * sqrt(2 / pi) * (x + 0.044715 * x^3)
inline F gelu(const F& gate, const F& up) {
    const F inner = fma(mul(mul(gate, gate), gate), set1(0.044715f), gate);
    return gated(gate, mul(inner, set1(1.5957691216057308f)), up);
}

template <F (*activation)(const F&, const F&)>
inline void gate_range(const float* gate, const float* up, int64_t n, float* out) {
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) store(out + i, activation(load(gate + i), load(up + i)));
    if (i < n) store_n(out + i, activation(load_n(gate + i, n - i), load_n(up + i, n - i)), n - i);
}

void softcap(const float* x, int64_t n, float cap, float* out) {
    const F most = set1(cap);
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) store(out + i, mul(tanh(div(load(x + i), most)), most));
    if (i < n) store_n(out + i, mul(tanh(div(load_n(x + i, n - i), most)), most), n - i);
}

void silu_mul(const float* gate, const float* up, int64_t n, float* out) { gate_range<silu>(gate, up, n, out); }
void gelu_mul(const float* gate, const float* up, int64_t n, float* out) { gate_range<gelu>(gate, up, n, out); }

}  // namespace
