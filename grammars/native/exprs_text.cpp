// What a string state does with whole characters, for masks that ask for few derivatives.
//
// A text over a class of characters that a state reads over and over leads nowhere new: after the first character the state
// is one of few, and stays. A count of characters beside it is kept apart; while enough are left it decides nothing.
#include <algorithm>
#include <map>

#include "grammars/native/exprs.hpp"

namespace safegen {

// The content without its count of characters, if it has one.
ExprId Exprs::uncounted(ExprId content, uint32_t& low, uint32_t& high) {
    const Node& n = nodes_[content];
    if (n.kind != Kind::And) return content;
    std::vector<ExprId> others;
    for (ExprId kid : n.kids) {
        const Node& k = nodes_[kid];
        if (k.kind == Kind::Repeat && k.a == any_char_id_ && high == kInfinite && low == 0) low = k.b, high = k.c;
        else others.push_back(kid);
    }
    if (others.size() == n.kids.size()) return content;
    if (std::none_of(others.begin(), others.end(), [&](ExprId kid) { return facts_[kid].text; })) others.push_back(any_text_id_);
    return and_(std::move(others));
}

// What follows when the rest of a character is read, if it is the same for all of them. rest: that of any character.
std::optional<ExprId> Exprs::after_char(ExprId e, ExprId rest) {
    if (e == rest) return kEpsilon;
    const Node n = nodes_[e];
    if (n.kind == Kind::And || n.kind == Kind::Or) {
        std::vector<ExprId> parts;
        for (ExprId kid : n.kids) {
            const auto part = after_char(kid, rest);
            if (!part) return std::nullopt;
            parts.push_back(*part);
        }
        return n.kind == Kind::And ? and_(std::move(parts)) : or_(std::move(parts));
    }
    if (n.kind != Kind::Concat) return std::nullopt;
    if (n.a == rest) return n.b;
    const Node& r = nodes_[rest];
    if (r.kind != Kind::Concat || r.a != n.a) return std::nullopt;
    return after_char(n.b, r.b);
}

// Where each character leads, by its first byte: kEmpty for none, kAll where it depends on the other bytes.
std::array<ExprId, 256> Exprs::char_targets(ExprId content) {
    std::array<ExprId, 256> out;
    out.fill(kEmpty);
    const Raw &mine = raw(content), &any = raw(any_char_id_);
    for (int b = 0x20; b < 0x100; ++b) {
        const ExprId next = mine.to[mine.cls[b]], rest = any.to[any.cls[b]];
        if (b == '"' || b == '\\' || next == kEmpty || rest == kEmpty) continue;
        if (b < 0x80) {
            out[static_cast<size_t>(b)] = live_(next) ? next : kEmpty;
            continue;
        }
        const auto whole = after_char(next, rest);
        if (whole) out[static_cast<size_t>(b)] = live_(*whole) ? *whole : kEmpty;
        else out[static_cast<size_t>(b)] = live_(next) ? kAll : kEmpty;
    }
    return out;
}

std::optional<CharGroups> Exprs::char_groups(ExprId e) {
    constexpr size_t kMaxGroups = 6;
    std::lock_guard<std::recursive_mutex> lock(mutex_);
    if (nodes_[e].kind != Kind::JsonBody) return std::nullopt;
    CharGroups out;
    const ExprId content = uncounted(nodes_[e].a, out.low, out.high);
    out.alphabet = alphabet_(content);
    out.ends_now = meta(content).nullable;
    out.of.fill(CharGroups::kDead);
    const auto first = char_targets(content);
    std::map<ExprId, uint8_t> numbers;
    bool any_home = false;
    for (size_t b = 0; b < first.size(); ++b) {
        if (first[b] == kEmpty) continue;
        if (first[b] == kAll) {
            out.of[b] = CharGroups::kMixed;
            continue;
        }
        const auto known = numbers.find(first[b]);
        if (known != numbers.end()) {
            out.of[b] = known->second;
            continue;
        }
        if (out.groups.size() == kMaxGroups) {
            out.of[b] = CharGroups::kMixed;
            continue;
        }
        // The home of the group: where most of its characters lead, and where they stay.
        CharGroups::Group group;
        const auto later = char_targets(first[b]);
        std::map<ExprId, int> sizes;
        for (ExprId to : later)
            if (to != kEmpty && to != kAll) ++sizes[to];
        const auto home = std::max_element(sizes.begin(), sizes.end(), [](const auto& x, const auto& y) { return x.second < y.second; });
        const bool counted = out.high != kInfinite;
        uint32_t reserve = counted ? brief_length(first[b]) : 0;
        if (home != sizes.end()) {
            const auto staying = char_targets(home->first);
            for (size_t c = 0; c < staying.size(); ++c)
                if (later[c] == home->first && staying[c] == home->first) group.own.add(static_cast<uint8_t>(c));
            group.ends_later = meta(home->first).nullable;
            if (counted) reserve = std::max(reserve, saturating_add(brief_length(home->first), 1));
            any_home |= !group.own.empty();
        }
        group.ends = meta(first[b]).nullable;
        if (group.own.empty() && out.low > 0) {  // a text that must be long is not sure to be
            out.of[b] = numbers[first[b]] = CharGroups::kMixed;
            continue;
        }
        if (reserve == kInfinite) return std::nullopt;
        out.reserve = std::max(out.reserve, reserve);
        out.of[b] = numbers[first[b]] = static_cast<uint8_t>(out.groups.size());
        out.groups.push_back(group);
    }
    if (!any_home) return std::nullopt;
    return out;
}

}  // namespace safegen
