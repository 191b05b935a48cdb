#include "grammars/native/matcher.hpp"

#include "grammars/native/json_value.hpp"

#include <algorithm>
#include <map>

namespace safegen {

Compiled::Compiled(std::shared_ptr<const Grammar> g, std::shared_ptr<const Vocabulary> v, size_t cache_bytes)
    : grammar(std::move(g)), vocabulary(std::move(v)), lexemes(cache_bytes / 2), rows(cache_bytes / 8 * 3),
      forced(cache_bytes / 16), completions(cache_bytes / 16) {
    free_text = grammar->lexeme(grammar->exprs().json_body(grammar->exprs().any_text()));
}

// States of automata of phrases are many, and most of their masks are alike: each is found by its difference to the one
// where no phrase has begun.
std::optional<LexemeMask> Compiled::mask_without_phrases(ExprId e, bool ends) {
    Exprs& x = grammar->exprs();
    bool json = false;
    if (const auto place = x.phrase_place(e, json); place && (!json || free_text != kEmpty)) {
        const PhrasePlace start{place->automaton, PhraseAutomaton::kStart, LetterMap::kBoundary, place->alphabet};
        const ExprId other = x.at_place(e, start);
        if (e == other) return walk_phrases(x, *vocabulary, e, *place, free_text, json, ends);
        return walk_phrases_like(x, *vocabulary, e, *place, other, start, *lexeme_mask(other, ends), json, ends);
    }
    const auto body = x.body_without_phrases(e);
    const ExprId other = body ? *body : x.with_phrases_at_start(e);
    if (other == e || other == free_text) return std::nullopt;
    return walk_like(x, *vocabulary, e, other, *lexeme_mask(other, ends), ends);
}

std::shared_ptr<const LexemeMask> Compiled::lexeme_mask(ExprId e, bool ends) {
    constexpr ExprId kEndless = 0x80000000u;
    if (e == free_text) return nullptr;
    Exprs& x = grammar->exprs();
    if (!ends) {
        bool json = true;
        const bool text = x.has_bans() && ((x.phrase_place(e, json) && !json) || x.is_only_phrases(e));
        ends = !text;
    }
    const ExprId key = ends ? e : e | kEndless;
    if (auto known = lexemes.find(key)) return known;
    auto make = [&]() -> LexemeMask {
        constexpr size_t kFewTexts = 256;
        constexpr int kWide = 18;   // with fewer first bytes there is little to walk
        constexpr int kBroad = 90;  // with so many it is a string's
        if (const auto texts = x.finite(e, kFewTexts)) return mask_of_texts(*vocabulary, *texts);
        if (free_text == kEmpty) return walk_trie(x, *vocabulary, e);
        if (x.has_bans())
            if (auto mask = mask_without_phrases(e, ends)) return std::move(*mask);
        if (const auto names = x.name_state(e, kFewTexts)) return mask_of_names(x, *vocabulary, e, free_text, *names);
        const int num_first = x.expansion(e)->first.count();
        if (num_first >= kWide) {
            if (const auto run = x.char_run(e))
                if (auto mask = mask_of_run(x, *vocabulary, e, *run)) return std::move(*mask);
            if (const auto groups = x.char_groups(e))
                if (auto mask = mask_of_groups(x, *vocabulary, e, *groups)) return std::move(*mask);
        }
        return num_first >= kBroad ? walk_difference(x, *vocabulary, e, free_text) : walk_trie(x, *vocabulary, e);
    };
    auto mask = std::make_shared<const LexemeMask>(make());
    lexemes.put(key, mask);
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
    for (const auto& [serial, compiled] : bound_)
        total += compiled->lexemes.memory_bytes() + compiled->rows.memory_bytes() + compiled->forced.memory_bytes() +
                 compiled->completions.memory_bytes();
    return total;
}

std::shared_ptr<Compiled> Program::bind(const std::shared_ptr<const Vocabulary>& vocabulary, size_t cache_bytes) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto& slot = bound_[vocabulary->serial()];
    if (!slot) {
        const bool all = ByteSet::all().within(vocabulary->single_bytes());
        const std::shared_ptr<const Grammar> grammar = all ? grammar_ : grammar_->for_alphabet(vocabulary->single_bytes());
        if (!grammar->alive(grammar->root())) throw std::invalid_argument("this vocabulary cannot spell any answer");
        slot = std::make_shared<Compiled>(grammar, vocabulary, cache_bytes);
    }
    return slot;
}

// --- matcher --------------------------------------------------------------------------------------------------------

Matcher::Matcher(std::shared_ptr<Compiled> compiled) : compiled_(std::move(compiled)), machine_(*compiled_->grammar) {
    now_.state = machine_.start();
}

namespace {
// Whether what follows the end of a lexeme depends on its text: a key, an item that must be new, what is judged as a
// whole when it ends. What follows anything else is the same wherever it ends.
bool ends_by_text(const Top& top) {
    return top.frame->phase == Frame::ObjectKey || top.frame->sensitive || top.frame->outer != kInfinite;
}
// A state that nothing legal follows. One that failed as a whole stays legal to reach: reaching it is what takes it back.
bool hopeless(const State& state) { return state.dead() && state.failures.empty(); }
}  // namespace

void Matcher::walk(const Trie& t, uint32_t node, const State& state, std::string& text, Draft& row) const {
    if (state.tops.empty()) return;
    const bool sensitive = state.sensitive();
    if (!sensitive && std::none_of(state.tops.begin(), state.tops.end(), Machine::decides_by_key)) {
        for (const Top& top : state.tops) walk_lexeme(t, node, top, text, row);
        return;
    }
    const ByteSet first = machine_.first(state, text);
    (t.kid_bytes(node) & first).each([&](uint8_t byte) {
        const uint32_t child = t.kid(node, byte);
        const bool leaf = !t.has_children(child);
        if (!sensitive) t.set_tokens(child, row);
        if (leaf && !sensitive) return;
        text.push_back(static_cast<char>(byte));
        const State next = machine_.step(state, byte, text);
        if (sensitive && !hopeless(next)) t.set_tokens(child, row);
        if (!leaf) walk(t, child, next, text, row);
        text.pop_back();
    });
}

// What follows the end of a lexeme, for all of its ends; the same but for where the keys begin that are next.
const State& Matcher::Ending::after(const std::string& text) {
    if (ends_by_text(top) || known == SIZE_MAX || (known != text.size() && !movable)) {
        state = machine.finish(top, text);
        movable = state.outer() == kInfinite && !state.sensitive();  // no open node counts from a place in the text
    } else if (known != text.size()) {
        for (Top& next : state.tops)
            if (next.start == known) next.start = static_cast<uint32_t>(text.size());
    }
    known = text.size();
    return state;
}

// The part of a walk within one lexeme, which needs no more than its expression; on from where it may end.
void Matcher::walk_lexeme(const Trie& t, uint32_t node, const Top& top, std::string& text, Draft& row) const {
    struct Level {
        uint32_t node;
        ExprId state;
        ByteSet left;  // bytes of the children to visit
    };
    Exprs& x = compiled_->grammar->exprs();
    const size_t size = text.size();
    Ending ending{machine_, top};
    std::vector<Level> levels{{node, top.expr, x.worth_trying(top.expr, t.kid_bytes(node))}};
    while (!levels.empty()) {
        Level& level = levels.back();
        uint8_t byte = 0;
        if (!level.left.take_first(byte)) {
            levels.pop_back();
            continue;
        }
        const ExprId next = x.step(level.state, byte);
        if (next == kEmpty) continue;
        const uint32_t child = t.kid(level.node, byte);
        t.set_tokens(child, row);
        if (!t.has_children(child)) continue;
        text.resize(size + levels.size());
        text.back() = static_cast<char>(byte);
        if (x.nullable(next)) walk(t, child, ending.after(text), text, row);
        if (next != kEpsilon) levels.push_back({child, next, x.worth_trying(next, t.kid_bytes(child))});
    }
    text.resize(size);
}

std::optional<Hash128> Matcher::key_of(const Position& at) const {
    if (at.stopped || !at.forced.empty() || !excluded_.texts.empty()) return std::nullopt;
    return machine_.mask_key(at.state, at.text);
}

void Matcher::fill_row(Position& at, uint32_t* row) const {
    const Vocabulary& v = *compiled_->vocabulary;
    const uint32_t* base = compiled_->free().words.data();
    const auto key = key_of(at);
    if (key)
        if (const auto known = compiled_->rows.find(*key)) return known->copy_to(row, v.words(), base);
    thread_local Draft draft;
    draft_row(at, draft);
    draft.copy_to(row);
    if (key) compiled_->rows.put(*key, std::make_shared<const Bits>(draft.bits()));
}

void Matcher::draft_row(Position& at, Draft& row) const {
    const Vocabulary& v = *compiled_->vocabulary;
    std::vector<std::shared_ptr<const LexemeMask>> masks;
    const bool inside = !at.stopped && at.forced.empty();
    if (inside)
        for (const Top& top : at.state.tops) {
            const bool last = top.frame->phase == Frame::Root && compiled_->grammar->margin == kEpsilon;  // nothing follows
            masks.push_back(compiled_->lexeme_mask(top.expr, !last));
        }
    const bool free = masks.size() == 1 && (!masks[0] || masks[0]->base);
    row.begin(v.words(), free ? compiled_->free().words.data() : nullptr);
    if (at.stopped || (at.forced.empty() && at.state.can_end))
        for (uint32_t id : v.stop_ids()) row.set(id);
    if (at.stopped) return;
    if (inside) fill_state(at.state, masks, at.text, row);
    else fill_forced(at, row);
    if (!excluded_.texts.empty()) drop_excluded(at.text, row);
}

// Along the one path of the forced bytes, then freely past its end.
void Matcher::fill_forced(Position& at, Draft& row) const {
    const Vocabulary& v = *compiled_->vocabulary;
    State state = at.state;
    uint32_t node = 0;
    const size_t size = at.text.size();
    for (size_t i = 0; i < at.forced.size(); ++i) {
        const auto byte = static_cast<uint8_t>(at.forced[i]);
        at.text.push_back(at.forced[i]);
        state = machine_.step(state, byte, at.text);
        node = v.child(node, byte);
        if (node == 0) {
            at.text.resize(size);
            return;
        }
        v.set_tokens(node, row);
    }
    walk(v, node, state, at.text, row);
    at.text.resize(size);
}

void Matcher::fill_state(const State& state, const std::vector<std::shared_ptr<const LexemeMask>>& masks, std::string& text, Draft& row) const {
    for (size_t i = 0; i < masks.size(); ++i) {
        const Top& top = state.tops[i];
        const LexemeMask* mask = masks[i].get();
        const bool drops = !mask || mask->base || top.frame->sensitive || Machine::decides_by_key(top);
        if (!drops || masks.size() == 1) {
            fill_top(top, mask, text, row);
            continue;
        }
        thread_local Draft own;  // what this top drops may be legal for another
        own.begin(compiled_->vocabulary->words(), !mask || mask->base ? compiled_->free().words.data() : nullptr);
        fill_top(top, mask, text, own);
        row.add(own);
    }
}

// row: this top's alone, from the free string's row where that is its base; shared only by tops that drop nothing.
void Matcher::fill_top(const Top& top, const LexemeMask* mask, std::string& text, Draft& row) const {
    const FreeText& free = compiled_->free();
    std::vector<uint32_t> exits;
    if (!walk_tails(top, mask, text, row)) {
        if (mask) mask->each_exit([&](uint32_t node) { exits.push_back(node); });
        else exits = free.exits;
    } else if (mask) {
        exits = mask->exits;
    }
    if (mask) row.add(mask->bits, free.words.data());
    else row.add(free.words.data());
    walk_exits(top, exits, text, row);
    if (Machine::decides_by_key(top)) drop_repeated_keys(top, mask, text, row);
    if (top.frame->sensitive) drop_repeated_items(top, mask, text, row);
}

// Whether all keys that are not declared have the same value, so that what follows does not depend on which one it is.
bool Matcher::value_is_fixed(const Top& top) const {
    const Grammar& g = *compiled_->grammar;
    const auto& extras = g.node(top.frame->node).object->extras;
    if (g.node(top.frame->node).object->conditions) return false;
    return std::all_of(extras.begin(), extras.end(), [&](const auto& extra) { return g.resolve(extra.value) == g.resolve(extras[0].value); });
}

// What may follow the closing quotes of a string, for all of them at once. False, and nothing done, when it depends on
// the string, or when few quotes may close it.
bool Matcher::walk_tails(const Top& top, const LexemeMask* mask, std::string& text, Draft& row) const {
    constexpr size_t kFew = 24;
    const Vocabulary& v = *compiled_->vocabulary;
    const FreeText& free = compiled_->free();
    const bool by_key = top.frame->phase == Frame::ObjectKey;
    if ((mask && !mask->base) || (ends_by_text(top) && !by_key) || top.frame->sensitive) return false;
    std::vector<uint32_t> dropped;  // exits that are no ends here
    if (mask) {
        for (const auto& [from, to] : mask->skips) {
            const auto begin = std::lower_bound(free.exits.begin(), free.exits.end(), from);
            dropped.insert(dropped.end(), begin, std::lower_bound(begin, free.exits.end(), to));
        }
    }
    if (free.exits.size() < dropped.size() + kFew) return false;

    std::vector<uint32_t> apart;  // ends of keys that are declared, and those after which another key may be read
    if (by_key) {
        const size_t num_patterns = compiled_->grammar->node(top.frame->node).object->extras.size();
        if (text.find('\\', top.start) != std::string::npos || num_patterns > 64) return false;
        const auto& parted = mask ? mask->parted : apart;
        std::set_union(parted.begin(), parted.end(), free.late.begin(), free.late.end(), std::back_inserter(apart));
        std::vector<uint32_t> legal;
        std::set_difference(apart.begin(), apart.end(), dropped.begin(), dropped.end(), std::back_inserter(legal));
        std::swap(apart, legal);
    }
    // The others in groups of the same value: any of a group stands for all of it.
    std::vector<std::vector<uint32_t>> groups(1);
    const auto legal = [&](uint32_t exit) {
        return !std::binary_search(dropped.begin(), dropped.end(), exit) && !std::binary_search(apart.begin(), apart.end(), exit);
    };
    if (by_key && !value_is_fixed(top)) {
        group_by_value(top, text, legal, groups);
    } else {
        constexpr size_t kExamples = 8;
        for (size_t i = 0; i < free.exits.size() && groups[0].size() < kExamples; ++i)
            if (legal(free.exits[i])) groups[0].push_back(free.exits[i]);
    }
    std::sort(groups.begin(), groups.end(), [](const auto& a, const auto& b) { return a.size() > b.size(); });
    const size_t size = text.size();
    bool general = !groups[0].empty();
    std::vector<State> after;
    for (const auto& group : groups) {
        constexpr size_t kTries = 8;  // a key that was read before is no example
        State state;
        for (size_t i = 0; i < std::min(group.size(), kTries) && state.tops.empty(); ++i) {
            v.append_path(group[i], text);
            state = machine_.finish(top, text);
            text.resize(size);
            if (!by_key) break;
        }
        general &= group.empty() || ((!by_key || !state.tops.empty()) && state.outer() == kInfinite && !state.sensitive());
        after.push_back(std::move(state));
    }
    if (!general) return false;
    v.append_path(groups[0][0], text);
    set_starts(after[0], text);
    walk(free.tails, 0, after[0], text, row);
    text.resize(size);
    for (uint32_t exit : dropped) v.clear_tokens(exit + 1, v.end(exit), row);
    for (uint32_t exit : apart) v.clear_tokens(exit + 1, v.end(exit), row);
    for (size_t i = 1; i < groups.size(); ++i)
        for (uint32_t exit : groups[i]) v.clear_tokens(exit + 1, v.end(exit), row);
    for (size_t i = 1; i < groups.size(); ++i) {
        const ByteSet first = machine_.first_of_all(after[i]);
        for (uint32_t exit : groups[i]) {
            if ((v.kid_bytes(exit) & first).empty()) continue;
            v.append_path(exit, text);
            set_starts(after[i], text);
            walk(v, exit, after[i], text, row);
            text.resize(size);
        }
    }
    walk_exits(top, apart, text, row);
    return true;
}

// Lexemes that begin where the text ends now, wherever the state was made.
void Matcher::set_starts(State& state, const std::string& text) {
    for (Top& next : state.tops) next.start = static_cast<uint32_t>(text.size());
}

// Ends of keys by which of the object's patterns the key matches.
template <class Legal>
void Matcher::group_by_value(const Top& top, const std::string& text, const Legal& legal, std::vector<std::vector<uint32_t>>& groups) const {
    const Grammar& g = *compiled_->grammar;
    const Vocabulary& v = *compiled_->vocabulary;
    Exprs& x = g.exprs();
    const auto& extras = g.node(top.frame->node).object->extras;
    std::vector<ExprId> states;
    for (const ExtraKeys& extra : extras) {
        ExprId state = extra.keys;
        for (size_t i = top.start + 1; i < text.size() && state != kEmpty; ++i) state = x.next(state, static_cast<uint8_t>(text[i]));
        states.push_back(state);
    }
    std::map<uint64_t, std::vector<uint32_t>> by_matches;
    std::string path;
    for (uint32_t exit : compiled_->free().exits) {
        if (!legal(exit)) continue;
        path.clear();
        v.append_path(exit, path);
        path = decode_json_string('"' + path);
        uint64_t matches = 0;
        for (size_t i = 0; i < states.size(); ++i)
            if (states[i] != kEmpty && x.matches(states[i], path)) matches |= uint64_t{1} << i;
        by_matches[matches].push_back(exit);
    }
    groups.clear();
    for (auto& [matches, exits] : by_matches) groups.push_back(std::move(exits));
    if (groups.empty()) groups.emplace_back();
}

void Matcher::walk_exits(const Top& top, const std::vector<uint32_t>& exits, std::string& text, Draft& row) const {
    const Vocabulary& v = *compiled_->vocabulary;
    const size_t size = text.size();
    Ending ending{machine_, top};
    ByteSet first = ByteSet::all();  // of whatever may follow
    if (top.frame->phase == Frame::ObjectKey) {
        first = compiled_->grammar->exprs().expansion(compiled_->grammar->colon)->first;
    } else if (!ends_by_text(top) && exits.size() > 1) {
        v.append_path(exits[0], text);
        first = machine_.first_of_all(ending.after(text));
        text.resize(size);
    }
    for (uint32_t exit : exits) {
        if ((v.kid_bytes(exit) & first).empty()) continue;
        v.append_path(exit, text);
        walk(v, exit, ending.after(text), text, row);
        text.resize(size);
    }
}

// Tokens that would close a key which the object already holds, and all that go on behind it.
void Matcher::drop_repeated_keys(const Top& top, const LexemeMask* mask, std::string& text, Draft& row) const {
    const Vocabulary& v = *compiled_->vocabulary;
    const FreeText& free = compiled_->free();
    const std::string_view read = std::string_view(text).substr(top.start);
    const bool plain = !read.empty() && read.find('\\') == std::string_view::npos;
    auto drop = [&](uint32_t node) {
        if (Machine::repeats_key(top, std::string(read) + v.path(node))) v.clear_tokens(node, v.end(node), row);
    };
    if (!plain || (mask && !mask->base)) {
        if (mask) mask->each_closer(drop), mask->each_exit(drop);
        else std::for_each(free.closers.begin(), free.closers.end(), drop), std::for_each(free.exits.begin(), free.exits.end(), drop);
        return;
    }
    for (const std::string& key : top.frame->seen->extras) {
        if (key.compare(0, read.size() - 1, read.substr(1)) != 0) continue;
        const std::string rest = key.substr(read.size() - 1);
        if (const uint32_t node = v.find(rest + '"')) v.clear_tokens(node, v.end(node), row);
        auto escaped = std::lower_bound(free.escaped_texts.begin(), free.escaped_texts.end(), std::pair{rest, uint32_t{0}});
        for (; escaped != free.escaped_texts.end() && escaped->first == rest; ++escaped) v.clear_tokens(escaped->second, v.end(escaped->second), row);
    }
    if (mask) {
        std::for_each(mask->closers.begin(), mask->closers.end(), drop);
        std::for_each(mask->exits.begin(), mask->exits.end(), drop);
    }
}

// Tokens that would end an item which its unique array already holds, where the item could not go on either.
void Matcher::drop_repeated_items(const Top& top, const LexemeMask* mask, std::string& text, Draft& row) const {
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
    auto drop = [&](uint32_t node) {
        const std::string path = v.path(node);
        if (plain && path.find('\\') == std::string::npos && std::find(rests.begin(), rests.end(), path) == rests.end()) return;
        ExprId rest = top.expr;
        for (char c : path) rest = compiled_->grammar->exprs().next(rest, static_cast<uint8_t>(c));
        if (!compiled_->grammar->exprs().expansion(rest)->first.empty()) return;
        text += path;
        if (hopeless(machine_.finish(top, text))) v.clear_tokens(node, node + 1, row);
        text.resize(size);
    };
    if (mask) mask->each_closer(drop);
    else std::for_each(compiled_->free().closers.begin(), compiled_->free().closers.end(), drop);
}

void Matcher::drop_excluded(const std::string& text, Draft& row) const {
    const Vocabulary& v = *compiled_->vocabulary;
    for (const Excluded::Text& e : excluded_.texts) {
        if (text.size() >= e.start + e.bytes.size()) continue;
        // What was read past the start must agree; what was not reached yet is forced to.
        const size_t read = text.size() > e.start ? text.size() - e.start : 0;
        if (text.compare(text.size() - read, read, e.bytes, 0, read) != 0) continue;
        std::string rest = e.bytes.substr(read);
        if (text.size() < e.start) rest = now_.forced.substr(0, e.start - text.size()) + rest;
        if (const uint32_t node = v.find(rest)) v.clear_tokens(node, v.end(node), row);
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
        if (excluded_.reached(at.text)) return Fed::Refused;
        if (at.state.dead()) return at.state.failures.empty() || i + 1 < bytes.size() ? Fed::Refused : Fed::Failed;
    }
    return Fed::Yes;
}

size_t Matcher::fill(const std::vector<uint32_t>& draft, int32_t* rows) {
    const size_t words = compiled_->vocabulary->words();
    auto* out = reinterpret_cast<uint32_t*>(rows);
    if (draft.empty()) {
        fill_row(now_, out);
        return 0;
    }
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
        if ((at.state.sensitive() || !excluded_.texts.empty()) && !has_legal_token(at)) return i + 1;
    }
}

bool Matcher::has_legal_token(Position& at) const {
    if (at.stopped) return true;
    std::vector<uint32_t> row(compiled_->vocabulary->words());
    fill_row(at, row.data());
    return std::any_of(row.begin(), row.end(), [](uint32_t word) { return word != 0; });
}

bool Matcher::Known::tells_of(const std::string& longer) const {
    if (outlook.kind != Outlook::Open) return longer == text;
    return longer.starts_with(text) && longer.size() <= text.size() + outlook.rest.size() && outlook.rest.compare(0, longer.size() - text.size(), longer, text.size()) == 0;
}

// What may come of the text and the bytes forced behind it.
const Outlook& Matcher::look_ahead() {
    const std::string begin = now_.text + now_.forced;
    if (known_ && known_->tells_of(begin)) {
        known_->outlook.rest.erase(0, begin.size() - known_->text.size());
        known_->text = begin;
    } else {
        known_.reset();
        known_ = Known{begin, machine_.outlook(now_.forced.empty() ? now_.state : replay(begin), begin, excluded_)};
    }
    return known_->outlook;
}

// Whether what was read of a node that is judged as a whole is given up before it closes: where it is proved that no
// text leads on. An item of a unique array may go on for long and yet never be new (1.0, 1.00, ... after 1): it is given
// up where no text is at hand.
bool Matcher::is_lost() {
    constexpr size_t kMaxLooked = 4096;  // bytes since the node began: a look costs time in their number
    constexpr uint32_t kMaxPause = 64;
    const size_t size = now_.text.size() + now_.forced.size();
    const uint32_t outer = now_.forced.empty() ? now_.state.outer() : replay(now_.text + now_.forced).outer();
    if (now_.stopped || outer == kInfinite) return false;
    const bool must_be_new = now_.state.sensitive() && now_.state.inner() != kInfinite && now_.forced.empty();
    if (!must_be_new) {
        if (size > outer + kMaxLooked) return false;
        if (pause_.left > 0) return --pause_.left, false;
    }
    Outlook::Kind kind = Outlook::Unknown;
    try {
        kind = look_ahead().kind;
    } catch (const LimitExceeded&) {
    }
    pause_.length = kind == Outlook::Unknown ? std::min(kMaxPause, 2 * pause_.length + 1) : 0;
    pause_.left = pause_.length;
    return kind == Outlook::Dead || (must_be_new && kind == Outlook::Unknown);
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
        if (((now_.state.sensitive() || !excluded_.texts.empty()) && !has_legal_token(now_)) || is_lost()) {
            const uint32_t inner = now_.state.inner(), size = static_cast<uint32_t>(now_.text.size());
            const uint32_t floor = std::min(outer, now_.state.outer());
            if (floor == kInfinite) throw LimitExceeded("no answer is left");
            return inner < size ? go_back(inner, now_.state.node_from(inner), std::min(floor, inner)) : go_back(size - 1, kNoNode, floor);
        }
    }
    return std::nullopt;
}

size_t Matcher::legal_prefix(const std::vector<uint32_t>& prefix, const std::vector<uint32_t>& ids) const {
    size_t num_legal = 0;
    try {
        Matcher ahead(*this);
        if (ahead.advance(prefix)) return 0;
        for (uint32_t id : ids) {
            Position at = ahead.now_;  // most end at a token that is refused, which is told without an exception here
            if (ahead.feed(at, id) == Fed::Refused) break;
            const bool goes_back = ahead.advance({id}).has_value();
            ++num_legal;
            if (goes_back) break;
        }
    } catch (const Violation&) {
    } catch (const LimitExceeded&) {
    }
    return num_legal;
}

// Excludes the text from `start` on and returns to the token boundary before it; repeats while nothing is left there.
WentBack Matcher::go_back(uint32_t start, NodeId node, uint32_t floor) {
    constexpr size_t kMaxExcluded = 10'000;
    size_t kept = token_ends_.size();
    while (true) {
        if (excluded_.texts.size() > kMaxExcluded) throw LimitExceeded("too many values of a verified node failed");
        std::erase_if(excluded_.texts, [&](const Excluded::Text& e) { return e.start > start; });
        excluded_.texts.push_back({start, now_.text.substr(start)});
        while (kept > 0 && token_ends_[kept - 1] > start) --kept;
        const uint32_t boundary = kept ? token_ends_[kept - 1] : 0;
        std::string forced = now_.text.substr(boundary, start - boundary);
        const std::string whole = now_.text.substr(0, start);
        now_.text.resize(boundary);
        now_.state = replay(now_.text);
        now_.forced = std::move(forced);
        now_.stopped = false;
        token_ends_.resize(kept);
        known_.reset();
        pause_.left = 0;
        if (has_legal_token(now_) && !is_lost()) return {kept, now_.forced, node == kNoNode ? std::string() : compiled_->grammar->node(node).pointer};
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

std::optional<std::string> Matcher::known_forced() const {
    const auto key = key_of(now_);
    const auto known = key ? compiled_->forced.find(*key) : nullptr;
    if (!known) return std::nullopt;
    return known->list;
}

std::string Matcher::forced() const {
    constexpr size_t kMaxForced = 4096;
    const auto key = key_of(now_);
    if (key)
        if (const auto known = compiled_->forced.find(*key)) return known->list;
    std::string text = now_.text + now_.forced;
    State state = now_.forced.empty() ? now_.state : replay(text);
    while (!now_.stopped && !state.can_end && text.size() - now_.text.size() < kMaxForced) {
        const ByteSet next = machine_.followers(state, text);
        if (next.count() != 1) break;
        next.each([&](uint8_t byte) { text.push_back(static_cast<char>(byte)); });
        state = machine_.step(state, static_cast<uint8_t>(text.back()), text);
    }
    text.erase(0, now_.text.size());
    if (key) compiled_->forced.put(*key, std::make_shared<const Onward<std::string>>(text));
    return text;
}

// Whether the state's key tells the order in which its ways go on, too: of equally short ones the first is taken.
bool Matcher::is_in_order(const State& state) {
    constexpr int kMostFrames = 64;
    return std::all_of(state.tops.begin(), state.tops.end(), [](const Top& top) {
        const Frame* frame = top.frame.get();
        for (int depth = 0; depth < kMostFrames; ++depth, frame = frame->parents[0].get()) {
            if (frame->parents.empty()) return true;
            if (frame->parents.size() > 1) return false;
        }
        return false;
    });
}

std::optional<std::vector<uint32_t>> Matcher::known_completion() const {
    if (can_end()) return std::vector<uint32_t>();
    const auto key = is_in_order(now_.state) ? key_of(now_) : std::nullopt;
    const auto known = key ? compiled_->completions.find(*key) : nullptr;
    if (!known) return std::nullopt;
    return known->list;
}

std::vector<uint32_t> Matcher::shortest_completion() {
    if (can_end()) return {};
    if (const auto key = is_in_order(now_.state) ? key_of(now_) : std::nullopt) {
        if (const auto known = compiled_->completions.find(*key)) return known->list;
        const Outlook found = machine_.outlook(now_.state, now_.text, excluded_);
        auto ids = spelled(found, found.rest);
        compiled_->completions.put(*key, std::make_shared<const Onward<std::vector<uint32_t>>>(ids));
        return ids;
    }
    const Outlook& found = look_ahead();
    return spelled(found, now_.forced + found.rest);
}

std::vector<uint32_t> Matcher::spelled(const Outlook& found, const std::string& rest) const {
    if (found.kind == Outlook::Dead) throw LimitExceeded("no text leads on from here");
    if (found.kind == Outlook::Unknown) throw LimitExceeded("no completion was found");
    auto ids = compiled_->vocabulary->fewest_tokens(rest);
    if (ids.empty() && !rest.empty()) throw LimitExceeded("the vocabulary cannot spell the shortest completion");
    return ids;
}

}  // namespace safegen
