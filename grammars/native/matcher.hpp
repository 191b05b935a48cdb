// Token masks and per-sequence state.
//
// A mask is assembled from parts that do not depend on the stack: for each lexeme state, the tokens that stay within
// the lexeme, and the trie nodes at which it can end inside a token ("exits"). Those are computed once a lexeme state
// and vocabulary and kept in a byte-bounded cache; only the few tokens past an exit are walked with the real stack.
#pragma once
#include <memory>
#include <optional>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "grammars/native/masks.hpp"
#include "grammars/native/state.hpp"
#include "grammars/native/vocabulary.hpp"

namespace safegen {

// A byte-bounded cache of immutable values; the least recently used half goes when it is full. Values report
// memory_bytes(). Readers share the lock.
template <class Key, class Value, class Hash>
class SharedCache {
public:
    explicit SharedCache(size_t max_bytes) : max_bytes_(max_bytes) {}
    std::shared_ptr<const Value> find(const Key& key) {
        std::shared_lock lock(mutex_);
        const auto it = entries_.find(key);
        if (it == entries_.end()) return nullptr;
        it->second->used.store(clock_.fetch_add(1, std::memory_order_relaxed), std::memory_order_relaxed);
        return it->second->value;
    }
    void put(const Key& key, std::shared_ptr<const Value> value) {
        const size_t bytes = value->memory_bytes();
        if (bytes > max_bytes_) return;
        std::unique_lock lock(mutex_);
        auto entry = std::make_unique<Entry>();
        entry->value = std::move(value);
        entry->used = clock_.fetch_add(1, std::memory_order_relaxed);
        if (entries_.emplace(key, std::move(entry)).second) bytes_ += bytes;
        if (bytes_ > max_bytes_) evict();
    }
    size_t memory_bytes() const {
        std::shared_lock lock(mutex_);
        return bytes_;
    }

private:
    struct Entry {
        std::shared_ptr<const Value> value;
        std::atomic<uint64_t> used{0};
    };
    void evict() {
        std::vector<std::pair<uint64_t, Key>> ages;
        for (const auto& [key, entry] : entries_) ages.push_back({entry->used.load(), key});
        const auto middle = ages.begin() + static_cast<std::ptrdiff_t>((ages.size() + 1) / 2);
        std::nth_element(ages.begin(), middle - 1, ages.end(), [](const auto& x, const auto& y) { return x.first < y.first; });
        for (auto it = ages.begin(); it != middle; ++it) {
            const auto entry = entries_.find(it->second);
            bytes_ -= entry->second->value->memory_bytes();
            entries_.erase(entry);
        }
    }
    size_t max_bytes_, bytes_ = 0;
    std::atomic<uint64_t> clock_{0};
    mutable std::shared_mutex mutex_;
    std::unordered_map<Key, std::unique_ptr<Entry>, Hash> entries_;
};

struct KeyHash {
    size_t operator()(const Hash128& h) const { return h.a ^ h.b; }
    size_t operator()(ExprId e) const { return e; }
};
using LexemeCache = SharedCache<ExprId, LexemeMask, KeyHash>;
using RowCache = SharedCache<Hash128, Bits, KeyHash>;

// What follows from a state: the bytes that must come next; the tokens of the shortest way to an end.
template <class List> struct Onward {
    List list;
    size_t memory_bytes() const { return list.size() * sizeof(typename List::value_type) + 64; }
};
using ForcedCache = SharedCache<Hash128, Onward<std::string>, KeyHash>;
using CompletionCache = SharedCache<Hash128, Onward<std::vector<uint32_t>>, KeyHash>;

// A program bound to a vocabulary.
struct Compiled {
    Compiled(std::shared_ptr<const Grammar> g, std::shared_ptr<const Vocabulary> v, size_t cache_bytes);
    std::shared_ptr<const Grammar> grammar;
    std::shared_ptr<const Vocabulary> vocabulary;
    LexemeCache lexemes;  // half of the bytes
    RowCache rows;        // three eighths; a sixteenth each:
    ForcedCache forced;
    CompletionCache completions;
    ExprId free_text;  // the free JSON string up to its closing quote
    // null: the free text's. ends: whether it must tell where the lexeme may end.
    std::shared_ptr<const LexemeMask> lexeme_mask(ExprId e, bool ends = true);
    std::optional<LexemeMask> mask_without_phrases(ExprId e, bool ends);
    const FreeText& free() const { return vocabulary->free_text(); }
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
    std::shared_ptr<const Grammar> shared_grammar() const { return grammar_; }

private:
    std::shared_ptr<const Grammar> grammar_;
    mutable std::mutex mutex_;
    std::unordered_map<uint64_t, std::shared_ptr<Compiled>> bound_;
};

// A node failed as a whole: the sequence went back to a token boundary, and must spell `forced_prefix` from there.
struct WentBack {
    size_t kept_tokens;
    std::string forced_prefix;
    std::string pointer;  // schema position of the node
};

class Matcher {
public:
    explicit Matcher(std::shared_ptr<Compiled> compiled);
    // rows: (draft.size() + 1) * words, zeroed and filled. Returns the number of legal drafts.
    size_t fill(const std::vector<uint32_t>& draft, int32_t* rows);
    std::optional<WentBack> advance(const std::vector<uint32_t>& ids);
    // How many of ids a copy could be advanced by after the prefix, up to the first with which it goes back.
    size_t legal_prefix(const std::vector<uint32_t>& prefix, const std::vector<uint32_t>& ids) const;
    size_t settled() const;  // tokens that nothing takes back any more
    std::string forced() const;
    std::optional<std::string> known_forced() const;  // if it need not be looked for
    bool can_end() const { return now_.stopped || (now_.forced.empty() && now_.state.can_end); }
    // A lexeme may be open and yet have ended for good, as a number at its last digit.
    bool is_complete() const { return now_.stopped || (can_end() && machine_.first(now_.state, now_.text).empty()); }
    std::vector<uint32_t> shortest_completion();
    std::optional<std::vector<uint32_t>> known_completion() const;  // if it need not be looked for
    const std::string& text() const { return now_.text; }
    const Compiled& compiled() const { return *compiled_; }

private:
    struct Position {
        State state;
        std::string text;
        std::string forced;  // bytes that must come next, after going back
        bool stopped = false;
    };
    enum class Fed : uint8_t { Yes, Refused, Failed };

    std::optional<Hash128> key_of(const Position& at) const;  // where nothing but the state decides what may follow
    void fill_row(Position& at, uint32_t* row) const;
    void draft_row(Position& at, Draft& row) const;
    void fill_forced(Position& at, Draft& row) const;
    void fill_state(const State& state, const std::vector<std::shared_ptr<const LexemeMask>>& masks, std::string& text, Draft& row) const;
    void fill_top(const Top& top, const LexemeMask* mask, std::string& text, Draft& row) const;
    bool walk_tails(const Top& top, const LexemeMask* mask, std::string& text, Draft& row) const;
    void walk_exits(const Top& top, const std::vector<uint32_t>& exits, std::string& text, Draft& row) const;
    void drop_repeated_keys(const Top& top, const LexemeMask* mask, std::string& text, Draft& row) const;
    void drop_repeated_items(const Top& top, const LexemeMask* mask, std::string& text, Draft& row) const;
    void drop_excluded(const std::string& text, Draft& row) const;
    void walk(const Trie& trie, uint32_t node, const State& state, std::string& text, Draft& row) const;
    void walk_lexeme(const Trie& trie, uint32_t node, const Top& top, std::string& text, Draft& row) const;
    struct Ending {
        const Machine& machine;
        const Top& top;
        State state{};
        bool movable = false;
        size_t known = SIZE_MAX;
        const State& after(const std::string& text);
    };
    bool value_is_fixed(const Top& top) const;
    static void set_starts(State& state, const std::string& text);
    template <class Legal>
    void group_by_value(const Top& top, const std::string& text, const Legal& legal, std::vector<std::vector<uint32_t>>& groups) const;
    Fed feed(Position& at, uint32_t token) const;
    bool has_legal_token(Position& at) const;
    static bool is_in_order(const State& state);
    std::vector<uint32_t> spelled(const Outlook& found, const std::string& rest) const;
    const Outlook& look_ahead();
    bool is_lost();
    WentBack go_back(uint32_t start, NodeId node, uint32_t floor);
    State replay(const std::string& text) const;

    std::shared_ptr<Compiled> compiled_;
    Machine machine_;
    Position now_;
    Excluded excluded_;
    std::vector<uint32_t> token_ends_;  // length of the text after each token
    struct Known {  // what was found to come of a text
        std::string text;
        Outlook outlook;
        bool tells_of(const std::string& longer) const;  // while an answer that was found is followed
    };
    std::optional<Known> known_;
    struct {
        uint32_t length = 0, left = 0;
    } pause_;  // tokens that go by without a look ahead, more after each that told nothing
};

}  // namespace safegen
