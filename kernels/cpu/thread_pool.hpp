// A small pool of native threads for the kernels.
//
// run(n, f) calls f(0) .. f(n - 1), each once, on the caller and the workers. Indices are claimed one by one; a kernel's
// result for an index never depends on which thread computes it, so neither does the whole. A second Python thread that
// calls while the pool is busy does its own work alone rather than wait. Idle workers spin for some microseconds, then
// sleep. After fork() the child starts its own pool: threads do not survive a fork.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace safegen::cpu {

class ThreadPool {
  public:
    static constexpr int kMaxThreads = 256;
    static ThreadPool& instance();
    static int threads();           // including the caller
    static void set_threads(int);   // 1 .. kMaxThreads
    static int default_threads();   // physical cores this process may use, within its cgroup's quota

    template <class Body> void run(std::int64_t n, const Body& body) {
        run(n, [](const void* context, std::int64_t i) { (*static_cast<const Body*>(context))(i); }, &body);
    }

  private:
    using Call = void (*)(const void*, std::int64_t);
    struct Job {
        Call call;
        const void* context;
        std::int64_t count;
        std::atomic<std::int64_t> next{0};
    };

    ThreadPool() = default;
    void run(std::int64_t n, Call call, const void* context);
    void start_workers(int wanted);
    void work();
    void wait_for_job(std::uint64_t seen);
    static void drain(Job& job);

    std::mutex busy_;               // held by the caller whose job the workers serve
    std::mutex mutex_;              // guards job_, room_, sleepers_
    std::condition_variable wake_;
    Job* job_ = nullptr;
    int room_ = 0;                  // workers that may still join job_
    int sleepers_ = 0;
    int started_ = 0;
    std::atomic<int> working_{0};
    std::atomic<std::uint64_t> epoch_{0};
};

}  // namespace safegen::cpu
