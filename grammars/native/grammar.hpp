// JSON structure over lexemes: nodes, what each needs at least, and the expressions between them.
//
// A Grammar is immutable and shared. Its lexemes live in one Exprs table. `for_alphabet` gives the same grammar with
// every lexeme cut down to the bytes a vocabulary can spell one by one, so that byte liveness implies token liveness.
#pragma once
#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "grammars/native/exprs.hpp"

namespace safegen {

class Grammar;
using NodeId = uint32_t;
constexpr NodeId kNoNode = 0xFFFFFFFFu;

struct Property {
    std::string name;   // decoded UTF-8
    NodeId value = kNoNode;  // kNoNode: the name is forbidden
    bool required = false;
    uint32_t spelled_bytes = 0;  // derived: of the name as JSON spells it, without quotes
};

// Key lexemes by the index of the next property; shared by all states of the object.
struct KeyMemo {
    std::mutex mutex;
    std::unordered_map<uint32_t, ExprId> keys;
    enum Known : uint8_t { Unknown, Yes, No };
    std::atomic<Known> extras_last{Unknown};  // the extra keys are never used up
};

constexpr uint32_t kMaxConditions = 4;

struct ExtraKeys {
    ExprId keys;           // decoded key language
    NodeId value;
    uint32_t meets = 0;    // bits of the conditions that such a member meets
    uint32_t language = 0; // derived: its number in the object's supply
};

struct ObjectSpec {
    std::vector<Property> properties;
    std::vector<ExtraKeys> extras;         // languages disjoint, or equal with different values
    uint32_t low = 0, high = kInfinite;
    uint32_t conditions = 0;               // bits: each must be met by some extra member

    // Derived.
    uint32_t key_set = 0;                  // in Exprs: names as they are spelled (with the closing quote), or decoded
    std::unordered_map<std::string, uint32_t> by_name;
    ExprId extra_keys = kEmpty;            // decoded keys that are no declared property and have a live value
    bool extra_open = false;               // extra keys are any text but the declared names: never used up
    uint32_t extra_count = 0;              // how many there are, capped at `low`
    std::vector<uint32_t> supply;          // with conditions: keys of each language of `extras`; kInfinite: many
    bool scarce = false;                   // some condition's keys may be used up
    std::vector<uint32_t> required_from;   // required properties at index >= i
    std::vector<uint32_t> possible_from;   // properties with a live value at index >= i
    uint32_t deepest = 0;                  // nesting that the deepest live value needs
    std::shared_ptr<KeyMemo> memo;
    uint32_t extra_cost = kInfinite;       // bytes of the cheapest extra member, comma included
};

// Which extra members to take, so that conditions are met at the least cost. Of those that meet the same ones the cheapest
// with keys without end is enough, and as many with few keys as there may be conditions.
template <class Join>
class Cover {
public:
    template <class Cost>
    Cover(const ObjectSpec& object, uint32_t wanted, const std::vector<uint32_t>& left, Cost&& cost, Join join)
        : left_(left), join_(join) {
        for (const ExtraKeys& extra : object.extras) {
            const uint32_t met = extra.meets & wanted, price = met && left[extra.language] ? cost(extra) : kInfinite;
            if (price != kInfinite) offer({price, left[extra.language] >= kMaxConditions ? kMany : extra.language}, options_[met]);
        }
    }
    uint32_t least(uint32_t wanted) {
        if (!wanted) return 0;
        uint32_t best = kInfinite;
        for (uint32_t met = 1; met < options_.size(); ++met) {
            if (!(met & wanted & -wanted)) continue;  // the lowest condition first
            for (const auto& [price, language] : options_[met]) {
                if (language != kMany && !left_[language]) continue;
                if (language != kMany) --left_[language];
                best = std::min(best, join_(price, least(wanted & ~met)));
                if (language != kMany) ++left_[language];
            }
        }
        return best;
    }

private:
    static constexpr uint32_t kMany = kInfinite;
    using Option = std::pair<uint32_t, uint32_t>;  // price, language
    static void offer(const Option& option, std::vector<Option>& options) {
        for (Option& known : options)
            if (known.second == option.second) {
                known.first = std::min(known.first, option.first);
                return;
            }
        options.push_back(option);
        const auto dearest = [](const Option& x, const Option& y) { return (x.second == kMany ? 0 : x.first) < (y.second == kMany ? 0 : y.first); };
        if (options.size() > kMaxConditions + 1) options.erase(std::max_element(options.begin(), options.end(), dearest));
    }
    std::array<std::vector<Option>, 1u << kMaxConditions> options_;
    std::vector<uint32_t> left_;
    Join join_;
};

// The least cost of extra members that meet the conditions `wanted`. left: keys of each language that are unused.
// cost(extra): of one; join: of one and the rest.
template <class Cost, class Join>
uint32_t cover(const ObjectSpec& object, uint32_t wanted, const std::vector<uint32_t>& left, Cost&& cost, Join&& join) {
    return wanted ? Cover<std::decay_t<Join>>(object, wanted, left, cost, join).least(wanted) : 0;
}

constexpr size_t kMaxContains = 4;
using ContainsCounts = std::array<uint16_t, kMaxContains>;

constexpr uint32_t kUnlisted = 0xFFFFFFFFu;

// One way to fill an array position: a value, and which `contains` it counts for (bits).
struct ItemChoice {
    NodeId value = kNoNode;
    uint32_t counts_for = 0;
    uint32_t listed = kUnlisted;           // the number of a value that may be used once in the array
};

// Choices of one place that are alike for whether the array can be completed.
struct ItemKind {
    uint32_t counts_for = 0;
    uint32_t group = kUnlisted;            // of listed values that may stand at the same places
    NodeId value = kNoNode;                // one of them
};
using UsedValues = std::vector<uint16_t>;  // how many values of each group stand in the array

struct ArraySpec {
    std::vector<NodeId> prefix;
    NodeId rest = kNoNode;
    uint32_t low = 0, high = kInfinite;    // high is lowered to the first position that no value can fill

    // With `contains` or listed values: choices instead of prefix and rest, disjoint at each position.
    bool by_choice = false;
    std::vector<std::pair<uint32_t, uint32_t>> contains;  // how many items must match, at least and at most
    std::vector<std::vector<ItemChoice>> prefix_choices;
    std::vector<ItemChoice> rest_choices;
    uint32_t num_listed = 0;
    // Derived.
    std::vector<std::vector<ItemKind>> kinds;  // of each position, the rest last
    std::vector<uint32_t> group_of;            // by listed value
    UsedValues group_sizes;

    // Items must differ. distinct: `values` lists all there are, each usable once. unique: compared by value when an
    // item ends; open: item texts are never used up, so that this alone keeps every state live.
    std::vector<NodeId> values;
    bool unique = false, open = false;

    struct Memo {
        std::mutex mutex;
        std::unordered_map<std::string, bool> live;  // (position, counts, used values) -> can still be completed
        std::unordered_map<std::string, uint32_t> rest;  // (position, counts) -> bytes of the items still needed
    };
    std::shared_ptr<Memo> memo;

    bool counted() const { return by_choice; }
    const std::vector<ItemChoice>& choices(uint32_t position) const {
        return position < prefix_choices.size() ? prefix_choices[position] : rest_choices;
    }
    const std::vector<ItemKind>& kinds_at(uint32_t position) const { return kinds[std::min<size_t>(position, prefix_choices.size())]; }
    ContainsCounts counted_with(const ContainsCounts& counts, uint32_t counts_for) const;
};

// A condition on the whole text of a value: combinations of "is a text of this grammar" and "items differ".
struct Predicate {
    enum Kind : uint8_t { Matches, UniqueItems, Not, All, Any, ExactlyOne } kind = All;
    std::shared_ptr<const Grammar> grammar;
    std::vector<std::shared_ptr<const Predicate>> kids;
    bool holds(const std::string& text) const;
};

struct Node {
    enum Kind : uint8_t { Undefined, Lexeme, Union, Rule, Sequence, Array, Object, Alias, Verified } kind = Undefined;
    ExprId expr = kEmpty;
    std::vector<NodeId> kids;              // Union, Rule (a union whose calls at one place are shared), Sequence; Alias: one
    std::shared_ptr<ArraySpec> array;
    std::shared_ptr<ObjectSpec> object;
    std::string pointer;                   // schema position, for messages
    std::shared_ptr<const Predicate> predicate;  // Verified: what the text of kids[0] must satisfy when it is whole
};

class Grammar {
public:
    Grammar(std::shared_ptr<Exprs> exprs, std::vector<Node> nodes, NodeId root, const ByteSet* alphabet);

    Exprs& exprs() const { return *exprs_; }
    const Options& options() const { return exprs_->options(); }
    const Node& node(NodeId id) const { return nodes_[id]; }
    NodeId root() const { return root_; }
    NodeId resolve(NodeId id) const;       // through aliases
    uint32_t cost(NodeId id) const { return costs_[id]; }      // bytes of a shortest text; kInfinite: none
    uint32_t nesting(NodeId id) const { return nestings_[id]; }  // arrays and objects inside one another, at least
    // Whether a counted array can still be completed with `position` items that gave these counts. remember: node costs are final.
    bool completable(const ArraySpec& array, uint32_t position, const ContainsCounts& counts, const UsedValues& used, bool remember = true) const;
    // Bytes of the items that such an array still needs at least, each with a comma before it. remember: node costs are final.
    uint32_t counted_rest(const ArraySpec& array, uint32_t position, const ContainsCounts& counts, bool remember) const;
    bool alive(NodeId id) const { return id != kNoNode && costs_[id] != kInfinite; }
    bool takes_all_bytes() const { return cut_ == kAll; }
    void set_root(NodeId root) { root_ = root; }  // nothing that was derived depends on it
    std::shared_ptr<Grammar> for_alphabet(const ByteSet& alphabet) const;

    // Lexemes between the nodes, cut to the alphabet.
    ExprId open_array, open_object, close_array, close_object, close_empty_array, close_empty_object, comma, colon, margin;
    ExprId lexeme(ExprId e) const;         // cut to the alphabet
    ExprId key(const ObjectSpec& object, const OrderFilter* declared, ExprId extra) const;

private:
    void analyse();
    uint32_t cost_of(NodeId id) const;
    uint32_t nesting_of(NodeId id) const;
    void derive_object(ObjectSpec& object);
    void derive_array(ArraySpec& array);
    void derive_kinds(ArraySpec& array) const;
    void derive_supply(ObjectSpec& object, ExprId unlisted) const;
    bool never_used_up(NodeId id) const;

    std::shared_ptr<Exprs> exprs_;
    std::vector<Node> nodes_;
    NodeId root_;
    ExprId cut_ = kAll;                    // repetition of the alphabet, kAll when it is whole
    ByteSet alphabet_ = ByteSet::all();
    std::vector<uint32_t> costs_, nestings_;
};

std::string json_spelling(const std::string& decoded);  // canonical: raw UTF-8, shortest escapes, no quotes

}  // namespace safegen
