// What a state of a pattern's text needs to be whole, and what tells states apart.
#include "grammars/native/ecma_pattern.hpp"

#include <algorithm>
#include <bit>
#include <string>

#include "grammars/native/limits.hpp"

namespace safegen {
namespace {

using S = PatternState;

constexpr uint32_t kNamedGroupBytes = 6;  // (?<a>)

uint64_t first_bit(const S& s) { return name_bit(static_cast<uint8_t>(s.text[0])); }

// Bytes that close all groups and add those that references ask for. more: capturing groups about to be. met: whether
// one of the pending names is theirs.
uint32_t closing(const S& s, uint32_t more = 0, bool met = false) {
    const auto pending = static_cast<uint32_t>(std::popcount(s.pending)) - (met ? 1 : 0);
    const uint32_t captures = s.captures + more + pending;
    const auto open = static_cast<uint32_t>(s.open.size());
    return open + kNamedGroupBytes * pending + (s.needed > captures ? 2 * (s.needed - captures) : 0);
}

// Bytes that complete a group whose name is being written, its closing bracket's included. more: as in closing.
uint32_t rest_of_name(const S& s, uint32_t more) {
    if (!s.text.empty()) return 1 + closing(s, more, (s.pending & first_bit(s)) != 0);
    if (s.pending) return 2 + closing(s, more, true);
    return s.initials == kAllNameBits ? kInfinite : 2 + closing(s, more);
}

// The same for the name in a reference.
uint32_t rest_of_reference(const S& s) {
    const uint64_t known = s.letters | s.pending;
    const uint32_t written = s.text.empty() ? 2 : 1;
    const bool is_met = s.text.empty() ? known != 0 : (known & first_bit(s)) != 0;
    return written + (is_met ? closing(s) : kNamedGroupBytes + closing(s, 1));
}

}  // namespace

size_t PatternState::missing_digits() const {
    std::string most = text;  // without leading zeros, like count
    const auto reaches = [&] { return most.size() != count.size() ? most.size() > count.size() : most >= count; };
    size_t missing = 0;
    for (; !reaches() && missing <= kMaxCountDigits; ++missing) most.push_back('9');
    return missing;
}

std::string PatternState::key() const {
    std::string out;
    out.reserve(64 + open.size() + count.size() + text.size());
    for (uint32_t part : {uint32_t{phase}, uint32_t{tail}, uint32_t{role}, uint32_t{no_digit}, uint32_t{reference}, uint32_t{utf8_left},
                          uint32_t{utf8_low}, uint32_t{utf8_high}, uint32_t{digits}, uint32_t{modifiers}, uint32_t{captures}, uint32_t{needed}})
        out.push_back(static_cast<char>(part));
    for (uint32_t part : {value, low}) out.append(reinterpret_cast<const char*>(&part), sizeof part);
    for (const std::string* part : {&open, &count, &text}) out.append(*part).push_back('\0');
    for (uint64_t part : {initials, letters, pending}) out.append(reinterpret_cast<const char*>(&part), sizeof part);
    return out;
}

bool pattern_accepts(const PatternState& s) {
    const bool between = (s.phase == S::Term || s.phase == S::GroupOpen) && !s.utf8_left;
    return between && s.open.empty() && s.captures >= s.needed && s.pending == 0;
}

uint32_t pattern_rest(const PatternProperties& properties, const PatternState& s) {
    switch (s.utf8_left ? S::Term : s.phase) {
        case S::GroupOpen: return std::min(closing(s), saturating_add(2, rest_of_name(s, 0)));
        case S::GroupKind: return 1 + std::min(closing(s), rest_of_name(s, 1));
        case S::GroupAngle: return std::min(1 + closing(s), rest_of_name(s, 1));
        case S::GroupName: return rest_of_name(s, 1);
        case S::ReferenceOpen: return 1 + rest_of_reference(s);
        case S::Reference: return rest_of_reference(s);
        default: break;
    }
    const uint32_t rest = closing(s) + (s.role == S::Outside ? 0 : 1) + s.utf8_left;
    if (s.utf8_left) return rest;
    switch (s.phase) {
        case S::Term: return rest;
        case S::Modifiers: return rest + (s.modifiers & 7 ? 1 : 2);
        case S::CountLow: return rest + (s.digits ? 1 : 2);
        case S::CountHigh: return rest + 1 + (s.digits ? static_cast<uint32_t>(s.missing_digits()) : 0);
        case S::Hex: return rest + 2 - s.digits;
        case S::UnicodeOpen: return rest + 3;
        case S::Unit: return rest + 4 - s.digits;
        case S::CodePoint: return rest + (s.digits ? 1 : 2);
        case S::TrailSlash: return rest + 6;
        case S::TrailLetter: return rest + 5;
        case S::TrailUnit: return rest + 4 - s.digits;
        case S::PropertyOpen:
        case S::Property: {
            size_t shortest = SIZE_MAX;
            for (const std::string& name : properties)
                if (name.compare(0, s.text.size(), s.text) == 0) shortest = std::min(shortest, name.size());
            return rest + static_cast<uint32_t>(shortest - s.text.size()) + (s.phase == S::Property ? 1 : 2);
        }
        default: return rest + 1;
    }
}

void pattern_cuts(const PatternState& s, std::vector<ByteSet>& cuts, ByteSet& singles) {
    const auto each = [&](int low, int high) {
        for (int b = low; b <= high; ++b) singles.add(static_cast<uint8_t>(b));
    };
    if (s.utf8_left) {
        cuts.push_back(ByteSet::range(s.utf8_low, s.utf8_high));
        const bool one_block = s.utf8_left == 2 && s.value >= 4 && s.value < 0xF;  // see pattern_block
        if (s.role == S::RangeHigh || (s.role == S::RangeLow && s.utf8_left > 1 && !one_block)) each(0x80, 0xBF);
        if (s.role == S::RangeLow && s.utf8_left == 1 && (s.value < 0x20 || (s.value >= 0x3FC && s.value < 0x400)))
            for (int low = 0x80; low < 0xC0; low += 0x10) cuts.push_back(ByteSet::range(low, low + 0xF));
    } else if (s.phase >= S::ClassOpen) {
        each(0, 0x7F);
        each(0xC2, 0xF4);
    } else if (s.phase == S::Term || s.phase == S::GroupOpen) {
        for (char c : S::kSyntax) singles.add(static_cast<uint8_t>(c));
        each('0', '9');
        cuts.push_back(ByteSet::range(0, 0x7F));
        cuts.push_back(ByteSet::range(0xC2, 0xDF));
        cuts.push_back(ByteSet::range(0xE0, 0xEF));
        cuts.push_back(ByteSet::range(0xF0, 0xF3));
        for (uint8_t b : {0xE0, 0xED, 0xF0, 0xF4}) singles.add(b);
    } else {
        each(0x20, 0x7E);
    }
}

}  // namespace safegen
