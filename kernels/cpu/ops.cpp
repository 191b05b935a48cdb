#include "kernels/cpu/ops.hpp"

#include <algorithm>
#include <memory>
#include <new>
#include <vector>

#include "kernels/cpu/thread_pool.hpp"

namespace safegen::cpu {
namespace {

constexpr std::int64_t kSerialWork = 16 * 1024;  // multiply-adds or elements below which waking a thread costs more

// Per-thread memory for a kernel, kept between calls.
float* scratch(std::int64_t floats) {
    struct Free {
        void operator()(float* p) const { ::operator delete(p, std::align_val_t(64)); }
    };
    thread_local std::unique_ptr<float, Free> memory;
    thread_local std::int64_t capacity = 0;
    if (floats > capacity) {
        memory.reset();
        capacity = 0;
        const auto bytes = static_cast<std::size_t>(floats) * sizeof(float);
        memory.reset(static_cast<float*>(::operator new(bytes, std::align_val_t(64))));
        capacity = floats;
    }
    return memory.get();
}

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

void linear(const LinearArgs& a) {
    if (a.rows == 0 || a.out == 0) return;
    // Row blocks whose activations stay in the L2 cache (256 KiB), a multiple of every register tile's rows.
    const std::int64_t block = std::clamp<std::int64_t>(65536 / std::max<std::int64_t>(a.in, 1) / 12 * 12, 12, 240);
    const std::int64_t row_blocks = (a.rows + block - 1) / block;
    std::int64_t pieces = std::max<std::int64_t>(1, 4 * ThreadPool::threads() / row_blocks);
    if (a.rows * a.in * a.out <= kSerialWork) pieces = 1;
    const std::int64_t features =
        std::clamp<std::int64_t>(round_up((a.out + pieces - 1) / pieces, kOutTile), 16, std::max<std::int64_t>(16, a.out));
    const std::int64_t columns = (a.out + features - 1) / features;
    const Kernels& table = kernels();
    ThreadPool::instance().run(columns * row_blocks, [&](std::int64_t i) {
        const std::int64_t row = i / columns * block, feature = i % columns * features;
        table.linear(a, row, std::min(a.rows, row + block), feature, std::min(a.out, feature + features),
                     scratch(kOutTile * round_up(a.in, 16)));
    });
}

void embedding(Kind kind, const std::uint8_t* weight, std::int64_t row_bytes, std::int64_t dim, const std::int64_t* ids,
               std::int64_t tokens, float* out) {
    const Kernels& table = kernels();
    over_ranges(tokens, dim, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t t = first; t < last; ++t)
            table.dequantize(kind, weight + ids[t] * row_bytes, dim, out + t * dim);
    });
}

void rms_norm(const float* x, const float* weight, float eps, std::int64_t rows, std::int64_t dim, float* out) {
    const Kernels& table = kernels();
    over_ranges(rows, dim, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t r = first; r < last; ++r) table.rms_norm(x + r * dim, weight, eps, dim, out + r * dim);
    });
}

void rope(const RopeArgs& a) {
    const std::int64_t step = a.interleaved ? 2 : 1, apart = a.interleaved ? 1 : a.half;
    over_ranges(a.tokens, a.heads * a.head_dim, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t row = first * a.heads; row < last * a.heads; ++row) {
            const float *x = a.x + row * a.head_dim, *cos = a.cos + a.position[row / a.heads] * a.half;
            const float* sin = a.sin + a.position[row / a.heads] * a.half;
            float* out = a.out + row * a.head_dim;
            for (std::int64_t i = 0; i < a.half; ++i) {
                const float u = x[i * step], v = x[i * step + apart];
                out[i * step] = u * cos[i] - v * sin[i];
                out[i * step + apart] = v * cos[i] + u * sin[i];
            }
            std::copy(x + 2 * a.half, x + a.head_dim, out + 2 * a.half);
        }
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
        table.attention(a, items[static_cast<std::size_t>(i)], scratch(attention_scratch(a)));
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

}  // namespace safegen::cpu
