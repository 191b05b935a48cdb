#include "kernels/cpu/weight_memory.hpp"

#include <algorithm>
#include <mutex>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace safegen::cpu {
namespace {

using std::int64_t;
using std::uint8_t;

constexpr int64_t kHugePage = int64_t{1} << 21, kBlock = 8 * kHugePage;

struct FreeBlock {
    void operator()(uint8_t* p) const { ::operator delete(p, std::align_val_t(kHugePage)); }
};

std::shared_ptr<uint8_t> new_block(int64_t bytes) {
    auto* memory = static_cast<uint8_t*>(::operator new(static_cast<std::size_t>(bytes), std::align_val_t(kHugePage)));
    const std::shared_ptr<uint8_t> block(memory, FreeBlock{});
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    madvise(memory, static_cast<std::size_t>(bytes), MADV_HUGEPAGE);  // a wish: without it things are slower, not wrong
#endif
    return block;
}

}  // namespace

std::shared_ptr<uint8_t> weight_memory(int64_t bytes) {
    static std::mutex mutex;
    static std::weak_ptr<uint8_t> current;
    static int64_t used = 0;
    const int64_t size = std::max<int64_t>(64, (bytes + 63) / 64 * 64);
    if (size > kBlock / 2) return new_block((size + kHugePage - 1) / kHugePage * kHugePage);
    const std::lock_guard<std::mutex> lock(mutex);
    std::shared_ptr<uint8_t> block = current.lock();
    if (!block || used + size > kBlock) {
        block = new_block(kBlock);
        current = block;
        used = 0;
    }
    const int64_t start = used;
    used += size;
    return {block, block.get() + start};
}

}  // namespace safegen::cpu
