#include "kernels/cpu/ops.hpp"

#include <algorithm>
#include <vector>

#include "kernels/cpu/thread_pool.hpp"

namespace safegen::cpu {
namespace {

constexpr std::int64_t kSerialWork = 16 * 1024;  // multiply-adds or elements below which waking a thread costs more

// body(first, last) over pieces of [0, n); `unit`: the work of one index.
template <class Body> void over_ranges(std::int64_t n, std::int64_t unit, const Body& body) {
    if (n <= 0) return;
    if (n * unit <= kSerialWork) {
        ThreadPool::instance().run(1, [&](std::int64_t) { body(0, n); });
        return;
    }
    const std::int64_t pieces = std::min<std::int64_t>(n, 4 * ThreadPool::threads());
    const std::int64_t size = (n + pieces - 1) / pieces;
    ThreadPool::instance().run((n + size - 1) / size,
                               [&](std::int64_t i) { body(i * size, std::min(n, (i + 1) * size)); });
}

}  // namespace

namespace {

// body(row) for all rows, sixteen a piece.
template <class Body> void over_rows(ThreadPool::Session& session, std::int64_t rows, const Body& body) {
    const std::int64_t chunk = 16;
    session.run((rows + chunk - 1) / chunk, [&](std::int64_t i) {
        for (std::int64_t r = i * chunk; r < std::min(rows, (i + 1) * chunk); ++r) body(r);
    });
}

// Rows as the weight's inputs lie: x, or a copy in memory of the calling thread.
const float* sorted_rows(ThreadPool::Session& session, const WeightData& weight, const float* x, std::int64_t rows) {
    if (weight.is_in_order()) return x;
    thread_local AlignedArray<float> memory;
    float* sorted = memory.reserve(rows * weight.in);
    over_rows(session, rows, [&](std::int64_t r) { weight.sort(x + r * weight.in, sorted + r * weight.in); });
    return sorted;
}

}  // namespace

void linear(const WeightData& weight, const float* x, const float* bias, std::int64_t rows, float* y) {
    ThreadPool::Session session;
    x = sorted_rows(session, weight, x, rows);
    Input input{rows, x};
    thread_local ActivationBuffer buffer;
    if (weight.packed) {
        input.quantized = buffer.reserve(rows, weight.in);
        over_rows(session, rows,
                  [&](std::int64_t r) { quantize_columns(x + r * weight.in, weight.in, 0, input.quantized, r); });
    }
    products(session, {{&weight, bias, y}}, input);
}

void embedding_row(const WeightData& weight, std::int64_t id, float* out) {
    float* row = weight.is_in_order() ? out : thread_scratch(Scratch::row, weight.in);
    if (weight.packed) {
        dequantize_packed(*weight.packed, id, row);
    } else {
        kernels().dequantize(weight.kind, weight.raw + id * weight.row_bytes, weight.in, row);
    }
    if (weight.is_in_order()) return;
    for (std::int64_t i = 0; i < weight.in; ++i) out[weight.order[static_cast<std::size_t>(i)]] = row[i];
}

void embedding(const WeightData& weight, const std::int64_t* ids, std::int64_t tokens, float* out) {
    over_ranges(tokens, weight.in, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t t = first; t < last; ++t) embedding_row(weight, ids[t], out + t * weight.in);
    });
}

void rms_norm(const float* x, const float* weight, float eps, std::int64_t rows, std::int64_t dim, float* out) {
    const Kernels& table = kernels();
    over_ranges(rows, dim, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t r = first; r < last; ++r) table.rms_norm(x + r * dim, weight, eps, dim, out + r * dim);
    });
}

void rope_token(const RopeArgs& a, std::int64_t token) {
    const std::int64_t step = a.interleaved ? 2 : 1, apart = a.interleaved ? 1 : a.half;
    const float *cos = a.cos + a.position[token] * a.half, *sin = a.sin + a.position[token] * a.half;
    for (std::int64_t row = token * a.heads; row < (token + 1) * a.heads; ++row) {
        const float* x = a.x + row * a.head_dim;
        float* out = a.out + row * a.head_dim;
        for (std::int64_t i = 0; i < a.half; ++i) {
            const float u = x[i * step], v = x[i * step + apart];
            out[i * step] = u * cos[i] - v * sin[i];
            out[i * step + apart] = v * cos[i] + u * sin[i];
        }
        if (out != x) std::copy(x + 2 * a.half, x + a.head_dim, out + 2 * a.half);
    }
}

void rope(const RopeArgs& a) {
    over_ranges(a.tokens, a.heads * a.head_dim, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t token = first; token < last; ++token) rope_token(a, token);
    });
}

void kv_write(const KvWriteArgs& a, std::int64_t tokens) {
    const Kernels& table = kernels();
    over_ranges(tokens, 2 * a.kv_heads * a.head_dim,
                [&](std::int64_t first, std::int64_t last) { table.kv_write(a, first, last); });
}

std::vector<AttentionItem> attention_items(const std::int32_t* query_start, std::int64_t sequences,
                                           std::int64_t kv_heads) {
    std::vector<AttentionItem> items;
    for (std::int64_t s = 0; s < sequences; ++s) {
        const std::int64_t first = query_start[s], end = query_start[s + 1];
        const std::int64_t chunks = (end - first + kQueryChunk - 1) / kQueryChunk;
        for (std::int64_t c = chunks; c-- > 0;)  // the last of a prompt sees most: started first, it ends in time
            for (std::int64_t h = 0; h < kv_heads; ++h)
                items.push_back({s, first + c * kQueryChunk, std::min(first + (c + 1) * kQueryChunk, end), h});
    }
    return items;
}

void attention(const AttentionArgs& a, const std::int32_t* query_start, std::int64_t sequences) {
    const std::vector<AttentionItem> items = attention_items(query_start, sequences, a.kv_heads);
    const Kernels& table = kernels();
    ThreadPool::instance().run(static_cast<std::int64_t>(items.size()), [&](std::int64_t i) {
        table.attention(a, items[static_cast<std::size_t>(i)], thread_scratch(Scratch::kernel, attention_scratch(a)));
    });
}

void silu_mul(const float* gate, const float* up, std::int64_t n, float* out) {
    const Kernels& table = kernels();
    over_ranges((n + 15) / 16, 64, [&](std::int64_t first, std::int64_t last) {
        table.silu_mul(gate + first * 16, up + first * 16, std::min(n, last * 16) - first * 16, out + first * 16);
    });
}

void gelu_mul(const float* gate, const float* up, std::int64_t n, float* out) {
    const Kernels& table = kernels();
    over_ranges((n + 15) / 16, 64, [&](std::int64_t first, std::int64_t last) {
        table.gelu_mul(gate + first * 16, up + first * 16, std::min(n, last * 16) - first * 16, out + first * 16);
    });
}

void softcap(const float* x, std::int64_t n, float cap, float* out) {
    const Kernels& table = kernels();
    over_ranges((n + 15) / 16, 64, [&](std::int64_t first, std::int64_t last) {
        table.softcap(x + first * 16, std::min(n, last * 16) - first * 16, cap, out + first * 16);
    });
}

}  // namespace safegen::cpu
