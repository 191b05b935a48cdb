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

    auto open = [&](uint8_t b, uint16_t d, uint32_t up) {
        byte.push_back(b);
        depth.push_back(d);
        parent.push_back(up);
        end.push_back(0);
        token_begin.push_back(static_cast<uint32_t>(ids.size()));
    };
    std::vector<uint32_t> chain{0};  // node at each depth of the current path
    open(0, 0, 0);
    std::string_view previous;
    for (uint32_t id : order) {
        const std::string_view text = tokens_[id];
        size_t common = 0;
        while (common < previous.size() && common < text.size() && previous[common] == text[common]) ++common;
        while (chain.size() > common + 1) {
            end[chain.back()] = num_nodes();
            chain.pop_back();
        }
        for (size_t i = common; i < text.size(); ++i) {
            const uint32_t up = chain.back();
            chain.push_back(num_nodes());
            open(static_cast<uint8_t>(text[i]), static_cast<uint16_t>(i + 1), up);
        }
        ids.push_back(id);
        max_depth = std::max<uint16_t>(max_depth, static_cast<uint16_t>(text.size()));
        previous = text;
    }
    for (uint32_t node : chain) end[node] = num_nodes();
    height.assign(byte.size(), 0);
    for (uint32_t i = num_nodes(); i-- > 1;) height[parent[i]] = std::max<uint16_t>(height[parent[i]], static_cast<uint16_t>(height[i] + 1));
    // Tokens of a node directly follow its opening: begin of the next node is where they stop.
    token_begin.push_back(static_cast<uint32_t>(ids.size()));
}

std::shared_ptr<const LexemeMask> Vocabulary::free_text() const {
    std::call_once(free_text_once_, [&] { free_text_ = std::make_shared<const LexemeMask>(free_text_mask(*this)); });
    return free_text_;
}

bool Vocabulary::is_stop(uint32_t id) const { return std::binary_search(stop_ids_.begin(), stop_ids_.end(), id); }

std::string Vocabulary::path(uint32_t node) const {
    std::string out(depth[node], '\0');
    for (size_t i = out.size(); i-- > 0; node = parent[node]) out[i] = static_cast<char>(byte[node]);
    return out;
}

std::vector<uint32_t> Vocabulary::fewest_tokens(std::string_view text) const {
    constexpr uint32_t kNone = 0xFFFFFFFFu;
    std::vector<uint32_t> cost(text.size() + 1, kNone), choice(text.size() + 1, kNone);
    cost[text.size()] = 0;
    for (size_t at = text.size(); at-- > 0;) {
        uint32_t node = 0;
        for (size_t i = at; i < text.size(); ++i) {
            uint32_t child = node + 1;
            while (child < end[node] && byte[child] != static_cast<uint8_t>(text[i])) child = end[child];
            if (child >= end[node]) break;
            node = child;
            if (token_begin[node] == token_begin[node + 1] || cost[i + 1] == kNone) continue;
            if (cost[i + 1] + 1 <= cost[at]) {  // of equal covers the longer first token
                cost[at] = cost[i + 1] + 1;
                choice[at] = ids[token_begin[node]];
            }
        }
    }
    std::vector<uint32_t> out;
    if (cost[0] == kNone) return out;
    for (size_t at = 0; at < text.size(); at += tokens_[choice[at]].size()) out.push_back(choice[at]);
    return out;
}

}  // namespace safegen
