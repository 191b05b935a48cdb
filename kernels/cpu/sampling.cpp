// What a draw does around its loops: which ids take part, the cuts of top-k, top-p and min-p, the inverse of the
// cumulative law. See sampling.hpp.
#include "kernels/cpu/sampling.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "kernels/cpu/kernels.hpp"
#include "kernels/cpu/thread_pool.hpp"

namespace safegen::cpu {
namespace {

using std::int64_t;

constexpr double kTiny = std::numeric_limits<double>::min();
constexpr float kForbidden = -std::numeric_limits<float>::infinity();
constexpr int64_t kSparseShare = 16;       // masks with fewer than 1 / kSparseShare of the ids legal are gathered
constexpr int64_t kRowsWorthThreads = 32;  // greedy rows below which waking a thread takes longer than the work

// The ids that take part in a draw, ascending, and their scores; a null `ids` stands for 0 .. count - 1. The buffers are
// a thread's own and grow to the vocabulary once.
struct Candidates {
    const std::int32_t* ids;
    const float* scores;
    int64_t count;

    int64_t id(int64_t place) const { return ids ? ids[place] : place; }
};

// Weights of a row that are left after a cut, and their places among the candidates.
struct Head {
    std::vector<std::int32_t> places;
    std::vector<double> weights;
};

struct Buffers {
    std::vector<float> scores, kept_scores, maxima, maxima_of_maxima, ranked;
    std::vector<std::int32_t> ids, kept_ids;
    std::vector<double> weights, sums, band, band_sums;
    Head head;
};

// The ids of the set bits and their scores.
Candidates gather(const Draw& draw, int64_t vocab, int64_t count, Buffers& own) {
    own.ids.resize(count);
    own.scores.resize(std::max<int64_t>(own.scores.size(), count));
    int64_t place = 0;
    for (int64_t word = 0; word < (vocab + 31) / 32; ++word)
        for (std::uint32_t rest = draw.mask[word]; rest; rest &= rest - 1) {
            const auto id = static_cast<std::int32_t>(word * 32 + std::countr_zero(rest));
            own.ids[place] = id;
            own.scores[place++] = draw.row[id];
        }
    return {own.ids.data(), own.scores.data(), count};
}

int64_t first_set(const std::uint32_t* mask) {
    int64_t word = 0;
    while (!mask[word]) ++word;
    return word * 32 + std::countr_zero(mask[word]);
}

// The first place of the highest score; maxima: of the blocks.
int64_t place_of(float best, const Candidates& all, const std::vector<float>& maxima) {
    int64_t place = (std::find(maxima.begin(), maxima.end(), best) - maxima.begin()) * kSampleBlock;
    while (all.scores[place] != best) ++place;
    return place;
}

// The top_k highest of the candidates, ascending by id; of equal ones at the edge the first. No score is NaN.
Candidates highest(const Candidates& all, int64_t top_k, Buffers& own) {
    // top_k blocks hold a score at least as high as the top_k-th highest maximum, so no lower score can be among them.
    float bound = kForbidden;
    if (top_k < static_cast<int64_t>(own.maxima.size())) {
        own.ranked = own.maxima;
        const auto edge = own.ranked.begin() + (top_k - 1);
        std::nth_element(own.ranked.begin(), edge, own.ranked.end(), std::greater<>());
        bound = *edge;
    }
    own.kept_ids.clear();
    own.kept_scores.clear();
    for (int64_t start = 0; start < all.count; start += kSampleBlock) {
        if (own.maxima[start / kSampleBlock] < bound) continue;
        for (int64_t place = start; place < std::min(start + kSampleBlock, all.count); ++place)
            if (all.scores[place] >= bound) {
                own.kept_ids.push_back(static_cast<std::int32_t>(all.id(place)));
                own.kept_scores.push_back(all.scores[place]);
            }
    }
    own.ranked = own.kept_scores;
    const auto edge = own.ranked.begin() + (top_k - 1);
    std::nth_element(own.ranked.begin(), edge, own.ranked.end(), std::greater<>());
    const float least = *edge;
    const int64_t above = std::count_if(own.kept_scores.begin(), own.kept_scores.end(), [&](float s) { return s > least; });
    int64_t equal_left = top_k - above, count = 0;
    for (std::size_t place = 0; place < own.kept_scores.size(); ++place) {
        const float score = own.kept_scores[place];
        if (score < least || (score == least && equal_left-- <= 0)) continue;
        own.kept_ids[count] = own.kept_ids[place];
        own.kept_scores[count++] = score;
    }
    return {own.kept_ids.data(), own.kept_scores.data(), count};
}

// Weights of equal leading bits share a bucket; bucket 0 holds the highest.
constexpr int kBuckets = 4096;
int bucket_of(double weight) {
    const auto below = (std::bit_cast<std::uint64_t>(1.0) >> 46) - (std::bit_cast<std::uint64_t>(weight) >> 46);
    return static_cast<int>(std::min<std::uint64_t>(below, kBuckets - 1));
}

// Puts the weights of at least `floor` into the head. Without branches: which ones they are is hard to foresee.
void take_head(int64_t count, double floor, Buffers& own) {
    Head& head = own.head;
    head.places.resize(std::max<std::size_t>(head.places.size(), count + 1));
    head.weights.resize(std::max<std::size_t>(head.weights.size(), count + 1));
    std::int32_t* places = head.places.data();
    double* kept = head.weights.data();
    int64_t size = 0;
    for (int64_t start = 0; start < count; start += kSampleBlock) {
        if (own.sums[start / kSampleBlock] < floor) continue;
        for (int64_t place = start; place < std::min(start + kSampleBlock, count); ++place) {
            places[size] = static_cast<std::int32_t>(place);
            kept[size] = own.weights[place];
            size += own.weights[place] >= floor;
        }
    }
    head.places.resize(size);
    head.weights.resize(size);
}

// Leaves in own.head the nucleus: the smallest set of highest weights whose share is at least top_p, of equal ones at the
// edge the first; and of it the weights of at least `least`. Weights below (1 - top_p) / count of the sum have less than
// 1 - top_p together, so they are never in it; of the others, only those in the bucket where the sum reaches top_p are
// sorted.
void cut_nucleus(int64_t count, double top_p, double least, Buffers& own) {
    double total = 0.0;
    for (const double sum : own.sums) total += sum;
    const double wanted = top_p * total;
    take_head(count, std::max(kTiny, 0.5 * (1.0 - top_p) * total / static_cast<double>(count)), own);
    const std::vector<double>& weights = own.head.weights;
    own.band_sums.assign(kBuckets, 0.0);
    int last = 0;
    for (const double weight : weights) {
        const int bucket = bucket_of(weight);
        own.band_sums[bucket] += weight;
        last = std::max(last, bucket);
    }
    double so_far = 0.0;
    int edge_bucket = 0;
    while (edge_bucket < last && so_far + own.band_sums[edge_bucket] < wanted) so_far += own.band_sums[edge_bucket++];
    own.band.clear();
    for (const double weight : weights)
        if (bucket_of(weight) == edge_bucket) own.band.push_back(weight);
    std::sort(own.band.begin(), own.band.end(), std::greater<>());
    std::size_t taken = 0;
    while (taken < own.band.size()) {
        so_far += own.band[taken++];
        if (so_far >= wanted) break;
    }
    const double edge = taken ? own.band[taken - 1] : 0.0;
    int64_t equal_left = std::count(own.band.begin(), own.band.begin() + static_cast<int64_t>(taken), edge);
    std::size_t size = 0;
    for (std::size_t i = 0; i < weights.size(); ++i) {
        const double weight = weights[i];
        if (weight < edge || (weight == edge && equal_left-- <= 0) || weight < least) continue;
        own.head.places[size] = own.head.places[i];
        own.head.weights[size++] = weight;
    }
    own.head.places.resize(size);
    own.head.weights.resize(size);
}

// The first place of the head whose cumulative weight exceeds u of the whole; the last where rounding leaves none.
int64_t inverse_of_head(double u, const Head& head) {
    double total = 0.0, so_far = 0.0;
    for (const double weight : head.weights) total += weight;
    std::size_t i = 0;
    while (i + 1 < head.weights.size() && (so_far += head.weights[i]) <= u * total) ++i;
    return head.places[i];
}

// The first place whose cumulative weight exceeds u of the whole; the last with a weight where rounding leaves none.
int64_t inverse(double u, int64_t count, const Buffers& own) {
    double total = 0.0, so_far = 0.0;
    for (const double sum : own.sums) total += sum;
    const double wanted = u * total;
    std::size_t block = 0, last = 0;
    for (; block < own.sums.size(); ++block) {
        if (own.sums[block] <= 0.0) continue;
        last = block;
        if (so_far + own.sums[block] > wanted) break;
        so_far += own.sums[block];
    }
    if (block == own.sums.size()) so_far -= own.sums[block = last];
    const double rest = wanted - so_far;
    double within = 0.0;
    int64_t found = -1;
    const int64_t start = static_cast<int64_t>(block) * kSampleBlock;
    for (int64_t place = start; place < std::min(start + kSampleBlock, count); ++place) {
        if (own.weights[place] <= 0.0) continue;
        found = place;
        within += own.weights[place];
        if (within > rest) break;
    }
    return found;
}

int64_t draw_by_weight(const SampleLoops& loop, const Candidates& all, float best, const Draw& draw, Buffers& own) {
    const SampleSettings& settings = draw.settings;
    Candidates kept = all;
    if (settings.top_k > 0 && settings.top_k < all.count) kept = highest(all, settings.top_k, own);
    own.weights.resize(std::max<std::size_t>(own.weights.size(), kept.count));
    own.sums.resize(blocks_of(kept.count));
    const bool cuts_nucleus = settings.top_p < 1.0;
    const double least = std::max(settings.min_p, kTiny);
    loop.weigh(kept.scores, kept.count, best, settings.temperature, cuts_nucleus ? kTiny : least, own.weights.data(),
               own.sums.data());
    if (!cuts_nucleus) return kept.id(inverse(draw.uniform, kept.count, own));
    cut_nucleus(kept.count, settings.top_p, least, own);
    return kept.id(inverse_of_head(draw.uniform, own.head));
}

// The maxima of a whole row's blocks; false if a score is NaN.
bool row_maxima(const SampleLoops& loop, const Draw& draw, int64_t vocab, Buffers& own) {
    const int64_t known = draw.maxima ? vocab / kSampleBlock : 0, first = known * kSampleBlock;
    own.maxima.resize(blocks_of(vocab));
    std::copy(draw.maxima, draw.maxima + known, own.maxima.begin());
    own.maxima_of_maxima.resize(blocks_of(known));
    return loop.block_maxima(draw.maxima, known, own.maxima_of_maxima.data()) &&
           loop.block_maxima(draw.row + first, vocab - first, own.maxima.data() + known);
}

// A greedy row whose favourite of all ids is legal, as it mostly is, needs no look at the others' bits.
bool draw_favourite(const SampleLoops& loop, Draw& draw, int64_t vocab, Buffers& own) {
    if (!row_maxima(loop, draw, vocab, own)) return false;
    const float best = *std::max_element(own.maxima.begin(), own.maxima.end());
    if (!std::isfinite(best)) return false;
    draw.id = place_of(best, {nullptr, draw.row, vocab}, own.maxima);
    return !draw.mask || ((draw.mask[draw.id / 32] >> (draw.id % 32)) & 1u);
}

void sample_one(const SampleLoops& loop, Draw& draw, int64_t vocab, Buffers& own) {
    Candidates all{nullptr, draw.row, vocab};
    draw.fault = SampleFault::none;
    if (draw.mask) {
        const int64_t legal = loop.count_bits(draw.mask, (vocab + 31) / 32);
        if (legal <= 1) {
            draw.fault = legal ? SampleFault::none : SampleFault::empty_mask;
            draw.id = legal ? first_set(draw.mask) : 0;
            return;
        }
        if (legal < vocab / kSparseShare) {
            all = gather(draw, vocab, legal, own);
        } else if (draw.settings.temperature == 0.0 && draw_favourite(loop, draw, vocab, own)) {
            return;
        } else {
            own.scores.resize(std::max<std::size_t>(own.scores.size(), vocab));
            loop.blend(draw.row, draw.mask, vocab, own.scores.data());
            all.scores = own.scores.data();
        }
    } else if (draw.settings.temperature == 0.0 && draw_favourite(loop, draw, vocab, own)) {
        return;
    }
    own.maxima.resize(blocks_of(all.count));
    const bool is_number = loop.block_maxima(all.scores, all.count, own.maxima.data());
    const float best = is_number ? *std::max_element(own.maxima.begin(), own.maxima.end()) : std::nanf("");
    if (best == kForbidden || !std::isfinite(best)) {
        draw.fault = best == kForbidden ? SampleFault::all_forbidden : SampleFault::non_finite;
        draw.worst = best;
        return;
    }
    draw.id = draw.settings.temperature == 0.0 ? all.id(place_of(best, all, own.maxima))
                                               : draw_by_weight(loop, all, best, draw, own);
}

}  // namespace

const SampleLoops& sample_loops() {
#if defined(__x86_64__)
    const char* isa = kernels().name;
    if (!std::strcmp(isa, "avx512")) return avx512_sample_loops();
    if (!std::strcmp(isa, "avx2")) return avx2_sample_loops();
#endif
    return scalar_sample_loops();
}

// Philox4x64-10 with the key (seed, 0) and the counter (position, index, attempt, 0); 53 bits of its first word.
double philox_uniform(std::uint64_t seed, std::uint64_t index, std::uint64_t position, std::uint64_t attempt) {
    using Wide = unsigned __int128;
    std::uint64_t c0 = position, c1 = index, c2 = attempt, c3 = 0, k0 = seed, k1 = 0;
    for (int round = 0; round < 10; ++round) {
        const Wide product0 = static_cast<Wide>(0xD2E7470EE14C6C93u) * c0;
        const Wide product1 = static_cast<Wide>(0xCA5A826395121157u) * c2;
        c0 = static_cast<std::uint64_t>(product1 >> 64) ^ c1 ^ k0;
        c1 = static_cast<std::uint64_t>(product1);
        c2 = static_cast<std::uint64_t>(product0 >> 64) ^ c3 ^ k1;
        c3 = static_cast<std::uint64_t>(product0);
        k0 += 0x9E3779B97F4A7C15u;
        k1 += 0xBB67AE8584CAA73Bu;
    }
    return static_cast<double>(c0 >> 11) * 0x1p-53;
}

void sample(std::vector<Draw>& draws, int64_t vocab) {
    const SampleLoops& loop = sample_loops();
    const auto one = [&](int64_t i) {
        static thread_local Buffers buffers;
        sample_one(loop, draws[i], vocab, buffers);
    };
    const auto count = static_cast<int64_t>(draws.size());
    const bool any_weighted = std::any_of(draws.begin(), draws.end(), [](const Draw& draw) {
        return draw.settings.temperature > 0.0;
    });
    if (count > kRowsWorthThreads || (count > 1 && any_weighted)) return ThreadPool::instance().run(count, one);
    for (int64_t i = 0; i < count; ++i) one(i);
}

}  // namespace safegen::cpu
