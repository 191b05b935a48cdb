// Python bindings of the constraint machine. The GIL is released around everything that can take long.
#include <cmath>
#include <optional>
#include <unordered_set>

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "grammars/native/frontier.hpp"
#include "grammars/native/matcher.hpp"
#include "grammars/native/pool.hpp"
#include "grammars/native/restrict.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace safegen {
namespace {

using Release = nb::call_guard<nb::gil_scoped_release>;

std::string text_of(const nb::bytes& b) { return std::string(static_cast<const char*>(b.data()), b.size()); }
nb::bytes bytes_of(const std::string& s) { return nb::bytes(s.data(), s.size()); }

class Builder {
public:
    explicit Builder(const Options& options) : exprs_(std::make_shared<Exprs>(options)) {}

    Exprs& exprs() const {
        if (!exprs_) throw std::logic_error("this builder was already built");
        return *exprs_;
    }
    ExprId known(ExprId e) const { return exprs().check(e); }
    const std::vector<ExprId>& known(const std::vector<ExprId>& parts) const {
        for (ExprId e : parts) known(e);
        return parts;
    }
    NodeId add(Node node) {
        exprs();
        analysed_.reset();
        nodes_.push_back(std::move(node));
        return static_cast<NodeId>(nodes_.size() - 1);
    }
    NodeId checked(NodeId id) const {
        if (id >= nodes_.size()) throw std::out_of_range("no node " + std::to_string(id));
        return id;
    }
    NodeId lexeme(ExprId e) {
        Node n;
        n.kind = Node::Lexeme;
        n.expr = exprs().live(known(e)) ? e : kEmpty;
        return add(std::move(n));
    }
    NodeId group(Node::Kind kind, const std::vector<NodeId>& kids) {
        Node n;
        n.kind = kind;
        for (NodeId kid : kids) n.kids.push_back(checked(kid));
        return add(std::move(n));
    }
    NodeId array(const std::vector<NodeId>& prefix, std::optional<NodeId> rest, uint32_t low, std::optional<uint32_t> high, bool unique, std::string pointer) {
        Node n;
        n.kind = Node::Array;
        n.array = std::make_shared<ArraySpec>();
        for (NodeId id : prefix) n.array->prefix.push_back(checked(id));
        n.array->rest = rest ? checked(*rest) : kNoNode;
        n.array->unique = unique;
        n.pointer = std::move(pointer);
        n.array->low = low;
        n.array->high = high.value_or(kInfinite);
        return add(std::move(n));
    }
    NodeId object(const std::vector<std::tuple<nb::bytes, std::optional<NodeId>, bool>>& properties,
                  const std::vector<std::pair<ExprId, NodeId>>& extras, uint32_t low, std::optional<uint32_t> high,
                  const std::vector<uint32_t>& meets, uint32_t conditions) {
        if (conditions > kMaxConditions) throw std::invalid_argument("an object takes at most 4 conditions");
        Node n;
        n.kind = Node::Object;
        n.object = std::make_shared<ObjectSpec>();
        for (const auto& [name, value, required] : properties) {
            const std::string text = text_of(name);
            if (!valid_utf8(text)) throw std::invalid_argument("a property name is not UTF-8");
            n.object->properties.push_back({text, value ? checked(*value) : kNoNode, required});
        }
        for (size_t i = 0; i < extras.size(); ++i) {
            const uint32_t bits = i < meets.size() ? meets[i] : 0;
            if (bits >> conditions) throw std::invalid_argument("an extra meets a condition that there is not");
            n.object->extras.push_back({known(extras[i].first), checked(extras[i].second), bits});
        }
        n.object->conditions = (1u << conditions) - 1;
        n.object->low = low;
        n.object->high = high.value_or(kInfinite);
        return add(std::move(n));
    }
    using Choices = std::vector<std::pair<NodeId, uint32_t>>;
    static std::vector<ItemChoice> choices(const Choices& pairs, const std::unordered_map<NodeId, uint32_t>& listed, size_t num_counts, const Builder& b) {
        std::vector<ItemChoice> out;
        for (const auto& [value, counts_for] : pairs) {
            if (counts_for >> num_counts) throw std::invalid_argument("an item adds to a count that there is not");
            const auto known = listed.find(value);
            out.push_back({b.checked(value), counts_for, known == listed.end() ? kUnlisted : known->second});
        }
        return out;
    }
    NodeId counted_array(const std::vector<Choices>& prefix, const Choices& rest, uint32_t low, std::optional<uint32_t> high,
                         const std::vector<std::pair<uint32_t, std::optional<uint32_t>>>& contains,
                         const std::vector<std::pair<NodeId, uint32_t>>& listed, bool unique) {
        constexpr uint32_t kMaxListed = 60'000;
        if (contains.size() > kMaxContains) throw std::invalid_argument("counted_array takes up to 4 counts");
        Node n;
        n.kind = Node::Array;
        n.array = std::make_shared<ArraySpec>();
        n.array->by_choice = true;
        for (const auto& [value, number] : listed) {
            if (number >= kMaxListed) throw std::invalid_argument("counted_array lists up to 60,000 values");
            n.array->num_listed = std::max(n.array->num_listed, number + 1);
        }
        const std::unordered_map<NodeId, uint32_t> numbers(listed.begin(), listed.end());
        for (const auto& place : prefix) n.array->prefix_choices.push_back(choices(place, numbers, contains.size(), *this));
        n.array->rest_choices = choices(rest, numbers, contains.size(), *this);
        n.array->low = low;
        n.array->high = high.value_or(kInfinite);
        n.array->unique = unique;
        for (const auto& [least, most] : contains) {
            if (std::max(least, most.value_or(0)) > 60'000) throw std::invalid_argument("a count of matching items is above 60,000");
            n.array->contains.emplace_back(least, most.value_or(kInfinite));
        }
        return add(std::move(n));
    }
    NodeId distinct_array(const std::vector<NodeId>& values, uint32_t low, std::optional<uint32_t> high) {
        if (values.empty()) throw std::invalid_argument("distinct_array takes at least one value");
        Node n;
        n.kind = Node::Array;
        n.array = std::make_shared<ArraySpec>();
        for (NodeId value : values) n.array->values.push_back(checked(value));
        n.array->low = low;
        n.array->high = high.value_or(kInfinite);
        return add(std::move(n));
    }
    NodeId verified(NodeId inner, std::shared_ptr<Predicate> predicate, std::string pointer) {
        Node n;
        n.kind = Node::Verified;
        n.kids = {checked(inner)};
        n.predicate = std::move(predicate);
        n.pointer = std::move(pointer);
        return add(std::move(n));
    }
    using Path = std::tuple<std::vector<std::tuple<std::string, nb::bytes, uint32_t>>, bool, bool>;
    std::tuple<NodeId, std::vector<std::string>, std::vector<std::string>> restricted(NodeId root, ExprId language, const std::vector<Path>& paths, bool json) {
        std::vector<ScopePath> scope;
        for (const auto& [steps, of_keys, leaves_out] : paths) {
            scope.push_back({{}, of_keys, leaves_out});
            for (const auto& [kind, name, index] : steps) {
                const auto step = kind == "name" ? PathStep::Name : kind == "index" ? PathStep::Index : kind == "any" ? PathStep::Any : PathStep::Below;
                scope.back().steps.push_back({step, text_of(name), index});
            }
        }
        nb::gil_scoped_release release;
        analysed_.reset();
        Restriction restriction(exprs(), nodes_, known(language), std::move(scope), json);
        const NodeId node = restriction.apply(checked(root));
        return {node, restriction.refused_names(), restriction.emptied()};
    }
    void define(NodeId reserved, NodeId node) {
        if (nodes_[checked(reserved)].kind != Node::Undefined) throw std::invalid_argument("node is already defined");
        analysed_.reset();
        nodes_[reserved].kind = Node::Alias;
        nodes_[reserved].kids = {checked(node)};
    }
    // Of all nodes there are, with what is derived for them; kept until there are more.
    const std::shared_ptr<Grammar>& analysed() const {
        exprs();
        if (analysed_) return analysed_;
        auto copy = nodes_;
        for (Node& n : copy) {
            if (n.array) n.array = std::make_shared<ArraySpec>(*n.array);
            if (n.object) n.object = std::make_shared<ObjectSpec>(*n.object);
        }
        return analysed_ = std::make_shared<Grammar>(exprs_, std::move(copy), NodeId{0}, nullptr);
    }
    bool node_is_empty(NodeId id) const { return !analysed()->alive(checked(id)); }
    std::shared_ptr<Program> build(NodeId root) {
        auto g = analysed();
        g->set_root(checked(root));
        if (g->cost(root) != kInfinite && g->cost(root) > g->options().max_completion_bytes)
            throw LimitExceeded("the shortest answer is longer than " + std::to_string(g->options().max_completion_bytes) + " bytes (a fixed limit)");
        if (g->alive(root) && g->nesting(root) > g->options().max_nesting)
            throw LimitExceeded("every answer nests arrays and objects more than " + std::to_string(g->options().max_nesting) + " deep (max_nesting)");
        exprs_->lift_deadline();
        auto out = std::make_shared<Program>(g);
        exprs_.reset();
        nodes_.clear();
        analysed_.reset();
        return out;
    }

private:
    std::shared_ptr<Exprs> exprs_;
    std::vector<Node> nodes_;
    mutable std::shared_ptr<Grammar> analysed_;
};

nb::tuple frontier_of(const Frontier& found) {
    nb::list waiting;
    for (const Waiting& w : found.waiting) {
        nb::list open, texts;
        for (const OpenValue& value : w.open) {
            const std::optional<uint32_t> start = value.start == kInfinite ? std::nullopt : std::optional(value.start);
            open.append(nb::make_tuple(value.nodes, start));
        }
        for (const std::string& text : w.texts) texts.append(bytes_of(text));
        waiting.append(nb::make_tuple(w.role, open, w.rules, texts, w.all, bytes_of(w.first)));
    }
    return nb::make_tuple(found.bytes_read, found.can_end, waiting, found.failures);
}

using MaskArray = nb::ndarray<int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

struct MaskBuffer {
    MaskArray array;
    int32_t* rows;
    size_t num_rows, words;
};

MaskBuffer buffer_of(const MaskArray& words) { return {words, words.data(), words.shape(0), words.shape(1)}; }

int32_t* rows_for(const Matcher& m, const MaskBuffer& buffer, size_t count) {
    if (buffer.num_rows < count) throw std::invalid_argument("words needs a row for each draft token and one more");
    if (buffer.words != m.compiled().vocabulary->words()) throw std::invalid_argument("words has the wrong width for this vocabulary");
    return buffer.rows;
}

size_t fill(Matcher& m, const std::vector<uint32_t>& draft, const MaskBuffer& buffer) {
    int32_t* rows = rows_for(m, buffer, draft.size() + 1);
    nb::gil_scoped_release release;
    return m.fill(draft, rows);
}

size_t fill_next(Matcher& m, const MaskBuffer& buffer) {
    static const std::vector<uint32_t> kNone;
    int32_t* rows = rows_for(m, buffer, 1);
    nb::gil_scoped_release release;
    return m.fill(kNone, rows);
}

// The rows of many sequences. Returns what went wrong with each, None where nothing did.
std::vector<std::optional<std::string>> fill_batch(const std::vector<Matcher*>& matchers, const std::vector<std::vector<uint32_t>>& drafts,
                                                   const MaskBuffer& buffer, const std::vector<size_t>& first_rows) {
    const size_t n = matchers.size();
    if (drafts.size() != n || first_rows.size() != n) throw std::invalid_argument("a batch needs a draft and a first row for each matcher");
    for (size_t i = 0; i < n; ++i) {
        if (!matchers[i]) throw std::invalid_argument("a batch holds matchers alone");
        rows_for(*matchers[i], buffer, first_rows[i] + drafts[i].size() + 1);
    }
    std::vector<std::optional<std::string>> faults(n);
    nb::gil_scoped_release release;
    for_each_in_parallel(n, [&](size_t i) {
        try {
            matchers[i]->fill(drafts[i], buffer.rows + first_rows[i] * buffer.words);
        } catch (const std::exception& error) {
            faults[i] = error.what();
        }
    });
    return faults;
}

}  // namespace

void bind_grammars(nb::module_& m) {
    nb::exception<LimitExceeded>(m, "LimitExceeded");
    nb::exception<Violation>(m, "Violation");

    nb::class_<Program>(m, "Program")
        .def("matches", [](const Program& p, const nb::bytes& t) { auto s = text_of(t); nb::gil_scoped_release r; return p.matches(s); }, "text"_a)
        .def("longest_prefix", [](const Program& p, const nb::bytes& t) { auto s = text_of(t); nb::gil_scoped_release r; return p.longest_prefix(s); }, "text"_a)
        .def("expected", [](const Program& p, const nb::bytes& t) { return bytes_of(p.expected(text_of(t))); }, "text"_a)
        .def("frontier", [](const Program& p, const nb::bytes& t) {
                 auto s = text_of(t);
                 Frontier found;
                 {
                     nb::gil_scoped_release r;
                     found = frontier(p.grammar(), s);
                 }
                 return frontier_of(found);
             }, "text"_a)
        .def("fullness", [](const Program& p) { return p.grammar().exprs().fullness(); })
        .def("memory_bytes", &Program::memory_bytes);

    nb::class_<Predicate>(m, "Predicate")
        .def_static("matches", [](const Program& p) { return std::make_shared<Predicate>(Predicate{Predicate::Matches, p.shared_grammar(), {}}); }, "program"_a)
        .def_static("unique_items", [] { return std::make_shared<Predicate>(Predicate{Predicate::UniqueItems, nullptr, {}}); })
        .def_static("none_of", [](const std::shared_ptr<Predicate>& p) { return std::make_shared<Predicate>(Predicate{Predicate::Not, nullptr, {p}}); }, "predicate"_a)
        .def_static("all_of", [](const std::vector<std::shared_ptr<Predicate>>& p) { return std::make_shared<Predicate>(Predicate{Predicate::All, nullptr, {p.begin(), p.end()}}); }, "predicates"_a)
        .def_static("any_of", [](const std::vector<std::shared_ptr<Predicate>>& p) { return std::make_shared<Predicate>(Predicate{Predicate::Any, nullptr, {p.begin(), p.end()}}); }, "predicates"_a)
        .def_static("exactly_one_of", [](const std::vector<std::shared_ptr<Predicate>>& p) { return std::make_shared<Predicate>(Predicate{Predicate::ExactlyOne, nullptr, {p.begin(), p.end()}}); }, "predicates"_a)
        .def("holds", [](const Predicate& p, const nb::bytes& t) { auto s = text_of(t); nb::gil_scoped_release r; return p.holds(s); }, "text"_a);

    nb::class_<LetterMap>(m, "LetterMap")
        .def("__init__", [](LetterMap* self, std::vector<CodePoints> letters, const std::vector<std::tuple<uint32_t, uint32_t, uint32_t>>& ranges, uint32_t other) {
                 std::vector<LetterMap::Range> list;
                 for (const auto& [low, high, letter] : ranges) list.push_back({low, high, letter});
                 nb::gil_scoped_release release;
                 new (self) LetterMap(std::move(letters), list, other);
             }, "letters"_a, "ranges"_a, "other"_a);

    nb::class_<Builder>(m, "Builder")
        .def("__init__", [](Builder* self, uint32_t max_states, uint32_t whitespace, bool any_order, bool any_spelling,
                            uint32_t max_digits, uint32_t max_exponent_digits, uint32_t max_nesting, double deadline_s) {
                 Options o;
                 o.max_states = max_states;
                 o.whitespace = whitespace;
                 o.any_order = any_order;
                 o.any_spelling = any_spelling;
                 o.max_digits = std::min(max_digits, 10'000u);
                 o.max_exponent_digits = std::min(max_exponent_digits, 6u);
                 o.deadline_s = std::isfinite(deadline_s) ? deadline_s : 0;
                 o.max_nesting = std::min(max_nesting, 60'000u);
                 new (self) Builder(o);
             },
             nb::kw_only(), "max_states"_a = 200'000, "whitespace"_a = 0, "any_order"_a = false, "any_spelling"_a = false,
             "max_digits"_a = 64, "max_exponent_digits"_a = 3, "max_nesting"_a = 512, "deadline_s"_a = 0.0)
        .def("empty", [](Builder& b) { b.exprs(); return kEmpty; })
        .def("epsilon", [](Builder& b) { b.exprs(); return kEpsilon; })
        .def("any_text", [](Builder& b) { return b.exprs().any_text(); })
        .def("byte_set", [](Builder& b, const std::vector<std::pair<int, int>>& ranges) {
                 ByteSet set;
                 for (const auto& [low, high] : ranges) {
                     if (low < 0 || high > 255) throw std::out_of_range("byte_set takes bytes");
                     set = set | ByteSet::range(low, high);
                 }
                 return b.exprs().bytes(set);
             }, "ranges"_a)
        .def("chars", [](Builder& b, const std::vector<std::pair<uint32_t, uint32_t>>& ranges) { return b.exprs().chars(ranges); }, "ranges"_a)
        .def("literal", [](Builder& b, const nb::bytes& t) { return b.exprs().literal(text_of(t)); }, "text"_a)
        .def("concat", [](Builder& b, const std::vector<ExprId>& p) { return b.exprs().concat(b.known(p)); }, "parts"_a)
        .def("alternate", [](Builder& b, const std::vector<ExprId>& p) { return b.exprs().alternate(b.known(p)); }, "parts"_a)
        .def("intersect", [](Builder& b, const std::vector<ExprId>& p) { return b.exprs().intersect(b.known(p)); }, "parts"_a)
        .def("complement", [](Builder& b, ExprId p) { return b.exprs().complement(b.known(p)); }, "part"_a)
        .def("repeat", [](Builder& b, ExprId p, uint32_t low, std::optional<uint32_t> high) { return b.exprs().repeat(b.known(p), low, high.value_or(kInfinite)); },
             "part"_a, "low"_a, "high"_a.none())
        .def("strings", [](Builder& b, const std::vector<nb::bytes>& values) {
                 std::vector<std::string> out;
                 out.reserve(values.size());
                 for (const auto& v : values) out.push_back(text_of(v));
                 return b.exprs().strings(std::move(out));
             }, "values"_a)
        .def("json_string", [](Builder& b, ExprId content) { return b.exprs().concat({b.exprs().literal("\""), b.exprs().json_body(b.known(content))}); }, "content"_a, Release())
        .def("number", [](Builder& b, bool integer, bool plain, std::optional<std::string> low, bool low_exclusive,
                          std::optional<std::string> high, bool high_exclusive, std::optional<std::string> multiple_of,
                          const std::vector<std::string>& not_multiples_of) {
                 NumberSpec spec;
                 spec.integer = integer;
                 spec.plain = plain;
                 if (low) spec.low = Decimal::parse(*low);
                 if (high) spec.high = Decimal::parse(*high);
                 spec.low_exclusive = low_exclusive;
                 spec.high_exclusive = high_exclusive;
                 spec.max_digits = b.exprs().options().max_digits;
                 spec.max_exponent_digits = b.exprs().options().max_exponent_digits;
                 spec.set_divisor(multiple_of);
                 for (const std::string& other : not_multiples_of) spec.exclude(other);
                 spec.check();
                 return b.exprs().number(spec);
             }, nb::kw_only(), "integer"_a, "plain"_a, "low"_a = nb::none(), "low_exclusive"_a = false, "high"_a = nb::none(),
             "high_exclusive"_a = false, "multiple_of"_a = nb::none(), "not_multiples_of"_a = std::vector<std::string>())
        .def("ecma_pattern", [](Builder& b, const std::vector<nb::bytes>& properties) {
                 PatternProperties names;
                 for (const auto& name : properties) names.push_back(text_of(name));
                 return b.exprs().ecma_pattern(std::move(names));
             }, "properties"_a)
        .def("without_phrases", [](Builder& b, const LetterMap& letters, const std::vector<CodePoints>& phrases, bool word,
                                   std::vector<std::pair<uint32_t, uint32_t>> word_ranges) {
                 nb::gil_scoped_release release;
                 return b.exprs().without_phrases(PhraseAutomaton(letters, phrases, word, std::move(word_ranges)));
             }, "letters"_a, "phrases"_a, nb::kw_only(), "word"_a = false, "word_ranges"_a = std::vector<std::pair<uint32_t, uint32_t>>{})
        .def("folded", [](Builder& b, const LetterMap& letters, ExprId e) { return b.exprs().folded(letters, b.known(e)); }, "letters"_a, "expr"_a, Release())
        .def("is_empty", [](Builder& b, ExprId e) { return !b.exprs().live(b.known(e)); }, "expr"_a, Release())
        .def("is_nullable", [](Builder& b, ExprId e) { return b.exprs().nullable(b.known(e)); }, "expr"_a)
        .def("count_up_to", [](Builder& b, ExprId e, uint32_t limit) { return b.exprs().count_up_to(b.known(e), limit); }, "expr"_a, "limit"_a)
        .def("texts", [](Builder& b, ExprId e, uint32_t limit) -> std::optional<std::vector<nb::bytes>> {
                 const auto found = b.exprs().texts(b.known(e), limit);
                 if (!found) return std::nullopt;
                 std::vector<nb::bytes> out;
                 for (const std::string& text : *found) out.push_back(bytes_of(text));
                 return out;
             }, "expr"_a, "limit"_a)
        .def("count_states", [](Builder& b, ExprId start, uint32_t limit) {
                 std::vector<ExprId> open{b.known(start)};
                 std::unordered_set<ExprId> seen(open.begin(), open.end());
                 while (!open.empty() && seen.size() < limit) {
                     const Expansion* x = b.exprs().expansion(open.back());
                     open.pop_back();
                     x->first.each([&](uint8_t byte) {
                         if (seen.insert(x->next(byte)).second) open.push_back(x->next(byte));
                     });
                 }
                 return std::min<size_t>(seen.size(), limit);
             }, "expr"_a, "limit"_a, Release())
        .def("matches_expr", [](Builder& b, ExprId e, const nb::bytes& t) { return b.exprs().matches(b.known(e), text_of(t)); }, "expr"_a, "text"_a)
        .def("lexeme", &Builder::lexeme, "expr"_a, Release())
        .def("union", [](Builder& b, const std::vector<NodeId>& kids) { return b.group(Node::Union, kids); }, "nodes"_a)
        .def("rule", [](Builder& b, const std::vector<NodeId>& kids) { return b.group(Node::Rule, kids); }, "nodes"_a)
        .def("sequence", [](Builder& b, const std::vector<NodeId>& kids) { return b.group(Node::Sequence, kids); }, "nodes"_a)
        .def("array", &Builder::array, "prefix"_a, "rest"_a.none(), "low"_a, "high"_a.none(), nb::kw_only(), "unique"_a = false, "pointer"_a = "")
        .def("counted_array", &Builder::counted_array, "prefix"_a, "rest"_a, "low"_a, "high"_a.none(), "contains"_a, nb::kw_only(),
             "listed"_a = std::vector<std::pair<NodeId, uint32_t>>{}, "unique"_a = false)
        .def("distinct_array", &Builder::distinct_array, "values"_a, "low"_a, "high"_a.none())
        .def("verified", &Builder::verified, "inner"_a, "predicate"_a, nb::kw_only(), "pointer"_a = "")
        .def("object", &Builder::object, "properties"_a, "extras"_a, "low"_a, "high"_a.none(), nb::kw_only(),
             "meets"_a = std::vector<uint32_t>(), "conditions"_a = 0)
        .def("reserve", [](Builder& b) { return b.add(Node{}); })
        .def("define", &Builder::define, "reserved"_a, "node"_a)
        .def("restricted", &Builder::restricted, "node"_a, "language"_a, "paths"_a, nb::kw_only(), "json"_a)
        .def("node_is_empty", &Builder::node_is_empty, "node"_a, Release())
        .def("build", &Builder::build, "root"_a, Release());

    nb::class_<Vocabulary>(m, "Vocabulary")
        .def("__init__", [](Vocabulary* self, const nb::sequence& tokens, const std::vector<uint32_t>& stop_ids) {
                 std::vector<std::string> out;
                 for (nb::handle token : tokens) {
                     if (token.is_none()) out.emplace_back();
                     else out.push_back(text_of(nb::cast<nb::bytes>(token)));
                 }
                 new (self) Vocabulary(std::move(out), stop_ids);
                 nb::gil_scoped_release release;
                 self->free_text();
             }, "token_bytes"_a, "stop_ids"_a)
        .def_prop_ro("size", &Vocabulary::size)
        .def_prop_ro("stop_ids", &Vocabulary::stop_ids)
        .def("longest_match", [](const Vocabulary& v, const nb::bytes& t) { return v.fewest_tokens(text_of(t)); }, "text"_a);

    nb::class_<MaskBuffer>(m, "MaskBuffer")
        .def("__init__", [](MaskBuffer* self, const MaskArray& words) { new (self) MaskBuffer(buffer_of(words)); }, "words"_a);

    m.def("fill_batch", &fill_batch, "matchers"_a, "drafts"_a, "words"_a, "first_rows"_a);

    nb::class_<Matcher>(m, "Matcher")
        .def("__init__", [](Matcher* self, std::shared_ptr<Program> program, std::shared_ptr<Vocabulary> vocabulary, size_t cache_bytes) {
                 nb::gil_scoped_release release;
                 new (self) Matcher(program->bind(vocabulary, cache_bytes));
             }, "program"_a, "vocabulary"_a, nb::kw_only(), "cache_bytes"_a = size_t{64} << 20)
        .def("fill", &fill, "draft"_a, "words"_a)
        .def("fill", [](Matcher& matcher, const std::vector<uint32_t>& draft, const MaskArray& words) { return fill(matcher, draft, buffer_of(words)); },
             "draft"_a, "words"_a)
        .def("fill_next", &fill_next, "words"_a)
        .def("advance", [](Matcher& m, const std::vector<uint32_t>& ids) -> std::optional<std::tuple<size_t, nb::bytes, std::string>> {
                 std::optional<WentBack> back;
                 {
                     nb::gil_scoped_release release;
                     back = m.advance(ids);
                 }
                 if (!back) return std::nullopt;
                 return std::tuple{back->kept_tokens, bytes_of(back->forced_prefix), back->pointer};
             }, "ids"_a)
        .def("legal_prefix", &Matcher::legal_prefix, "prefix"_a, "ids"_a, Release())
        .def("settled", &Matcher::settled)
        // What is known is told with the GIL held: another thread that waits for it would have it first.
        .def("forced", [](const Matcher& m) {
                 if (const auto known = m.known_forced()) return bytes_of(*known);
                 std::string text;
                 {
                     nb::gil_scoped_release release;
                     text = m.forced();
                 }
                 return bytes_of(text);
             })
        .def("can_end", &Matcher::can_end)
        .def("is_complete", &Matcher::is_complete)
        .def("shortest_completion", [](Matcher& m) {
                 if (auto known = m.known_completion()) return *std::move(known);
                 nb::gil_scoped_release release;
                 return m.shortest_completion();
             })
        .def("text", [](const Matcher& m) { return bytes_of(m.text()); })
        .def("fork", [](const Matcher& m) { return Matcher(m); });
}

}  // namespace safegen
