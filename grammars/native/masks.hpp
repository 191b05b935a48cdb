// Token masks of lexeme states: what a vocabulary offers within one lexeme, wherever it stands in a grammar.
//
// Two ways to the same result: a walk of the trie, and, for string states, the difference to the mask of the free JSON
// string, which each vocabulary computes once. The second descends only where the two languages part: at the prefixes
// of listed names, at the end of a count, at closing quotes that a pattern or a minimum forbids.
#pragma once
#include <algorithm>
#include <bit>
#include <optional>
#include <utility>
#include <vector>

#include "grammars/native/exprs.hpp"
#include "grammars/native/vocabulary.hpp"

namespace safegen {

class Draft;

// A row of mask bits, kept as the words in which it differs from a base row (null: zero) if these are few.
class Bits {
public:
    void copy_to(uint32_t* row, size_t words, const uint32_t* base) const;
    size_t memory_bytes() const { return words_.size() * 4 + patches_.size() * sizeof(Patch) + 64; }

private:
    friend class Draft;
    struct Patch {
        uint32_t at, word;
    };
    std::vector<uint32_t> words_;  // empty: patches
    std::vector<Patch> patches_;
    bool over_base_ = false;
};

// A row in the making: knows the words that were touched, so that its cost is theirs and not the vocabulary's.
class Draft {
public:
    void begin(size_t words, const uint32_t* base);  // base: what the row starts as; null: zero. Not copied.
    void set(uint32_t id) { word(id / 32) |= 1u << (id % 32); }
    void clear(uint32_t id) { word(id / 32) &= ~(1u << (id % 32)); }
    void add(const Bits& bits, const uint32_t* bits_base);
    void add(const uint32_t* row);
    void add(const Draft& other);
    void keep(const uint32_t* mask);
    void copy_to(uint32_t* row) const;
    bool empty() const;
    Bits bits() const;

private:
    void touch_all();
    bool all_touched() const { return num_touched_ == size_; }
    uint32_t& word(size_t at) {
        uint64_t& marks = touched_[at / 64];
        const uint64_t mark = uint64_t{1} << (at % 64);
        if (!(marks & mark)) {
            marks |= mark;
            ++num_touched_;
            words_[at] = start(at);
        }
        return words_[at];
    }
    uint32_t start(size_t at) const { return base_ ? base_[at] : 0; }
    template <class F>
    void each_touched(F&& visit) const {
        for (size_t i = 0; i < touched_.size(); ++i)
            for (uint64_t rest = touched_[i]; rest; rest &= rest - 1) visit(i * 64 + static_cast<size_t>(std::countr_zero(rest)));
    }

    std::vector<uint32_t> words_;  // of touched places only
    std::vector<uint64_t> touched_;
    const uint32_t* base_ = nullptr;
    size_t size_ = 0, num_touched_ = 0;
};

// Trie nodes at which a lexeme may end inside of a token ("exits") or with it ("closers"); all lists ascend.
struct LexemeMask {
    Bits bits;
    std::vector<uint32_t> exits, closers;
    // Of a difference to the free string: its ends count too, but for those inside of these intervals of nodes.
    const FreeText* base = nullptr;
    std::vector<std::pair<uint32_t, uint32_t>> skips;
    std::vector<uint32_t> parted;  // exits of the free string that were reached through a state that is not free
    template <class F>
    void each_exit(F&& visit) const;
    template <class F>
    void each_closer(F&& visit) const;
    size_t memory_bytes() const {
        return bits.memory_bytes() + (exits.size() + closers.size() + parted.size()) * 4 + skips.size() * 8 + 128;
    }
};

// The free JSON string, cut to the bytes that the vocabulary can spell, and tables by what its tokens are made of.
struct FreeText {
    std::vector<uint32_t> words;
    std::vector<uint32_t> exits, closers;
    // What tokens spell past the closing quote, all exits together: most legal ones are found in one walk.
    Trie tails;
    std::vector<uint32_t> late;           // exits below which a token holds two more quotes: room for another key
    std::vector<std::pair<std::string, uint32_t>> escaped_texts;  // ends whose text holds a backslash, by what it spells

    // The tokens whose text, up to the closing quote, holds a character that begins with a byte: their ids, or a row.
    struct Holding {
        std::vector<uint32_t> ids, row;
    };
    std::vector<Holding> holding;         // by byte
    std::vector<Holding> starting;        // those whose text begins with a byte, by it
    std::vector<Holding> holding_later;   // those that hold a character that begins with a byte behind the first one
    Holding wide;                         // any byte from 0x80 on
    ByteSet held;                         // those that some token holds
    static constexpr uint32_t kCounts = 48;
    std::vector<uint32_t> longer;         // kCounts rows: of more than i characters, no backslash among them
    std::vector<std::pair<uint32_t, uint32_t>> longest;  // characters and id of those with kCounts or more
    Trie escaped;                         // tokens whose text holds a backslash
    // All exits and closers with what their text is made of.
    struct End {
        uint32_t node, chars;
        ByteSet bytes;                    // that characters begin with
        ByteSet later;                    // the same without the first one
        uint8_t first = 0;                // of a text that is not empty
    };
    std::vector<End> ends;
    uint32_t max_chars = 0;
};

template <class F>
void each_end(const std::vector<uint32_t>* base, const std::vector<std::pair<uint32_t, uint32_t>>& skips,
              const std::vector<uint32_t>& own, F&& visit) {
    auto mine = own.begin();
    if (base) {
        auto skip = skips.begin();
        for (auto it = base->begin(); it != base->end();) {
            while (skip != skips.end() && skip->second <= *it) ++skip;
            if (skip != skips.end() && skip->first <= *it) {
                it = std::lower_bound(it, base->end(), skip->second);
                continue;
            }
            while (mine != own.end() && *mine < *it) visit(*mine++);
            visit(*it++);
        }
    }
    while (mine != own.end()) visit(*mine++);
}
template <class F>
void LexemeMask::each_exit(F&& visit) const {
    each_end(base ? &base->exits : nullptr, skips, exits, visit);
}
template <class F>
void LexemeMask::each_closer(F&& visit) const {
    each_end(base ? &base->closers : nullptr, skips, closers, visit);
}

LexemeMask walk_trie(Exprs& exprs, const Vocabulary& vocabulary, ExprId e);
// free: the state of the free JSON string in `exprs`.
LexemeMask walk_difference(Exprs& exprs, const Vocabulary& vocabulary, ExprId e, ExprId free);
LexemeMask mask_of_texts(const Vocabulary& vocabulary, const std::vector<std::string_view>& texts);
LexemeMask mask_of_names(Exprs& exprs, const Vocabulary& vocabulary, ExprId e, ExprId free, const NameState& state);
// The mask of a run of characters, from the tables of the vocabulary; nothing when too many tokens would have to be tried.
std::optional<LexemeMask> mask_of_run(Exprs& exprs, const Vocabulary& vocabulary, ExprId e, const CharRun& run);
// The same for groups of characters.
std::optional<LexemeMask> mask_of_groups(Exprs& exprs, const Vocabulary& vocabulary, ExprId e, const CharGroups& groups);
// Texts without phrases, or (free: the state of the free JSON string) bodies of JSON strings with such a text, by their
// automaton alone. ends: whether the mask tells where the lexeme may end.
LexemeMask walk_phrases(Exprs& exprs, const Vocabulary& vocabulary, ExprId e, const PhrasePlace& place, ExprId free, bool json, bool ends);
// By the difference to the mask of another state, descending only where the two part. The same for phrases.
LexemeMask walk_like(Exprs& exprs, const Vocabulary& vocabulary, ExprId e, ExprId other, const LexemeMask& mask, bool ends);
LexemeMask walk_phrases_like(Exprs& exprs, const Vocabulary& vocabulary, ExprId e, const PhrasePlace& place, ExprId other,
                             const PhrasePlace& other_place, const LexemeMask& mask, bool json, bool ends);
FreeText make_free_text(const Vocabulary& vocabulary);

}  // namespace safegen
