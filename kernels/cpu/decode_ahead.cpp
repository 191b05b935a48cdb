#include "kernels/cpu/decode_ahead.hpp"

#include <algorithm>

namespace safegen::cpu {
namespace {

using std::int64_t;

std::vector<Draw> draws_of(const Ahead& ahead, const Step& step, int64_t stride, int64_t number) {
    std::vector<Draw> draws(static_cast<std::size_t>(step.tokens));
    for (int64_t row = 0; row < step.tokens; ++row) {
        draws[row].settings = ahead.settings[row];
        draws[row].row = step.logits + row * stride;
        draws[row].maxima = step.maxima + row * blocks_of(stride);
        draws[row].uniform = ahead.uniforms[number * step.tokens + row];
    }
    return draws;
}

bool goes_on(const Ahead& ahead, const Draw& draw) {
    return draw.fault == SampleFault::none &&
           !std::binary_search(ahead.stop_ids.begin(), ahead.stop_ids.end(), draw.id);
}

}  // namespace

std::vector<std::vector<int64_t>> decode_ahead(Decoder& decoder, Step step, const Ahead& ahead) {
    const int64_t rows = step.tokens;
    std::vector<int64_t> ids(step.ids, step.ids + rows);
    std::vector<std::int32_t> position(step.position, step.position + rows), slot(rows);
    step.ids = ids.data();
    step.position = position.data();
    step.slot = slot.data();
    std::vector<float> maxima(rows * blocks_of(decoder.head.weight->out));
    step.maxima = maxima.data();
    std::vector<std::vector<int64_t>> drawn;
    for (int64_t number = 0;; ++number) {
        for (int64_t row = 0; row < rows; ++row) {
            const int64_t at = position[row], block = step.block_table[row * step.max_blocks + at / step.block_size];
            slot[row] = static_cast<std::int32_t>(block * step.block_size + at % step.block_size);
        }
        decoder.forward(step);
        if (number + 1 == ahead.steps) return drawn;
        std::vector<Draw> draws = draws_of(ahead, step, decoder.head.weight->out, number);
        sample(draws, ahead.vocab);
        if (!std::all_of(draws.begin(), draws.end(), [&](const Draw& draw) { return goes_on(ahead, draw); })) return drawn;
        for (int64_t row = 0; row < rows; ++row) ids[row] = draws[row].id, ++position[row];
        drawn.push_back(ids);
    }
}

}  // namespace safegen::cpu
