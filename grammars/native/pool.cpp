#include "grammars/native/pool.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include <unistd.h>

namespace safegen {
namespace {

struct Batch {
    Batch(size_t n, const std::function<void(size_t)>& w) : count(n), work(w) {}
    const size_t count;
    const std::function<void(size_t)>& work;
    std::atomic<size_t> next{0};
    size_t helpers = 0;  // under the pool's lock

    void run() {
        for (size_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < count;) work(i);
    }
};

class Pool {
public:
    Pool() : process_id_(getpid()) {
        const unsigned cores = std::max(1u, std::thread::hardware_concurrency());
        for (unsigned i = 1; i < std::min(cores, kMaxThreads); ++i) std::thread([this] { serve(); }).detach();
    }
    bool is_here() const { return getpid() == process_id_; }

    void run(Batch& batch) {
        {
            std::lock_guard<std::mutex> lock(mutex_);
            open_.push_back(&batch);
        }
        wake_.notify_all();
        batch.run();
        std::unique_lock<std::mutex> lock(mutex_);
        std::erase(open_, &batch);
        left_.wait(lock, [&] { return batch.helpers == 0; });
    }

private:
    static constexpr unsigned kMaxThreads = 4;

    void serve() {
        std::unique_lock<std::mutex> lock(mutex_);
        while (true) {
            wake_.wait(lock, [&] { return !open_.empty(); });
            Batch* batch = open_.front();
            ++batch->helpers;
            lock.unlock();
            batch->run();
            lock.lock();
            if (!open_.empty() && open_.front() == batch) open_.erase(open_.begin());  // nothing is left to begin
            if (--batch->helpers == 0) left_.notify_all();
        }
    }

    const pid_t process_id_;
    std::mutex mutex_;
    std::condition_variable wake_, left_;
    std::vector<Batch*> open_;
};

}  // namespace

void for_each_in_parallel(size_t count, const std::function<void(size_t)>& work) {
    static Pool* const pool = new Pool;  // its threads run until the process ends
    constexpr std::chrono::microseconds kWakingTakes{50};  // mostly all is done by then: masks that are known are copied
    const auto start = std::chrono::steady_clock::now();
    size_t done = 0;
    while (done < count && (done == 0 || std::chrono::steady_clock::now() - start < kWakingTakes)) work(done++);
    const std::function<void(size_t)> rest = [&](size_t i) { work(done + i); };
    Batch batch(count - done, rest);
    if (batch.count < 2 || !pool->is_here()) batch.run();
    else pool->run(batch);
}

}  // namespace safegen
