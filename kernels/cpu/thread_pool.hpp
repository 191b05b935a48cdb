// A small pool of native threads for the kernels.
//
// run(n, f) calls f(0) .. f(n - 1), each once, on the caller and the workers. Indices are claimed one by one; a kernel's
// result for an index never depends on which thread computes it, so neither does the whole. A second Python thread that
// calls while the pool is busy does its own work alone rather than wait. Idle workers spin for some microseconds, then
// sleep. After fork() the child starts its own pool: threads do not survive a fork.
//
// A decoding step is some two hundred runs of a few microseconds each, so a run takes no lock: its number, its count and
// the next free index are one word, which claims an index when it is exchanged for its successor. The caller waits for
// the indices that were claimed, never for a thread: one that the system has put aside before it claimed holds nobody
// up. A Session keeps the pool through many runs and wakes the workers once. f must not throw.
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

    // Many runs by one caller. threads(): how many share them, 1 where the pool was busy.
    class Session {
      public:
        Session();
        ~Session();
        Session(const Session&) = delete;
        Session& operator=(const Session&) = delete;
        int threads() const { return threads_; }
        template <class Body> void run(std::int64_t n, const Body& body) {
            if (n <= 1 || threads_ == 1) {
                for (std::int64_t i = 0; i < n; ++i) body(i);
                return;
            }
            pool_.publish(n, [](const void* context, std::int64_t i) { (*static_cast<const Body*>(context))(i); }, &body);
        }

      private:
        ThreadPool& pool_;
        int threads_ = 1;
        unsigned saved_float_mode_ = 0;
    };

  private:
    using Call = void (*)(const void*, std::int64_t);

    ThreadPool() = default;
    void run(std::int64_t n, Call call, const void* context);
    void publish(std::int64_t n, Call call, const void* context);
    bool open(int wanted);  // false: another caller has the pool
    void close();
    void start_workers(int wanted);
    void work(int index);
    bool claim_and_call();
    bool is_wanted(int index) const;
    void sleep(int index);

    std::atomic<std::uint64_t> state_{0};   // run number, count, next index: 24, 20 and 20 bits
    std::atomic<std::int64_t> done_{0};
    std::atomic<int> helpers_{0};           // workers that may join
    std::atomic<bool> open_{false};         // a caller has the pool: workers stay awake
    std::atomic<int> sleepers_{0};
    Call call_ = nullptr;                   // of the run; written before state_, read by who has claimed an index
    const void* context_ = nullptr;
    std::atomic<bool> busy_{false};         // set by the caller whose runs the workers serve
    std::mutex mutex_;                      // for sleeping
    std::condition_variable wake_;
    int started_ = 0;
};

}  // namespace safegen::cpu
