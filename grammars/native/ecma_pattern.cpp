// How the state of a pattern's text changes with each byte.
#include "grammars/native/ecma_pattern.hpp"

#include <algorithm>
#include <string_view>
#include <utility>

namespace safegen {
namespace {

using S = PatternState;
using Next = std::optional<S>;

constexpr uint8_t kMaxCaptures = 99;
constexpr uint32_t kMaxCodePoint = 0x10FFFF;

bool is_digit(uint8_t b) { return b >= '0' && b <= '9'; }
bool is_letter(uint8_t b) { return (b >= 'a' && b <= 'z') || (b >= 'A' && b <= 'Z'); }
bool is_in(std::string_view set, uint8_t b) { return b < 0x80 && set.find(static_cast<char>(b)) != std::string_view::npos; }

int hex(uint8_t b) {
    if (is_digit(b)) return b - '0';
    if (b >= 'a' && b <= 'f') return b - 'a' + 10;
    return b >= 'A' && b <= 'F' ? b - 'A' + 10 : -1;
}

Next to(S s, S::Phase phase) {
    s.phase = phase;
    return s;
}

Next term(S s, S::Tail tail) {
    s.tail = tail;
    s.role = S::Outside;
    return to(std::move(s), S::Term);
}

// A character has been read whole, in the role it has.
Next atom(S s, uint32_t value) {
    s.value = 0;
    s.digits = 0;
    if (s.role == S::Outside) return term(std::move(s), S::Quantifiable);
    if (s.role == S::RangeLow) {
        s.low = value;
        s.role = S::Outside;
        return to(std::move(s), S::ClassAtom);
    }
    if (value < s.low) return std::nullopt;
    s.low = 0;
    s.role = S::Outside;
    return to(std::move(s), S::ClassItem);
}

// A shorthand such as \d or \p{L}: no end of a range.
Next shorthand(S s) {
    if (s.role == S::Outside) return term(std::move(s), S::Quantifiable);
    if (s.role == S::RangeHigh) return std::nullopt;
    s.role = S::Outside;
    return to(std::move(s), S::ClassSet);
}

// A raw character in the role the state has: whole, or the first byte of several.
Next raw(S s, uint8_t b) {
    if (b < 0x80) return atom(std::move(s), b);
    if (b < 0xC2 || b > 0xF4) return std::nullopt;
    s.utf8_left = b < 0xE0 ? 1 : b < 0xF0 ? 2 : 3;
    s.utf8_low = b == 0xE0 ? 0xA0 : b == 0xF0 ? 0x90 : 0x80;
    s.utf8_high = b == 0xED ? 0x9F : b == 0xF4 ? 0x8F : 0xBF;
    if (s.role != S::Outside) s.value = b & (0x3Fu >> s.utf8_left);
    return s;
}

Next more_of_raw(S s, uint8_t b) {
    if (b < s.utf8_low || b > s.utf8_high) return std::nullopt;
    s.utf8_low = 0x80;
    s.utf8_high = 0xBF;
    const bool first_byte_tells = s.role == S::RangeLow && s.utf8_left == 2 && s.value >= 4 && s.value < 0xF;  // its block
    if (s.role != S::Outside) s.value = s.value << 6 | (first_byte_tells ? 0 : b & 0x3Fu);
    if (--s.utf8_left) return s;
    const uint32_t value = s.value;
    return atom(std::move(s), s.role == S::RangeLow ? value | pattern_block(value) : value);
}

// One more byte of a group's name, of which the first letter is kept, and "+" for what follows it.
Next step_name(S s, uint8_t b) {
    if (s.text.empty()) {
        if (!name_bit(b) || (s.initials & name_bit(b))) return std::nullopt;
        s.text.push_back(static_cast<char>(b));
        return s;
    }
    if (!name_bit(b) && !is_digit(b)) return std::nullopt;
    if (s.pending & name_bit(static_cast<uint8_t>(s.text[0]))) return std::nullopt;  // that letter is to be a whole name
    if (s.text.size() == 1) s.text.push_back('+');
    return s;
}

Next open_group(S s, uint8_t captures) {
    s.captures = std::min<uint8_t>(kMaxCaptures, s.captures + captures);
    s.text.clear();
    s.modifiers = 0;
    return term(std::move(s), S::Nothing);
}

Next look(S s) {
    s.open.back() = 'l';
    return open_group(std::move(s), 0);
}

Next close_group(S s) {
    if (s.open.empty()) return std::nullopt;
    const bool is_look = s.open.back() == 'l';
    s.open.pop_back();
    return term(std::move(s), is_look ? S::Nothing : S::Quantifiable);
}

Next step_term(S s, uint8_t b) {
    if (s.no_digit && is_digit(b)) return std::nullopt;
    if (const uint8_t first = std::exchange(s.reference, uint8_t{0}); first && is_digit(b)) {
        s.needed = std::max<uint8_t>(s.needed, static_cast<uint8_t>(first * 10 + (b - '0')));
        s.no_digit = true;
        return s;
    }
    s.no_digit = false;
    switch (b) {
        case '|':
        case '^':
        case '$': return term(std::move(s), S::Nothing);
        case '.': return term(std::move(s), S::Quantifiable);
        case '\\': return to(std::move(s), S::Escape);
        case '[': return to(std::move(s), S::ClassOpen);
        case ')': return close_group(std::move(s));
        case ']':
        case '}': return std::nullopt;
        case '(':
            if (s.open.size() >= S::kMaxOpenGroups) return std::nullopt;
            s.open.push_back('g');
            s = *open_group(std::move(s), 1);
            return to(std::move(s), S::GroupOpen);
        case '?':
            if (s.tail == S::Quantified) return term(std::move(s), S::Nothing);
            [[fallthrough]];
        case '*':
        case '+':
            if (s.tail != S::Quantifiable) return std::nullopt;
            return term(std::move(s), S::Quantified);
        case '{':
            if (s.tail != S::Quantifiable) return std::nullopt;
            return to(std::move(s), S::CountLow);
        default: return raw(std::move(s), b);
    }
}

Next end_count(S s) {
    s.count.clear();
    s.text.clear();
    s.digits = 0;
    return term(std::move(s), S::Quantified);
}

Next step_count(S s, uint8_t b) {
    std::string& digits = s.phase == S::CountLow ? s.count : s.text;
    if (is_digit(b)) {
        if (s.digits >= S::kMaxCountDigits) return std::nullopt;
        ++s.digits;
        if (!digits.empty() || b != '0') digits.push_back(static_cast<char>(b));
        const bool in_reach = s.phase == S::CountLow || s.digits + s.missing_digits() <= S::kMaxCountDigits;
        return in_reach ? Next(std::move(s)) : std::nullopt;
    }
    if (s.phase == S::CountLow) {
        if (!s.digits) return std::nullopt;
        if (b == '}') return end_count(std::move(s));
        s.digits = 0;
        return b == ',' ? to(std::move(s), S::CountHigh) : std::nullopt;
    }
    if (b != '}') return std::nullopt;
    if (s.digits && s.missing_digits() > 0) return std::nullopt;
    return end_count(std::move(s));
}

Next step_group(S s, uint8_t b) {
    switch (s.phase) {
        case S::GroupKind:
            if (b == '=' || b == '!') return look(std::move(s));
            if (b == ':') return open_group(std::move(s), 0);
            if (b == '<') return to(std::move(s), S::GroupAngle);
            s.phase = S::Modifiers;
            [[fallthrough]];
        case S::Modifiers: {
            const size_t index = std::string_view("ims-").find(static_cast<char>(b));
            if (b == ':' && (s.modifiers & 7)) return open_group(std::move(s), 0);
            if (b >= 0x80 || index == std::string_view::npos || (s.modifiers >> index & 1)) return std::nullopt;
            s.modifiers |= static_cast<uint8_t>(1u << index);
            return s;
        }
        case S::GroupAngle:
            if (b == '=' || b == '!') return look(std::move(s));
            s.phase = S::GroupName;
            [[fallthrough]];
        default:
            if (b != '>') return step_name(std::move(s), b);
            if (s.text.empty()) return std::nullopt;
            s.initials |= name_bit(static_cast<uint8_t>(s.text[0]));
            if (s.text.size() == 1) s.letters |= name_bit(static_cast<uint8_t>(s.text[0]));
            s.pending &= ~s.letters;
            return open_group(std::move(s), 1);
    }
}

// After a backslash, outside of classes and within.
Next step_escape(S s, uint8_t b) {
    const bool in_class = s.role != S::Outside;
    if (is_in("dDsSwW", b)) return shorthand(std::move(s));
    if (is_in(S::kSyntax, b)) return atom(std::move(s), b);
    switch (b) {
        case 'p':
        case 'P': return s.role == S::RangeHigh ? std::nullopt : to(std::move(s), S::PropertyOpen);
        case 'b': return in_class ? atom(std::move(s), 8) : term(std::move(s), S::Nothing);
        case 'B': return in_class ? std::nullopt : term(std::move(s), S::Nothing);
        case '-': return in_class ? atom(std::move(s), '-') : std::nullopt;
        case 't': return atom(std::move(s), 9);
        case 'n': return atom(std::move(s), 10);
        case 'v': return atom(std::move(s), 11);
        case 'f': return atom(std::move(s), 12);
        case 'r': return atom(std::move(s), 13);
        case 'c': return to(std::move(s), S::Control);
        case 'x': return to(std::move(s), S::Hex);
        case 'u': return to(std::move(s), S::UnicodeOpen);
        case 'k': return in_class || (s.initials & ~s.letters) == kAllNameBits ? std::nullopt : to(std::move(s), S::ReferenceOpen);
        case '0': {
            Next next = atom(std::move(s), 0);
            if (next) next->no_digit = true;
            return next;
        }
        default: break;
    }
    if (in_class || !is_digit(b)) return std::nullopt;
    s.reference = static_cast<uint8_t>(b - '0');
    s.needed = std::max(s.needed, s.reference);
    return term(std::move(s), S::Quantifiable);
}

Next step_unicode(S s, uint8_t b) {
    const int digit = hex(b);
    switch (s.phase) {
        case S::UnicodeOpen:
            if (b == '{') return to(std::move(s), S::CodePoint);
            s.phase = S::Unit;
            break;
        case S::CodePoint:
            if (b == '}' && s.digits) return atom(s, s.value);
            break;
        case S::TrailSlash: return b == '\\' ? to(std::move(s), S::TrailLetter) : std::nullopt;
        case S::TrailLetter: return b == 'u' ? to(std::move(s), S::TrailUnit) : std::nullopt;
        case S::TrailUnit:
            if ((s.digits == 0 && digit != 0xD) || (s.digits == 1 && digit < 0xC)) return std::nullopt;
            break;
        default: break;
    }
    if (digit < 0 || (s.phase == S::CodePoint && s.digits >= 6)) return std::nullopt;
    s.value = s.value << 4 | static_cast<uint32_t>(digit);
    ++s.digits;
    if (s.phase == S::CodePoint) return s.value <= kMaxCodePoint ? Next(s) : std::nullopt;
    if (s.phase == S::Hex) return s.digits == 2 ? atom(s, s.value) : Next(s);
    if (s.phase == S::Unit && s.digits == 2 && s.value >= 0xDC && s.value <= 0xDF) return std::nullopt;
    if (s.digits < 4) return s;
    if (s.phase == S::TrailUnit) {  // value: the high surrogate's four digits, then these four
        const uint32_t high = s.value >> 16, low = s.value & 0xFFFF;
        return atom(s, 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00));
    }
    if (s.value < 0xD800 || s.value > 0xDFFF) return atom(s, s.value);
    s.digits = 0;
    return to(std::move(s), S::TrailSlash);
}

Next step_named(const PatternProperties& properties, S s, uint8_t b) {
    if (s.phase == S::ReferenceOpen) return b == '<' ? to(std::move(s), S::Reference) : std::nullopt;
    if (s.phase == S::PropertyOpen) return b == '{' ? to(std::move(s), S::Property) : std::nullopt;
    if (s.phase == S::Reference) {
        if (s.text.empty()) {
            const uint64_t bit = name_bit(b);
            if (!bit || (s.initials & ~s.letters & bit)) return std::nullopt;
            s.text.push_back(static_cast<char>(b));
            return s;
        }
        if (b != '>') return std::nullopt;
        s.pending |= name_bit(static_cast<uint8_t>(s.text[0])) & ~s.letters;
        s.text.clear();
        return term(std::move(s), S::Quantifiable);
    }
    const auto at = std::lower_bound(properties.begin(), properties.end(), b == '}' ? s.text : s.text + static_cast<char>(b));
    if (b == '}') {
        if (at == properties.end() || *at != s.text) return std::nullopt;
        s.text.clear();
        return shorthand(std::move(s));
    }
    s.text.push_back(static_cast<char>(b));
    if (at == properties.end() || at->compare(0, s.text.size(), s.text) != 0) return std::nullopt;
    return s;
}

Next step_class(S s, uint8_t b) {
    const bool after_zero = std::exchange(s.no_digit, false);
    if (after_zero && is_digit(b)) return std::nullopt;
    if (s.phase == S::ClassOpen && b == '^') return to(std::move(s), S::ClassItem);
    if (b == ']') {
        s.low = 0;
        return term(std::move(s), S::Quantifiable);
    }
    if (s.phase == S::ClassSetDash) return std::nullopt;
    if (b == '-' && s.phase == S::ClassAtom) return to(std::move(s), S::ClassDash);
    if (b == '-' && s.phase == S::ClassSet) return to(std::move(s), S::ClassSetDash);
    s.role = s.phase == S::ClassDash ? S::RangeHigh : S::RangeLow;
    if (s.role == S::RangeLow) s.low = 0;
    return b == '\\' ? to(std::move(s), S::Escape) : raw(std::move(s), b);
}

// The greatest character that the second end of a range can still become.
uint32_t greatest(const S& s) {
    if (s.utf8_left) {
        const uint32_t shift = 6u * (s.utf8_left - 1u);
        return (s.value << 6 | (s.utf8_high & 0x3Fu)) << shift | ((1u << shift) - 1);
    }
    const auto filled = [&](uint32_t digits) { return ((s.value + 1) << 4 * digits) - 1; };
    switch (s.phase) {
        case S::Control: return 26;
        case S::Hex: return filled(2u - s.digits);
        case S::Unit: {
            const uint32_t top = filled(4u - s.digits), bottom = s.value << 4 * (4u - s.digits);
            if (top >= 0xE000 || top < 0xD800) return top;
            return bottom > 0xDBFF ? 0 : 0x10000 + ((std::min(top, 0xDBFFu) - 0xD800) << 10) + 0x3FF;
        }
        case S::CodePoint: {
            uint32_t best = 0;
            for (uint32_t more = 0; more + s.digits <= 6; ++more)
                if (s.value << 4 * more <= kMaxCodePoint) best = std::max(best, std::min(filled(more), kMaxCodePoint));
            return best;
        }
        case S::TrailSlash:
        case S::TrailLetter: return 0x10000 + ((s.value - 0xD800) << 10) + 0x3FF;
        case S::TrailUnit: {
            const uint32_t high = s.value >> 4 * s.digits;
            const uint32_t trail = std::min(((s.value & ((1u << 4 * s.digits) - 1)) + 1) << 4 * (4u - s.digits), 0xE000u) - 1;
            return 0x10000 + ((high - 0xD800) << 10) + (s.digits ? trail - 0xDC00 : 0x3FF);
        }
        default: return kMaxCodePoint;
    }
}

Next step(const PatternProperties& properties, const S& state, uint8_t b) {
    if (state.utf8_left) return more_of_raw(state, b);
    switch (state.phase) {
        case S::GroupOpen:
            if (b == '?') {
                S s = state;
                --s.captures;  // it counts again where it turns out to have a name
                return to(std::move(s), S::GroupKind);
            }
            [[fallthrough]];
        case S::Term: return step_term(state, b);
        case S::GroupKind:
        case S::GroupAngle:
        case S::GroupName:
        case S::Modifiers: return step_group(state, b);
        case S::CountLow:
        case S::CountHigh: return step_count(state, b);
        case S::Escape: return step_escape(state, b);
        case S::Control: return is_letter(b) ? atom(state, b % 32u) : std::nullopt;
        case S::Hex:
        case S::UnicodeOpen:
        case S::Unit:
        case S::CodePoint:
        case S::TrailSlash:
        case S::TrailLetter:
        case S::TrailUnit: return step_unicode(state, b);
        case S::ReferenceOpen:
        case S::Reference:
        case S::PropertyOpen:
        case S::Property: return step_named(properties, state, b);
        default: return step_class(state, b);
    }
}

}  // namespace

std::optional<PatternState> pattern_step(const PatternProperties& properties, const PatternState& state, uint8_t b) {
    Next next = step(properties, state, b);
    if (next && next->role == S::RangeHigh && greatest(*next) < next->low) return std::nullopt;
    return next;
}

}  // namespace safegen
