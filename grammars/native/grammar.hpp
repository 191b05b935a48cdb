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
    ExprId keys;         // decoded key language
    NodeId value;
    uint32_t meets = 0;  // bits of the conditions that such a member meets
};

struct ObjectSpec {
    std::vector<Property> properties;
    std::vector<ExtraKeys> extras;         // languages disjoint, or equal with different values
    uint32_t low = 0, high = kInfinite;
    uint32_t conditions = 0;               // bits: each must be met by some extra member; their keys are never used up

    // Derived.
    uint32_t key_set = 0;                  // in Exprs: names as they are spelled (with the closing quote), or decoded
    std::unordered_map<std::string, uint32_t> by_name;
    ExprId extra_keys = kEmpty;            // decoded keys that are no declared property and have a live value
    bool extra_open = false;               // extra keys are any text but the declared names: never used up
    uint32_t extra_count = 0;              // how many there are, capped at `low`
    std::vector<uint32_t> required_from;   // required properties at index >= i
    std::vector<uint32_t> possible_from;   // properties with a live value at index >= i
    uint32_t deepest = 0;                  // nesting that the deepest live value needs
    std::shared_ptr<KeyMemo> memo;
    uint32_t extra_cost = kInfinite;       // bytes of the cheapest extra member, comma included
};

// By set of conditions: the least cost of extra members that meet them. cost(extra): of one; join: of one and the rest.
template <class Cost, class Join>
std::vector<uint32_t> covers(const ObjectSpec& object, Cost&& cost, Join&& join) {
    std::vector<uint32_t> best(object.conditions + 1, kInfinite);
    best[0] = 0;
    for (uint32_t wanted = 1; wanted <= object.conditions; ++wanted)
        for (const ExtraKeys& extra : object.extras)
            if (extra.meets & wanted) best[wanted] = std::min(best[wanted], join(cost(extra), best[wanted & ~extra.meets]));
    return best;
}

constexpr size_t kMaxContains = 4;
using ContainsCounts = std::array<uint16_t, kMaxContains>;

// One way to fill an array position: a value, and which `contains` it counts for (bits).
struct ItemChoice {
    NodeId value = kNoNode;
    uint32_t counts_for = 0;
};

struct ArraySpec {
    std::vector<NodeId> prefix;
    NodeId rest = kNoNode;
    uint32_t low = 0, high = kInfinite;    // high is lowered to the first position that no value can fill

    // With `contains`: choices instead of prefix and rest, disjoint at each position.
    std::vector<std::pair<uint32_t, uint32_t>> contains;  // how many items must match, at least and at most
    std::vector<std::vector<ItemChoice>> prefix_choices;
    std::vector<ItemChoice> rest_choices;

    // Items must differ. distinct: `values` lists all there are, each usable once. unique: compared by value when an
    // item ends; open: item texts are never used up, so that this alone keeps every state live.
    std::vector<NodeId> values;
    bool unique = false, open = false;

    struct Memo {
        std::mutex mutex;
        std::unordered_map<std::string, bool> live;  // (position, counts) -> can still be completed
        std::unordered_map<std::string, uint32_t> rest;  // the same -> bytes of the items still needed
    };
    std::shared_ptr<Memo> memo;

    bool counted() const { return !contains.empty(); }
    const std::vector<ItemChoice>& choices(uint32_t position) const {
        return position < prefix_choices.size() ? prefix_choices[position] : rest_choices;
    }
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
    // Whether a counted array can still be completed with `position` items that gave these counts.
    bool completable(const ArraySpec& array, uint32_t position, const ContainsCounts& counts) const;
    // Bytes of the items that such an array still needs at least, each with a comma before it. remember: node costs are final.
    uint32_t counted_rest(const ArraySpec& array, uint32_t position, const ContainsCounts& counts, bool remember) const;
    bool alive(NodeId id) const { return id != kNoNode && costs_[id] != kInfinite; }
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
