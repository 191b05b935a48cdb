// Exact decimals and the automaton of JSON numbers within bounds.
//
// A number text is read digit by digit; the state keeps just what the verdict needs: how the significant digits
// compare with those of each bound so far, where the decimal point lies, the position of the last non-zero digit, and
// the remainder of the significant digits modulo the divisor. Exponents shift the point, so "5e-1" and "0.5" get the
// same verdict. Digits are bounded, which keeps the language regular. Source of the divisor rule: with v = D * 10^q, D
// an integer that does not end in 0, v is a multiple of M * 10^s iff k = q - s >= 0 and D * 10^k = 0 (mod M).
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace safegen {

struct Decimal {
    bool negative = false;
    std::string digits;   // significant digits, no leading or trailing zeros; empty is zero
    int64_t point = 0;    // value = 0.digits * 10^point

    static Decimal parse(const std::string& text);  // throws std::invalid_argument
    bool zero() const { return digits.empty(); }
};

struct NumberSpec {
    bool integer = false;
    bool plain = false;
    std::optional<Decimal> low, high;
    bool low_exclusive = false, high_exclusive = false;
    uint64_t divisor = 0;      // M; 0 is no divisor (integer is divisor 1, scale 0)
    int64_t divisor_scale = 0; // s
    std::vector<std::pair<uint64_t, int64_t>> excluded;  // (M, s) that the value is no multiple of
    uint64_t modulus = 0;      // of the remainder: the common multiple of all M; 0 when there are none
    uint32_t max_digits = 64, max_exponent_digits = 3;

    void check() const;  // throws std::invalid_argument when a bound lies beyond what the exponent digits can reach
    void set_divisor(const std::optional<std::string>& multiple_of);  // also applies `integer`
    void exclude(const std::string& multiple_of);  // behind set_divisor
};

constexpr size_t kMaxExcluded = 10;

struct NumberState {
    enum Phase : uint8_t { Start, Minus, Zero, Int, Dot, Frac, E, ESign, Exp };
    uint32_t spec = 0;
    Phase phase = Start;
    bool negative = false;
    bool significant = false;      // a non-zero digit was read
    bool exponent_negative = false;
    uint8_t exponent_digits = 0;
    uint16_t digits = 0;           // mantissa digits read
    int32_t point = 0;             // of 0.d1d2..., before the exponent
    int32_t last = 0;              // exponent of ten of the last non-zero digit, before the exponent
    int32_t trailing = 0;          // zeros after it (significant digits only)
    int32_t exponent = 0;
    uint64_t remainder = 0;        // of the digits up to the last non-zero one, by the modulus
    // Digit comparison with the bounds of this sign: index reached while equal, or decided.
    int32_t low_cmp = 0, high_cmp = 0;

    bool operator==(const NumberState&) const = default;
};

std::optional<NumberState> number_step(const NumberSpec& spec, const NumberState& state, uint8_t byte);
// Digits that lead to a state; any representative of the state will do for what its future holds.
struct NumberWitness {
    std::string significant;   // from the first non-zero digit on
    int32_t fraction = 0;      // digits after the point
    void read(const NumberState& next, uint8_t byte);
};

// Bytes of a short completion (0 when the state accepts), nothing when no completion exists. Closed form: the values
// still within reach are those whose digits start with the ones read, at any scale an exponent can give; whether one of
// them is a multiple of the divisor within the bounds is an integer division per scale.
std::optional<uint32_t> number_rest(const NumberSpec& spec, const NumberState& state, const NumberWitness& witness);

bool number_accepts(const NumberSpec& spec, const NumberState& state);

}  // namespace safegen
