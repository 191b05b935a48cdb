// Python face of the native decoder step. Weights, norms and caches are kept alive by it; all shapes are checked when
// they are handed over, a step's indices in every step.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <mutex>
#include <tuple>

#include "kernels/cpu/bind_common.hpp"
#include "kernels/cpu/bind_sampling.hpp"
#include "kernels/cpu/decode_ahead.hpp"

namespace safegen {
namespace {

using Vector = std::optional<In>;
using NormSpec = std::tuple<Vector, float>;
using LinearSpec = std::tuple<nb::object, Vector>;
using LayerCache = std::tuple<Out, Out, std::optional<Out>, std::optional<Out>>;

class PyDecoder {
  public:
    PyDecoder(nb::object embedding, nb::object head, Vector head_bias, In norm, float eps, int64_t heads, int64_t kv_heads,
              int64_t head_dim, float embedding_scale, float logit_softcap) {
        const auto& table = nb::cast<const Weight&>(embedding);
        keep_.push_back(std::move(embedding));
        if (heads < 1 || kv_heads < 1 || heads % kv_heads) fail("num_heads", "must be a multiple of num_kv_heads");
        if (head_dim < 1) fail("head_dim", "must be positive");
        decoder_.hidden = table.in();
        decoder_.heads = heads;
        decoder_.kv_heads = kv_heads;
        decoder_.head_dim = head_dim;
        decoder_.embedding_scale = embedding_scale;
        decoder_.logit_softcap = logit_softcap;
        decoder_.embedding = &table.data();
        decoder_.head = linear({std::move(head), std::move(head_bias)}, "head", kAny, decoder_.hidden);
        decoder_.norm = this->norm({std::move(norm), eps}, "norm", decoder_.hidden);
    }

    void add_layer(const std::vector<NormSpec>& norms, const std::vector<LinearSpec>& linears, int64_t rope,
                   bool interleaved, float scale, int64_t window, bool silu) {
        if (norms.size() != 6) fail("norms", "must be six");
        if (linears.size() != 7) fail("linears", "must be seven");
        if (rope < 0 || window < 0) fail("layer", "rope and window must not be negative");
        const int64_t hidden = decoder_.hidden, width = decoder_.heads * decoder_.head_dim;
        const int64_t kv_width = decoder_.kv_heads * decoder_.head_dim;
        cpu::DecoderLayer layer;
        layer.attention_norm = norm(norms[0], "attention_norm", hidden);
        layer.post_attention_norm = norm(norms[1], "post_attention_norm", hidden);
        layer.mlp_norm = norm(norms[2], "mlp_norm", hidden);
        layer.post_mlp_norm = norm(norms[3], "post_mlp_norm", hidden);
        layer.q_norm = norm(norms[4], "q_norm", decoder_.head_dim);
        layer.k_norm = norm(norms[5], "k_norm", decoder_.head_dim);
        if (!layer.attention_norm.weight || !layer.mlp_norm.weight) fail("norms", "the two before attention and MLP are due");
        layer.q = linear(linears[0], "q", width, hidden);
        layer.k = linear(linears[1], "k", kv_width, hidden);
        layer.v = linear(linears[2], "v", kv_width, hidden);
        layer.output = linear(linears[3], "output", hidden, width);
        layer.gate = linear(linears[4], "gate", kAny, hidden);
        layer.up = linear(linears[5], "up", layer.gate.weight->out, hidden);
        layer.down = linear(linears[6], "down", hidden, layer.gate.weight->out);
        layer.rope = rope;
        layer.interleaved = interleaved;
        layer.scale = scale;
        layer.window = window;
        layer.activation = silu ? cpu::Activation::silu : cpu::Activation::gelu;
        decoder_.layers.push_back(layer);
    }

    void set_cache(std::vector<LayerCache> caches) {
        if (caches.size() != decoder_.layers.size()) fail("cache", "must have one entry a layer");
        std::vector<cpu::CacheRef> refs;
        for (const auto& [key, value, key_scale, value_scale] : caches) {
            const Cache<Out> cache(key, value, key_scale, value_scale);
            if (cache.kv_heads != decoder_.kv_heads || cache.head_dim != decoder_.head_dim)
                fail("cache", "has other heads than the model");
            if (!refs.empty() && (cache.blocks != blocks_ || cache.block_size != block_size_))
                fail("cache", "must have the same blocks in every layer");
            if (cache.block_size < 1) fail("cache", "block size must be at least 1");
            blocks_ = cache.blocks;
            block_size_ = cache.block_size;
            refs.push_back({cache.kind, cache.key, cache.value, cache.key_scale, cache.value_scale});
        }
        decoder_.cache = std::move(refs);
        caches_ = std::move(caches);
    }

    void forward(const In& ids, const In& position, const In& slot, const In& query_start, const In& context_len,
                 const In& block_table, const In& sampled, const std::vector<std::pair<In, In>>& ropes,
                 const std::optional<In>& masks, const std::optional<In>& restricted, const Out& logits,
                 const std::optional<Out>& maxima, int64_t num_layers) {
        if (decoder_.cache.empty()) fail("cache", "was never set");
        const int64_t tokens = dim(ids, 0), sequences = dim(context_len, 0), rows = dim(sampled, 0);
        const int64_t vocabulary = decoder_.head.weight->out, words = (vocabulary + 31) / 32;
        cpu::Step step{};
        step.ids = checked<int64_t>(ids, "ids", {kAny});
        step.position = checked<std::int32_t>(position, "plan.position", {tokens});
        step.slot = checked<std::int32_t>(slot, "plan.slot", {tokens});
        step.query_start = checked<std::int32_t>(query_start, "plan.query_start", {sequences + 1});
        const auto* context = checked<std::int32_t>(context_len, "plan.context_len", {sequences});
        step.block_table = checked<std::int32_t>(block_table, "plan.block_table", {sequences, kAny});
        step.sampled = checked<std::int32_t>(sampled, "sampled_rows", {rows});
        step.tokens = tokens;
        step.sequences = sequences;
        step.max_blocks = dim(block_table, 1);
        step.block_size = block_size_;
        step.num_sampled = rows;
        step.layers = num_layers;
        if (num_layers < 0 || num_layers > static_cast<int64_t>(decoder_.layers.size()))
            fail("num_layers", "must be from 1 to the model's layers, or 0 for all");
        step.logits = checked<float>(logits, "logits", {rows, vocabulary});
        if (maxima) step.maxima = checked<float>(*maxima, "maxima", {rows, cpu::blocks_of(vocabulary)});
        step.mask_words = masks ? dim(*masks, 1) : 0;
        if (masks.has_value() != restricted.has_value()) fail("masks", "words and restricted come together");
        if (masks) {
            step.masks = reinterpret_cast<const std::uint32_t*>(checked<std::int32_t>(*masks, "masks", {rows, kAny}));
            step.restricted = checked<bool>(*restricted, "restricted", {rows});
            if (step.mask_words > words) fail("masks", "has more words than the vocabulary");
        }
        check_range(step.ids, tokens, decoder_.embedding->out, "ids");
        check_range(step.slot, tokens, blocks_ * block_size_, "plan.slot");
        check_range(step.sampled, rows, tokens, "sampled_rows");
        check_plan(step.query_start, context, step.block_table, step.position, sequences, tokens, step.max_blocks,
                   block_size_, blocks_);
        step.ropes = tables(ropes);
        for (const auto& table : step.ropes) check_range(step.position, tokens, table.positions, "plan.position");
        const nb::gil_scoped_release release;
        const std::lock_guard<std::mutex> lock(mutex_);
        decoder_.forward(step);
    }

    std::vector<std::vector<int64_t>> forward_ahead(const In& ids, const In& position, const In& block_table,
                                                    const std::vector<std::pair<In, In>>& ropes, int64_t vocab_size,
                                                    const nb::list& settings, const In& uniforms,
                                                    const std::vector<int64_t>& stop_ids, const Out& logits) {
        if (decoder_.cache.empty()) fail("cache", "was never set");
        const int64_t rows = dim(ids, 0), vocabulary = decoder_.head.weight->out;
        cpu::Ahead ahead{dim(uniforms, 0) + 1, vocab_size, {}, checked<double>(uniforms, "uniforms", {kAny, rows}), stop_ids};
        if (vocab_size < 1 || vocab_size > vocabulary) fail("vocab_size", "must be from 1 to the model's vocabulary");
        if (static_cast<int64_t>(nb::len(settings)) != rows) fail("settings", "must be one a row");
        for (nb::handle each : settings) ahead.settings.push_back(settings_of(each));
        std::sort(ahead.stop_ids.begin(), ahead.stop_ids.end());
        for (int64_t i = 0; i < (ahead.steps - 1) * rows; ++i)
            if (!(ahead.uniforms[i] >= 0.0 && ahead.uniforms[i] < 1.0)) fail("uniforms", "must lie in [0, 1)");
        std::vector<std::int32_t> places(rows + 1);
        for (int64_t row = 0; row <= rows; ++row) places[row] = static_cast<std::int32_t>(row);
        cpu::Step step{};
        step.ids = checked<int64_t>(ids, "ids", {kAny});
        step.position = checked<std::int32_t>(position, "position", {rows});
        step.query_start = step.sampled = places.data();
        step.block_table = checked<std::int32_t>(block_table, "block_table", {rows, kAny});
        step.tokens = step.sequences = step.num_sampled = rows;
        step.max_blocks = dim(block_table, 1);
        step.block_size = block_size_;
        step.logits = checked<float>(logits, "logits", {rows, vocabulary});
        check_range(step.ids, rows, decoder_.embedding->out, "ids");
        step.ropes = tables(ropes);
        for (const auto& table : step.ropes)
            check_range(step.position, rows, table.positions - ahead.steps + 1, "position");
        for (int64_t row = 0; row < rows; ++row) {
            const int64_t stop = step.position[row] + ahead.steps;
            if (step.position[row] < 0 || stop > step.max_blocks * block_size_) fail("position", "is past the block table");
            check_range(step.block_table + row * step.max_blocks, (stop - 1) / block_size_ + 1, blocks_, "block_table");
        }
        const nb::gil_scoped_release release;
        const std::lock_guard<std::mutex> lock(mutex_);
        return cpu::decode_ahead(decoder_, step, ahead);
    }

  private:
    std::vector<cpu::RopeRef> tables(const std::vector<std::pair<In, In>>& ropes) const {
        std::vector<cpu::RopeRef> found;
        for (const auto& [cos, sin] : ropes) {
            const int64_t positions = dim(cos, 0), half = dim(cos, 1);
            found.push_back({checked<float>(cos, "cos", {kAny, kAny}), checked<float>(sin, "sin", {positions, half}),
                             positions, half});
            if (2 * half > decoder_.head_dim) fail("cos", "rotates more dimensions than a head has");
        }
        for (const auto& layer : decoder_.layers)
            if (layer.rope >= static_cast<int64_t>(found.size())) fail("ropes", "a layer's table is missing");
        return found;
    }
    cpu::NormRef norm(const NormSpec& spec, const char* name, int64_t width) {
        const auto& [weight, eps] = spec;
        if (!weight) return {};
        arrays_.push_back(*weight);
        return {checked<float>(*weight, name, {width}), eps};
    }
    cpu::LinearRef linear(const LinearSpec& spec, const char* name, int64_t out, int64_t in) {
        const auto& [object, bias] = spec;
        const auto& weight = nb::cast<const Weight&>(object);
        if (weight.in() != in || (out != kAny && weight.out() != out))
            fail(name, "must have shape " + shape_text(std::vector<int64_t>{out, in}) + ", got " +
                           shape_text(std::vector<int64_t>{weight.out(), weight.in()}));
        keep_.push_back(object);
        if (!bias) return {&weight.data(), nullptr};
        arrays_.push_back(*bias);
        return {&weight.data(), checked<float>(*bias, "bias", {weight.out()})};
    }

    cpu::Decoder decoder_;
    int64_t blocks_ = 0, block_size_ = 0;
    std::vector<nb::object> keep_;
    std::vector<In> arrays_;
    std::vector<LayerCache> caches_;
    std::mutex mutex_;
};

}  // namespace

void bind_decoder(nb::module_& m) {
    nb::class_<PyDecoder>(m, "CpuDecoder")
        .def(nb::init<nb::object, nb::object, Vector, In, float, int64_t, int64_t, int64_t, float, float>(),
             nb::arg("embedding"), nb::arg("head"), nb::arg("head_bias").none(), nb::arg("norm"), nb::arg("eps"),
             nb::arg("num_heads"), nb::arg("num_kv_heads"), nb::arg("head_dim"), nb::arg("embedding_scale"),
             nb::arg("logit_softcap"))
        .def("add_layer", &PyDecoder::add_layer, nb::arg("norms"), nb::arg("linears"), nb::arg("rope"),
             nb::arg("interleaved"), nb::arg("scale"), nb::arg("window"), nb::arg("silu"))
        .def("set_cache", &PyDecoder::set_cache, nb::arg("caches"))
        .def("forward", &PyDecoder::forward, nb::arg("ids"), nb::arg("position"), nb::arg("slot"), nb::arg("query_start"),
             nb::arg("context_len"), nb::arg("block_table"), nb::arg("sampled_rows"), nb::arg("ropes"),
             nb::arg("masks").none(), nb::arg("restricted").none(), nb::arg("logits"), nb::arg("maxima").none(),
             nb::arg("num_layers") = 0)
        .def("forward_ahead", &PyDecoder::forward_ahead, nb::arg("ids"), nb::arg("position"), nb::arg("block_table"),
             nb::arg("ropes"), nb::arg("vocab_size"), nb::arg("settings"), nb::arg("uniforms"), nb::arg("stop_ids"),
             nb::arg("logits"));
}

}  // namespace safegen
