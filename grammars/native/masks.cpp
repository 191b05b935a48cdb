#include "grammars/native/masks.hpp"

#include <cstring>

#include "grammars/native/json_value.hpp"

namespace safegen {

// --- rows ---------------------------------------------------------------------------------------------------------

void Bits::copy_to(uint32_t* row, size_t words, const uint32_t* base) const {
    if (!words_.empty()) {
        std::memcpy(row, words_.data(), words * 4);
        return;
    }
    if (over_base_) std::memcpy(row, base, words * 4);
    else std::memset(row, 0, words * 4);
    for (const Patch& patch : patches_) row[patch.at] = patch.word;
}

void Draft::begin(size_t words, const uint32_t* base) {
    size_ = words;
    base_ = base;
    if (words_.size() < words) words_.resize(words);
    touched_.assign((words + 63) / 64, 0);
    num_touched_ = 0;
}

void Draft::touch_all() {
    if (all_touched()) return;
    for (size_t i = 0; i < touched_.size(); ++i)
        for (uint64_t rest = ~touched_[i]; rest; rest &= rest - 1) {
            const size_t at = i * 64 + static_cast<size_t>(std::countr_zero(rest));
            if (at < size_) words_[at] = start(at);
        }
    std::fill(touched_.begin(), touched_.end(), ~uint64_t{0});
    if (size_ % 64) touched_.back() = (uint64_t{1} << (size_ % 64)) - 1;
    num_touched_ = size_;
}

// A row that began as the base of the bits keeps what it has beside it, and of the base what the bits have.
void Draft::add(const Bits& bits, const uint32_t* bits_base) {
    if (!bits.words_.empty()) {
        touch_all();
        if (base_)
            for (size_t i = 0; i < size_; ++i) words_[i] = (words_[i] & ~base_[i]) | bits.words_[i];
        else
            for (size_t i = 0; i < size_; ++i) words_[i] |= bits.words_[i];
        return;
    }
    if (!bits.over_base_ || base_ == bits_base) {
        for (const Bits::Patch& patch : bits.patches_) {
            uint32_t& mine = word(patch.at);
            mine = (mine & ~start(patch.at)) | patch.word;
        }
        return;
    }
    touch_all();
    size_t at = 0;
    for (const Bits::Patch& patch : bits.patches_) {
        for (; at < patch.at; ++at) words_[at] |= bits_base[at];
        words_[at++] |= patch.word;
    }
    for (; at < size_; ++at) words_[at] |= bits_base[at];
}

void Draft::add(const uint32_t* row) {
    if (row == base_) return;  // it began so
    touch_all();
    for (size_t i = 0; i < size_; ++i) words_[i] |= row[i];
}

void Draft::add(const Draft& other) {
    if (!other.base_) return other.each_touched([&](size_t at) { word(at) |= other.words_[at]; });
    touch_all();
    for (size_t i = 0; i < size_; ++i) {
        const bool its = (other.touched_[i / 64] >> (i % 64)) & 1;
        words_[i] |= its ? other.words_[i] : other.base_[i];
    }
}

void Draft::keep(const uint32_t* mask) {
    touch_all();
    for (size_t i = 0; i < size_; ++i) words_[i] &= mask[i];
}

void Draft::copy_to(uint32_t* row) const {
    if (all_touched()) std::memcpy(row, words_.data(), size_ * 4);
    else if (base_) std::memcpy(row, base_, size_ * 4);
    else std::memset(row, 0, size_ * 4);
    if (!all_touched()) each_touched([&](size_t at) { row[at] = words_[at]; });
}

bool Draft::empty() const {
    bool any = false;
    for (size_t i = 0; i < size_ && !any; ++i) {
        const bool mine = (touched_[i / 64] >> (i % 64)) & 1;
        any = (mine ? words_[i] : start(i)) != 0;
    }
    return !any;
}

Bits Draft::bits() const {
    Bits out;
    size_t differing = num_touched_;
    if (all_touched()) {
        differing = 0;
        for (size_t i = 0; i < size_; ++i) differing += words_[i] != start(i);
    }
    if (differing * 3 > size_) {
        out.words_.resize(size_);
        copy_to(out.words_.data());
        return out;
    }
    out.over_base_ = base_ != nullptr;
    out.patches_.reserve(differing);
    each_touched([&](size_t at) {
        if (words_[at] != start(at)) out.patches_.push_back({static_cast<uint32_t>(at), words_[at]});
    });
    return out;
}

// --- walks --------------------------------------------------------------------------------------------------------

namespace {

int hex_digit(uint8_t byte) {
    if (byte >= '0' && byte <= '9') return byte - '0';
    const int letter = (byte | 0x20) - 'a';
    return letter >= 0 && letter < 6 ? letter + 10 : -1;
}

class Walk {
public:
    Walk(Exprs& exprs, const Vocabulary& vocabulary) : x_(exprs), v_(vocabulary) { row_.begin(v_.words(), nullptr); }

    // The whole trie from state e.
    void all(ExprId e) {
        each_child(v_, e, [&](uint32_t child, ExprId next) { own(v_, child, next, true); });
    }
    // Beside the free string, descending only where they part.
    void difference(ExprId e, ExprId free) {
        begin_as_free();
        children(0, e, free);
    }
    void names(ExprId e, ExprId free, const NameState& state);
    bool groups(ExprId e, const CharGroups& state);
    bool run(ExprId e, const CharRun& run);
    void phrases(ExprId e, const PhrasePlace& place, ExprId free, bool json, bool ends);
    void begin_like(const LexemeMask& mask, bool ends);
    void like(uint32_t node, ExprId e, ExprId other);
    // What the mask is wanted of, and what the known one is of.
    struct Twin {
        ExprId e;
        PhrasePlace place;
    };
    void phrases_like(uint32_t node, const Twin& own, const Twin& other, bool json);
    void settle(uint32_t child, const Twin& own, const Twin& other, bool json);
    void escapes_like(uint32_t node, const Twin& own, const Twin& other);
    void hex_like(uint32_t node, const Twin& own, const Twin& other, uint32_t digits, uint32_t value, uint32_t high);
    LexemeMask take_like(const LexemeMask& mask);
    LexemeMask take() {
        out_.bits = row_.bits();
        return std::move(out_);
    }

private:
    static Draft& draft() {
        thread_local Draft row;
        return row;
    }

    void begin_as_free() {
        base_ = out_.base = &v_.free_text();
        row_.begin(v_.words(), base_->words.data());
    }

    template <class F>
    void each_child(const Trie& trie, ExprId e, F&& visit) {  // of the root
        x_.worth_trying(e, trie.kid_bytes(0)).each([&](uint8_t b) {
            if (const ExprId next = x_.step(e, b); next != kEmpty) visit(trie.kid(0, b), next);
        });
    }

    void note_end(uint32_t node) {
        if (!ends_) return;
        if (v_.has_children(node)) out_.exits.push_back(node);
        if (v_.has_tokens(node)) out_.closers.push_back(node);
    }

    // The subtree of `node` by this state alone. A loop: tokens may be long.
    void own(const Trie& t, uint32_t node, ExprId e, bool note) {
        struct Level {
            uint32_t node;
            ExprId state;
            ByteSet left;  // bytes of the children to visit
        };
        std::vector<Level> levels;
        auto enter = [&](uint32_t at, ExprId here) {
            if (here == kEmpty) return;
            t.set_tokens(at, row_);
            if (note && x_.nullable(here)) note_end(at);
            if (here != kEpsilon && t.has_children(at)) levels.push_back({at, here, x_.worth_trying(here, t.kid_bytes(at))});
        };
        enter(node, e);
        while (!levels.empty()) {
            Level& level = levels.back();
            uint8_t byte = 0;
            if (level.left.take_first(byte)) enter(t.kid(level.node, byte), x_.step(level.state, byte));
            else levels.pop_back();
        }
    }

    void children(uint32_t node, ExprId e, ExprId free) {
        const Expansion *mine = x_.expansion(e), *theirs = x_.expansion(free);
        v_.kid_bytes(node).each([&](uint8_t byte) {
            const ExprId a = mine->next(byte), b = theirs->next(byte);
            if (a == b && a != kEpsilon) return;
            const uint32_t child = v_.kid(node, byte);
            if (a != b) part(child, a, b);
            else if (v_.has_children(child)) out_.parted.push_back(child);
        });
    }

    void part(uint32_t node, ExprId e, ExprId free) {
        if (e == kEmpty) return drop(node, v_.end(node));
        if (free == kEmpty) return own(v_, node, e, true);
        bool ending = false;
        if (x_.covers(e, free, v_.height(node), ending)) {
            if (!ending) recheck_ends(node, e);
            return;
        }
        if (free == kEpsilon) {
            if (!x_.nullable(e)) out_.skips.push_back({node, node + 1});
            else if (v_.has_children(node)) out_.parted.push_back(node);
            const Expansion* mine = x_.expansion(e);
            (v_.kid_bytes(node) & mine->first).each([&](uint8_t byte) { own(v_, v_.kid(node, byte), mine->next(byte), true); });
            return;
        }
        if (x_.nullable(e)) note_end(node);
        if (e == kEpsilon) return drop(node + 1, v_.end(node));
        children(node, e, free);
    }

    void try_tokens(ExprId e, const std::vector<uint32_t>& tries);
    bool leads_on(ExprId e, std::string_view text);
    void part_escaped(uint32_t node, ExprId e, ExprId free);

    void drop(uint32_t from, uint32_t to) {
        if (from >= to) return;
        v_.clear_tokens(from, to, row_);
        if (!out_.skips.empty() && out_.skips.back().second == from) out_.skips.back().second = to;
        else out_.skips.push_back({from, to});
    }

    // Same text, but not every closing quote: run the state along the path to each.
    void recheck_ends(uint32_t node, ExprId e) {
        auto closer = std::lower_bound(base_->closers.begin(), base_->closers.end(), node);
        auto exit = std::lower_bound(base_->exits.begin(), base_->exits.end(), node);
        const uint32_t end = v_.end(node);
        while (true) {
            const uint32_t a = closer == base_->closers.end() ? end : *closer, b = exit == base_->exits.end() ? end : *exit;
            const uint32_t at = std::min(a, b);
            if (at >= end) return;
            closer += a == at, exit += b == at;
            path_.clear();
            for (uint32_t up = at; up != node; up = v_.parent(up)) path_.push_back(v_.byte(up));
            ExprId state = e;
            for (size_t i = path_.size(); i-- > 0 && state != kEmpty;) state = x_.next(state, path_[i]);
            if (state == kEmpty) drop(at, v_.end(at));
        }
    }

    Exprs& x_;
    const Vocabulary& v_;
    const FreeText* base_ = nullptr;
    LexemeMask out_;
    void gone(uint32_t node) {
        v_.clear_tokens(node, v_.end(node), row_);
        replaced_.push_back({node, v_.end(node)});
    }
    void replace(uint32_t node, ExprId e) {
        gone(node);
        own(v_, node, e, true);
    }
    void replace_end(uint32_t node, bool ends) {
        replaced_.push_back({node, node + 1});
        if (ends) note_end(node);
    }

    Draft& row_ = draft();
    std::vector<uint8_t> path_;
    bool ends_ = true;
    std::vector<uint32_t> parted_;
    std::vector<std::pair<uint32_t, uint32_t>> replaced_;  // nodes whose ends are not those of the other mask; ascending
};

void Walk::phrases(ExprId e, const PhrasePlace& start, ExprId free, bool json, bool ends) {
    ends_ = ends;
    if (json) begin_as_free();
    struct Level {
        uint32_t node;
        PhrasePlace place;
        ByteSet left;
    };
    std::vector<Level> levels{{0, start, v_.kid_bytes(0)}};
    while (!levels.empty()) {
        Level& level = levels.back();
        uint8_t byte = 0;
        if (!level.left.take_first(byte)) {
            levels.pop_back();
            continue;
        }
        const uint32_t child = v_.kid(level.node, byte);
        if (json && byte < 0x20) continue;
        if (json && (byte == '"' || byte == '\\')) {
            const bool boundary = level.place.node == LetterMap::kBoundary;
            if (boundary && byte == '\\') part(child, x_.step(x_.at_place(e, level.place), byte), x_.step(free, byte));
            else if (boundary && !level.place.accepts()) drop(child, v_.end(child));
            continue;
        }
        const PhrasePlace next = level.place.next(byte);
        if (next.dead()) {
            if (json) drop(child, v_.end(child));
            continue;
        }
        if (!json) {
            v_.set_tokens(child, row_);
            if (next.accepts()) note_end(child);
        }
        if (v_.has_children(child)) levels.push_back({child, next, v_.kid_bytes(child)});
    }
}

void Walk::begin_like(const LexemeMask& mask, bool ends) {
    ends_ = ends;
    if (mask.base) begin_as_free();
    row_.add(mask.bits, mask.base ? base_->words.data() : nullptr);
}

// The subtree of a node that is reached with e by this lexeme, and with `other` by the one whose mask is known.
void Walk::like(uint32_t node, ExprId e, ExprId other) {
    constexpr int kFew = 4;
    if (e == other) return;
    const ByteSet kids = v_.kid_bytes(node);
    if (kids.count() > kFew) x_.expansion(e), x_.expansion(other);
    kids.each([&](uint8_t byte) {
        const ExprId a = x_.step(e, byte), b = x_.step(other, byte);
        const uint32_t child = v_.kid(node, byte);
        if (a == b) {
            if (a == kEpsilon && base_ && v_.has_children(child)) parted_.push_back(child);
            return;
        }
        if (a == kEmpty) return gone(child);
        if (b == kEmpty || a == kEpsilon || b == kEpsilon) return replace(child, a);
        if (x_.nullable(a) != x_.nullable(b)) replace_end(child, x_.nullable(a));
        bool ending = false;
        if (x_.covers(a, b, v_.height(child), ending) && ending) return;
        like(child, a, b);
    });
}

void Walk::phrases_like(uint32_t node, const Twin& own, const Twin& other, bool json) {
    v_.kid_bytes(node).each([&](uint8_t byte) {
        const uint32_t child = v_.kid(node, byte);
        if (json && byte < 0x20) return;
        if (json && byte == '"') {
            const bool ends = own.place.accepts();
            if (ends == other.place.accepts()) return;
            return ends ? replace(child, kEpsilon) : gone(child);
        }
        if (json && byte == '\\') {  // legal between characters alone
            if (own.place.node != LetterMap::kBoundary) return gone(child);
            if (other.place.node == LetterMap::kBoundary) return escapes_like(child, own, other);
            return replace(child, x_.step(x_.at_place(own.e, own.place), byte));
        }
        settle(child, {own.e, own.place.next(byte)}, {other.e, other.place.next(byte)}, json);
    });
}

// A node that is reached by a byte or an escape.
void Walk::settle(uint32_t child, const Twin& own, const Twin& other, bool json) {
    const PhrasePlace &a = own.place, &b = other.place;
    if (a == b || (a.dead() && b.dead())) return;
    if (a.dead()) return gone(child);
    if (b.dead()) return replace(child, x_.at_place(own.e, a));
    if (!json && a.accepts() != b.accepts()) replace_end(child, a.accepts());
    phrases_like(child, own, other, json);
}

// Behind a backslash. By the automaton, too: there are many places, and each would take expressions of its own for all
// that an escape can be.
void Walk::escapes_like(uint32_t node, const Twin& own, const Twin& other) {
    static constexpr std::string_view kFrom = "\"\\/bfnrt", kTo = "\"\\/\b\f\n\r\t";
    static const ByteSet kSpelling = ByteSet::range('0', '9') | ByteSet::range('A', 'F') | ByteSet::range('a', 'z') | ByteSet::of('/');
    const PhrasePlace &a = own.place, &b = other.place;
    if (a.alphabet && !kSpelling.within(*a.alphabet)) return like(node, x_.step(x_.at_place(own.e, a), '\\'), x_.step(x_.at_place(other.e, b), '\\'));
    v_.kid_bytes(node).each([&](uint8_t byte) {
        const uint32_t child = v_.kid(node, byte);
        const size_t index = kFrom.find(static_cast<char>(byte));
        if (byte == 'u') hex_like(child, own, other, 0, 0, 0);
        else if (index != std::string_view::npos)
            settle(child, {own.e, a.after(static_cast<uint8_t>(kTo[index]))}, {other.e, b.after(static_cast<uint8_t>(kTo[index]))}, true);
    });
}

// Behind \u and some digits. high: the first half of a surrogate pair that was read, or 0.
void Walk::hex_like(uint32_t node, const Twin& own, const Twin& other, uint32_t digits, uint32_t value, uint32_t high) {
    const auto pairs = [](uint32_t surrogate) { return 0x10000 + ((surrogate - 0xD800) << 10); };
    // Whether some character's spelling goes on with the digits low..last of a unit.
    const auto live = [&](const PhrasePlace& place, uint32_t low, uint32_t last) {
        const auto any = [&](uint32_t from, uint32_t to) { return from <= to && place.automaton->any_live(place.state, from, to); };
        if (high) {
            const uint32_t from = std::max(low, 0xDC00u), to = std::min(last, 0xDFFFu);
            return from <= to && any(pairs(high) + from - 0xDC00, pairs(high) + to - 0xDC00);
        }
        const uint32_t from = std::max(low, 0xD800u), to = std::min(last, 0xDBFFu);
        return any(low, last) || (from <= to && any(pairs(from), pairs(to) + 0x3FF));
    };
    v_.kid_bytes(node).each([&](uint8_t byte) {
        const int digit = hex_digit(byte);
        if (digit < 0) return;
        const uint32_t child = v_.kid(node, byte), read = value * 16 + static_cast<uint32_t>(digit), shift = 4 * (3 - digits);
        const bool a = live(own.place, read << shift, ((read + 1) << shift) - 1), b = live(other.place, read << shift, ((read + 1) << shift) - 1);
        if (!a && !b) return;
        if (!a) return gone(child);
        if (!b) {
            ExprId e = x_.at_place(own.e, own.place);
            const std::string path = v_.path(child);
            for (char c : path.substr(path.size() - (high ? 9 : 3) - digits)) e = x_.step(e, static_cast<uint8_t>(c));
            return replace(child, e);
        }
        if (digits < 3) return hex_like(child, own, other, digits + 1, read, high);
        if (high || read < 0xD800 || read > 0xDBFF) {
            const uint32_t code_point = high ? pairs(high) + read - 0xDC00 : read;
            return settle(child, {own.e, own.place.after(code_point)}, {other.e, other.place.after(code_point)}, true);
        }
        const uint32_t slash = v_.child(child, '\\'), unit = slash ? v_.child(slash, 'u') : 0;
        if (unit) hex_like(unit, own, other, 0, 0, read);
    });
}

// What was found, in place of what the other mask has at the same nodes.
LexemeMask Walk::take_like(const LexemeMask& mask) {
    LexemeMask out = take();
    const auto outside = [&](const std::vector<uint32_t>& nodes, std::vector<uint32_t>& own) {
        std::vector<uint32_t> kept;
        auto range = replaced_.begin();
        for (uint32_t node : nodes) {
            while (range != replaced_.end() && range->second <= node) ++range;
            if (range == replaced_.end() || node < range->first) kept.push_back(node);
        }
        std::vector<uint32_t> both;
        std::sort(own.begin(), own.end());
        std::set_union(kept.begin(), kept.end(), own.begin(), own.end(), std::back_inserter(both));
        own = std::move(both);
    };
    outside(mask.exits, out.exits);
    outside(mask.closers, out.closers);
    out.parted = std::move(parted_);
    outside(mask.parted, out.parted);
    if (!mask.base) return out;
    std::vector<std::pair<uint32_t, uint32_t>> skips(mask.skips);
    skips.insert(skips.end(), replaced_.begin(), replaced_.end());
    std::sort(skips.begin(), skips.end());
    out.skips.clear();
    for (const auto& [from, to] : skips) {
        if (!out.skips.empty() && from <= out.skips.back().second) out.skips.back().second = std::max(out.skips.back().second, to);
        else out.skips.push_back({from, to});
    }
    return out;
}

// Differs from the free string only where a name ends, and where escapes may spell one.
void Walk::names(ExprId e, ExprId free, const NameState& state) {
    begin_as_free();
    struct End {
        uint32_t node;
        bool legal;
        bool operator<(const End& other) const { return node < other.node; }
    };
    std::vector<End> ends;
    std::string spelled;
    for (std::string_view name : state.names) {
        spelled.assign(name).push_back('"');
        if (const uint32_t node = v_.find(spelled))
            ends.push_back({node, std::binary_search(state.listed.begin(), state.listed.end(), std::string_view(spelled))});
    }
    for (const auto& [spelled_text, node] : base_->escaped_texts) {
        path_.clear();
        for (uint32_t up = node; up != 0; up = v_.parent(up)) path_.push_back(v_.byte(up));
        ExprId mine = e, its = free;
        size_t i = path_.size();
        for (; i > 0 && mine != its && mine != kEmpty; --i) {
            mine = x_.step(mine, path_[i - 1]);
            its = x_.next(its, path_[i - 1]);
        }
        if (mine == kEmpty) ends.push_back({node, false});
        else if (i == 0) ends.push_back({node, true});
    }
    std::sort(ends.begin(), ends.end());
    for (const auto& [node, legal] : ends) {
        if (!legal) drop(node, v_.end(node));
        else if (v_.has_children(node)) out_.parted.push_back(node);
    }
    part_escaped(0, e, free);
}

// The tokens with escapes of the subtree, where the state is not the free one's.
void Walk::part_escaped(uint32_t node, ExprId e, ExprId free) {
    const Trie& t = base_->escaped;
    const Expansion* theirs = x_.expansion(free);
    const ByteSet kids = t.kid_bytes(node);
    if (kids.count() > 4) x_.expansion(e);
    kids.each([&](uint8_t byte) {
        const ExprId a = x_.step(e, byte), b = theirs->next(byte);
        if (a == b) return;
        const uint32_t child = t.kid(node, byte);
        bool ending = false;
        if (a != kEmpty && b != kEmpty && x_.covers(a, b, t.height(child), ending) && ending) return;
        if (a == kEmpty) t.clear_tokens(child, t.end(child), row_);
        else if (b == kEmpty) own(t, child, a, false);
        else if (a == kEpsilon) t.clear_tokens(child + 1, t.end(child), row_);
        else if (b != kEpsilon) part_escaped(child, a, b);
    });
}

// Of a class of characters: tokens all of whose bytes belong to it are legal, those with a byte that belongs nowhere in
// the string are not, and the few others are tried one by one.
bool Walk::run(ExprId e, const CharRun& run) {
    constexpr size_t kTries = 12'000;
    begin_as_free();
    const FreeText& free = *base_;
    const size_t words = v_.words();
    const ByteSet& inside = run.whole;
    ByteSet known = inside | run.partial;  // bytes that may occur at all
    if (run.more) known = known | run.more_bytes;
    static const ByteSet kLeads = ByteSet::range(0x80, 0xFF);
    bool tried = false;
    thread_local std::vector<uint32_t> keep, tries;
    keep.assign(words, ~0u);
    tries.assign(words, 0u);
    auto refuse = [&](const uint32_t* row) {
        for (size_t i = 0; i < words; ++i) keep[i] &= ~row[i];
    };
    auto attempt = [&](const uint32_t* row) {
        tried = true;
        for (size_t i = 0; i < words; ++i) tries[i] |= row[i];
    };
    auto refuse_all = [&](const FreeText::Holding& tokens) {
        if (!tokens.row.empty()) return refuse(tokens.row.data());
        for (uint32_t id : tokens.ids) keep[id / 32] &= ~(1u << (id % 32));
    };
    auto attempt_all = [&](const FreeText::Holding& tokens) {
        if (!tokens.row.empty()) return attempt(tokens.row.data());
        tried = true;
        for (uint32_t id : tokens.ids) tries[id / 32] |= 1u << (id % 32);
    };
    const bool narrow = (known & kLeads).empty();
    if (narrow) refuse_all(free.wide);
    free.held.each([&](uint8_t b) {
        if (inside.has(b) || (narrow && b >= 0x80)) return;
        if (known.has(b) && b != '\\') attempt_all(free.holding[b]);
        else refuse_all(free.holding[b]);
    });
    // Tokens with escapes are tried apart, unless whatever they spell is legal.
    const bool any_escape = run.any && !run.more && run.except.empty() && run.high >= free.escaped.max_depth;
    if (inside.has('\\') && !any_escape) refuse_all(free.holding['\\']);
    const bool may_be_longer = run.more && !run.apart;  // else only where a byte that is tried ends the run
    if (run.high < free.max_chars && run.high >= FreeText::kCounts) {
        for (const auto& [chars, id] : free.longest) {
            if (chars <= run.high || (tried && ((tries[id / 32] >> (id % 32)) & 1))) continue;
            tried |= may_be_longer;
            if (may_be_longer) tries[id / 32] |= 1u << (id % 32);
            else keep[id / 32] &= ~(1u << (id % 32));
        }
    } else if (run.high < free.max_chars) {
        const uint32_t* longer = free.longer.data() + run.high * words;
        if (may_be_longer) attempt(longer);
        else
            for (size_t i = 0; i < words; ++i) keep[i] &= ~(longer[i] & ~tries[i]);
    }
    size_t count = 0;
    for (size_t i = 0; i < words && tried; ++i) count += static_cast<size_t>(std::popcount(tries[i] &= keep[i] & free.words[i]));
    if (count > kTries) return false;
    for (size_t i = 0; i < words && tried; ++i) keep[i] &= ~tries[i];
    row_.keep(keep.data());
    if (count)
        try_tokens(e, tries);
    std::vector<std::pair<uint32_t, uint32_t>> dropped;
    // Ends: where the run alone decides, by their count.
    for (const FreeText::End& end : free.ends) {
        bool legal = end.bytes.within(known) && (run.more || end.chars <= run.high);
        if ((end.bytes.has('\\') && !(any_escape && run.low == 0)) || (legal && (run.more || !end.bytes.within(inside)))) {
            legal = leads_on(e, v_.path(end.node));
        } else if (legal) {
            legal = end.chars >= run.low;
        }
        if (!legal) dropped.push_back({end.node, end.node + 1});
    }
    for (std::string_view text : run.except) {
        uint32_t node = 0;
        ExprId state = e;
        for (size_t i = 0; i <= text.size(); ++i) {
            const uint8_t byte = i == text.size() ? uint8_t{'"'} : static_cast<uint8_t>(text[i]);
            if ((node = v_.child(node, byte)) == 0) break;
            if ((state = x_.step(state, byte)) != kEmpty) continue;
            dropped.push_back({node, v_.end(node)});
            break;
        }
    }
    std::sort(dropped.begin(), dropped.end());
    for (const auto& [from, to] : dropped) drop(std::max(from, out_.skips.empty() ? 0 : out_.skips.back().second), to);
    if (!any_escape) each_child(free.escaped, e, [&](uint32_t child, ExprId next) { own(free.escaped, child, next, false); });
    return true;
}

bool Walk::leads_on(ExprId e, std::string_view text) {
    for (char c : text)
        if ((e = x_.step(e, static_cast<uint8_t>(c))) == kEmpty) return false;
    return true;
}

void Walk::try_tokens(ExprId e, const std::vector<uint32_t>& tries) {
    for (size_t i = 0; i < tries.size(); ++i)
        for (uint32_t rest = tries[i]; rest; rest &= rest - 1) {
            const auto id = static_cast<uint32_t>(i * 32 + static_cast<size_t>(std::countr_zero(rest)));
            ExprId state = e;
            for (char c : v_.token(id))
                if ((state = x_.next(state, static_cast<uint8_t>(c))) == kEmpty) break;
            if (state != kEmpty) row_.set(id);
        }
}

// Rows of tokens, made of the tables by what tokens hold.
struct Rows {
    Rows(const FreeText& tables, size_t num_words) : free(tables), words(num_words, 0u) {}
    const FreeText& free;
    std::vector<uint32_t> words;
    void clear() { std::fill(words.begin(), words.end(), 0u); }
    void add(const FreeText::Holding& tokens) {
        if (!tokens.row.empty())
            for (size_t i = 0; i < words.size(); ++i) words[i] |= tokens.row[i];
        for (uint32_t id : tokens.ids) words[id / 32] |= 1u << (id % 32);
    }
    void drop(const FreeText::Holding& tokens) {
        if (!tokens.row.empty())
            for (size_t i = 0; i < words.size(); ++i) words[i] &= ~tokens.row[i];
        for (uint32_t id : tokens.ids) words[id / 32] &= ~(1u << (id % 32));
    }
    void add_longer(uint32_t chars) {  // no more than free.max_chars
        if (chars >= FreeText::kCounts) {
            for (const auto& [own, id] : free.longest)
                if (own > chars) words[id / 32] |= 1u << (id % 32);
            return;
        }
        const uint32_t* longer = free.longer.data() + chars * words.size();
        for (size_t i = 0; i < words.size(); ++i) words[i] |= longer[i];
    }
};

// Tokens that keep within the group of their first character are legal, those with a byte that occurs nowhere in the string
// are not, and the others are tried one by one.
bool Walk::groups(ExprId e, const CharGroups& state) {
    constexpr size_t kTries = 20'000;
    begin_as_free();
    const FreeText& free = *base_;
    const size_t words = v_.words();
    const bool counted = state.high < kInfinite && state.high < saturating_add(free.max_chars, state.reserve);
    if (counted && state.high <= state.reserve) return false;
    Rows legal{free, words}, tried{free, words}, mine{free, words};
    for (size_t g = 0; g <= state.groups.size(); ++g) {
        const bool mixed = g == state.groups.size();
        mine.clear();
        bool any = false;
        free.held.each([&](uint8_t b) {
            if (b == '\\' || state.of[b] != (mixed ? CharGroups::kMixed : g)) return;
            mine.add(free.starting[b]);
            any = true;
        });
        if (!any) continue;
        std::vector<uint8_t> unsure;
        free.held.each([&](uint8_t b) {
            if (b == '\\' || (!mixed && state.groups[g].own.has(b))) return;
            if (!state.alphabet.has(b)) mine.drop(free.holding_later[b]);
            else if (!mixed) unsure.push_back(b);
        });
        if (mixed) {
            for (size_t i = 0; i < words; ++i) tried.words[i] |= mine.words[i];
            continue;
        }
        std::vector<uint32_t> all = mine.words;
        for (uint8_t b : unsure) mine.drop(free.holding_later[b]);
        for (size_t i = 0; i < words; ++i) {
            tried.words[i] |= all[i] & ~mine.words[i];
            legal.words[i] |= mine.words[i];
        }
    }
    if (counted) {
        mine.clear();
        mine.add_longer(state.high - state.reserve);
        for (size_t i = 0; i < words; ++i) {
            tried.words[i] |= legal.words[i] & mine.words[i];
            legal.words[i] &= ~mine.words[i];
        }
    }
    tried.drop(free.holding['\\']);
    legal.drop(free.holding['\\']);
    size_t count = 0;
    for (size_t i = 0; i < words; ++i) count += static_cast<size_t>(std::popcount(tried.words[i] &= free.words[i]));
    if (count > kTries) return false;
    std::vector<std::pair<uint32_t, uint32_t>> dropped;
    for (const FreeText::End& end : free.ends) {
        bool is_legal = false;
        if (end.chars == 0) {
            is_legal = state.ends_now && state.low == 0;
            if (is_legal)
                for (uint32_t k = v_.token_begin(end.node); k < v_.token_begin(end.node + 1); ++k) legal.words[v_.ids[k] / 32] |= 1u << (v_.ids[k] % 32);
        } else if (const uint8_t g = state.of[end.first]; end.bytes.has('\\') || g == CharGroups::kMixed) {
            is_legal = leads_on(e, v_.path(end.node));
        } else if (g != CharGroups::kDead) {
            const CharGroups::Group& group = state.groups[g];
            if (!end.later.within(group.own)) is_legal = leads_on(e, v_.path(end.node));
            else is_legal = (end.chars == 1 ? group.ends : group.ends_later) && end.chars >= state.low && end.chars <= state.high;
        }
        if (!is_legal) dropped.push_back({end.node, end.node + 1});
    }
    row_.keep(legal.words.data());
    try_tokens(e, tried.words);
    for (const auto& [from, to] : dropped) drop(from, to);
    each_child(free.escaped, e, [&](uint32_t child, ExprId next) { own(free.escaped, child, next, false); });
    return true;
}

}  // namespace

LexemeMask walk_trie(Exprs& x, const Vocabulary& v, ExprId e) {
    Walk walk(x, v);
    walk.all(e);
    return walk.take();
}

LexemeMask walk_difference(Exprs& x, const Vocabulary& v, ExprId e, ExprId free) {
    Walk walk(x, v);
    walk.difference(e, free);
    return walk.take();
}

LexemeMask walk_phrases(Exprs& x, const Vocabulary& v, ExprId e, const PhrasePlace& place, ExprId free, bool json, bool ends) {
    Walk walk(x, v);
    walk.phrases(e, place, free, json, ends);
    return walk.take();
}

LexemeMask walk_like(Exprs& x, const Vocabulary& v, ExprId e, ExprId other, const LexemeMask& mask, bool ends) {
    Walk walk(x, v);
    walk.begin_like(mask, ends);
    walk.like(0, e, other);
    return walk.take_like(mask);
}

LexemeMask walk_phrases_like(Exprs& x, const Vocabulary& v, ExprId e, const PhrasePlace& place, ExprId other,
                             const PhrasePlace& other_place, const LexemeMask& mask, bool json, bool ends) {
    Walk walk(x, v);
    walk.begin_like(mask, ends);
    walk.phrases_like(0, {e, place}, {other, other_place}, json);
    return walk.take_like(mask);
}

LexemeMask mask_of_texts(const Vocabulary& v, const std::vector<std::string_view>& texts) {
    thread_local Draft row;
    row.begin(v.words(), nullptr);
    LexemeMask out;
    for (std::string_view text : texts) {
        uint32_t node = 0;
        size_t i = 0;
        for (; i < text.size() && (node = v.child(node, static_cast<uint8_t>(text[i]))) != 0; ++i) v.set_tokens(node, row);
        if (i < text.size() || text.empty()) continue;
        if (v.has_children(node)) out.exits.push_back(node);
        if (v.has_tokens(node)) out.closers.push_back(node);
    }
    std::sort(out.exits.begin(), out.exits.end());
    std::sort(out.closers.begin(), out.closers.end());
    out.bits = row.bits();
    return out;
}

LexemeMask mask_of_names(Exprs& x, const Vocabulary& v, ExprId e, ExprId free, const NameState& state) {
    Walk walk(x, v);
    walk.names(e, free, state);
    return walk.take();
}

std::optional<LexemeMask> mask_of_run(Exprs& x, const Vocabulary& v, ExprId e, const CharRun& run) {
    Walk walk(x, v);
    if (!walk.run(e, run)) return std::nullopt;
    return walk.take();
}

std::optional<LexemeMask> mask_of_groups(Exprs& x, const Vocabulary& v, ExprId e, const CharGroups& groups) {
    Walk walk(x, v);
    if (!walk.groups(e, groups)) return std::nullopt;
    return walk.take();
}

namespace {

// The tables by what tokens are made of.
void add_tables(const Vocabulary& v, FreeText& out) {
    const size_t words = v.words();
    for (auto* table : {&out.holding, &out.starting, &out.holding_later}) table->resize(256);
    out.longer.assign(FreeText::kCounts * words, 0u);
    auto measure = [](std::string_view text) {
        FreeText::End end{};
        for (char c : text) {
            const auto byte = static_cast<uint8_t>(c);
            if ((byte & 0xC0) == 0x80) continue;  // within a character
            end.bytes.add(byte);
            if (end.chars++ == 0) end.first = byte;
            else end.later.add(byte);
        }
        return end;
    };
    std::vector<std::pair<std::string_view, uint32_t>> escaped;
    for (uint32_t node = 1; node < v.num_nodes(); ++node) {
        for (uint32_t k = v.token_begin(node); k < v.token_begin(node + 1); ++k) {
            const uint32_t id = v.ids[k];
            if (!((out.words[id / 32] >> (id % 32)) & 1)) continue;
            const std::string& token = v.token(id);
            const bool closes = std::binary_search(out.closers.begin(), out.closers.end(), node);
            const auto all = measure(std::string_view(token).substr(0, token.size() - closes));
            all.bytes.each([&](uint8_t b) { out.holding[b].ids.push_back(id); });
            all.later.each([&](uint8_t b) { out.holding_later[b].ids.push_back(id); });
            if (all.chars > 0) out.starting[all.first].ids.push_back(id);
            if (!(all.bytes & ByteSet::range(0x80, 0xFF)).empty()) out.wide.ids.push_back(id);
            out.held = out.held | all.bytes;
            if (all.bytes.has('\\')) {
                escaped.push_back({token, id});
                continue;
            }
            for (uint32_t i = 0; i < std::min(all.chars, FreeText::kCounts); ++i) out.longer[i * words + id / 32] |= 1u << (id % 32);
            out.max_chars = std::max(out.max_chars, all.chars);
            if (all.chars >= FreeText::kCounts) out.longest.push_back({all.chars, id});
        }
    }
    out.escaped.build(escaped);
    auto pack = [&](FreeText::Holding& tokens) {
        if (tokens.ids.size() * 2 < words) return;
        tokens.row.assign(words, 0u);
        for (uint32_t id : tokens.ids) tokens.row[id / 32] |= 1u << (id % 32);
        tokens.ids = {};
    };
    for (auto* table : {&out.holding, &out.starting, &out.holding_later}) std::for_each(table->begin(), table->end(), pack);
    pack(out.wide);
    std::vector<uint32_t> nodes;
    std::set_union(out.exits.begin(), out.exits.end(), out.closers.begin(), out.closers.end(), std::back_inserter(nodes));
    for (uint32_t node : nodes) {
        const std::string path = v.path(node);
        out.ends.push_back(measure(std::string_view(path).substr(0, path.size() - 1)));
        out.ends.back().node = node;
        if (out.ends.back().bytes.has('\\')) out.escaped_texts.push_back({decode_json_string('"' + path), node});
    }
    std::sort(out.escaped_texts.begin(), out.escaped_texts.end());
}

}  // namespace

FreeText make_free_text(const Vocabulary& v) {
    Exprs x{Options{}};
    ExprId e = x.json_body(x.any_text());
    if (!ByteSet::all().within(v.single_bytes())) {
        e = x.intersect({e, x.repeat(x.bytes(v.single_bytes()), 0, kInfinite)});
        if (!x.live(e)) e = kEmpty;
    }
    FreeText out;
    out.words.assign(v.words(), 0u);
    if (e == kEmpty) {
        out.tails.build({});
        out.escaped.build({});
        return out;
    }
    Walk walk(x, v);
    walk.all(e);
    LexemeMask mask = walk.take();
    mask.bits.copy_to(out.words.data(), out.words.size(), nullptr);
    out.exits = std::move(mask.exits);
    out.closers = std::move(mask.closers);

    std::vector<std::pair<std::string, uint32_t>> tails;
    for (uint32_t exit : out.exits) {
        bool late = false;
        for (uint32_t k = v.token_begin(exit + 1); k < v.token_begin(v.end(exit)); ++k) {
            std::string tail = v.token(v.ids[k]).substr(v.depth(exit));
            late |= std::count(tail.begin(), tail.end(), '"') >= 2;
            tails.push_back({std::move(tail), v.ids[k]});
        }
        if (late) out.late.push_back(exit);
    }
    std::sort(tails.begin(), tails.end());
    std::vector<std::pair<std::string_view, uint32_t>> entries(tails.begin(), tails.end());
    out.tails.build(entries);
    add_tables(v, out);
    return out;
}

}  // namespace safegen
