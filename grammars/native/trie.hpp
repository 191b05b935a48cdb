// Strings with ids as a trie in depth-first order: the subtree of node i is [i, end(i)).
//
// A walk mostly asks which children it need not visit. Their bytes lie side by side, apart from the nodes.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "grammars/native/byteset.hpp"

namespace safegen {

class Trie {
public:
    // entries: sorted by text; equal texts keep their order. The texts need not outlive the call.
    void build(const std::vector<std::pair<std::string_view, uint32_t>>& entries);

    uint32_t num_nodes() const { return static_cast<uint32_t>(nodes_.size()) - 1; }
    uint8_t byte(uint32_t node) const { return nodes_[node].byte; }
    uint16_t depth(uint32_t node) const { return nodes_[node].depth; }
    uint16_t height(uint32_t node) const { return nodes_[node].height; }  // bytes of the longest path below
    uint32_t end(uint32_t node) const { return nodes_[node].end; }
    uint32_t parent(uint32_t node) const { return nodes_[node].parent; }
    uint32_t token_begin(uint32_t node) const { return nodes_[node].token_begin; }  // into ids; also of num_nodes()
    bool has_children(uint32_t node) const { return nodes_[node].end > node + 1; }
    bool has_tokens(uint32_t node) const { return token_begin(node) != token_begin(node + 1); }
    uint32_t child(uint32_t node, uint8_t b) const;  // 0: none
    uint32_t find(std::string_view text) const;      // 0: none
    std::string path(uint32_t node) const;
    void append_path(uint32_t node, std::string& text) const;

    // The children of a node: their bytes, and the one of a byte that is among them.
    ByteSet kid_bytes(uint32_t node) const {
        const uint32_t begin = nodes_[node].kids, end = nodes_[node + 1].kids;
        if (end - begin > kFew) return wide_[nodes_[node].wide].bytes;
        ByteSet out;
        for (uint32_t place = begin; place < end; ++place) out.add(kid_bytes_[place]);
        return out;
    }
    uint32_t kid(uint32_t node, uint8_t b) const {
        if (node == 0) return root_child_[b];
        const uint32_t begin = nodes_[node].kids, count = nodes_[node + 1].kids - begin;
        if (count > kFew) return kid_nodes_[begin + wide_[nodes_[node].wide].place[b]];
        uint32_t place = begin;
        while (kid_bytes_[place] != b) ++place;
        return kid_nodes_[place];
    }

    template <class Row>
    void set_tokens(uint32_t node, Row& row) const {
        for (uint32_t k = token_begin(node), to = token_begin(node + 1); k < to; ++k) row.set(ids[k]);
    }
    template <class Row>
    void clear_tokens(uint32_t from, uint32_t to, Row& row) const {  // of nodes from..to
        for (uint32_t k = token_begin(from), last = token_begin(to); k < last; ++k) row.clear(ids[k]);
    }

    std::vector<uint32_t> ids;  // ids of the strings that end at node i: ids[token_begin(i) .. token_begin(i + 1))
    uint16_t max_depth = 0;

private:
    struct Node {
        uint32_t end = 0, token_begin = 0, kids = 0, parent = 0;
        uint16_t depth = 0, height = 0, wide = 0;  // wide: place of its children's bytes, if they are many
        uint8_t byte = 0;
    };
    static constexpr uint32_t kFew = 12;
    struct Wide {
        ByteSet bytes;
        std::array<uint8_t, 256> place;  // among the children
    };
    std::vector<Wide> wide_;
    std::vector<Node> nodes_;  // one more than there are
    std::vector<uint8_t> kid_bytes_;
    std::vector<uint32_t> kid_nodes_;
    std::array<uint32_t, 256> root_child_{};
};

}  // namespace safegen
