// Expressions: interning, simplification and the building interface. Derivatives and liveness: exprs_run.cpp.
#include "grammars/native/exprs.hpp"

#include <algorithm>
#include <stdexcept>

namespace safegen {
namespace {

constexpr uint32_t kMaxNodes = 4u << 20;
constexpr uint32_t kMaxDepth = 4000;       // of nested operators: derivatives recurse along it
constexpr uint32_t kUnknownDistance = kInfinite - 1;
constexpr size_t kBytesPerState = 2048;    // memory bound: max_states times this

void mix(uint64_t& h, uint64_t value) {
    h ^= value + 0x9E3779B97F4A7C15ull + (h << 6) + (h >> 2);
    h *= 0xBF58476D1CE4E5B9ull;
    h ^= h >> 29;
}

}  // namespace

size_t Exprs::NumberHash::operator()(const NumberState& s) const {
    uint64_t h = s.spec;
    mix(h, (static_cast<uint64_t>(s.phase) << 48) | (static_cast<uint64_t>(s.negative) << 41) |
               (static_cast<uint64_t>(s.significant) << 40) | (static_cast<uint64_t>(s.exponent_negative) << 39) |
               (static_cast<uint64_t>(s.exponent_digits) << 24) | s.digits);
    mix(h, (static_cast<uint64_t>(static_cast<uint32_t>(s.point)) << 32) | static_cast<uint32_t>(s.last));
    mix(h, (static_cast<uint64_t>(static_cast<uint32_t>(s.trailing)) << 32) | static_cast<uint32_t>(s.exponent));
    mix(h, s.remainder);
    mix(h, (static_cast<uint64_t>(static_cast<uint32_t>(s.low_cmp)) << 32) | static_cast<uint32_t>(s.high_cmp));
    return h;
}

Exprs::Exprs(const Options& options) : options_(options) {
    if (options.deadline_s > 0) {
        has_deadline_ = true;
        deadline_ = std::chrono::steady_clock::now() + std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                        std::chrono::duration<double>(options.deadline_s));
    }
    max_chunks_ = kMaxNodes / kChunk;
    chunks_ = std::make_unique<std::atomic<Meta*>[]>(max_chunks_);
    for (uint32_t i = 0; i < max_chunks_; ++i) chunks_[i].store(nullptr, std::memory_order_relaxed);
    intern({Kind::Empty, 0, 0, 0, 0, 0, {}});
    intern({Kind::Epsilon, 0, 0, 0, 0, 0, {}});
    intern({Kind::All, 0, 0, 0, 0, 0, {}});
    live_memo_[kEmpty] = Live::No;
    any_text_();  // first, so that its facts are known to all that is built from it
    distance_[kEmpty] = kInfinite;
}

Exprs::~Exprs() {
    for (uint32_t i = 0; i < max_chunks_; ++i) {
        Meta* chunk = chunks_[i].load();
        if (!chunk) continue;
        for (uint32_t k = 0; k < kChunk; ++k) delete chunk[k].expansion.load();
        delete[] chunk;
    }
}

void Exprs::rehash() {
    slots_.assign(std::max<size_t>(1024, slots_.size() * 2), kEmpty);
    const size_t mask = slots_.size() - 1;
    for (ExprId id = 1; id < nodes_.size(); ++id) {
        size_t at = hashes_[id] & mask;
        while (slots_[at] != kEmpty) at = (at + 1) & mask;
        slots_[at] = id;
    }
}

ExprId Exprs::intern(Node&& node) {
    uint64_t h = static_cast<uint64_t>(node.kind);
    mix(h, (static_cast<uint64_t>(node.a) << 32) | node.b);
    mix(h, (static_cast<uint64_t>(node.c) << 32) | node.d);
    mix(h, node.e);
    for (ExprId kid : node.kids) mix(h, kid);
    const auto hash = static_cast<uint32_t>(h ^ (h >> 32));
    if (nodes_.size() * 2 >= slots_.size()) rehash();
    size_t slot = hash & (slots_.size() - 1);
    for (; slots_[slot] != kEmpty; slot = (slot + 1) & (slots_.size() - 1))
        if (hashes_[slots_[slot]] == hash && nodes_[slots_[slot]] == node) return slots_[slot];
    const auto id = static_cast<ExprId>(nodes_.size());
    if (id >= kMaxNodes) throw LimitExceeded("the automaton grew past its limit of expressions");
    Facts facts = facts_of(node);
    facts.effort = effort_of(node, facts);
    set_freedom(node, facts);
    if (facts.depth > kMaxDepth) throw LimitExceeded("operators are nested too deeply (limit " + std::to_string(kMaxDepth) + ")");
    if (node.kind == Kind::And && facts.min_bytes > facts.max_bytes) return kEmpty;
    if (!chunks_[id / kChunk].load(std::memory_order_relaxed))
        chunks_[id / kChunk].store(new Meta[kChunk], std::memory_order_release);
    meta(id).nullable = nullable_of(node);
    const size_t cost = sizeof(Node) * 2 + 64 + node.kids.size() * 8;
    if (memory_bytes_.fetch_add(cost) + cost > static_cast<size_t>(options_.max_states) * kBytesPerState)
        throw LimitExceeded("the automaton grew past its memory limit (max_states " + std::to_string(options_.max_states) + ")");
    facts_.push_back(facts);
    live_memo_.push_back(facts.pure || meta(id).nullable ? Live::Yes : Live::Unknown);
    distance_.push_back(meta(id).nullable ? 0 : kUnknownDistance);
    step_.push_back(0);
    nodes_.push_back(std::move(node));
    num_nodes_.store(nodes_.size(), std::memory_order_relaxed);
    hashes_.push_back(hash);
    if (id != kEmpty) slots_[slot] = id;
    return id;
}

uint32_t Exprs::next_serial() {
    static std::atomic<uint32_t> last{0};
    return ++last;
}

double Exprs::fullness() const {
    const auto states = static_cast<double>(options_.max_states);
    const double memory = static_cast<double>(memory_bytes()) / (states * kBytesPerState);
    const double nodes = static_cast<double>(num_nodes_.load(std::memory_order_relaxed)) / kMaxNodes;
    return std::max({memory, nodes, static_cast<double>(num_states()) / states});
}

bool Exprs::nullable_of(const Node& n) const {
    switch (n.kind) {
        case Kind::Epsilon:
        case Kind::All: return true;
        case Kind::Concat: return meta(n.a).nullable && meta(n.b).nullable;
        case Kind::Or: return std::any_of(n.kids.begin(), n.kids.end(), [&](ExprId k) { return meta(k).nullable; });
        case Kind::And: return std::all_of(n.kids.begin(), n.kids.end(), [&](ExprId k) { return meta(k).nullable; });
        case Kind::Not: return !meta(n.a).nullable;
        case Kind::Repeat: return n.b == 0 || meta(n.a).nullable;
        case Kind::Strings: {
            const StringSet& set = *sets_[n.a];
            for (uint32_t i = n.c; i < n.d && set.values[i].size() == n.e; ++i)
                if (!n.b || filters_[n.b - 1].keeps(set.order[i])) return true;
            return false;
        }
        case Kind::Number: {
            const NumberState& state = number_states_[n.a];
            return number_accepts(number_specs_[state.spec], state);
        }
        case Kind::Pattern: return pattern_accepts(pattern_states_[n.a]);
        case Kind::Phrases: return n.b == LetterMap::kBoundary && automata_[n.c]->accepts(n.a);
        case Kind::Folded: return n.b == LetterMap::kBoundary && meta(n.a).nullable;
        default: return false;
    }
}

Exprs::Facts Exprs::facts_of(const Node& n) const {
    Facts f;
    switch (n.kind) {
        case Kind::Empty:
            f.min_bytes = kInfinite, f.max_bytes = 0, f.pure = false, f.text = true;
            break;
        case Kind::Epsilon:
            f.max_bytes = 0, f.text = true;
            break;
        case Kind::All:
            break;
        case Kind::Bytes:
            f.min_bytes = f.max_bytes = 1;
            f.text = byte_sets_[n.a].within(ByteSet::range(0, 127));
            break;
        case Kind::Concat: {
            const Facts &a = facts_[n.a], &b = facts_[n.b];
            f.min_bytes = saturating_add(a.min_bytes, b.min_bytes);
            f.max_bytes = saturating_add(a.max_bytes, b.max_bytes);
            f.depth = std::max(a.depth + 1, b.depth);
            f.pure = a.pure && b.pure;
            f.text = a.text && b.text;
            break;
        }
        case Kind::Or:
            f.min_bytes = kInfinite, f.max_bytes = 0, f.pure = false, f.text = true;
            for (ExprId k : n.kids) {
                f.min_bytes = std::min(f.min_bytes, facts_[k].min_bytes);
                f.max_bytes = std::max(f.max_bytes, facts_[k].max_bytes);
                f.depth = std::max(f.depth, facts_[k].depth + 1);
                f.pure |= facts_[k].pure;
                f.text &= facts_[k].text;
            }
            break;
        case Kind::And:
            f.pure = false;
            for (ExprId k : n.kids) {
                f.min_bytes = std::max(f.min_bytes, facts_[k].min_bytes);
                f.max_bytes = std::min(f.max_bytes, facts_[k].max_bytes);
                f.depth = std::max(f.depth, facts_[k].depth + 1);
                f.text |= facts_[k].text;
            }
            break;
        case Kind::Not:
            f.min_bytes = meta(n.a).nullable ? 1 : 0;
            f.depth = facts_[n.a].depth + 1;
            f.pure = false;
            break;
        case Kind::Repeat:
            f.min_bytes = saturating_mul(facts_[n.a].min_bytes, n.b);
            f.max_bytes = n.c == kInfinite ? kInfinite : saturating_mul(facts_[n.a].max_bytes, n.c);
            f.depth = facts_[n.a].depth + 1;
            f.pure = n.b == 0 || facts_[n.a].pure;
            f.text = facts_[n.a].text;
            break;
        case Kind::Strings: {
            const StringSet& set = *sets_[n.a];
            f.min_bytes = kInfinite, f.max_bytes = 0;
            f.text = n.e == 0;
            for (uint32_t i = n.c; i < n.d; ++i) {
                if (n.b && !filters_[n.b - 1].keeps(set.order[i])) continue;
                const auto rest = static_cast<uint32_t>(set.values[i].size() - n.e);
                f.min_bytes = std::min(f.min_bytes, rest);
                f.max_bytes = std::max(f.max_bytes, rest);
                if (f.text && !valid_utf8(set.values[i])) f.text = false;
            }
            break;
        }
        case Kind::JsonBody:
            f.min_bytes = saturating_add(facts_[n.a].min_bytes, 1);
            f.max_bytes = saturating_add(saturating_mul(facts_[n.a].max_bytes, 6), 1);
            f.depth = facts_[n.a].depth + 1;
            f.pure = facts_[n.a].pure;
            break;
        // One escape stands for one character: 1 decoded byte after \n and its like, up to 3 after \uXXXX, 4 after a pair.
        case Kind::JsonEscape:
            f.min_bytes = saturating_add(std::max(facts_[n.a].min_bytes, 1u), 1);
            f.depth = facts_[n.a].depth + 1;
            f.pure = false;
            break;
        case Kind::JsonHex:
            f.min_bytes = saturating_add(5 - n.b, facts_[n.a].min_bytes - std::min(facts_[n.a].min_bytes, 3u));
            f.depth = facts_[n.a].depth + 1;
            break;
        case Kind::JsonLow:
            f.min_bytes = saturating_add(7 - n.c, facts_[n.a].min_bytes - std::min(facts_[n.a].min_bytes, 4u));
            f.depth = facts_[n.a].depth + 1;
            break;
        case Kind::Number:
            f.min_bytes = number_rests_[n.a];
            f.text = true;
            break;
        case Kind::Pattern:
            f.min_bytes = pattern_rest(pattern_properties_[n.b], pattern_states_[n.a]);
            f.text = pattern_states_[n.a].utf8_left == 0;
            break;
        case Kind::Phrases:
            f.min_bytes = automata_[n.c]->map().bytes_left(n.b);
            if (!automata_[n.c]->accepts(n.a)) f.min_bytes = std::max(f.min_bytes, 1u);
            f.pure = false;
            f.text = n.b == LetterMap::kBoundary;
            break;
        case Kind::Folded:
            f.min_bytes = letter_maps_[n.c]->bytes_left(n.b);
            f.depth = facts_[n.a].depth + 1;
            f.pure = false;
            f.text = n.b == LetterMap::kBoundary;
            break;
    }
    return f;
}

uint32_t Exprs::effort_of(const Node& n, const Facts& facts) const {
    uint32_t sum = 0;
    switch (n.kind) {
        case Kind::Concat: return saturating_add(facts_[n.a].effort, facts_[n.b].effort);
        case Kind::Or:
            sum = kInfinite;
            for (ExprId k : n.kids) sum = std::min(sum, facts_[k].effort);
            return sum;
        case Kind::And:
            for (ExprId k : n.kids) sum = saturating_add(sum, facts_[k].effort);
            return sum;
        case Kind::Repeat: return saturating_mul(facts_[n.a].effort, n.b);
        case Kind::JsonBody: return saturating_add(facts_[n.a].effort, 1);
        case Kind::JsonEscape: return saturating_add(facts_[n.a].effort, 2);
        case Kind::JsonHex: return saturating_add(facts_[n.a].effort, 5 - n.b);
        case Kind::JsonLow: return saturating_add(facts_[n.a].effort, 7 - n.c);
        default: return facts.min_bytes;
    }
}

// How freely text may go on, see Facts.
void Exprs::set_freedom(const Node& n, Facts& f) const {
    switch (n.kind) {
        case Kind::Repeat:
            if (n.a != any_char_id_) return;
            f.free_bytes = n.c;
            f.close_bytes = n.b;
            f.absorbing = n.c == kInfinite;
            f.end_bytes = n.b == 0 ? n.c : 0;
            return;
        case Kind::Concat: {
            const Facts &a = facts_[n.a], &b = facts_[n.b];
            f.free_bytes = a.free_bytes;
            f.close_bytes = saturating_add(a.close_bytes, b.min_bytes);
            f.absorbing = b.absorbing;
            f.end_bytes = meta(n.b).nullable ? a.end_bytes : 0;
            return;
        }
        case Kind::Or:
            for (ExprId k : n.kids) {
                const Facts& kid = facts_[k];
                if (kid.free_bytes > f.free_bytes || (kid.free_bytes == f.free_bytes && kid.close_bytes < f.close_bytes)) {
                    f.free_bytes = kid.free_bytes;
                    f.close_bytes = kid.close_bytes;
                }
            }
            f.absorbing = std::all_of(n.kids.begin(), n.kids.end(), [&](ExprId k) { return facts_[k].absorbing; });
            for (ExprId k : n.kids) f.end_bytes = std::max(f.end_bytes, facts_[k].end_bytes);
            return;
        case Kind::Not:
            if (facts_[n.a].max_bytes == kInfinite) return;
            f.free_bytes = kInfinite;
            f.close_bytes = facts_[n.a].max_bytes + 1;
            f.end_bytes = facts_[n.a].min_bytes == 0 ? 0 : facts_[n.a].min_bytes - 1;
            f.absorbing = true;
            return;
        case Kind::And: {
            // Absorbing parts complete one after the other; one counted part leaves room for that.
            uint32_t room = kInfinite, least = 0, close = 0;
            uint32_t ending = kInfinite;
            bool counted = false;
            for (ExprId k : n.kids) {
                const Facts& kid = facts_[k];
                ending = std::min(ending, kid.end_bytes);
                room = std::min(room, kid.free_bytes);
                if (kid.absorbing) {
                    close = saturating_add(close, kid.close_bytes);
                } else {
                    if (counted || nodes_[k].kind != Kind::Repeat || kid.free_bytes == 0) return;
                    counted = true;
                    least = kid.close_bytes;
                }
            }
            if (close == kInfinite) return;
            f.free_bytes = !counted ? room : room > close ? room - close : 0;
            f.close_bytes = std::max(least, close);
            f.absorbing = !counted;
            f.end_bytes = ending;
            return;
        }
        default: return;
    }
}

// --- simplifying constructors ---------------------------------------------------------------------------------------

ExprId Exprs::bytes_(const ByteSet& set) {
    if (set.empty()) return kEmpty;
    for (uint32_t i = static_cast<uint32_t>(byte_sets_.size()); i-- > 0;)
        if (byte_sets_[i] == set) return intern({Kind::Bytes, i, 0, 0, 0, 0, {}});
    byte_sets_.push_back(set);
    return intern({Kind::Bytes, static_cast<uint32_t>(byte_sets_.size() - 1), 0, 0, 0, 0, {}});
}

ExprId Exprs::concat2(ExprId a, ExprId b) {
    std::vector<ExprId> heads;  // a's parts; b stays the tail, so chains nest to the right
    if (a == kEmpty || b == kEmpty) return kEmpty;
    while (nodes_[a].kind == Kind::Concat) {
        heads.push_back(nodes_[a].a);
        a = nodes_[a].b;
    }
    if (a != kEpsilon) heads.push_back(a);
    ExprId out = b;
    for (size_t i = heads.size(); i-- > 0;) out = out == kEpsilon ? heads[i] : intern({Kind::Concat, heads[i], out, 0, 0, 0, {}});
    return out;
}

ExprId Exprs::or_(std::vector<ExprId> parts) {
    std::vector<ExprId> flat;
    for (ExprId p : parts) {
        if (p == kEmpty) continue;
        if (p == kAll) return kAll;
        if (nodes_[p].kind == Kind::Or) flat.insert(flat.end(), nodes_[p].kids.begin(), nodes_[p].kids.end());
        else flat.push_back(p);
    }
    std::sort(flat.begin(), flat.end());
    flat.erase(std::unique(flat.begin(), flat.end()), flat.end());
    if (flat.empty()) return kEmpty;
    if (flat.size() == 1) return flat[0];

    // Single bytes merge; alternatives with the same head share it.
    ByteSet merged;
    std::vector<std::pair<ExprId, ExprId>> tails;  // (head, tail)
    std::vector<ExprId> bodies;                    // contents of JSON strings
    std::vector<ExprId> out;
    for (ExprId p : flat) {
        const Node& n = nodes_[p];
        if (n.kind == Kind::Bytes) merged = merged | byte_sets_[n.a];
        else if (n.kind == Kind::Concat) tails.push_back({n.a, n.b});
        else if (n.kind == Kind::JsonBody) bodies.push_back(n.a);
        else out.push_back(p);
    }
    if (!merged.empty()) out.push_back(bytes_(merged));
    if (!bodies.empty()) out.push_back(body_(or_(std::move(bodies))));
    std::sort(tails.begin(), tails.end());
    for (size_t i = 0; i < tails.size();) {
        size_t j = i + 1;
        while (j < tails.size() && tails[j].first == tails[i].first) ++j;
        if (j == i + 1) {
            out.push_back(concat2(tails[i].first, tails[i].second));
        } else {
            std::vector<ExprId> group;
            for (size_t k = i; k < j; ++k) group.push_back(tails[k].second);
            out.push_back(concat2(tails[i].first, or_(std::move(group))));
        }
        i = j;
    }
    // a | (b & ~a) is a | b.
    for (ExprId& p : out) {
        if (nodes_[p].kind != Kind::And) continue;
        std::vector<ExprId> kept;
        for (ExprId kid : nodes_[p].kids)
            if (nodes_[kid].kind != Kind::Not || std::find(out.begin(), out.end(), nodes_[kid].a) == out.end()) kept.push_back(kid);
        if (kept.size() == nodes_[p].kids.size()) continue;
        p = and_(std::move(kept));
        return or_(std::move(out));
    }
    // Any text absorbs every other text.
    if (any_text_id_ != kEmpty && std::find(out.begin(), out.end(), any_text_id_) != out.end())
        std::erase_if(out, [&](ExprId p) { return p != any_text_id_ && facts_[p].text; });
    if (std::find(out.begin(), out.end(), kEpsilon) != out.end()) {
        const bool covered = std::any_of(out.begin(), out.end(), [&](ExprId p) { return p != kEpsilon && meta(p).nullable; });
        if (covered) std::erase(out, kEpsilon);
    }
    std::sort(out.begin(), out.end());
    out.erase(std::unique(out.begin(), out.end()), out.end());
    if (out.size() == 1) return out[0];
    return intern({Kind::Or, 0, 0, 0, 0, 0, std::move(out)});
}

ExprId Exprs::and_(std::vector<ExprId> parts) {
    std::vector<ExprId> flat;
    for (ExprId p : parts) {
        if (p == kEmpty) return kEmpty;
        if (p == kAll) continue;
        if (nodes_[p].kind == Kind::And) flat.insert(flat.end(), nodes_[p].kids.begin(), nodes_[p].kids.end());
        else flat.push_back(p);
    }
    std::sort(flat.begin(), flat.end());
    flat.erase(std::unique(flat.begin(), flat.end()), flat.end());
    if (flat.empty()) return kAll;
    if (flat.size() > 1 && any_text_id_ != kEmpty) {
        const bool text = std::any_of(flat.begin(), flat.end(), [&](ExprId p) { return p != any_text_id_ && facts_[p].text; });
        if (text) std::erase(flat, any_text_id_);
    }
    if (flat.size() == 1) return flat[0];
    if (flat[0] == kEpsilon) {
        for (ExprId p : flat)
            if (!meta(p).nullable) return kEmpty;
        return kEpsilon;
    }
    ByteSet common = ByteSet::all();
    bool single = false;
    std::vector<ExprId> out;
    for (ExprId p : flat) {
        if (nodes_[p].kind == Kind::Bytes) {
            common = common & byte_sets_[nodes_[p].a];
            single = true;
        } else {
            out.push_back(p);
        }
    }
    if (single) {
        const ExprId b = bytes_(common);
        if (b == kEmpty) return kEmpty;
        out.push_back(b);
    }
    std::sort(out.begin(), out.end());
    out.erase(std::unique(out.begin(), out.end()), out.end());
    // Parts that read one string in step, at the same place of its spelling, are that string with what all ask of it.
    if (out.size() > 1 && nodes_[out[0]].kind >= Kind::JsonBody && nodes_[out[0]].kind <= Kind::JsonLow) {
        const Node& first = nodes_[out[0]];
        const bool in_step = std::all_of(out.begin() + 1, out.end(), [&](ExprId p) {
            const Node& n = nodes_[p];
            return n.kind == first.kind && n.b == first.b && n.c == first.c && n.d == first.d;
        });
        if (in_step) {
            std::vector<ExprId> contents;
            for (ExprId p : out) contents.push_back(nodes_[p].a);
            const ExprId content = and_(std::move(contents));
            switch (first.kind) {
                case Kind::JsonBody: return body_(content);
                case Kind::JsonEscape: return escape_(content);
                case Kind::JsonHex: return hex_(content, first.b, first.c);
                default: return low_(content, first.b, first.c, first.d);
            }
        }
    }
    // x and not x
    for (ExprId p : out)
        if (nodes_[p].kind == Kind::Not && std::binary_search(out.begin(), out.end(), nodes_[p].a)) return kEmpty;
    if (out.size() == 1) return out[0];
    return intern({Kind::And, 0, 0, 0, 0, 0, std::move(out)});
}

ExprId Exprs::not_(ExprId a) {
    if (a == kEmpty) return kAll;
    if (a == kAll) return kEmpty;
    if (nodes_[a].kind == Kind::Not) return nodes_[a].a;
    return intern({Kind::Not, a, 0, 0, 0, 0, {}});
}

ExprId Exprs::repeat_(ExprId a, uint32_t low, uint32_t high) {
    if (high == 0 || a == kEpsilon) return kEpsilon;
    if (a == kEmpty) return low == 0 ? kEpsilon : kEmpty;
    if (a == kAll) return kAll;
    if (meta(a).nullable) low = 0;
    if (low == 1 && high == 1) return a;
    const Node& n = nodes_[a];
    if (n.kind == Kind::Repeat && n.b == 0 && n.c == kInfinite) return a;
    if (low == 0 && high == 1 && meta(a).nullable) return a;
    return intern({Kind::Repeat, a, low, high, 0, 0, {}});
}

ExprId Exprs::strings_(uint32_t set_id, uint32_t filter, uint32_t low, uint32_t high, uint32_t depth) {
    const StringSet& set = *sets_[set_id];
    if (filter) {
        auto keeps = [&](uint32_t i) { return filters_[filter - 1].keeps(set.order[i]); };
        while (low < high && !keeps(low)) ++low;
        while (high > low && !keeps(high - 1)) --high;
    }
    if (low >= high) return kEmpty;
    if (high == low + 1 && set.values[low].size() == depth) return kEpsilon;
    return intern({Kind::Strings, set_id, high == low + 1 ? 0 : filter, low, high, depth, {}});
}

ExprId Exprs::body_(ExprId content) {
    if (content == kEmpty) return kEmpty;
    return intern({Kind::JsonBody, content, 0, 0, 0, 0, {}});
}

// Whether some text of `content` goes on with a character. Whole characters that are missing of a text that is well-formed
// are answer enough: no class of characters is tried.
bool Exprs::goes_on(ExprId content) {
    if (facts_[content].text && !meta(content).nullable) return live_(content);
    return any_char_live(content, 0, 0x10FFFF);
}

// Whether a character follows is asked when it matters: most searches never come to read an escape.
ExprId Exprs::escape_(ExprId content) {
    return intern({Kind::JsonEscape, content, 0, 0, 0, 0, {}});
}

ExprId Exprs::hex_(ExprId content, uint32_t digits, uint32_t value) {
    if (digits == 4) {
        if (value >= 0xDC00 && value < 0xE000) return kEmpty;
        if (value >= 0xD800 && value < 0xDC00) return low_(content, value, 0, 0);
        return body_(derive_utf8(content, value));
    }
    if (digits == 0) return goes_on(content) ? intern({Kind::JsonHex, content, 0, 0, 0, 0, {}}) : kEmpty;
    const uint32_t shift = 4 * (4 - digits);
    const uint32_t low = value << shift, high = ((value + 1) << shift) - 1;
    bool live = any_char_live(content, low, high);
    const uint32_t first = std::max(low, 0xD800u), last = std::min(high, 0xDBFFu);
    if (!live && first <= last)
        live = any_char_live(content, 0x10000 + ((first - 0xD800) << 10), 0x10000 + ((last - 0xD800) << 10) + 0x3FF);
    return live ? intern({Kind::JsonHex, content, digits, value, 0, 0, {}}) : kEmpty;
}

ExprId Exprs::low_(ExprId content, uint32_t high, uint32_t stage, uint32_t value) {
    const uint32_t base = 0x10000 + ((high - 0xD800) << 10);
    if (stage == 6) {
        if (value < 0xDC00 || value > 0xDFFF) return kEmpty;
        return body_(derive_utf8(content, base + (value - 0xDC00)));
    }
    const uint32_t digits = stage < 2 ? 0 : stage - 2, shift = 4 * (4 - digits);
    const uint32_t first = std::max(value << shift, 0xDC00u), last = std::min(((value + 1) << shift) - 1, 0xDFFFu);
    if (first > last || !any_char_live(content, base + first - 0xDC00, base + last - 0xDC00)) return kEmpty;
    return intern({Kind::JsonLow, content, high, stage, value, 0, {}});
}

ExprId Exprs::number_(const NumberState& state, NumberWitness witness) {
    auto [it, fresh] = number_ids_.try_emplace(state, static_cast<uint32_t>(number_states_.size()));
    if (fresh) {
        number_states_.push_back(state);
        number_rests_.push_back(number_rest(number_specs_[state.spec], state, witness).value_or(kInfinite));
        number_witnesses_.push_back(std::move(witness));
        memory_bytes_ += sizeof(NumberState) * 3;
    }
    if (number_rests_[it->second] == kInfinite) return kEmpty;
    return intern({Kind::Number, it->second, 0, 0, 0, 0, {}});
}

ExprId Exprs::pattern_(PatternState state, uint32_t properties) {
    std::string key = state.key();
    key.append(reinterpret_cast<const char*>(&properties), sizeof properties);
    auto [it, fresh] = pattern_ids_.try_emplace(std::move(key), static_cast<uint32_t>(pattern_states_.size()));
    if (fresh) {
        memory_bytes_ += sizeof(PatternState) + 2 * it->first.size();
        pattern_states_.push_back(std::move(state));
    }
    return intern({Kind::Pattern, it->second, properties, 0, 0, 0, {}});
}

// A node whose letters all lead to one state leads there at once: most characters have nothing to do with any phrase.
ExprId Exprs::phrases_(uint32_t automaton, uint32_t state, uint32_t node) {
    const PhraseAutomaton& a = *automata_[automaton];
    if (node != LetterMap::kBoundary) {
        const auto& letters = a.map().letters_below(node);
        const uint32_t to = a.step(state, letters[0]);
        const bool same = std::all_of(letters.begin() + 1, letters.end(), [&](uint32_t letter) { return a.step(state, letter) == to; });
        if (same && to == kNowhere) return kEmpty;
        if (same) state = to, node = a.map().blank(node);
    }
    return intern({Kind::Phrases, state, node, automaton, 0, 0, {}});
}

ExprId Exprs::folded_(uint32_t map, ExprId language, uint32_t node) {
    if (language == kEmpty) return kEmpty;
    return intern({Kind::Folded, language, node, map, 0, 0, {}});
}

// Listed texts are picked out one by one, so that what is left is a list again.
ExprId Exprs::within_(ExprId e, ExprId language) {
    const Node& n = nodes_[e];
    if (n.kind == Kind::Or) {
        std::vector<ExprId> parts;
        for (ExprId kid : n.kids) parts.push_back(within_(kid, language));
        return or_(std::move(parts));
    }
    if (n.kind != Kind::Strings || n.b || n.e) return and_({e, language});
    std::vector<std::string> kept;
    for (uint32_t i = n.c; i < n.d; ++i) {
        ExprId state = language;
        for (char c : sets_[n.a]->values[i]) state = state == kEmpty ? kEmpty : derive(state, static_cast<uint8_t>(c));
        if (meta(state).nullable) kept.push_back(sets_[n.a]->values[i]);
    }
    return kept.size() == n.d - n.c ? e : strings(std::move(kept));
}

ExprId Exprs::json_within_(ExprId e, ExprId language) {
    const ExprId quote = bytes_(ByteSet::of('"'));
    const Node& n = nodes_[e];
    if (n.kind == Kind::Or) {
        std::vector<ExprId> parts;
        for (ExprId kid : n.kids) parts.push_back(json_within_(kid, language));
        return or_(std::move(parts));
    }
    if (n.kind == Kind::Concat && n.a == quote && nodes_[n.b].kind == Kind::JsonBody) {
        const ExprId content = within_(nodes_[n.b].a, language);
        return live_(content) ? concat2(quote, body_(content)) : kEmpty;
    }
    if (e == kEmpty || derive(e, '"') == kEmpty) return e;
    const ExprId no_string = concat2(bytes_(ByteSet::all().without(ByteSet::of('"'))), kAll);
    return within_(e, or_({no_string, concat2(quote, body_(language))}));
}

ExprId Exprs::chars_(const std::vector<std::pair<uint32_t, uint32_t>>& ranges) {
    std::vector<ExprId> parts;
    for (const auto& [low, high] : ranges)
        for (const auto& sequence : utf8_sequences(low, high)) {
            ExprId e = kEpsilon;
            for (size_t i = sequence.size(); i-- > 0;)
                e = concat2(bytes_(ByteSet::range(sequence[i].first, sequence[i].second)), e);
            parts.push_back(e);
        }
    const ExprId e = or_(std::move(parts));
    facts_[e].text = true;
    return e;
}

ExprId Exprs::any_text_() {
    if (any_text_id_ == kEmpty) {
        any_char_id_ = chars_({{0, 0x10FFFF}});
        any_text_id_ = repeat_(any_char_id_, 0, kInfinite);
    }
    return any_text_id_;
}

uint32_t Exprs::filter_(const OrderFilter& filter) {
    uint64_t h = (static_cast<uint64_t>(filter.low) << 32) | filter.high;
    for (uint64_t word : filter.bits) mix(h, word);
    for (uint32_t id : filter_ids_[h])
        if (filters_[id] == filter) return id + 1;
    filters_.push_back(filter);
    memory_bytes_ += sizeof(OrderFilter) + filter.bits.size() * 8;
    filter_ids_[h].push_back(static_cast<uint32_t>(filters_.size() - 1));
    return static_cast<uint32_t>(filters_.size());
}

// --- public building interface --------------------------------------------------------------------------------------

using Lock = std::lock_guard<std::recursive_mutex>;

ExprId Exprs::bytes(const ByteSet& set) {
    Lock lock(mutex_);
    return bytes_(set);
}
ExprId Exprs::chars(const std::vector<std::pair<uint32_t, uint32_t>>& ranges) {
    Lock lock(mutex_);
    return chars_(ranges);
}
ExprId Exprs::literal(std::string_view text) {
    if (text.empty()) return kEpsilon;
    if (text.size() == 1) return bytes(ByteSet::of(static_cast<uint8_t>(text[0])));
    return strings({std::string(text)});
}
ExprId Exprs::concat(const std::vector<ExprId>& parts) {
    Lock lock(mutex_);
    ExprId out = kEpsilon;
    for (size_t i = parts.size(); i-- > 0;) out = concat2(parts[i], out);
    return out;
}
ExprId Exprs::alternate(const std::vector<ExprId>& parts) {
    Lock lock(mutex_);
    return or_(parts);
}
ExprId Exprs::intersect(const std::vector<ExprId>& parts) {
    Lock lock(mutex_);
    return and_(parts);
}
ExprId Exprs::complement(ExprId part) {
    Lock lock(mutex_);
    return not_(part);
}
ExprId Exprs::repeat(ExprId part, uint32_t low, uint32_t high) {
    Lock lock(mutex_);
    if (low > high) throw std::invalid_argument("repeat: low is above high");
    return repeat_(part, low, high);
}
ExprId Exprs::any_text() {
    Lock lock(mutex_);
    return any_text_();
}
ExprId Exprs::json_body(ExprId content) {
    Lock lock(mutex_);
    if (!facts_[content].text) content = and_({content, any_text_()});
    return live_(content) ? body_(content) : kEmpty;
}
ExprId Exprs::number(const NumberSpec& spec) {
    Lock lock(mutex_);
    NumberState start;
    start.spec = static_cast<uint32_t>(number_specs_.size());
    number_specs_.push_back(spec);
    return number_(start, {});
}
ExprId Exprs::ecma_pattern(PatternProperties properties) {
    Lock lock(mutex_);
    std::sort(properties.begin(), properties.end());
    pattern_properties_.push_back(std::move(properties));
    return pattern_({}, static_cast<uint32_t>(pattern_properties_.size() - 1));
}
ExprId Exprs::text_within(ExprId e, ExprId language) {
    Lock lock(mutex_);
    return within_(e, language);
}
ExprId Exprs::json_within(ExprId e, ExprId language) {
    Lock lock(mutex_);
    return json_within_(e, language);
}
ExprId Exprs::without_phrases(PhraseAutomaton automaton) {
    Lock lock(mutex_);
    has_bans_ = true;
    automata_.push_back(std::make_unique<const PhraseAutomaton>(std::move(automaton)));
    return phrases_(static_cast<uint32_t>(automata_.size() - 1), PhraseAutomaton::kStart, LetterMap::kBoundary);
}
ExprId Exprs::folded(LetterMap map, ExprId language) {
    Lock lock(mutex_);
    if (!facts_[language].text) language = and_({language, any_text_()});
    if (!live_(language)) return kEmpty;
    has_bans_ = true;
    folded_languages_.push_back(language);
    letter_maps_.push_back(std::make_unique<const LetterMap>(std::move(map)));
    return folded_(static_cast<uint32_t>(letter_maps_.size() - 1), language, LetterMap::kBoundary);
}
ExprId Exprs::strings(std::vector<std::string> values) {
    std::vector<std::pair<std::string, uint32_t>> pairs;
    pairs.reserve(values.size());
    for (auto& value : values) pairs.emplace_back(std::move(value), 0);
    std::sort(pairs.begin(), pairs.end());
    pairs.erase(std::unique(pairs.begin(), pairs.end()), pairs.end());
    if (pairs.empty()) return kEmpty;
    Lock lock(mutex_);
    const uint32_t set = string_set(std::move(pairs));
    return strings_(set, 0, 0, static_cast<uint32_t>(sets_[set]->values.size()), 0);
}
uint32_t Exprs::string_set(std::vector<std::pair<std::string, uint32_t>> values) {
    Lock lock(mutex_);
    std::sort(values.begin(), values.end());
    auto set = std::make_unique<StringSet>();
    set->keys = true;
    for (auto& [text, order] : values) {
        memory_bytes_ += text.size() + sizeof(std::string) + 4;
        set->values.push_back(std::move(text));
        set->order.push_back(order);
    }
    sets_.push_back(std::move(set));
    return static_cast<uint32_t>(sets_.size() - 1);
}
ExprId Exprs::check(ExprId e) const {
    Lock lock(mutex_);
    if (e >= nodes_.size()) throw std::out_of_range("no expression " + std::to_string(e));
    return e;
}
ExprId Exprs::keys(uint32_t set, const OrderFilter& filter) {
    Lock lock(mutex_);
    return strings_(set, filter_(filter), 0, static_cast<uint32_t>(sets_[set]->values.size()), 0);
}

}  // namespace safegen
