// The bytes of a vocabulary's tokens as a trie in depth-first order: the subtree of node i is [i, end[i]).
#pragma once
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "grammars/native/byteset.hpp"

namespace safegen {

struct LexemeMask;

class Vocabulary {
public:
    // tokens[id]: the bytes of a token; an empty string marks ids that a constraint never produces.
    Vocabulary(std::vector<std::string> tokens, std::vector<uint32_t> stop_ids);

    uint32_t size() const { return static_cast<uint32_t>(tokens_.size()); }
    uint32_t words() const { return (size() + 31) / 32; }
    uint64_t serial() const { return serial_; }  // distinct for each vocabulary of the process
    const std::string& token(uint32_t id) const { return tokens_[id]; }
    const std::vector<uint32_t>& stop_ids() const { return stop_ids_; }
    bool is_stop(uint32_t id) const;
    const ByteSet& single_bytes() const { return single_bytes_; }  // bytes that are tokens by themselves
    std::vector<uint32_t> fewest_tokens(std::string_view text) const;  // empty when the text cannot be spelled

    // Mask of the free JSON string; computed on first use.
    std::shared_ptr<const LexemeMask> free_text() const;

    // Trie: node 0 is the root; parallel arrays.
    uint32_t num_nodes() const { return static_cast<uint32_t>(byte.size()); }
    std::vector<uint8_t> byte;
    std::vector<uint16_t> depth;
    std::vector<uint16_t> height;   // bytes of the longest path below
    std::vector<uint32_t> end, parent;
    std::vector<uint32_t> token_begin;  // ids of tokens that end at node i: ids[token_begin[i] .. token_begin[i + 1])
    std::vector<uint32_t> ids;
    uint16_t max_depth = 0;

    std::string path(uint32_t node) const;

private:
    std::vector<std::string> tokens_;
    std::vector<uint32_t> stop_ids_;
    ByteSet single_bytes_;
    uint64_t serial_;
    mutable std::once_flag free_text_once_;
    mutable std::shared_ptr<const LexemeMask> free_text_;
};

}  // namespace safegen
