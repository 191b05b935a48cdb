#include "grammars/native/masks.hpp"

#include <algorithm>

namespace safegen {
namespace {

void set_tokens(const Vocabulary& v, uint32_t node, uint32_t* row) {
    for (uint32_t k = v.token_begin[node]; k < v.token_begin[node + 1]; ++k) row[v.ids[k] / 32] |= 1u << (v.ids[k] % 32);
}

void clear_tokens(const Vocabulary& v, uint32_t from, uint32_t to, uint32_t* row) {
    for (uint32_t k = v.token_begin[from]; k < v.token_begin[to]; ++k) row[v.ids[k] / 32] &= ~(1u << (v.ids[k] % 32));
}

void note_end(const Vocabulary& v, uint32_t node, LexemeMask& mask) {
    if (v.end[node] > node + 1) mask.exits.push_back(node);
    if (v.token_begin[node] != v.token_begin[node + 1]) mask.closers.push_back(node);
}

// Walks a state through the trie beside the free string, descending only where they part.
class Difference {
public:
    Difference(Exprs& exprs, const Vocabulary& vocabulary, const LexemeMask& base, LexemeMask& out)
        : x_(exprs), v_(vocabulary), base_(base), out_(out) {}

    void children(uint32_t node, ExprId e, ExprId free) {
        const Expansion* mine = x_.expansion(e);
        const Expansion* theirs = x_.expansion(free);
        for (uint32_t child = node + 1; child < v_.end[node]; child = v_.end[child]) {
            const uint8_t byte = v_.byte[child];
            visit(child, mine->next[byte], theirs->next[byte]);
        }
    }

private:
    void visit(uint32_t node, ExprId e, ExprId free) {
        if (e == free) return copy_ends(node);
        uint32_t* row = out_.words.data();
        if (e == kEmpty) return clear_tokens(v_, node, v_.end[node], row);
        if (free == kEmpty) return own(node, e);
        bool ending = false;
        if (x_.covers(e, free, v_.height[node], ending)) return ending ? copy_ends(node) : recheck_ends(node, e);
        set_tokens(v_, node, row);
        if (x_.nullable(e)) note_end(v_, node, out_);
        if (e == kEpsilon) return clear_tokens(v_, node + 1, v_.end[node], row);
        if (free == kEpsilon) {
            for (uint32_t child = node + 1; child < v_.end[node]; child = v_.end[child]) visit(child, x_.next(e, v_.byte[child]), kEmpty);
            return;
        }
        children(node, e, free);
    }

    // The free string has ended or never came here: this state's own walk.
    void own(uint32_t node, ExprId e) {
        set_tokens(v_, node, out_.words.data());
        if (x_.nullable(e)) note_end(v_, node, out_);
        if (e == kEpsilon) return clear_tokens(v_, node + 1, v_.end[node], out_.words.data());
        for (uint32_t child = node + 1; child < v_.end[node]; child = v_.end[child]) visit(child, x_.next(e, v_.byte[child]), kEmpty);
    }

    static void copy_range(const std::vector<uint32_t>& from, uint32_t low, uint32_t high, std::vector<uint32_t>& to) {
        const auto first = std::lower_bound(from.begin(), from.end(), low);
        to.insert(to.end(), first, std::lower_bound(first, from.end(), high));
    }
    void copy_ends(uint32_t node) {
        copy_range(base_.exits, node, v_.end[node], out_.exits);
        copy_range(base_.closers, node, v_.end[node], out_.closers);
    }

    // Same text, but not every closing quote: run the state along the path to each.
    void recheck_ends(uint32_t node, ExprId e) {
        recheck(base_.exits, node, e, out_.exits);
        recheck(base_.closers, node, e, out_.closers);
    }
    void recheck(const std::vector<uint32_t>& ends, uint32_t node, ExprId e, std::vector<uint32_t>& kept) {
        auto it = std::lower_bound(ends.begin(), ends.end(), node);
        for (; it != ends.end() && *it < v_.end[node]; ++it) {
            path_.clear();
            for (uint32_t at = *it; at != node; at = v_.parent[at]) path_.push_back(v_.byte[at]);
            ExprId state = e;
            for (size_t i = path_.size(); i-- > 0 && state != kEmpty;) state = x_.next(state, path_[i]);
            if (state != kEmpty) kept.push_back(*it);
            else clear_tokens(v_, *it, v_.end[*it], out_.words.data());
        }
    }

    Exprs& x_;
    const Vocabulary& v_;
    const LexemeMask& base_;
    LexemeMask& out_;
    std::vector<uint8_t> path_;
};

}  // namespace

LexemeMask walk_trie(Exprs& x, const Vocabulary& v, ExprId e) {
    LexemeMask mask;
    std::vector<ExprId> stack(static_cast<size_t>(v.max_depth) + 1);
    stack[0] = e;
    const uint32_t nodes = v.num_nodes();
    for (uint32_t i = 1; i < nodes;) {
        const ExprId next = x.next(stack[v.depth[i] - 1u], v.byte[i]);
        if (next == kEmpty) {
            i = v.end[i];
            continue;
        }
        for (uint32_t k = v.token_begin[i]; k < v.token_begin[i + 1]; ++k) mask.tokens.push_back(v.ids[k]);
        if (x.nullable(next)) note_end(v, i, mask);
        if (next == kEpsilon) {
            i = v.end[i];
            continue;
        }
        stack[v.depth[i]] = next;
        ++i;
    }
    if (mask.tokens.size() * 2 >= v.words()) {
        mask.words.assign(v.words(), 0);
        for (uint32_t id : mask.tokens) mask.words[id / 32] |= 1u << (id % 32);
        mask.tokens.clear();
    }
    mask.tokens.shrink_to_fit();
    return mask;
}

LexemeMask walk_difference(Exprs& x, const Vocabulary& v, ExprId e, ExprId free, const LexemeMask& base) {
    LexemeMask mask;
    mask.words = base.words;
    if (mask.words.empty()) {
        mask.words.assign(v.words(), 0);
        for (uint32_t id : base.tokens) mask.words[id / 32] |= 1u << (id % 32);
    }
    Difference(x, v, base, mask).children(0, e, free);
    std::sort(mask.exits.begin(), mask.exits.end());
    std::sort(mask.closers.begin(), mask.closers.end());
    return mask;
}

LexemeMask free_text_mask(const Vocabulary& v) {
    Exprs x{Options{}};
    ExprId e = x.json_body(x.any_text());
    if (!ByteSet::all().within(v.single_bytes())) {
        e = x.intersect({e, x.repeat(x.bytes(v.single_bytes()), 0, kInfinite)});
        if (!x.live(e)) e = kEmpty;
    }
    return walk_trie(x, v, e);
}

}  // namespace safegen
