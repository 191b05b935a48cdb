// Bounds of the machine and the errors that name them.
#pragma once
#include <cstdint>
#include <stdexcept>
#include <string>

namespace safegen {

struct LimitExceeded : std::runtime_error {
    using std::runtime_error::runtime_error;
};
struct Violation : std::runtime_error {
    using std::runtime_error::runtime_error;
};

struct Options {
    uint32_t max_states = 200'000;       // automaton states of one program, all lexemes together
    uint32_t whitespace = 0;             // blanks allowed between JSON tokens; 0 is compact
    bool any_order = false;              // properties in any order
    bool any_spelling = false;           // every spelling of a listed key
    uint32_t max_digits = 64;            // digits of a number, exponent not included
    uint32_t max_exponent_digits = 3;
    uint32_t max_nesting = 512;          // arrays and objects inside one another
    double deadline_s = 0;               // for building a program; 0 is none
    uint32_t max_completion_bytes = 1'000'000;  // a spec whose shortest answer is longer is refused
};

constexpr uint32_t kInfinite = 0xFFFFFFFFu;

inline uint32_t saturating_add(uint32_t a, uint32_t b) {
    return (a >= kInfinite - b) ? kInfinite : a + b;
}
inline uint32_t saturating_mul(uint32_t a, uint32_t b) {
    if (a == 0 || b == 0) return 0;
    uint64_t product = static_cast<uint64_t>(a) * b;
    return product >= kInfinite ? kInfinite : static_cast<uint32_t>(product);
}

}  // namespace safegen
