#include "kernels/cpu/thread_pool.hpp"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <set>
#include <string>
#include <system_error>
#include <thread>

#if defined(__linux__)
#include <sched.h>
#endif
#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace safegen::cpu {
namespace {

constexpr int kSpins = 2000;  // some 30 to 80 microseconds: more than the gap between two operations of a step
constexpr int kCountBits = 20;
constexpr std::uint64_t kCountMask = (std::uint64_t{1} << kCountBits) - 1;

inline void pause() {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// Round to nearest, subnormals kept, no traps: a result must not depend on what the calling thread has set.
unsigned plain_float_mode() {
#if defined(__x86_64__)
    const unsigned saved = _mm_getcsr();
    _mm_setcsr(0x1f80);
    return saved;
#else
    return 0;
#endif
}
void restore_float_mode([[maybe_unused]] unsigned saved) {
#if defined(__x86_64__)
    _mm_setcsr(saved);
#endif
}

std::atomic<ThreadPool*> pool{nullptr};
std::atomic<int> configured{0};

// Cores, not hyper-threads: a core's siblings share one multiplier. 0 where it cannot be told.
int physical_cores() {
#if defined(__linux__)
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0) return 0;
    std::set<std::string> cores;
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
        if (!CPU_ISSET(cpu, &set)) continue;
        std::ifstream file("/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/thread_siblings_list");
        std::string siblings;
        if (!std::getline(file, siblings)) siblings = std::to_string(cpu);
        cores.insert(siblings);
    }
    return static_cast<int>(cores.size());
#else
    return 0;
#endif
}

// CPUs' worth of time that the container may use; 0: no limit.
int quota_cores() {
    std::ifstream file("/sys/fs/cgroup/cpu.max");
    double quota = 0, period = 0;
    if (!(file >> quota >> period) || period <= 0) return 0;
    return std::max(1, static_cast<int>(std::ceil(quota / period)));
}

}  // namespace

int ThreadPool::default_threads() {
    int threads = physical_cores();
    if (threads < 1) threads = static_cast<int>(std::thread::hardware_concurrency());
    if (const int quota = quota_cores()) threads = std::min(threads, quota);
    return std::clamp(threads, 1, kMaxThreads);
}

int ThreadPool::threads() {
    int threads = configured.load();
    if (threads == 0) {
        const int chosen = default_threads();
        if (configured.compare_exchange_strong(threads, chosen)) threads = chosen;
    }
    return threads;
}

void ThreadPool::set_threads(int threads) { configured.store(threads); }

// The pool is never destroyed: its threads sleep until the process ends, and a forked child abandons its parent's.
ThreadPool& ThreadPool::instance() {
    ThreadPool* current = pool.load(std::memory_order_acquire);
    if (current) return *current;
#if defined(__unix__) || defined(__APPLE__)
    static const int registered = pthread_atfork(nullptr, nullptr, [] { pool.store(nullptr); });
    (void)registered;
#endif
    auto* fresh = new ThreadPool;
    if (pool.compare_exchange_strong(current, fresh)) return *fresh;
    delete fresh;  // another thread was first
    return *current;
}

void ThreadPool::start_workers(int wanted) {
    try {
        for (; started_ < wanted; ++started_) std::thread([this, index = started_] { work(index); }).detach();
    } catch (const std::system_error&) {
        // No more threads to be had: the work is done by those there are.
    }
}

bool ThreadPool::open(int wanted) {
    if (busy_.exchange(true, std::memory_order_acquire)) return false;
    start_workers(wanted);
    helpers_.store(wanted, std::memory_order_relaxed);
    open_.store(true);
    if (sleepers_.load() > 0) {
        const std::lock_guard<std::mutex> lock(mutex_);
        wake_.notify_all();
    }
    return true;
}

void ThreadPool::close() {
    open_.store(false);
    busy_.store(false, std::memory_order_release);
}

// An exchange that succeeds has claimed an index of the run that is current: that run cannot end, nor another begin,
// before the index is done, so what call_ and context_ hold is that run's.
bool ThreadPool::claim_and_call() {
    std::uint64_t state = state_.load(std::memory_order_acquire);
    while ((state & kCountMask) < ((state >> kCountBits) & kCountMask)) {
        if (!state_.compare_exchange_weak(state, state + 1, std::memory_order_acquire)) continue;
        call_(context_, static_cast<std::int64_t>(state & kCountMask));
        done_.fetch_add(1, std::memory_order_release);
        return true;
    }
    return false;
}

void ThreadPool::publish(std::int64_t n, Call call, const void* context) {
    // More indices than the word has room for: in several runs.
    struct Part {
        Call call;
        const void* context;
        std::int64_t first;
    };
    if (n > static_cast<std::int64_t>(kCountMask)) {
        for (std::int64_t first = 0; first < n; first += static_cast<std::int64_t>(kCountMask)) {
            const Part part{call, context, first};
            publish(n - first < static_cast<std::int64_t>(kCountMask) ? n - first : static_cast<std::int64_t>(kCountMask),
                    [](const void* p, std::int64_t i) {
                        const auto& from = *static_cast<const Part*>(p);
                        from.call(from.context, from.first + i);
                    },
                    &part);
        }
        return;
    }
    call_ = call;
    context_ = context;
    done_.store(0, std::memory_order_relaxed);
    const std::uint64_t number = (state_.load(std::memory_order_relaxed) >> (2 * kCountBits)) + 1;
    state_.store(number << (2 * kCountBits) | static_cast<std::uint64_t>(n) << kCountBits, std::memory_order_release);
    while (claim_and_call()) {
    }
    for (int spins = 0; done_.load(std::memory_order_acquire) < n; ++spins)
        spins < kSpins ? pause() : std::this_thread::yield();
}

void ThreadPool::run(std::int64_t n, Call call, const void* context) {
    const unsigned saved = plain_float_mode();
    const int helpers = static_cast<int>(std::min<std::int64_t>(threads(), n)) - 1;
    if (helpers < 1 || !open(helpers)) {
        for (std::int64_t i = 0; i < n; ++i) call(context, i);
    } else {
        publish(n, call, context);
        close();
    }
    restore_float_mode(saved);
}

ThreadPool::Session::Session() : pool_(instance()), saved_float_mode_(plain_float_mode()) {
    const int wanted = ThreadPool::threads();
    if (wanted > 1 && pool_.open(wanted - 1)) threads_ = wanted;
}

ThreadPool::Session::~Session() {
    if (threads_ > 1) pool_.close();
    restore_float_mode(saved_float_mode_);
}

bool ThreadPool::is_wanted(int index) const { return open_.load() && index < helpers_.load(std::memory_order_relaxed); }

// Until the pool is opened. The flag is looked at after the sleeper is counted, and set before sleepers are counted:
// one of the two sees the other.
void ThreadPool::sleep(int index) {
    std::unique_lock<std::mutex> lock(mutex_);
    sleepers_.fetch_add(1);
    wake_.wait(lock, [&] { return is_wanted(index); });
    sleepers_.fetch_sub(1);
}

void ThreadPool::work(int index) {
    plain_float_mode();
    for (int idle = 0;;) {
        const bool wanted = is_wanted(index);
        if (wanted && claim_and_call()) {
            idle = 0;
        } else if (++idle < kSpins) {
            pause();
        } else if (wanted) {
            std::this_thread::yield();
        } else {
            sleep(index);
            idle = 0;
        }
    }
}

}  // namespace safegen::cpu
