// Shortest ways to a whole answer, for the budget-aware close.
#include <algorithm>
#include <queue>

#include "grammars/native/state.hpp"

namespace safegen {

namespace {
uint32_t cost_parents(const Frame& frame) {
    uint32_t best = kInfinite;
    for (const FramePtr& parent : frame.parents) best = std::min(best, parent->cost_after.load(std::memory_order_relaxed));
    return best;
}
}  // namespace

// Bytes still needed once what `frame` awaits has ended; kept in the frame, which does not change any more.
uint32_t Machine::cost_after(const Frame& frame) const {
    ancestors_first(
        frame, [](const Frame& f) { return f.cost_after.load(std::memory_order_relaxed) != kUnknownCost; },
        [this](const Frame& f) { f.cost_after.store(compute_cost(f), std::memory_order_relaxed); });
    return frame.cost_after.load(std::memory_order_relaxed);
}

uint32_t Machine::compute_cost(const Frame& frame) const {
    const Grammar& g = grammar_;
    switch (frame.phase) {
        case Frame::Root:
        case Frame::Tail: return 0;
        case Frame::Lead: return g.cost(g.root());
        case Frame::Verify:
        case Frame::Call:
        case Frame::Close: return cost_parents(frame);
        case Frame::Sequence: {
            uint32_t sum = cost_parents(frame);
            const auto& kids = g.node(frame.node).kids;
            for (size_t i = frame.index; i < kids.size(); ++i) sum = saturating_add(sum, g.cost(kids[i]));
            return sum;
        }
        case Frame::ArrayOpen:
        case Frame::ArrayItem:
        case Frame::ArrayComma: {
            const ArraySpec& a = *g.node(frame.node).array;
            uint32_t sum = saturating_add(cost_parents(frame), 1), count = frame.count;
            if (a.counted() || !a.values.empty()) {  // an estimate: what an empty one needs, and its counts
                uint32_t missing = a.low > count ? a.low - count : 0;
                for (size_t i = 0; i < a.contains.size(); ++i)
                    if (frame.counts[i] < a.contains[i].first) missing = std::max<uint32_t>(missing, a.contains[i].first - frame.counts[i]);
                if (frame.phase == Frame::ArrayComma) missing = std::max(missing, 1u);
                uint32_t cheapest = kInfinite;
                for (const ItemChoice& c : a.rest_choices)
                    if (g.alive(c.value)) cheapest = std::min(cheapest, g.cost(c.value));
                for (NodeId value : a.values) cheapest = std::min(cheapest, g.cost(value));
                return saturating_add(sum, saturating_mul(missing, saturating_add(cheapest == kInfinite ? 4 : cheapest, 1)));
            }
            const uint32_t target = std::max(a.low, frame.phase == Frame::ArrayComma ? count + 1 : count);
            if (target > count && frame.phase == Frame::ArrayItem) sum = saturating_add(sum, target - count);
            else if (target > count) sum = saturating_add(sum, target - count - 1);
            for (; count < target && count < a.prefix.size(); ++count) sum = saturating_add(sum, g.cost(a.prefix[count]));
            if (count < target) sum = saturating_add(sum, saturating_mul(a.rest == kNoNode ? kInfinite : g.cost(a.rest), target - count));
            return sum;
        }
        default: break;
    }
    const ObjectSpec& o = *g.node(frame.node).object;
    uint32_t sum = saturating_add(cost_parents(frame), 1);
    if (frame.phase == Frame::ObjectKey) sum = saturating_add(sum, 8);  // which member is not known yet
    if (frame.phase == Frame::ObjectColon) sum = saturating_add(sum, g.cost(frame.value));
    uint32_t required = 0;
    const bool any_order = g.options().any_order;
    for (uint32_t i = any_order ? 0 : frame.index; i < o.properties.size(); ++i) {
        const Property& p = o.properties[i];
        if (!p.required || (any_order && was_seen(frame, i))) continue;
        ++required;
        sum = saturating_add(sum, saturating_add(static_cast<uint32_t>(p.name.size()) + 4, g.cost(p.value)));
    }
    if (frame.count + required < o.low) {
        uint32_t member = o.extra_cost;
        for (const Property& p : o.properties)
            if (!p.required && g.alive(p.value)) member = std::min(member, saturating_add(static_cast<uint32_t>(p.name.size()) + 4, g.cost(p.value)));
        sum = saturating_add(sum, saturating_mul(member, o.low - frame.count - required));
    }
    return sum;
}

uint32_t Machine::cost(const Top& top) const {
    return saturating_add(grammar_.exprs().shortest_length(top.expr), cost_after(*top.frame));
}

// The rest of the next required name, when the key read so far can still become it: shorter keys would only delay it.
std::string Machine::required_key(const Top& top, const std::string& text) const {
    const Frame& frame = *top.frame;
    if (frame.phase != Frame::ObjectKey) return {};
    const ObjectSpec& o = *grammar_.node(frame.node).object;
    const bool any_order = grammar_.options().any_order;
    for (uint32_t i = any_order ? 0 : frame.index; i < o.properties.size(); ++i) {
        if (!o.properties[i].required || (any_order && was_seen(frame, i))) continue;
        const std::string spelled = "\"" + json_spelling(o.properties[i].name) + "\"";
        const std::string_view read = std::string_view(text).substr(top.start);
        if (spelled.compare(0, read.size(), read) == 0) {
            const std::string rest = spelled.substr(read.size());
            if (grammar_.exprs().matches(top.expr, rest)) return rest;
        }
        if (!any_order) break;
    }
    return {};
}

// Shortest rest of a lexeme; a key that its object already holds is lengthened until it is new.
std::string Machine::shortest_key(const Top& top, const std::string& text) const {
    const std::string path = grammar_.exprs().shortest(top.expr);
    if (!decides_by_key(top) || path.empty()) return path;
    const std::string read = text.substr(top.start);
    std::string body = path.substr(0, path.size() - 1);
    if (read.empty() && !body.empty() && body[0] == '"') body = "\"";  // start of the key
    std::string suffix;
    for (size_t tries = 0; tries < 4 * top.frame->seen->extras.size() + 100'000; ++tries) {
        const std::string rest = body + suffix + '"';
        if (grammar_.exprs().matches(top.expr, rest) && !repeats_key(top, read + rest)) return rest;
        size_t i = 0;  // next suffix in length, then alphabetical order
        while (i < suffix.size() && suffix[i] == 'z') suffix[i++] = 'a';
        if (i < suffix.size()) ++suffix[i];
        else suffix.push_back('a');
    }
    throw LimitExceeded("no new key was found");
}

// Along the cheapest lexeme, one after the other; nothing where that meets an excluded text or a value that fails, or
// where the work (bytes read, times the ways to read them) goes past `room`, from which it is taken.
std::optional<std::string> Machine::greedy_completion(State state, std::string text, const std::function<bool(const std::string&)>& excluded, uint64_t& room) const {
    const size_t begin = text.size();
    while (!state.can_end) {
        if (text.size() - begin > grammar_.options().max_completion_bytes)
            throw LimitExceeded("the shortest completion is longer than " + std::to_string(grammar_.options().max_completion_bytes) + " bytes");
        const Top* best = nullptr;
        uint32_t best_cost = kInfinite;
        for (const Top& top : state.tops) {
            if (grammar_.exprs().nullable(top.expr)) continue;  // it may end here: what follows is among the tops too
            const uint32_t total = cost(top);
            if (!best || total < best_cost) best = &top, best_cost = total;
        }
        if (!best) return std::nullopt;
        std::string path = required_key(*best, text);
        if (path.empty()) path = shortest_key(*best, text);
        for (char c : path) {
            if (state.tops.size() > room) return std::nullopt;
            room -= state.tops.size();
            text.push_back(c);
            state = step(state, static_cast<uint8_t>(c), text);
            if (excluded(text)) return std::nullopt;
        }
    }
    return text.substr(begin);
}

// Where the greedy way fails (values that must differ, verified nodes): best-first over bytes, by length so far plus the
// estimate of the rest, with greedy completions tried from every state that is reached.
std::string Machine::shortest_completion(const State& state, const std::string& text, const std::function<bool(const std::string&)>& excluded) const {
    uint64_t room = UINT64_MAX;  // the greedy way is as long as the answer
    if (auto rest = greedy_completion(state, text, excluded, room)) return *rest;
    constexpr size_t kMaxTried = 400;
    room = 200'000;  // some tenths of a second
    struct Open {
        uint64_t priority;
        std::string text;
        State state;
        bool operator>(const Open& other) const { return priority > other.priority; }
    };
    std::priority_queue<Open, std::vector<Open>, std::greater<>> open;
    open.push({0, text, state});
    for (size_t tried = 0; !open.empty() && tried < kMaxTried && room > 0; ++tried) {
        Open at = open.top();
        open.pop();
        first(at.state, at.text).each([&](uint8_t byte) {
            room -= std::min<uint64_t>(room, at.state.tops.size());
            if (room == 0) return;
            std::string longer = at.text + static_cast<char>(byte);
            State next = step(at.state, byte, longer);
            if (next.dead() || excluded(longer)) return;
            uint32_t rest = next.can_end ? 0 : kInfinite;
            for (const Top& top : next.tops) rest = std::min(rest, cost(top));
            // Readable bytes first among equals: one of each kind is enough to find a new value.
            const uint64_t taste = byte >= 'a' && byte <= 'z' ? 0 : byte >= '0' && byte <= '9' ? 1 : 2;
            open.push({(static_cast<uint64_t>(longer.size()) + rest) * 4 + taste, std::move(longer), std::move(next)});
        });
        if (open.empty()) break;
        if (auto rest = greedy_completion(open.top().state, open.top().text, excluded, room)) return open.top().text.substr(text.size()) + *rest;
    }
    throw LimitExceeded("no completion was found");
}

}  // namespace safegen
