#include "grammars/native/matcher.hpp"

#include <algorithm>

namespace safegen {

// --- cache ----------------------------------------------------------------------------------------------------------

std::shared_ptr<const LexemeMask> MaskCache::find(ExprId e) {
    std::shared_lock lock(mutex_);
    const auto it = entries_.find(e);
    if (it == entries_.end()) return nullptr;
    it->second->used.store(clock_.fetch_add(1, std::memory_order_relaxed), std::memory_order_relaxed);
    return it->second->mask;
}

void MaskCache::put(ExprId e, std::shared_ptr<const LexemeMask> mask) {
    std::unique_lock lock(mutex_);
    const size_t bytes = mask->memory_bytes();
    if (bytes > max_bytes_) return;
    auto entry = std::make_unique<Entry>();
    entry->mask = std::move(mask);
    entry->used = clock_.fetch_add(1, std::memory_order_relaxed);
    if (entries_.emplace(e, std::move(entry)).second) bytes_ += bytes;
    if (bytes_ > max_bytes_) evict();
}

// Drops the least recently used half.
void MaskCache::evict() {
    std::vector<std::pair<uint64_t, ExprId>> ages;
    for (const auto& [id, entry] : entries_) ages.push_back({entry->used.load(), id});
    const auto middle = ages.begin() + static_cast<std::ptrdiff_t>((ages.size() + 1) / 2);
    std::nth_element(ages.begin(), middle - 1, ages.end());
    for (auto it = ages.begin(); it != middle; ++it) {
        const auto entry = entries_.find(it->second);
        bytes_ -= entry->second->mask->memory_bytes();
        entries_.erase(entry);
    }
}

Compiled::Compiled(std::shared_ptr<const Grammar> g, std::shared_ptr<const Vocabulary> v, size_t cache_bytes)
    : grammar(std::move(g)), vocabulary(std::move(v)), cache(cache_bytes) {
    free_text = grammar->lexeme(grammar->exprs().json_body(grammar->exprs().any_text()));
}

std::shared_ptr<const LexemeMask> Compiled::lexeme_mask(ExprId e) {
    if (e == free_text) return vocabulary->free_text();
    if (auto known = cache.find(e)) return known;
    constexpr int kBroad = 90;  // a state with this many first bytes is a string's
    Exprs& x = grammar->exprs();
    const bool broad = x.expansion(e)->first.count() >= kBroad && free_text != kEmpty;
    auto mask = std::make_shared<const LexemeMask>(
        broad ? walk_difference(x, *vocabulary, e, free_text, *vocabulary->free_text()) : walk_trie(x, *vocabulary, e));
    cache.put(e, mask);
    return mask;
}

// --- program --------------------------------------------------------------------------------------------------------

bool Program::matches(const std::string& text) const {
    const Machine machine(*grammar_);
    State state = machine.start();
    std::string read;
    for (char c : text) {
        read.push_back(c);
        state = machine.step(state, static_cast<uint8_t>(c), read);
        if (state.tops.empty() && !state.can_end) return false;
    }
    return state.can_end;
}

size_t Program::longest_prefix(const std::string& text) const {
    const Machine machine(*grammar_);
    State state = machine.start();
    std::string read;
    for (char c : text) {
        read.push_back(c);
        state = machine.step(state, static_cast<uint8_t>(c), read);
        if (state.dead()) return read.size() - 1;
    }
    return text.size();
}

std::string Program::expected(const std::string& text) const {
    const Machine machine(*grammar_);
    State state = machine.start();
    std::string read;
    for (char c : text) {
        read.push_back(c);
        state = machine.step(state, static_cast<uint8_t>(c), read);
    }
    std::string out;
    machine.first(state, read).each([&](uint8_t b) { out.push_back(static_cast<char>(b)); });
    return out;
}

size_t Program::memory_bytes() const {
    size_t total = grammar_->exprs().memory_bytes();
    std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [serial, compiled] : bound_) total += compiled->cache.memory_bytes();
    return total;
}

std::shared_ptr<Compiled> Program::bind(const std::shared_ptr<const Vocabulary>& vocabulary, size_t cache_bytes) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto& slot = bound_[vocabulary->serial()];
    if (!slot) {
        auto grammar = grammar_->for_alphabet(vocabulary->single_bytes());
        if (!grammar->alive(grammar->root())) throw std::invalid_argument("this vocabulary cannot spell any answer");
        slot = std::make_shared<Compiled>(std::move(grammar), vocabulary, cache_bytes);
    }
    return slot;
}

// --- matcher --------------------------------------------------------------------------------------------------------

Matcher::Matcher(std::shared_ptr<Compiled> compiled)
    : compiled_(std::move(compiled)), machine_(*compiled_->grammar), state_(machine_.start()) {}

namespace {
void set_tokens(const Vocabulary& v, uint32_t node, uint32_t* row) {
    for (uint32_t k = v.token_begin[node]; k < v.token_begin[node + 1]; ++k) row[v.ids[k] / 32] |= 1u << (v.ids[k] % 32);
}
}  // namespace

void Matcher::walk(uint32_t node, const State& state, std::string& text, uint32_t* row) const {
    const Vocabulary& v = *compiled_->vocabulary;
    if (state.tops.empty()) return;
    const ByteSet first = machine_.first(state, text);
    for (uint32_t child = node + 1; child < v.end[node]; child = v.end[child]) {
        if (!first.has(v.byte[child])) continue;
        set_tokens(v, child, row);
        if (v.end[child] == child + 1) continue;
        text.push_back(static_cast<char>(v.byte[child]));
        walk(child, machine_.step(state, v.byte[child], text), text, row);
        text.pop_back();
    }
}

void Matcher::fill_row(const State& state, std::string& text, bool stopped, uint32_t* row) const {
    const Vocabulary& v = *compiled_->vocabulary;
    std::fill(row, row + v.words(), 0u);
    if (stopped || state.can_end)
        for (uint32_t id : v.stop_ids()) row[id / 32] |= 1u << (id % 32);
    if (stopped) return;
    for (const Top& top : state.tops) {
        if (!Machine::decides_by_key(top)) {
            fill_top(top, text, row);
            continue;
        }
        std::vector<uint32_t> own(v.words(), 0u);  // apart, so that what it drops stays legal where another top allows it
        fill_top(top, text, own.data());
        for (size_t i = 0; i < own.size(); ++i) row[i] |= own[i];
    }
}

void Matcher::fill_top(const Top& top, std::string& text, uint32_t* row) const {
    const Vocabulary& v = *compiled_->vocabulary;
    const auto mask = compiled_->lexeme_mask(top.expr);
    for (size_t i = 0; i < mask->words.size(); ++i) row[i] |= mask->words[i];
    for (uint32_t id : mask->tokens) row[id / 32] |= 1u << (id % 32);
    const bool key = top.frame->phase == Frame::ObjectKey;
    if (Machine::decides_by_key(top)) drop_repeated_keys(top, *mask, text, row);
    State after;
    size_t known = SIZE_MAX;
    for (uint32_t exit : mask->exits) {
        const size_t size = text.size();
        text += v.path(exit);
        // What follows a key depends on the key; what follows anything else only on where it ends.
        if (key || known != text.size()) {
            after = machine_.finish(top, text);
            known = text.size();
        }
        walk(exit, after, text, row);
        text.resize(size);
    }
}

// Tokens that would close a key which the object already holds.
void Matcher::drop_repeated_keys(const Top& top, const LexemeMask& mask, std::string& text, uint32_t* row) const {
    const Vocabulary& v = *compiled_->vocabulary;
    const std::string_view read = std::string_view(text).substr(top.start);
    const bool plain = read.find('\\') == std::string_view::npos;
    std::vector<std::string> rests;  // raw spellings that would complete a seen key
    if (plain) {
        for (const std::string& key : top.frame->seen->extras)
            if (read.empty() || key.compare(0, read.size() - 1, read.substr(1)) == 0)
                rests.push_back((read.empty() ? "\"" + key : key.substr(read.size() - 1)) + "\"");
        if (rests.empty() && !read.empty()) return;
    }
    for (uint32_t node : mask.closers) {
        const std::string path = v.path(node);
        bool repeated;
        if (plain && path.find('\\') == std::string::npos)
            repeated = std::find(rests.begin(), rests.end(), path) != rests.end();
        else
            repeated = Machine::repeats_key(top, std::string(read) + path);
        if (!repeated) continue;
        for (uint32_t k = v.token_begin[node]; k < v.token_begin[node + 1]; ++k) row[v.ids[k] / 32] &= ~(1u << (v.ids[k] % 32));
    }
}

bool Matcher::feed(State& state, std::string& text, bool& stopped, uint32_t token) const {
    const Vocabulary& v = *compiled_->vocabulary;
    if (stopped || token >= v.size()) return false;
    if (v.is_stop(token)) {
        if (!state.can_end) return false;
        stopped = true;
        return true;
    }
    const std::string& bytes = v.token(token);
    if (bytes.empty()) return false;
    for (char c : bytes) {
        text.push_back(c);
        state = machine_.step(state, static_cast<uint8_t>(c), text);
        if (state.dead()) return false;
    }
    return true;
}

size_t Matcher::fill(const std::vector<uint32_t>& draft, int32_t* rows) const {
    const size_t words = compiled_->vocabulary->words();
    auto* out = reinterpret_cast<uint32_t*>(rows);
    std::fill(out, out + words * (draft.size() + 1), 0u);
    State state = state_;
    std::string text = text_;
    bool stopped = stopped_;
    for (size_t i = 0;; ++i) {
        uint32_t* row = out + words * i;
        fill_row(state, text, stopped, row);
        if (i == draft.size()) return i;
        const uint32_t id = draft[i];
        const bool legal = id < compiled_->vocabulary->size() && ((row[id / 32] >> (id % 32)) & 1);
        if (!legal || stopped) return i;
        if (!feed(state, text, stopped, id)) throw std::logic_error("a token of the mask was refused");
    }
}

void Matcher::advance(const std::vector<uint32_t>& ids) {
    State state = state_;
    const size_t size = text_.size();
    bool stopped = stopped_;
    for (uint32_t id : ids) {
        if (feed(state, text_, stopped, id)) continue;
        text_.resize(size);
        throw Violation("token " + std::to_string(id) + " is not allowed after " + std::to_string(size) + " bytes");
    }
    state_ = std::move(state);
    stopped_ = stopped;
}

std::string Matcher::forced() const {
    constexpr size_t kMaxForced = 4096;
    std::string text = text_;
    State state = state_;
    while (!stopped_ && !state.can_end && text.size() - text_.size() < kMaxForced) {
        const ByteSet first = machine_.first(state, text);
        if (first.count() != 1) break;
        first.each([&](uint8_t byte) { text.push_back(static_cast<char>(byte)); });
        state = machine_.step(state, static_cast<uint8_t>(text.back()), text);
    }
    return text.substr(text_.size());
}

std::vector<uint32_t> Matcher::shortest_completion() const {
    if (can_end()) return {};
    const std::string rest = machine_.shortest_completion(state_, text_);
    auto ids = compiled_->vocabulary->fewest_tokens(rest);
    if (ids.empty() && !rest.empty()) throw LimitExceeded("the vocabulary cannot spell the shortest completion");
    return ids;
}

}  // namespace safegen
