// Several decode steps in one call: forward, draw, forward with what was drawn. It saves what comes between two steps
// otherwise, which at a batch of one is a good part of the time: the caller's bookkeeping finds none of its data in a cache
// after the weights have streamed through.
//
// Each step and draw is the one that would be computed alone, to the last bit. The last step is only computed: its rows
// are the caller's to draw from, and so are those of a step in which a draw failed or ended a sequence, which is the
// last one then.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cpu/decoder.hpp"
#include "kernels/cpu/sampling.hpp"

namespace safegen::cpu {

// rows: one token of each sequence. settings: a row's; uniforms: [steps - 1, rows], of the draws after each step but the
// last. stop_ids: sorted. vocab: ids that may be drawn.
struct Ahead {
    std::int64_t steps, vocab;
    std::vector<SampleSettings> settings;
    const double* uniforms;
    std::vector<std::int64_t> stop_ids;
};

// step: of one token a sequence, whose block tables reach steps - 1 tokens further; its logits are those of the last
// step computed. Returns the tokens drawn, row by row, of each step before that.
std::vector<std::vector<std::int64_t>> decode_ahead(Decoder&, Step step, const Ahead&);

}  // namespace safegen::cpu
