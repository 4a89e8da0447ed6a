// SPDX-License-Identifier: Apache-2.0
// One pool of threads for the process. A call puts a job, which lives on its own stack, into a list
// and works on it itself; pool threads that are free join it. So progress never needs a pool
// thread, and however many threads call, at most num_threads() - 1 pool threads run. The pool is
// never destroyed, so it is safe in static destructors, but unloading the library (dlclose) is not.
#include "cpu/parallel.hpp"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "cpu/device.hpp"
#include "hwy/cache_control.h"
#include "onchip/status.hpp"
#include "onchip/threads.hpp"

namespace onchip::cpu {
namespace {

constexpr std::int32_t kMaxThreads = 4096;
constexpr std::chrono::microseconds kSpin{30};

thread_local bool inside_task = false;

/// Tasks that workers take one by one.
struct Sweep {
  TaskRef task;
  std::int64_t count;
  alignas(64) std::atomic<std::int64_t> next_task{0};

  void work(std::int32_t worker) {
    const bool outer = std::exchange(inside_task, true);
    for (;;) {
      const std::int64_t i = next_task.fetch_add(1, std::memory_order_relaxed);
      if (i >= count) break;
      task(worker, i);
    }
    inside_task = outer;
  }
};

/// A sweep that pool threads may join. All but `active` is guarded by the pool's mutex.
struct Job {
  Sweep& sweep;
  std::int32_t workers;
  std::int32_t next_worker = 1;  // 0 is the caller
  bool caller_sleeps = false;
  Job* next = nullptr;
  std::condition_variable done{};
  std::atomic<std::int32_t> active{0};  // pool threads inside
};

/// Yields as it spins: on a busy machine the thread waited for may need this very CPU.
template <class Predicate>
bool spin_until(Predicate predicate) {
  const auto end = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 16; ++i) {
      if (predicate()) return true;
      hwy::Pause();
    }
    std::this_thread::yield();
  } while (std::chrono::steady_clock::now() < end);
  return false;
}

class Pool {
 public:
  /// Runs the sweep with the caller and at most workers - 1 pool threads, of which at most `limit`
  /// run at once in the process.
  void run(Sweep& sweep, std::int32_t workers, std::int32_t limit) {
    Job job{sweep, workers};
    publish(job, limit);
    sweep.work(0);
    withdraw(job);
  }

  Pool* abandoned = nullptr;  // the parent process's pool, kept reachable

 private:
  void publish(Job& job, std::int32_t limit) {
    std::int32_t wake = 0;
    {
      const std::lock_guard lock(mutex_);
      limit_ = limit;
      while (threads_ < limit && start_thread()) ++threads_;
      Job** end = &jobs_;
      while (*end != nullptr) end = &(*end)->next;
      *end = &job;
      published_.fetch_add(1, std::memory_order_relaxed);
      wake = std::min(job.workers - 1, sleepers_);
    }
    for (; wake > 0; --wake) wake_.notify_one();
  }

  void withdraw(Job& job) {
    {
      const std::lock_guard lock(mutex_);
      Job** link = &jobs_;
      while (*link != &job) link = &(*link)->next;
      *link = job.next;
    }
    const auto idle = [&] { return job.active.load(std::memory_order_acquire) == 0; };
    if (spin_until(idle)) return;
    std::unique_lock lock(mutex_);
    job.caller_sleeps = true;
    job.done.wait(lock, idle);
  }

  Job* find_job() const {
    if (busy_ >= limit_) return nullptr;
    for (Job* job = jobs_; job != nullptr; job = job->next) {
      const bool open = job->next_worker < job->workers;
      if (open && job->sweep.next_task.load(std::memory_order_relaxed) < job->sweep.count)
        return job;
    }
    return nullptr;
  }

  void serve() {
    std::unique_lock lock(mutex_);
    for (;;) {
      if (Job* job = find_job()) {
        join(*job, lock);
        continue;
      }
      const auto seen = published_.load(std::memory_order_relaxed);
      const auto news = [&] { return published_.load(std::memory_order_relaxed) != seen; };
      lock.unlock();
      spin_until(news);
      lock.lock();
      if (news()) continue;
      ++sleepers_;
      wake_.wait(lock);
      --sleepers_;
    }
  }

  void join(Job& job, std::unique_lock<std::mutex>& lock) {
    const std::int32_t worker = job.next_worker++;
    job.active.fetch_add(1, std::memory_order_relaxed);
    ++busy_;
    lock.unlock();
    job.sweep.work(worker);
    lock.lock();
    --busy_;
    if (job.caller_sleeps) job.done.notify_one();
    job.active.fetch_sub(1, std::memory_order_release);  // a spinning caller may now free the job
  }

  bool start_thread() {
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are for the application's threads
    pthread_t thread;
    const bool started = pthread_create(&thread, nullptr, &Pool::thread_main, this) == 0;
    if (started) {
#if defined(__linux__)
      pthread_setname_np(thread, "onchip");
#endif
      pthread_detach(thread);
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return started;
  }

  static void* thread_main(void* pool) {
#if defined(__linux__)
    // The caller that happened to start this thread may be pinned to one CPU.
    cpu_set_t mask;
    if (sched_getaffinity(getpid(), sizeof(mask), &mask) == 0) {
      sched_setaffinity(0, sizeof(mask), &mask);
    }
#endif
    static_cast<Pool*>(pool)->serve();
    return nullptr;
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::atomic<std::uint32_t> published_{0};  // jobs so far, written under the mutex
  Job* jobs_ = nullptr;
  std::int32_t threads_ = 0;
  std::int32_t limit_ = 0;
  std::int32_t busy_ = 0;
  std::int32_t sleepers_ = 0;
};

std::atomic<Pool*> current_pool{nullptr};
std::atomic<Pool*> abandoned_pools{nullptr};

/// The child of a fork has the parent's pool, perhaps locked, but none of its threads.
void abandon_pool() {
  Pool* pool = current_pool.exchange(nullptr);
  if (pool == nullptr) return;
  pool->abandoned = abandoned_pools.load();
  abandoned_pools.store(pool);
}

[[maybe_unused]] const int kForkHandler = pthread_atfork(nullptr, nullptr, &abandon_pool);

Pool& pool() {
  Pool* pool = current_pool.load(std::memory_order_acquire);
  if (pool != nullptr) return *pool;
  auto fresh = std::make_unique<Pool>();
  if (current_pool.compare_exchange_strong(pool, fresh.get())) pool = fresh.release();
  return *pool;
}

std::atomic<std::int32_t> requested_threads{0};  // by set_num_threads
std::atomic<std::int32_t> default_threads{0};    // 0: not read yet

std::int32_t read_default_threads() {
  const char* text = std::getenv("ONCHIP_NUM_THREADS");
  if (text != nullptr) {
    const std::string_view digits(text);
    std::int32_t count = 0;
    const auto parsed = std::from_chars(digits.begin(), digits.end(), count);
    if (parsed.ec == std::errc() && parsed.ptr == digits.end() && count > 0) {
      return std::min(count, kMaxThreads);
    }
  }
  return std::min(available_cpus(), kMaxThreads);
}

/// The installed executor, member by member because setting it races with num_threads().
struct ExecutorSlot {
  std::atomic<decltype(Executor::run)> run{nullptr};
  std::atomic<void*> self{nullptr};
  std::atomic<std::int32_t> concurrency{1};
};
ExecutorSlot executor_slot;

}  // namespace

void parallel_for(std::int32_t workers, std::int64_t count, TaskRef task) {
  if (count <= 0) return;
  Sweep sweep{task, count};
  workers = static_cast<std::int32_t>(std::min<std::int64_t>(workers, count));
  if (workers <= 1 || inside_task) return sweep.work(0);
  if (const auto run = executor_slot.run.load(std::memory_order_acquire)) {
    const std::int32_t loops = std::min(workers, executor_slot.concurrency.load());
    const auto loop = [](void* state, std::int32_t index) {
      static_cast<Sweep*>(state)->work(index);
    };
    return run(executor_slot.self.load(), loops, loop, &sweep);
  }
  const std::int32_t limit = num_threads() - 1;
  if (limit <= 0) return sweep.work(0);
  pool().run(sweep, workers, limit);
}

}  // namespace onchip::cpu

namespace onchip {

void set_num_threads(std::int32_t count) {
  if (count < 0) {
    throw Error(ErrorCode::invalid_argument,
                "count: " + std::to_string(count) + " threads, expected 0 (the default) or more");
  }
  if (count == 0) cpu::default_threads = cpu::read_default_threads();
  cpu::requested_threads = std::min(count, cpu::kMaxThreads);
}

std::int32_t num_threads() {
  const std::int32_t requested = cpu::requested_threads;
  if (cpu::executor_slot.run.load(std::memory_order_acquire) != nullptr) {
    const std::int32_t concurrency = cpu::executor_slot.concurrency;
    return requested > 0 ? std::min(requested, concurrency) : concurrency;
  }
  if (requested > 0) return requested;
  std::int32_t count = cpu::default_threads;
  if (count == 0) cpu::default_threads = count = cpu::read_default_threads();
  return count;
}

void set_executor(const Executor* executor) {
  if (executor == nullptr) {
    cpu::executor_slot.run.store(nullptr, std::memory_order_release);
    return;
  }
  if (executor->run == nullptr) {
    throw Error(ErrorCode::invalid_argument, "executor: run is null, expected a function");
  }
  if (executor->concurrency < 1) {
    throw Error(ErrorCode::invalid_argument, "executor: concurrency is " +
                                                 std::to_string(executor->concurrency) +
                                                 ", expected at least 1");
  }
  cpu::executor_slot.self = executor->self;
  cpu::executor_slot.concurrency = std::min(executor->concurrency, cpu::kMaxThreads);
  cpu::executor_slot.run.store(executor->run, std::memory_order_release);
}

}  // namespace onchip
