// Products of rows with weights of any kind, shared by the threads of a session.
//
// A packed weight (packed.hpp) takes quantized activations, a float weight takes floats; both are cut into units of 16
// output features, several products together, and for many rows into chunks of rows besides. No cut goes through a sum.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "kernels/cpu/kernels.hpp"
#include "kernels/cpu/packed.hpp"
#include "kernels/cpu/thread_pool.hpp"

namespace safegen::cpu {

// A weight [out, in] as the kernels use it. raw: rows in file layout, where it is not packed; whoever made it keeps the
// memory alive. order: which of the model's inputs comes where (GPTQ's act-order); empty: as they are.
struct WeightData {
    Kind kind;
    std::int64_t out, in, row_bytes;
    const std::uint8_t* raw;
    std::optional<PackedWeight> packed;
    std::vector<std::int32_t> order;

    std::int64_t units() const { return (out + kBlockOuts - 1) / kBlockOuts; }
    bool is_in_order() const { return order.empty(); }
    // A row as the model has it to one as the inputs lie here; not in place, and where there is an order.
    void sort(const float* x, float* sorted) const {
        for (std::int64_t i = 0; i < in; ++i) sorted[i] = x[order[static_cast<std::size_t>(i)]];
    }
};

// Rows to be multiplied, in one form or both, as the weight's inputs lie. floats: [rows, in].
struct Input {
    std::int64_t rows;
    const float* floats = nullptr;
    Activations quantized = {};
};

// y[rows, weight.out] = (y +) input * weight^T + bias. y_row: which row of y is the input's row r, null: r.
struct Product {
    const WeightData* weight;
    const float* bias = nullptr;
    float* y = nullptr;
    bool accumulate = false;
    const std::int64_t* y_row = nullptr;
};

// The tile of a row among `rows` (packed.hpp): its first row and its size.
struct Tile {
    std::int64_t first, size;
};
Tile tile_at(std::int64_t rows, std::int64_t row);

// Quantizes columns [column, column + n) of one row; column is a multiple of 32, and n is or ends the row.
void quantize_columns(const float* x, std::int64_t n, std::int64_t column, const Activations&, std::int64_t row);

// Where the work of `units` units for `rows` rows is cut: chunks of rows times ranges of units, the last ones smallest.
class Cut {
  public:
    Cut(std::int64_t rows, std::int64_t units, int threads, std::int64_t align = 1);
    std::int64_t size() const { return chunks_ * static_cast<std::int64_t>(bounds_.size() - 1); }
    struct Piece {
        std::int64_t row0, row1, unit0, unit1;
    };
    Piece piece(std::int64_t i) const;

  private:
    std::int64_t rows_, chunk_, chunks_;
    std::vector<std::int64_t> bounds_;
};

// One piece of one product; y and y_stride as in PackedArgs.
void product_piece(const Product&, const Input&, const Cut::Piece&, std::int64_t y_stride, std::int64_t y_first);

void products(ThreadPool::Session&, const std::vector<Product>&, const Input&);

// Memory of the calling thread, kept between calls; each slot by itself. 64-byte aligned.
enum class Scratch : int { kernel, row, gate, up, kSlots };
float* thread_scratch(Scratch slot, std::int64_t floats);

}  // namespace safegen::cpu
