// Shortest ways to a whole answer, for the budget-aware close.
#include <algorithm>
#include <queue>

#include "grammars/native/completion_search.hpp"
#include "grammars/native/json_value.hpp"

namespace safegen {

namespace {
uint32_t cost_parents(const Frame& frame) {
    uint32_t best = kInfinite;
    for (const FramePtr& parent : frame.parents) best = std::min(best, parent->cost_after.load(std::memory_order_relaxed));
    return best;
}

bool must_be_new(const Top& top) { return top.frame->phase == Frame::ArrayItem && top.frame->items && !top.frame->items->empty(); }
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
        case Frame::ArrayComma: return saturating_add(saturating_add(cost_parents(frame), 1), items_cost(frame));
        default: return saturating_add(saturating_add(cost_parents(frame), 1), members_cost(frame));
    }
}

// Of the items that an array still needs, with their commas.
uint32_t Machine::items_cost(const Frame& frame) const {
    const Grammar& g = grammar_;
    const ArraySpec& a = *g.node(frame.node).array;
    const bool must_follow = frame.phase == Frame::ArrayComma;
    uint32_t sum = 0, count = frame.count;
    if (a.counted()) {
        if (!must_follow) return g.counted_rest(a, count, frame.counts, true);
        uint32_t best = kInfinite;
        for (const ItemChoice& c : a.choices(count))
            if (g.alive(c.value)) best = std::min(best, saturating_add(g.cost(c.value), g.counted_rest(a, count + 1, a.counted_with(frame.counts, c.counts_for), true)));
        return best;
    }
    const uint32_t target = std::max(a.low, must_follow ? count + 1 : count);
    if (!a.values.empty()) {  // an estimate: as if the cheapest value were always left
        uint32_t cheapest = kInfinite;
        for (NodeId value : a.values) cheapest = std::min(cheapest, g.cost(value));
        return saturating_mul(target - count, saturating_add(cheapest, 1));
    }
    if (target > count) sum = target - count - (frame.phase == Frame::ArrayItem ? 0 : 1);
    for (; count < target && count < a.prefix.size(); ++count) sum = saturating_add(sum, g.cost(a.prefix[count]));
    if (count < target) sum = saturating_add(sum, saturating_mul(a.rest == kNoNode ? kInfinite : g.cost(a.rest), target - count));
    return sum;
}

// Of an object with conditions: how many keys of each language it does not hold yet.
std::vector<uint32_t> Machine::keys_left(const Frame& frame) const {
    const ObjectSpec& o = *grammar_.node(frame.node).object;
    std::vector<uint32_t> left = o.supply;
    if (!o.scarce || !frame.seen) return left;
    std::vector<bool> counted(left.size(), false);
    for (const ExtraKeys& extra : o.extras) {
        if (counted[extra.language] || left[extra.language] == kInfinite) continue;
        counted[extra.language] = true;
        for (const std::string& key : frame.seen->extras)
            if (left[extra.language] && grammar_.exprs().matches(extra.keys, key)) --left[extra.language];
    }
    return left;
}

// Of the members that an object still needs, with their commas; of one whose key is being read, what follows the key.
uint32_t Machine::members_cost(const Frame& frame) const {
    const Grammar& g = grammar_;
    const ObjectSpec& o = *g.node(frame.node).object;
    const auto member_cost = [&](const Property& p) { return saturating_add(static_cast<uint32_t>(p.name.size()) + 4, g.cost(p.value)); };
    uint32_t sum = frame.phase == Frame::ObjectColon ? g.cost(frame.value) : 0, count = frame.count;
    const Property* first = nullptr;  // required and to come next
    for (uint32_t i = g.options().any_order ? 0 : frame.index; i < o.properties.size(); ++i) {
        const Property& p = o.properties[i];
        if (!p.required || (g.options().any_order && was_seen(frame, i))) continue;
        if (!first) first = &p;
        sum = saturating_add(sum, member_cost(p));
        ++count;
    }
    if (const uint32_t unmet = o.conditions & ~static_cast<uint32_t>(frame.counts[0])) {
        const std::vector<uint32_t> left = keys_left(frame);
        const auto cost = [&](const ExtraKeys& extra) { return saturating_add(6, g.cost(extra.value)); };
        sum = saturating_add(sum, cover(o, unmet, left, cost, saturating_add));
        count = saturating_add(count, cover(o, unmet, left, [&](const ExtraKeys& extra) { return g.alive(extra.value) ? 1u : kInfinite; }, saturating_add));
    }
    uint32_t member = o.extra_cost, value = kInfinite;
    for (const ExtraKeys& extra : o.extras) value = std::min(value, g.alive(extra.value) ? g.cost(extra.value) : kInfinite);
    for (const Property& p : o.properties)
        if (!p.required && g.alive(p.value)) member = std::min(member, member_cost(p)), value = std::min(value, g.cost(p.value));
    const bool reads_key = frame.phase == Frame::ObjectKey;
    if (reads_key && first) sum -= std::min(sum, static_cast<uint32_t>(first->name.size()) + 3);
    else if (reads_key) sum = saturating_add(sum, saturating_add(value, 1)), ++count;
    if (count < o.low) sum = saturating_add(sum, saturating_mul(member, o.low - count));
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
    return condition_key(top, text);
}

// The rest of a key whose member meets conditions that no member meets yet, when the key read so far can still become one.
std::string Machine::condition_key(const Top& top, const std::string& text) const {
    const Frame& frame = *top.frame;
    const ObjectSpec& o = *grammar_.node(frame.node).object;
    const uint32_t unmet = o.conditions & ~static_cast<uint32_t>(frame.counts[0]);
    Exprs& exprs = grammar_.exprs();
    uint32_t best_cost = kInfinite;
    std::string best;
    for (const ExtraKeys& extra : o.extras) {
        if (!(extra.meets & unmet) || grammar_.cost(extra.value) >= best_cost) continue;
        ExprId keys = exprs.intersect({o.extra_keys, extra.keys});
        if (frame.seen) keys = exprs.intersect({keys, exprs.complement(exprs.strings(frame.seen->extras))});
        ExprId rest = exprs.live(keys) ? grammar_.key(o, nullptr, keys) : kEmpty;
        for (const char c : std::string_view(text).substr(top.start))
            if (rest != kEmpty) rest = exprs.next(rest, static_cast<uint8_t>(c));
        if (rest == kEmpty) continue;
        const std::string path = exprs.shortest(rest);
        if (!exprs.matches(top.expr, path)) continue;
        best = path;
        best_cost = grammar_.cost(extra.value);
    }
    return best;
}

// Shortest rest of a lexeme; for a key that its object already holds, that of a key it does not.
std::string Machine::shortest_key(const Top& top, const std::string& text) const {
    const std::string path = grammar_.exprs().shortest(top.expr);
    if (!decides_by_key(top) || path.empty()) return path;
    const std::string read = text.substr(top.start);
    if (!repeats_key(top, read + path)) return path;
    std::string body = path.substr(0, path.size() - 1);
    if (read.empty() && !body.empty() && body[0] == '"') body = "\"";  // start of the key
    std::string suffix;
    for (size_t tries = 0; tries < 4 * top.frame->seen->extras.size() + 100; ++tries) {
        const std::string rest = body + suffix + '"';
        if (grammar_.exprs().matches(top.expr, rest) && !repeats_key(top, read + rest)) return rest;
        size_t i = 0;  // next suffix in length, then alphabetical order
        while (i < suffix.size() && suffix[i] == 'z') suffix[i++] = 'a';
        if (i < suffix.size()) ++suffix[i];
        else suffix.push_back('a');
    }
    constexpr size_t kMaxListed = 20'000;
    const auto rest = listed_rest(top.expr, kMaxListed + 4 * top.frame->seen->extras.size(), [&](const std::string& rest) { return !repeats_key(top, read + rest); });
    if (!rest) throw LimitExceeded("no new key was found");
    return *rest;
}

// The rests of a lexeme in the order of their length, until one is taken. Readable ones first among equals.
template <class Takes>
std::optional<std::string> Machine::listed_rest(ExprId start, size_t most, Takes&& takes) const {
    Exprs& exprs = grammar_.exprs();
    struct Open {
        uint64_t priority;
        std::string rest;
        ExprId expr;
        bool operator>(const Open& other) const { return priority > other.priority; }
    };
    std::priority_queue<Open, std::vector<Open>, std::greater<>> open;
    const auto push = [&](std::string rest, ExprId expr, uint64_t liking) {
        const uint64_t whole = rest.size() + exprs.shortest_length(expr), depth = std::min<uint64_t>(rest.size(), 0xFFFFFF);
        open.push({(whole << 28) | ((0xFFFFFF - depth) << 4) | liking, std::move(rest), expr});
    };
    push({}, start, 0);
    for (size_t tried = 0; !open.empty() && tried < most; ++tried) {
        const Open at = open.top();
        open.pop();
        if (exprs.nullable(at.expr) && takes(at.rest)) return at.rest;
        const Expansion* x = exprs.expansion(at.expr);
        x->first.each([&](uint8_t byte) { push(at.rest + static_cast<char>(byte), x->next(byte), taste(byte)); });
    }
    return std::nullopt;
}

// Shortest rest of a lexeme that is an item of its own; where its array must hold it but once, of one that is new.
std::string Machine::shortest_item(const Top& top, const std::string& text) const {
    constexpr size_t kMaxListed = 500;
    const std::string path = grammar_.exprs().shortest(top.expr);
    const std::string read = text.substr(top.frame->start);
    const auto& items = *top.frame->items;
    const auto is_new = [&](const std::string& rest) { return !std::binary_search(items.begin(), items.end(), canonical_json(read + rest)); };
    if (is_new(path)) return path;
    return listed_rest(top.expr, kMaxListed + 4 * items.size(), is_new).value_or(std::string());
}

// Along the cheapest lexeme, one after the other; nothing where that meets an excluded text or a value that fails, or
// where the work (bytes read, times the ways to read them) goes past `room`, from which it is taken. trail: is given the
// way taken, the byte that failed included.
std::optional<std::string> Machine::greedy_completion(State state, std::string text, const Excluded& excluded, uint64_t& room, Trail& trail) const {
    const size_t begin = text.size();
    trail = {text, {}, false};
    size_t limit = SIZE_MAX;  // well past the first estimate: where items repeat or keys collide, it is too low
    while (!state.can_end) {
        if (text.size() - begin > limit) return std::nullopt;
        if (text.size() - begin > grammar_.options().max_completion_bytes)
            throw LimitExceeded("the shortest completion is longer than " + std::to_string(grammar_.options().max_completion_bytes) + " bytes (a fixed limit)");
        const Top* best = nullptr;
        uint32_t best_cost = kInfinite;
        std::string path;
        for (const Top& top : state.tops) {
            const bool may_end = grammar_.exprs().nullable(top.expr), fresh = must_be_new(top);
            // One that may end here: what follows is among the tops too, and where nothing does, it must be new.
            if ((may_end && !fresh) || (best && fresh && cost(top) >= best_cost)) continue;
            std::string rest = fresh ? shortest_item(top, text) : required_key(top, text);
            if (fresh && rest.empty()) continue;
            const uint32_t total = rest.empty() ? cost(top) : saturating_add(static_cast<uint32_t>(rest.size()), cost_after(*top.frame));
            if (best && total >= best_cost) continue;
            best = &top, best_cost = total, path = std::move(rest);
        }
        if (!best) return std::nullopt;
        if (path.empty()) path = shortest_key(*best, text);
        if (limit == SIZE_MAX && best_cost < kUnknownCost) limit = 4096 + 4 * static_cast<size_t>(best_cost);
        for (char c : path) {
            const uint64_t work = state.tops.size() + state.work / 16;
            if (work > room) return room = 0, std::nullopt;
            room -= work;
            text.push_back(c);
            trail.add(text, state);
            state = step(state, static_cast<uint8_t>(c), text);
            trail.judged = !state.failures.empty();
            if (excluded.reached(text)) return std::nullopt;
        }
    }
    return text.substr(begin);
}

void Machine::Trail::add(const std::string& longer, const State& before) {
    constexpr size_t kMaxKept = 256;
    text = longer;
    states.push_back(before);
    if (states.size() > kMaxKept) states.pop_front();
}

// Where the greedy way fails (values that must differ, verified nodes): leaves it for another byte, as late as that
// helps. A way that fails further on is followed in its stead, so that one value after the other gets right; but not
// where a node failed as it closed, which more text in it may never mend.
// onward: whether such a way is followed. Blanks, zeros and escapes lead on and on without making a value new.
std::optional<std::string> Machine::repaired_completion(Trail way, bool onward, const Excluded& excluded, uint64_t& room) const {
    for (size_t back = 1; back <= way.states.size() && room > 0;) {
        const State state = way.states[way.states.size() - back];
        std::string text = way.text.substr(0, way.text.size() - back);
        std::vector<uint8_t> others;
        first(state, text).each([&](uint8_t byte) {
            if (byte != static_cast<uint8_t>(way.text[text.size()])) others.push_back(byte);
        });
        std::stable_sort(others.begin(), others.end(), [](uint8_t x, uint8_t y) { return taste(x) < taste(y); });
        ++back;
        for (const uint8_t byte : others) {
            room -= std::min<uint64_t>(room, state.tops.size());
            text.push_back(static_cast<char>(byte));
            State next = step(state, byte, text);
            Trail other;
            if (!next.dead() && !excluded.reached(text)) {
                if (greedy_completion(std::move(next), text, excluded, room, other)) return other.text;
                other.states.push_front(state);
            }
            text.pop_back();
            if (room == 0) break;
            if (!onward || other.judged || other.text.size() <= way.text.size()) continue;
            way = std::move(other);
            back = 1;
            break;
        }
    }
    return std::nullopt;
}

Outlook Machine::outlook(const State& state, const std::string& text, const Excluded& excluded) const {
    if (state.can_end) return {Outlook::Open, {}};
    constexpr uint64_t kRoom = 30'000, kSearchRoom = 150'000;  // some tenths of a second
    uint32_t bytes = kInfinite;
    for (const Top& top : state.tops) bytes = std::min(bytes, cost(top));
    uint64_t room = 10 * kRoom + (bytes < kUnknownCost ? uint64_t{4} * bytes : 0);  // read in one way, or some seconds
    Trail trail;
    if (auto rest = greedy_completion(state, text, excluded, room, trail)) return {Outlook::Open, std::move(*rest)};
    if (room == 0) throw LimitExceeded("the shortest completion takes too much work (a fixed limit)");
    for (const bool onward : {false, true}) {
        room = kRoom;
        if (auto whole = repaired_completion(trail, onward, excluded, room)) return {Outlook::Open, whole->substr(text.size())};
    }
    room = kSearchRoom;
    return Search(*this, excluded, room).run(state, text);
}

}  // namespace safegen
