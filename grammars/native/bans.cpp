#include "grammars/native/bans.hpp"

#include <algorithm>
#include <stdexcept>

namespace safegen {
namespace {

constexpr uint32_t kMaxCodePoint = 0x10FFFF;

bool any_scalar(uint32_t low, uint32_t high) { return low <= kMaxCodePoint && !(low >= 0xD800 && high <= 0xDFFF); }

}  // namespace

LetterMap::LetterMap(std::vector<CodePoints> letters, const std::vector<Range>& ranges, uint32_t other) : letters_(std::move(letters)) {
    if (other >= letters_.size()) throw std::invalid_argument("the other letter is none of the letters");
    uint32_t from = 0;
    for (const Range& range : ranges) {
        if (range.low < from || range.high < range.low || range.high > kMaxCodePoint || range.letter >= letters_.size())
            throw std::invalid_argument("letter ranges must ascend and not overlap");
        if (range.low > from) ranges_.push_back({from, range.low - 1, other});
        ranges_.push_back(range);
        from = range.high + 1;
    }
    if (from <= kMaxCodePoint) ranges_.push_back({from, kMaxCodePoint, other});
    nothing_ = static_cast<uint32_t>(std::find(letters_.begin(), letters_.end(), CodePoints{}) - letters_.begin());
    if (nothing_ == letters_.size()) letters_.emplace_back();

    nodes_.emplace_back();  // the boundary; filled last
    Edges edges;
    for (uint32_t b = 0; b < 0x80; ++b) edges.push_back({static_cast<uint8_t>(b), {letter_of(b), kNowhere}});
    const auto lead = [&](uint32_t byte, uint32_t low, int level, uint32_t width) {
        edges.push_back({static_cast<uint8_t>(byte), {kNowhere, sub(low, width, level)}});
    };
    for (uint32_t b = 0xC2; b < 0xE0; ++b) lead(b, (b - 0xC0) << 6, 1, 1);
    for (uint32_t b = 0xE0; b < 0xF0; ++b) lead(b, (b - 0xE0) << 12, 2, 1u << 6);
    for (uint32_t b = 0xF0; b < 0xF5; ++b) lead(b, (b - 0xF0) << 18, 3, 1u << 12);
    const uint32_t made = make(edges, 0);
    Node root = nodes_[made];
    nodes_[kBoundary] = std::move(root);
    nodes_[kBoundary].blank = kBoundary;
    known_.clear();
    uniform_.clear();
}

uint32_t LetterMap::letter_of(uint32_t code_point) const {
    const auto it = std::partition_point(ranges_.begin(), ranges_.end(), [&](const Range& r) { return r.high < code_point; });
    return it->letter;
}

std::pair<const LetterMap::Range*, const LetterMap::Range*> LetterMap::ranges_within(uint32_t low, uint32_t high) const {
    const auto first = std::partition_point(ranges_.begin(), ranges_.end(), [&](const Range& r) { return r.high < low; });
    const auto last = std::partition_point(first, ranges_.end(), [&](const Range& r) { return r.low <= high; });
    return {ranges_.data() + (first - ranges_.begin()), ranges_.data() + (last - ranges_.begin())};
}

// The node of 64 times `width` code points from `low` on, `level` continuation bytes before a character ends. Overlong
// forms, surrogates and what lies beyond the last code point lead nowhere.
uint32_t LetterMap::sub(uint32_t low, uint32_t width, int level) {
    const uint32_t least = level == 1 ? 0x80 : level == 2 ? 0x800 : 0x10000;  // of a whole character this long
    const bool lead = (level == 1 && low < 0x800) || (level == 2 && low < 0x10000 && low % 0x1000 == 0) || level == 3;
    const uint32_t end = low + 64 * width - 1;
    const auto range = std::partition_point(ranges_.begin(), ranges_.end(), [&](const Range& r) { return r.high < low; });
    const bool uniform = range != ranges_.end() && range->high >= end && (end < 0xD800 || low > 0xDFFF) && !(lead && low < least);
    const uint64_t key = uniform ? (static_cast<uint64_t>(range->letter) << 8) | static_cast<uint64_t>(level) : 0;
    if (uniform)
        if (const auto known = uniform_.find(key); known != uniform_.end()) return known->second;
    Edges edges;
    for (uint32_t i = 0; i < 64; ++i) {
        const uint32_t first = low + i * width, last = first + width - 1;
        if (!any_scalar(first, last) || (lead && last < least)) continue;
        const auto byte = static_cast<uint8_t>(0x80 + i);
        if (level == 1) edges.push_back({byte, {letter_of(first), kNowhere}});
        else edges.push_back({byte, {kNowhere, sub(first, width / 64, level - 1)}});
    }
    const uint32_t made = make(edges, static_cast<uint32_t>(level));
    if (uniform) uniform_.emplace(key, made);
    return made;
}

uint32_t LetterMap::make(const Edges& edges, uint32_t bytes_left) {
    std::string key(reinterpret_cast<const char*>(&bytes_left), sizeof bytes_left);
    for (const auto& [byte, step] : edges) {
        key.push_back(static_cast<char>(byte));
        key.append(reinterpret_cast<const char*>(&step), sizeof step);
    }
    const auto known = known_.find(key);
    if (known != known_.end()) return known->second;
    Node node;
    std::fill(std::begin(node.cls), std::end(node.cls), uint8_t{0});
    node.to.emplace_back();
    node.bytes.emplace_back();
    for (const auto& [byte, step] : edges) {
        size_t c = 1;
        while (c < node.to.size() && !(node.to[c] == step)) ++c;
        if (c == node.to.size()) {
            node.to.push_back(step);
            node.bytes.emplace_back();
            if (step.node == kNowhere) node.letters.push_back(step.letter);
            else node.letters.insert(node.letters.end(), nodes_[step.node].letters.begin(), nodes_[step.node].letters.end());
        }
        node.cls[byte] = static_cast<uint8_t>(c);
        node.bytes[c].add(byte);
    }
    std::sort(node.letters.begin(), node.letters.end());
    node.letters.erase(std::unique(node.letters.begin(), node.letters.end()), node.letters.end());
    node.bytes_left = bytes_left;
    const auto id = static_cast<uint32_t>(nodes_.size());
    nodes_.push_back(std::move(node));
    known_.emplace(std::move(key), id);
    nodes_[id].blank = id;
    if (bytes_left > 0) {
        const uint32_t blank = make_blank(id);
        nodes_[id].blank = blank;
    }
    return id;
}

uint32_t LetterMap::make_blank(uint32_t id) {
    Edges edges;
    bool same = true;
    for (uint32_t b = 0x80; b < 0xC0; ++b) {
        const Step now = step(id, static_cast<uint8_t>(b));
        if (now.dead()) continue;
        Step blank;
        if (now.node == kNowhere) blank.letter = nothing_;
        else blank.node = nodes_[now.node].blank;
        same = same && blank == now;
        edges.push_back({static_cast<uint8_t>(b), blank});
    }
    return same ? id : make(edges, nodes_[id].bytes_left);
}

PhraseAutomaton::PhraseAutomaton(LetterMap map, const std::vector<CodePoints>& phrases, bool word,
                                 std::vector<std::pair<uint32_t, uint32_t>> word_ranges)
    : map_(std::move(map)), word_(word), word_ranges_(std::move(word_ranges)) {
    const auto add = [&](uint32_t code_point) {
        fail_.push_back(kStart);
        last_.push_back(code_point);
        hit_.push_back(false);
        return static_cast<uint32_t>(fail_.size() - 1);
    };
    add(0);
    for (const CodePoints& phrase : phrases) {
        if (phrase.empty()) throw std::invalid_argument("a phrase is empty");
        uint32_t at = kStart;
        for (uint32_t c : phrase) {
            const auto [edge, fresh] = children_.try_emplace((static_cast<uint64_t>(at) << 32) | c, 0);
            if (fresh) edge->second = add(c);
            at = edge->second;
        }
        hit_[at] = true;
    }
    if (word_) after_word_ = add(0);
    // Breadth first: the nodes of a level are known when those of the next are linked.
    std::vector<std::vector<std::pair<uint32_t, uint32_t>>> kids(fail_.size());
    for (const auto& [edge, kid] : children_) kids[edge >> 32].push_back({static_cast<uint32_t>(edge), kid});
    std::vector<uint32_t> order{kStart};
    for (size_t i = 0; i < order.size(); ++i) {
        const uint32_t at = order[i];
        for (const auto& [c, kid] : kids[at]) {
            order.push_back(kid);
            fail_[kid] = at == kStart ? (word_ && is_word(c) ? after_word_ : kStart) : next(fail_[at], c);
            // A shorter phrase that ends here counts as well.
            if (hit_[fail_[kid]]) hit_[kid] = true;
        }
    }
    std::vector<uint32_t> steps;
    for (uint32_t letter = 0; letter < map_.num_letters(); ++letter) steps.push_back(step(kStart, letter));
    from_start_ = std::move(steps);
}

uint32_t PhraseAutomaton::child(uint32_t node, uint32_t code_point) const {
    const auto it = children_.find((static_cast<uint64_t>(node) << 32) | code_point);
    return it == children_.end() ? kNowhere : it->second;
}

// Falls back along ever shorter endings of the text that begin a phrase. With `word`, those that begin after a character
// of a word are none: `after_word_` is where nothing is begun, and nothing can be by the next character.
uint32_t PhraseAutomaton::next(uint32_t state, uint32_t code_point) const {
    for (uint32_t at = state;; at = fail_[at]) {
        if (at == kStart || (word_ && at == after_word_)) {
            const uint32_t to = at == kStart ? child(kStart, code_point) : kNowhere;
            if (to != kNowhere) return to;
            return word_ && is_word(code_point) ? after_word_ : kStart;
        }
        if (const uint32_t to = child(at, code_point); to != kNowhere) return to;
    }
}

bool PhraseAutomaton::live(uint32_t state, uint32_t node) const {
    const auto& letters = map_.letters_below(node);
    return std::any_of(letters.begin(), letters.end(), [&](uint32_t letter) { return step(state, letter) != kNowhere; });
}

bool PhraseAutomaton::any_live(uint32_t state, uint32_t low, uint32_t high) const {
    const auto [first, last] = map_.ranges_within(low, high);
    return std::any_of(first, last, [&](const LetterMap::Range& range) {
        return any_scalar(std::max(low, range.low), std::min(high, range.high)) && step(state, range.letter) != kNowhere;
    });
}

uint32_t PhraseAutomaton::step(uint32_t state, uint32_t letter) const {
    if (state == kStart && !from_start_.empty()) return from_start_[letter];
    for (uint32_t c : map_.text(letter)) {
        if (word_ && hit_[state] && !is_word(c)) return kNowhere;
        state = next(state, c);
        if (!word_ && hit_[state]) return kNowhere;
    }
    return state;
}

bool PhraseAutomaton::is_word(uint32_t code_point) const {
    const auto it = std::partition_point(word_ranges_.begin(), word_ranges_.end(), [&](const auto& r) { return r.second < code_point; });
    return it != word_ranges_.end() && it->first <= code_point;
}

}  // namespace safegen
