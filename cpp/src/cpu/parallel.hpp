// SPDX-License-Identifier: Apache-2.0
// Running tasks on the built-in pool or the caller's executor.
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>

namespace onchip::cpu {

/// A non-owning reference to a callable `void(int32_t worker, int64_t task)`.
class TaskRef {
 public:
  template <class F>
    requires(!std::is_same_v<F, TaskRef>)  // else it beats the copy constructor
  TaskRef(F& function)                     // NOLINT(google-explicit-constructor)
      : object_(std::addressof(function)),
        call_([](void* object, std::int32_t worker, std::int64_t task) {
          (*static_cast<F*>(object))(worker, task);
        }) {}
  void operator()(std::int32_t worker, std::int64_t task) const { call_(object_, worker, task); }

 private:
  void* object_;
  void (*call_)(void*, std::int32_t, std::int64_t);
};

/// Calls `task(worker, i)` for every i in [0, count), each once, taken in order from one counter by
/// at most `workers` workers, and returns when all are done. worker < workers, and no two tasks run
/// at once under one worker, so `worker` may index scratch memory. Tasks must not throw. Inside a
/// task the call runs serially (worker 0). Safe from many threads at once and after fork().
void parallel_for(std::int32_t workers, std::int64_t count, TaskRef task);

}  // namespace onchip::cpu
