// Text in which something may not stand, read through a folding of characters: the states behind the leaves
// Kind::Phrases and Kind::Folded of exprs.hpp.
//
// A folding maps every code point by itself to a text (a homomorphism, so that where a text is cut does not matter).
// Here the code points are sorted into *letters*: those of one letter fold to the same text. `LetterMap` composes that
// with UTF-8: a state inside a character is a node of a minimal acyclic automaton over continuation bytes, whose leaves
// are letters. `PhraseAutomaton` is the automaton of Aho and Corasick (1975) over folded code points, with an option
// that counts only what stands between characters that are of no word.
//
// Both are immutable once built, and small: transitions are looked up, not tabulated.
#pragma once
#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "grammars/native/byteset.hpp"

namespace safegen {

using CodePoints = std::vector<uint32_t>;
constexpr uint32_t kNowhere = 0xFFFFFFFFu;

class LetterMap {
public:
    struct Range {
        uint32_t low, high, letter;
    };
    // letters: what each folds to. ranges: ascending, disjoint; all other code points are of letter `other`.
    LetterMap(std::vector<CodePoints> letters, const std::vector<Range>& ranges, uint32_t other);

    // Of a node and a byte: a letter when a character ends with it, else the node that is reached; or neither.
    struct Step {
        uint32_t letter = kNowhere, node = kNowhere;
        bool dead() const { return letter == kNowhere && node == kNowhere; }
        bool operator==(const Step&) const = default;
    };
    static constexpr uint32_t kBoundary = 0;  // the node between characters
    Step step(uint32_t node, uint8_t byte) const { return nodes_[node].to[nodes_[node].cls[byte]]; }
    // Visits the bytes that lead on, those with one outcome together.
    template <class F>
    void each(uint32_t node, F&& visit) const {
        const Node& n = nodes_[node];
        for (size_t c = 0; c < n.to.size(); ++c)
            if (!n.to[c].dead()) visit(n.bytes[c], n.to[c]);
    }
    const std::vector<uint32_t>& letters_below(uint32_t node) const { return nodes_[node].letters; }
    uint32_t bytes_left(uint32_t node) const { return nodes_[node].bytes_left; }
    // The node of the same bytes, all of whose letters are `nothing`: for when which letter it becomes is of no matter.
    uint32_t blank(uint32_t node) const { return nodes_[node].blank; }
    uint32_t nothing() const { return nothing_; }  // the letter that folds to the empty text
    const CodePoints& text(uint32_t letter) const { return letters_[letter]; }
    uint32_t letter_of(uint32_t code_point) const;
    // Those that code points from low to high lie in, each of one letter.
    std::pair<const Range*, const Range*> ranges_within(uint32_t low, uint32_t high) const;
    uint32_t num_letters() const { return static_cast<uint32_t>(letters_.size()); }

private:
    struct Node {
        uint8_t cls[256];
        std::vector<Step> to;           // by class; class 0 leads nowhere
        std::vector<ByteSet> bytes;     // of each class
        std::vector<uint32_t> letters;  // ascending
        uint32_t bytes_left = 0, blank = 0;
    };
    using Edges = std::vector<std::pair<uint8_t, Step>>;
    uint32_t sub(uint32_t low, uint32_t width, int level);
    uint32_t make(const Edges& edges, uint32_t bytes_left);
    uint32_t make_blank(uint32_t node);
    std::vector<CodePoints> letters_;
    std::vector<Range> ranges_;  // gapless
    uint32_t nothing_ = 0;
    std::vector<Node> nodes_;
    std::unordered_map<std::string, uint32_t> known_;
    std::unordered_map<uint64_t, uint32_t> uniform_;  // (letter, level): a node all of whose characters are of one letter
};

class PhraseAutomaton {
public:
    // word: a phrase counts only between characters of no word, or at an end of the text; word_ranges: those of words.
    PhraseAutomaton(LetterMap map, const std::vector<CodePoints>& phrases, bool word,
                    std::vector<std::pair<uint32_t, uint32_t>> word_ranges);
    static constexpr uint32_t kStart = 0;
    uint32_t step(uint32_t state, uint32_t letter) const;  // kNowhere: a phrase would stand there
    bool live(uint32_t state, uint32_t node) const;        // some letter below the node leads on
    bool any_live(uint32_t state, uint32_t low, uint32_t high) const;  // some code point from low to high does
    bool accepts(uint32_t state) const { return !word_ || !hit_[state]; }  // the text may end here
    const LetterMap& map() const { return map_; }

private:
    uint32_t child(uint32_t node, uint32_t code_point) const;
    uint32_t next(uint32_t state, uint32_t code_point) const;
    bool is_word(uint32_t code_point) const;
    LetterMap map_;
    bool word_;
    std::vector<std::pair<uint32_t, uint32_t>> word_ranges_;
    std::unordered_map<uint64_t, uint32_t> children_;
    std::vector<uint32_t> fail_, last_;  // of each node; last_: the code point that leads to it
    std::vector<bool> hit_;              // a phrase ends here
    std::vector<uint32_t> from_start_;   // by letter
    uint32_t after_word_ = 0;            // with `word`: no phrase is begun and the last character is of a word
};

// A place of such an automaton, moved byte by byte without expressions: for walks over whole vocabularies.
struct PhrasePlace {
    const PhraseAutomaton* automaton = nullptr;
    uint32_t state = PhraseAutomaton::kStart, node = LetterMap::kBoundary;
    const ByteSet* alphabet = nullptr;  // null: all bytes. It has all those that continue characters
    bool dead() const { return state == kNowhere; }
    bool accepts() const { return node == LetterMap::kBoundary && automaton->accepts(state); }
    PhrasePlace next(uint8_t byte) const {
        if (alphabet && !alphabet->has(byte)) return {automaton, kNowhere, LetterMap::kBoundary, alphabet};
        const LetterMap::Step step = automaton->map().step(node, byte);
        if (step.letter != kNowhere) return {automaton, automaton->step(state, step.letter), LetterMap::kBoundary, alphabet};
        const bool live = step.node != kNowhere && automaton->live(state, step.node);
        return {automaton, live ? state : kNowhere, live ? step.node : LetterMap::kBoundary, alphabet};
    }
    // Behind a whole character that is spelled in another alphabet; from between characters.
    PhrasePlace after(uint32_t code_point) const {
        return {automaton, automaton->step(state, automaton->map().letter_of(code_point)), LetterMap::kBoundary, alphabet};
    }
    bool operator==(const PhrasePlace&) const = default;
};

}  // namespace safegen
