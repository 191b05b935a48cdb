#include "grammars/native/decimal.hpp"

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <stdexcept>

namespace safegen {
namespace {

constexpr int32_t kLess = -1, kGreater = -2;  // decided comparisons; values >= 0 are "equal up to this digit"

// Advances a digit comparison of the value read against a bound's digits.
int32_t compare_digit(int32_t cmp, const std::string& bound, char digit) {
    if (cmp < 0) return cmp;
    const auto index = static_cast<size_t>(cmp);
    if (index >= bound.size()) return digit == '0' ? cmp : kGreater;
    if (digit < bound[index]) return kLess;
    if (digit > bound[index]) return kGreater;
    return cmp + 1;
}

// -1, 0, 1: magnitude of the value read (nonzero) against a nonzero bound.
int magnitude_order(int64_t point, int32_t cmp, const Decimal& bound) {
    if (point != bound.point) return point < bound.point ? -1 : 1;
    if (cmp == kLess) return -1;
    if (cmp == kGreater) return 1;
    return static_cast<size_t>(cmp) >= bound.digits.size() ? 0 : -1;
}

// The bounds of |value| for one sign, as pointers into the spec.
struct SideBounds {
    const Decimal* lower = nullptr;   // |value| >= lower
    const Decimal* upper = nullptr;   // |value| <= upper
    bool lower_exclusive = false, upper_exclusive = false;
    bool impossible = false;          // no nonzero value of this sign
};

SideBounds side(const NumberSpec& spec, bool negative) {
    SideBounds out;
    const auto& near = negative ? spec.high : spec.low;   // bound on the side of zero
    const auto& far = negative ? spec.low : spec.high;
    const bool near_exclusive = negative ? spec.high_exclusive : spec.low_exclusive;
    const bool far_exclusive = negative ? spec.low_exclusive : spec.high_exclusive;
    if (near && !near->zero() && near->negative == negative) {
        out.lower = &*near;
        out.lower_exclusive = near_exclusive;
    }
    if (far) {
        if (far->zero() || far->negative != negative) {
            out.impossible = true;
        } else {
            out.upper = &*far;
            out.upper_exclusive = far_exclusive;
        }
    }
    return out;
}

bool zero_allowed(const NumberSpec& spec) {
    if (spec.low && (spec.low->zero() ? spec.low_exclusive : !spec.low->negative)) return false;
    if (spec.high && (spec.high->zero() ? spec.high_exclusive : spec.high->negative)) return false;
    return true;
}

uint64_t mul_mod(uint64_t a, uint64_t b, uint64_t m) {
    return static_cast<uint64_t>(static_cast<unsigned __int128>(a) * b % m);
}

void read_digit(const NumberSpec& spec, NumberState& s, char digit, bool fraction, int32_t fraction_index) {
    ++s.digits;
    if (!s.significant) {
        if (digit == '0') return;
        s.significant = true;
        s.point = fraction ? -(fraction_index - 1) : 1;
    } else if (!fraction) {
        ++s.point;
    }
    const auto bounds = side(spec, s.negative);
    if (bounds.lower) s.low_cmp = compare_digit(s.low_cmp, bounds.lower->digits, digit);
    if (bounds.upper) s.high_cmp = compare_digit(s.high_cmp, bounds.upper->digits, digit);
    if (!spec.modulus) return;
    if (digit == '0') {
        ++s.trailing;
        return;
    }
    const uint64_t m = spec.modulus;
    uint64_t r = s.remainder % m;
    for (int32_t i = 0; i <= s.trailing; ++i) r = mul_mod(r, 10, m);
    s.remainder = (r + static_cast<uint64_t>(digit - '0') % m) % m;
    s.trailing = 0;
}

}  // namespace

Decimal Decimal::parse(const std::string& text) {
    Decimal out;
    size_t i = 0;
    if (i < text.size() && (text[i] == '-' || text[i] == '+')) out.negative = text[i++] == '-';
    std::string digits;
    int64_t integer_digits = 0;
    bool seen = false;
    for (; i < text.size() && text[i] >= '0' && text[i] <= '9'; ++i, seen = true) {
        digits += text[i];
        ++integer_digits;
    }
    if (i < text.size() && text[i] == '.')
        for (++i; i < text.size() && text[i] >= '0' && text[i] <= '9'; ++i, seen = true) digits += text[i];
    int64_t exponent = 0;
    if (seen && i < text.size() && (text[i] == 'e' || text[i] == 'E')) {
        ++i;
        bool negative = false;
        if (i < text.size() && (text[i] == '-' || text[i] == '+')) negative = text[i++] == '-';
        if (i >= text.size()) seen = false;
        for (; i < text.size() && text[i] >= '0' && text[i] <= '9'; ++i)
            exponent = std::min<int64_t>(exponent * 10 + (text[i] - '0'), 1'000'000'000);
        if (negative) exponent = -exponent;
    }
    if (!seen || i != text.size()) throw std::invalid_argument("not a decimal number: " + text);
    const size_t first = digits.find_first_not_of('0');
    if (first == std::string::npos) return Decimal{};
    out.digits = digits.substr(first, digits.find_last_not_of('0') - first + 1);
    out.point = integer_digits - static_cast<int64_t>(first) + exponent;
    return out;
}

void NumberSpec::check() const {
    if (plain) return;
    int64_t reach = 1;
    for (uint32_t i = 0; i < max_exponent_digits; ++i) reach *= 10;
    reach -= 2 * static_cast<int64_t>(max_digits) + 2;
    for (const auto* bound : {&low, &high})
        if (*bound && !(*bound)->zero() && std::abs((*bound)->point) > reach)
            throw std::invalid_argument("a bound lies beyond the exponents allowed (max_exponent_digits)");
    bool in_reach = std::abs(divisor_scale) <= reach;
    for (const auto& [mantissa, scale] : excluded) in_reach &= std::abs(scale) <= reach;
    if (!in_reach) throw std::invalid_argument("multiple_of lies beyond the exponents allowed");
}

namespace {

// (M, s) with value M * 10^s, M not ending in 0.
std::pair<uint64_t, int64_t> split_divisor(const std::string& multiple_of) {
    const Decimal m = Decimal::parse(multiple_of);
    if (m.zero() || m.negative) throw std::invalid_argument("multiple_of must be above zero: " + multiple_of);
    if (m.digits.size() > 18) throw std::invalid_argument("multiple_of has more than 18 significant digits");
    return {std::stoull(m.digits), m.point - static_cast<int64_t>(m.digits.size())};
}

}  // namespace

void NumberSpec::exclude(const std::string& multiple_of) {
    const auto divisor_of = split_divisor(multiple_of);
    if (excluded.size() >= kMaxExcluded) throw std::invalid_argument("more than ten excluded divisors");
    const uint64_t before = std::max<uint64_t>(modulus, 1);
    const auto common = static_cast<unsigned __int128>(before / std::gcd(before, divisor_of.first)) * divisor_of.first;
    if (common >> 63) throw std::invalid_argument("the common multiple of all divisors is too large");
    modulus = static_cast<uint64_t>(common);
    excluded.push_back(divisor_of);
}

void NumberSpec::set_divisor(const std::optional<std::string>& multiple_of) {
    if (!multiple_of) {
        if (integer) divisor = 1, divisor_scale = 0;
        modulus = divisor;
        return;
    }
    auto [mantissa, scale] = split_divisor(*multiple_of);
    if (integer && scale < 0) {
        // lcm(1, mantissa / 10^-scale) is the numerator in lowest terms.
        uint64_t twos = static_cast<uint64_t>(-scale), fives = twos;
        while (twos && mantissa % 2 == 0) mantissa /= 2, --twos;
        while (fives && mantissa % 5 == 0) mantissa /= 5, --fives;
        scale = 0;
    }
    divisor = modulus = mantissa;
    divisor_scale = scale;
}

std::optional<NumberState> number_step(const NumberSpec& spec, const NumberState& state, uint8_t byte) {
    using S = NumberState;
    S next = state;
    const bool digit = byte >= '0' && byte <= '9';
    const char c = static_cast<char>(byte);
    switch (state.phase) {
        case S::Start:
            if (byte == '-') {
                next.phase = S::Minus;
                next.negative = true;
                return next;
            }
            [[fallthrough]];
        case S::Minus:
            if (!digit) return std::nullopt;
            if (spec.plain && state.negative && byte == '0') return std::nullopt;
            next.phase = byte == '0' ? S::Zero : S::Int;
            break;
        case S::Zero:
        case S::Int:
            if (digit) {
                if (state.phase == S::Zero) return std::nullopt;
                break;
            }
            if (spec.plain) return std::nullopt;
            if (byte == '.') {
                next.phase = S::Dot;
                return next;
            }
            if (byte == 'e' || byte == 'E') {
                next.phase = S::E;
                return next;
            }
            return std::nullopt;
        case S::Dot:
        case S::Frac:
            if (digit) {
                next.phase = S::Frac;
                break;
            }
            if (state.phase == S::Frac && (byte == 'e' || byte == 'E')) {
                next.phase = S::E;
                return next;
            }
            return std::nullopt;
        case S::E:
            if (byte == '+' || byte == '-') {
                next.phase = S::ESign;
                next.exponent_negative = byte == '-';
                return next;
            }
            [[fallthrough]];
        case S::ESign:
        case S::Exp:
            if (!digit || state.exponent_digits >= spec.max_exponent_digits) return std::nullopt;
            next.phase = S::Exp;
            ++next.exponent_digits;
            next.exponent = state.exponent * 10 + (c - '0');
            if (!state.significant) next.exponent = 0;  // zero stays zero
            return next;
    }
    if (state.digits >= spec.max_digits) return std::nullopt;
    const bool fraction = next.phase == S::Frac;
    if (fraction) ++next.last;  // counts fraction digits; folded into positions below
    read_digit(spec, next, c, fraction, next.last);
    // What no verdict needs is not kept, so that states merge.
    const auto bounds = side(spec, next.negative);
    if (!bounds.lower && !bounds.upper) next.point = 0;
    if (!spec.modulus && next.significant) next.last = 0;
    if (spec.plain && next.significant && !fraction) {
        const int64_t furthest = std::max(bounds.lower ? bounds.lower->point : 0, bounds.upper ? bounds.upper->point : 0);
        if (bounds.upper && next.point > bounds.upper->point) return std::nullopt;
        next.point = static_cast<int32_t>(std::min<int64_t>(next.point, furthest + 1));
    }
    return next;
}

bool number_accepts(const NumberSpec& spec, const NumberState& state) {
    using S = NumberState;
    if (state.phase != S::Zero && state.phase != S::Int && state.phase != S::Frac && state.phase != S::Exp) return false;
    if (!state.significant) return zero_allowed(spec) && spec.excluded.empty();
    const auto bounds = side(spec, state.negative);
    if (bounds.impossible) return false;
    const int64_t exponent = state.exponent_negative ? -state.exponent : state.exponent;
    const int64_t point = state.point + exponent;
    if (bounds.lower) {
        const int order = magnitude_order(point, state.low_cmp, *bounds.lower);
        if (order < 0 || (order == 0 && bounds.lower_exclusive)) return false;
    }
    if (bounds.upper) {
        const int order = magnitude_order(point, state.high_cmp, *bounds.upper);
        if (order > 0 || (order == 0 && bounds.upper_exclusive)) return false;
    }
    // last holds the fraction digits read; the last non-zero digit stands `trailing` digits before the end.
    const int64_t last_digit = state.trailing - state.last + exponent;
    const auto is_multiple = [&](uint64_t divisor, int64_t scale) {
        const int64_t k = last_digit - scale;
        if (k < 0) return false;
        uint64_t r = state.remainder % divisor;
        for (int64_t i = 0; i < std::min<int64_t>(k, 64) && r; ++i) r = mul_mod(r, 10, divisor);
        return r == 0;
    };
    if (spec.divisor && !is_multiple(spec.divisor, spec.divisor_scale)) return false;
    return std::none_of(spec.excluded.begin(), spec.excluded.end(), [&](const auto& other) { return is_multiple(other.first, other.second); });
}

}  // namespace safegen
