// A vocabulary: the bytes of its tokens as a trie, and what it knows about free JSON strings.
#pragma once
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "grammars/native/byteset.hpp"
#include "grammars/native/trie.hpp"

namespace safegen {

struct FreeText;

class Vocabulary : public Trie {
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

    // What it offers within the free JSON string; computed on first use.
    const FreeText& free_text() const;

private:
    std::vector<std::string> tokens_;
    std::vector<uint32_t> stop_ids_;
    ByteSet single_bytes_;
    uint64_t serial_;
    mutable std::once_flag free_text_once_;
    mutable std::shared_ptr<const FreeText> free_text_;
};

}  // namespace safegen
