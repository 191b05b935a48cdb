#include "grammars/native/vocabulary.hpp"

#include <algorithm>
#include <atomic>
#include <numeric>
#include <stdexcept>

#include "grammars/native/masks.hpp"

namespace safegen {

namespace {
std::atomic<uint64_t> next_serial{1};
constexpr size_t kMaxTokenBytes = 60'000;
}  // namespace

Vocabulary::Vocabulary(std::vector<std::string> tokens, std::vector<uint32_t> stop_ids)
    : tokens_(std::move(tokens)), stop_ids_(std::move(stop_ids)), serial_(next_serial++) {
    std::sort(stop_ids_.begin(), stop_ids_.end());
    stop_ids_.erase(std::unique(stop_ids_.begin(), stop_ids_.end()), stop_ids_.end());
    for (uint32_t id : stop_ids_) {
        if (id >= size()) throw std::invalid_argument("stop id " + std::to_string(id) + " is outside the vocabulary");
        tokens_[id].clear();  // a stop id ends the text, it never spells it
    }
    std::vector<uint32_t> order;
    for (uint32_t id = 0; id < size(); ++id) {
        if (tokens_[id].empty()) continue;
        if (tokens_[id].size() > kMaxTokenBytes) throw std::invalid_argument("token " + std::to_string(id) + " is too long");
        if (tokens_[id].size() == 1) single_bytes_.add(static_cast<uint8_t>(tokens_[id][0]));
        order.push_back(id);
    }
    std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return tokens_[a] < tokens_[b]; });

    std::vector<std::pair<std::string_view, uint32_t>> entries;
    for (uint32_t id : order) entries.push_back({tokens_[id], id});
    build(entries);
}

const FreeText& Vocabulary::free_text() const {
    std::call_once(free_text_once_, [&] { free_text_ = std::make_shared<const FreeText>(make_free_text(*this)); });
    return *free_text_;
}

bool Vocabulary::is_stop(uint32_t id) const { return std::binary_search(stop_ids_.begin(), stop_ids_.end(), id); }

std::vector<uint32_t> Vocabulary::fewest_tokens(std::string_view text) const {
    constexpr uint32_t kNone = 0xFFFFFFFFu;
    std::vector<uint32_t> cost(text.size() + 1, kNone), choice(text.size() + 1, kNone);
    cost[text.size()] = 0;
    for (size_t at = text.size(); at-- > 0;) {
        uint32_t node = 0;
        for (size_t i = at; i < text.size(); ++i) {
            node = child(node, static_cast<uint8_t>(text[i]));
            if (node == 0) break;
            if (!has_tokens(node) || cost[i + 1] == kNone) continue;
            if (cost[i + 1] + 1 <= cost[at]) {  // of equal covers the longer first token
                cost[at] = cost[i + 1] + 1;
                choice[at] = ids[token_begin(node)];
            }
        }
    }
    std::vector<uint32_t> out;
    if (cost[0] == kNone) return out;
    for (size_t at = 0; at < text.size(); at += tokens_[choice[at]].size()) out.push_back(choice[at]);
    return out;
}

}  // namespace safegen
