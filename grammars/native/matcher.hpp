// Token masks and per-sequence state.
//
// A mask is assembled from parts that do not depend on the stack: for each lexeme state, the tokens that stay within
// the lexeme, and the trie nodes at which it can end inside a token ("exits"). Those are computed once a lexeme state
// and vocabulary and kept in a byte-bounded cache; only the few tokens past an exit are walked with the real stack.
#pragma once
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "grammars/native/masks.hpp"
#include "grammars/native/state.hpp"
#include "grammars/native/vocabulary.hpp"

namespace safegen {

class MaskCache {
public:
    explicit MaskCache(size_t max_bytes) : max_bytes_(max_bytes) {}
    std::shared_ptr<const LexemeMask> find(ExprId e);
    void put(ExprId e, std::shared_ptr<const LexemeMask> mask);
    size_t memory_bytes() const { return bytes_; }

private:
    struct Entry {
        std::shared_ptr<const LexemeMask> mask;
        std::atomic<uint64_t> used{0};
    };
    void evict();
    size_t max_bytes_, bytes_ = 0;
    std::atomic<uint64_t> clock_{0};
    std::shared_mutex mutex_;
    std::unordered_map<ExprId, std::unique_ptr<Entry>> entries_;
};

// A program bound to a vocabulary.
struct Compiled {
    Compiled(std::shared_ptr<const Grammar> g, std::shared_ptr<const Vocabulary> v, size_t cache_bytes);
    std::shared_ptr<const Grammar> grammar;
    std::shared_ptr<const Vocabulary> vocabulary;
    MaskCache cache;
    ExprId free_text;  // the free JSON string up to its closing quote
    std::shared_ptr<const LexemeMask> lexeme_mask(ExprId e);
};

class Program {
public:
    explicit Program(std::shared_ptr<const Grammar> grammar) : grammar_(std::move(grammar)) {}
    bool matches(const std::string& text) const;
    size_t longest_prefix(const std::string& text) const;
    std::string expected(const std::string& text) const;
    size_t memory_bytes() const;
    std::shared_ptr<Compiled> bind(const std::shared_ptr<const Vocabulary>& vocabulary, size_t cache_bytes);
    const Grammar& grammar() const { return *grammar_; }

private:
    std::shared_ptr<const Grammar> grammar_;
    mutable std::mutex mutex_;
    std::unordered_map<uint64_t, std::shared_ptr<Compiled>> bound_;
};

class Matcher {
public:
    explicit Matcher(std::shared_ptr<Compiled> compiled);
    // rows: (draft.size() + 1) * words, zeroed and filled. Returns the number of legal drafts.
    size_t fill(const std::vector<uint32_t>& draft, int32_t* rows) const;
    void advance(const std::vector<uint32_t>& ids);
    std::string forced() const;
    bool can_end() const { return stopped_ || state_.can_end; }
    bool is_complete() const { return stopped_ || (state_.can_end && state_.tops.empty()); }
    std::vector<uint32_t> shortest_completion() const;
    const std::string& text() const { return text_; }
    const Compiled& compiled() const { return *compiled_; }

private:
    void fill_row(const State& state, std::string& text, bool stopped, uint32_t* row) const;
    void fill_top(const Top& top, std::string& text, uint32_t* row) const;
    void drop_repeated_keys(const Top& top, const LexemeMask& mask, std::string& text, uint32_t* row) const;
    void walk(uint32_t node, const State& state, std::string& text, uint32_t* row) const;
    bool feed(State& state, std::string& text, bool& stopped, uint32_t token) const;

    std::shared_ptr<Compiled> compiled_;
    Machine machine_;
    State state_;
    std::string text_;
    bool stopped_ = false;
};

}  // namespace safegen
