#include "kernels/cpu/decoder.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>
#include <limits>

#include "kernels/cpu/ops.hpp"
#include "kernels/cpu/sampling.hpp"

namespace safegen::cpu {

using std::int64_t;

namespace {

// Whether rows are quantized where they come about. Where inputs lie in another order, they are sorted first (fitting).
bool takes_quantized(const LinearRef& linear) { return linear.weight->packed && linear.weight->is_in_order(); }

bool takes_floats(std::initializer_list<const LinearRef*> linears) {
    return std::any_of(linears.begin(), linears.end(), [](const LinearRef* l) { return !takes_quantized(*l); });
}
bool takes_quantized(std::initializer_list<const LinearRef*> linears) {
    return std::any_of(linears.begin(), linears.end(), [](const LinearRef* l) { return takes_quantized(*l); });
}

// body(first, last) over pieces of n rows, each worth a thread's while. One piece a thread, in fours of rows: quantized
// rows lie so close that two threads at neighbouring ones would write to the same cache lines.
template <class Body> void over_rows(ThreadPool::Session& session, int64_t n, int64_t row_work, const Body& body) {
    constexpr int64_t least = 4096;  // elements
    const int64_t pieces = std::clamp<int64_t>(n * row_work / least, 1, session.threads());
    int64_t size = std::max<int64_t>(1, (n + pieces - 1) / pieces);
    if (n > 8 && pieces > 1) size = (size + 3) / 4 * 4;
    session.run((n + size - 1) / size, [&](int64_t i) { body(i * size, std::min(n, (i + 1) * size)); });
}

// The blocks of 16 ids of which the mask allows one; none where it allows a single id, whose logit nobody needs.
std::vector<int64_t> wanted_units(const std::uint32_t* mask, int64_t words, int64_t units) {
    std::vector<int64_t> wanted;
    int64_t legal = 0;
    for (int64_t w = 0; w < words && legal < 2; ++w) legal += std::popcount(mask[w]);
    if (legal < 2) return wanted;
    for (int64_t w = 0; w < words && 2 * w < units; ++w) {
        if (!mask[w]) continue;
        if (mask[w] & 0xffffu) wanted.push_back(2 * w);
        if (mask[w] >> 16 && 2 * w + 1 < units) wanted.push_back(2 * w + 1);
    }
    return wanted;
}

// Ranges of items, shared out like a Cut: a long one for each thread, since neighbours share cache lines of what they
// write, and single items for whoever is first to end. An item costs by the keys that its queries see.
std::vector<int64_t> item_ranges(const std::vector<AttentionItem>& items, const std::int32_t* position, int threads) {
    constexpr int64_t fixed = 32;
    const auto cost = [&](const AttentionItem& item) { return (item.last - item.first) * (position[item.last - 1] + fixed); };
    int64_t total = 0, sum = 0, next = 0;
    for (const AttentionItem& item : items) total += cost(item);
    std::vector<int64_t> bounds{0};
    const auto count = static_cast<int64_t>(items.size());
    for (int thread = 1; threads > 1 && thread <= threads; ++thread) {
        while (next < count && (sum + cost(items[static_cast<std::size_t>(next)])) * 10 * threads <= total * 9 * thread)
            sum += cost(items[static_cast<std::size_t>(next++)]);
        if (next > bounds.back()) bounds.push_back(next);
    }
    while (bounds.back() < count) bounds.push_back(bounds.back() + 1);
    return bounds;
}

}  // namespace

// A sampled token. place: its row of x. units: the blocks of 16 ids that are wanted of its logits, where they are few.
// of_use: somebody looks at its logits, which is so unless its mask leaves one id.
struct Decoder::SampledRow {
    int64_t place;
    bool of_use = true, is_sparse = false;
    std::vector<int64_t> units = {};
};

// Which tokens: all of the step, or once moved the sampled ones alone whose logits are of use. items: the pieces of
// their attention.
struct Decoder::Rows {
    int64_t count;
    std::vector<AttentionItem> items;
    std::vector<int64_t> ranges;
    std::vector<SampledRow> sampled;
    bool moved = false;
    std::vector<std::int32_t> position = {};  // of the moved
    const std::int32_t* positions(const Step& step) const { return moved ? position.data() : step.position; }
};

void Decoder::forward(const Step& step) {
    ThreadPool::Session session;
    embed(session, step);
    std::vector<AttentionItem> items = attention_items(step.query_start, step.sequences, kv_heads);
    std::vector<int64_t> ranges = item_ranges(items, step.position, session.threads());
    Rows rows{step.tokens, std::move(items), std::move(ranges), sampled_rows(step)};
    const auto count = step.layers ? static_cast<std::size_t>(step.layers) : layers.size();
    for (std::size_t i = 0; i < count; ++i) run_layer(session, layers[i], cache[i], step, rows, i + 1 == count);
    logits(session, step, rows);
}

std::vector<Decoder::SampledRow> Decoder::sampled_rows(const Step& step) const {
    const int64_t units = head.weight->units();
    std::vector<SampledRow> rows;
    for (int64_t r = 0; r < step.num_sampled; ++r) {
        rows.push_back({step.sampled[r]});
        if (!step.restricted || !step.restricted[r]) continue;
        SampledRow& row = rows.back();
        row.units = wanted_units(step.masks + r * step.mask_words, step.mask_words, units);
        row.of_use = !row.units.empty();
        row.is_sparse = static_cast<int64_t>(row.units.size()) * 4 < units;
    }
    return rows;
}

void Decoder::embed(ThreadPool::Session& session, const Step& step) {
    float* x = x_.reserve(step.tokens * hidden);
    over_rows(session, step.tokens, hidden, [&](int64_t first, int64_t last) {
        for (int64_t t = first; t < last; ++t) {
            float* row = x + t * hidden;
            embedding_row(*embedding, step.ids[t], row);
            if (embedding_scale != 1.0f)
                for (int64_t i = 0; i < hidden; ++i) row[i] *= embedding_scale;
        }
    });
}

// The rows of x after a norm, in the forms that the linears take.
Input Decoder::normed(ThreadPool::Session& session, const NormRef& norm, int64_t rows,
                      std::initializer_list<const LinearRef*> linears) {
    Input input{rows};
    const bool floats = takes_floats(linears), quantized = takes_quantized(linears);
    if (floats) input.floats = normed_.reserve(rows * hidden);
    if (quantized) input.quantized = hidden_q_.reserve(rows, hidden);
    over_rows(session, rows, hidden, [&](int64_t first, int64_t last) {
        for (int64_t r = first; r < last; ++r) {
            float* out = floats ? normed_.data() + r * hidden : thread_scratch(Scratch::row, hidden);
            kernels().rms_norm(x_.data() + r * hidden, norm.weight, norm.eps, hidden, out);
            if (quantized) quantize_columns(out, hidden, 0, input.quantized, r);
        }
    });
    return input;
}

// The input as the weight's inputs lie: the input itself, or a sorted copy of its floats.
Input Decoder::fitting(ThreadPool::Session& session, const WeightData& weight, const Input& input, SortedRows& memory) {
    if (weight.is_in_order()) return input;
    const int64_t width = weight.in;
    Input sorted{input.rows};
    if (weight.packed) {
        sorted.quantized = memory.quantized.reserve(input.rows, width);
    } else {
        sorted.floats = memory.floats.reserve(input.rows * width);
    }
    over_rows(session, input.rows, width, [&](int64_t first, int64_t last) {
        for (int64_t r = first; r < last; ++r) {
            float* row = weight.packed ? thread_scratch(Scratch::row, width) : memory.floats.data() + r * width;
            weight.sort(input.floats + r * width, row);
            if (weight.packed) quantize_columns(row, width, 0, sorted.quantized, r);
        }
    });
    return sorted;
}

// Products of one input; those whose inputs lie in an order of their own each by itself.
void Decoder::multiply(ThreadPool::Session& session, const std::vector<Product>& all, const Input& input) {
    if (std::all_of(all.begin(), all.end(), [](const Product& p) { return p.weight->is_in_order(); }))
        return products(session, all, input);
    std::vector<Product> in_order;
    for (const Product& product : all) {
        if (product.weight->is_in_order()) {
            in_order.push_back(product);
        } else {
            products(session, {product}, fitting(session, *product.weight, input, sorted_));
        }
    }
    products(session, in_order, input);
}

// x += the linear of the input, after the post norm where there is one.
void Decoder::project(ThreadPool::Session& session, const LinearRef& linear, const Input& input, const NormRef& post) {
    if (!post.weight) {
        multiply(session, {{linear.weight, linear.bias, x_.data(), true}}, input);
        return;
    }
    float* y = projected_.reserve(input.rows * hidden);
    multiply(session, {{linear.weight, linear.bias, y, false}}, input);
    over_rows(session, input.rows, hidden, [&](int64_t first, int64_t last) {
        float* normed_row = thread_scratch(Scratch::row, hidden);
        for (int64_t r = first; r < last; ++r) {
            kernels().rms_norm(y + r * hidden, post.weight, post.eps, hidden, normed_row);
            float* x = x_.data() + r * hidden;
            for (int64_t i = 0; i < hidden; ++i) x[i] += normed_row[i];
        }
    });
}

void Decoder::run_layer(ThreadPool::Session& session, const DecoderLayer& layer, const CacheRef& cache_layer, const Step& step,
                        Rows& rows, bool last) {
    const Input input = normed(session, layer.attention_norm, rows.count, {&layer.q, &layer.k, &layer.v});
    q_.reserve(rows.count * heads * head_dim);
    k_.reserve(rows.count * kv_heads * head_dim);
    v_.reserve(rows.count * kv_heads * head_dim);
    multiply(session,
             {{layer.q.weight, layer.q.bias, q_.data()},
              {layer.k.weight, layer.k.bias, k_.data()},
              {layer.v.weight, layer.v.bias, v_.data()}},
             input);
    rotate_and_write(session, layer, cache_layer, step);
    if (last) keep_sampled(step, rows, session.threads());
    project(session, layer.output, attend(session, layer, cache_layer, step, rows), layer.post_attention_norm);
    const Input after = normed(session, layer.mlp_norm, rows.count, {&layer.gate, &layer.up});
    project(session, layer.down, gated(session, layer, after), layer.post_mlp_norm);
}

void Decoder::rotate_and_write(ThreadPool::Session& session, const DecoderLayer& layer, const CacheRef& cache_layer,
                               const Step& step) {
    const RopeRef& table = step.ropes[static_cast<std::size_t>(layer.rope)];
    const KvWriteArgs write{k_.data(), v_.data(), kv_heads * head_dim, kv_heads * head_dim, step.slot,
                            step.block_size, kv_heads, head_dim, cache_layer.kind, cache_layer.key, cache_layer.value,
                            cache_layer.key_scale, cache_layer.value_scale};
    const auto turn = [&](float* x, int64_t count, const NormRef& norm, int64_t t) {
        float* row = x + t * count * head_dim;
        if (norm.weight)
            for (int64_t h = 0; h < count; ++h)
                kernels().rms_norm(row + h * head_dim, norm.weight, norm.eps, head_dim, row + h * head_dim);
        rope_token({row, table.cos, table.sin, step.position + t, 1, count, head_dim, table.half, layer.interleaved, row}, 0);
    };
    over_rows(session, step.tokens, (heads + 2 * kv_heads) * head_dim, [&](int64_t first, int64_t last) {
        for (int64_t t = first; t < last; ++t) {
            turn(q_.data(), heads, layer.q_norm, t);
            turn(k_.data(), kv_heads, layer.k_norm, t);
        }
        kernels().kv_write(write, first, last);
    });
}

// From here on only the rows of sampled tokens that are of use: those of x and q move to the front.
void Decoder::keep_sampled(const Step& step, Rows& rows, int threads) {
    const auto* end = step.sampled + step.num_sampled;
    const auto of_use = std::count_if(rows.sampled.begin(), rows.sampled.end(), [](const SampledRow& r) { return r.of_use; });
    if (of_use == step.tokens || std::adjacent_find(step.sampled, end, std::greater_equal<>()) != end) return;
    rows.moved = true;
    rows.count = of_use;
    std::vector<std::int32_t> query_start{0};
    int64_t kept = 0;
    auto next = rows.sampled.begin();
    for (int64_t s = 0; s < step.sequences; ++s) {
        for (; next != rows.sampled.end() && next->place < step.query_start[s + 1]; ++next) {
            if (!next->of_use) continue;
            const int64_t t = next->place, to = next->place = kept++;
            rows.position.push_back(step.position[t]);
            if (t == to) continue;
            std::memcpy(x_.data() + to * hidden, x_.data() + t * hidden, static_cast<std::size_t>(hidden) * 4);
            std::memcpy(q_.data() + to * heads * head_dim, q_.data() + t * heads * head_dim,
                        static_cast<std::size_t>(heads * head_dim) * 4);
        }
        query_start.push_back(static_cast<std::int32_t>(kept));
    }
    rows.items = attention_items(query_start.data(), step.sequences, kv_heads);
    rows.ranges = item_ranges(rows.items, rows.position.data(), threads);
}

Input Decoder::attend(ThreadPool::Session& session, const DecoderLayer& layer, const CacheRef& c, const Step& step,
                      const Rows& rows) {
    const int64_t width = heads * head_dim, group = heads / kv_heads * head_dim;
    Input input{rows.count};
    float* out = attended_.reserve(rows.count * width);
    const bool quantized = takes_quantized(layer.output), at_once = quantized && group % kGroup == 0;
    if (quantized) input.quantized = attended_q_.reserve(rows.count, width);
    const AttentionArgs args{q_.data(), out, width, width, c.kind, c.key, c.value, c.key_scale, c.value_scale,
                             step.block_table, rows.positions(step), step.max_blocks, step.block_size, heads, kv_heads,
                             head_dim, layer.scale, layer.window, 0.0f};
    session.run(static_cast<int64_t>(rows.ranges.size()) - 1, [&](int64_t range) {
        const auto place = static_cast<std::size_t>(range);
        for (int64_t i = rows.ranges[place]; i < rows.ranges[place + 1]; ++i) {
            const AttentionItem& item = rows.items[static_cast<std::size_t>(i)];
            kernels().attention(args, item, thread_scratch(Scratch::kernel, attention_scratch(args)));
            for (int64_t t = item.first; at_once && t < item.last; ++t)
                quantize_columns(out + t * width + item.kv_head * group, group, item.kv_head * group, input.quantized, t);
        }
    });
    if (quantized && !at_once)
        over_rows(session, rows.count, width, [&](int64_t first, int64_t last) {
            for (int64_t t = first; t < last; ++t) quantize_columns(out + t * width, width, 0, input.quantized, t);
        });
    input.floats = out;
    return input;
}

// activation(gate) * up, as the down projection takes it.
Input Decoder::gated(ThreadPool::Session& session, const DecoderLayer& layer, const Input& input) {
    const int64_t inner = layer.gate.weight->out;
    const bool quantized = takes_quantized(layer.down);
    const Input gate_input = fitting(session, *layer.gate.weight, input, sorted_);
    const Input up_input = fitting(session, *layer.up.weight, input, sorted_up_);
    Input result{input.rows};
    if (quantized) {
        result.quantized = inner_q_.reserve(input.rows, inner);
    } else {
        result.floats = inner_.reserve(input.rows * inner);
    }
    const auto activate = layer.activation == Activation::silu ? kernels().silu_mul : kernels().gelu_mul;
    const Cut cut(input.rows, layer.gate.weight->units(), session.threads(), kGroup / kBlockOuts);
    session.run(cut.size(), [&](int64_t i) {
        const Cut::Piece piece = cut.piece(i);
        const int64_t first = piece.unit0 * kBlockOuts, width = std::min(inner, piece.unit1 * kBlockOuts) - first;
        const int64_t rows = piece.row1 - piece.row0;
        float* gate = thread_scratch(Scratch::gate, rows * width);
        float* up = thread_scratch(Scratch::up, rows * width);
        // Products write row r at y + r * stride: the piece's first row is the scratch's first.
        product_piece({layer.gate.weight, layer.gate.bias, gate - piece.row0 * width}, gate_input, piece, width, first);
        product_piece({layer.up.weight, layer.up.bias, up - piece.row0 * width}, up_input, piece, width, first);
        for (int64_t r = 0; r < rows; ++r) {
            float* row = quantized ? gate + r * width : inner_.data() + (piece.row0 + r) * inner + first;
            activate(gate + r * width, up + r * width, width, row);
            if (quantized) quantize_columns(row, width, first, result.quantized, piece.row0 + r);
        }
    });
    return result;
}

// --- head -----------------------------------------------------------------------------------------------------------

// Of logits that begin a block; all NaN where one of them is.
static void note_maxima(const float* y, int64_t n, float* maxima) {
    if (maxima && !sample_loops().block_maxima(y, n, maxima))
        std::fill(maxima, maxima + blocks_of(n), std::numeric_limits<float>::quiet_NaN());
}

void Decoder::logits(ThreadPool::Session& session, const Step& step, const Rows& rows) {
    const WeightData& w = *head.weight;
    const int64_t vocabulary = w.out;
    std::vector<int64_t> dense, sparse;
    for (int64_t r = 0; r < step.num_sampled; ++r) {
        const SampledRow& row = rows.sampled[static_cast<std::size_t>(r)];
        if (row.of_use) (row.is_sparse ? sparse : dense).push_back(r);
    }
    const auto capped = [&](float* x, int64_t n) {
        if (logit_softcap > 0.0f) kernels().softcap(x, n, logit_softcap, x);
    };
    const auto maxima_of = [&](int64_t r, int64_t first) {
        return step.maxima ? step.maxima + r * blocks_of(vocabulary) + first / kSampleBlock : nullptr;
    };
    const auto normed_row = [&](int64_t r, float* out) {  // as the head's inputs lie
        float* row = w.is_in_order() ? out : thread_scratch(Scratch::gate, hidden);
        kernels().rms_norm(x_.data() + rows.sampled[static_cast<std::size_t>(r)].place * hidden, norm.weight, norm.eps, hidden, row);
        if (!w.is_in_order()) w.sort(row, out);
    };
    const auto count = static_cast<int64_t>(dense.size());
    Input input{count, normed_.reserve(step.num_sampled * hidden)};
    if (w.packed) input.quantized = hidden_q_.reserve(count, hidden);
    over_rows(session, count, hidden, [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; ++i) {
            float* row = normed_.data() + i * hidden;
            normed_row(dense[static_cast<std::size_t>(i)], row);
            if (w.packed) quantize_columns(row, hidden, 0, input.quantized, i);
        }
    });
    // What is done with logits is done by the thread that has just written them, in pieces of whole blocks of maxima.
    const Cut cut(count, w.units(), session.threads(), kSampleBlock / kBlockOuts);
    if (count) session.run(cut.size(), [&](int64_t i) {
        const Cut::Piece piece = cut.piece(i);
        product_piece({head.weight, head.bias, step.logits, false, dense.data()}, input, piece, vocabulary, 0);
        const int64_t first = piece.unit0 * kBlockOuts, n = std::min(vocabulary, piece.unit1 * kBlockOuts) - first;
        for (int64_t row = piece.row0; row < piece.row1; ++row) {
            float* y = step.logits + dense[static_cast<std::size_t>(row)] * vocabulary + first;
            capped(y, n);
            note_maxima(y, n, maxima_of(dense[static_cast<std::size_t>(row)], first));
        }
    });
    session.run(static_cast<int64_t>(sparse.size()), [&](int64_t i) {
        const int64_t r = sparse[static_cast<std::size_t>(i)];
        float* y = step.logits + r * vocabulary;
        std::fill(y, y + vocabulary, -std::numeric_limits<float>::infinity());
        float* floats = thread_scratch(Scratch::row, hidden);
        normed_row(r, floats);
        thread_local ActivationBuffer buffer;
        Input one{1, floats};
        if (w.packed) {
            one.quantized = buffer.reserve(1, hidden);
            quantize_columns(floats, hidden, 0, one.quantized, 0);
        }
        for (const int64_t unit : rows.sampled[static_cast<std::size_t>(r)].units) {
            product_piece({head.weight, head.bias, y}, one, {0, 1, unit, unit + 1}, vocabulary, 0);
            const int64_t first = unit * kBlockOuts;
            capped(y + first, std::min(kBlockOuts, vocabulary - first));
        }
        note_maxima(y, vocabulary, maxima_of(r, 0));
    });
}

}  // namespace safegen::cpu
