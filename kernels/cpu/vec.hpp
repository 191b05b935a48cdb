// What is the same for every width: 16-lane values F made of kParts registers, and their exp and tanh. Included after
// one of the vec_<isa>.hpp headers; internal linkage.
//
// exp: n = round(x / ln 2), a degree-6 polynomial on |r| <= ln 2 / 2, times 2^n, so that subnormal results and
// the step to infinity come out right; at most 2 units in the last place off. tanh: an odd polynomial below 0.625,
// 1 - 2 / (exp(2|x|) + 1) above; at most 3 units. NaN stays NaN in both.
#pragma once

#include <cstdint>

#if defined(__clang__)
#define SAFEGEN_UNROLL _Pragma("clang loop unroll(full)")
#else
#define SAFEGEN_UNROLL _Pragma("GCC unroll 32")
#endif
// Loops over the rows and vectors of a register tile: where a "register" is an array, unrolling them makes megabytes.
#if !defined(SAFEGEN_UNROLL_TILE)
#define SAFEGEN_UNROLL_TILE SAFEGEN_UNROLL
#endif

namespace {

using std::int64_t;
using std::uint8_t;

template <class Op> inline F parts(Op op) {
    F r;
    SAFEGEN_UNROLL
    for (int i = 0; i < kParts; ++i) r.p[i] = op(i);
    return r;
}
inline F load(const float* a) {
    return parts([=](int i) { return vload(a + i * kWidth); });
}
inline void store(float* a, const F& v) {
    SAFEGEN_UNROLL
    for (int i = 0; i < kParts; ++i) vstore(a + i * kWidth, v.p[i]);
}
inline F set1(float a) {
    return parts([=](int) { return vset1(a); });
}
inline F zero() { return set1(0.0f); }
inline F add(const F& a, const F& b) {
    return parts([&](int i) { return vadd(a.p[i], b.p[i]); });
}
inline F sub(const F& a, const F& b) {
    return parts([&](int i) { return vsub(a.p[i], b.p[i]); });
}
inline F mul(const F& a, const F& b) {
    return parts([&](int i) { return vmul(a.p[i], b.p[i]); });
}
inline F div(const F& a, const F& b) {
    return parts([&](int i) { return vdiv(a.p[i], b.p[i]); });
}
inline F fma(const F& a, const F& b, const F& c) {
    return parts([&](int i) { return vfma(a.p[i], b.p[i], c.p[i]); });
}
inline F max(const F& a, const F& b) {
    return parts([&](int i) { return vmax(a.p[i], b.p[i]); });
}
inline F min(const F& a, const F& b) {
    return parts([&](int i) { return vmin(a.p[i], b.p[i]); });
}

inline float sum(const F& v) {
    const F all[8] = {v, zero(), zero(), zero(), zero(), zero(), zero(), zero()};
    float sums[8];
    reduce8(all, sums);
    return sums[0];
}

inline V vexp(V x) {
    x = vmin(vset1(89.0f), vmax(vset1(-104.0f), x));  // beyond these the result is infinity or 0; NaN passes
    const V n = vround(vmul(x, vset1(1.44269504088896341f)));
    V r = vfma(n, vset1(-0.693359375f), x);
    r = vfma(n, vset1(2.12194440e-4f), r);
    V y = vset1(1.9875691500e-4f);
    y = vfma(y, r, vset1(1.3981999507e-3f));
    y = vfma(y, r, vset1(8.3334519073e-3f));
    y = vfma(y, r, vset1(4.1665795894e-2f));
    y = vfma(y, r, vset1(1.6666665459e-1f));
    y = vfma(y, r, vset1(5.0000001201e-1f));
    y = vadd(vfma(vmul(r, r), y, r), vset1(1.0f));
    return vldexp(y, n);
}

inline V vtanh(V x) {
    const V magnitude = vabs(x), square = vmul(x, x);
    V small = vset1(-5.70498872745e-3f);
    small = vfma(small, square, vset1(2.06390887954e-2f));
    small = vfma(small, square, vset1(-5.37397155531e-2f));
    small = vfma(small, square, vset1(1.33314422036e-1f));
    small = vfma(small, square, vset1(-3.33332819422e-1f));
    small = vfma(vmul(small, square), x, x);
    const V denominator = vadd(vexp(vadd(magnitude, magnitude)), vset1(1.0f));
    const V large = vsub(vset1(1.0f), vdiv(vset1(2.0f), denominator));
    return vselect_lt(magnitude, vset1(0.625f), small, vcopysign(large, x));
}

// 2^x for x <= 0, and 0 below 2^-125; at most 2 units off. NaN stays NaN.
inline V vexp2_falling(V x) {
    const V n = vround(x), r = vsub(x, n);
    V y = vset1(1.535336188319500e-4f);
    y = vfma(y, r, vset1(1.339887440266574e-3f));
    y = vfma(y, r, vset1(9.618437357674640e-3f));
    y = vfma(y, r, vset1(5.550332471162809e-2f));
    y = vfma(y, r, vset1(2.402264791363012e-1f));
    y = vfma(y, r, vset1(6.931472028550421e-1f));
    y = vfma(y, r, vset1(1.0f));
    return vzero_lt(x, vset1(-125.0f), vtimes_pow2(y, n));
}

inline F exp2_falling(const F& x) {
    return parts([&](int i) { return vexp2_falling(x.p[i]); });
}
inline F exp(const F& x) {
    return parts([&](int i) { return vexp(x.p[i]); });
}
inline F tanh(const F& x) {
    return parts([&](int i) { return vtanh(x.p[i]); });
}

}  // namespace
