// What the bindings of the CPU kernels share: checked arrays, weights, caches. Every argument is checked (type, device,
// contiguity, shape, index ranges) before a pointer is taken; a mistake is a ValueError that names the argument.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/cpu/ops.hpp"
#include "kernels/cpu/thread_pool.hpp"

namespace nb = nanobind;

namespace safegen::cpu {
struct Half {
    std::uint16_t bits;
};
}  // namespace safegen::cpu

template <> struct nanobind::detail::dtype_traits<safegen::cpu::Half> {
    static constexpr dlpack::dtype value{static_cast<std::uint8_t>(dlpack::dtype_code::Float), 16, 1};
    static constexpr auto name = const_name("float16");
};

namespace safegen {
namespace {

using cpu::Kind;
using std::int64_t;
using In = nb::ndarray<nb::ro>;
using Out = nb::ndarray<>;
constexpr int64_t kAny = -1;

[[noreturn]] inline void fail(const char* name, const std::string& why) {
    throw nb::value_error((std::string(name) + ": " + why).c_str());
}

template <class Sizes> std::string shape_text(const Sizes& sizes) {
    std::string text;
    for (const int64_t n : sizes) {
        text += text.empty() ? "[" : ", ";
        text += n == kAny ? std::string("any") : std::to_string(n);
    }
    return text.empty() ? "[]" : text + "]";
}

template <class T> const char* type_text();
template <> inline const char* type_text<float>() { return "float32"; }
template <> inline const char* type_text<double>() { return "float64"; }
template <> inline const char* type_text<cpu::Half>() { return "float16"; }
template <> inline const char* type_text<bool>() { return "bool"; }
template <> inline const char* type_text<std::int8_t>() { return "int8"; }
template <> inline const char* type_text<std::int32_t>() { return "int32"; }
template <> inline const char* type_text<int64_t>() { return "int64"; }
template <> inline const char* type_text<std::uint8_t>() { return "uint8"; }

// The data of an array after all checks. Dimensions given as kAny may have any size.
template <class T, class Array> auto* checked(const Array& a, const char* name, std::initializer_list<int64_t> shape) {
    if (a.device_type() != nb::device::cpu::value) fail(name, "must be on the CPU");
    if (a.dtype() != nb::dtype<T>()) fail(name, std::string("must be of type ") + type_text<T>());
    bool fits = a.ndim() == shape.size();
    for (std::size_t i = 0; fits && i < a.ndim(); ++i) {
        const int64_t want = shape.begin()[i];
        fits = want == kAny || want == static_cast<int64_t>(a.shape(i));
    }
    if (!fits) fail(name, "must have shape " + shape_text(shape) + ", got " +
                                shape_text(std::vector<int64_t>(a.shape_ptr(), a.shape_ptr() + a.ndim())));
    if (a.size() > 1) {
        int64_t expected = 1;
        for (std::size_t i = a.ndim(); i-- > 0;) {
            if (a.shape(i) != 1 && a.stride(i) != expected) fail(name, "must be contiguous");
            expected *= static_cast<int64_t>(a.shape(i));
        }
    }
    using Pointer = std::conditional_t<std::is_same_v<Array, In>, const T*, T*>;
    return static_cast<Pointer>(const_cast<void*>(static_cast<const void*>(a.data())));
}

template <class Array> int64_t dim(const Array& a, std::size_t i) {
    return i < a.ndim() ? static_cast<int64_t>(a.shape(i)) : 0;
}

template <class T> void check_range(const T* values, int64_t n, int64_t limit, const char* name) {
    for (int64_t i = 0; i < n; ++i)
        if (values[i] < 0 || values[i] >= limit)
            fail(name, "element " + std::to_string(i) + " is " + std::to_string(values[i]) + ", must be in [0, " +
                           std::to_string(limit) + ")");
}

// A weight in file layout, whose bytes it keeps alive, or packed, when it needs them no longer.
class Weight {
  public:
    Weight(const std::string& kind, In data, int64_t out, int64_t in, const std::string& form,
           const std::optional<In>& order) {
        int found = 0;
        while (found < cpu::kKinds && kind != cpu::kKindInfo[found].name) ++found;
        if (found == cpu::kKinds) fail("kind", "\"" + kind + "\" is not a weight type of these kernels");
        const auto& info = cpu::kKindInfo[found];
        if (out < 0 || in < 0) fail("shape", "must not be negative");
        if (in % info.block) fail("shape", kind + " needs in_features to be a multiple of " + std::to_string(info.block));
        data_ = {static_cast<Kind>(found), out, in, in / info.block * info.bytes, nullptr, std::nullopt, {}};
        if (order) data_.order = permutation(*order, in);
        const auto* raw = checked<std::uint8_t>(data, "data", {out, data_.row_bytes});
        const bool blocks = cpu::is_packable(data_.kind);
        if (form == "raw") {
            data_.raw = raw;
            memory_ = std::move(data);
            return;
        }
        const nb::gil_scoped_release release;
        if (form == "packed" && blocks) {
            data_.packed = cpu::pack(data_.kind, raw, out, in);
        } else if ((form == "int8" || form == "int4") && !blocks) {
            data_.packed = cpu::quantize_weight(data_.kind, raw, out, in, form == "int8" ? 8 : 4);
        } else {
            const nb::gil_scoped_acquire acquire;
            fail("form", "\"" + form + "\" does not go with " + kind);
        }
    }

    const cpu::WeightData& data() const { return data_; }
    std::string kind_name() const { return cpu::kKindInfo[static_cast<int>(data_.kind)].name; }
    int64_t out() const { return data_.out; }
    int64_t in() const { return data_.in; }
    int64_t num_bytes() const {
        const auto order_bytes = static_cast<int64_t>(data_.order.size() * sizeof(std::int32_t));
        return order_bytes + (data_.packed ? data_.packed->bytes() : data_.out * data_.row_bytes);
    }
    bool is_packed() const { return data_.packed.has_value(); }

  private:
    static std::vector<std::int32_t> permutation(const In& order, int64_t in) {
        const auto* from = checked<int64_t>(order, "order", {in});
        check_range(from, in, in, "order");
        std::vector<bool> seen(static_cast<std::size_t>(in));
        for (int64_t i = 0; i < in; ++i) {
            if (seen[static_cast<std::size_t>(from[i])]) fail("order", "names input " + std::to_string(from[i]) + " twice");
            seen[static_cast<std::size_t>(from[i])] = true;
        }
        return {from, from + in};
    }

    cpu::WeightData data_;
    std::optional<In> memory_;
};

// A cache of any of its types: keys [blocks, kv_heads, head_dim, block_size], values [blocks, kv_heads, block_size,
// head_dim], with scales for int8 alone.
template <class Array> struct Cache {
    using Data = std::conditional_t<std::is_same_v<Array, In>, const void*, void*>;
    using Scales = std::conditional_t<std::is_same_v<Array, In>, const float*, float*>;
    Data key, value;
    Scales key_scale = nullptr, value_scale = nullptr;
    cpu::KvKind kind;
    int64_t blocks, block_size, kv_heads, head_dim;

    Cache(const Array& keys, const Array& values, const std::optional<Array>& key_scales,
          const std::optional<Array>& value_scales)
        : blocks(dim(keys, 0)), block_size(dim(keys, 3)), kv_heads(dim(keys, 1)), head_dim(dim(keys, 2)) {
        if (keys.dtype() == nb::dtype<float>()) take<float>(cpu::KvKind::f32, keys, values);
        else if (keys.dtype() == nb::dtype<cpu::Half>()) take<cpu::Half>(cpu::KvKind::f16, keys, values);
        else if (keys.dtype() == nb::dtype<std::int8_t>()) take<std::int8_t>(cpu::KvKind::i8, keys, values);
        else fail("cache.key", "must be of type float32, float16 or int8");
        const bool scaled = kind == cpu::KvKind::i8;
        if (key_scales.has_value() != scaled || value_scales.has_value() != scaled)
            fail("cache.key_scale", "an int8 cache has scales of keys and of values, others have none");
        if (!scaled) return;
        key_scale = checked<float>(*key_scales, "cache.key_scale", {blocks, kv_heads, block_size});
        value_scale = checked<float>(*value_scales, "cache.value_scale", {blocks, kv_heads, block_size});
    }

  private:
    template <class T> void take(cpu::KvKind k, const Array& keys, const Array& values) {
        kind = k;
        key = checked<T>(keys, "cache.key", {kAny, kAny, kAny, kAny});
        value = checked<T>(values, "cache.value", {blocks, kv_heads, block_size, head_dim});
    }
};

// Every token's keys must lie within its sequence's context and in blocks that exist.
void check_plan(const std::int32_t* start, const std::int32_t* context, const std::int32_t* table,
                const std::int32_t* position, int64_t sequences, int64_t tokens, int64_t max_blocks, int64_t block_size,
                int64_t blocks) {
    if (start[0] != 0 || start[sequences] != tokens) fail("plan.query_start", "must run from 0 to the number of tokens");
    for (int64_t s = 0; s < sequences; ++s) {
        if (start[s + 1] < start[s] || start[s + 1] > tokens) fail("plan.query_start", "must not decrease");
        if (context[s] < 0 || context[s] > max_blocks * block_size)
            fail("plan.context_len", "does not fit the block table at sequence " + std::to_string(s));
        int64_t needed = 0;
        for (int64_t t = start[s]; t < start[s + 1]; ++t) {
            if (position[t] < 0 || position[t] >= context[s])
                fail("plan.position", "token " + std::to_string(t) + " lies outside its sequence's context");
            needed = std::max<int64_t>(needed, position[t] / block_size + 1);
        }
        check_range(table + s * max_blocks, needed, blocks, "plan.block_table");
    }
}

}  // namespace
}  // namespace safegen
