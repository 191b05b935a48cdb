// Memory for packed weights: parts of large blocks that the system is asked to back with huge pages. A step at batch 1
// streams through all weights once, and small pages cost it address translations all the way.
#pragma once

#include <cstdint>
#include <memory>

namespace safegen::cpu {

// 64-byte aligned, not initialized. A block goes when the last of its parts does. Throws std::bad_alloc.
std::shared_ptr<std::uint8_t> weight_memory(std::int64_t bytes);

}  // namespace safegen::cpu
