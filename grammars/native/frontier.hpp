// Where a text stops being the beginning of an answer, and what could have stood there: for explanations, not decoding.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "grammars/native/state.hpp"

namespace safegen {

// A value that is open: the nodes that await it (several where alternatives run side by side) and where it begins.
struct OpenValue {
    std::vector<NodeId> nodes;
    uint32_t start = kInfinite;
};

// A lexeme that may go on.
struct Waiting {
    const char* role;                 // "value", "key", "open", "close", "comma", "colon" or "blank"
    std::vector<OpenValue> open;      // the values it lies in, innermost first
    std::vector<NodeId> rules;        // the rules it lies in, innermost first
    std::vector<std::string> texts;   // what completes it: all there are, or of a key the declared names
    bool all = false;                 // texts leaves nothing out
    std::string first;                // bytes that it may go on with
};

struct Frontier {
    size_t bytes_read = 0;            // of the text: the longest part of it that some answer starts with
    bool can_end = false;
    std::vector<Waiting> waiting;
    std::vector<std::pair<uint32_t, std::string>> failures;  // verified nodes that the next byte ends wrongly: start, pointer
};

Frontier frontier(const Grammar& grammar, const std::string& text);

}  // namespace safegen
