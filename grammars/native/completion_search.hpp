// A search of all ways to a whole answer, best first: finds one, or proves that there is none.
//
// Where a verified node is open the mask holds a part of what it asks for, so that a state may be legal and yet lead
// nowhere. Its predicate is followed along with the text: each of the grammars it is made of reads what the node has
// read, which tells early that the node cannot hold any more, and orders the ways by what they still need.
//
// The search goes from the end of one lexeme to the end of the next. Of all texts of a lexeme those are alike that end the
// same of the lexemes at hand, those of the predicates' grammars among them; one of each kind is enough, but where the
// text itself counts: keys, items that must be new. States that agree in everything that decides what may follow are
// looked at once. So the search mostly ends by itself, and its end without a find is a proof, unless some texts were
// left out for their number.
//
// Verified nodes and unique arrays are JSON: no lexeme there goes on behind its end, and every character but a control
// character has a spelling without \u.
#pragma once
#include <queue>
#include <unordered_set>

#include "grammars/native/state.hpp"

namespace safegen {

struct Lexeme {
    Exprs* table;
    ExprId expr;
};

// The predicate of an open verified node, over what was read of the node.
class Trial {
public:
    Trial(uint32_t start, NodeId node, const Predicate& predicate);
    bool is_of(const Frame& frame) const { return frame.phase == Frame::Verify && frame.start == start_ && frame.node == node_; }
    uint64_t read(std::string_view more);  // returns the work that took
    size_t num_lexemes() const;
    void add_lexemes(std::vector<Lexeme>& lexemes) const;
    // Reads `more`, by which those lexemes end that `ends` tells, one flag for each that add_lexemes gave.
    void end(std::string_view more, std::vector<bool>::const_iterator ends);
    bool is_lost() const { return truth(*predicate_, 0) == Truth::Never; }
    uint32_t bytes_needed() const { return needed(*predicate_, 0); }  // an estimate
    bool by_text() const;  // what it has read counts as a text
    void mix(Hash128& hash) const;

private:
    enum class Truth : uint8_t { Never, Open, Always };
    Truth truth(const Predicate& predicate, size_t leaf) const;  // leaf: the number of its first grammar
    uint32_t needed(const Predicate& predicate, size_t leaf) const;
    void add_leaves(const Predicate& predicate);
    struct Leaf {
        const Grammar* grammar;
        State state;
    };
    uint32_t start_;
    NodeId node_;
    const Predicate* predicate_;
    std::string text_;  // that was read of the node
    bool asks_by_text_ = false;  // it asks for more than its grammars tell
    std::vector<Leaf> leaves_;
};

class Machine::Search {
public:
    // room: the work it may do, from which it is taken.
    Search(const Machine& machine, const Excluded& excluded, uint64_t& room) : machine_(machine), excluded_(excluded), room_(room) {}
    Outlook run(const State& state, const std::string& text);

private:
    struct Place {
        uint64_t priority;
        std::string text;
        State state;
        std::vector<Trial> trials;
        bool operator>(const Place& other) const { return priority > other.priority; }
    };
    void spend(uint64_t work) { room_ -= std::min(room_, work); }
    struct Ending {
        std::string rest;        // of the lexemes at hand
        std::vector<bool> ends;  // which of them end with it
    };
    struct Reading {
        struct Point {
            std::string text;
            std::vector<ExprId> exprs;
        };
        Reading(const Place& place, Exprs& table);
        std::vector<uint8_t> bytes_after(const Point& point) const;
        Point after(const Point& point, uint8_t byte) const;
        std::vector<bool> ends(const Point& point) const;
        bool in_key(const Point& point) const;
        const std::vector<Top>& tops;  // the lexemes of the machine itself come first
        std::vector<Lexeme> lexemes;
        std::vector<Point> points;
    };
    void mix_text(const std::string& text, bool by_text, Hash128& hash) const;
    std::vector<Ending> endings(const Place& place);
    void follow(const Place& place, const Ending& ending);
    void visit(State state, std::string text, std::vector<Trial> trials, uint64_t liking);
    void follow_trials(const State& state, const std::string& text, std::vector<Trial>& trials);
    void drop_lost(State& state, const std::vector<Trial>& trials) const;
    uint64_t length(const Place& place) const;
    Hash128 identity(const Place& place) const;

    const Machine& machine_;
    const Excluded& excluded_;
    uint64_t& room_;
    size_t origin_ = 0;      // where the text ended at the beginning
    bool complete_ = true;  // no text was left out
    struct HashOf {
        size_t operator()(const Hash128& hash) const { return hash.a; }
    };
    std::priority_queue<Place, std::vector<Place>, std::greater<>> open_;
    std::unordered_set<Hash128, HashOf> known_;
};

}  // namespace safegen
