// Whether a number state can still be completed, and in how many bytes: arithmetic on decimal strings.
#include <algorithm>

#include "grammars/native/decimal.hpp"
#include "grammars/native/limits.hpp"

namespace safegen {
namespace {

using S = NumberState;

// digits * 10^scale, digits without leading zeros; empty is zero.
struct Scaled {
    std::string digits;
    int64_t scale = 0;
};

void strip_zeros(std::string& digits) { digits.erase(0, std::min(digits.find_first_not_of('0'), digits.size())); }

void increment(std::string& digits) {
    for (size_t i = digits.size(); i-- > 0; digits[i] = '0')
        if (digits[i] != '9') {
            ++digits[i];
            return;
        }
    digits.insert(digits.begin(), '1');
}

void decrement(std::string& digits) {  // digits is not zero
    for (size_t i = digits.size(); i-- > 0; digits[i] = '9')
        if (digits[i] != '0') {
            --digits[i];
            break;
        }
    strip_zeros(digits);
}

int compare(const std::string& a, const std::string& b) {
    if (a.size() != b.size()) return a.size() < b.size() ? -1 : 1;
    return a.compare(b) < 0 ? -1 : a == b ? 0 : 1;
}

// floor(value / (divisor * 10^scale)), and whether the division was exact.
std::pair<std::string, bool> divide(const Scaled& value, uint64_t divisor, int64_t scale) {
    std::string digits = value.digits;
    bool exact = true;
    const int64_t shift = value.scale - scale;
    if (shift >= 0) {
        if (!digits.empty()) digits.append(static_cast<size_t>(shift), '0');
    } else {
        const size_t dropped = std::min(digits.size(), static_cast<size_t>(-shift));
        exact = digits.find_first_not_of('0', digits.size() - dropped) == std::string::npos;
        digits.resize(digits.size() - dropped);
    }
    if (divisor == 1) return {digits, exact};
    unsigned __int128 rest = 0;
    for (char& c : digits) {
        rest = rest * 10 + static_cast<unsigned>(c - '0');
        c = static_cast<char>('0' + static_cast<int>(rest / divisor));
        rest %= divisor;
    }
    strip_zeros(digits);
    return {digits, exact && rest == 0};
}

struct Bound {
    Scaled value;
    bool exclusive = false;
};

struct Range {  // of a magnitude
    Bound low;                  // zero and exclusive where nothing else is asked: zero is treated apart
    std::optional<Bound> high;
};

std::string times(const std::string& digits, uint64_t factor) {
    std::string out(digits.size() + 20, '0');
    unsigned __int128 carry = 0;
    for (size_t i = 0; i < out.size(); ++i) {
        if (i < digits.size()) carry += static_cast<unsigned __int128>(factor) * static_cast<unsigned>(digits[digits.size() - 1 - i] - '0');
        out[out.size() - 1 - i] = static_cast<char>('0' + static_cast<int>(carry % 10));
        carry /= 10;
    }
    strip_zeros(out);
    return out;
}

// Among so many integers in a row one is no multiple of any of n numbers above 1 (Jacobsthal's function less 1, plus 1).
constexpr int kEnough[kMaxExcluded + 1] = {1, 2, 4, 6, 10, 14, 22, 26, 34, 40, 46};

// Is there a multiple of divisor * 10^scale, and of no excluded divisor, in [low, high) cut with the range?
bool holds_multiple(const NumberSpec& spec, const Scaled& low, const Scaled& high, const Range& range, uint64_t divisor, int64_t scale) {
    auto first = [&](const Scaled& v, bool exclusive) {
        auto [q, exact] = divide(v, divisor, scale);
        if (!exact || exclusive) increment(q);
        return q;
    };
    auto last = [&](const Scaled& v, bool exclusive) -> std::optional<std::string> {
        auto [q, exact] = divide(v, divisor, scale);
        if (exact && exclusive) {
            if (q.empty()) return std::nullopt;
            decrement(q);
        }
        return q;
    };
    std::string from = first(low, false);
    const std::string bound = first(range.low.value, range.low.exclusive);
    if (compare(bound, from) > 0) from = bound;
    auto to = last(high, true);
    if (range.high && to) {
        const auto limit = last(range.high->value, range.high->exclusive);
        if (!limit) return false;
        if (compare(*limit, *to) < 0) to = limit;
    }
    if (!to) return false;
    for (int tried = 0; tried < kEnough[spec.excluded.size()] && compare(from, *to) <= 0; ++tried, increment(from)) {
        const Scaled value{spec.excluded.empty() ? std::string() : times(from, divisor), scale};
        const bool is_excluded = std::any_of(spec.excluded.begin(), spec.excluded.end(),
                                             [&](const auto& other) { return divide(value, other.first, other.second).second; });
        if (!is_excluded) return true;
    }
    return false;
}

std::optional<Range> range_of(const NumberSpec& spec, bool negative) {
    const auto& near = negative ? spec.high : spec.low;
    const auto& far = negative ? spec.low : spec.high;
    auto scaled = [](const Decimal& d) { return Scaled{d.digits, d.point - static_cast<int64_t>(d.digits.size())}; };
    Range range;
    range.low.exclusive = true;
    if (near && !near->zero() && near->negative == negative)
        range.low = {scaled(*near), negative ? spec.high_exclusive : spec.low_exclusive};
    if (far) {
        if (far->zero() || far->negative != negative) return std::nullopt;
        range.high = Bound{scaled(*far), negative ? spec.low_exclusive : spec.high_exclusive};
    }
    return range;
}

bool zero_is_legal(const NumberSpec& spec) {
    NumberState zero;
    zero.phase = S::Zero;
    return number_accepts(spec, zero);
}

int64_t point_of(const Scaled& v) { return static_cast<int64_t>(v.digits.size()) + v.scale; }

// The multiples on a grid of 10^grid: divisor and scale of the coarser lattice.
std::pair<uint64_t, int64_t> on_grid(const NumberSpec& spec, int64_t grid) {
    if (!spec.divisor) return {1, grid};
    int64_t twos = grid - spec.divisor_scale, fives = twos;
    if (twos <= 0) return {spec.divisor, spec.divisor_scale};
    uint64_t m = spec.divisor;
    for (; twos > 0 && m % 2 == 0; --twos) m /= 2;
    for (; fives > 0 && m % 5 == 0; --fives) m /= 5;
    return {m, grid};
}

Scaled at(const std::string& digits, int64_t scale) { return {digits, scale}; }

Scaled above(std::string digits, int64_t scale) {
    increment(digits);
    return {std::move(digits), scale};
}

// Some value whose digits start with `prefix` (not empty), `room` more of them free.
bool reachable(const NumberSpec& spec, const Range& range, const std::string& prefix, uint32_t room, bool plain, uint32_t least) {
    if (room < least) return false;
    const auto n = static_cast<int64_t>(prefix.size());
    auto holds = [&](int64_t p, int64_t grid) {
        const auto [m, scale] = on_grid(spec, grid);
        return holds_multiple(spec, at(prefix, p), above(prefix, p), range, m, scale);
    };
    if (plain) {
        for (int64_t p = least; p <= room; ++p) {
            if (range.high && n + p > point_of(range.high->value) + 1) break;
            if (holds(p, 0)) return true;
        }
        return false;
    }
    const bool bounded_below = !range.low.value.digits.empty();
    if (!bounded_below && !spec.divisor) return true;  // small enough an exponent fits any upper bound
    if (!range.high && !spec.modulus) return true;     // and a large one any lower bound
    int64_t from = bounded_below ? point_of(range.low.value) - n - 1 : INT64_MIN;
    if (spec.divisor) from = std::max(from, spec.divisor_scale - n - 1);
    int64_t coarsest = spec.divisor_scale;
    for (const auto& other : spec.excluded) coarsest = std::max(coarsest, other.second);
    int64_t to = range.high ? point_of(range.high->value) - n + 1 : std::max(from, coarsest + static_cast<int64_t>(room)) + 70;
    for (int64_t p = from; p <= to; ++p)
        if (holds(p, p - static_cast<int64_t>(room))) return true;
    return false;
}

// Digits only, no exponent: the fewest bytes that reach a legal value, or nothing within `room` digits.
std::optional<uint32_t> digits_needed(const NumberSpec& spec, const NumberState& s, const Range& range, const NumberWitness& w, uint32_t room) {
    const std::string& prefix = w.significant;
    auto holds = [&](int64_t p, int64_t grid) {
        const auto [m, scale] = on_grid(spec, grid);
        if (prefix.empty()) {  // any value below 10^p
            return holds_multiple(spec, {}, at("1", p), range, m, scale);
        }
        return holds_multiple(spec, at(prefix, p), above(prefix, p), range, m, scale);
    };
    const bool fraction = s.phase == S::Dot || s.phase == S::Frac;
    if (fraction) {
        for (uint32_t j = 1; j <= room; ++j)
            if (holds(-w.fraction, -w.fraction - static_cast<int64_t>(j))) return j;
        return std::nullopt;
    }
    const bool more_integer = s.phase == S::Int || s.phase == S::Minus || s.phase == S::Start;
    const uint32_t start = s.phase == S::Minus || s.phase == S::Start ? 1 : 0;
    for (uint32_t total = 1; total <= room + 1; ++total) {
        if (more_integer && total <= room && holds(total, 0)) return total;
        if (spec.plain) continue;
        for (uint32_t j = start; j + 2 <= total; ++j) {  // j integer digits, a point, the rest after it
            if (j > 0 && !more_integer) break;
            const uint32_t after = total - j - 1;
            if (j + after <= room && holds(j, -static_cast<int64_t>(after))) return total;
        }
    }
    return std::nullopt;
}

// Shortest exponent that makes `s` legal with the digits it has.
std::optional<uint32_t> exponent_needed(const NumberSpec& spec, const NumberState& s) {
    S trial = s;
    trial.phase = S::Exp;
    const bool open_sign = s.phase == S::E;
    int32_t span = 1;
    for (uint32_t more = 0; more + s.exponent_digits <= spec.max_exponent_digits; ++more, span *= 10) {
        if (more == 0 && s.phase != S::Exp) continue;
        for (int32_t tail = 0; tail < span; ++tail) {
            trial.exponent = s.significant ? s.exponent * span + tail : 0;
            for (int negative = 0; negative <= (open_sign ? 1 : 0); ++negative) {
                trial.exponent_negative = open_sign ? negative == 1 : s.exponent_negative;
                if (number_accepts(spec, trial)) return more + static_cast<uint32_t>(negative);
            }
        }
    }
    return std::nullopt;
}

std::optional<uint32_t> mantissa_rest(const NumberSpec& spec, const NumberState& s, const NumberWitness& w) {
    const uint32_t room = spec.max_digits - std::min<uint32_t>(s.digits, spec.max_digits);
    const uint32_t least = s.phase == S::Minus || s.phase == S::Dot ? 1 : 0;
    if (w.significant.empty()) {
        if (zero_is_legal(spec) && room >= least && !(spec.plain && s.negative)) return least;
    }
    if (spec.plain && s.phase == S::Zero) return std::nullopt;
    const auto range = range_of(spec, s.negative);
    if (!range) return std::nullopt;
    const bool wide = spec.plain || !range->high || !range->low.value.digits.empty() || spec.modulus;
    bool live = false;
    if (!w.significant.empty()) {
        live = reachable(spec, *range, w.significant, room, spec.plain, least);
    } else if (room >= 1) {
        for (char digit = '1'; digit <= '9' && !live; ++digit) live = reachable(spec, *range, std::string(1, digit), room - 1, spec.plain, 0);
    }
    if (!live) return std::nullopt;
    if (!wide && s.phase != S::Minus && s.phase != S::Dot && w.significant.empty()) return 1;
    if (auto digits = digits_needed(spec, s, *range, w, room)) return digits;
    if (spec.plain) return std::nullopt;
    // Only an exponent helps: straight away where that is legal, else after one more digit at least.
    if (s.phase == S::Zero || s.phase == S::Int || s.phase == S::Frac) {
        S with = s;
        with.phase = S::E;
        with.exponent_digits = 0;
        if (auto rest = exponent_needed(spec, with)) return 1 + *rest;
    }
    return least + 4 + spec.max_exponent_digits;
}

}  // namespace

void NumberWitness::read(const NumberState& next, uint8_t byte) {
    if (byte < '0' || byte > '9' || next.phase == NumberState::Exp) return;
    if (next.phase == NumberState::Frac) ++fraction;
    if (!significant.empty() || byte != '0') significant.push_back(static_cast<char>(byte));
}

std::optional<uint32_t> number_rest(const NumberSpec& spec, const NumberState& s, const NumberWitness& w) {
    if (number_accepts(spec, s)) return 0;
    switch (s.phase) {
        case S::Start: {
            S negative = s;
            negative.phase = S::Minus;
            const auto positive_rest = [&]() -> std::optional<uint32_t> {
                S plus = s;
                plus.phase = S::Minus;
                return mantissa_rest(spec, plus, w);
            }();
            negative.negative = true;
            const auto negative_rest = mantissa_rest(spec, negative, w);
            if (!positive_rest) return negative_rest ? std::optional<uint32_t>(*negative_rest + 1) : std::nullopt;
            return negative_rest ? std::min(*positive_rest, *negative_rest + 1) : *positive_rest;
        }
        case S::E:
        case S::ESign:
        case S::Exp: return exponent_needed(spec, s);
        default: return mantissa_rest(spec, s, w);
    }
}

}  // namespace safegen
