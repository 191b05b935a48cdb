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

constexpr int kSpins = 2000;  // some 30 to 80 microseconds: the gap between two operations of a decoding step

inline void pause() {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// Round to nearest, subnormals kept, no traps: a result must not depend on what the calling thread has set.
class FloatMode {
  public:
#if defined(__x86_64__)
    FloatMode() : saved_(_mm_getcsr()) { _mm_setcsr(0x1f80); }
    ~FloatMode() { _mm_setcsr(saved_); }

  private:
    unsigned saved_;
#endif
};

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
        for (; started_ < wanted; ++started_) std::thread([this] { work(); }).detach();
    } catch (const std::system_error&) {
        // No more threads to be had: the work is done by those there are.
    }
}

void ThreadPool::drain(Job& job) {
    [[maybe_unused]] const FloatMode mode;
    for (std::int64_t i; (i = job.next.fetch_add(1, std::memory_order_relaxed)) < job.count;) job.call(job.context, i);
}

void ThreadPool::run(std::int64_t n, Call call, const void* context) {
    Job job{call, context, n};
    const int helpers = static_cast<int>(std::min<std::int64_t>(threads(), n)) - 1;
    std::unique_lock<std::mutex> busy(busy_, std::defer_lock);
    if (helpers < 1 || !busy.try_lock()) return drain(job);
    start_workers(helpers);
    bool asleep;
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        job_ = &job;
        room_ = helpers;
        asleep = sleepers_ > 0;
        epoch_.fetch_add(1, std::memory_order_release);
    }
    if (asleep) wake_.notify_all();
    drain(job);
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        job_ = nullptr;
    }
    for (int spins = 0; working_.load(std::memory_order_acquire) > 0; ++spins)
        spins < kSpins ? pause() : std::this_thread::yield();
}

// Spins, then sleeps, until the epoch moves.
void ThreadPool::wait_for_job(std::uint64_t seen) {
    for (int spins = 0; spins < kSpins; ++spins) {
        if (epoch_.load(std::memory_order_acquire) != seen) return;
        pause();
    }
    std::unique_lock<std::mutex> lock(mutex_);
    ++sleepers_;
    wake_.wait(lock, [&] { return epoch_.load(std::memory_order_relaxed) != seen; });
    --sleepers_;
}

void ThreadPool::work() {
    for (std::uint64_t seen = 0;;) {
        wait_for_job(seen);
        Job* job = nullptr;
        {
            const std::lock_guard<std::mutex> lock(mutex_);
            seen = epoch_.load(std::memory_order_relaxed);
            if (job_ && room_ > 0) {
                job = job_;
                --room_;
                working_.fetch_add(1, std::memory_order_relaxed);
            }
        }
        if (!job) continue;
        drain(*job);
        working_.fetch_sub(1, std::memory_order_release);
    }
}

}  // namespace safegen::cpu
