#include "kernels/cpu/products.hpp"

#include <algorithm>

namespace safegen::cpu {

using std::int64_t;

float* thread_scratch(Scratch slot, int64_t floats) {
    thread_local AlignedArray<float> memory[static_cast<int>(Scratch::kSlots)];
    return memory[static_cast<int>(slot)].reserve(floats);
}

Tile tile_at(int64_t rows, int64_t row) {
    int64_t first = row / kChunkRows * kChunkRows;
    const int64_t end = std::min(rows, first + kChunkRows);
    int64_t size = tile_of(end - first);
    while (row >= first + size) {
        first += size;
        size = tile_of(end - first);
    }
    return {first, size};
}

void quantize_columns(const float* x, int64_t n, int64_t column, const Activations& a, int64_t row) {
    const Tile tile = tile_at(a.rows, row);
    kernels().quantize(x, n, a, tile.first, tile.size, row - tile.first, column / kGroup);
}

// A thread streams through one long piece: each further one begins with a wait for memory, and at a few rows that is what
// a product consists of. A tenth is left for whoever is first to end.
Cut::Cut(int64_t rows, int64_t units, int threads, int64_t align) : rows_(rows), chunk_(rows), chunks_(1) {
    if (rows > kChunkRows) {
        chunk_ = kChunkRows;
        chunks_ = (rows + chunk_ - 1) / chunk_;
    }
    bounds_.push_back(0);
    const auto rounded = [align](int64_t n) { return std::max<int64_t>(align, (n + align / 2) / align * align); };
    if (threads > 1 && chunks_ == 1)
        for (int i = 0; i < threads; ++i)
            if (const int64_t next = bounds_.back() + rounded(units * 9 / (10 * threads)); next < units) bounds_.push_back(next);
    const int64_t pieces = std::max<int64_t>(1, chunks_ == 1 ? threads : 8 * threads / chunks_);
    const int64_t small = threads == 1 ? units : rounded((units - bounds_.back()) / pieces);
    while (bounds_.back() < units) bounds_.push_back(std::min(units, bounds_.back() + std::max(align, small)));
}

Cut::Piece Cut::piece(int64_t i) const {
    const auto ranges = static_cast<int64_t>(bounds_.size()) - 1;
    const int64_t chunk = i / ranges;
    const auto range = static_cast<std::size_t>(i % ranges);
    return {chunk * chunk_, std::min(rows_, (chunk + 1) * chunk_), bounds_[range], bounds_[range + 1]};
}

void product_piece(const Product& p, const Input& input, const Cut::Piece& piece, int64_t y_stride, int64_t y_first) {
    const WeightData& w = *p.weight;
    if (w.packed) {
        PackedArgs args = packed_args(*w.packed, p.bias, p.y, p.accumulate);
        args.y_stride = y_stride;
        args.y_first = y_first;
        args.y_row = p.y_row;
        kernels().packed_linear(args, input.quantized, piece.row0, piece.row1, piece.unit0, piece.unit1);
        return;
    }
    const LinearArgs args{w.kind, w.raw, w.row_bytes, w.in, w.out, input.rows, input.floats, p.bias,
                          p.y - y_first, y_stride, p.accumulate, p.y_row};
    kernels().linear(args, piece.row0, piece.row1, piece.unit0 * kBlockOuts, std::min(w.out, piece.unit1 * kBlockOuts),
                     thread_scratch(Scratch::kernel, kOutTile * round_up(w.in, 16)));
}

void products(ThreadPool::Session& session, const std::vector<Product>& all, const Input& input) {
    int64_t units = 0;
    for (const Product& p : all) units += p.weight->units();
    if (input.rows == 0 || units == 0) return;
    const Cut cut(input.rows, units, session.threads());
    session.run(cut.size(), [&](int64_t i) {
        const Cut::Piece piece = cut.piece(i);
        int64_t first = 0;
        for (const Product& p : all) {
            const int64_t last = first + p.weight->units();
            const int64_t u0 = std::max(piece.unit0, first), u1 = std::min(piece.unit1, last);
            if (u0 < u1) product_piece(p, input, {piece.row0, piece.row1, u0 - first, u1 - first}, p.weight->out, 0);
            first = last;
        }
    });
}

}  // namespace safegen::cpu
