// Token masks of lexeme states: what a vocabulary offers within one lexeme, wherever it stands in a grammar.
//
// Two ways to the same result: a walk of the whole trie, and, for string states, the difference to the mask of the free
// JSON string, which each vocabulary computes once. The second descends only where the two languages part: at the
// prefixes of listed names, at the end of a count, at closing quotes that a pattern or a minimum forbids.
#pragma once
#include <memory>
#include <vector>

#include "grammars/native/exprs.hpp"
#include "grammars/native/vocabulary.hpp"

namespace safegen {

struct LexemeMask {
    std::vector<uint32_t> words;    // dense bits, or
    std::vector<uint32_t> tokens;   // token ids when they are few
    std::vector<uint32_t> exits;    // trie nodes with children at which the lexeme may end, ascending
    std::vector<uint32_t> closers;  // trie nodes of tokens that end with the lexeme, ascending
    size_t memory_bytes() const { return (words.size() + tokens.size() + exits.size() + closers.size()) * 4 + 160; }
};

LexemeMask walk_trie(Exprs& exprs, const Vocabulary& vocabulary, ExprId e);
// free: the state of the free JSON string in `exprs`; base: its mask.
LexemeMask walk_difference(Exprs& exprs, const Vocabulary& vocabulary, ExprId e, ExprId free, const LexemeMask& base);
// The mask of the free JSON string cut to the bytes that the vocabulary can spell.
LexemeMask free_text_mask(const Vocabulary& vocabulary);

}  // namespace safegen
