// The NEON kernels, with and without dot product instructions, against the portable ones: whole decoder steps over
// every weight kind and cache kind, bit by bit. Built for AArch64 and run under emulation by tests/native/neon.sh.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "kernels/cpu/decoder.hpp"

namespace {

using namespace safegen::cpu;
using std::int64_t;

constexpr int64_t kHidden = 256, kInner = 512, kVocabulary = 131, kTokens = 37, kBlockSize = 8, kBlocks = 6;

struct Model {
    std::mt19937 random{1};
    std::vector<std::unique_ptr<WeightData>> weights;
    std::vector<std::unique_ptr<std::vector<std::uint8_t>>> raws;
    std::vector<float> ones = std::vector<float>(kInner, 1.0f), table;
    Decoder decoder;

    // Random bytes, with fp16 scales (and floats) of a sensible size.
    const WeightData* weight(Kind kind, int64_t out, int64_t in) {
        const KindInfo info = kKindInfo[static_cast<int>(kind)];
        const int64_t row_bytes = in / info.block * info.bytes;
        auto raw = std::make_unique<std::vector<std::uint8_t>>(static_cast<std::size_t>(out * row_bytes));
        for (auto& byte : *raw) byte = static_cast<std::uint8_t>(random());
        const auto set = [&](std::size_t at, unsigned high) {
            const auto half = static_cast<std::uint16_t>(high | random() % 512);
            std::memcpy(raw->data() + at, &half, 2);
        };
        for (std::size_t at = 0; at < raw->size(); at += static_cast<std::size_t>(info.bytes)) {
            if (kind == Kind::f32) {
                const float value = static_cast<float>(static_cast<int>(random() % 2001) - 1000) / 5000.0f;
                std::memcpy(raw->data() + at, &value, 4);
            } else if (kind == Kind::f16 || kind == Kind::bf16) {
                set(at, (kind == Kind::f16 ? 0x2c00u : 0x3d00u) | (random() & 0x8000u));
            } else {
                set(at + (kind == Kind::q6_k ? 208 : 0), 0x2000u);
                if (kind == Kind::q4_1 || kind == Kind::q5_1 || kind == Kind::q4_k || kind == Kind::q5_k) set(at + 2, 0x2000u);
            }
        }
        auto made = std::make_unique<WeightData>(WeightData{kind, out, in, row_bytes, raw->data(), std::nullopt});
        if (is_packable(kind)) made->packed = pack(kind, raw->data(), out, in);
        raws.push_back(std::move(raw));
        weights.push_back(std::move(made));
        return weights.back().get();
    }

    explicit Model(Kind kind) {
        decoder.hidden = kHidden;
        decoder.heads = 4;
        decoder.kv_heads = 2;
        decoder.head_dim = 64;
        decoder.logit_softcap = 30.0f;
        decoder.embedding = weight(Kind::q8_0, kVocabulary, kHidden);
        decoder.head = {decoder.embedding, nullptr};
        decoder.norm = {ones.data(), 1e-5f};
        for (int i = 0; i < 2; ++i) {
            DecoderLayer layer{};
            layer.attention_norm = layer.mlp_norm = {ones.data(), 1e-5f};
            layer.q = {weight(kind, 256, kHidden), nullptr};
            layer.k = {weight(kind, 128, kHidden), nullptr};
            layer.v = {weight(kind, 128, kHidden), nullptr};
            layer.output = {weight(kind, kHidden, 256), nullptr};
            layer.gate = {weight(kind, kInner, kHidden), nullptr};
            layer.up = {weight(kind, kInner, kHidden), nullptr};
            layer.down = {weight(kind, kHidden, kInner), nullptr};
            layer.interleaved = i == 1;
            layer.scale = 0.125f;
            layer.window = i == 1 ? 9 : 0;
            layer.activation = i == 1 ? Activation::silu : Activation::gelu;
            decoder.layers.push_back(layer);
        }
        for (int64_t i = 0; i < kTokens * 16; ++i) table.push_back(std::cos(static_cast<float>(i)));
    }

    std::vector<float> run(KvKind kv) {
        const std::size_t rows = kBlocks * kBlockSize * 2;
        std::vector<std::vector<std::uint8_t>> memory(4, std::vector<std::uint8_t>(rows * 64 * 4));
        std::vector<std::vector<float>> scales(4, std::vector<float>(rows));
        decoder.cache.clear();
        for (std::size_t i = 0; i < 4; i += 2) {
            const bool scaled = kv == KvKind::i8;
            decoder.cache.push_back({kv, memory[i].data(), memory[i + 1].data(), scaled ? scales[i].data() : nullptr,
                                     scaled ? scales[i + 1].data() : nullptr});
        }
        const std::vector<std::int32_t> blocks{3, 1, 2, 0, 5}, starts{0, kTokens};
        std::vector<int64_t> ids;
        std::vector<std::int32_t> position, slot;
        for (std::int32_t i = 0; i < kTokens; ++i) {
            ids.push_back(i * 53 % kVocabulary);
            position.push_back(i);
            slot.push_back(blocks[static_cast<std::size_t>(i / kBlockSize)] * kBlockSize + i % kBlockSize);
        }
        std::vector<float> logits(kTokens * kVocabulary);
        Step step{};
        step.ids = ids.data();
        step.position = step.sampled = position.data();
        step.slot = slot.data();
        step.query_start = starts.data();
        step.block_table = blocks.data();
        step.tokens = step.num_sampled = kTokens;
        step.sequences = 1;
        step.max_blocks = static_cast<int64_t>(blocks.size());
        step.block_size = kBlockSize;
        step.ropes = {{table.data(), table.data(), kTokens, 16}};
        step.logits = logits.data();
        decoder.forward(step);
        return logits;
    }
};

}  // namespace

int main() {
    int compared = 0;
    for (int kind = 0; kind < kKinds; ++kind) {
        Model model(static_cast<Kind>(kind));
        for (const KvKind kv : {KvKind::f32, KvKind::f16, KvKind::i8}) {
            set_kernels(*find_kernels("scalar"));
            const std::vector<float> expected = model.run(kv);
            for (const char* name : {"neon", "neondot"}) {
                const Kernels* table = find_kernels(name);
                if (!table) continue;
                set_kernels(*table);
                const std::vector<float> found = model.run(kv);
                for (std::size_t i = 0; i < found.size(); ++i)
                    if (!std::isfinite(found[i]) || found[i] != expected[i]) {
                        std::printf("%s, weights %s, cache %d: logit %zu is %g, not %g\n", name, kKindInfo[kind].name,
                                    static_cast<int>(kv), i, found[i], expected[i]);
                        return 1;
                    }
                ++compared;
            }
        }
    }
    std::printf("%d steps agree bit by bit\n", compared);
    return compared ? 0 : 1;
}
