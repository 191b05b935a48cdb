// The texts of regular expressions of ECMA-262 (flag `u`), read byte by byte.
//
// All patterns together are no regular language, so the state holds what the rest depends on (open groups, the first
// end of a class range, what references ask for) and grows with the text; states come into being as texts are read, and
// each can be completed. Every text that is accepted is a valid pattern. Left out, so that the tokens of a vocabulary
// lead to few states: groups nested more than kMaxOpenGroups deep, group names beyond ASCII or with the same first
// letter, references to names of more than one letter, lone surrogate escapes, counts of over ten digits, properties
// that are not listed, and class ranges beyond ASCII that start and end in one block (pattern_block).
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "grammars/native/byteset.hpp"

namespace safegen {

struct PatternState {
    enum Phase : uint8_t {
        Term, GroupOpen, GroupKind, GroupAngle, GroupName, Modifiers, CountLow, CountHigh,
        Escape, Control, Hex, UnicodeOpen, Unit, CodePoint, TrailSlash, TrailLetter, TrailUnit, ReferenceOpen, Reference,
        PropertyOpen, Property,
        ClassOpen, ClassItem, ClassAtom, ClassSet, ClassDash, ClassSetDash,
    };
    enum Tail : uint8_t { Nothing, Quantifiable, Quantified };  // what stands before a Term
    enum Role : uint8_t { Outside, RangeLow, RangeHigh };       // of the character that is being read

    Phase phase = Term;
    Tail tail = Nothing;
    Role role = Outside;
    bool no_digit = false;      // after \0
    uint8_t reference = 0;      // the digit of a one-digit \1 that a second one may follow
    uint8_t utf8_left = 0, utf8_low = 0x80, utf8_high = 0xBF;
    uint8_t digits = 0;
    uint8_t modifiers = 0;      // bits of i, m, s, and 8: the hyphen
    uint8_t captures = 0, needed = 0;  // capturing groups so far (up to 99), and how many the references ask for
    uint32_t value = 0;         // character or escape so far
    uint32_t low = 0;           // first end of a class range
    std::string open;           // a letter an open group: g, or l for a look-around
    std::string count;          // digits of the lower count, without leading zeros
    std::string text;           // of a property or the upper count; the first letter of a name
    uint64_t initials = 0;      // of the groups' names, by bit
    uint64_t letters = 0, pending = 0;  // names of one letter: of groups, and of references to groups still to come

    static constexpr size_t kMaxOpenGroups = 32, kMaxCountDigits = 10;
    static constexpr std::string_view kSyntax = "^$\\.*+?()[]{}|/";

    std::string key() const;
    size_t missing_digits() const;  // that the upper count needs to reach the lower one; beyond kMaxCountDigits: never
};

// The bit of a letter that a group's name may start with; 0 for other bytes.
constexpr uint64_t name_bit(uint8_t b) {
    if (b >= 'a' && b <= 'z') return uint64_t{1} << (b - 'a');
    if (b >= 'A' && b <= 'Z') return uint64_t{1} << (26 + b - 'A');
    return b == '_' ? uint64_t{1} << 52 : b == '$' ? uint64_t{1} << 53 : 0;
}
constexpr uint64_t kAllNameBits = (uint64_t{1} << 54) - 1;

// Characters beyond ASCII that start a class range are told apart by blocks only, so that their states are few: a range
// ends behind the block it starts in. The bits within a block.
constexpr uint32_t pattern_block(uint32_t code_point) {
    if (code_point < 0x80) return 0;
    if (code_point < 0x800 || (code_point >= 0xFF00 && code_point < 0x10000)) return 0xF;
    return code_point >= 0x4000 && code_point < 0x10000 ? 0xFFF : 0x3F;
}

using PatternProperties = std::vector<std::string>;  // sorted: what may stand in \p{...}

std::optional<PatternState> pattern_step(const PatternProperties& properties, const PatternState& state, uint8_t byte);
bool pattern_accepts(const PatternState& state);
// A lower bound of the bytes that complete the text.
uint32_t pattern_rest(const PatternProperties& properties, const PatternState& state);
// Byte sets and single bytes that split the alphabet into classes of equal successors.
void pattern_cuts(const PatternState& state, std::vector<ByteSet>& cuts, ByteSet& singles);

}  // namespace safegen
