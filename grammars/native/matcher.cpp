#include "grammars/native/matcher.hpp"

#include <algorithm>

namespace safegen {

Compiled::Compiled(std::shared_ptr<const Grammar> g, std::shared_ptr<const Vocabulary> v, size_t cache_bytes)
    : grammar(std::move(g)), vocabulary(std::move(v)), lexemes(cache_bytes / 2), rows(cache_bytes / 2) {
    free_text = grammar->lexeme(grammar->exprs().json_body(grammar->exprs().any_text()));
}

std::shared_ptr<const LexemeMask> Compiled::lexeme_mask(ExprId e) {
    if (e == free_text) return vocabulary->free_text();
    if (auto known = lexemes.find(e)) return known;
    constexpr int kBroad = 90;  // a state with this many first bytes is a string's
    Exprs& x = grammar->exprs();
    const bool broad = x.expansion(e)->first.count() >= kBroad && free_text != kEmpty;
    auto mask = std::make_shared<const LexemeMask>(
        broad ? walk_difference(x, *vocabulary, e, free_text, *vocabulary->free_text()) : walk_trie(x, *vocabulary, e));
    lexemes.put(e, mask);
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
    for (const auto& [serial, compiled] : bound_) total += compiled->lexemes.memory_bytes() + compiled->rows.memory_bytes();
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

Matcher::Matcher(std::shared_ptr<Compiled> compiled) : compiled_(std::move(compiled)), machine_(*compiled_->grammar) {
    now_.state = machine_.start();
}

namespace {
void set_tokens(const Vocabulary& v, uint32_t node, uint32_t* row) {
    for (uint32_t k = v.token_begin[node]; k < v.token_begin[node + 1]; ++k) row[v.ids[k] / 32] |= 1u << (v.ids[k] % 32);
}
void clear_tokens(const Vocabulary& v, uint32_t from, uint32_t to, uint32_t* row) {
    for (uint32_t k = v.token_begin[from]; k < v.token_begin[to]; ++k) row[v.ids[k] / 32] &= ~(1u << (v.ids[k] % 32));
}
// A state that nothing legal follows. One that failed as a whole stays legal to reach: reaching it is what takes it back.
bool hopeless(const State& state) { return state.dead() && state.failures.empty(); }
}  // namespace

void Matcher::walk(uint32_t node, const State& state, std::string& text, uint32_t* row) const {
    const Vocabulary& v = *compiled_->vocabulary;
    if (state.tops.empty()) return;
    const bool sensitive = state.sensitive();
    const ByteSet first = machine_.first(state, text);
    for (uint32_t child = node + 1; child < v.end[node]; child = v.end[child]) {
        if (!first.has(v.byte[child])) continue;
        const bool leaf = v.end[child] == child + 1;
        if (!sensitive) set_tokens(v, child, row);
        if (leaf && !sensitive) continue;
        text.push_back(static_cast<char>(v.byte[child]));
        const State next = machine_.step(state, v.byte[child], text);
        if (sensitive && !hopeless(next)) set_tokens(v, child, row);
        if (!leaf) walk(child, next, text, row);
        text.pop_back();
    }
}

void Matcher::fill_row(Position& at, uint32_t* row) const {
    const Vocabulary& v = *compiled_->vocabulary;
    const bool shared = !at.stopped && at.forced.empty() && excluded_.empty();
    const auto key = shared ? machine_.mask_key(at.state, at.text) : std::nullopt;
    if (key)
        if (const auto known = compiled_->rows.find(*key)) {
            std::copy(known->words.begin(), known->words.end(), row);
            return;
        }
    std::fill(row, row + v.words(), 0u);
    if (at.stopped || (at.forced.empty() && at.state.can_end))
        for (uint32_t id : v.stop_ids()) row[id / 32] |= 1u << (id % 32);
    if (at.stopped) return;
    if (at.forced.empty()) fill_state(at.state, at.text, row);
    else fill_forced(at, row);
    if (!excluded_.empty()) drop_excluded(at.text, row);
    if (key) compiled_->rows.put(*key, std::make_shared<const MaskRow>(MaskRow{{row, row + v.words()}}));
}

// Along the one path of the forced bytes, then freely past its end.
void Matcher::fill_forced(Position& at, uint32_t* row) const {
    const Vocabulary& v = *compiled_->vocabulary;
    State state = at.state;
    uint32_t node = 0;
    const size_t size = at.text.size();
    for (size_t i = 0; i < at.forced.size(); ++i) {
        const auto byte = static_cast<uint8_t>(at.forced[i]);
        at.text.push_back(at.forced[i]);
        state = machine_.step(state, byte, at.text);
        uint32_t child = node + 1;
        while (child < v.end[node] && v.byte[child] != byte) child = v.end[child];
        if (child >= v.end[node]) {
            at.text.resize(size);
            return;
        }
        node = child;
        set_tokens(v, node, row);
    }
    walk(node, state, at.text, row);
    at.text.resize(size);
}

void Matcher::fill_state(const State& state, std::string& text, uint32_t* row) const {
    const Vocabulary& v = *compiled_->vocabulary;
    for (const Top& top : state.tops) {
        if (!Machine::decides_by_key(top) && !top.frame->sensitive) {
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
    const bool by_text = top.frame->phase == Frame::ObjectKey || top.frame->sensitive;
    if (Machine::decides_by_key(top)) drop_repeated_keys(top, *mask, text, row);
    if (top.frame->sensitive) drop_repeated_items(top, *mask, text, row);
    State after;
    bool movable = false;
    size_t known = SIZE_MAX;
    for (uint32_t exit : mask->exits) {
        const size_t size = text.size();
        text += v.path(exit);
        // What follows a key, or an item that must be new, depends on it. What follows anything else is the same
        // wherever it ends, but for where the keys begin that are next.
        if (by_text || known == SIZE_MAX || (known != text.size() && !movable)) {
            after = machine_.finish(top, text);
            movable = after.outer() == kInfinite && !after.sensitive();  // no open node counts from a place in the text
        } else if (known != text.size()) {
            for (Top& next : after.tops)
                if (next.start == known) next.start = static_cast<uint32_t>(text.size());
        }
        known = text.size();
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
        if (repeated) clear_tokens(v, node, node + 1, row);
    }
}

// Tokens that would end an item which its unique array already holds, where the item could not go on either.
void Matcher::drop_repeated_items(const Top& top, const LexemeMask& mask, std::string& text, uint32_t* row) const {
    const Vocabulary& v = *compiled_->vocabulary;
    const size_t size = text.size();
    // A string read as a whole item: only an equal rest can repeat, unless escapes are about.
    const bool item = top.frame->phase == Frame::ArrayItem && top.frame->items && size > top.frame->start && text[top.frame->start] == '"';
    const bool plain = item && text.find('\\', top.frame->start) == std::string::npos;
    std::vector<std::string> rests;
    if (plain) {
        const std::string_view read = std::string_view(text).substr(top.frame->start + 1);
        for (const std::string& form : *top.frame->items) {
            if (form[0] != 's') continue;
            const std::string_view decoded = std::string_view(form).substr(form.find(':') + 1);
            if (decoded.substr(0, read.size()) == read) rests.push_back(std::string(decoded.substr(read.size())) + '"');
        }
        if (rests.empty()) return;
    }
    if (top.frame->phase == Frame::ArrayItem && !top.frame->items) return;
    for (uint32_t node : mask.closers) {
        const std::string path = v.path(node);
        if (plain && path.find('\\') == std::string::npos && std::find(rests.begin(), rests.end(), path) == rests.end()) continue;
        ExprId rest = top.expr;
        for (char c : path) rest = compiled_->grammar->exprs().next(rest, static_cast<uint8_t>(c));
        if (!compiled_->grammar->exprs().expansion(rest)->first.empty()) continue;
        text += path;
        if (hopeless(machine_.finish(top, text))) clear_tokens(v, node, node + 1, row);
        text.resize(size);
    }
}

bool Matcher::excluded(const std::string& text) const {
    for (const Excluded& e : excluded_)
        if (text.size() == e.start + e.bytes.size() && text.compare(e.start, e.bytes.size(), e.bytes) == 0) return true;
    return false;
}

void Matcher::drop_excluded(const std::string& text, uint32_t* row) const {
    const Vocabulary& v = *compiled_->vocabulary;
    for (const Excluded& e : excluded_) {
        if (text.size() >= e.start + e.bytes.size()) continue;
        // What was read past the start must agree; what was not reached yet is forced to.
        const size_t read = text.size() > e.start ? text.size() - e.start : 0;
        if (text.compare(text.size() - read, read, e.bytes, 0, read) != 0) continue;
        std::string rest = e.bytes.substr(read);
        if (text.size() < e.start) rest = now_.forced.substr(0, e.start - text.size()) + rest;
        uint32_t node = 0;
        bool found = true;
        for (char c : rest) {
            uint32_t child = node + 1;
            while (child < v.end[node] && v.byte[child] != static_cast<uint8_t>(c)) child = v.end[child];
            if (child >= v.end[node]) {
                found = false;
                break;
            }
            node = child;
        }
        if (found) clear_tokens(v, node, v.end[node], row);
    }
}

Matcher::Fed Matcher::feed(Position& at, uint32_t token) const {
    const Vocabulary& v = *compiled_->vocabulary;
    if (at.stopped || token >= v.size()) return Fed::Refused;
    if (v.is_stop(token)) {
        if (!at.forced.empty() || !at.state.can_end) return Fed::Refused;
        at.stopped = true;
        return Fed::Yes;
    }
    const std::string& bytes = v.token(token);
    if (bytes.empty()) return Fed::Refused;
    for (size_t i = 0; i < bytes.size(); ++i) {
        if (!at.forced.empty()) {
            if (at.forced[0] != bytes[i]) return Fed::Refused;
            at.forced.erase(0, 1);
        }
        at.text.push_back(bytes[i]);
        at.state = machine_.step(at.state, static_cast<uint8_t>(bytes[i]), at.text);
        if (!excluded_.empty() && excluded(at.text)) return Fed::Refused;
        if (at.state.dead()) return at.state.failures.empty() || i + 1 < bytes.size() ? Fed::Refused : Fed::Failed;
    }
    return Fed::Yes;
}

size_t Matcher::fill(const std::vector<uint32_t>& draft, int32_t* rows) const {
    const size_t words = compiled_->vocabulary->words();
    auto* out = reinterpret_cast<uint32_t*>(rows);
    std::fill(out, out + words * (draft.size() + 1), 0u);
    Position at = now_;
    for (size_t i = 0;; ++i) {
        uint32_t* row = out + words * i;
        fill_row(at, row);
        if (i == draft.size()) return i;
        const uint32_t id = draft[i];
        const bool legal = id < compiled_->vocabulary->size() && ((row[id / 32] >> (id % 32)) & 1);
        if (!legal || at.stopped) return i;
        switch (feed(at, id)) {
            case Fed::Yes: break;
            case Fed::Failed: return i + 1;  // a verified node ends here: what follows is not known before it is committed
            case Fed::Refused: throw std::logic_error("a token of the mask was refused");
        }
        if ((at.state.sensitive() || !excluded_.empty()) && !has_legal_token(at)) return i + 1;
    }
}

bool Matcher::has_legal_token(Position& at) const {
    if (at.stopped) return true;
    std::vector<uint32_t> row(compiled_->vocabulary->words());
    fill_row(at, row.data());
    return std::any_of(row.begin(), row.end(), [](uint32_t word) { return word != 0; });
}

// An item of a unique array may go on for long and yet never be new (1.0, 1.00, ... after 1): then it is given up now.
// Free strings need no such look, and outside of items the array itself can end or go on.
bool Matcher::item_can_be_new(const Position& at) const {
    if (!at.state.sensitive() || at.state.inner() == kInfinite || !at.forced.empty()) return true;
    try {
        machine_.shortest_completion(at.state, at.text, [&](const std::string& text) { return excluded(text); });
        return true;
    } catch (const LimitExceeded&) {
        return false;
    }
}

std::optional<WentBack> Matcher::advance(const std::vector<uint32_t>& ids) {
    if (ids.empty()) return std::nullopt;
    Position before = now_;
    const size_t tokens = token_ends_.size();
    for (uint32_t id : ids) {
        const uint32_t outer = now_.state.outer();
        const Fed fed = feed(now_, id);
        if (fed == Fed::Refused) {
            const size_t size = before.text.size();
            now_ = std::move(before);
            token_ends_.resize(tokens);
            throw Violation("token " + std::to_string(id) + " is not allowed after " + std::to_string(size) + " bytes");
        }
        token_ends_.push_back(static_cast<uint32_t>(now_.text.size()));
        if (fed == Fed::Failed) {
            const auto [start, node] = *std::max_element(now_.state.failures.begin(), now_.state.failures.end());
            return go_back(start, node, std::min(outer, start));
        }
        if ((now_.state.sensitive() || !excluded_.empty()) && (!has_legal_token(now_) || !item_can_be_new(now_))) {
            const uint32_t inner = now_.state.inner(), size = static_cast<uint32_t>(now_.text.size());
            const uint32_t floor = std::min(outer, now_.state.outer());
            if (floor == kInfinite) throw LimitExceeded("no answer is left");
            return inner < size ? go_back(inner, now_.state.node_from(inner), std::min(floor, inner)) : go_back(size - 1, kNoNode, floor);
        }
    }
    return std::nullopt;
}

// Excludes the text from `start` on and returns to the token boundary before it; repeats while nothing is left there.
WentBack Matcher::go_back(uint32_t start, NodeId node, uint32_t floor) {
    constexpr size_t kMaxExcluded = 10'000;
    size_t kept = token_ends_.size();
    while (true) {
        if (excluded_.size() > kMaxExcluded) throw LimitExceeded("too many values of a verified node failed");
        std::erase_if(excluded_, [&](const Excluded& e) { return e.start > start; });
        excluded_.push_back({start, now_.text.substr(start)});
        while (kept > 0 && token_ends_[kept - 1] > start) --kept;
        const uint32_t boundary = kept ? token_ends_[kept - 1] : 0;
        std::string forced = now_.text.substr(boundary, start - boundary);
        const std::string whole = now_.text.substr(0, start);
        now_.text.resize(boundary);
        now_.state = replay(now_.text);
        now_.forced = std::move(forced);
        now_.stopped = false;
        token_ends_.resize(kept);
        if (has_legal_token(now_)) return {kept, now_.forced, node == kNoNode ? std::string() : compiled_->grammar->node(node).pointer};
        // Nothing is left from `start` on: the byte before it was a dead end too.
        const uint32_t inner = replay(whole).inner();
        now_.text = whole;
        start = inner < whole.size() ? inner : static_cast<uint32_t>(whole.size()) - 1;
        // Text before the outermost verified node is settled: it may have been shown.
        if (whole.empty() || start < floor) throw LimitExceeded("no answer is left: every value of a verified node failed");
    }
}

State Matcher::replay(const std::string& text) const {
    State state = machine_.start();
    std::string read;
    for (char c : text) {
        read.push_back(c);
        state = machine_.step(state, static_cast<uint8_t>(c), read);
    }
    return state;
}

size_t Matcher::settled() const {
    const uint32_t outer = now_.state.outer();
    if (outer == kInfinite) return token_ends_.size();
    return static_cast<size_t>(std::upper_bound(token_ends_.begin(), token_ends_.end(), outer) - token_ends_.begin());
}

std::string Matcher::forced() const {
    constexpr size_t kMaxForced = 4096;
    std::string text = now_.text + now_.forced;
    State state = now_.forced.empty() ? now_.state : replay(text);
    while (!now_.stopped && !state.can_end && text.size() - now_.text.size() < kMaxForced) {
        const ByteSet next = machine_.followers(state, text);
        if (next.count() != 1) break;
        next.each([&](uint8_t byte) { text.push_back(static_cast<char>(byte)); });
        state = machine_.step(state, static_cast<uint8_t>(text.back()), text);
    }
    return text.substr(now_.text.size());
}

std::vector<uint32_t> Matcher::shortest_completion() const {
    if (can_end()) return {};
    const std::string begin = now_.text + now_.forced;
    const State state = now_.forced.empty() ? now_.state : replay(begin);
    const std::string rest = now_.forced + machine_.shortest_completion(state, begin, [&](const std::string& text) { return excluded(text); });
    auto ids = compiled_->vocabulary->fewest_tokens(rest);
    if (ids.empty() && !rest.empty()) throw LimitExceeded("the vocabulary cannot spell the shortest completion");
    return ids;
}

}  // namespace safegen
