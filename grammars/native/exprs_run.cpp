// Derivatives, byte classes, liveness and shortest texts of expressions.
#include <algorithm>
#include <array>
#include <queue>
#include <unordered_set>

#include "grammars/native/exprs.hpp"

namespace safegen {
namespace {

constexpr uint32_t kUnknownDistance = kInfinite - 1;
constexpr size_t kSearchLimit = 100'000, kShortestLimit = 1'000;

int hex_value(uint8_t byte) {
    if (byte >= '0' && byte <= '9') return byte - '0';
    if (byte >= 'a' && byte <= 'f') return byte - 'a' + 10;
    if (byte >= 'A' && byte <= 'F') return byte - 'A' + 10;
    return -1;
}

ByteSet of_text(std::string_view text) {
    ByteSet set;
    for (char c : text) set.add(static_cast<uint8_t>(c));
    return set;
}
const ByteSet kControls = ByteSet::range(0, 0x1F);
const ByteSet kEscapes = of_text("\"\\/bfnrtu");
const ByteSet kHexDigits = of_text("0123456789abcdefABCDEF");
const ByteSet kNumberBytes = of_text("0123456789+-.eE");

// The more readable byte of a class stands for it, so that shortest texts are readable.
int readability(uint8_t byte) {
    if (byte >= 'a' && byte <= 'z') return 0;
    if (byte >= '0' && byte <= '9') return 1;
    if (byte >= 'A' && byte <= 'Z') return 2;
    if (byte == ' ') return 3;
    if (byte > ' ' && byte < 127) return 4;
    return byte >= 128 ? 5 : 6;
}

// All bytes, the most readable first.
const std::array<uint8_t, 256> kReadable = [] {
    std::array<uint8_t, 256> out;
    for (int b = 0; b < 256; ++b) out[static_cast<size_t>(b)] = static_cast<uint8_t>(b);
    std::stable_sort(out.begin(), out.end(), [](uint8_t x, uint8_t y) { return readability(x) < readability(y); });
    return out;
}();

// The place of each byte in kReadable.
const std::array<uint8_t, 256> kRank = [] {
    std::array<uint8_t, 256> out{};
    for (size_t at = 0; at < 256; ++at) out[kReadable[at]] = static_cast<uint8_t>(at);
    return out;
}();

}  // namespace

// Operators share their parts, so that without a memory the same derivatives would be taken along every path to them.
ExprId Exprs::derive(ExprId e, uint8_t byte) {
    if (e < raws_.size() && raws_[e]) return raws_[e]->to[raws_[e]->cls[byte]];
    const Kind kind = nodes_[e].kind;
    if (kind != Kind::Concat && kind != Kind::Or && kind != Kind::And && kind != Kind::Not && kind != Kind::Repeat) return derive_anew(e, byte);
    struct Taken {
        uint64_t of;  // expression and byte
        uint32_t serial;
        ExprId to;
    };
    thread_local std::array<Taken, 1 << 13> taken{};  // of serial 0: nothing
    const uint64_t of = (static_cast<uint64_t>(e) << 8) | byte;
    Taken& known = taken[((of ^ (static_cast<uint64_t>(serial_) << 20)) * 0x9E3779B97F4A7C15ull) >> 51];
    if (known.of == of && known.serial == serial_) return known.to;
    const ExprId to = derive_anew(e, byte);
    known = {of, serial_, to};
    return to;
}

ExprId Exprs::derive_anew(ExprId e, uint8_t byte) {
    const Node& n = nodes_[e];
    switch (n.kind) {
        case Kind::Empty:
        case Kind::Epsilon: return kEmpty;
        case Kind::All: return kAll;
        case Kind::Bytes: return byte_sets_[n.a].has(byte) ? kEpsilon : kEmpty;
        case Kind::Concat: {
            std::vector<ExprId> parts;
            ExprId rest = e;
            while (true) {
                const bool chain = nodes_[rest].kind == Kind::Concat;
                const ExprId head = chain ? nodes_[rest].a : rest;
                const ExprId tail = chain ? nodes_[rest].b : kEpsilon;
                parts.push_back(concat2(derive(head, byte), tail));
                if (!chain || !meta(head).nullable) break;
                rest = tail;
            }
            return or_(std::move(parts));
        }
        case Kind::Or: {
            std::vector<ExprId> parts;
            parts.reserve(n.kids.size());
            for (ExprId kid : n.kids) parts.push_back(derive(kid, byte));
            return or_(std::move(parts));
        }
        case Kind::And: {
            std::vector<ExprId> parts;
            parts.reserve(n.kids.size());
            for (ExprId kid : n.kids) {
                parts.push_back(derive(kid, byte));
                if (parts.back() == kEmpty) return kEmpty;
            }
            return and_(std::move(parts));
        }
        case Kind::Not: return not_(derive(n.a, byte));
        case Kind::Repeat: {
            const uint32_t low = n.b == 0 ? 0 : n.b - 1, high = n.c == kInfinite ? kInfinite : n.c - 1;
            const ExprId first = derive(n.a, byte);
            return first == kEmpty ? kEmpty : concat2(first, repeat_(n.a, low, high));
        }
        case Kind::Strings: {
            const StringSet& set = *sets_[n.a];
            const auto begin = set.values.begin() + n.c, end = set.values.begin() + n.d;
            const size_t depth = n.e;
            auto at = [depth](const std::string& s) { return s.size() <= depth ? -1 : static_cast<int>(static_cast<uint8_t>(s[depth])); };
            const auto low = std::partition_point(begin, end, [&](const std::string& s) { return at(s) < byte; });
            const auto high = std::partition_point(low, end, [&](const std::string& s) { return at(s) <= byte; });
            const auto base = set.values.begin();
            return strings_(n.a, n.b, static_cast<uint32_t>(low - base), static_cast<uint32_t>(high - base), n.e + 1);
        }
        case Kind::Number: {
            const NumberState state = number_states_[n.a];
            const auto next = number_step(number_specs_[state.spec], state, byte);
            if (!next) return kEmpty;
            NumberWitness witness = number_witnesses_[n.a];
            witness.read(*next, byte);
            return number_(*next, std::move(witness));
        }
        case Kind::Pattern: {
            auto next = pattern_step(pattern_properties_[n.b], pattern_states_[n.a], byte);
            return next ? pattern_(std::move(*next), n.b) : kEmpty;
        }
        case Kind::Phrases: {
            const PhraseAutomaton& a = *automata_[n.c];
            const LetterMap::Step step = a.map().step(n.b, byte);
            if (step.dead()) return kEmpty;
            if (step.node != kNowhere) return phrases_(n.c, n.a, step.node);
            const uint32_t state = a.step(n.a, step.letter);
            return state == kNowhere ? kEmpty : phrases_(n.c, state, LetterMap::kBoundary);
        }
        case Kind::Folded: {
            const LetterMap& map = *letter_maps_[n.c];
            const LetterMap::Step step = map.step(n.b, byte);
            if (step.dead()) return kEmpty;
            if (step.node != kNowhere) return folded_(n.c, n.a, step.node);
            return folded_(n.c, derive_letter(n.a, map, step.letter), LetterMap::kBoundary);
        }
        default: return derive_json(n, byte);
    }
}

ExprId Exprs::derive_json(const Node& n, uint8_t byte) {
    switch (n.kind) {
        case Kind::JsonBody:
            if (byte == '"') return meta(n.a).nullable ? kEpsilon : kEmpty;
            if (byte == '\\') return escape_(n.a);
            if (byte < 0x20) return kEmpty;
            return body_(derive(n.a, byte));
        case Kind::JsonEscape: {
            static constexpr std::string_view kFrom = "\"\\/bfnrt", kTo = "\"\\/\b\f\n\r\t";
            if (byte == 'u') return hex_(n.a, 0, 0);
            const size_t index = kFrom.find(static_cast<char>(byte));
            return index == std::string_view::npos ? kEmpty : body_(derive(n.a, static_cast<uint8_t>(kTo[index])));
        }
        case Kind::JsonHex: {
            const int value = hex_value(byte);
            return value < 0 ? kEmpty : hex_(n.a, n.b + 1, n.c * 16 + static_cast<uint32_t>(value));
        }
        default: {  // JsonLow
            if (n.c == 0) return byte == '\\' ? low_(n.a, n.b, 1, 0) : kEmpty;
            if (n.c == 1) return byte == 'u' ? low_(n.a, n.b, 2, 0) : kEmpty;
            const int value = hex_value(byte);
            return value < 0 ? kEmpty : low_(n.a, n.b, n.c + 1, n.d * 16 + static_cast<uint32_t>(value));
        }
    }
}

ExprId Exprs::derive_utf8(ExprId e, uint32_t code_point) {
    std::string encoded;
    append_utf8(encoded, code_point);
    for (char c : encoded) {
        if (e == kEmpty) break;
        e = derive(e, static_cast<uint8_t>(c));
    }
    return e != kEmpty && live_(e) ? e : kEmpty;
}

ExprId Exprs::derive_letter(ExprId language, const LetterMap& map, uint32_t letter) {
    for (uint32_t code_point : map.text(letter)) language = language == kEmpty ? kEmpty : derive_utf8(language, code_point);
    return language;
}

// The bytes that lead a state of phrases to one and the same state, for each such state.
void Exprs::gather_phrases(const Node& n, std::vector<ByteSet>& cuts, ByteSet& singles) const {
    const PhraseAutomaton& a = *automata_[n.c];
    std::unordered_map<uint64_t, ByteSet> outcomes;
    a.map().each(n.b, [&](const ByteSet& bytes, const LetterMap::Step& step) {
        const uint64_t to = step.node == kNowhere ? a.step(n.a, step.letter) : (uint64_t{1} << 32) | step.node;
        auto [it, fresh] = outcomes.try_emplace(to, bytes);
        if (!fresh) it->second = it->second | bytes;
    });
    for (const auto& [to, bytes] : outcomes) {
        uint8_t byte = 0;
        if (bytes.count() == 1 && bytes.first(byte)) singles.add(byte);
        else cuts.push_back(bytes);
    }
}

bool Exprs::any_sequence_live(ExprId e, const std::pair<uint8_t, uint8_t>* ranges, int count) {
    if (e == kEmpty) return false;
    if (count == 0) return live_(e);
    const Raw& classes = raw(e);
    std::vector<bool> tried(classes.to.size(), false);
    for (int byte = ranges[0].first; byte <= ranges[0].second; ++byte) {
        const uint8_t cls = classes.cls[byte];
        if (tried[cls]) continue;
        tried[cls] = true;
        if (any_sequence_live(classes.to[cls], ranges + 1, count - 1)) return true;
    }
    return false;
}

bool Exprs::any_char_live(ExprId e, uint32_t low, uint32_t high) {
    if (low < 0x80 && facts_[e].free_bytes > 0 && facts_[e].close_bytes != kInfinite) return true;
    if (const Node& n = nodes_[e]; n.kind == Kind::Phrases && n.b == LetterMap::kBoundary) return automata_[n.c]->any_live(n.a, low, high);
    for (const auto& sequence : utf8_sequences(low, high))
        if (any_sequence_live(e, sequence.data(), static_cast<int>(sequence.size()))) return true;
    return false;
}

uint8_t Exprs::Raw::sample(size_t c) const {
    for (uint8_t byte : kReadable)
        if (classes[c].has(byte)) return byte;
    return 0;
}

// Byte sets that split the alphabet into classes of equal derivatives, and bytes that are classes of their own.
void Exprs::gather(ExprId e, std::vector<ByteSet>& cuts, ByteSet& singles) const {
    const Node* n = &nodes_[e];
    while (n->kind == Kind::Concat) {
        gather(n->a, cuts, singles);
        if (!meta(n->a).nullable) return;
        n = &nodes_[n->b];
    }
    switch (n->kind) {
        case Kind::Bytes: cuts.push_back(byte_sets_[n->a]); return;
        case Kind::Or:
        case Kind::And:
            for (ExprId kid : n->kids) gather(kid, cuts, singles);
            return;
        case Kind::Not:
        case Kind::Repeat: gather(n->a, cuts, singles); return;
        case Kind::Strings: {
            const StringSet& set = *sets_[n->a];
            for (uint32_t i = n->c; i < n->d;) {
                const std::string& s = set.values[i];
                if (s.size() <= n->e) {
                    ++i;
                    continue;
                }
                const auto byte = static_cast<uint8_t>(s[n->e]);
                singles.add(byte);
                const size_t depth = n->e;
                i = static_cast<uint32_t>(std::partition_point(set.values.begin() + i, set.values.begin() + n->d,
                        [&](const std::string& t) { return static_cast<uint8_t>(t[depth]) <= byte; }) - set.values.begin());
            }
            return;
        }
        case Kind::JsonBody:
            singles.add('"');
            singles.add('\\');
            cuts.push_back(kControls);
            gather(n->a, cuts, singles);
            return;
        case Kind::JsonEscape: singles = singles | kEscapes; return;
        case Kind::JsonHex: singles = singles | kHexDigits; return;
        case Kind::JsonLow: singles = singles | kHexDigits | of_text("\\u"); return;
        case Kind::Number: singles = singles | kNumberBytes; return;
        case Kind::Pattern: pattern_cuts(pattern_states_[n->a], cuts, singles); return;
        case Kind::Phrases: gather_phrases(*n, cuts, singles); return;
        case Kind::Folded:
            letter_maps_[n->c]->each(n->b, [&](const ByteSet& bytes, const LetterMap::Step&) { cuts.push_back(bytes); });
            return;
        default: return;
    }
}

const Exprs::Raw& Exprs::raw(ExprId e) {
    if (e < raws_.size() && raws_[e]) return *raws_[e];
    if (num_raws_ >= options_.max_states)
        throw LimitExceeded("the automaton grew past its limit of " + std::to_string(options_.max_states) + " states (max_states)");
    if (has_deadline_ && num_raws_ % 32 == 0 && std::chrono::steady_clock::now() > deadline_)
        throw LimitExceeded("compiling took longer than its deadline (compile_deadline_s)");
    std::vector<ByteSet> cuts;
    ByteSet singles;
    gather(e, cuts, singles);
    auto out = std::make_unique<Raw>();
    // The classes: bytes named one by one by themselves, the others parted by every cut.
    std::vector<ByteSet> classes;
    const ByteSet others = ByteSet::all().without(singles);
    if (!others.empty()) classes.push_back(others);
    for (const ByteSet& cut : cuts)
        for (size_t c = 0, n = classes.size(); c < n; ++c) {
            const ByteSet inside = classes[c] & cut;
            if (inside.empty() || inside == classes[c]) continue;
            classes[c] = classes[c].without(cut);
            classes.push_back(inside);
        }
    singles.each([&](uint8_t b) { classes.push_back(ByteSet::of(b)); });
    for (size_t c = 0; c < classes.size(); ++c) classes[c].each([&](uint8_t b) { out->cls[b] = static_cast<uint8_t>(c); });
    out->to.reserve(classes.size());
    for (size_t c = 0; c < classes.size(); ++c) {
        uint8_t byte = 0;
        classes[c].first(byte);
        out->to.push_back(derive(e, byte));
    }
    out->classes = std::move(classes);
    memory_bytes_ += sizeof(Raw) + out->to.size() * (4 + sizeof(ByteSet)) + 64;
    // derive() may have computed this very entry on the way; both are equal.
    if (e >= raws_.size()) raws_.resize(std::max<size_t>(e + 1, raws_.size() * 2));
    if (!raws_[e]) {
        raws_[e] = std::move(out);
        ++num_raws_;
    }
    return *raws_[e];
}

ExprId Exprs::lazy_step(ExprId e, uint8_t byte) {
    std::lock_guard<std::recursive_mutex> lock(mutex_);
    const ExprId next = derive(e, byte);
    return next != kEmpty && live_(next) ? next : kEmpty;
}

// Adds the bytes with which a text may begin, as far as that is seen at once.
bool Exprs::first_bytes(ExprId e, ByteSet& out) const {
    const Node* n = &nodes_[e];
    for (; n->kind == Kind::Concat; n = &nodes_[n->b]) {
        if (!first_bytes(n->a, out)) return false;
        if (!meta(n->a).nullable) return true;
    }
    switch (n->kind) {
        case Kind::Empty:
        case Kind::Epsilon: return true;
        case Kind::Bytes: out = out | byte_sets_[n->a]; return true;
        case Kind::Repeat: return first_bytes(n->a, out);
        case Kind::Or: return std::all_of(n->kids.begin(), n->kids.end(), [&](ExprId kid) { return first_bytes(kid, out); });
        default: return false;
    }
}

ByteSet Exprs::worth_trying(ExprId e, const ByteSet& bytes) {
    constexpr int kFew = 4;
    if (const Expansion* known = meta(e).expansion.load(std::memory_order_acquire)) return known->first & bytes;
    if (bytes.count() <= kFew) return bytes;
    ByteSet first;
    {
        std::lock_guard<std::recursive_mutex> lock(mutex_);
        if (!first_bytes(e, first)) first = ByteSet::all();
    }
    first = first & bytes;
    return first.count() <= kFew ? first : expansion(e)->first & bytes;
}

const Expansion* Exprs::expand(ExprId e) {
    std::lock_guard<std::recursive_mutex> lock(mutex_);
    return expand_locked(e);
}

const Expansion* Exprs::expand_locked(ExprId e) {
    if (const Expansion* known = meta(e).expansion.load(std::memory_order_acquire)) return known;
    const Raw& classes = raw(e);
    auto out = std::make_unique<Expansion>();
    out->cls = classes.cls;
    out->to.reserve(classes.to.size());
    for (size_t c = 0; c < classes.to.size(); ++c) {
        const bool alive = classes.to[c] != kEmpty && live_(classes.to[c]);
        out->to.push_back(alive ? classes.to[c] : kEmpty);
        if (alive) out->first = out->first | classes.classes[c];
    }
    memory_bytes_ += sizeof(Expansion) + out->to.size() * 4;
    const Expansion* published = out.release();
    meta(e).expansion.store(published, std::memory_order_release);
    return published;
}

bool Exprs::live_(ExprId e) {
    if (live_memo_[e] != Live::Unknown) return live_memo_[e] == Live::Yes;
    bool live = false;
    if (nodes_[e].kind == Kind::JsonBody) {
        live = live_(nodes_[e].a);  // whatever the text is, JSON spells it: the escapes need not be looked through
    } else if (nodes_[e].kind == Kind::JsonEscape) {
        live = goes_on(nodes_[e].a);
    } else if (nodes_[e].kind == Kind::JsonHex || nodes_[e].kind == Kind::JsonLow) {
        live = true;  // they are made where a character that is spelled so goes on
    } else if (const ExprId whole = spelled_otherwise(e); whole != e) {
        live = live_(whole);
    } else if (nodes_[e].kind == Kind::And) {
        const auto known = live_at_once(e);
        if (!known) return search(e, Find::Any);
        live = *known;
    } else {
        return search(e, Find::Any);
    }
    live_memo_[e] = live ? Live::Yes : Live::No;
    if (!live) distance_[e] = kInfinite;
    return live;
}

// A JSON string that is cut to an alphabet which spells every character by escapes, and goes on with those begun: the
// string itself, which has a text when and only when the cut has.
ExprId Exprs::spelled_otherwise(ExprId e) const {
    static const ByteSet kSpelling = kEscapes | kHexDigits | ByteSet::range(0x80, 0xBF);
    ExprId cut = kAll;
    const ExprId whole = uncut(e, cut);
    const bool string = nodes_[whole].kind >= Kind::JsonBody && nodes_[whole].kind <= Kind::JsonLow;
    return cut != kAll && string && kSpelling.within(byte_sets_[nodes_[nodes_[cut].a].a]) ? whole : e;
}

// What is seen of an intersection without a search: that no part has a byte which another one cannot do without, or that
// a text fits into a count of characters that stands beside it.
std::optional<bool> Exprs::live_at_once(ExprId e) {
    if (!needed_(e).within(alphabet_(e))) return false;
    uint32_t low = 0, high = kInfinite;
    const ExprId others = uncounted(e, low, high);
    if (others == e || low > 0) return std::nullopt;
    if (!live_(others)) return false;
    return brief_length(others) <= high ? std::optional(true) : std::nullopt;
}

// Bytes of a shortest text where it is soon found; else kInfinite.
uint32_t Exprs::brief_length(ExprId e) {
    if (distance_[e] == kUnknownDistance && !lengthy_.count(e) && !search(e, Find::Brief) && distance_[e] == kUnknownDistance) lengthy_.insert(e);
    return distance_[e] == kUnknownDistance ? kInfinite : distance_[e];
}

// Bytes that occur in every text, some of them.
ByteSet Exprs::needed_(ExprId e) {
    if (const auto known = needed_memo_.find(e); known != needed_memo_.end()) return known->second;
    const Node& n = nodes_[e];
    ByteSet out;
    switch (n.kind) {
        case Kind::Bytes:
            if (byte_sets_[n.a].count() == 1) out = byte_sets_[n.a];
            break;
        case Kind::Concat:
            for (ExprId rest = e;; rest = nodes_[rest].b) {
                const bool chain = nodes_[rest].kind == Kind::Concat;
                out = out | needed_(chain ? nodes_[rest].a : rest);
                if (!chain) break;
            }
            break;
        case Kind::Or:
            out = ByteSet::all();
            for (ExprId kid : n.kids) out = out & needed_(kid);
            break;
        case Kind::And:
            for (ExprId kid : n.kids) out = out | needed_(kid);
            break;
        case Kind::Repeat:
            if (n.b > 0) out = needed_(n.a);
            break;
        case Kind::Strings:
            if (n.d == n.c + 1)
                for (char c : std::string_view(sets_[n.a]->values[n.c]).substr(n.e)) out.add(static_cast<uint8_t>(c));
            break;
        default: break;
    }
    needed_memo_.emplace(e, out);
    return out;
}

void Exprs::mark_path(const std::vector<std::pair<ExprId, uint8_t>>& path, ExprId goal, bool guess) {
    const bool exact = distance_[goal] != kUnknownDistance;
    uint32_t distance = distance_[goal];
    live_memo_[goal] = Live::Yes;
    for (size_t i = path.size(); i-- > 0;) {
        const auto [id, byte] = path[i];
        live_memo_[id] = Live::Yes;
        if (!exact) continue;
        ++distance;
        if (distance_[id] == kUnknownDistance) {
            distance_[id] = distance;
            step_[id] = byte;
            if (guess) guessed_.insert(id);
        }
    }
}

// Best-first search for an accepting state. Shortest: A* by the lower bound on text length, so the distance along the
// path found is the shortest (none longer than `bound` is looked for); where that takes too many states (the digits of a multiple of a large divisor), it becomes
// Short, which is greedy and takes what it meets first. Any asks for no distance, and
// Brief gives up where Shortest becomes Short. Exhaustion proves every visited state
// dead.
bool Exprs::search(ExprId start, Find find, uint32_t bound) {
    const bool exact = find != Find::Any;
    const bool shortest = find == Find::Shortest || find == Find::Brief;
    bool cut = false;  // something was left out: exhaustion proves nothing
    struct Visit {
        uint32_t depth;
        ExprId parent;
        uint8_t byte;
        bool closed;
    };
    using Item = std::tuple<uint64_t, uint64_t, ExprId>;  // (priority, deeper first, state)
    std::unordered_map<ExprId, Visit> visits;
    std::priority_queue<Item, std::vector<Item>, std::greater<>> open;
    const auto knows = [&](ExprId e) { return distance_[e] != kUnknownDistance && !(shortest && guessed_.count(e)); };
    auto push = [&](ExprId e, uint32_t depth, ExprId parent, uint8_t byte) {
        if (e == kEmpty || live_memo_[e] == Live::No || (!exact && nodes_[e].kind == Kind::JsonBody && !live_(e))) return;
        auto [it, fresh] = visits.try_emplace(e, Visit{depth, parent, byte, false});
        if (!fresh) {
            if (it->second.closed || it->second.depth <= depth) return;
            it->second = {depth, parent, byte, false};
        }
        const uint64_t rest = exact && knows(e) ? distance_[e] : shortest ? facts_[e].min_bytes : facts_[e].effort;
        if (bound != kInfinite && depth + rest > bound) {
            cut = true;
            return;
        }
        open.push({shortest ? depth + rest : rest, kInfinite - depth, e});
    };
    push(start, 0, start, 0);
    while (!open.empty()) {
        const ExprId e = std::get<2>(open.top());
        open.pop();
        Visit& visit = visits.at(e);
        if (visit.closed) continue;
        visit.closed = true;
        const bool goal = meta(e).nullable || (exact ? knows(e) : live_memo_[e] == Live::Yes);
        if (goal) {
            std::vector<std::pair<ExprId, uint8_t>> path;
            for (ExprId at = e; at != start;) {
                const Visit& v = visits.at(at);
                path.push_back({v.parent, v.byte});
                at = v.parent;
            }
            std::reverse(path.begin(), path.end());
            if (exact) {
                mark_path(path, e, find == Find::Short);
            } else {
                live_memo_[e] = Live::Yes;
                for (const auto& step : path) live_memo_[step.first] = Live::Yes;
            }
            return true;
        }
        if (find == Find::Brief && visits.size() > kShortestLimit) return false;
        if (find == Find::Shortest && visits.size() > kShortestLimit) return bound == kInfinite && search(start, Find::Short);
        if (visits.size() > kSearchLimit) throw LimitExceeded("deciding whether a text can still be completed took too many states (a fixed limit)");
        const uint32_t depth = visit.depth + 1;
        const Raw& classes = raw(e);
        for (size_t c = 0; c < classes.to.size(); ++c) push(classes.to[c], depth, e, classes.sample(c));
    }
    if (cut) return false;
    for (const auto& [id, visit] : visits) {
        live_memo_[id] = Live::No;
        distance_[id] = kInfinite;
    }
    return false;
}

// --- public running interface ---------------------------------------------------------------------------------------

bool Exprs::live(ExprId e) {
    std::lock_guard<std::recursive_mutex> lock(mutex_);
    return live_(e);
}

uint32_t Exprs::shortest_length(ExprId e) {
    std::lock_guard<std::recursive_mutex> lock(mutex_);
    if (distance_[e] == kUnknownDistance) search(e, Find::Shortest);
    return distance_[e];
}

// The first byte of the shortest text from here, among equally short ones of the first by how readable its bytes are: it
// hangs on the language alone, not on which states were met or searched before.
uint8_t Exprs::first_step(ExprId e) {
    if (settled_.count(e) || guessed_.count(e)) return step_[e];
    const uint32_t rest = distance_[e] - 1;
    const Raw& classes = raw(e);
    std::vector<std::pair<uint8_t, size_t>> order;  // (rank, class)
    for (size_t c = 0; c < classes.to.size(); ++c)
        if (classes.to[c] != kEmpty && live_memo_[classes.to[c]] != Live::No) order.push_back({kRank[classes.sample(c)], c});
    std::sort(order.begin(), order.end());
    for (const auto& [rank, c] : order) {
        const ExprId to = classes.to[c];
        const bool exact = distance_[to] != kUnknownDistance && !guessed_.count(to);
        if (exact ? distance_[to] != rest : facts_[to].min_bytes > rest || !search(to, Find::Shortest, rest)) continue;
        step_[e] = classes.sample(c);
        break;
    }
    settled_.insert(e);
    return step_[e];
}

std::string Exprs::shortest(ExprId e) {
    std::lock_guard<std::recursive_mutex> lock(mutex_);
    std::string out;
    while (!meta(e).nullable) {
        if (distance_[e] == kUnknownDistance) search(e, Find::Shortest);
        if (distance_[e] == kInfinite) throw LimitExceeded("no text completes this state");
        const uint8_t byte = first_step(e);
        out.push_back(static_cast<char>(byte));
        e = derive(e, byte);
    }
    return out;
}

bool Exprs::matches(ExprId e, std::string_view text) {
    for (char c : text) {
        e = next(e, static_cast<uint8_t>(c));
        if (e == kEmpty) return false;
    }
    return nullable(e);
}

bool Exprs::never_used_up(ExprId start, size_t max_states) {
    std::lock_guard<std::recursive_mutex> lock(mutex_);
    if (!live_(start)) return false;
    std::vector<ExprId> order{start};
    std::unordered_set<ExprId> seen{start};
    for (size_t at = 0; at < order.size(); ++at) {
        if (order.size() > max_states) return false;
        const Expansion* x = expand_locked(order[at]);
        if (x->first.empty()) return false;
        x->first.each([&](uint8_t byte) {
            if (seen.insert(x->next(byte)).second) order.push_back(x->next(byte));
        });
    }
    return true;
}

uint32_t Exprs::count_up_to(ExprId start, uint32_t limit) {
    std::lock_guard<std::recursive_mutex> lock(mutex_);
    if (!live_(start)) return 0;
    uint32_t count = 0;
    std::vector<ExprId> level{start};
    while (!level.empty() && count < limit) {
        std::vector<ExprId> deeper;
        for (ExprId e : level) {
            if (meta(e).nullable && ++count >= limit) return limit;
            const Expansion* x = expand_locked(e);
            x->first.each([&](uint8_t b) {
                if (deeper.size() + count < limit) deeper.push_back(x->next(b));
            });
        }
        if (deeper.size() + count >= limit) return limit;  // each live state leads to a text of its own
        level = std::move(deeper);
    }
    return count;
}

std::optional<std::vector<std::string>> Exprs::texts(ExprId start, uint32_t limit) {
    std::lock_guard<std::recursive_mutex> lock(mutex_);
    if (count_up_to(start, limit + 1) > limit) return std::nullopt;
    std::vector<std::string> out;
    std::string text;
    struct Open {
        ExprId expr;
        size_t length;  // of the text that leads here
        uint8_t byte;   // its last
    };
    std::vector<Open> open;
    if (live_(start)) open.push_back({start, 0, 0});
    while (!open.empty()) {
        const Open at = open.back();
        open.pop_back();
        text.resize(at.length);
        if (at.length) text.back() = static_cast<char>(at.byte);
        if (meta(at.expr).nullable) out.push_back(text);
        const Expansion* x = expand_locked(at.expr);
        x->first.each([&](uint8_t byte) { open.push_back({x->next(byte), at.length + 1, byte}); });
    }
    return out;
}

// Of text in which certain phrases may not stand, and which is counted or no listed one: where that leaves room for some
// more characters, those that stand in no phrase complete it.
bool Exprs::covers_phrases(ExprId inner, ExprId phrases, uint32_t bytes, bool& ending) const {
    constexpr uint32_t kRoom = 4;
    const Node &n = nodes_[inner], &p = nodes_[phrases];
    if (n.kind != Kind::And) return false;
    const std::vector<ExprId> alone{phrases};
    const std::vector<ExprId>& theirs = p.kind == Kind::And ? p.kids : alone;
    if (!std::includes(n.kids.begin(), n.kids.end(), theirs.begin(), theirs.end())) return false;
    static const ByteSet kContinuation = ByteSet::range(0x80, 0xBF);
    const uint32_t node = nodes_[theirs[0]].b;
    uint32_t left = automata_[nodes_[theirs[0]].c]->map().bytes_left(node);
    ending = true;
    for (ExprId kid : n.kids) {
        if (std::binary_search(theirs.begin(), theirs.end(), kid)) continue;
        for (uint32_t i = 0; i < left; ++i) {  // the rest of a character
            const Node& rest = nodes_[kid];
            if (rest.kind != Kind::Concat || nodes_[rest.a].kind != Kind::Bytes) return false;
            ByteSet known;
            if (i == 0) automata_[nodes_[theirs[0]].c]->map().each(node, [&](const ByteSet& b, const LetterMap::Step&) { known = known | b; });
            else known = kContinuation;
            if (!(byte_sets_[nodes_[rest.a].a] == known)) return false;
            kid = rest.b;
        }
        const Node& ask = nodes_[kid];
        const bool counted = ask.kind == Kind::Repeat && ask.a == any_char_id_;
        const bool unlisted = ask.kind == Kind::Not && facts_[ask.a].max_bytes != kInfinite;
        if ((!counted && !unlisted) || facts_[kid].free_bytes < saturating_add(bytes, kRoom)) return false;
        ending = ending && facts_[kid].end_bytes >= bytes;
    }
    return true;
}

// An intersection with a repetition of bytes, as Grammar::lexeme makes it, by its two parts.
ExprId Exprs::uncut(ExprId e, ExprId& cut) const {
    cut = kAll;
    const Node& n = nodes_[e];
    if (n.kind != Kind::And || n.kids.size() != 2) return e;
    for (size_t i = 0; i < 2; ++i) {
        const Node& part = nodes_[n.kids[i]];
        if (part.kind != Kind::Repeat || part.b != 0 || part.c != kInfinite || nodes_[part.a].kind != Kind::Bytes) continue;
        cut = n.kids[i];
        return n.kids[1 - i];
    }
    return e;
}

std::optional<PhrasePlace> Exprs::phrase_place(ExprId e, bool& json) const {
    std::lock_guard<std::recursive_mutex> lock(mutex_);
    ExprId cut = kAll;
    const ExprId whole = uncut(e, cut);
    json = nodes_[whole].kind == Kind::JsonBody;
    const Node& n = json ? nodes_[nodes_[whole].a] : nodes_[whole];
    if (n.kind != Kind::Phrases) return std::nullopt;
    const ByteSet* alphabet = cut == kAll ? nullptr : &byte_sets_[nodes_[nodes_[cut].a].a];
    // With these a character that was begun can end, and what waits for a character of a word can go on.
    static const ByteSet kNeeded = ByteSet::range(0x80, 0xBF) | ByteSet::range('a', 'z');
    if (alphabet && !kNeeded.within(*alphabet)) return std::nullopt;
    return PhrasePlace{automata_[n.c].get(), n.a, n.b, alphabet};
}

ExprId Exprs::at_place(ExprId like, const PhrasePlace& place) {
    std::lock_guard<std::recursive_mutex> lock(mutex_);
    if (place.dead()) return kEmpty;
    ExprId cut = kAll;
    const ExprId whole = uncut(like, cut);
    const bool json = nodes_[whole].kind == Kind::JsonBody;
    const uint32_t automaton = json ? nodes_[nodes_[whole].a].c : nodes_[whole].c;
    const ExprId e = phrases_(automaton, place.state, place.node);
    return and_({json ? body_(e) : e, cut});
}

ExprId Exprs::with_phrases_at_start(ExprId e) {
    std::lock_guard<std::recursive_mutex> lock(mutex_);
    const ExprId start = at_start_(e);
    return live_(start) ? start : e;
}

ExprId Exprs::at_start_(ExprId e) {
    const Node& n = nodes_[e];
    switch (n.kind) {
        case Kind::Phrases: return n.b == LetterMap::kBoundary ? phrases_(n.c, PhraseAutomaton::kStart, n.b) : e;
        case Kind::Folded: return n.b == LetterMap::kBoundary ? folded_(n.c, folded_languages_[n.c], n.b) : e;
        case Kind::JsonBody: return body_(at_start_(n.a));
        case Kind::JsonEscape: return escape_(at_start_(n.a));
        case Kind::JsonHex: return hex_(at_start_(n.a), n.b, n.c);
        case Kind::Concat: return concat2(at_start_(n.a), n.b);
        case Kind::And:
        case Kind::Or: {
            std::vector<ExprId> parts;
            for (ExprId kid : n.kids) parts.push_back(at_start_(kid));
            return n.kind == Kind::And ? and_(std::move(parts)) : or_(std::move(parts));
        }
        default: return e;
    }
}

std::optional<ExprId> Exprs::body_without_phrases(ExprId e) {
    std::lock_guard<std::recursive_mutex> lock(mutex_);
    ExprId cut = kAll;
    const Node* n = &nodes_[uncut(e, cut)];
    if (n->kind == Kind::Or && n->kids.size() == 2) {  // names beside other keys
        const bool first = nodes_[n->kids[0]].kind == Kind::JsonBody;
        n = &nodes_[n->kids[first ? 0 : 1]];
    }
    if (n->kind != Kind::JsonBody || nodes_[n->a].kind != Kind::And) return std::nullopt;
    std::vector<ExprId> phrases;
    for (ExprId kid : nodes_[n->a].kids)
        if (nodes_[kid].kind == Kind::Phrases) phrases.push_back(kid);
    if (phrases.empty()) return std::nullopt;
    const ExprId body = and_({body_(and_(std::move(phrases))), cut});
    return body == e ? std::nullopt : std::optional(body);
}

// Characters that stand in no phrase go on without end, from wherever a phrase has begun.
bool Exprs::is_only_phrases(ExprId e) const {
    std::lock_guard<std::recursive_mutex> lock(mutex_);
    const Node& n = nodes_[e];
    if (n.kind != Kind::And) return n.kind == Kind::Phrases;
    return std::all_of(n.kids.begin(), n.kids.end(), [&](ExprId kid) { return nodes_[kid].kind == Kind::Phrases; });
}

bool Exprs::is_free_string(ExprId e) const {
    std::lock_guard<std::recursive_mutex> lock(mutex_);
    const Node* n = &nodes_[e];
    if (n->kind == Kind::And) {  // cut to an alphabet
        for (ExprId kid : n->kids)
            if (nodes_[kid].kind == Kind::Concat) n = &nodes_[kid];
    }
    if (n->kind != Kind::Concat || nodes_[n->b].kind != Kind::JsonBody) return false;
    return nodes_[n->b].a == any_text_id_;
}

bool Exprs::covers(ExprId e, ExprId reference, uint32_t bytes, bool& ending) const {
    std::lock_guard<std::recursive_mutex> lock(mutex_);
    const Node *a = &nodes_[e], *b = &nodes_[reference];
    if (a->kind == Kind::And && b->kind == Kind::And && a->kids.size() == 2 && b->kids.size() == 2) {
        // Both cut to the same alphabet: compare what is left.
        for (int i = 0; i < 2; ++i)
            for (int k = 0; k < 2; ++k)
                if (a->kids[static_cast<size_t>(i)] == b->kids[static_cast<size_t>(k)]) {
                    a = &nodes_[a->kids[static_cast<size_t>(1 - i)]];
                    b = &nodes_[b->kids[static_cast<size_t>(1 - k)]];
                    i = k = 2;
                }
    }
    if (a->kind == Kind::Or && a->kids.size() == 2 && b->kind == Kind::JsonBody) {
        // Names beside other keys: none of them ends within so few bytes.
        const Node *x = &nodes_[a->kids[0]], *y = &nodes_[a->kids[1]];
        const bool first = x->kind == Kind::Strings;
        const Node* names = first ? x : y;
        if (names->kind != Kind::Strings || !sets_[names->a]->keys || facts_[a->kids[first ? 0 : 1]].min_bytes <= bytes) return false;
        a = first ? y : x;
    }
    if (a->kind != b->kind || a->kind < Kind::JsonBody || a->kind > Kind::JsonLow) return false;
    if (a->b != b->b || a->c != b->c || a->d != b->d) return false;
    ExprId inner = a->a, free = b->a;
    if (is_only_phrases(free)) return covers_phrases(inner, free, std::max(bytes, 1u), ending);
    while (free != any_text_id_) {  // the rest of a character
        const Node &x = nodes_[inner], &y = nodes_[free];
        if (x.kind != Kind::Concat || y.kind != Kind::Concat || x.a != y.a) return false;
        inner = x.b, free = y.b;
    }
    bytes = std::max(bytes, 1u);
    ending = facts_[inner].end_bytes >= bytes;
    return facts_[inner].free_bytes >= bytes;
}

bool Exprs::left_of(const Node& n, size_t max_texts, std::vector<std::string_view>& out) const {
    if (n.kind != Kind::Strings || n.d - n.c > max_texts) return false;
    const StringSet& set = *sets_[n.a];
    for (uint32_t i = n.c; i < n.d; ++i)
        if (!n.b || filters_[n.b - 1].keeps(set.order[i])) out.push_back(std::string_view(set.values[i]).substr(n.e));
    return true;
}

std::optional<std::vector<std::string_view>> Exprs::finite(ExprId e, size_t max_texts) {
    std::lock_guard<std::recursive_mutex> lock(mutex_);
    std::vector<std::string_view> out;
    if (!left_of(nodes_[e], max_texts, out)) return std::nullopt;
    return out;
}

std::optional<NameState> Exprs::name_state(ExprId e, size_t max_names) {
    std::lock_guard<std::recursive_mutex> lock(mutex_);
    NameState out;
    const Node* n = &nodes_[e];
    if (n->kind == Kind::Or && n->kids.size() == 2) {
        const Node &a = nodes_[n->kids[0]], &b = nodes_[n->kids[1]];
        const Node& names = a.kind == Kind::Strings ? a : b;
        if (!left_of(names, max_names, out.listed) || !sets_[names.a]->keys) return std::nullopt;
        n = &names == &a ? &b : &a;
    }
    if (n->kind != Kind::JsonBody || nodes_[n->a].kind != Kind::And || nodes_[n->a].kids.size() != 2) return std::nullopt;
    const Node& both = nodes_[n->a];
    const ExprId refused = both.kids[both.kids[0] == any_text_id_ ? 1 : 0];
    if ((both.kids[0] != any_text_id_ && both.kids[1] != any_text_id_) || nodes_[refused].kind != Kind::Not) return std::nullopt;
    if (!left_of(nodes_[nodes_[refused].a], max_names, out.names)) return std::nullopt;
    // All listed names are among the names, and all are spelled as they are.
    size_t found = 0;
    std::string spelled;
    for (std::string_view name : out.names) {
        for (char c : name)
            if (static_cast<uint8_t>(c) < 0x20 || c == '"' || c == '\\') return std::nullopt;
        spelled.assign(name).push_back('"');
        found += std::binary_search(out.listed.begin(), out.listed.end(), std::string_view(spelled));
    }
    if (found != out.listed.size()) return std::nullopt;
    return out;
}

// Whether every text of `unit` is one character.
bool Exprs::char_class(ExprId unit, CharRun& run) {
    if (meta(unit).nullable) return false;
    const Raw &mine = raw(unit), &any = raw(any_char_id_);
    run.any = unit == any_char_id_;
    for (int b = 0; b < 0x100; ++b) {
        const ExprId next = mine.to[mine.cls[b]], all = any.to[any.cls[b]];
        if (next == kEmpty) continue;
        if (all == kEmpty) return false;
        const auto rest = static_cast<uint32_t>(b < 0x80 ? 0 : b < 0xE0 ? 1 : b < 0xF0 ? 2 : 3);
        if (next == all) run.whole.add(static_cast<uint8_t>(b));
        else if (facts_[next].text || facts_[next].min_bytes != rest || facts_[next].max_bytes != rest) return false;
        else run.partial.add(static_cast<uint8_t>(b));
    }
    return true;
}

std::optional<CharRun> Exprs::char_run(ExprId e) {
    std::lock_guard<std::recursive_mutex> lock(mutex_);
    if (nodes_[e].kind != Kind::JsonBody) return std::nullopt;
    constexpr size_t kMaxExcept = 64;
    ExprId head = nodes_[e].a, rest = kEpsilon;
    CharRun run;
    if (const Node& both = nodes_[head]; both.kind == Kind::And && both.kids.size() == 2) {
        const size_t refused = nodes_[both.kids[0]].kind == Kind::Not ? 0 : 1;
        const Node& n = nodes_[both.kids[refused]];
        if (n.kind != Kind::Not || !left_of(nodes_[n.a], kMaxExcept, run.except)) return std::nullopt;
        head = both.kids[1 - refused];
    }
    if (nodes_[head].kind == Kind::Concat) {
        rest = nodes_[head].b;
        head = nodes_[head].a;
    }
    ExprId unit = head;
    if (nodes_[head].kind == Kind::Repeat) {
        unit = nodes_[head].a;
        run.low = nodes_[head].b;
        run.high = nodes_[head].c;
    } else {
        run.low = run.high = 1;
    }
    if (!char_class(unit, run)) return std::nullopt;
    run.more = rest != kEpsilon;
    if (run.more) {
        run.more_bytes = alphabet_(rest);
        const Raw& after = raw(rest);
        for (size_t c = 0; c < after.to.size(); ++c)
            if (after.to[c] != kEmpty) run.apart &= (after.classes[c] & (run.whole | run.partial)).empty();
    }
    return run;
}

ByteSet Exprs::alphabet(ExprId e) {
    std::lock_guard<std::recursive_mutex> lock(mutex_);
    return alphabet_(e);
}

ByteSet Exprs::alphabet_(ExprId e) {
    const auto known = alphabets_.find(e);
    if (known != alphabets_.end()) return known->second;
    const Node& n = nodes_[e];
    ByteSet out;
    switch (n.kind) {
        case Kind::Empty:
        case Kind::Epsilon: break;
        case Kind::All:
        case Kind::Not: out = ByteSet::all(); break;
        case Kind::Bytes: out = byte_sets_[n.a]; break;
        case Kind::Concat:
            for (ExprId rest = e;; rest = nodes_[rest].b) {
                const bool chain = nodes_[rest].kind == Kind::Concat;
                out = out | alphabet_(chain ? nodes_[rest].a : rest);
                if (!chain) break;
            }
            break;
        case Kind::Or:
            for (ExprId kid : n.kids) out = out | alphabet_(kid);
            break;
        case Kind::And:
            out = ByteSet::all();
            for (ExprId kid : n.kids) out = out & alphabet_(kid);
            break;
        case Kind::Repeat: out = alphabet_(n.a); break;
        case Kind::Strings:
            for (uint32_t i = n.c; i < n.d; ++i)
                for (char c : sets_[n.a]->values[i]) out.add(static_cast<uint8_t>(c));
            break;
        case Kind::Number: out = kNumberBytes; break;
        case Kind::Pattern: out = ByteSet::all(); break;
        case Kind::Phrases:
        case Kind::Folded: out = alphabet_(any_text_id_); break;
        default:
            out = (alphabet_(n.a) & ByteSet::range(0x20, 255)) | kEscapes | kHexDigits;
            break;
    }
    alphabets_.emplace(e, out);
    return out;
}

}  // namespace safegen
