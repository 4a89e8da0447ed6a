// SPDX-License-Identifier: Apache-2.0
// How the CPU backend gets its threads.
#pragma once

#include <cstdint>

#include "onchip/export.h"

namespace onchip {

/// A server's own thread pool. `run` calls `task(state, index)` for every index in [0, count), on
/// any threads, in any order, one after another if need be, and returns when all have returned.
struct Executor {
  void (*run)(void* self, std::int32_t count, void (*task)(void* state, std::int32_t index),
              void* state) = nullptr;
  void* self = nullptr;
  std::int32_t concurrency = 1;  ///< How many tasks `run` may run at once; sizes the workspace.
};

/// Threads that a plan made from now on may use, the caller's included. 0 restores the default:
/// ONCHIP_NUM_THREADS, else the CPUs this process may run on (affinity and cgroup quota). Existing
/// plans then run on at most this many too. Throws `Error` when negative; above 4096 is 4096.
ONCHIP_API void set_num_threads(std::int32_t count);
/// The count in force; with an executor no more than its concurrency, which is then the default.
ONCHIP_API std::int32_t num_threads();

/// Runs all CPU work through `executor` (copied); null restores the built-in pool. Existing plans
/// stay valid. Must not be called while an attention call is running. Throws `Error` when `run` is
/// null or `concurrency` is below 1.
ONCHIP_API void set_executor(const Executor* executor);

/// Instruction set the CPU backend chose at run time, e.g. "AVX2". ONCHIP_CPU_ISA=avx2 caps it.
ONCHIP_API const char* cpu_isa();

}  // namespace onchip
