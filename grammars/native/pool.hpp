// A few threads of this process for work that comes in small batches.
#pragma once
#include <cstddef>
#include <functional>

namespace safegen {

// Calls work(i) for every i below count, on this thread and on idle ones of the pool; returns when all are done. work must
// not throw. In a forked child, which has none of the threads, it is this thread's alone.
void for_each_in_parallel(size_t count, const std::function<void(size_t)>& work);

}  // namespace safegen
