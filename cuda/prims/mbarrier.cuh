// SPDX-License-Identifier: Apache-2.0
// Barriers in shared memory that count arrivals, also of asynchronous copies (PTX mbarrier, sm_80).
#pragma once

#include <cstdint>

namespace onchip::cuda {

/// `arrivals` make one phase. One thread calls this, before a __syncthreads().
__device__ __forceinline__ void barrier_init(std::uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

__device__ __forceinline__ void barrier_arrive(std::uint32_t barrier) {
  asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared.b64 state, [%0];\n}" ::"r"(barrier)
               : "memory");
}

/// Arrives once every cp.async of this thread so far has been written.
__device__ __forceinline__ void barrier_arrive_copies(std::uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}

/// Waits for the phase of this parity; what was written before its arrivals can then be read.
__device__ __forceinline__ void barrier_wait(std::uint32_t barrier, std::uint32_t parity) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n.reg .pred done;\nwait:\n"
      "mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n"
      "@!done bra wait;\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
#else
  asm volatile(
      "{\n.reg .pred done;\nwait:\n"
      "mbarrier.test_wait.parity.shared.b64 done, [%0], %1;\n"
      "@!done bra wait;\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
#endif
}

}  // namespace onchip::cuda
