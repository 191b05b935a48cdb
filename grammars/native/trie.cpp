#include "grammars/native/trie.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace safegen {

void Trie::build(const std::vector<std::pair<std::string_view, uint32_t>>& entries) {
    auto open = [&](uint8_t b, uint16_t d, uint32_t up) {
        Node node;
        node.byte = b;
        node.depth = d;
        node.parent = up;
        node.token_begin = static_cast<uint32_t>(ids.size());
        nodes_.push_back(node);
    };
    std::vector<uint32_t> chain{0};  // node at each depth of the current path
    open(0, 0, 0);
    std::string_view previous;
    auto close_to = [&](size_t size) {
        for (; chain.size() > size; chain.pop_back()) nodes_[chain.back()].end = static_cast<uint32_t>(nodes_.size());
    };
    for (const auto& [text, id] : entries) {
        size_t common = 0;
        while (common < previous.size() && common < text.size() && previous[common] == text[common]) ++common;
        close_to(common + 1);
        for (size_t i = common; i < text.size(); ++i) {
            const uint32_t up = chain.back();
            chain.push_back(static_cast<uint32_t>(nodes_.size()));
            open(static_cast<uint8_t>(text[i]), static_cast<uint16_t>(i + 1), up);
        }
        ids.push_back(id);
        max_depth = std::max<uint16_t>(max_depth, static_cast<uint16_t>(text.size()));
        previous = text;
    }
    close_to(0);
    open(0, 0, 0);  // ids of a node directly follow its opening: begin of the next node is where they stop
    for (uint32_t i = num_nodes(); i-- > 1;) {
        Node& up = nodes_[nodes_[i].parent];
        up.height = std::max<uint16_t>(up.height, static_cast<uint16_t>(nodes_[i].height + 1));
    }
    for (uint32_t i = 0; i < num_nodes(); ++i) {
        nodes_[i].kids = static_cast<uint32_t>(kid_nodes_.size());
        for (uint32_t at = i + 1; at < end(i); at = end(at)) {
            kid_nodes_.push_back(at);
            kid_bytes_.push_back(byte(at));
            if (i == 0) root_child_[byte(at)] = at;
        }
        if (kid_nodes_.size() - nodes_[i].kids <= kFew) continue;
        if (wide_.size() > 0xFFFF) throw std::length_error("the vocabulary branches too often");
        nodes_[i].wide = static_cast<uint16_t>(wide_.size());
        wide_.push_back({});
        for (size_t place = nodes_[i].kids; place < kid_bytes_.size(); ++place) {
            wide_.back().bytes.add(kid_bytes_[place]);
            wide_.back().place[kid_bytes_[place]] = static_cast<uint8_t>(place - nodes_[i].kids);
        }
    }
    nodes_.back().kids = static_cast<uint32_t>(kid_nodes_.size());
}

uint32_t Trie::child(uint32_t node, uint8_t b) const {
    if (node == 0) return root_child_[b];
    const uint32_t begin = nodes_[node].kids, count = nodes_[node + 1].kids - begin;
    if (count == 0) return 0;
    const void* found = std::memchr(kid_bytes_.data() + begin, b, count);
    return found ? kid_nodes_[begin + static_cast<size_t>(static_cast<const uint8_t*>(found) - (kid_bytes_.data() + begin))] : 0;
}

uint32_t Trie::find(std::string_view text) const {
    uint32_t node = 0;
    for (char c : text)
        if ((node = child(node, static_cast<uint8_t>(c))) == 0) return 0;
    return node;
}

std::string Trie::path(uint32_t node) const {
    std::string out;
    append_path(node, out);
    return out;
}

void Trie::append_path(uint32_t node, std::string& text) const {
    size_t at = text.size() + depth(node);
    text.resize(at);
    for (; node != 0; node = parent(node)) text[--at] = static_cast<char>(byte(node));
}

}  // namespace safegen
