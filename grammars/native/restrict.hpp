// What decoded texts must be, laid over nodes that are built already: a node of the same structure whose strings and
// keys all lie in a given language.
//
// The restriction speaks about values, not about their spelling: a string's decoded text, the decoded text of a key, or
// the text of a lexeme that is no JSON. Paths say where it holds; a node that is reached on several paths is copied once
// for each set of paths that it lies on, so that references and recursion stay finite.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "grammars/native/grammar.hpp"

namespace safegen {

struct PathStep {
    enum Kind : uint8_t { Name, Index, Any, Below } kind = Any;  // Below: any number of steps, none included
    std::string name;
    uint32_t index = 0;
};
struct ScopePath {
    std::vector<PathStep> steps;
    bool of_keys = false;     // the names of the members that it leads to, not their values
    bool leaves_out = false;  // where it does not hold after all
};

class Restriction {
public:
    // language: of decoded text. paths: where it holds; everywhere but for what is left out, when none says. json: whether lexemes are JSON values.
    Restriction(Exprs& exprs, std::vector<Node>& nodes, ExprId language, std::vector<ScopePath> paths, bool json);
    NodeId apply(NodeId root);
    // Declared names that the language leaves out, by the path of the member.
    const std::vector<std::string>& refused_names() const { return refused_names_; }
    // Values of which nothing is left, by path, the first ones first.
    const std::vector<std::string>& emptied() const { return emptied_; }

private:
    using Places = std::vector<std::pair<uint32_t, uint32_t>>;  // path and how many of its steps were taken; ascending
    struct Task {
        NodeId from, to;
        Places places;
        std::string path;
    };
    NodeId copy_of(NodeId id, const Places& places, const std::string& path);
    void run(const Task& task);
    void array(ArraySpec& array, const Task& task);
    void object(ObjectSpec& object, const Task& task);
    Places closed(Places places) const;
    Places child(const Places& places, const std::string* name, const uint32_t* index) const;
    bool holds(const Places& places) const;
    bool holds_for_key(const Places& object, const Places& member) const;
    bool ends(const Places& places, bool of_keys, bool leaves_out) const;
    const PathStep* next_step(const std::pair<uint32_t, uint32_t>& place) const;
    uint32_t longest_index(const Places& places) const;
    ExprId within(ExprId e);
    Exprs& x_;
    std::vector<Node>& nodes_;
    ExprId language_;
    std::vector<ScopePath> paths_;
    bool json_, everywhere_ = true;
    std::map<std::pair<NodeId, Places>, NodeId> copies_;
    std::map<ExprId, ExprId> restricted_;
    std::vector<Task> open_;
    std::vector<std::string> refused_names_, emptied_;
};

}  // namespace safegen
