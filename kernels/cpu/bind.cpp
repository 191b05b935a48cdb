// Python face of the CPU kernels (bind_common.hpp has the checks). The GIL is released around the work.
#include "kernels/cpu/bind_common.hpp"

namespace safegen {

void bind_decoder(nb::module_& m);  // bind_decoder.cpp

namespace {

void linear(const In& x, const Weight& weight, const std::optional<In>& bias, const Out& out) {
    const int64_t rows = dim(x, 0);
    const auto* a = checked<float>(x, "x", {kAny, weight.in()});
    const auto* b = bias ? checked<float>(*bias, "bias", {weight.out()}) : nullptr;
    auto* y = checked<float>(out, "out", {rows, weight.out()});
    const nb::gil_scoped_release release;
    cpu::linear(weight.data(), a, b, rows, y);
}

void embedding(const In& ids, const Weight& weight, const Out& out) {
    const auto* id = checked<int64_t>(ids, "ids", {kAny});
    auto* y = checked<float>(out, "out", {dim(ids, 0), weight.in()});
    check_range(id, dim(ids, 0), weight.out(), "ids");
    const nb::gil_scoped_release release;
    cpu::embedding(weight.data(), id, dim(ids, 0), y);
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

void kv_write(const In& key, const In& value, const Out& key_cache, const Out& value_cache,
              const std::optional<Out>& key_scale, const std::optional<Out>& value_scale, const In& slot) {
    const Cache<Out> cache(key_cache, value_cache, key_scale, value_scale);
    const int64_t tokens = dim(key, 0), heads = cache.kv_heads, head_dim = cache.head_dim;
    const auto* k = checked<float>(key, "key", {kAny, heads, head_dim});
    const auto* v = checked<float>(value, "value", {tokens, heads, head_dim});
    const auto* s = checked<std::int32_t>(slot, "plan.slot", {tokens});
    check_range(s, tokens, cache.blocks * cache.block_size, "plan.slot");
    const cpu::KvWriteArgs args{k, v, heads * head_dim, heads * head_dim, s, cache.block_size, heads, head_dim,
                                cache.kind, cache.key, cache.value, cache.key_scale, cache.value_scale};
    const nb::gil_scoped_release release;
    cpu::kv_write(args, tokens);
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

void softcap(const In& x, float cap, const Out& out) {
    const int64_t rows = dim(x, 0), width = dim(x, 1);
    const auto* a = checked<float>(x, "x", {kAny, kAny});
    auto* y = checked<float>(out, "out", {rows, width});
    if (!(cap > 0.0f)) fail("cap", "must be positive");
    const nb::gil_scoped_release release;
    cpu::softcap(a, rows * width, cap, y);
}

void set_isa(const std::string& name) {
    const cpu::Kernels* table = cpu::find_kernels(name.c_str());
    if (!table) fail("name", "\"" + name + "\" is not an instruction set of this processor");
    cpu::set_kernels(*table);
}

std::vector<std::string> isas() {
    std::vector<std::string> names;
    for (const char* name : {"scalar", "avx2", "avx512", "neon", "neondot"})
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
        .def(nb::init<const std::string&, In, int64_t, int64_t, const std::string&, const std::optional<In>&>(),
             nb::arg("kind"), nb::arg("data"), nb::arg("out_features"), nb::arg("in_features"), nb::arg("form") = "raw",
             nb::arg("order").none() = nb::none())
        .def_prop_ro("kind", &Weight::kind_name)
        .def_prop_ro("out_features", &Weight::out)
        .def_prop_ro("in_features", &Weight::in)
        .def_prop_ro("num_bytes", &Weight::num_bytes)
        .def_prop_ro("is_packed", &Weight::is_packed);
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
    m.def("cpu_softcap", softcap, nb::arg("x"), nb::arg("cap"), nb::arg("out"));
    m.def("cpu_gelu_mul", gate<cpu::gelu_mul>, nb::arg("gate"), nb::arg("up"), nb::arg("out"));
    bind_decoder(m);
    m.def("cpu_isa", [] { return std::string(cpu::kernels().name); });
    m.def("cpu_isas", isas);
    m.def("cpu_set_isa", set_isa, nb::arg("name"));
    m.def("cpu_threads", &cpu::ThreadPool::threads);
    m.def("cpu_set_threads", set_threads, nb::arg("threads"));
}

}  // namespace safegen
