// fp16 in plain C++, for code that has no instructions for it. Internal linkage (vec_avx512.hpp says why).
#pragma once

#include <cstdint>
#include <cstring>

namespace {

inline float half_to_float(std::uint16_t h) {
    const std::uint32_t sign = static_cast<std::uint32_t>(h & 0x8000u) << 16;
    const std::uint32_t exponent = (h >> 10) & 31u, mantissa = h & 1023u;
    std::uint32_t bits = sign;
    if (exponent == 31) {
        bits |= 0x7f800000u | (mantissa << 13);
    } else if (exponent) {
        bits |= ((exponent + 112) << 23) | (mantissa << 13);
    } else {  // subnormal: mantissa * 2^-24, exact in float
        const float value = static_cast<float>(mantissa) * 5.9604644775390625e-8f;
        return sign ? -value : value;
    }
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}
inline float half_at(const std::uint8_t* a) {
    std::uint16_t raw;
    std::memcpy(&raw, a, 2);
    return half_to_float(raw);
}

// To nearest even: adding a power of two drops the bits that a half has no room for. Out of range is infinity, NaN stays.
inline std::uint16_t float_to_half(float value) {
    std::uint32_t bits;
    std::memcpy(&bits, &value, 4);
    const auto sign = static_cast<std::uint16_t>(bits >> 16 & 0x8000u);
    bits &= 0x7fffffffu;
    if (bits > 0x7f800000u) return sign | 0x7e00u;
    if (bits >= 0x477ff000u) return sign | 0x7c00u;  // 65520, halfway to the number after the largest
    if (bits < 0x38800000u) {                        // subnormal: a multiple of 2^-24
        float magnitude;
        std::memcpy(&magnitude, &bits, 4);
        magnitude += 0.5f;
        std::memcpy(&bits, &magnitude, 4);
        return static_cast<std::uint16_t>(sign | (bits - 0x3f000000u));
    }
    return static_cast<std::uint16_t>(sign | ((bits - 0x38000000u + 0xfffu + (bits >> 13 & 1u)) >> 13));
}

}  // namespace
