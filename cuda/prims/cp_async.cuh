// SPDX-License-Identifier: Apache-2.0
// Asynchronous copies from device memory to shared memory (PTX cp.async, sm_80).
#pragma once

#include <cstdint>

namespace onchip::cuda {

/// Copies 16 bytes, or writes 16 zero bytes where `valid` is false; `from` is then not read.
__device__ __forceinline__ void copy_16(std::uint32_t to, const void* from, bool valid) {
  const int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(bytes));
}

/// The same for 4 bytes.
__device__ __forceinline__ void copy_4(std::uint32_t to, const void* from, bool valid) {
  const int bytes = valid ? 4 : 0;
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(bytes));
}

__device__ __forceinline__ void copy_commit() { asm volatile("cp.async.commit_group;"); }

/// Waits until at most `kPending` of this thread's groups are on their way.
template <int kPending>
__device__ __forceinline__ void copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace onchip::cuda
