// SPDX-License-Identifier: Apache-2.0
// The task pool, the executor hook and the CPU's facts.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "cpu/device.hpp"
#include "cpu/parallel.hpp"
#include "onchip/status.hpp"
#include "onchip/threads.hpp"

// ThreadSanitizer refuses threads in the child of a threaded process unless told not to.
extern "C" const char* __tsan_default_options();
extern "C" const char* __tsan_default_options() { return "die_after_fork=0"; }

namespace onchip::cpu {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds kPatience{20};

// ThreadSanitizer takes a thread of a forked child for a lost one of the parent at the same
// address.
#if defined(__SANITIZE_THREAD__)
constexpr bool kThreadSanitizer = true;
#else
constexpr bool kThreadSanitizer = false;
#endif

/// Counts how often each index ran, how many ran at once, and misuse of worker ids.
class Recorder {
 public:
  Recorder(std::int32_t workers, std::int64_t count)
      : ran_(static_cast<std::size_t>(count)), busy_(static_cast<std::size_t>(workers)) {}

  void operator()(std::int32_t worker, std::int64_t i) {
    if (worker < 0 || worker >= static_cast<std::int32_t>(busy_.size())) {
      ++faults_;
      return;
    }
    if (busy_[static_cast<std::size_t>(worker)].exchange(true)) ++faults_;
    ran_[static_cast<std::size_t>(i)] += 1;  // not atomic: a race here is a fault of the pool
    busy_[static_cast<std::size_t>(worker)] = false;
  }
  [[nodiscard]] bool each_once() const { return each_ran(1); }
  [[nodiscard]] bool each_ran(int expected) const {
    return std::all_of(ran_.begin(), ran_.end(), [&](int times) { return times == expected; });
  }
  [[nodiscard]] int faults() const { return faults_; }

 private:
  std::vector<int> ran_;
  std::vector<std::atomic<bool>> busy_;
  std::atomic<int> faults_{0};
};

/// True when so many workers run at once: each of as many tasks waits for all to begin.
bool workers_meet(int count) {
  std::atomic<int> arrived{0};
  std::atomic<int> met{0};
  auto task = [&](std::int32_t, std::int64_t) {
    ++arrived;
    const auto end = Clock::now() + kPatience;
    while (arrived < count && Clock::now() < end) std::this_thread::yield();
    if (arrived == count) ++met;
  };
  parallel_for(count, count, task);
  return met == count;
}

/// Raises a maximum that other threads raise too.
void raise(std::atomic<int>& maximum, int value) {
  int seen = maximum;
  while (seen < value && !maximum.compare_exchange_weak(seen, value)) {
  }
}

int pool_threads_of_process() {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream file(entry.path() / "comm");
    std::string name;
    std::getline(file, name);
    if (name == "onchip") ++count;
  }
  return count;
}

/// Exit status of a child that runs `body`; a child that hangs is ended by its alarm and gives -1.
template <class Body>
int status_of_child(Body body, void (*leave)(int)) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(static_cast<unsigned>(2 * kPatience.count()));
    leave(body() ? 0 : 1);
  }
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child) return -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

class Threads : public testing::Test {
 protected:
  void SetUp() override { set_num_threads(4); }
  void TearDown() override {
    set_executor(nullptr);
    set_num_threads(0);
  }
};

TEST_F(Threads, EveryIndexRunsOnceAndWorkersAreExclusive) {
  for (const std::int32_t workers : {1, 2, 3, 4, 9}) {
    for (const std::int64_t count : {0, 1, 2, 7, 1000, 20000}) {
      Recorder record(workers, count);
      parallel_for(workers, count, record);
      EXPECT_TRUE(record.each_once()) << workers << " workers, " << count << " tasks";
      EXPECT_EQ(record.faults(), 0) << workers << " workers, " << count << " tasks";
    }
  }
}

TEST_F(Threads, WorkersRunAtTheSameTime) { EXPECT_TRUE(workers_meet(4)); }

TEST_F(Threads, OneWorkerStaysOnTheCallingThreadInOrder) {
  const auto caller = std::this_thread::get_id();
  std::vector<std::int64_t> order;
  auto task = [&](std::int32_t worker, std::int64_t i) {
    EXPECT_EQ(worker, 0);
    EXPECT_EQ(std::this_thread::get_id(), caller);
    order.push_back(i);
  };
  parallel_for(1, 5, task);
  EXPECT_EQ(order, (std::vector<std::int64_t>{0, 1, 2, 3, 4}));
}

TEST_F(Threads, NestedCallsRunSerially) {
  std::atomic<int> inner_tasks{0};
  std::atomic<int> faults{0};
  auto outer = [&](std::int32_t, std::int64_t) {
    const auto thread = std::this_thread::get_id();
    auto inner = [&](std::int32_t worker, std::int64_t) {
      ++inner_tasks;
      if (worker != 0 || std::this_thread::get_id() != thread) ++faults;
    };
    parallel_for(4, 10, inner);
    parallel_for(1, 1, inner);
    parallel_for(4, 10, inner);
  };
  parallel_for(4, 50, outer);
  EXPECT_EQ(inner_tasks, 50 * 21);
  EXPECT_EQ(faults, 0);
  EXPECT_TRUE(workers_meet(4));  // the outer level is parallel again
}

TEST_F(Threads, ManyCallersShareOnePool) {
  constexpr int kCallers = 16;
  constexpr int kPoolThreads = 3;
  ASSERT_TRUE(workers_meet(4));
  const int pool_threads = pool_threads_of_process();
  EXPECT_GE(pool_threads, kPoolThreads);  // another test of this process may have asked for more
  std::atomic<int> running{0};
  std::atomic<int> most{0};
  std::atomic<int> wrong{0};
  std::vector<std::thread> callers;
  for (int c = 0; c < kCallers; ++c) {
    callers.emplace_back([&] {
      for (int round = 0; round < 50; ++round) {
        Recorder record(4, 64);
        auto task = [&](std::int32_t worker, std::int64_t i) {
          raise(most, ++running);
          record(worker, i);
          if (i % 16 == 0) std::this_thread::sleep_for(std::chrono::microseconds(50));
          --running;
        };
        parallel_for(4, 64, task);
        if (!record.each_once() || record.faults() != 0) ++wrong;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_GE(most, 2);
  EXPECT_LE(most, kCallers + kPoolThreads);
  EXPECT_EQ(pool_threads_of_process(), pool_threads);
}

TEST_F(Threads, ThePoolKeepsItsSizeAndObeysALowerLimit) {
  set_num_threads(6);
  ASSERT_TRUE(workers_meet(6));
  const int size = pool_threads_of_process();
  EXPECT_GE(size, 5);
  set_num_threads(2);
  std::atomic<int> running{0};
  std::atomic<int> most{0};
  auto task = [&](std::int32_t, std::int64_t) {
    raise(most, ++running);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    --running;
  };
  parallel_for(6, 60, task);
  EXPECT_EQ(most, 2);
  set_num_threads(1);
  most = 0;
  parallel_for(6, 10, task);
  EXPECT_EQ(most, 1);
  EXPECT_EQ(pool_threads_of_process(), size);
}

TEST_F(Threads, IdleThreadsSleep) {
  ASSERT_TRUE(workers_meet(4));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const std::clock_t before = std::clock();
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  const double seconds = static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC;
  EXPECT_LT(seconds, 0.1);
}

TEST_F(Threads, AChildOfForkHasAPoolOfItsOwn) {
  ASSERT_TRUE(workers_meet(4));
  const auto child = [] { return workers_meet(4); };
  EXPECT_EQ(status_of_child(child, &std::exit), 0);
  EXPECT_TRUE(workers_meet(4));
  const auto grandchild = [&] {
    return workers_meet(4) && status_of_child(child, &std::exit) == 0;
  };
  EXPECT_EQ(status_of_child(grandchild, &std::exit), 0);
}

TEST_F(Threads, ForkWhileOtherThreadsRunJobs) {
  // All threads have started before the first fork, and none allocates later: the allocator of
  // AddressSanitizer does not survive a fork amid an allocation.
  ASSERT_TRUE(workers_meet(4));
  std::atomic<bool> stop{false};
  std::atomic<int> started{0};
  std::atomic<int> wrong{0};
  std::vector<std::thread> callers;
  for (int c = 0; c < 3; ++c) {
    callers.emplace_back([&] {
      Recorder record(4, 32);
      ++started;
      for (int times = 1; !stop; ++times) {
        parallel_for(4, 32, record);
        if (!record.each_ran(times) || record.faults() != 0) ++wrong;
      }
    });
  }
  while (started < 3) std::this_thread::yield();
  for (int round = 0; round < 10; ++round) {
    const auto compute = [] {
      if (kThreadSanitizer) set_num_threads(1);
      Recorder record(4, 1000);
      parallel_for(4, 1000, record);
      return record.each_once() && record.faults() == 0 && (kThreadSanitizer || workers_meet(4));
    };
    // _exit, because what the lost threads held would be reported as leaked.
    EXPECT_EQ(status_of_child(compute, &_exit), 0);
  }
  stop = true;
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_TRUE(workers_meet(4));
}

/// Starts a thread for each task.
void run_on_new_threads(void* calls, std::int32_t count, void (*task)(void*, std::int32_t),
                        void* state) {
  *static_cast<int*>(calls) += 1;
  std::vector<std::thread> threads;
  for (std::int32_t i = 0; i < count; ++i) threads.emplace_back(task, state, i);
  for (std::thread& thread : threads) thread.join();
}

void run_in_reverse(void* calls, std::int32_t count, void (*task)(void*, std::int32_t),
                    void* state) {
  *static_cast<int*>(calls) += 1;
  for (std::int32_t i = count - 1; i >= 0; --i) task(state, i);
}

TEST_F(Threads, AnExecutorRunsTheWork) {
  for (const auto run : {&run_on_new_threads, &run_in_reverse}) {
    int calls = 0;
    const Executor executor{run, &calls, 3};
    set_executor(&executor);
    set_num_threads(0);
    EXPECT_EQ(num_threads(), 3);
    Recorder record(3, 500);
    parallel_for(8, 500, record);  // the concurrency of the executor bounds the workers
    EXPECT_TRUE(record.each_once());
    EXPECT_EQ(record.faults(), 0);
    EXPECT_EQ(calls, 1);

    std::atomic<int> inner_tasks{0};
    auto outer = [&](std::int32_t, std::int64_t) {
      auto inner = [&](std::int32_t, std::int64_t) { ++inner_tasks; };
      parallel_for(3, 5, inner);
    };
    parallel_for(3, 6, outer);
    EXPECT_EQ(inner_tasks, 30);
    EXPECT_EQ(calls, 2);  // the nested ones stayed where they were
  }
}

TEST_F(Threads, ThreadCountOfAnExecutor) {
  int calls = 0;
  const Executor executor{&run_in_reverse, &calls, 3};
  set_executor(&executor);
  set_num_threads(2);
  EXPECT_EQ(num_threads(), 2);
  set_num_threads(8);
  EXPECT_EQ(num_threads(), 3);
  set_executor(nullptr);
  EXPECT_EQ(num_threads(), 8);
  EXPECT_TRUE(workers_meet(4));
  EXPECT_EQ(calls, 0);
}

template <class Call>
std::string error_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    return error.what();
  }
  return "no error";
}

TEST_F(Threads, BadSettingsAreErrorsAndChangeNothing) {
  EXPECT_EQ(error_of([] { set_num_threads(-2); }),
            "count: -2 threads, expected 0 (the default) or more");
  const Executor no_run{nullptr, nullptr, 3};
  EXPECT_EQ(error_of([&] { set_executor(&no_run); }), "executor: run is null, expected a function");
  const Executor no_tasks{&run_in_reverse, nullptr, 0};
  EXPECT_EQ(error_of([&] { set_executor(&no_tasks); }),
            "executor: concurrency is 0, expected at least 1");
  EXPECT_EQ(num_threads(), 4);
  EXPECT_TRUE(workers_meet(4));
}

/// Sets a variable for the new process that a "threadsafe" death test starts, and restores it.
class ChildEnvironment {
 public:
  ChildEnvironment(const char* name, const std::string& value) : name_(name) {
    testing::GTEST_FLAG(death_test_style) = "threadsafe";
    if (const char* before = std::getenv(name)) before_ = before;
    setenv(name, value.c_str(), 1);
  }
  ~ChildEnvironment() {
    if (before_) {
      setenv(name_, before_->c_str(), 1);
    } else {
      unsetenv(name_);
    }
  }
  ChildEnvironment(const ChildEnvironment&) = delete;
  ChildEnvironment& operator=(const ChildEnvironment&) = delete;

 private:
  const char* name_;
  std::optional<std::string> before_;
};

// Not of the fixture, which would set the count before the environment is read. The child leaves
// through exit() with its pool asleep.
TEST(ThreadsEnvironment, NumThreads) {
  for (const char* value : {"3", "5"}) {
    const ChildEnvironment environment("ONCHIP_NUM_THREADS", value);
    const int expected = std::atoi(value);
    EXPECT_EXIT(std::exit(num_threads() == expected && workers_meet(expected) &&
                                  pool_threads_of_process() == expected - 1
                              ? 0
                              : 1),
                testing::ExitedWithCode(0), "");
  }
}

TEST(ThreadsEnvironment, NumThreadsThatIsNoCountIsIgnored) {
  for (const char* value : {"", "0", "-1", "two", "3 4", "99999999999"}) {
    const ChildEnvironment environment("ONCHIP_NUM_THREADS", value);
    EXPECT_EXIT(std::exit(num_threads() == available_cpus() ? 0 : 1), testing::ExitedWithCode(0),
                "")
        << value;
  }
}

void print_isa_and_exit() {
  std::fprintf(stderr, "isa=%s;", cpu_isa());
  std::exit(0);
}

// The child begins the test again with the variable set, so only what it prints is compared.
TEST(ThreadsEnvironment, IsaCap) {
  const bool capped = std::getenv("ONCHIP_CPU_ISA") != nullptr;
  const std::string best = std::string("isa=") + cpu_isa() + ";";
  const auto expect_isa = [](const char* cap, const std::string& printed) {
    const ChildEnvironment environment("ONCHIP_CPU_ISA", cap);
    EXPECT_EXIT(print_isa_and_exit(), testing::ExitedWithCode(0), printed) << cap;
  };
#if defined(__x86_64__)
  expect_isa("ssse3", "isa=SSSE3;");
  expect_isa("SSSE3", "isa=SSSE3;");
#endif
  expect_isa(cpu_isa(), best);
  expect_isa("abacus", capped ? "isa=" : best);
}

TEST(CpuDevice, FactsAreThoseOfACpu) {
  const DeviceInfo& device = cpu_device();
  EXPECT_EQ(&device, &cpu_device());
  EXPECT_EQ(device.type, DeviceType::cpu);
  EXPECT_NE(device.name.find(cpu_isa()), std::string::npos);
  EXPECT_GE(device.on_chip_bytes, 128 << 10);
  EXPECT_GE(device.l2_bytes, device.on_chip_bytes);
  EXPECT_GT(device.memory_bytes, device.l2_bytes);
  EXPECT_GT(device.bandwidth, 1e9);
  EXPECT_GT(device.flops_float32, 1e9);
  EXPECT_EQ(device.flops_float64, device.flops_float32 / 2);
}

}  // namespace
}  // namespace onchip::cpu
