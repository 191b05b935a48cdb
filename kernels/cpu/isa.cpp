// Chooses the instruction set at run time; nothing outside kernels_<isa>.cpp is compiled for more than the baseline.
#include <atomic>
#include <cstring>

#include "kernels/cpu/kernels.hpp"

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace safegen::cpu {
namespace {

#if defined(__x86_64__)
bool has_avx2() {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}

bool has_avx512() {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vnni");
}
#elif defined(__aarch64__)
bool has_dot_products() {
#if defined(__ARM_FEATURE_DOTPROD)
    return true;
#elif defined(__linux__)
    constexpr unsigned long kAsimdDotProducts = 1ul << 20;  // HWCAP_ASIMDDP
    return getauxval(AT_HWCAP) & kAsimdDotProducts;
#else
    return false;
#endif
}
#endif

const Kernels& best() {
#if defined(__x86_64__)
    if (has_avx512()) return avx512_kernels();
    if (has_avx2()) return avx2_kernels();
#elif defined(__aarch64__)
    return has_dot_products() ? neondot_kernels() : neon_kernels();
#endif
    return scalar_kernels();
}

std::atomic<const Kernels*>& current() {
    static std::atomic<const Kernels*> table{&best()};
    return table;
}

}  // namespace

const Kernels& kernels() { return *current().load(std::memory_order_relaxed); }

void set_kernels(const Kernels& table) { current().store(&table, std::memory_order_relaxed); }

const Kernels* find_kernels(const char* name) {
    if (!std::strcmp(name, "scalar")) return &scalar_kernels();
#if defined(__x86_64__)
    if (!std::strcmp(name, "avx2") && has_avx2()) return &avx2_kernels();
    if (!std::strcmp(name, "avx512") && has_avx512()) return &avx512_kernels();
#elif defined(__aarch64__)
    if (!std::strcmp(name, "neon")) return &neon_kernels();
    if (!std::strcmp(name, "neondot") && has_dot_products()) return &neondot_kernels();
#endif
    return nullptr;
}

}  // namespace safegen::cpu
