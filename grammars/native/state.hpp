// The pushdown part: configurations of a grammar over a text read so far.
//
// A State holds the lexemes that may go on ("tops"), each with the frame that takes over when it ends. Frames are
// immutable once their step is over and shared between states, so forking and going back cost nothing. A frame may have
// several parents: unions whose branches open the same node meet in one frame, which keeps the number of tops bounded by
// the grammar, not by the nesting (a graph-structured stack; Tomita 1985).
#pragma once
#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "grammars/native/grammar.hpp"

namespace safegen {

struct Frame;
class FramePtr {  // intrusive, atomic: forks of one sequence may live on different threads
public:
    FramePtr() = default;
    explicit FramePtr(Frame* frame) : frame_(frame) {}
    FramePtr(const FramePtr& other);
    FramePtr(FramePtr&& other) noexcept : frame_(other.frame_) { other.frame_ = nullptr; }
    FramePtr& operator=(FramePtr other) noexcept {
        std::swap(frame_, other.frame_);
        return *this;
    }
    ~FramePtr();
    Frame* operator->() const { return frame_; }
    Frame& operator*() const { return *frame_; }
    Frame* get() const { return frame_; }
    Frame* release() {
        Frame* out = frame_;
        frame_ = nullptr;
        return out;
    }

private:
    Frame* frame_ = nullptr;
};

struct Seen {  // of one object: extra keys (sorted, decoded), and in any-order mode the declared ones as bits
    std::vector<std::string> extras;
    std::vector<uint64_t> declared;
};

struct Hash128 {
    uint64_t a = 0x243F6A8885A308D3ull, b = 0x13198A2E03707344ull;
    void mix(uint64_t value) {
        a = (a ^ value) * 0x9E3779B97F4A7C15ull;
        a ^= a >> 32;
        b = (b + value) * 0xC2B2AE3D27D4EB4Full;
        b ^= b >> 29;
        b += a;
    }
    void mix(std::string_view text) {
        mix(text.size());
        for (size_t i = 0; i < text.size(); i += 8) {
            uint64_t word = 0;
            std::memcpy(&word, text.data() + i, std::min<size_t>(8, text.size() - i));
            mix(word);
        }
    }
    bool operator==(const Hash128&) const = default;
};

// Readable bytes first among equals: one of each kind is enough to find a new value.
inline uint64_t taste(uint8_t byte) { return byte >= 'a' && byte <= 'z' ? 0 : byte >= '0' && byte <= '9' ? 1 : byte < 128 ? 2 : 3; }

constexpr uint32_t kUnknownCost = kInfinite - 1;

struct Frame {
    enum Phase : uint8_t { Root, Tail, Lead, Sequence, ArrayOpen, ArrayItem, ArrayComma, ObjectOpen, ObjectKey, ObjectColon, ObjectValue, ObjectComma, Call, Close, Verify };
    std::atomic<uint32_t> references{1};
    Phase phase = Root;
    uint16_t nesting = 0;
    uint32_t step = 0;     // bytes read when it was made
    NodeId node = kNoNode;
    uint32_t index = 0;    // next property, item or sequence part
    uint32_t count = 0;    // members or items so far
    NodeId value = kNoNode;  // of the member whose key was read
    std::shared_ptr<const Seen> seen;
    ContainsCounts counts{};  // of a counted array; of an object the first holds the bits of the conditions that are met
    // Of nodes whose text as a whole decides: unique items and verified nodes.
    uint32_t start = 0;               // where the item or node began
    uint32_t inner = kInfinite;       // start of the innermost one that is open, this frame's own included
    uint32_t outer = kInfinite;       // start of the outermost one that may take text back
    bool sensitive = false;           // some unique array is open
    std::shared_ptr<const std::vector<std::string>> items;  // canonical forms of a unique array's items, sorted
    mutable std::atomic<uint32_t> cost_after{kUnknownCost};  // bytes still needed once what it awaits has ended
    std::vector<FramePtr> parents;
    mutable std::atomic<uint64_t> hash_a{0}, hash_b{0};  // of all that decides what may follow; 0 until asked for

    void inherit(const Frame& parent) {
        inner = inner == kInfinite ? parent.inner : parent.inner == kInfinite ? inner : std::max(inner, parent.inner);
        outer = std::min(outer, parent.outer);
        sensitive |= parent.sensitive;
    }
};

// Calls make for `frame` and all its ancestors that are not known yet, ancestors first and each once. A worklist: stacks
// are as deep as texts nest, and in an ambiguous grammar they have exponentially many paths.
template <class IsKnown, class Make>
void ancestors_first(const Frame& frame, IsKnown&& is_known, Make&& make) {
    std::vector<const Frame*> open{&frame};
    while (!open.empty()) {
        const Frame* at = open.back();
        const size_t before = open.size();
        if (!is_known(*at))
            for (const FramePtr& parent : at->parents)
                if (!is_known(*parent)) open.push_back(parent.get());
        if (open.size() != before) continue;
        if (!is_known(*at)) make(*at);
        open.pop_back();
    }
}

inline FramePtr::FramePtr(const FramePtr& other) : frame_(other.frame_) {
    if (frame_) frame_->references.fetch_add(1, std::memory_order_relaxed);
}

// Whether an object's declared property i (any-order mode), or an array's listed value i, was used.
inline bool was_seen(const Frame& f, uint32_t i) {
    return f.seen && i / 64 < f.seen->declared.size() && ((f.seen->declared[i / 64] >> (i % 64)) & 1);
}

struct Top {
    ExprId expr;
    FramePtr frame;
    uint32_t start;  // where the lexeme begins in the text; kept for keys only
};

struct State {
    std::vector<Top> tops;
    bool can_end = false;
    uint32_t work = 0;  // frames looked at to make it
    std::vector<std::pair<uint32_t, NodeId>> failures;  // verified nodes that ended here and did not hold: start, node
    bool sensitive() const {
        for (const Top& top : tops)
            if (top.frame->sensitive) return true;
        return false;
    }
    uint32_t inner() const {
        uint32_t best = kInfinite;
        for (const Top& top : tops)
            if (top.frame->inner != kInfinite) best = best == kInfinite ? top.frame->inner : std::max(best, top.frame->inner);
        return best;
    }
    NodeId node_from(uint32_t start) const;  // the node of the innermost such frame that began at `start`
    uint32_t outer() const {
        uint32_t best = kInfinite;
        for (const Top& top : tops) best = std::min(best, top.frame->outer);
        return best;
    }
    bool dead() const { return tops.empty() && !can_end; }
};

// Texts that were tried and failed: reaching text[..start] + bytes again is illegal while text[..start] stands.
struct Excluded {
    struct Text {
        uint32_t start;
        std::string bytes;
    };
    std::vector<Text> texts;
    bool reached(const std::string& text) const;
    void mix_ahead(const std::string& text, Hash128& hash) const;  // those that `text` leads to
};

// What may come of a state.
struct Outlook {
    enum Kind : uint8_t {
        Open,     // `rest` makes the text a whole answer
        Dead,     // proved: nothing does
        Unknown,  // nothing was found within the work allowed
    } kind = Unknown;
    std::string rest;
};

class Machine {
public:
    explicit Machine(const Grammar& grammar) : grammar_(grammar) {}
    State start() const;
    // text: everything read, the new byte last.
    State step(const State& state, uint8_t byte, const std::string& text) const;
    // What follows when the lexeme of `top` ends after `text`.
    State finish(const Top& top, const std::string& text) const;
    // The same for those of the state's lexemes that `ends` tells, and for no others.
    State finish(const State& state, std::vector<bool>::const_iterator ends, const std::string& text) const;
    ByteSet first(const State& state, const std::string& text) const;
    ByteSet first_of_all(const State& state) const;  // the same, with keys that may not come again
    // A key lexeme whose object already holds extra keys: at its closing quote the key itself decides.
    static bool decides_by_key(const Top& top) { return top.frame->phase == Frame::ObjectKey && top.frame->seen && !top.frame->seen->extras.empty(); }
    static bool repeats_key(const Top& top, std::string_view literal);  // literal: a whole key with its quotes
    // A key of everything that decides the mask, or nothing where text that was read long ago decides it.
    std::optional<Hash128> mask_key(const State& state, const std::string& text) const;
    // The bytes that may come next; unlike `first`, steps that lead nowhere are left out.
    ByteSet followers(const State& state, std::string& text) const;
    uint32_t cost(const Top& top) const;  // bytes to a whole answer, an estimate from above
    std::vector<uint32_t> keys_left(const Frame& frame) const;
    Outlook outlook(const State& state, const std::string& text, const Excluded& excluded) const;

    Hash128 frame_hash(const Frame& frame) const;
    const Grammar& grammar() const { return grammar_; }

private:
    void hash_frame(const Frame& frame) const;  // its parents are hashed
    struct Step;  // one closure
    struct Trail {
        std::string text;
        std::deque<State> states;  // before each of the last bytes
        bool judged = false;       // a verified node failed at the last byte
        void add(const std::string& longer, const State& before);
    };
    // Each takes its work from `room` and gives up when that is used up; the second gives the whole text.
    std::optional<std::string> greedy_completion(State state, std::string text, const Excluded& excluded, uint64_t& room, Trail& trail) const;
    std::optional<std::string> repaired_completion(Trail way, bool onward, const Excluded& excluded, uint64_t& room) const;
    class Search;  // of all ways, best first
    std::string shortest_key(const Top& top, const std::string& text) const;
    std::string shortest_item(const Top& top, const std::string& text) const;
    template <class Takes>
    std::optional<std::string> listed_rest(ExprId start, size_t most, Takes&& takes) const;
    std::string required_key(const Top& top, const std::string& text) const;
    std::string condition_key(const Top& top, const std::string& text) const;
    uint32_t cost_after(const Frame& frame) const;
    uint32_t compute_cost(const Frame& frame) const;  // its parents' are known
    uint32_t items_cost(const Frame& frame) const;
    uint32_t members_cost(const Frame& frame) const;
    const Grammar& grammar_;
};

}  // namespace safegen
