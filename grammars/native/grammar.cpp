#include "grammars/native/grammar.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <queue>
#include <tuple>
#include <unordered_set>

#include "grammars/native/json_value.hpp"
#include "grammars/native/state.hpp"

namespace safegen {
namespace {

bool grammar_matches(const Grammar& grammar, const std::string& text) {
    const Machine machine(grammar);
    State state = machine.start();
    std::string read;
    for (char c : text) {
        read.push_back(c);
        state = machine.step(state, static_cast<uint8_t>(c), read);
        if (state.dead()) return false;
    }
    return state.can_end;
}

bool unique_items(const std::string& text) {
    auto items = array_items(text);
    std::sort(items.begin(), items.end());
    return std::adjacent_find(items.begin(), items.end()) == items.end();
}

}  // namespace

std::string json_spelling(const std::string& decoded) {
    static constexpr char kHex[] = "0123456789abcdef";
    std::string out;
    for (char c : decoded) {
        switch (c) {
            case '"': out += "\\\""; break;
            case '\\': out += "\\\\"; break;
            case '\b': out += "\\b"; break;
            case '\f': out += "\\f"; break;
            case '\n': out += "\\n"; break;
            case '\r': out += "\\r"; break;
            case '\t': out += "\\t"; break;
            default:
                if (static_cast<uint8_t>(c) < 0x20) {
                    out += "\\u00";
                    out += kHex[(c >> 4) & 15];
                    out += kHex[c & 15];
                } else {
                    out += c;
                }
        }
    }
    return out;
}

Grammar::Grammar(std::shared_ptr<Exprs> exprs, std::vector<Node> nodes, NodeId root, const ByteSet* alphabet)
    : exprs_(std::move(exprs)), nodes_(std::move(nodes)), root_(root) {
    if (alphabet && !ByteSet::all().within(*alphabet)) {
        alphabet_ = *alphabet;
        cut_ = exprs_->repeat(exprs_->bytes(*alphabet), 0, kInfinite);
    }
    Exprs& x = *exprs_;
    ByteSet blanks;
    for (char c : {' ', '\t', '\n', '\r'}) blanks.add(static_cast<uint8_t>(c));
    const ExprId ws = x.repeat(x.bytes(blanks), 0, options().whitespace);
    auto punct = [&](ExprId before, const char* text, ExprId after) { return lexeme(x.concat({before, x.literal(text), after})); };
    open_array = punct(kEpsilon, "[", ws);
    open_object = punct(kEpsilon, "{", ws);
    close_array = punct(ws, "]", kEpsilon);
    close_object = punct(ws, "}", kEpsilon);
    close_empty_array = punct(kEpsilon, "]", kEpsilon);
    close_empty_object = punct(kEpsilon, "}", kEpsilon);
    comma = punct(ws, ",", ws);
    colon = punct(ws, ":", ws);
    margin = lexeme(ws);
    analyse();
}

std::shared_ptr<Grammar> Grammar::for_alphabet(const ByteSet& alphabet) const {
    std::vector<Node> copy = nodes_;
    for (Node& n : copy) {
        if (n.array) n.array = std::make_shared<ArraySpec>(*n.array);
        if (n.object) n.object = std::make_shared<ObjectSpec>(*n.object);
    }
    return std::make_shared<Grammar>(exprs_, std::move(copy), root_, &alphabet);
}

NodeId Grammar::resolve(NodeId id) const {
    for (size_t hops = 0; nodes_[id].kind == Node::Alias; ++hops) {
        if (hops > nodes_.size()) throw LimitExceeded("a reference leads back to itself");
        id = nodes_[id].kids[0];
    }
    return id;
}

ExprId Grammar::lexeme(ExprId e) const {
    if (cut_ == kAll || exprs_->alphabet(e).within(alphabet_)) return e;
    const ExprId within = exprs_->intersect({e, cut_});
    return exprs_->live(within) ? within : kEmpty;
}

ExprId Grammar::key(const ObjectSpec& object, const OrderFilter* declared, ExprId extra) const {
    Exprs& x = *exprs_;
    const ExprId quote = x.literal("\"");
    const ExprId listed = declared ? x.keys(object.key_set, *declared) : kEmpty;
    if (options().any_spelling) return lexeme(x.concat({quote, x.json_body(x.alternate({listed, extra}))}));
    return lexeme(x.concat({quote, x.alternate({listed, extra == kEmpty ? kEmpty : x.json_body(extra)})}));
}

ContainsCounts ArraySpec::counted_with(const ContainsCounts& counts, uint32_t counts_for) const {
    ContainsCounts out = counts;
    for (size_t i = 0; i < contains.size(); ++i) {
        const uint32_t cap = contains[i].second == kInfinite ? contains[i].first : contains[i].second + 1;
        if ((counts_for >> i) & 1) out[i] = static_cast<uint16_t>(std::min<uint32_t>(out[i] + 1u, cap));
    }
    return out;
}

namespace {

bool counts_hold(const ArraySpec& a, const ContainsCounts& counts) {
    for (size_t i = 0; i < a.contains.size(); ++i)
        if (counts[i] < a.contains[i].first || (a.contains[i].second != kInfinite && counts[i] > a.contains[i].second)) return false;
    return true;
}

// Past this position all look alike, as long as the number of items has no upper bound.
uint32_t clipped(const ArraySpec& a, uint32_t position) {
    if (a.high != kInfinite) return position;
    return std::min(position, std::max(static_cast<uint32_t>(a.prefix_choices.size()), a.low));
}

std::string memo_key(uint32_t position, const ContainsCounts& counts) {
    std::string key(reinterpret_cast<const char*>(&position), sizeof position);
    return key.append(reinterpret_cast<const char*>(counts.data()), sizeof counts);
}

// On the way to a whole array.
struct Filled {
    uint32_t place;
    ContainsCounts counts;
    UsedValues used;
    size_t from = 0;
    std::string key() const { return memo_key(place, counts).append(reinterpret_cast<const char*>(used.data()), used.size() * sizeof(UsedValues::value_type)); }
};

// Whether too few listed values are left for what is missing; a look at their numbers alone.
bool short_of_values(const ArraySpec& a, const Filled& now) {
    uint32_t left = 0;
    ContainsCounts left_for{};
    std::vector<uint32_t> counts_for(a.group_sizes.size(), 0);
    bool endless = false;
    uint32_t endless_for = 0;
    for (size_t place = std::min<size_t>(now.place, a.kinds.size() - 1); place < a.kinds.size(); ++place)
        for (const ItemKind& kind : a.kinds[place]) {
            if (kind.group == kUnlisted) endless = true, endless_for |= kind.counts_for;
            else counts_for[kind.group] |= kind.counts_for;
        }
    for (size_t group = 0; group < counts_for.size(); ++group) {
        const auto unused = static_cast<uint16_t>(a.group_sizes[group] - now.used[group]);
        left += unused;
        for (size_t i = 0; i < a.contains.size(); ++i)
            if ((counts_for[group] >> i) & 1) left_for[i] = static_cast<uint16_t>(left_for[i] + unused);
    }
    if (!endless && now.place + left < a.low) return true;
    for (size_t i = 0; i < a.contains.size(); ++i)
        if (!((endless_for >> i) & 1) && now.counts[i] + left_for[i] < a.contains[i].first) return true;
    return false;
}

}  // namespace

// Depth first, items that count before others; every state on the way to an end is live.
bool Grammar::completable(const ArraySpec& a, uint32_t position, const ContainsCounts& counts, const UsedValues& used, bool remember) const {
    constexpr size_t kMaxStates = 200'000;
    std::unique_lock<std::mutex> lock;
    std::unordered_map<std::string, bool> none;
    auto& live = remember ? a.memo->live : none;
    if (remember) lock = std::unique_lock(a.memo->mutex);
    std::vector<Filled> met{{clipped(a, position), counts, used}};
    const auto known = live.find(met[0].key());
    if (known != live.end()) return known->second;
    std::unordered_set<std::string> seen{met[0].key()};
    std::vector<size_t> open{0};
    while (!open.empty()) {
        const size_t at = open.back();
        open.pop_back();
        const Filled now = met[at];
        const auto settled = live.find(now.key());
        const bool end = settled != live.end() ? settled->second : now.place >= a.low && now.place <= a.high && counts_hold(a, now.counts);
        if (end) {
            for (size_t up = at;; up = met[up].from) {
                live[met[up].key()] = true;
                if (up == 0) return true;
            }
        }
        if (settled != live.end() || now.place >= a.high || (a.num_listed && short_of_values(a, now))) continue;
        const auto& kinds = a.kinds_at(now.place);
        for (size_t k = kinds.size(); k-- > 0;) {
            const ItemKind& kind = kinds[k];
            if (!alive(kind.value) || (kind.group != kUnlisted && now.used[kind.group] == a.group_sizes[kind.group])) continue;
            Filled next{clipped(a, now.place + 1), a.counted_with(now.counts, kind.counts_for), now.used, at};
            if (kind.group != kUnlisted) ++next.used[kind.group];
            bool over = false;
            for (size_t i = 0; i < a.contains.size(); ++i) over |= a.contains[i].second != kInfinite && next.counts[i] > a.contains[i].second;
            if (over || !seen.insert(next.key()).second) continue;
            if (met.size() > kMaxStates) throw LimitExceeded("counting the items that must match takes too many states");
            open.push_back(met.size());
            met.push_back(std::move(next));
        }
    }
    for (const Filled& state : met) live[state.key()] = false;
    return false;
}

// Dijkstra over (position, counts); what the way found needs from each of its states is remembered.
uint32_t Grammar::counted_rest(const ArraySpec& a, uint32_t position, const ContainsCounts& counts, bool remember) const {
    constexpr size_t kMaxStates = 200'000;
    struct Visit {
        uint32_t place, cost;
        ContainsCounts counts;
        size_t from;
        bool closed = false;
    };
    std::unique_lock<std::mutex> lock;
    if (remember) lock = std::unique_lock(a.memo->mutex);
    std::vector<Visit> visits{{clipped(a, position), 0, counts, 0}};
    std::unordered_map<std::string, size_t> places{{memo_key(visits[0].place, counts), 0}};
    std::priority_queue<std::pair<uint32_t, size_t>, std::vector<std::pair<uint32_t, size_t>>, std::greater<>> open;
    open.push({0, 0});
    while (!open.empty()) {
        const size_t at = open.top().second;
        open.pop();
        if (visits[at].closed) continue;
        visits[at].closed = true;
        const Visit now = visits[at];
        std::optional<uint32_t> rest;
        if (now.place >= a.low && now.place <= a.high && counts_hold(a, now.counts)) rest = 0;
        else if (remember)
            if (const auto known = a.memo->rest.find(memo_key(now.place, now.counts)); known != a.memo->rest.end()) rest = known->second;
        if (rest) {
            const uint32_t total = saturating_add(now.cost, *rest);
            for (size_t up = at; remember; up = visits[up].from) {
                a.memo->rest[memo_key(visits[up].place, visits[up].counts)] = total == kInfinite ? kInfinite : total - visits[up].cost;
                if (up == 0) break;
            }
            return total;
        }
        if (now.place >= a.high) continue;
        std::array<uint32_t, 1u << kMaxContains> cheapest;
        cheapest.fill(kInfinite);
        for (const ItemChoice& choice : a.choices(now.place))
            if (alive(choice.value)) cheapest[choice.counts_for] = std::min(cheapest[choice.counts_for], costs_[choice.value]);
        for (uint32_t counts_for = 0; counts_for < cheapest.size(); ++counts_for) {
            if (cheapest[counts_for] == kInfinite) continue;
            const ContainsCounts next = a.counted_with(now.counts, counts_for);
            const uint32_t further = clipped(a, now.place + 1), cost = saturating_add(now.cost, saturating_add(cheapest[counts_for], 1));
            const auto [place, fresh] = places.emplace(memo_key(further, next), visits.size());
            if (fresh) visits.push_back({further, cost, next, at});
            else if (visits[place->second].closed || visits[place->second].cost <= cost) continue;
            else visits[place->second] = {further, cost, next, at};
            if (visits.size() > kMaxStates) throw LimitExceeded("counting the items that must match takes too many states");
            open.push({cost, place->second});
        }
    }
    return kInfinite;
}

bool Grammar::never_used_up(NodeId id) const {
    if (id == kNoNode) return true;
    const Node& n = nodes_[resolve(id)];
    return n.kind == Node::Lexeme && exprs_->is_free_string(n.expr);
}

void Grammar::derive_array(ArraySpec& array) {
    array.memo = std::make_shared<ArraySpec::Memo>();
    if (!array.values.empty()) {
        uint32_t usable = 0;
        for (NodeId value : array.values) usable += alive(value) ? 1 : 0;
        array.high = std::min(array.high, usable);
        return;
    }
    if (array.counted()) return derive_kinds(array);
    for (uint32_t i = 0; i < array.prefix.size() && i < array.high; ++i)
        if (!alive(array.prefix[i])) array.high = i;
    if (!alive(array.rest)) array.high = std::min(array.high, static_cast<uint32_t>(array.prefix.size()));
    array.open = array.unique && never_used_up(array.rest) &&
                 std::all_of(array.prefix.begin(), array.prefix.end(), [&](NodeId id) { return never_used_up(id); });
}

// Listed values that may stand at the same places, counting for the same, are one group: how many of it are used is all
// that matters.
void Grammar::derive_kinds(ArraySpec& array) const {
    std::vector<std::vector<std::pair<uint32_t, uint32_t>>> stands(array.num_listed);  // by value: place, counts
    array.open = array.unique;
    const auto each_place = [&](auto&& visit) {
        for (size_t place = 0; place <= array.prefix_choices.size(); ++place)
            for (const ItemChoice& choice : array.choices(static_cast<uint32_t>(place)))
                if (alive(choice.value)) visit(place, choice);
    };
    each_place([&](size_t place, const ItemChoice& choice) {
        if (choice.listed != kUnlisted) stands[choice.listed].push_back({static_cast<uint32_t>(place), choice.counts_for});
        else array.open = array.open && never_used_up(choice.value);
    });
    std::map<std::vector<std::pair<uint32_t, uint32_t>>, uint32_t> groups;
    array.group_of.clear();
    array.group_sizes.clear();
    for (auto& stand : stands) {
        std::sort(stand.begin(), stand.end());
        const auto [group, fresh] = groups.emplace(stand, static_cast<uint32_t>(array.group_sizes.size()));
        if (fresh) array.group_sizes.push_back(0);
        array.group_of.push_back(group->second);
        array.group_sizes[group->second] = static_cast<uint16_t>(array.group_sizes[group->second] + (stand.empty() ? 0 : 1));
    }
    array.kinds.assign(array.prefix_choices.size() + 1, {});
    each_place([&](size_t place, const ItemChoice& choice) {
        const ItemKind kind{choice.counts_for, choice.listed == kUnlisted ? kUnlisted : array.group_of[choice.listed], choice.value};
        auto& kinds = array.kinds[place];
        const auto same = [&](const ItemKind& other) { return other.counts_for == kind.counts_for && other.group == kind.group; };
        if (std::none_of(kinds.begin(), kinds.end(), same)) kinds.push_back(kind);
    });
}

bool Predicate::holds(const std::string& text) const {
    auto count = [&] { return std::count_if(kids.begin(), kids.end(), [&](const auto& kid) { return kid->holds(text); }); };
    switch (kind) {
        case Matches: return grammar_matches(*grammar, text);
        case UniqueItems: return unique_items(text);
        case Not: return !kids[0]->holds(text);
        case All: return static_cast<size_t>(count()) == kids.size();
        case Any: return count() > 0;
        case ExactlyOne: return count() == 1;
    }
    return false;
}

void Grammar::derive_object(ObjectSpec& object) {
    Exprs& x = *exprs_;
    std::vector<std::pair<std::string, uint32_t>> spelled;
    std::vector<std::string> names;
    object.by_name.clear();
    object.memo = std::make_shared<KeyMemo>();
    const size_t n = object.properties.size();
    for (uint32_t i = 0; i < n; ++i) {
        const Property& p = object.properties[i];
        if (!object.by_name.emplace(p.name, i).second) throw std::invalid_argument("property named twice: " + p.name);
        names.push_back(p.name);
        if (!alive(p.value)) continue;
        spelled.emplace_back(options().any_spelling ? p.name : json_spelling(p.name) + "\"", i);
    }
    object.key_set = x.string_set(std::move(spelled));
    std::vector<ExprId> live_extras;
    uint32_t cheapest = kInfinite;
    for (const ExtraKeys& extra : object.extras)
        if (alive(extra.value) && x.live(extra.keys)) {
            live_extras.push_back(extra.keys);
            cheapest = std::min(cheapest, costs_[extra.value]);
        }
    const ExprId unlisted = x.intersect({x.complement(x.strings(names)), x.any_text()});
    derive_supply(object, unlisted);
    object.extra_keys = x.intersect({x.alternate(live_extras), unlisted});
    if (!x.live(object.extra_keys)) object.extra_keys = kEmpty;
    object.extra_open = std::any_of(live_extras.begin(), live_extras.end(), [&](ExprId e) { return e == x.any_text() || x.is_only_phrases(e); });
    object.extra_count = object.extra_keys == kEmpty ? 0 : x.count_up_to(object.extra_keys, std::max(object.low, 1u));
    object.extra_cost = object.extra_keys == kEmpty ? kInfinite
                        : saturating_add(saturating_add(x.shortest_length(object.extra_keys), 4), cheapest);
    object.required_from.assign(n + 1, 0);
    object.possible_from.assign(n + 1, 0);
    for (size_t i = n; i-- > 0;) {
        const Property& p = object.properties[i];
        object.required_from[i] = object.required_from[i + 1] + (p.required ? 1 : 0);
        object.possible_from[i] = object.possible_from[i + 1] + (alive(p.value) ? 1 : 0);
    }
}

// Of a language that meets conditions, how many keys there are; of any other it does not matter.
void Grammar::derive_supply(ObjectSpec& object, ExprId unlisted) const {
    constexpr uint32_t kManyKeys = 512;
    object.supply.clear();
    object.scarce = false;
    if (!object.conditions) return;
    std::map<ExprId, uint32_t> numbers;
    for (ExtraKeys& extra : object.extras) {
        const auto [number, fresh] = numbers.emplace(extra.keys, static_cast<uint32_t>(object.supply.size()));
        if (fresh) object.supply.push_back(kInfinite);
        extra.language = number->second;
        uint32_t& supply = object.supply[extra.language];
        if (!extra.meets || supply != kInfinite) continue;
        const uint32_t count = exprs_->count_up_to(exprs_->intersect({extra.keys, unlisted}), kManyKeys);
        if (count < kManyKeys) supply = count, object.scarce = true;
    }
}

uint32_t Grammar::cost_of(NodeId id) const {
    const Node& n = nodes_[id];
    switch (n.kind) {
        case Node::Undefined: return kInfinite;
        case Node::Lexeme: return exprs_->shortest_length(n.expr);
        case Node::Verified:
        case Node::Alias: return costs_[n.kids[0]];
        case Node::Union:
        case Node::Rule: {
            uint32_t best = kInfinite;
            for (NodeId kid : n.kids) best = std::min(best, costs_[kid]);
            return best;
        }
        case Node::Sequence: {
            uint32_t sum = 0;
            for (NodeId kid : n.kids) sum = saturating_add(sum, costs_[kid]);
            return sum;
        }
        case Node::Array: {
            const ArraySpec& a = *n.array;
            if (a.low > a.high) return kInfinite;
            if (a.counted()) {  // the comma before the first item is none
                const uint32_t rest = counted_rest(a, 0, {}, false);
                if (a.num_listed && !a.kinds.empty() && !completable(a, 0, {}, UsedValues(a.group_sizes.size()), false)) return kInfinite;
                return rest == 0 ? 2 : saturating_add(rest, 1);
            }
            if (!a.values.empty()) {
                std::vector<uint32_t> costs;
                for (NodeId value : a.values) costs.push_back(costs_[value]);
                std::sort(costs.begin(), costs.end());
                if (a.low > costs.size()) return kInfinite;
                uint32_t sum = saturating_add(2, a.low ? a.low - 1 : 0);
                for (uint32_t i = 0; i < a.low; ++i) sum = saturating_add(sum, costs[i]);
                return sum;
            }
            uint32_t sum = saturating_add(2, a.low ? a.low - 1 : 0);
            const auto listed = static_cast<uint32_t>(std::min<size_t>(a.prefix.size(), a.low));
            for (uint32_t i = 0; i < listed; ++i) sum = saturating_add(sum, costs_[a.prefix[i]]);
            if (a.low > listed) sum = saturating_add(sum, a.rest == kNoNode ? kInfinite : saturating_mul(costs_[a.rest], a.low - listed));
            return sum;
        }
        case Node::Object: {
            const ObjectSpec& o = *n.object;
            uint32_t sum = 2, required = 0;
            std::vector<uint32_t> optional;
            for (const Property& p : o.properties) {
                const uint32_t value = p.value == kNoNode ? kInfinite : costs_[p.value];
                const uint32_t member = saturating_add(saturating_add(p.spelled_bytes, 4), value);
                if (p.required) sum = saturating_add(sum, member), ++required;
                else if (member != kInfinite) optional.push_back(member);
            }
            if (o.conditions) {
                const std::vector<uint32_t> left = o.supply.empty() ? std::vector<uint32_t>(o.extras.size(), kInfinite) : o.supply;
                const auto alive_cost = [&](const ExtraKeys& extra) { return exprs_->live(extra.keys) ? costs_[extra.value] : kInfinite; };
                const auto member_cost = [&](const ExtraKeys& extra) { return saturating_add(5, alive_cost(extra)); };
                const auto member = [&](const ExtraKeys& extra) { return alive_cost(extra) == kInfinite ? kInfinite : 1u; };
                sum = saturating_add(sum, cover(o, o.conditions, left, member_cost, saturating_add));
                required = saturating_add(required, cover(o, o.conditions, left, member, saturating_add));
            }
            if (required > o.high || o.low > o.high) return kInfinite;
            if (required < o.low) {
                uint32_t extra = kInfinite;
                for (const ExtraKeys& e : o.extras)
                    if (exprs_->live(e.keys) && costs_[e.value] != kInfinite) extra = std::min(extra, saturating_add(5, costs_[e.value]));
                std::sort(optional.begin(), optional.end());
                for (uint32_t k = 0; k < o.low - required; ++k) {
                    if (k < optional.size() && (extra == kInfinite || optional[k] <= extra)) {
                        sum = saturating_add(sum, optional[k]);
                    } else {
                        const uint32_t left = o.low - required - k;
                        sum = saturating_add(sum, saturating_mul(extra, left));
                        break;
                    }
                }
                // Finitely many extra keys may be too few; exact once the object's derived facts are known.
                if (!o.required_from.empty() && o.possible_from[0] < kInfinite - o.extra_count &&
                    o.possible_from[0] + o.extra_count < o.low) return kInfinite;
            }
            return sum;
        }
    }
    return kInfinite;
}

uint32_t Grammar::nesting_of(NodeId id) const {
    const Node& n = nodes_[id];
    uint32_t inner = 0;
    switch (n.kind) {
        case Node::Undefined: return kInfinite;
        case Node::Lexeme: return 0;
        case Node::Verified:
        case Node::Alias: return nestings_[n.kids[0]];
        case Node::Union:
        case Node::Rule: {
            uint32_t best = kInfinite;
            for (NodeId kid : n.kids)
                if (alive(kid)) best = std::min(best, nestings_[kid]);
            return best;
        }
        case Node::Sequence:
            for (NodeId kid : n.kids) inner = std::max(inner, nestings_[kid]);
            return inner;
        case Node::Array:
            if (n.array->counted() || !n.array->values.empty()) {
                const ArraySpec& a = *n.array;
                auto shallowest = [&](const std::vector<ItemChoice>& choices, uint32_t mask) {
                    uint32_t best = kInfinite;
                    for (const ItemChoice& c : choices)
                        if (alive(c.value) && (!mask || (c.counts_for & mask))) best = std::min(best, nestings_[c.value]);
                    return best;
                };
                for (uint32_t i = 0; i < std::min<size_t>(a.prefix_choices.size(), a.low); ++i) inner = std::max(inner, shallowest(a.prefix_choices[i], 0));
                for (size_t i = 0; i < a.contains.size(); ++i) {
                    if (a.contains[i].first == 0) continue;
                    uint32_t best = shallowest(a.rest_choices, 1u << i);
                    for (const auto& place : a.prefix_choices) best = std::min(best, shallowest(place, 1u << i));
                    inner = std::max(inner, best);
                }
                if (a.low && !a.values.empty()) {
                    std::vector<uint32_t> depths;
                    for (NodeId id : a.values) depths.push_back(alive(id) ? nestings_[id] : kInfinite);
                    std::sort(depths.begin(), depths.end());
                    inner = std::max(inner, depths[std::min<size_t>(a.low, depths.size()) - 1]);
                }
                return saturating_add(inner, 1);
            }
            for (uint32_t i = 0; i < n.array->low; ++i) {
                if (i >= n.array->prefix.size()) {
                    if (n.array->rest != kNoNode) inner = std::max(inner, nestings_[n.array->rest]);
                    break;
                }
                inner = std::max(inner, nestings_[n.array->prefix[i]]);
            }
            return saturating_add(inner, 1);
        case Node::Object: {
            const ObjectSpec& o = *n.object;
            std::vector<uint32_t> optional;
            uint32_t required = 0;
            for (const Property& p : o.properties) {
                if (p.required) inner = std::max(inner, p.value == kNoNode ? kInfinite : nestings_[p.value]), ++required;
                else if (alive(p.value)) optional.push_back(nestings_[p.value]);
            }
            uint32_t extra = kInfinite;
            for (const ExtraKeys& e : o.extras)
                if (alive(e.value)) extra = std::min(extra, nestings_[e.value]);
            const auto deeper = [](uint32_t a, uint32_t b) { return std::max(a, b); };
            if (o.conditions) inner = std::max(inner, cover(o, o.conditions, o.supply, [&](const ExtraKeys& e) { return nestings_[e.value]; }, deeper));
            std::sort(optional.begin(), optional.end());
            if (o.low > required) {
                const uint32_t missing = o.low - required;
                inner = std::max(inner, std::min(extra, optional.size() >= missing ? optional[missing - 1] : kInfinite));
            }
            return saturating_add(inner, 1);
        }
    }
    return kInfinite;
}

// Least fixpoints: a node no finite text derives from keeps the cost kInfinite.
void Grammar::analyse() {
    const size_t n = nodes_.size();
    for (Node& node : nodes_) {
        if (node.kind == Node::Lexeme) node.expr = lexeme(node.expr);
        if (node.object)
            for (Property& p : node.object->properties) p.spelled_bytes = static_cast<uint32_t>(json_spelling(p.name).size());
    }
    costs_.assign(n, kInfinite);
    while (true) {
        for (bool changed = true; changed;) {
            changed = false;
            for (NodeId id = static_cast<NodeId>(n); id-- > 0;) {  // what a node is made of was mostly added after it
                const uint32_t cost = cost_of(id);
                if (cost == costs_[id]) continue;
                costs_[id] = cost;
                changed = true;
            }
        }
        for (Node& node : nodes_) {
            if (node.array) derive_array(*node.array);
            if (node.object) derive_object(*node.object);
        }
        // Counting extra keys and closing arrays may have shown more nodes empty: then once more from the top.
        bool same = true;
        for (NodeId id = 0; id < n && same; ++id) same = cost_of(id) == costs_[id];
        if (same) break;
        costs_.assign(n, kInfinite);
    }
    nestings_.assign(n, kInfinite);
    for (bool changed = true; changed;) {
        changed = false;
        for (NodeId id = static_cast<NodeId>(n); id-- > 0;) {
            if (!alive(id)) continue;
            const uint32_t nesting = nesting_of(id);
            if (nesting == nestings_[id]) continue;
            nestings_[id] = nesting;
            changed = true;
        }
    }
    for (Node& node : nodes_) {
        if (!node.object) continue;
        for (const Property& p : node.object->properties)
            if (alive(p.value)) node.object->deepest = std::max(node.object->deepest, nestings_[p.value]);
        for (const ExtraKeys& extra : node.object->extras)
            if (alive(extra.value)) node.object->deepest = std::max(node.object->deepest, nestings_[extra.value]);
    }
}

}  // namespace safegen
