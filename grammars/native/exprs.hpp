// Regular languages over bytes as hash-consed expressions, determinised lazily by derivatives.
//
// An expression id is an automaton state: its derivative by a byte is another id. Counted repetition, intersection and
// complement are expressions like any other, so nothing is unrolled and every operation is exact. `next(e, b)` is 0
// exactly when no accepted text continues so (liveness): residual emptiness is decided by a search over derivatives
// whose results are remembered. Besides the classical kinds there are leaves with their own derivative: finite
// languages (sorted strings), filtered key sets, JSON numbers, texts of regular expressions, texts without certain phrases
// under a folding, and the lifts of a language of decoded text through JSON escapes and of one of folded text. Sources:
// Brzozowski, "Derivatives of regular expressions" (1964); Owens, Reppy and Turon, "Regular-expression derivatives
// re-examined" (2009).
//
// Thread safety: tables grow under one mutex; transitions of expanded states are read without a lock.
#pragma once
#include <array>
#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "grammars/native/bans.hpp"
#include "grammars/native/byteset.hpp"
#include "grammars/native/decimal.hpp"
#include "grammars/native/ecma_pattern.hpp"
#include "grammars/native/limits.hpp"
#include "grammars/native/stable_vector.hpp"

namespace safegen {

using ExprId = uint32_t;
constexpr ExprId kEmpty = 0;    // no text
constexpr ExprId kEpsilon = 1;  // the empty text
constexpr ExprId kAll = 2;      // every byte string

enum class Kind : uint8_t {
    Empty, Epsilon, All, Bytes, Concat, Or, And, Not, Repeat,
    Strings,    // a: string set, b: filter + 1 or 0, c..d: range of the sorted values, e: bytes matched
    JsonBody,   // a: decoded language; up to and with the closing quote
    JsonEscape, // after a backslash
    JsonHex,    // a, b: digits read, c: value; first unit of \uXXXX
    JsonLow,    // a, b: high surrogate, c: stage (0 backslash, 1 'u', 2.. digits + 2), d: value
    Number,     // a: state
    Pattern,    // a: state, b: list of properties
    Phrases,    // a: state, b: node of its letter map, c: automaton; texts without certain phrases
    Folded,     // a: language of folded text, b: node of the letter map, c: letter map; texts whose folding is in it
};

// Sorted distinct strings with an order (property index) each.
struct StringSet {
    std::vector<std::string> values;
    std::vector<uint32_t> order;
    bool keys = false;  // names as JSON spells them
};

// Which strings of a set count: an interval of orders, or a bitmap over orders.
struct OrderFilter {
    uint32_t low = 0, high = kInfinite;      // inclusive interval; used when bits is empty
    std::vector<uint64_t> bits;
    bool keeps(uint32_t order) const {
        if (bits.empty()) return order >= low && order <= high;
        return order / 64 < bits.size() && ((bits[order / 64] >> (order % 64)) & 1);
    }
    bool operator==(const OrderFilter&) const = default;
};

// A string state that reads a run of characters of one class, `low` to `high` of them, then `rest`.
struct CharRun {
    ByteSet whole, partial;   // first bytes of characters: all that begin so are in the class; some are
    bool any = false;         // it has all characters
    uint32_t low = 0, high = kInfinite;
    bool more = false;        // a rest that is not empty
    ByteSet more_bytes;       // bytes of decoded text that may occur in it
    bool apart = true;        // no character of the class begins it
    std::vector<std::string_view> except;  // texts that are none of it after all
};

// A string state in which the characters of a text soon cease to matter. By the first character it goes on in one of few
// groups; while only the group's own characters follow, the text may go on, and ends or does not end.
struct CharGroups {
    static constexpr uint8_t kDead = 255, kMixed = 254;  // no text begins so; what it leads to depends on the character
    struct Group {
        ByteSet own;                       // first bytes of characters
        bool ends = false, ends_later = false;  // after the first character; after more
    };
    std::vector<Group> groups;
    std::array<uint8_t, 256> of{};         // by first byte of the first character
    ByteSet alphabet;                      // bytes of decoded text that may occur
    bool ends_now = false;
    uint32_t low = 0, high = kInfinite;    // characters of all that is left
    uint32_t reserve = 0;                  // so many are enough to end a text that keeps within its group
};

// A string state that reads any text, but for what is left of some names: of those only the listed ones end it.
struct NameState {
    std::vector<std::string_view> listed;  // with the closing quote, as they are spelled; ascending
    std::vector<std::string_view> names;   // all of them, without it; ascending
};

// Derivatives by classes of bytes, dead ones being kEmpty.
class Expansion {
public:
    ExprId next(uint8_t byte) const { return to[cls[byte]]; }
    ByteSet first;

private:
    friend class Exprs;
    const uint8_t* cls = nullptr;
    std::vector<ExprId> to;
};

class Exprs {
public:
    explicit Exprs(const Options& options);
    ~Exprs();
    Exprs(const Exprs&) = delete;
    Exprs& operator=(const Exprs&) = delete;

    // --- building (each takes the lock) ---
    ExprId bytes(const ByteSet& set);
    ExprId chars(const std::vector<std::pair<uint32_t, uint32_t>>& ranges);
    ExprId literal(std::string_view text);
    ExprId concat(const std::vector<ExprId>& parts);
    ExprId alternate(const std::vector<ExprId>& parts);
    ExprId intersect(const std::vector<ExprId>& parts);
    ExprId complement(ExprId part);
    ExprId repeat(ExprId part, uint32_t low, uint32_t high);
    ExprId strings(std::vector<std::string> values);
    ExprId any_text();
    ExprId json_body(ExprId content);
    ExprId number(const NumberSpec& spec);
    ExprId ecma_pattern(PatternProperties properties);  // texts of regular expressions
    ExprId without_phrases(PhraseAutomaton automaton);
    ExprId folded(LetterMap map, ExprId language);  // language: of text
    ExprId text_within(ExprId e, ExprId language);  // the texts of e that are in it
    ExprId json_within(ExprId e, ExprId language);  // the JSON values of e that are no strings, or decode to one in it
    uint32_t string_set(std::vector<std::pair<std::string, uint32_t>> values);  // distinct strings, each with its order
    ExprId keys(uint32_t set, const OrderFilter& filter);
    ExprId check(ExprId e) const;           // e, or std::out_of_range

    // --- running ---
    ExprId next(ExprId e, uint8_t byte) { return expansion(e)->next(byte); }
    const Expansion* expansion(ExprId e) {
        const Expansion* known = meta(e).expansion.load(std::memory_order_acquire);
        return known ? known : expand(e);
    }
    // The same for a few bytes, without all others: what is not expanded yet stays so.
    ExprId step(ExprId e, uint8_t byte) {
        const Expansion* known = meta(e).expansion.load(std::memory_order_acquire);
        return known ? known->next(byte) : lazy_step(e, byte);
    }
    // Those of `bytes` that may go on from e, perhaps more; asks for no more than a few derivatives where it can.
    ByteSet worth_trying(ExprId e, const ByteSet& bytes);
    bool nullable(ExprId e) const { return meta(e).nullable; }
    bool live(ExprId e);                        // some text is accepted
    uint32_t shortest_length(ExprId e);         // bytes; kInfinite when empty
    std::string shortest(ExprId e);             // e must be live
    bool matches(ExprId e, std::string_view text);
    uint32_t count_up_to(ExprId e, uint32_t limit);  // number of accepted texts, at most `limit`
    std::optional<std::vector<std::string>> texts(ExprId e, uint32_t limit);  // all of them, when they are at most `limit`
    // No text is the last of its beginning: each beginning of an accepted text starts longer ones without end. False,
    // too, where that takes more than max_states to see.
    bool never_used_up(ExprId e, size_t max_states);
    // Whether e allows, for `bytes` more bytes, all that `reference` allows (closing quotes aside). reference: a state of
    // the free JSON string. A sufficient condition, decided from the expressions alone. ending: closing quotes agree too.
    bool covers(ExprId e, ExprId reference, uint32_t bytes, bool& ending) const;
    std::optional<NameState> name_state(ExprId e, size_t max_names);
    // What is left to read of a finite language; nothing for other expressions, or when it is more than max_texts.
    std::optional<std::vector<std::string_view>> finite(ExprId e, size_t max_texts);
    std::optional<CharRun> char_run(ExprId e);  // of a JSON string body at a character's beginning
    std::optional<CharGroups> char_groups(ExprId e);  // the same
    // Of texts without phrases, or of a JSON string body with such a text: the place, and the expression of another one.
    std::optional<PhrasePlace> phrase_place(ExprId e, bool& json) const;
    ExprId at_place(ExprId like, const PhrasePlace& place);
    ExprId with_phrases_at_start(ExprId e);  // e as it would be had no phrase begun
    // Of a JSON string body that asks for a text without phrases and for more: the body that asks for the former alone.
    std::optional<ExprId> body_without_phrases(ExprId e);
    bool has_bans() const { return has_bans_.load(std::memory_order_relaxed); }  // phrases or foldings
    bool is_only_phrases(ExprId e) const;       // any text but for some phrases: never used up
    bool is_free_string(ExprId e) const;        // a JSON string literal with nothing asked of its text
    ByteSet alphabet(ExprId e);                 // bytes that can occur at all
    size_t num_states() const { return num_raws_.load(std::memory_order_relaxed); }
    size_t memory_bytes() const { return memory_bytes_.load(std::memory_order_relaxed); }
    double fullness() const;                    // the largest share of a limit that is used up, 0 to 1
    const Options& options() const { return options_; }
    void lift_deadline() { has_deadline_ = false; }  // the program is built

private:
    struct Node {
        Kind kind;
        uint32_t a = 0, b = 0, c = 0, d = 0, e = 0;
        std::vector<ExprId> kids;
        bool operator==(const Node&) const = default;
    };
    struct NumberHash {
        size_t operator()(const NumberState& s) const;
    };
    struct Facts {
        uint32_t min_bytes = 0, max_bytes = kInfinite;  // bounds on the length of accepted texts
        uint32_t effort = 0;  // guides a search for any text: min_bytes, but all that an intersection asks for together
        uint32_t depth = 1;
        bool pure = true;   // non-empty by construction
        bool text = false;  // every accepted text is well-formed UTF-8
        // Of languages of text: for `free_bytes` more bytes any text at all may be read, and wherever that leaves off,
        // at most `close_bytes` more complete it. absorbing: what is accepted stays so under any further text, perhaps
        // once it is longer than close_bytes. end_bytes: every whole text of no more bytes is accepted.
        uint32_t free_bytes = 0, close_bytes = kInfinite, end_bytes = 0;
        bool absorbing = false;
    };
    struct Raw {  // derivatives by byte class, liveness not yet decided
        uint8_t cls[256];
        std::vector<ExprId> to;
        std::vector<ByteSet> classes;
        uint8_t sample(size_t c) const;  // a byte of a class, the most readable one
    };
    struct Meta {
        std::atomic<const Expansion*> expansion{nullptr};
        bool nullable = false;
    };
    enum class Live : uint8_t { Unknown, Yes, No };
    static constexpr uint32_t kChunk = 1024;

    Meta& meta(ExprId e) const { return chunks_[e / kChunk].load(std::memory_order_acquire)[e % kChunk]; }

    // All below assume the lock is held.
    ExprId intern(Node&& node);
    void rehash();
    Facts facts_of(const Node& node) const;
    uint32_t effort_of(const Node& node, const Facts& facts) const;
    void set_freedom(const Node& node, Facts& facts) const;
    bool nullable_of(const Node& node) const;
    ExprId bytes_(const ByteSet& set);
    ExprId concat2(ExprId a, ExprId b);
    ExprId or_(std::vector<ExprId> parts);
    ExprId and_(std::vector<ExprId> parts);
    ExprId not_(ExprId a);
    ExprId repeat_(ExprId a, uint32_t low, uint32_t high);
    ExprId strings_(uint32_t set, uint32_t filter, uint32_t low, uint32_t high, uint32_t depth);
    ExprId body_(ExprId content);
    ExprId escape_(ExprId content);
    ExprId hex_(ExprId content, uint32_t digits, uint32_t value);
    ExprId low_(ExprId content, uint32_t high, uint32_t stage, uint32_t value);
    ExprId number_(const NumberState& state, NumberWitness witness);
    ExprId pattern_(PatternState state, uint32_t properties);
    ExprId phrases_(uint32_t automaton, uint32_t state, uint32_t node);
    ExprId folded_(uint32_t map, ExprId language, uint32_t node);
    ExprId within_(ExprId e, ExprId language);
    ExprId json_within_(ExprId e, ExprId language);
    ExprId derive_letter(ExprId language, const LetterMap& map, uint32_t letter);
    bool covers_phrases(ExprId inner, ExprId phrases, uint32_t bytes, bool& ending) const;
    ExprId at_start_(ExprId e);
    ExprId uncut(ExprId e, ExprId& cut) const;  // cut: what an alphabet cuts e to; kAll when that is whole
    void gather_phrases(const Node& n, std::vector<ByteSet>& cuts, ByteSet& singles) const;
    ExprId any_text_();
    ExprId chars_(const std::vector<std::pair<uint32_t, uint32_t>>& ranges);
    uint32_t filter_(const OrderFilter& filter);
    ExprId derive(ExprId e, uint8_t byte);
    ExprId derive_anew(ExprId e, uint8_t byte);
    ExprId derive_json(const Node& n, uint8_t byte);
    ExprId derive_utf8(ExprId e, uint32_t code_point);
    bool goes_on(ExprId content);
    bool any_char_live(ExprId e, uint32_t low, uint32_t high);
    bool any_sequence_live(ExprId e, const std::pair<uint8_t, uint8_t>* ranges, int count);
    void gather(ExprId e, std::vector<ByteSet>& cuts, ByteSet& singles) const;
    const Raw& raw(ExprId e);
    const Expansion* expand(ExprId e);
    const Expansion* expand_locked(ExprId e);
    bool live_(ExprId e);
    std::optional<bool> live_at_once(ExprId e);
    ExprId spelled_otherwise(ExprId e) const;
    uint32_t brief_length(ExprId e);
    ByteSet needed_(ExprId e);
    ExprId lazy_step(ExprId e, uint8_t byte);
    bool first_bytes(ExprId e, ByteSet& out) const;
    static uint32_t next_serial();
    enum class Find : uint8_t { Any, Short, Shortest, Brief };
    bool search(ExprId start, Find find, uint32_t bound = kInfinite);
    void mark_path(const std::vector<std::pair<ExprId, uint8_t>>& path, ExprId goal, bool guess);
    uint8_t first_step(ExprId e);
    ByteSet alphabet_(ExprId e);
    bool char_class(ExprId unit, CharRun& run);
    std::optional<ExprId> after_char(ExprId e, ExprId rest);
    ExprId uncounted(ExprId content, uint32_t& low, uint32_t& high);
    std::array<ExprId, 256> char_targets(ExprId content);
    bool left_of(const Node& strings, size_t max_texts, std::vector<std::string_view>& out) const;

    Options options_;
    const uint32_t serial_ = next_serial();  // among all of the process: what threads keep is of this one
    bool has_deadline_ = false;
    std::chrono::steady_clock::time_point deadline_;
    mutable std::recursive_mutex mutex_;
    StableVector<Node> nodes_;  // references stay valid while it grows
    std::vector<uint32_t> hashes_;  // of each node
    std::vector<ExprId> slots_;     // open addressing over nodes_; kEmpty: free
    std::vector<Facts> facts_;
    std::vector<Live> live_memo_;
    std::vector<uint32_t> distance_;  // kInfinite - 1: unknown
    std::unordered_set<ExprId> lengthy_;  // whose shortest text was not soon found
    std::vector<uint8_t> step_;       // first byte of a shortest accepted text
    std::unordered_set<ExprId> settled_, guessed_;  // states whose step is the first among equals; whose distance is a greedy search's
    std::vector<std::unique_ptr<const Raw>> raws_;  // by id; as far as asked for
    std::atomic<size_t> num_raws_{0}, num_nodes_{0};
    std::unordered_map<ExprId, ByteSet> alphabets_, needed_memo_;
    StableVector<ByteSet> byte_sets_;
    std::vector<std::unique_ptr<StringSet>> sets_;
    std::vector<OrderFilter> filters_;
    std::unordered_map<uint64_t, std::vector<uint32_t>> filter_ids_;
    std::vector<NumberSpec> number_specs_;
    std::deque<NumberState> number_states_;
    std::deque<NumberWitness> number_witnesses_;
    std::vector<uint32_t> number_rests_;  // kInfinite: dead
    std::unordered_map<NumberState, uint32_t, NumberHash> number_ids_;
    std::deque<PatternState> pattern_states_;
    std::vector<PatternProperties> pattern_properties_;
    std::unordered_map<std::string, uint32_t> pattern_ids_;
    std::vector<std::unique_ptr<const PhraseAutomaton>> automata_;
    std::vector<std::unique_ptr<const LetterMap>> letter_maps_;
    std::vector<ExprId> folded_languages_;  // of each letter map, at the start
    std::atomic<bool> has_bans_{false};
    std::unique_ptr<std::atomic<Meta*>[]> chunks_;
    uint32_t max_chunks_ = 0;
    std::atomic<size_t> memory_bytes_{0};
    ExprId any_text_id_ = kEmpty, any_char_id_ = kEmpty;
};

// UTF-8 byte ranges of an inclusive code point range without surrogates; each entry is 1 to 4 byte ranges.
std::vector<std::vector<std::pair<uint8_t, uint8_t>>> utf8_sequences(uint32_t low, uint32_t high);
void append_utf8(std::string& out, uint32_t code_point);
bool valid_utf8(std::string_view text);

}  // namespace safegen
