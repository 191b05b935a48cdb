// Python face of the CPU kernels. Every argument is checked here (type, device, contiguity, shape, index ranges) before
// a pointer is taken; a mistake is a ValueError that names the argument. The GIL is released around the work.
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

[[noreturn]] void fail(const char* name, const std::string& why) {
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
template <> const char* type_text<float>() { return "float32"; }
template <> const char* type_text<cpu::Half>() { return "float16"; }
template <> const char* type_text<std::int8_t>() { return "int8"; }
template <> const char* type_text<std::int32_t>() { return "int32"; }
template <> const char* type_text<int64_t>() { return "int64"; }
template <> const char* type_text<std::uint8_t>() { return "uint8"; }

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

// A weight in file layout: its bytes, kept alive, and what they mean.
class Weight {
  public:
    Weight(const std::string& kind, In data, int64_t out, int64_t in) : data_(std::move(data)), out_(out), in_(in) {
        int found = 0;
        while (found < cpu::kKinds && kind != cpu::kKindInfo[found].name) ++found;
        if (found == cpu::kKinds) fail("kind", "\"" + kind + "\" is not a weight type of these kernels");
        const auto& info = cpu::kKindInfo[found];
        if (out < 0 || in < 0) fail("shape", "must not be negative");
        if (in % info.block) fail("shape", kind + " needs in_features to be a multiple of " + std::to_string(info.block));
        kind_ = static_cast<Kind>(found);
        row_bytes_ = in / info.block * info.bytes;
        bytes_ = checked<std::uint8_t>(data_, "data", {out, row_bytes_});
    }

    Kind kind() const { return kind_; }
    std::string kind_name() const { return cpu::kKindInfo[static_cast<int>(kind_)].name; }
    const std::uint8_t* bytes() const { return bytes_; }
    int64_t out() const { return out_; }
    int64_t in() const { return in_; }
    int64_t row_bytes() const { return row_bytes_; }

  private:
    In data_;
    int64_t out_, in_, row_bytes_;
    Kind kind_;
    const std::uint8_t* bytes_;
};

void linear(const In& x, const Weight& weight, const std::optional<In>& bias, const Out& out) {
    const int64_t rows = dim(x, 0);
    const cpu::LinearArgs args{weight.kind(), weight.bytes(), weight.row_bytes(), weight.in(), weight.out(), rows,
                               checked<float>(x, "x", {kAny, weight.in()}),
                               bias ? checked<float>(*bias, "bias", {weight.out()}) : nullptr,
                               checked<float>(out, "out", {rows, weight.out()})};
    const nb::gil_scoped_release release;
    cpu::linear(args);
}

void embedding(const In& ids, const Weight& weight, const Out& out) {
    const auto* id = checked<int64_t>(ids, "ids", {kAny});
    auto* y = checked<float>(out, "out", {dim(ids, 0), weight.in()});
    check_range(id, dim(ids, 0), weight.out(), "ids");
    const nb::gil_scoped_release release;
    cpu::embedding(weight.kind(), weight.bytes(), weight.row_bytes(), weight.in(), id, dim(ids, 0), y);
}

void rms_norm(const In& x, const In& weight, float eps, const Out& out) {
    const int64_t rows = dim(x, 0), width = dim(x, 1);
    const auto* a = checked<float>(x, "x", {kAny, kAny});
    const auto* w = checked<float>(weight, "weight", {width});
    auto* y = checked<float>(out, "out", {rows, width});
    const nb::gil_scoped_release release;
    cpu::rms_norm(a, w, eps, rows, width, y);
}

void rope(const In& x, const In& cos, const In& sin, const In& position, bool interleaved, const Out& out) {
    const int64_t tokens = dim(x, 0), heads = dim(x, 1), head_dim = dim(x, 2), half = dim(cos, 1);
    const cpu::RopeArgs args{checked<float>(x, "x", {kAny, kAny, kAny}),
                             checked<float>(cos, "cos", {kAny, kAny}),
                             checked<float>(sin, "sin", {dim(cos, 0), half}),
                             checked<std::int32_t>(position, "position", {tokens}),
                             tokens, heads, head_dim, half, interleaved,
                             checked<float>(out, "out", {tokens, heads, head_dim})};
    if (2 * half > head_dim) fail("cos", "rotates more dimensions than a head has");
    check_range(args.position, tokens, dim(cos, 0), "position");
    const nb::gil_scoped_release release;
    cpu::rope(args);
}

// A cache of any of its types, [blocks, block_size, kv_heads, head_dim] each, with scales for int8 alone.
template <class Array> struct Cache {
    using Data = std::conditional_t<std::is_same_v<Array, In>, const void*, void*>;
    using Scales = std::conditional_t<std::is_same_v<Array, In>, const float*, float*>;
    Data key, value;
    Scales key_scale = nullptr, value_scale = nullptr;
    cpu::KvKind kind;
    int64_t blocks, block_size, kv_heads, head_dim;

    Cache(const Array& keys, const Array& values, const std::optional<Array>& key_scales,
          const std::optional<Array>& value_scales)
        : blocks(dim(keys, 0)), block_size(dim(keys, 1)), kv_heads(dim(keys, 2)), head_dim(dim(keys, 3)) {
        if (keys.dtype() == nb::dtype<float>()) take<float>(cpu::KvKind::f32, keys, values);
        else if (keys.dtype() == nb::dtype<cpu::Half>()) take<cpu::Half>(cpu::KvKind::f16, keys, values);
        else if (keys.dtype() == nb::dtype<std::int8_t>()) take<std::int8_t>(cpu::KvKind::i8, keys, values);
        else fail("cache.key", "must be of type float32, float16 or int8");
        const bool scaled = kind == cpu::KvKind::i8;
        if (key_scales.has_value() != scaled || value_scales.has_value() != scaled)
            fail("cache.key_scale", "an int8 cache has scales of keys and of values, others have none");
        if (!scaled) return;
        key_scale = checked<float>(*key_scales, "cache.key_scale", {blocks, block_size, kv_heads});
        value_scale = checked<float>(*value_scales, "cache.value_scale", {blocks, block_size, kv_heads});
    }

  private:
    template <class T> void take(cpu::KvKind k, const Array& keys, const Array& values) {
        kind = k;
        key = checked<T>(keys, "cache.key", {kAny, kAny, kAny, kAny});
        value = checked<T>(values, "cache.value", {blocks, block_size, kv_heads, head_dim});
    }
};

void kv_write(const In& key, const In& value, const Out& key_cache, const Out& value_cache,
              const std::optional<Out>& key_scale, const std::optional<Out>& value_scale, const In& slot) {
    const Cache<Out> cache(key_cache, value_cache, key_scale, value_scale);
    const int64_t tokens = dim(key, 0), heads = cache.kv_heads, head_dim = cache.head_dim;
    const auto* k = checked<float>(key, "key", {kAny, heads, head_dim});
    const auto* v = checked<float>(value, "value", {tokens, heads, head_dim});
    const auto* s = checked<std::int32_t>(slot, "plan.slot", {tokens});
    check_range(s, tokens, cache.blocks * cache.block_size, "plan.slot");
    const cpu::KvWriteArgs args{k, v, heads * head_dim, heads * head_dim, s, heads, head_dim,
                                cache.kind, cache.key, cache.value, cache.key_scale, cache.value_scale};
    const nb::gil_scoped_release release;
    cpu::kv_write(args, tokens);
}

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

void attention(const In& q, const In& key, const In& value, const std::optional<In>& key_scale,
               const std::optional<In>& value_scale, const In& query_start, const In& context_len, const In& block_table,
               const In& position, float scale, int64_t window, float softcap, const Out& out) {
    const Cache<In> cache(key, value, key_scale, value_scale);
    const int64_t tokens = dim(q, 0), heads = dim(q, 1), head_dim = cache.head_dim, sequences = dim(context_len, 0);
    const int64_t blocks = cache.blocks, block_size = cache.block_size, kv_heads = cache.kv_heads;
    const cpu::AttentionArgs args{
        checked<float>(q, "q", {kAny, kAny, head_dim}),
        checked<float>(out, "out", {tokens, heads, head_dim}),
        heads * head_dim, heads * head_dim,
        cache.kind, cache.key, cache.value, cache.key_scale, cache.value_scale,
        checked<std::int32_t>(block_table, "plan.block_table", {sequences, kAny}),
        checked<std::int32_t>(position, "plan.position", {tokens}),
        dim(block_table, 1), block_size, heads, kv_heads, head_dim, scale, window, softcap};
    const auto* start = checked<std::int32_t>(query_start, "plan.query_start", {sequences + 1});
    const auto* context = checked<std::int32_t>(context_len, "plan.context_len", {sequences});
    if (block_size < 1) fail("cache.key", "block size must be at least 1");
    if (kv_heads < 1 || heads % kv_heads) fail("q", "heads must be a multiple of the cache's key/value heads");
    if (window < 0) fail("window", "must be positive");
    if (!(softcap >= 0.0f)) fail("softcap", "must be positive");
    check_plan(start, context, args.block_table, args.position, sequences, tokens, args.max_blocks, block_size, blocks);
    const nb::gil_scoped_release release;
    cpu::attention(args, start, sequences);
}

template <void (*op)(const float*, const float*, int64_t, float*)>
void gate(const In& gate, const In& up, const Out& out) {
    const int64_t rows = dim(gate, 0), width = dim(gate, 1);
    const auto* a = checked<float>(gate, "gate", {kAny, kAny});
    const auto* b = checked<float>(up, "up", {rows, width});
    auto* y = checked<float>(out, "out", {rows, width});
    const nb::gil_scoped_release release;
    op(a, b, rows * width, y);
}

void set_isa(const std::string& name) {
    const cpu::Kernels* table = cpu::find_kernels(name.c_str());
    if (!table) fail("name", "\"" + name + "\" is not an instruction set of this processor");
    cpu::set_kernels(*table);
}

std::vector<std::string> isas() {
    std::vector<std::string> names;
    for (const char* name : {"scalar", "avx2", "avx512"})
        if (cpu::find_kernels(name)) names.emplace_back(name);
    return names;
}

void set_threads(int threads) {
    if (threads < 1 || threads > cpu::ThreadPool::kMaxThreads)
        fail("threads", "must be in [1, " + std::to_string(cpu::ThreadPool::kMaxThreads) + "]");
    cpu::ThreadPool::set_threads(threads);
}

}  // namespace

void bind_kernels(nb::module_& m) {
    nb::class_<Weight>(m, "CpuWeight")
        .def(nb::init<const std::string&, In, int64_t, int64_t>(), nb::arg("kind"), nb::arg("data"),
             nb::arg("out_features"), nb::arg("in_features"))
        .def_prop_ro("kind", &Weight::kind_name)
        .def_prop_ro("out_features", &Weight::out)
        .def_prop_ro("in_features", &Weight::in);
    m.def("cpu_linear", linear, nb::arg("x"), nb::arg("weight"), nb::arg("bias").none(), nb::arg("out"));
    m.def("cpu_embedding", embedding, nb::arg("ids"), nb::arg("weight"), nb::arg("out"));
    m.def("cpu_rms_norm", rms_norm, nb::arg("x"), nb::arg("weight"), nb::arg("eps"), nb::arg("out"));
    m.def("cpu_rope", rope, nb::arg("x"), nb::arg("cos"), nb::arg("sin"), nb::arg("position"), nb::arg("interleaved"),
          nb::arg("out"));
    m.def("cpu_kv_write", kv_write, nb::arg("key"), nb::arg("value"), nb::arg("key_cache"), nb::arg("value_cache"),
          nb::arg("key_scale").none(), nb::arg("value_scale").none(), nb::arg("slot"));
    m.def("cpu_attention", attention, nb::arg("q"), nb::arg("key"), nb::arg("value"),
          nb::arg("key_scale").none(), nb::arg("value_scale").none(), nb::arg("query_start"),
          nb::arg("context_len"), nb::arg("block_table"), nb::arg("position"), nb::arg("scale"), nb::arg("window"),
          nb::arg("softcap"), nb::arg("out"));
    m.def("cpu_silu_mul", gate<cpu::silu_mul>, nb::arg("gate"), nb::arg("up"), nb::arg("out"));
    m.def("cpu_gelu_mul", gate<cpu::gelu_mul>, nb::arg("gate"), nb::arg("up"), nb::arg("out"));
    m.def("cpu_isa", [] { return std::string(cpu::kernels().name); });
    m.def("cpu_isas", isas);
    m.def("cpu_set_isa", set_isa, nb::arg("name"));
    m.def("cpu_threads", &cpu::ThreadPool::threads);
    m.def("cpu_set_threads", set_threads, nb::arg("threads"));
}

}  // namespace safegen
