// The pushdown part: configurations of a grammar over a text read so far.
//
// A State holds the lexemes that may go on ("tops"), each with the frame that takes over when it ends. Frames are
// immutable once their step is over and shared between states, so forking and going back cost nothing. A frame may have
// several parents: unions whose branches open the same node meet in one frame, which keeps the number of tops bounded by
// the grammar, not by the nesting (a graph-structured stack; Tomita 1985).
#pragma once
#include <atomic>
#include <memory>
#include <string>
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

struct Frame {
    enum Phase : uint8_t { Root, Tail, Lead, Sequence, ArrayOpen, ArrayItem, ArrayComma, ObjectOpen, ObjectKey, ObjectColon, ObjectValue, ObjectComma, Call, Close };
    std::atomic<uint32_t> references{1};
    Phase phase = Root;
    uint16_t nesting = 0;
    uint32_t step = 0;     // bytes read when it was made
    NodeId node = kNoNode;
    uint32_t index = 0;    // next property, item or sequence part
    uint32_t count = 0;    // members or items so far
    NodeId value = kNoNode;  // of the member whose key was read
    std::shared_ptr<const Seen> seen;
    std::vector<FramePtr> parents;
};

inline FramePtr::FramePtr(const FramePtr& other) : frame_(other.frame_) {
    if (frame_) frame_->references.fetch_add(1, std::memory_order_relaxed);
}

struct Top {
    ExprId expr;
    FramePtr frame;
    uint32_t start;  // where the lexeme begins in the text; kept for keys only
};

struct State {
    std::vector<Top> tops;
    bool can_end = false;
    bool dead() const { return tops.empty() && !can_end; }
};

class Machine {
public:
    explicit Machine(const Grammar& grammar) : grammar_(grammar) {}
    State start() const;
    // text: everything read, the new byte last.
    State step(const State& state, uint8_t byte, const std::string& text) const;
    // What follows when the lexeme of `top` ends after `text`.
    State finish(const Top& top, const std::string& text) const;
    ByteSet first(const State& state, const std::string& text) const;
    // A key lexeme whose object already holds extra keys: at its closing quote the key itself decides.
    static bool decides_by_key(const Top& top) { return top.frame->phase == Frame::ObjectKey && top.frame->seen && !top.frame->seen->extras.empty(); }
    static bool repeats_key(const Top& top, std::string_view literal);  // literal: a whole key with its quotes
    uint32_t cost(const Top& top) const;  // bytes to a whole answer, an estimate from above
    std::string shortest_completion(State state, std::string text) const;

private:
    struct Step;  // one closure
    std::string shortest_key(const Top& top, const std::string& text) const;
    std::string required_key(const Top& top, const std::string& text) const;
    uint32_t cost_after(const Frame& frame) const;
    uint32_t cost_parents(const Frame& frame) const;
    const Grammar& grammar_;
};

}  // namespace safegen
