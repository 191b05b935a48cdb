// Quantized weights packed for integer dot products, and activations quantized to meet them.
//
// A weight is w = scale * (q - zero) or w = scale * q + minimum, with q an unsigned integer of 4, 5, 6 or 8 bits. All
// GGUF block types have that form, and so have the int8 and int4 weights made at load. Output features go together in
// blocks of 16, one a lane; inputs in groups of 32. A record is one block times one group, and a block's records lie
// one after the other, so that a thread streams through memory:
//
//   4 x 64 bytes  low nibbles: byte 4 * lane + i of vector v holds q of inputs 4 v + i (low half) and 16 + 4 v + i (high)
//   5 bits        64 bytes more: bit 4 * lane + i of 8-byte word u is bit 4 of q of input 4 u + i
//   6 bits        128 bytes more: byte 4 * lane + i of vector v holds bits 4 and 5 of q of inputs 8 n + 4 v + i at bits 2 n
//   8 bits        8 x 64 bytes in place of the nibbles: vector u holds q of inputs 4 u + i
//   scales        16 fp16 (6 bits: one for each 16 inputs, 2 x 16)
//   minima        16 fp16, where the type has them
//
// Scales of the 256-weight types are products of two numbers and of on-load quantization free: they are stored times a
// power of two for each row (row_scale undoes it), which keeps fp16's 11 bits whatever their size. Those of the
// 32-weight types are the file's own.
//
// Activations: each row and group of 32 by itself, scale = max|x| / 127, q = round(x / scale) in int8. Then
// y = sum over groups, in order, of fma(dot * x_scale, scale, y) and then fma(minimum, x_scale * sum(q_x), y): a chain
// for each output, the same whatever else is computed with it. Integer sums are exact, so all instruction sets that
// fuse multiply-add agree bitwise.
#pragma once

#include <cstdint>
#include <memory>
#include <new>
#include <vector>

#include "kernels/cpu/kernels.hpp"

namespace safegen::cpu {

inline constexpr std::int64_t kBlockOuts = 16, kGroup = 32;

enum class Packing : int { nibble, nibble_min, five, five_min, six, byte };

struct PackingInfo {
    int bits, zero;  // zero: what is subtracted from q; with minima 0
    bool minimum;
    int scales;      // a group
    int bytes;       // a record
};
inline constexpr PackingInfo kPackingInfo[] = {
    {4, 8, false, 1, 256 + 32},       {4, 0, true, 1, 256 + 64},  {5, 16, false, 1, 320 + 32},
    {5, 0, true, 1, 320 + 64},        {6, 32, false, 2, 384 + 64}, {8, 128, false, 1, 512 + 32},
};

template <class T> struct FreeAligned {
    void operator()(T* p) const { ::operator delete(p, std::align_val_t(64)); }
};
// Not initialized.
template <class T> class AlignedArray {
  public:
    AlignedArray() = default;
    explicit AlignedArray(std::int64_t n) { reserve(n); }
    T* data() const { return memory_.get(); }
    // At least n elements; what was in it is lost when it grows.
    T* reserve(std::int64_t n) {
        if (n > capacity_) {
            memory_.reset();
            capacity_ = 0;
            memory_.reset(static_cast<T*>(::operator new(static_cast<std::size_t>(n) * sizeof(T), std::align_val_t(64))));
            capacity_ = n;
        }
        return memory_.get();
    }
    std::int64_t capacity() const { return capacity_; }

  private:
    std::unique_ptr<T, FreeAligned<T>> memory_;
    std::int64_t capacity_ = 0;
};

// A weight [out, in], padded with zero weights to whole blocks and groups.
struct PackedWeight {
    Packing packing;
    std::int64_t out, in, blocks, groups;
    std::shared_ptr<std::uint8_t> records;
    std::vector<float> row_scale;  // [blocks * 16], or empty: all 1

    std::int64_t block_bytes() const { return groups * kPackingInfo[static_cast<int>(packing)].bytes; }
    std::int64_t bytes() const { return blocks * block_bytes() + static_cast<std::int64_t>(row_scale.size()) * 4; }
};

// True for the GGUF block types.
bool is_packable(Kind);
// raw: rows in file layout.
PackedWeight pack(Kind, const std::uint8_t* raw, std::int64_t out, std::int64_t in);
// Quantizes rows of f32, f16 or bf16 at load. bits 8: symmetric, group-wise. bits 4: scale and minimum, group-wise.
PackedWeight quantize_weight(Kind, const std::uint8_t* raw, std::int64_t out, std::int64_t in, int bits);
// One row as floats, the values that the products use: out[0 .. in).
void dequantize_packed(const PackedWeight&, std::int64_t row, float* out);

// Rows of activations, quantized; each kChunkRows in tiles, a tile [groups][rows][32] from element 32 * groups * first
// row on, so that a kernel finds all of a tile at constant distances.
struct Activations {
    std::int64_t rows = 0, groups = 0;
    std::int8_t* q = nullptr;
    float* scale = nullptr;         // [groups][rows][2] of a tile: x_scale and x_scale * sum(q)
    std::int32_t* sum = nullptr;    // [groups][rows][2]: of each 16
};
inline constexpr std::int64_t kChunkRows = 64, kMaxTile = 20;
// Rows of the next tile of a chunk that has so many left: each tile unpacks the weights for itself, so there are few.
static inline std::int64_t tile_of(std::int64_t rows_left) {
    if (rows_left <= kMaxTile) return rows_left;
    return rows_left > 32 && rows_left <= 2 * kMaxTile ? kMaxTile : 16;
}

// Memory for Activations.
class ActivationBuffer {
  public:
    Activations reserve(std::int64_t rows, std::int64_t in) {
        const std::int64_t groups = (in + kGroup - 1) / kGroup, n = rows * groups;
        return {rows, groups, q_.reserve(n * kGroup), scale_.reserve(2 * n), sum_.reserve(2 * n)};
    }

  private:
    AlignedArray<std::int8_t> q_;
    AlignedArray<float> scale_;
    AlignedArray<std::int32_t> sum_;
};

struct PackedArgs {
    Packing packing;
    const std::uint8_t* records;
    std::int64_t out, groups, block_bytes;
    const float* row_scale;  // or null
    const float* bias;       // or null
    float* y;                // [rows, out] at y_stride; feature o of row r is y[r * y_stride + o - y_first]
    std::int64_t y_stride, y_first;
    bool accumulate;         // y += instead of y =
    const std::int64_t* y_row = nullptr;  // row r is row y_row[r] of y; null: r
};
static inline PackedArgs packed_args(const PackedWeight& w, const float* bias, float* y, bool accumulate = false) {
    return {w.packing, w.records.get(), w.out, w.groups, w.block_bytes(),
            w.row_scale.empty() ? nullptr : w.row_scale.data(), bias, y, w.out, 0, accumulate};
}

}  // namespace safegen::cpu
